"""What does a part of a model do, by putting in what it gave for another text?

Activation patching (Vig et al. 2020; Meng et al. 2022) needs two texts that differ in little, and
so in the answer:

    clean       the farmer <mask> in a lake      swam, for people
    corrupted   the coin   <mask> in a lake      fell, for toys

Read the corrupted text, but put in what one part of the model gave for the clean one. How much of
the clean answer is back?

    share restored  =  (lead - corrupted lead) / (clean lead - corrupted lead),    lead = logit of swam - logit of fell

1: the part carries all that the answer needs. 0: it carries nothing that the rest does not bring as
well.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from shared.toy_model import Change, ToyTransformer, changed

Part = tuple[nn.Module, Change, bool]  # what `changed` takes


def put_in(clean: Tensor, chosen: Tensor) -> Change:
    """The change that puts `clean`, (B, T, H * d), in place of some heads at some places, bool (B,
    T, H).

    It is for what holds the heads side by side: what w_o reads, and what w_q, w_k and w_v give.
    Axes of 1 broadcast.
    """
    columns = chosen.repeat_interleave(
        clean.size(-1) // chosen.size(-1), dim=-1
    )  # (B, T, H) -> (B, T, H * d)
    return lambda corrupted: torch.where(columns, clean, corrupted)


@dataclass(frozen=True)
class Run:
    """What a model computed: logits (B, T, V) and, of each layer, weights (B, H, T, T) and values
    (B, T, H * d_v).
    """

    logits: Tensor
    weights: list[Tensor]
    values: list[Tensor]

    def outputs(self, layer: int, weights: Tensor | None = None) -> Tensor:
        """What the heads of a layer hand to w_o, (B, T, H * d_v); weights: those of another text,
        or changed ones.
        """
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


@dataclass(frozen=True)
class Pairs:
    """Clean and corrupted texts (B, T), the place of the question (B,), the answers to both (B, 2),
    and the mask.
    """

    clean: Tensor
    corrupted: Tensor
    asked: Tensor
    answers: Tensor
    mask: Tensor | None = None

    def lead(self, logits: Tensor) -> float:
        """How far the clean answer is ahead of the other, mean over pairs: logits (B, T, V)."""
        both = logits[torch.arange(len(logits)), self.asked].gather(
            1, self.answers
        )  # (B, T, V) -> (B, V) -> (B, 2)
        return (both[:, 0] - both[:, 1]).mean().item()


def exchanged(clean: Tensor, one: int, other: int, period: int) -> Pairs:
    """Texts (B, T) that come again after `period` places, asked there what follows the first of two
    exchanged words.
    """
    corrupted = clean.clone()
    corrupted[:, [one, other]] = clean[:, [other, one]]
    return Pairs(
        clean, corrupted, torch.full((len(clean),), one + period), clean[:, [one + 1, other + 1]]
    )


class Patching:
    """A model and the pairs of texts that it has read. What is put in is named by a Part, as
    `changed` takes it.

    >>> patching = Patching(model, pairs)
    >>> patching.share(patching.heads(0, patching.clean.outputs(0)))     # all heads of layer 0 as in the clean texts
    """

    def __init__(self, model: ToyTransformer, pairs: Pairs) -> None:
        self.model, self.pairs = model, pairs
        self.clean, self.corrupted = (
            run(model, tokens, pairs.mask) for tokens in (pairs.clean, pairs.corrupted)
        )
        self.clean_lead, self.corrupted_lead = (
            pairs.lead(each.logits) for each in (self.clean, self.corrupted)
        )

    def lead(self, *parts: Part, tokens: Tensor | None = None) -> float:
        """The lead of the clean answer with parts put in; tokens: the corrupted texts unless others
        are given.
        """
        with ExitStack() as inside:
            for module, change, read in parts:
                inside.enter_context(changed(module, change, read=read))
            tokens = self.pairs.corrupted if tokens is None else tokens
            return self.pairs.lead(run(self.model, tokens, self.pairs.mask).logits)

    def share(self, *parts: Part) -> float:
        """Share of the clean answer that is restored."""
        lost = self.clean_lead - self.corrupted_lead
        return (self.lead(*parts) - self.corrupted_lead) / lost

    def through(self, part: nn.Linear, receivers: Tensor, sent: Part) -> float:
        """Path patching (Wang et al. 2022): share restored if what is sent reaches a matrix of some
        heads, (H,).
        """
        return self.share((part, put_in(self.given(part, sent), receivers[None, None]), False))

    def given(self, module: nn.Module, *parts: Part) -> Tensor:
        """What a module gives for the corrupted texts with parts put in."""
        seen: list[Tensor] = []
        self.lead(*parts, (module, seen.append, False))
        return seen[0]

    def heads(self, layer: int, outputs: Tensor, chosen: Tensor | None = None) -> Part:
        """These outputs, (B, T, H * d_v), for the chosen heads and places, bool (B, T, H); all of
        them without it.
        """
        attention = self.model.blocks[layer].attention
        if chosen is None:
            chosen = torch.ones(1, 1, attention.num_heads, dtype=torch.bool)
        return attention.w_o, put_in(outputs, chosen), True
