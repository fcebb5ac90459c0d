"""Can a memory of fixed size take back what it was told?

We write texts of random keys and values, in which every key is written twice, and then ask for the
newest value of each. We compare linear attention without φ, which adds all up in one matrix; the
delta rule, which writes the difference to what the key gives now; and softmax attention, which
keeps everything, alone and with a little more weight for later places.
"""

import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.self_attention import masked_softmax
from phase4_causal.long_texts.delta_rule import delta_rule
from shared import charts
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE, QUIET

D_K = 64  # numbers of a key, and of a value
TEXTS = 20  # of each number of keys
COUNTS = (4, 8, 16, 32, 64, 128, 256)  # of keys that are written twice
SHARPNESS = 64.0  # score of a key with itself, for softmax
EVEN = 1e-9  # two similarities that differ by less are the same but for rounding
LATER = 0.1  # what each place further on adds to the score
COLORS = {"sums": ORANGE, "delta rule": BLUE, "softmax": GREY, "softmax, later preferred": GREEN}
LABELS = {  # memory -> how the picture says it
    "sums": "sums (linear attention)",
    "delta rule": "delta rule",
    "softmax": "softmax attention",
    "softmax, later preferred": "softmax attention,\nthe later preferred",
}


def written_twice(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draws texts of keys and values in which each key is written in two rounds, with two values.

    Key i has the values i and i + count, and a coin says which of them is the newest. Returns keys
    (TEXTS, count, D_K), values (TEXTS, 2 count, D_K), the newest value of each key (TEXTS,
    count), and the text: the values in the order in which they are written (TEXTS, 2 count).
    """
    keys = F.normalize(torch.randn(TEXTS, count, D_K, generator=generator), dim=-1)
    values = F.normalize(torch.randn(TEXTS, 2 * count, D_K, generator=generator), dim=-1)
    newest = torch.arange(count) + count * torch.randint(2, (TEXTS, count), generator=generator)
    older = (newest + count) % (2 * count)
    first, second = torch.rand(2, TEXTS, count, generator=generator).argsort(dim=-1)  # two orders
    text = torch.cat([older.gather(1, first), newest.gather(1, second)], dim=1)
    return keys, values, newest, text


def outputs_of_memories(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
    """What each memory gives to queries: (B, n, d) -> (B, n, d).

    key, value (B, T, d): the text that the memories have read.
    """
    _, state = delta_rule(key, key, value, torch.ones(key.shape[:-1]))
    scores = SHARPNESS * query @ key.mT  # (B, n, d) @ (B, d, T) -> (B, n, T)
    later = LATER * torch.arange(key.size(1))
    return {
        "sums": query @ (key.mT @ value),
        "delta rule": query @ state,
        "softmax": masked_softmax(scores) @ value,
        "softmax, later preferred": masked_softmax(scores + later) @ value,
    }


def share_right(output: Tensor, values: Tensor, newest: Tensor) -> float:
    """Returns the share of answers (B, n, d) that are nearer to the newest value than to others.

    Of those that are as near to another value half count, as if a coin decided, and no rounding.
    """
    similarity = output @ values.mT  # (B, n, d) @ (B, d, 2n) -> (B, n, 2n)
    right = similarity.gather(-1, newest[..., None]).squeeze(-1)
    best_other = similarity.scatter(-1, newest[..., None], -math.inf).amax(dim=-1)
    tied = (right - best_other).abs() < EVEN
    return torch.where(tied, 0.5, (right > best_other).double()).mean().item()


def measure(run: Run) -> Numbers:
    """Returns the share of answers nearest to the newest value, by memory and number of keys."""
    generator = torch.Generator().manual_seed(run.seed)
    each = torch.arange(TEXTS)[:, None]
    numbers = {}
    for count in COUNTS:
        keys, values, newest, text = written_twice(count, generator)
        outputs = outputs_of_memories(keys, keys[each, text % count], values[each, text])
        for name, output in outputs.items():
            numbers[f"{name}, {count}"] = share_right(output, values, newest)
    return numbers


def picture(results: Results) -> Figure:
    """Draws the share of each memory against the number of keys."""
    fig, ax = plt.subplots(figsize=(8.2, 4.8), layout="constrained")
    rows = {LABELS[name]: results.row(name, COUNTS) for name in COLORS}
    charts.lines(ax, COUNTS, rows, {LABELS[name]: color for name, color in COLORS.items()})
    ax.axvline(D_K, color=GREY, linewidth=1, linestyle=":")
    ax.text(D_K, 0.02, f"{D_K} keys: as many as \na key has numbers ", color=QUIET, ha="right")
    ax.set(xlabel="keys, each written twice", ylim=(0, 1.05))
    ax.set_ylabel("share of the newest values found")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="The delta rule finds the newest value until its memory is full",
    note="Every key is written twice, with two values; then each key is asked for its newest "
    f"value\nno model: {TEXTS} texts of random keys and values, {D_K} numbers each",
    answer="Of 32 keys that are written twice the delta rule finds {n[delta rule, 32]:.0%} of "
    "the newest values, and plain sums find {n[sums, 32]:.0%}",
    uses="--seed --seeds",
)

if __name__ == "__main__":
    main.run()
