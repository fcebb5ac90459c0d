"""What does a part of a model do, by putting in what it gave for another text?

Activation patching (Vig et al. 2020; Meng et al. 2022) needs two texts that differ in little, and so in the answer:

    clean       the farmer <mask> in a lake      swam, for people
    corrupted   the coin   <mask> in a lake      fell, for toys

Read the corrupted text, but put in what one part of the model gave for the clean one. How much of the clean answer is
back?

    share restored  =  (lead - corrupted lead) / (clean lead - corrupted lead),    lead = logit of swam - logit of fell

1: the part carries all that the answer needs. 0: it carries nothing that the rest does not bring as well. Used by
pattern_used.py, and in phase 4 on the model that copies (induction/paths.py).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from shared.toy_model import ToyTransformer

Change = Callable[[Tensor], Tensor | None]


@contextmanager
def changed(module: nn.Module, change: Change, *, read: bool = False) -> Iterator[None]:
    """Within the block the module gives change(output) in place of its output; read: it reads change(input) instead.

    A change that returns None, as list.append does, only listens.
    """
    if read:
        hook = module.register_forward_pre_hook(lambda _, inputs: change(inputs[0]))
    else:
        hook = module.register_forward_hook(lambda _module, _inputs, output: change(output))
    try:
        yield
    finally:
        hook.remove()


def put_in(clean: Tensor, chosen: Tensor) -> Change:
    """The change that puts `clean`, (B, T, H * d), in place of some heads at some places, bool (B, T, H).

    It is for what holds the heads side by side: what w_o reads, and what w_q, w_k and w_v give. Axes of 1 broadcast.
    """
    columns = chosen.repeat_interleave(clean.size(-1) // chosen.size(-1), dim=-1)  # (B, T, H) -> (B, T, H * d)
    return lambda corrupted: torch.where(columns, clean, corrupted)


@dataclass(frozen=True)
class Run:
    """What a model computed: logits (B, T, V) and, of each layer, weights (B, H, T, T) and values (B, T, H * d_v)."""

    logits: Tensor
    weights: list[Tensor]
    values: list[Tensor]

    def outputs(self, layer: int, weights: Tensor | None = None) -> Tensor:
        """What the heads of a layer hand to w_o, (B, T, H * d_v); weights: those of another text, or changed ones."""
        weights = self.weights[layer] if weights is None else weights
        return merge_heads(weights @ split_heads(self.values[layer], weights.size(1)))


@torch.no_grad()
def run(model: ToyTransformer, tokens: Tensor, mask: Tensor | None = None) -> Run:
    """The model on tokens (B, T), with all that is put in meanwhile."""
    values: list[Tensor] = []
    with ExitStack() as listening:
        for block in model.blocks:
            listening.enter_context(changed(block.attention.w_v, values.append))
        return Run(*model(tokens, mask), values)


def restored(lead: float, clean: float, corrupted: float) -> float:
    """The share of the clean answer that is back."""
    return (lead - corrupted) / (clean - corrupted)
