"""By which path does the answer reach the model's guess?

Patching (phase 3) puts what a head gave for one text into the reading of another. Path patching puts it into one
receiver only (Wang et al. 2022; Goldowsky-Dill et al. 2023): the keys of the induction heads get what layer 0 gave for
the clean text, everybody else what it gives for the corrupted one.

    clean       cat RED on swam BIG up ... | cat RED ?       on: it came behind RED
    corrupted   cat BIG on swam RED up ... | cat RED ?       up

Two words of the first copy are exchanged. Both answers stand where they stood; only the words before them differ. Path
by path: how much of the lead of the clean answer is back? The model is that of circuits.py.

    python phase4_causal/induction/paths.py

Writes induction_paths.png to visualizations/plots/phase4/.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase3_visualization.circuits.patching import Pairs, Part, Patching, put_in
from phase4_causal.induction.circuits import chosen_scores, induction_model
from phase4_causal.induction.induction import HEADS, INDUCTION, MATCHES, PREVIOUS, generator
from phase4_causal.induction.induction_scores import LENGTH, PERIODS, repeated_sequences
from shared import cli
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_model import ToyTransformer
from shared.visualization_utils import GREY, headline, save_plot

TEXTS = 200
BY_HEAD, BEHIND, ELSEWHERE = "restored by each head", "layer 0, behind the exchanged words", "layer 0, elsewhere"
PATTERNS, TAKEN = "layer 1, patterns alone", "layer 1, values alone"
QUERIES, KEYS, VALUES, PAST = "queries", "keys", "values", "past layer 1"
STRAIGHT, BY_NETWORK = "keys, straight", "keys, by the network"


def sample_texts(count: int, draw: torch.Generator) -> tuple[Pairs, Tensor]:
    """Texts as in training; the question is the first of the two exchanged words, in the second copy.

    And, bool (N, T), the two places behind the exchanged words, where both answers stand.
    """
    rows = []
    for _ in range(count):
        period = int(torch.randint(PERIODS[0], PERIODS[1] + 1, (1,), generator=draw))
        clean = repeated_sequences(1, draw, (period, period), LENGTH - 1)[0]
        places = [(a, b) for a in range(period - 1) for b in range(period - 1) if abs(a - b) >= 2]
        a, b = places[int(torch.randint(len(places), (1,), generator=draw))]
        corrupted, behind = clean.clone(), torch.zeros_like(clean, dtype=torch.bool)
        corrupted[[a, b]], behind[[a + 1, b + 1]] = clean[[b, a]], True
        rows.append((clean, corrupted, torch.tensor(period + a), clean[[a + 1, b + 1]], behind))
    *pairs, behind = map(torch.stack, zip(*rows, strict=True))
    return Pairs(*pairs), behind


def by_part(patching: Patching, behind: Tensor) -> dict[str, float | list[float]]:
    """Activation patching: each head, everywhere; all of layer 0 by places; all of layer 1 by patterns or by values."""
    clean, corrupted, heads = patching.clean, patching.corrupted, patching.heads
    alone = torch.eye(HEADS, dtype=torch.bool)[:, None, None]  # (H, 1, 1, H)
    places = behind[..., None].expand(-1, -1, HEADS)  # (N, T) -> (N, T, H)
    return {
        BY_HEAD: [patching.share(heads(layer, clean.outputs(layer), head)) for layer in (0, 1) for head in alone],
        BEHIND: patching.share(heads(0, clean.outputs(0), places)),
        ELSEWHERE: patching.share(heads(0, clean.outputs(0), ~places)),
        PATTERNS: patching.share(heads(1, corrupted.outputs(1, clean.weights[1]))),
        TAKEN: patching.share(heads(1, clean.outputs(1, corrupted.weights[1]))),
    }


def by_path(patching: Patching, receivers: Tensor) -> dict[str, float]:
    """Path patching: from all heads of layer 0 to the queries, keys or values of some heads of layer 1, bool (H,).

    On its way what layer 0's heads give is read by the feed-forward network of their layer, too. Straight: the network
    keeps to the corrupted text. By the network: it alone reads what the heads gave for the clean one.
    """
    network, receiver = patching.model.blocks[0].feed_forward, patching.model.blocks[1].attention
    sent = patching.heads(0, patching.clean.outputs(0))
    before, after = patching.given(network), patching.given(network, sent)

    def through(part: nn.Linear, *parts: Part) -> float:
        return patching.share((part, put_in(patching.given(part, *parts), receivers[None, None]), False))

    return {
        QUERIES: through(receiver.w_q, sent),
        KEYS: through(receiver.w_k, sent),
        VALUES: through(receiver.w_v, sent),
        PAST: patching.share(sent, patching.heads(1, patching.corrupted.outputs(1))),
        STRAIGHT: through(receiver.w_k, sent, (network, lambda _: before, False)),
        BY_NETWORK: through(receiver.w_k, (network, lambda _: after, False)),
    }


@measures(
    Claim(
        id="induction-key-path",
        text="The word before reaches the guess by one path: from layer 0 to the keys of the induction heads",
        kind=EXPERIMENT,
        source="Elhage et al. 2021; path patching as in Wang et al. 2022, feed-forward networks on the way",
        rule="to their keys 0.8 or more; to their queries, to their values, and past layer 1 at most 0.1 each",
        holds=lambda n: n[KEYS] >= 0.8 and max(n[QUERIES], n[VALUES], n[PAST]) <= 0.1,
        oracle={KEYS: 0.95, QUERIES: 0.0, VALUES: 0.0, PAST: 0.0},
        null={KEYS: 0.3, QUERIES: 0.3, VALUES: 0.3, PAST: 0.1},
        unit=f"share of the lead of the clean answer that is back; induction heads score {MATCHES} or more",
        control="all other paths out of the heads of layer 0",
        shows=(QUERIES, KEYS, VALUES, PAST, STRAIGHT, BY_NETWORK, BEHIND, ELSEWHERE),
    ),
    Claim(
        id="induction-pattern-used",
        text="The pattern of the induction heads is used: it decides what is said, their values do not",
        kind=EXPERIMENT,
        source="Elhage et al. 2021; Olsson et al. 2022",
        rule="layer 1 with the patterns of the clean text restores 0.8 or more, with its values 0.1 or less",
        holds=lambda n: n[PATTERNS] >= 0.8 and n[TAKEN] <= 0.1,
        oracle={PATTERNS: 1.0, TAKEN: 0.0},
        null={PATTERNS: 0.5, TAKEN: 0.5},
        unit="share of the lead of the clean answer that is back",
        shows=(PATTERNS, TAKEN, BY_HEAD),
    ),
)
def shares(model: ToyTransformer, seed: int) -> dict[str, float | list[float]]:
    """Heads, places and paths of one model."""
    pairs, behind = sample_texts(TEXTS, generator(seed, 10))
    patching = Patching(model, pairs)
    return by_part(patching, behind) | by_path(patching, chosen_scores(model, seed)[0] >= MATCHES)


def draw_bars(ax: Axes, bars: dict[str, float], colors: list[str], title: str) -> None:
    ax.barh(list(bars), list(bars.values()), color=colors, height=0.7)
    for place, value in enumerate(bars.values()):
        ax.text(min(max(value, 0), 1) + 0.02, place, f"{round(value, 2) + 0.0:.2f}", va="center")
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.15), xticks=(0, 0.5, 1), xlabel="share of the answer restored")
    ax.tick_params(axis="y", length=0)
    ax.set_title(title)


def draw(found: Numbers, seed: int) -> tuple[Figure, str]:
    """Left what each head carries, right what each path carries from layer 0."""
    fig, (heads, paths) = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
    names = [f"layer {layer} head {head}" for layer in (0, 1) for head in range(HEADS)]
    of_layers = [PREVIOUS] * HEADS + [INDUCTION] * HEADS
    draw_bars(heads, dict(zip(names, found[BY_HEAD], strict=True)), of_layers, "by one head")
    ways = {name: found[name] for name in (QUERIES, KEYS, VALUES, PAST, STRAIGHT, BY_NETWORK)}
    colors = [INDUCTION if name in (KEYS, STRAIGHT, BY_NETWORK) else GREY for name in ways]
    draw_bars(paths, ways, colors, "by one path, from layer 0 to ...")
    title = f"Through the keys of the induction heads {found[KEYS]:.0%} of the answer comes back"
    if found[KEYS] < 0.5:
        title = "Trained too little: nothing is looked up yet"
    headline(fig, title, f"seed {seed} · {TEXTS} pairs of texts · network: the feed-forward network of layer 0")
    return fig, f"{title}. Shares restored by each head, and by each path from the heads of layer 0."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    found = [shares(induction_model(options, seed), seed) for seed in cli.seeds(options)]
    save_plot(options, "phase4/induction_paths", *draw(found[0], options.seed))
    findings.record(options, *found)
    first = found[0]
    others = max(first[name] for name in (QUERIES, VALUES, PAST))
    return f"Through the keys {first[KEYS]:.2f} of the answer is back, by every other path at most {others:.2f}"


if __name__ == "__main__":
    cli.run(main)
