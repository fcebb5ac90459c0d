"""What is left of a model without some of its heads?

Two ways to take a head out. Neither trains anything again:

    zero    its output is 0
    mean    its output is what it gives on average at that place, whatever the words are: the next layer gets what it
            is used to, only not what the head found out about this sequence
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from phase4_causal.induction.induction_scores import repeated_loss
from shared.toy_model import ToyTransformer


@torch.no_grad()
def mean_outputs(model: ToyTransformer, tokens: Tensor, layer: int) -> Tensor:
    """What the heads of a layer give on average at each place: tokens (N, T) -> (T, H * d_v), as w_o reads it."""
    seen: list[Tensor] = []
    hook = model.blocks[layer].attention.w_o.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(tokens)
    hook.remove()
    return seen[0].mean(dim=0)  # (N, T, H * d_v) -> (T, H * d_v)


@contextmanager
def replaced(model: ToyTransformer, layer: int, heads: Iterable[int], instead: Tensor) -> Iterator[None]:
    """Within the block these heads of a layer give what stands in `instead`, (T, H * d_v) or what broadcasts to it."""
    attention = model.blocks[layer].attention
    gone = torch.zeros(attention.num_heads, dtype=torch.bool)
    gone[list(heads)] = True

    def exchange(w_o: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        (merged,) = inputs  # (N, T, H * d_v)
        columns = gone.repeat_interleave(merged.size(-1) // len(gone)).to(merged.device)  # (H,) -> (H * d_v,)
        return torch.where(columns, instead, merged)

    hook = attention.w_o.register_forward_pre_hook(exchange)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def rise(model: ToyTransformer, tokens: Tensor, layer: int, heads: Iterable[int], kind: str) -> float:
    """By how many nats the loss of the repeated part rises without these heads of a layer; kind: "zero" or "mean"."""
    full = repeated_loss(model, tokens)
    instead = mean_outputs(model, tokens[:, :-1], layer) if kind == "mean" else torch.zeros(())
    with replaced(model, layer, heads, instead.to(full)):
        return (repeated_loss(model, tokens) - full).item()
