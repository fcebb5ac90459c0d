"""Can a memory of fixed size take back what it was told?

Texts of random keys and values, in which every key is written twice, and then asked for its newest
value. Compared are linear attention without φ, which adds all up in one matrix; the delta rule,
which writes the difference to what the key gives now; and softmax attention, which keeps
everything, alone and with a little more weight for later places.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax
from phase4_causal.long_texts.delta_rule import delta_rule
from shared import charts
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE, QUIET

WIDTH, TEXTS = 64, 20  # d_k and d_v; texts of each number of keys
COUNTS = (4, 8, 16, 32, 64, 128, 256)  # of keys that are written twice
SHARPNESS, LATER = (
    64.0,
    0.1,
)  # of softmax: score of a key with itself; what each place further on adds to the score
COLORS = {"sums": ORANGE, "delta rule": BLUE, "softmax": GREY, "softmax, later preferred": GREEN}


def written_twice(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Key i has the values i and i + count. A coin says which is written first; the other is
    written in a second round.

    -> keys (TEXTS, count, WIDTH), values (TEXTS, 2 count, WIDTH), the newest value of each key (TEXTS, count), and the
    text, as the values in the order in which they are written (TEXTS, 2 count).
    """
    sizes = (TEXTS, count, WIDTH), (TEXTS, 2 * count, WIDTH)
    keys, values = (F.normalize(torch.randn(size, generator=generator), dim=-1) for size in sizes)
    newest = torch.arange(count) + count * torch.randint(2, (TEXTS, count), generator=generator)
    first, second = torch.rand(2, TEXTS, count, generator=generator).argsort(
        dim=-1
    )  # a new order for each round
    text = torch.cat(
        [(newest.gather(1, first) + count) % (2 * count), newest.gather(1, second)], dim=1
    )
    return keys, values, newest, text


def answers(asked: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
    """What each memory gives after a text, key and value (B, T, d), for the keys asked (B, n, d) ->
    (B, n, d).
    """
    scores = SHARPNESS * asked @ key.mT  # (B, n, d) @ (B, d, T) -> (B, n, T)
    return {
        "sums": asked @ (key.mT @ value),
        "delta rule": asked @ delta_rule(key, key, value, torch.ones(key.shape[:-1]))[1],
        "softmax": masked_softmax(scores) @ value,
        "softmax, later preferred": masked_softmax(scores + LATER * torch.arange(key.size(1)))
        @ value,
    }


def measure(run: Run) -> Numbers:
    """For each memory and number of keys, the share of answers to which, of all values, the newest
    is nearest.
    """
    generator, each = torch.Generator().manual_seed(run.seed), torch.arange(TEXTS)[:, None]
    found = {}
    for count in COUNTS:
        keys, values, newest, text = written_twice(count, generator)
        for name, output in answers(keys, keys[each, text % count], values[each, text]).items():
            nearest = (output @ values.mT).argmax(
                dim=-1
            )  # (TEXTS, count, 2 count) -> (TEXTS, count)
            found[f"{name}, {count}"] = (nearest == newest).double().mean().item()
    return found


def picture(found: Results) -> Figure:
    """The share of each memory against the number of keys."""
    fig, ax = plt.subplots(figsize=(8.2, 4.8), layout="constrained")
    charts.lines(ax, COUNTS, {name: found.row(name, COUNTS) for name in COLORS}, COLORS)
    ax.axvline(WIDTH, color=GREY, linewidth=1, linestyle=":")
    ax.text(WIDTH, 0.02, " as many keys as\n a key has numbers", color=QUIET)
    ax.set(xlabel="keys, each written twice", ylim=(0, 1.05), ylabel="newest values found")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="The delta rule finds the newest value until its memory is full",
    note=f"no model: {TEXTS} texts of random keys and values, d = {WIDTH}",
    answer="Of 32 keys written twice the delta rule finds {n[delta rule, 32]:.0%} of the newest values, "
    "sums {n[sums, 32]:.0%}",
)

if __name__ == "__main__":
    main.run()
