"""What does a memory of fixed size do when a word takes back an earlier one?

Linear attention keeps the sum of all keys with their values. A key that was written with an old value and then with a
new one gives both. The delta rule (Schlag et al. 2021, section 4.2) first reads what the key gives now, and writes the
difference alone. With q, k, v as rows, and keys of length 1:

    S  <-  S + β kᵀ (v - k S)          β = 1: from now on k gives v; β = 0: nothing is written
    output  =  q S                     without "- k S" it is linear attention, with q and k as they are

S is d_k x d_v however long the text is. Training need not go word by word: all corrections of a chunk, u = β (v - k S),
solve one triangular system (Yang et al. 2024). Run it to write keys twice and to ask for their newest values:

    python phase4_causal/long_texts/delta_rule.py

Writes delta_rule.png to visualizations/plots/phase4/.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax
from phase4_causal.long_texts.linear_attention import CHUNK, first_state
from shared import cli
from shared.attention_checks import at_least_float32, check_attention_inputs
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE, QUIET, headline, label_ends, save_plot

WIDTH, TEXTS = 64, 20  # d_k and d_v; texts of each number of keys
COUNTS = (4, 8, 16, 32, 64, 128, 256)  # of keys that are written twice
SHARPNESS, LATER = 64.0, 0.1  # of softmax: score of a key with itself; what each place further on adds to the score
SUMS, DELTA, SOFTMAX, PLACES = "sums", "delta rule", "softmax", "softmax, later places preferred"
COLORS = {SUMS: ORANGE, DELTA: BLUE, SOFTMAX: GREY, PLACES: GREEN}


def delta_by_loops(query: Tensor, key: Tensor, value: Tensor, beta: Tensor) -> Tensor:
    """The specification, without S: a list of keys and corrections. (T, d_k), (T, d_k), (T, d_v), (T,) -> (T, d_v)."""
    written: list[tuple[Tensor, Tensor]] = []

    def read(asked: Tensor) -> Tensor:
        return sum((torch.dot(asked, k) * correction for k, correction in written), torch.zeros_like(value[0]))

    output = torch.zeros_like(value)
    for t in range(len(key)):
        written.append((key[t], beta[t] * (value[t] - read(key[t]))))
        output[t] = read(query[t])
    return output


def _prepared(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """Inputs that were checked, beta as (..., T, 1), and the state to begin with."""
    check_attention_inputs(query, key, value, None)
    if beta.shape != key.shape[:-1]:
        raise ValueError(f"beta has one number for each key, {tuple(key.shape[:-1])}: got {tuple(beta.shape)}")
    inputs = at_least_float32(query, key, value, beta.unsqueeze(-1))
    return inputs, first_state(*inputs[:3], state)


def delta_rule_recurrent(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The delta rule word by word, with a state of constant size; arguments and errors are those of delta_rule."""
    inputs, state = _prepared(query, key, value, beta, state)
    outputs = []
    for q, k, v, b in zip(*(x.split(1, dim=-2) for x in inputs), strict=True):
        state = state + k.mT @ (b * (v - k @ state))  # (..., d_k, 1) @ (..., 1, d_v) -> (..., d_k, d_v)
        outputs.append(q @ state)  # (..., 1, d_k) @ (..., d_k, d_v) -> (..., 1, d_v)
    return torch.cat(outputs, dim=-2).to(query.dtype), state  # T of (..., 1, d_v) -> (..., T, d_v)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The delta rule in chunks (Yang et al. 2024, section 3): a few large products in place of a step for each word.

    query, key (..., T, d_k), value (..., T, d_v), beta (..., T) from 0 to 1 -> output (..., T, d_v) and the state
    (..., d_k, d_v), from which the text may go on. Give keys of length 1: with longer ones the state may grow without
    end. A NaN or inf in key, value or beta reaches earlier words of its chunk (0 · NaN); in delta_rule_recurrent it
    does not. Inputs of 16 bits are summed in float32. Raises ValueError for sizes that do not fit.
    """
    inputs, state = _prepared(query, key, value, beta, state)
    outputs = []
    for q, k, v, b in zip(*(x.split(CHUNK, dim=-2) for x in inputs), strict=True):
        earlier = (b * (k @ k.mT)).tril(-1)  # (..., CHUNK, CHUNK): how much of each correction a later key reads
        # u_t = b_t (v_t - k_t S) - sum of earlier_ts u_s over s < t, which is (I + earlier) u = b (v - k S)
        u = torch.linalg.solve_triangular(earlier, b * (v - k @ state), upper=False, unitriangular=True)
        outputs.append(q @ state + (q @ k.mT).tril() @ u)  # of the state, and of this chunk: (..., CHUNK, d_v)
        state = state + k.mT @ u  # (..., d_k, CHUNK) @ (..., CHUNK, d_v) -> (..., d_k, d_v)
    return torch.cat(outputs, dim=-2).to(query.dtype), state  # chunks of (..., CHUNK, d_v) -> (..., T, d_v)


def written_twice(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Key i has the values i and i + count. A coin says which is written first; the other is written in a second round.

    -> keys (TEXTS, count, WIDTH), values (TEXTS, 2 count, WIDTH), the newest value of each key (TEXTS, count), and the
    text, as the values in the order in which they are written (TEXTS, 2 count).
    """
    sizes = (TEXTS, count, WIDTH), (TEXTS, 2 * count, WIDTH)
    keys, values = (F.normalize(torch.randn(size, generator=generator), dim=-1) for size in sizes)
    newest = torch.arange(count) + count * torch.randint(2, (TEXTS, count), generator=generator)
    first, second = torch.rand(2, TEXTS, count, generator=generator).argsort(dim=-1)  # a new order for each round
    text = torch.cat([(newest.gather(1, first) + count) % (2 * count), newest.gather(1, second)], dim=1)
    return keys, values, newest, text


