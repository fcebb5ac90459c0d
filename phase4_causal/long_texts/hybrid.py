"""Do delta layers look up as softmax layers do, or does one softmax layer help?

A text tells pairs, each a key and a value, and then asks for every key once more, in another order.
Models of two layers answer: two softmax layers, whose memory grows with the text; two delta layers,
whose memory is one matrix of fixed size in each head; and one of each, in both orders. They share
all but the reading: softmax divides by √d_k, the delta rule takes queries and keys of length 1, and
a β from each word. Every layer has the same short convolution over two words, as the delta layers
of released models have. All train at one learning rate.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase4_causal.long_texts.delta_rule import delta_rule
from shared import charts
from shared.attention_utils import also_causal
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.training.loop import fit
from shared.visualization_utils import BLUE, GREY, QUIET, WIDE

KEYS, VALUES = 64, 64  # symbols: keys first, values after them
D_MODEL, HEADS = 32, 4
D_K = D_MODEL // HEADS  # numbers of a key in one head; the matrix holds D_K x D_K
COUNTS = (4, 8, 16, 32)  # pairs in a text
STEPS = 400
TWICE_THE_STEPS = 2 * STEPS  # of two delta layers
BATCH = 32
NUM_TEST = 200  # texts
# The layers of each model, and the steps of training.
MODELS = {
    "two softmax layers": (("softmax", "softmax"), STEPS),
    "delta, then softmax": (("delta", "softmax"), STEPS),
    "softmax, then delta": (("softmax", "delta"), STEPS),
    "two delta layers, twice the steps": (("delta", "delta"), TWICE_THE_STEPS),
}


class Layer(nn.Module):
    """One layer, of which `kind` decides only how the past is read: "softmax" or "delta"."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.LayerNorm(D_MODEL)
        self.w_qkv = nn.Linear(D_MODEL, 3 * D_MODEL)
        self.w_beta = nn.Linear(D_MODEL, HEADS)  # a softmax layer has it and does not use it
        self.w_o = nn.Linear(D_MODEL, D_MODEL)
        # Each number of queries, keys and values is mixed with that of the word before.
        width = 3 * D_MODEL
        self.convolution = nn.Conv1d(width, width, kernel_size=2, groups=width, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model), with x added."""
        words = self.norm(x)
        projected = self.w_qkv(words)  # (B, T, d_model) -> (B, T, 3 d_model)
        mixed = self.convolution(projected.mT)  # -> (B, 3 d_model, T + 1)
        projected = mixed[..., :-1].mT  # what padding adds at the end is cut off
        query, key, value = projected.chunk(3, dim=-1)  # (B, T, d_model) each
        query = split_heads(query, HEADS)  # (B, T, d_model) -> (B, H, T, d_k)
        key = split_heads(key, HEADS)
        value = split_heads(value, HEADS)
        if self.kind == "softmax":
            heads, _ = scaled_dot_product_attention(query, key, value, also_causal(x, None))
        else:
            beta = self.w_beta(words).sigmoid().mT  # (B, T, H) -> (B, H, T)
            query = F.normalize(query, dim=-1)
            key = F.normalize(key, dim=-1)
            heads, _ = delta_rule(query, key, value, beta)
        return x + self.w_o(merge_heads(heads))


class Recaller(nn.Module):
    """Symbols and learned positions, two layers, and a guess of a value at each place."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(KEYS + VALUES, D_MODEL)
        self.positions = nn.Parameter(0.1 * torch.randn(3 * max(COUNTS), D_MODEL))
        self.layers = nn.ModuleList([Layer(kind) for kind in kinds])
        self.to_logits = nn.Linear(D_MODEL, VALUES)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols (B, T) -> logits (B, T, VALUES)."""
        x = self.embedding(symbols) + self.positions[: symbols.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.to_logits(x)


def pairs_and_questions(
    texts: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draws texts of `count` pairs, with all their keys behind them, in another order.

    Returns the symbols (texts, 3 count) and the values to be found (texts, count), from 0 on.
    """
    keys = torch.rand(texts, KEYS, generator=generator).argsort(dim=1)[:, :count]
    values = torch.randint(VALUES, (texts, count), generator=generator)
    pairs = torch.stack([keys, KEYS + values], dim=-1)  # -> (texts, count, 2)
    order = torch.rand(texts, count, generator=generator).argsort(dim=1)
    questions = keys.gather(1, order)
    symbols = torch.cat([pairs.flatten(1), questions], dim=1)  # key, value, ..., key, key, ...
    return symbols, values.gather(1, order)


