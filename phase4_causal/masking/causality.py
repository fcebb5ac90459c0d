"""Does anything after position i reach what the model says at i?

Two questions are put to every module that claims to be causal, and to three with a planted mistake:

    replace   every word after i by another one: the logits at 0 to i must not move, not by one bit
    gradient  of the logits at i with respect to the words after i: exactly 0, whatever they are replaced by

Zero means zero: a hidden score is -inf, its weight exactly 0, and 0 times a finite value adds nothing. The models here
have random weights and read random words. That is on purpose: the proof is about which paths exist, and training adds
no path. Shuffling the later words instead is no test where they are equal, or only one is left: nothing changes.

Functions without a model are asked about numbers: those after a place are replaced by others up to 1e30, in three
number formats. What adds the future and takes it off again has forgotten the past by then.

What happens to a model that was trained without the mask is shown by breaking_causality.py.

    python phase4_causal/masking/causality.py

Writes leak_proof.png to visualizations/plots/phase4/.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.long_texts.sparse_attention import strided_attention
from phase4_causal.masking.masks import ALLOWED
from phase4_causal.models import largest_leak
from shared import cli
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.toy_language import SPECIAL, START, START_ID, VOCABULARY, encode
from shared.toy_model import MakeAttention, ToyTransformer, watch_embedding
from shared.visualization_utils import QUIET, RED, hatch_cell, headline, save_plot, token_labels

NUM_WORDS = 6
NOTICED = 1e-6  # a change of a logit that nobody takes for rounding, in float64


class WithMask(nn.Module):
    """An attention module that is always called with the mask that `rule` makes for the length at hand."""

    def __init__(self, attention: nn.Module, rule: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.attention, self.rule = attention, rule

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x (B, T, d_model) -> output (B, T, d_model) and the weights of the module; a further mask is and-ed on."""
        own = self.rule(x.size(1)).to(x.device)
        return self.attention(x, mask=own if mask is None else own & mask)


def masked(make: MakeAttention, rule: Callable[[int], Tensor]) -> MakeAttention:
    """Like `make`, with the mask of `rule` built in."""
    return lambda d_model, num_heads: WithMask(make(d_model, num_heads), rule)


CAUSAL: dict[str, MakeAttention] = {
    "CausalSelfAttention": CausalSelfAttention,
    "MultiHeadAttention + causal mask": masked(MultiHeadAttention, causal_mask),
    "fused, causal=True": partial(FusedMultiHeadAttention, causal=True),
    "GroupedQueryAttention + causal mask": masked(partial(GroupedQueryAttention, num_kv_heads=2), causal_mask),
}
PLANTED: dict[str, MakeAttention] = {
    "mistake: no mask": MultiHeadAttention,
    "mistake: mask inverted": masked(MultiHeadAttention, lambda length: ~causal_mask(length)),
    "mistake: diagonal one too far right": masked(
        MultiHeadAttention, lambda length: torch.ones(length, length, dtype=torch.bool).tril(diagonal=1)
    ),
}

Function = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, key, value (T, d) -> output (T, d)
FUNCTIONS: dict[str, Function] = {
    "scaled_dot_product_attention": lambda q, k, v: scaled_dot_product_attention(q, k, v, causal_mask(len(q)))[0],
    "flash_attention": partial(flash_attention, causal=True, block_size=(32, 48)),
    "local_attention": partial(local_attention, causal=True, window=70),
    "strided_attention": partial(strided_attention, causal=True, stride=7),
    "linear_attention": partial(linear_attention, causal=True),
    "linear_attention_recurrent": lambda q, k, v: linear_attention_recurrent(q, k, v)[0],
}
FORMATS = (torch.float64, torch.float32, torch.bfloat16)
FUTURES = (1.0, 1e6, 1e30)  # sizes of the numbers that come in place of the future


def build(make_attention: MakeAttention, num_layers: int, seed: int) -> ToyTransformer:
    """A toy transformer with random weights in float64."""
    torch.manual_seed(seed)
    return ToyTransformer(num_layers=num_layers, make_attention=make_attention).double().eval()


def influence(model: ToyTransformer, tokens: Tensor) -> Tensor:
    """How strongly each word (column) reaches each position's logits (row): largest gradient -> (T, T)."""
    with watch_embedding(model) as embedded:
        logits, _ = model(tokens)
    rows = []
    for i in range(tokens.size(1)):
        (slope,) = torch.autograd.grad(logits[:, i].square().sum(), embedded[0], retain_graph=True)
        rows.append(slope[0].abs().amax(dim=-1))  # (1, T, d_model) -> (T,)
    return torch.stack(rows)


@torch.no_grad()
def largest_move(attention: Function, dtype: torch.dtype, size: float, length: int = 200) -> float:
    """How far the output at 0 to i moves when all after i is replaced by numbers of another size; NaN is a move."""
    generator = torch.Generator().manual_seed(0)
    given, others = torch.randn(2, 3, length, 8, generator=generator, dtype=torch.float64)  # query, key, value each
    before, most = attention(*given.to(dtype)), 0.0
    for i in range(0, length - 1, 9):
        later = torch.arange(length)[:, None] > i
        after = attention(*torch.where(later, size * others, given).to(dtype))
        most = max(most, (after - before)[: i + 1].abs().max().nan_to_num(nan=math.inf).item())
    return most


