"""How much does a trained model need each of its heads? Two definitions, and the gate that both use.

A gate is a number that the output of a head is multiplied by before W_O: at 1 nothing changes, at 0 the head is gone.

    removal     Delta_h = L(gate_h = 0) - L(all gates 1)        what is lost without the head; one run for each head
    gradient    I_h = mean over examples x of |d L(x) / d gate_h|, all gates 1                   (Michel et al. 2019)

The second asks what a small turn of the gate would do, and gets the answer for all heads from one run forwards and one
backwards. It is the absolute value for each example: over a batch, heads that help here and harm there would cancel.

What they are good for is in head_pruning.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import training
from shared.attention_utils import padding_mask
from shared.evidence.intervals import bootstrap_interval
from shared.toy_language import MASK_ID, PAD_ID
from shared.training import Trained

Head = tuple[int, int]  # layer and head, counted from 0
Loss = Callable[[frozenset[Head]], float]  # the loss without these heads


@dataclass(frozen=True)
class Measured:
    """A trained model as this file needs it.

    layers: its attention modules, each with as many heads. loss(): mean loss in nats over `examples` fixed examples,
    which enter the attention as the batch, in the same order at each call.
    """

    layers: Sequence[MultiHeadAttention]
    loss: Callable[[], Tensor]
    examples: int

    @property
    def heads(self) -> list[Head]:
        return [(layer, head) for layer, module in enumerate(self.layers) for head in range(module.num_heads)]

    def open_gates(self, *batch: int) -> Tensor:
        """Gates that change nothing -> ones (*batch, L, H), as the model's weights are (dtype, device)."""
        return self.layers[0].w_o.weight.new_ones(*batch, len(self.layers), self.layers[0].num_heads)


@contextmanager
def gated(layers: Sequence[MultiHeadAttention], gates: Tensor) -> Iterator[None]:
    """Within the block, the output of each head is multiplied by its gate.

    gates: (L, H), or (B, L, H) for gates of its own for each example. MultiHeadAttention stays as it is: a hook sees
    what enters w_o, the outputs of all heads side by side, and may hand on something else in its place.
    Raises ValueError if there is not one gate for each head of each layer.
    """
    expected = (len(layers), layers[0].num_heads)
    if gates.dim() not in (2, 3) or gates.shape[-2:] != expected:
        raise ValueError(
            f"gates must have one number for each head: (L, H) = {expected} or (B, L, H), got {tuple(gates.shape)}"
        )
    hooks = [
        module.w_o.register_forward_pre_hook(partial(_multiply_heads, gate))
        for module, gate in zip(layers, gates.unbind(dim=-2), strict=True)  # (..., L, H) -> L x (..., H)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _multiply_heads(gate: Tensor, w_o: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    """What w_o is to read instead: merged heads (B, T, H * d_v), each times its gate, (H,) or (B, H)."""
    (merged,) = inputs
    columns = gate.repeat_interleave(merged.size(-1) // gate.size(-1), dim=-1)  # (..., H) -> (..., H * d_v)
    return merged * columns.unsqueeze(-2)  # (..., H * d_v) -> (..., 1, H * d_v): the same at each of the T places


@contextmanager
def removed_from(model: Measured, removed: frozenset[Head]) -> Iterator[None]:
    """Within the block some heads are gone, none of the others trained again."""
    gates = model.open_gates()
    for layer, head in removed:
        gates[layer, head] = 0
    with gated(model.layers, gates):
        yield


@torch.no_grad()
def loss_without(model: Measured, removed: frozenset[Head]) -> float:
    """Loss in nats with some heads removed."""
    with removed_from(model, removed):
        return model.loss().item()


def removal_importance(model: Measured, loss: Loss | None = None) -> Tensor:
    """Delta_h = L(without h) - L(full) -> (L, H) in nats; below 0 where the model is better without the head.

    loss: loss_without of this model, if the caller has one that remembers what it has measured.
    """
    loss = loss or partial(loss_without, model)
    rises = [loss(frozenset([head])) - loss(frozenset()) for head in model.heads]
    return torch.tensor(rises, dtype=torch.float64).view(len(model.layers), -1)  # (L * H,) -> (L, H)


@torch.enable_grad()
def gradient_importance(model: Measured) -> Tensor:
    """I_h = mean over examples of |d L(x) / d gate_h| -> (L, H) in nats per unit of the gate (Michel et al. 2019).

    Each example has gates of its own, so that one backward pass tells their gradients apart. The loss is already the
    mean of the L(x): what is left to do is to sum. In a batch of sentences L(x) counts each word alike, whatever the
    length of its sentence.
    """
    gates = model.open_gates(model.examples).requires_grad_()
    with gated(model.layers, gates):
        (gradient,) = torch.autograd.grad(model.loss(), gates)
    return gradient.abs().sum(dim=0).double().cpu()  # (B, L, H) -> (L, H)


def ranks(values: Tensor) -> Tensor:
    """Place of each value in the order of size, counted from 1 -> (n,); equal values share the mean of their places."""
    smaller, not_larger = ((values[:, None] > values).sum(dim=1), (values[:, None] >= values).sum(dim=1))
    return (smaller + 1 + not_larger).double() / 2


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rho, the correlation of the ranks: 1 for the same order, -1 for the opposite one."""
    return torch.corrcoef(torch.stack([ranks(a.flatten()), ranks(b.flatten())]))[0, 1].item()


@dataclass(frozen=True)
class Sampled:
    """A trained model with its loss on each of the examples: losses() -> (B,), in nats. Their mean is the loss."""

    layers: Sequence[MultiHeadAttention]
    losses: Callable[[], Tensor]
    examples: int

    def measured(self) -> Measured:
        """For the measurements of head_importance.py."""
        return Measured(self.layers, lambda: self.losses().mean(), self.examples)

    @torch.no_grad()
    def losses_without(self, removed: frozenset[Head]) -> Tensor:
        """The loss on each example with some heads removed -> (B,), float64."""
        with removed_from(self.measured(), removed):
            return self.losses().double().cpu()


def language_model(trained: Trained, sentences: int = training.NUM_HELD_OUT) -> Sampled:
    """A model of the toy language on held-out sentences with hidden words, the same at every call.

    The loss of a sentence is the sum over its hidden words, divided by how many a sentence has on average: the mean
    over sentences counts each hidden word alike.
    """
    tokens, lengths = training.to_batch(training.corpus()[1][:sentences], "masked word")
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < training.CHOSEN
    hidden &= tokens != PAD_ID
    mask = padding_mask(lengths, tokens.size(1))
    tokens, hidden, mask = (t.to(trained.model.positions.device) for t in (tokens, hidden, mask))

    def losses() -> Tensor:
        logits, _ = trained.model(tokens.masked_fill(hidden, MASK_ID), mask=mask)
        cost = F.cross_entropy(logits.mT, tokens, reduction="none") * hidden  # (B, V, T) -> (B, T)
        return cost.sum(dim=-1) * (len(tokens) / hidden.sum())  # (B, T) -> (B,)

    return Sampled([block.attention for block in trained.model.blocks], losses, len(tokens))


def over_examples(values: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper end of the 95 % interval of the mean, by bootstrap, the same at every call: (..., B) -> (...)."""
    return bootstrap_interval(values, torch.Generator().manual_seed(0))
