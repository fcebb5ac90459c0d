"""How much does a trained model need each of its heads?

A gate is a number that the output of a head is multiplied by before W_O: at 1 nothing changes, at 0
the head is gone.

    Delta_h = L(gate_h = 0) - L(all gates 1)

That is what is lost without the head, measured in one run for each head.
MultiHeadAttention stays as it is, and nothing is trained again.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.attention_utils import padding_mask
from shared.toy_language import MASK_ID, PAD_ID
from shared.toy_model import patched_input
from shared.training.objectives import CHOSEN_SHARE, NUM_HELD_OUT, corpus, to_batch
from shared.training.recipes import Trained

LayerAndHead = tuple[int, int]  # layer and head, counted from 0
DRAWS = 1000  # of the examples, for an interval


@dataclass(frozen=True)
class Sampled:
    """A trained model, and losses() -> (B,): its loss on each of some fixed examples, in nats."""

    layers: Sequence[MultiHeadAttention]
    losses: Callable[[], Tensor]

    @property
    def heads(self) -> list[LayerAndHead]:
        heads = range(self.layers[0].num_heads)
        return list(itertools.product(range(len(self.layers)), heads))

    @torch.no_grad()
    def losses_without(self, removed: frozenset[LayerAndHead]) -> Tensor:
        """The loss on each example with some heads removed -> (B,), float64."""
        gates = self.layers[0].w_o.weight.new_ones(len(self.layers), self.layers[0].num_heads)
        for layer, head in removed:
            gates[layer, head] = 0
        with gated_heads(self.layers, gates):
            return self.losses().cpu().double()


@contextmanager
def gated_heads(layers: Sequence[MultiHeadAttention], gates: Tensor) -> Iterator[None]:
    """Inside `with`, the output of each head is multiplied by its gate, before w_o.

    gates: (L, H). Raises ValueError if there is not one gate for each head of each layer.
    """
    expected, received = (len(layers), layers[0].num_heads), tuple(gates.shape)
    if received != expected:
        rule = "gates must have one number for each head"
        raise ValueError(f"{rule}, (L, H) = {expected}: got {received}")
    with ExitStack() as stack:
        for module, gate in zip(layers, gates, strict=True):
            stack.enter_context(patched_input(module.w_o, partial(times_gates, gate)))
        yield


def times_gates(gate: Tensor, merged: Tensor) -> Tensor:
    """Merged heads (B, T, H * d_v), each times its gate, (H,)."""
    return merged * gate.repeat_interleave(merged.size(-1) // gate.size(-1))  # (H,) -> (H * d_v,)


def removal_importance(model: Sampled) -> Tensor:
    """L(x without h) - L(x) for each head and example x -> (L, H, B) in nats.

    The mean over examples is Delta_h.
    """
    before = model.losses_without(frozenset())
    rises = [model.losses_without(frozenset([head])) - before for head in model.heads]
    return torch.stack(rises).unflatten(0, (len(model.layers), -1))  # (L * H, B) -> (L, H, B)


def over_examples(values: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper end of the 95 % interval of the mean over examples, (..., B) -> (...).

    It says how the mean would spread over other draws of as many examples (bootstrap; Efron 1979),
    and is the same at every call.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(values.size(-1), (DRAWS, values.size(-1)), generator=generator)
    means = torch.stack([values[..., examples].mean(dim=-1) for examples in drawn])  # (draws, ...)
    return tuple(means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype), dim=0))


def language_model(trained: Trained, sentences: int = NUM_HELD_OUT) -> Sampled:
    """A model of the toy language on held-out sentences with hidden words, the same at every call.

    The loss of a sentence is the sum over its hidden words, divided by how many a sentence has on
    average: the mean over sentences counts each hidden word alike.
    """
    tokens, lengths = to_batch(corpus()[1][:sentences], "masked word")
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < CHOSEN_SHARE
    hidden &= tokens != PAD_ID
    mask = padding_mask(lengths, tokens.size(1))
    device = trained.model.positions.device
    tokens, hidden, mask = tokens.to(device), hidden.to(device), mask.to(device)

    def losses() -> Tensor:
        logits, _ = trained.model(tokens.masked_fill(hidden, MASK_ID), mask=mask)
        cost = F.cross_entropy(logits.mT, tokens, reduction="none") * hidden  # (B, V, T) -> (B, T)
        return cost.sum(dim=-1) * len(tokens) / hidden.sum()  # (B, T) -> (B,)

    return Sampled([block.attention for block in trained.model.blocks], losses)