def drawn(seed: int) -> Tensor:
    """<start> and NUM_WORDS words drawn from the vocabulary, grammar or not -> tokens (1, NUM_WORDS + 1)."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(len(SPECIAL), len(VOCABULARY), (1, NUM_WORDS), generator=generator)
    return torch.cat([torch.tensor([[START_ID]]), words], dim=-1)


@measures(
    Claim(
        id="leak-test-can-fail",
        text="The leak test catches a forgotten, an inverted and a shifted mask, and nothing else",
        kind=EXPERIMENT,
        source="course notes, experiments with the causal mask (they shuffle the later words; here each is replaced)",
        rule="changes and gradients are above 1e-6 for each mistake and exactly 0 for each causal module",
        holds=lambda n: all(min(n[name]) > NOTICED for name in PLANTED) and all(max(n[name]) == 0 for name in CAUSAL),
        oracle={name: [0.5, 3.0] if name in PLANTED else [0.0, 0.0] for name in CAUSAL | PLANTED},
        null={name: [0.0, 0.0] for name in CAUSAL | PLANTED},
        unit="change of an earlier logit, gradient from a later word; of mistakes the smallest, of others the largest",
        control="four causal modules, in which no later word has a path to an earlier position",
        headline=True,
    ),
)
def leaks(seed: int, layers: tuple[int, ...]) -> dict[str, list[float]]:
    """The strongest leak of each sound module and the weakest of each mistake; the seed draws words and weights."""
    tokens, found = drawn(seed), {}
    for name, make in (CAUSAL | PLANTED).items():
        tested = [largest_leak(build(make, num_layers, seed), tokens) for num_layers in layers]
        found[name] = [(max if name in CAUSAL else min)(values) for values in zip(*tested, strict=True)]
    return found


def draw_reach(ax: Axes, reached: Tensor, words: list[str]) -> None:
    """Which word (column) reaches which position (row), bool (T, T): blue, orange if it comes later; else hatched."""
    for row, column in itertools.product(*map(range, reached.shape)):
        if reached[row, column]:
            color = RED if column > row else ALLOWED
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=color, edgecolor="white", linewidth=0.8))
        else:
            hatch_cell(ax, column, row)
    ax.set(xlim=(0, len(words)), ylim=(len(words), 0), aspect="equal")
    ax.xaxis.tick_top()
    ax.set_xticks([i + 0.5 for i in range(len(words))], words, rotation=90)
    ax.set_yticks([])
    ax.tick_params(length=0, pad=2, labelsize=9 if len(words) <= 10 else 8)
    ax.spines[:].set_visible(False)


def draw(maps: dict[str, Tensor], worst: dict[str, tuple[float, float]], words: list[str]) -> tuple[Figure, str]:
    """One panel for the causal modules, which must all look alike, and one for each planted mistake."""
    tight, noticed = (max(max(worst[name]) for name in CAUSAL) == 0, all(min(worst[n]) > NOTICED for n in PLANTED))
    panels = {f"{len(CAUSAL)} causal modules": torch.stack([maps[name] > 0 for name in CAUSAL]).any(dim=0)}
    panels |= {name: maps[name] > 0 for name in PLANTED}
    fig, axes = plt.subplots(1, len(panels), figsize=(9, 4.4), layout="constrained")
    fig.get_layout_engine().set(h_pad=0.15)
    for ax, (name, reached) in zip(axes, panels.items(), strict=True):
        draw_reach(ax, reached, token_labels(words))
        ax.set_title(name.replace(": ", ":\n").replace("diagonal ", ""), fontsize=10, pad=8)
        moved = worst[name][0] if name in worst else max(worst[sound][0] for sound in CAUSAL)
        ax.set_xlabel(f"an earlier logit\nmoves by {moved:.2f}" if moved else "no earlier logit\nmoves at all")
    axes[0].set_yticks([i + 0.5 for i in range(len(words))], token_labels(words))
    axes[0].set_ylabel("position that answers", color=QUIET)
    title = "With the mask no later word reaches an earlier position; each mistake lets some through"
    if not (tight and noticed):
        title = "A leak where there should be none" if noticed else "A planted mistake that goes unnoticed"
    note = "blue: the word (column) reaches the position (row) · orange: though it comes later · hatched: exactly 0"
    headline(fig, title, f"{note}\nuntrained models of one layer: the proof is about which paths exist", 12)
    return fig, f"{title}. Which word reaches which position: the modules, and three mistakes."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    tokens = torch.tensor([[START_ID, *encode(options.words)]])
    every = [leaks(seed, (2,) if options.quick else (1, 2)) for seed in cli.seeds(options)]
    found = every[0]
    print("\nFunctions: how far outputs move when all later numbers are replaced by others up to 1e30")
    for name, function in FUNCTIONS.items():
        moves = (largest_move(function, dtype, size) for dtype in FORMATS for size in FUTURES)
        print(f"   {name:30} {max(moves):g}")
    models = {name: build(make, 1, options.seed) for name, make in (CAUSAL | PLANTED).items()}
    maps = {name: influence(model, tokens) for name, model in models.items()}
    shown = {name: largest_leak(model, tokens) for name, model in models.items()}
    save_plot(options, "phase4/leak_proof", *draw(maps, shown, [START, *options.words]))
    findings.record(options, *every)
    most, least = max(max(found[name]) for name in CAUSAL), min(found[name][0] for name in PLANTED)
    return f"Causal modules leak exactly {most:g}; planted mistakes move a logit by {least:.2f} or more"


if __name__ == "__main__":
    cli.run(main)
