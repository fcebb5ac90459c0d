"""Does anything after position i reach what the model says at i?

Two questions for every module and function that claims to be causal, and for three modules with a planted mistake:
replace all that comes after i (what is said at 0 to i must not move, not by one bit), and take the gradient with
respect to it (exactly 0). Models have random weights: the proof is about which paths exist, and training adds none.
A test that cannot fail proves nothing, so the mistakes must be seen. What a model learns without the mask is shown by
breaking_causality.py.
"""

import math
from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
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
from phase4_causal.models import largest_leak
from shared.attention_utils import causal_mask
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import START, START_ID, encode
from shared.toy_model import MakeAttention, ToyTransformer, watch_embedding
from shared.visualization_utils import QUIET, plot_mask, token_labels


class WithMask(nn.Module):
    """An attention module that is always called with the mask that `rule` makes for the length at hand."""

    def __init__(self, attention: nn.Module, rule: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.attention, self.rule = attention, rule

    def forward(self, x: Tensor, mask: None = None) -> tuple[Tensor, Tensor | None]:
        return self.attention(x, mask=self.rule(x.size(1)))


def masked(make: MakeAttention, rule: Callable[[int], Tensor]) -> MakeAttention:
    """Like `make`, with the mask of `rule` built in."""
    return lambda d_model, num_heads: WithMask(make(d_model, num_heads), rule)


CAUSAL: dict[str, MakeAttention] = {
    "CausalSelfAttention": CausalSelfAttention,
    "MultiHeadAttention + causal mask": masked(MultiHeadAttention, causal_mask),
    "fused, told to be causal": partial(FusedMultiHeadAttention, causal=True),
    "GroupedQueryAttention + causal mask": masked(partial(GroupedQueryAttention, num_kv_heads=2), causal_mask),
}
PLANTED: dict[str, MakeAttention] = {
    "mistake: no mask": MultiHeadAttention,
    "mistake: mask inverted": masked(MultiHeadAttention, lambda length: ~causal_mask(length)),
    "mistake: one too far right": masked(
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


def build(make_attention: MakeAttention, num_layers: int, seed: int) -> ToyTransformer:
    """A toy transformer with random weights in float64."""
    torch.manual_seed(seed)
    return ToyTransformer(num_layers=num_layers, make_attention=make_attention).double().eval()


def measure(run: Run) -> Numbers:
    """By how much an earlier logit, or output, moves, and the largest gradient of an earlier logit by a later word."""
    tokens, found = torch.tensor([[START_ID, *encode(run.options.words)]]), {}
    for name, make_attention in (CAUSAL | PLANTED).items():
        model = build(make_attention, num_layers=1, seed=run.seed)
        found[f"{name}, moves by"], found[f"{name}, gradient"] = largest_leak(model, tokens)
        run.shown[name] = influence(model, tokens) > 0
    for name, function in FUNCTIONS.items():
        found[f"{name}, moves by"] = max(largest_move(function, dtype, size) for dtype in FORMATS for size in FUTURES)
    run.shown["leak"] = max(found[f"{name}, moves by"] for name in CAUSAL | FUNCTIONS)
    run.shown["mistakes"] = min(found[f"{name}, moves by"] for name in PLANTED)
    return found


def picture(found: Results) -> Figure:
    """One panel for the causal modules, which must all look alike, and one for each planted mistake."""
    labels = token_labels([START, *found.options.words])
    panels = {f"{len(CAUSAL)} causal\nmodules": list(CAUSAL)} | {name.replace(": ", ":\n"): [name] for name in PLANTED}
    fig, axes = plt.subplots(1, len(panels), figsize=(9, 4.4), layout="constrained")
    fig.get_layout_engine().set(h_pad=0.15)
    for ax, (title, names) in zip(axes, panels.items(), strict=True):
        reached = torch.stack([found.shown[name] for name in names]).any(dim=0)
        plot_mask(ax, reached, labels, wrong=~causal_mask(len(labels))).set_title(title, fontsize=10, pad=8)
        ax.tick_params(axis="x", labelrotation=90)
        moved = max(found.mean[f"{name}, moves by"] for name in names)
        ax.set_xlabel(f"an earlier logit\nmoves by {moved:.2f}" if moved else "no earlier logit\nmoves at all")
    for ax in axes[1:]:
        ax.set_yticks([])
    axes[0].set_ylabel("position that answers", color=QUIET)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Later words move an earlier logit by exactly {shown[leak]:g}; planted mistakes show",
    note="blue: the word (column) reaches the position (row) · orange: though it comes later · hatched: exactly 0\n"
    "untrained models of one layer: the proof is about which paths exist",
    answer="Causal modules and functions leak exactly {shown[leak]:g}; planted mistakes move a logit by "
    "{shown[mistakes]:.2f} or more",
)

if __name__ == "__main__":
    main.run()
