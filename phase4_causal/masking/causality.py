"""Does anything after position i reach what the model says at i?

Two questions for four causal modules: replace every word after i (the logits at 0 to i must not
move, not by one bit), and take the gradient with respect to these words (exactly 0). A test that
cannot fail proves nothing, so the mistakes planted in three others must be seen. Weights are
random: which paths exist does not hang on training. (causal_mask itself, and padding_mask, are in
shared/attention_utils.py.)

    python phase4_causal/masking/causality.py
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
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import START, START_ID, encode
from shared.toy_model import MakeAttention, ToyTransformer, recorded_outputs
from shared.visualization_utils import QUIET, RED, WIDE, plot_mask, readable, token_labels

ROOM = 8  # positions, for names above the cells


class WithMask(nn.Module):
    """An attention module that is always called with the mask that `rule` makes for a length."""

    def __init__(self, attention: nn.Module, rule: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.attention = attention
        self.rule = rule

    def forward(self, x: Tensor, mask: None = None) -> tuple[Tensor, Tensor | None]:
        return self.attention(x, mask=self.rule(x.size(1)))


def under(rule: Callable[[int], Tensor], make: MakeAttention) -> MakeAttention:
    """Returns a maker of attention like `make`, with the mask of `rule` built in."""
    return lambda d_model, num_heads: WithMask(make(d_model, num_heads), rule)


def one_too_far(length: int) -> Tensor:
    """Returns a causal mask whose diagonal lies one place too far to the right."""
    return torch.ones(length, length, dtype=torch.bool).tril(diagonal=1)


CAUSAL: dict[str, MakeAttention] = {
    "CausalSelfAttention": CausalSelfAttention,
    "MultiHeadAttention + causal mask": under(causal_mask, MultiHeadAttention),
    "fused, told to be causal": partial(FusedMultiHeadAttention, causal=True),
    "GroupedQueryAttention + causal mask": under(
        causal_mask, partial(GroupedQueryAttention, num_kv_heads=2)
    ),
}
PLANTED: dict[str, MakeAttention] = {
    "mistake: no mask": MultiHeadAttention,
    "mistake: mask inverted": under(lambda length: ~causal_mask(length), MultiHeadAttention),
    "mistake: one too far right": under(one_too_far, MultiHeadAttention),
}


def influence(model: ToyTransformer, tokens: Tensor) -> Tensor:
    """Returns how strongly each word reaches the logits of each position, (T, T): gradients.

    A row for each position, a column for each word; tokens (1, T).
    """
    with recorded_outputs(model.embedding) as embeddings:
        logits, _ = model(tokens)
    rows = []
    for i in range(tokens.size(1)):
        size = logits[:, i].square().sum()
        (slope,) = torch.autograd.grad(size, embeddings[0], retain_graph=True)
        rows.append(slope[0].abs().amax(dim=-1))  # (1, T, d_model) -> (T,)
    return torch.stack(rows)


def build(make_attention: MakeAttention, num_layers: int, seed: int) -> ToyTransformer:
    """Returns a toy transformer with random weights in float64."""
    torch.manual_seed(seed)
    return ToyTransformer(num_layers=num_layers, make_attention=make_attention).double().eval()


def measure(run: Run) -> Numbers:
    """Returns how far an earlier logit moves, and its largest gradient by a later word."""
    tokens = torch.tensor([[START_ID, *encode(run.options.words)]])
    numbers = {}
    for name, make_attention in (CAUSAL | PLANTED).items():
        model = build(make_attention, num_layers=1, seed=run.seed)
        reached = influence(model, tokens)
        numbers[f"{name}, moves by"] = largest_leak(model, tokens)
        numbers[f"{name}, gradient"] = reached.triu(diagonal=1).max().item()
        run.shown[name] = reached > 0
    leak = max(numbers[f"{name}, moves by"] for name in CAUSAL)
    run.shown["leak"] = leak
    run.shown["yes_or_no"] = "No" if leak == 0 else "Yes"
    return numbers


def picture(results: Results) -> Figure:
    """Draws what reaches what in the causal modules, all in one panel, and under one mistake."""
    labels = token_labels([START, *results.options.words])
    panels = {"correct mask": list(CAUSAL), "one too far": ["mistake: one too far right"]}
    fig, axes = plt.subplots(1, 2, figsize=(WIDE, 4.4), layout="constrained")
    for ax, (title, names) in zip(axes, panels.items(), strict=True):
        reached = torch.stack([results.shown[name] for name in names]).any(dim=0)
        plot_mask(ax, reached, labels, wrong=~causal_mask(len(labels)))
        plt.setp(ax.get_xticklabels(), rotation=45, ha="left", rotation_mode="anchor")
        if len(labels) > ROOM:  # the rows have the same names
            ax.set(xticks=[])
        moved = max(results.mean[f"{name}, moves by"] for name in names)
        style = {"color": readable(RED), "weight": "bold"} if moved else {}
        ax.set_title(f"{title}: a later\nword moves it by {moved:.2g}", fontsize=11, **style)
        ax.set_xlabel("word that is changed", color=QUIET)
        ax.xaxis.set_label_position("top")
    axes[0].set_ylabel("position that answers", color=QUIET)
    axes[1].set(yticks=[])
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="With a correct causal mask a later word moves an earlier answer by exactly "
    "{shown[leak]:.3g}",
    note="blue: the word itself or an earlier one moves the answer, as it should\n"
    "red: a later one does · hatched: exactly 0 · in logits, untrained",
    answer="{shown[yes_or_no]}: in the causal modules a later word moves an earlier answer by "
    "{shown[leak]:.3g}, and with a mask that reaches one place too far by "
    "{n[mistake: one too far right, moves by]:.2f} logits",
    uses="--sentence --sentences --seed --seeds",
)

if __name__ == "__main__":
    main.run()
