"""What is left of a model without some of its heads, or when a layer may not see one of its neighbours?

Two ways to take a head out. Neither trains anything again:

    zero    its output is 0
    mean    its output is what it gives on average at that place, whatever the words are: the next layer gets what it
            is used to, only not what the head found out about this sequence

Heads can stand in for each other, so every subset of the heads of a layer is taken out. Used by induction.py.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations

import torch
from torch import Tensor, nn

from phase4_causal.induction.induction_scores import repeated_loss
from shared.toy_model import ToyTransformer

Heads = tuple[int, ...]  # of one layer, counted from 0


def all_subsets(count: int) -> list[Heads]:
    """Every subset of `count` heads but the empty one, the smaller ones first."""
    return [heads for size in range(1, count + 1) for heads in combinations(range(count), size)]


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


@contextmanager
def hidden(model: ToyTransformer, layer: int, offset: int) -> Iterator[None]:
    """Within the block no head of this layer sees the word `offset` places away (-1: the one before)."""

    def hide(_: nn.Module, inputs: tuple[Tensor], options: dict) -> tuple[tuple[Tensor], dict]:
        place = torch.arange(inputs[0].size(1), device=inputs[0].device)
        return inputs, options | {"mask": place - place[:, None] != offset}  # (T_q, T_k), beside the causal mask

    hook = model.blocks[layer].attention.register_forward_pre_hook(hide, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def rises(model: ToyTransformer, tokens: Tensor, layer: int) -> dict[str, dict[Heads, float]]:
    """Kind ("zero", "mean") -> heads of the layer -> by how many nats the loss rises without them, repeated part."""
    full = repeated_loss(model, tokens)
    found: dict[str, dict[Heads, float]] = {}
    for kind, instead in (("zero", torch.zeros(())), ("mean", mean_outputs(model, tokens[:, :-1], layer))):
        found[kind] = {}
        for heads in all_subsets(model.blocks[layer].attention.num_heads):
            with replaced(model, layer, heads, instead.to(full)):
                found[kind][heads] = (repeated_loss(model, tokens) - full).item()
    return found
