"""Does anything after position i reach what the model says at i?

Two questions for four causal modules: replace every word after i (the logits at 0 to i must not
move, not by one bit), and take the gradient with respect to these words (exactly 0). A test that
cannot fail proves nothing, so the mistakes planted in three others must be seen. Weights are
random: which paths exist does not hang on training.
"""

from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.models import largest_leak
from shared.attention_utils import causal_mask
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import START, START_ID, encode
from shared.toy_model import MakeAttention, ToyTransformer, changed
from shared.visualization_utils import QUIET, plot_mask, token_labels


class WithMask(nn.Module):
    """An attention module that is always called with the mask that `rule` makes for the length at
    hand.
    """

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
    "GroupedQueryAttention + causal mask": masked(
        partial(GroupedQueryAttention, num_kv_heads=2), causal_mask
    ),
}
PLANTED: dict[str, MakeAttention] = {
    "mistake: no mask": MultiHeadAttention,
    "mistake: mask inverted": masked(MultiHeadAttention, lambda length: ~causal_mask(length)),
    "mistake: one too far right": masked(
        MultiHeadAttention,
        lambda length: torch.ones(length, length, dtype=torch.bool).tril(diagonal=1),
    ),
}


def influence(model: ToyTransformer, tokens: Tensor) -> Tensor:
    """How strongly each word (column) reaches each position's logits (row): largest gradient -> (T,
    T).
    """
    embedded: list[Tensor] = []
    with changed(model.embedding, embedded.append):
        logits, _ = model(tokens)
    rows = []
    for i in range(tokens.size(1)):
        (slope,) = torch.autograd.grad(logits[:, i].square().sum(), embedded[0], retain_graph=True)
        rows.append(slope[0].abs().amax(dim=-1))  # (1, T, d_model) -> (T,)
    return torch.stack(rows)


def build(make_attention: MakeAttention, num_layers: int, seed: int) -> ToyTransformer:
    """A toy transformer with random weights in float64."""
    torch.manual_seed(seed)
    return ToyTransformer(num_layers=num_layers, make_attention=make_attention).double().eval()


def measure(run: Run) -> Numbers:
    """By how much an earlier logit moves, and the largest gradient of an earlier logit with respect
    to a later word.
    """
    tokens, found = torch.tensor([[START_ID, *encode(run.options.words)]]), {}
    for name, make_attention in (CAUSAL | PLANTED).items():
        model = build(make_attention, num_layers=1, seed=run.seed)
        reached = influence(model, tokens)
        found[f"{name}, moves by"] = largest_leak(model, tokens)
        found[f"{name}, gradient"] = reached.triu(diagonal=1).max().item()
        run.shown[name] = reached > 0
    run.shown["leak"] = max(found[f"{name}, moves by"] for name in CAUSAL)
    run.shown["mistakes"] = min(found[f"{name}, moves by"] for name in PLANTED)
    return found


def picture(found: Results) -> Figure:
    """One panel for the causal modules, which must all look alike, and one for each planted
    mistake.
    """
    labels = token_labels([START, *found.options.words])
    panels = {f"{len(CAUSAL)} causal\nmodules": list(CAUSAL)} | {
        name.replace(": ", ":\n"): [name] for name in PLANTED
    }
    fig, axes = plt.subplots(1, len(panels), figsize=(9, 4.4), layout="constrained")
    fig.get_layout_engine().set(h_pad=0.15)
    for ax, (title, names) in zip(axes, panels.items(), strict=True):
        reached = torch.stack([found.shown[name] for name in names]).any(dim=0)
        plot_mask(ax, reached, labels, wrong=~causal_mask(len(labels))).set_title(
            title, fontsize=10, pad=8
        )
        ax.tick_params(axis="x", labelrotation=90)
        moved = max(found.mean[f"{name}, moves by"] for name in names)
        ax.set_xlabel(
            f"an earlier logit\nmoves by {moved:.2f}" if moved else "no earlier logit\nmoves at all"
        )
    for ax in axes[1:]:
        ax.set_yticks([])
    axes[0].set_ylabel("position that answers", color=QUIET)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="With the causal mask later words move an earlier logit by exactly {shown[leak]:.3g}",
    note="blue: the word (column) reaches the position (row) · red: though it comes later · hatched: exactly 0\n"
    "untrained models of one layer: the proof is about which paths exist",
    answer="Causal modules leak {shown[leak]:.3g}; planted mistakes move a logit by {shown[mistakes]:.2f} or more",
)

if __name__ == "__main__":
    main.run()