def answers(asked: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
    """What each memory gives after a text, key and value (B, T, d), for the keys asked (B, n, d) -> (B, n, d)."""
    scores = SHARPNESS * asked @ key.mT  # (B, n, d) @ (B, d, T) -> (B, n, T)
    return {
        SUMS: asked @ (key.mT @ value),
        DELTA: asked @ delta_rule(key, key, value, torch.ones(key.shape[:-1]))[1],
        SOFTMAX: masked_softmax(scores) @ value,
        PLACES: masked_softmax(scores + LATER * torch.arange(key.size(1))) @ value,
    }


def overwrites(n: Numbers) -> bool:
    shares = zip(COUNTS, n[DELTA], n[SUMS], strict=True)
    few = all(delta >= 0.95 and sums <= 0.75 for count, delta, sums in shares if count <= WIDTH // 2)
    return few and n[DELTA][COUNTS.index(2 * WIDTH)] <= 0.6


@measures(
    Claim(
        id="delta-rule",
        text="A memory of fixed size gives the newest value of a key if it writes corrections, and not if it adds; it "
        "has room for about as many keys as a key has numbers",
        kind=EXPERIMENT,
        source="Schlag et al. 2021, sections 4.1 and 4.2",
        rule=f"up to {WIDTH // 2} keys the delta rule at least 0.95, sums at most 0.75; with {2 * WIDTH} at most 0.6",
        holds=overwrites,
        oracle={SUMS: [0.5] * 7, DELTA: [1.0] * 5 + [0.5, 0.25]},
        null={SUMS: [0.5] * 7, DELTA: [0.5] * 7},
        unit=f"share of keys whose newest value is nearest; of {', '.join(map(str, COUNTS))} keys, d = {WIDTH}",
        control="softmax attention, which keeps all keys and values: half are right unless it is told places",
    ),
)
def newest_found(seed: int) -> dict[str, list[float]]:
    """For each memory and number of keys, the share of answers to which, of all values, the newest is nearest."""
    generator, each = torch.Generator().manual_seed(seed), torch.arange(TEXTS)[:, None]
    found: dict[str, list[float]] = {name: [] for name in COLORS}
    for count in COUNTS:
        keys, values, newest, text = written_twice(count, generator)
        for name, output in answers(keys, keys[each, text % count], values[each, text]).items():
            nearest = (output @ values.mT).argmax(dim=-1)  # (TEXTS, count, 2 count) -> (TEXTS, count)
            found[name].append((nearest == newest).double().mean().item())
    return found


def draw(found: dict[str, list[float]], seed: int) -> tuple[Figure, str]:
    """The share of each memory against the number of keys."""
    fig, ax = plt.subplots(figsize=(8.2, 4.8), layout="constrained")
    for name, shares in found.items():
        ax.plot(
            COUNTS,
            shares,
            "o-",
            color=COLORS[name],
            linewidth=2.5,
            ms=7,
            clip_on=False,
            zorder=3 if name == DELTA else 2,
        )
    ax.axvline(WIDTH, color=QUIET, linewidth=1, linestyle=":")
    ax.text(WIDTH, 0.02, " as many keys as\n a key has numbers", color=QUIET)
    ax.set(xscale="log", xlabel="keys, each written twice", ylim=(0, 1.05), ylabel="newest values found")
    ax.set_xticks(COUNTS, COUNTS)
    ax.minorticks_off()
    title = "A memory that corrects finds the newest value, until it is full"
    headline(fig, title, f"no model: {TEXTS} texts of random keys and values, d = {WIDTH}, seed {seed}")
    ends = {name.replace("later ", "later\n"): (COUNTS[-1], n[-1], COLORS[name]) for name, n in found.items()}
    label_ends(ax, ends, size=10)
    return fig, f"{title}. Share of newest values found against the number of keys, a line for each memory."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    found = [newest_found(seed) for seed in cli.seeds(options)]
    save_plot(options, "phase4/delta_rule", *draw(found[0], options.seed))
    findings.record(options, *found)
    delta, sums = (found[0][name][COUNTS.index(WIDTH // 2)] for name in (DELTA, SUMS))
    return f"Of {WIDTH // 2} keys written twice the delta rule finds {delta:.2f} of the newest values, sums {sums:.2f}"


if __name__ == "__main__":
    cli.run(main)