def train_recaller(name: str, run: Run) -> Recaller:
    """Trains one of MODELS; of one seed all see the same texts."""
    kinds, steps = MODELS[name]
    torch.manual_seed(run.seed)
    model = Recaller(kinds)
    generator = torch.Generator().manual_seed(run.seed)

    def loss_of_step(step: int) -> Tensor:
        count = COUNTS[step % len(COUNTS)]
        symbols, answers = pairs_and_questions(BATCH, count, generator)
        logits = model(symbols)[:, -count:]
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten())

    fit(model, loss_of_step, run.steps(steps), matrix_rate=None, rate=2e-2, progress=name)
    return model


@torch.no_grad()
def share_found(model: Recaller, count: int) -> float:
    """Returns the share of the values found in texts of `count` pairs that no training has seen."""
    generator = torch.Generator().manual_seed(10**6 + count)
    symbols, answers = pairs_and_questions(NUM_TEST, count, generator)
    guesses = model(symbols)[:, -count:].argmax(dim=-1)
    return (guesses == answers).double().mean().item()


def measure(run: Run) -> Numbers:
    """Returns the share of values found by each model, by the number of pairs in a text."""
    numbers = {}
    for name in MODELS:
        model = train_recaller(name, run)
        for count in COUNTS:
            numbers[f"{name}, {count} pairs"] = share_found(model, count)
    return numbers


CLAIMS = (
    Claim(
        id="delta-memory-full",
        text="When a text has more pairs than a memory of fixed size has room for, two delta "
        "layers find fewer values than two softmax layers, though they train twice as long. We "
        "asked for 32 pairs, with keys of 8 numbers in each head's matrix. The models have two "
        "layers with d = 32, each with a convolution over two words.",
        source="Arora et al. 2024, section 3, who compare many sizes of state",
        rule="two delta layers find, after 800 steps, at least 0.10 fewer of the values than two "
        "softmax layers find after 400",
        effect=lambda n: (
            n["two softmax layers, 32 pairs"] - n["two delta layers, twice the steps, 32 pairs"]
        ),
        at_least=0.10,
        oracle={"two delta*": 0.8, "*": 1.0},
        null={"*": 1.0},
        explored=10,
    ),
)


def picture(results: Results) -> Figure:
    """Draws a bar for each model in the longest texts, where the models differ most."""
    fig, ax = plt.subplots(figsize=(WIDE, 3.6), layout="constrained")
    shares, colors = {}, {}
    for name, (kinds, _) in MODELS.items():
        label = name.replace(", twice", ",\ntwice")
        shares[label] = results.each(f"{name}, {COUNTS[-1]} pairs")
        colors[label] = BLUE if "softmax" in kinds and "delta" in kinds else GREY
    charts.bars(ax, shares, colors, number="{:.0%}")
    ax.tick_params(labelsize=11)
    ax.spines.bottom.set_visible(False)
    ax.set_title(f"share of {COUNTS[-1]} values found", color=QUIET)
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Two delta layers find fewer values than two softmax layers; "
    "one of each finds nearly all",
    note=f"blue: one of each · {HEADS} heads, keys of {D_K} numbers\n"
    f"trained {STEPS} steps, two delta layers {TWICE_THE_STEPS}",
    answer="Of 32 pairs a delta and a softmax layer find {n[delta, then softmax, 32 pairs]:.0%}, "
    "and two delta layers, trained for twice the steps, find "
    "{n[two delta layers, twice the steps, 32 pairs]:.0%}",
)

if __name__ == "__main__":
    main.run()
