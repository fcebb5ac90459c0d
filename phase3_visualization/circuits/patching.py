"""What does a part of a model do? Put in what it gave for another text, and see what changes.

Activation patching (Vig et al. 2020; Meng et al. 2022) needs two texts that differ in little, and
so in the answer:

    clean       the farmer <mask> in a lake      swam, for people
    corrupted   the coin   <mask> in a lake      fell, for toys

The model reads the corrupted text, but one part of it gives what it gave for the clean one. The
logit difference is the logit of "swam" less that of "fell". How much of it is back?

    share restored  =  (patched - corrupted) / (clean - corrupted)      of logit differences

1: the part carries all that the answer needs. 0: it carries nothing that the rest does not bring.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from shared.toy_language import MASK, encode
from shared.toy_model import ToyTransformer, patched, patched_input, recorded_outputs

Patch = Callable[[], AbstractContextManager]  # `with patch():` puts it in


def put_in(clean: Tensor, chosen: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns a function that puts `clean` in place of the chosen heads at the chosen places.

    clean (B, T, H * d) and chosen, bool (B, T, H); axes of 1 broadcast. It fits all that holds the
    heads side by side: what w_o reads, and what w_q, w_k and w_v give.
    """
    width = clean.size(-1) // chosen.size(-1)
    columns = chosen.repeat_interleave(width, dim=-1)  # (B, T, H) -> (B, T, H * d)
    return lambda corrupted: torch.where(columns, clean, corrupted)


@dataclass(frozen=True)
class Pass:
    """What a model computed: logits (B, T, V), and of each layer its weights and its values.

    weights: (B, H, T, T) each; values: (B, T, H * d_v) each.
    """

    logits: Tensor
    weights: list[Tensor]
    values: list[Tensor]

    def outputs(self, layer: int, weights: Tensor | None = None) -> Tensor:
        """What the heads of a layer hand to w_o, (B, T, H * d_v), by these weights or their own."""
        if weights is None:
            weights = self.weights[layer]
        return merge_heads(weights @ split_heads(self.values[layer], weights.size(1)))


@torch.no_grad()
def forward_pass(model: ToyTransformer, tokens: Tensor, mask: Tensor | None = None) -> Pass:
    """Runs the model on tokens (B, T), with all patches that are put in meanwhile."""
    with recorded_outputs(*[block.attention.w_v for block in model.blocks]) as values:
        logits, weights = model(tokens, mask)
    return Pass(logits, weights, values)


@dataclass(frozen=True)
class Pairs:
    """Clean and corrupted texts (B, T), with a question at one position of each.

    position: of the question (B,); answers: the clean and the corrupted one (B, 2).
    """

    clean: Tensor
    corrupted: Tensor
    position: Tensor
    answers: Tensor
    mask: Tensor | None = None

    def differences(self, logits: Tensor) -> Tensor:
        """Logit of the clean answer less that of the other: logits (B, T, V) -> (B,)."""
        at_question = logits[torch.arange(len(logits)), self.position]  # (B, T, V) -> (B, V)
        both = at_question.gather(1, self.answers)  # (B, V) -> (B, 2)
        return both[:, 0] - both[:, 1]

    def logit_difference(self, logits: Tensor) -> float:
        """The mean difference over pairs: logits (B, T, V)."""
        return self.differences(logits).mean().item()


def exchanged(clean: Tensor, one: int, other: int, period: int) -> Pairs:
    """Pairs from texts (B, T) that repeat after `period` places; corrupted: two words exchanged.

    The question stands in the second copy: what follows the first of the two words?
    """
    corrupted = clean.clone()
    corrupted[:, [one, other]] = clean[:, [other, one]]
    position = torch.full((len(clean),), one + period)
    return Pairs(clean, corrupted, position, clean[:, [one + 1, other + 1]])


class Patching:
    """A model that has read pairs of texts, and now reads the corrupted ones with patches.

    >>> patching = Patching(model, pairs)
    >>> all_heads_of_layer_0 = patching.patch_of_heads(0, patching.clean.outputs(0))
    >>> patching.restored(all_heads_of_layer_0)
    """

    def __init__(self, model: ToyTransformer, pairs: Pairs) -> None:
        self.model, self.pairs = model, pairs
        self.clean = forward_pass(model, pairs.clean, pairs.mask)
        self.corrupted = forward_pass(model, pairs.corrupted, pairs.mask)
        self.clean_difference = pairs.logit_difference(self.clean.logits)
        self.corrupted_difference = pairs.logit_difference(self.corrupted.logits)

    def logit_difference(self, *patches: Patch, tokens: Tensor | None = None) -> float:
        """That of the corrupted texts, or of `tokens`, read with patches."""
        if tokens is None:
            tokens = self.pairs.corrupted
        with ExitStack() as patched_model:
            for patch in patches:
                patched_model.enter_context(patch())
            logits = forward_pass(self.model, tokens, self.pairs.mask).logits
        return self.pairs.logit_difference(logits)

    def restored(self, *patches: Patch) -> float:
        """Share of the clean answer that is restored."""
        lost = self.clean_difference - self.corrupted_difference
        return (self.logit_difference(*patches) - self.corrupted_difference) / lost

    def through(self, matrix: nn.Linear, receivers: Tensor, sent: Patch) -> float:
        """Path patching (Wang et al. 2022): share restored if one matrix alone reads what is sent.

        receivers: the heads whose matrix it is, bool (H,).
        """
        with recorded_outputs(matrix) as outputs:
            self.logit_difference(sent)
        received = put_in(outputs[0], receivers[None, None])
        return self.restored(partial(patched, matrix, received))

    def patch_of_heads(self, layer: int, outputs: Tensor, chosen: Tensor | None = None) -> Patch:
        """With it, all heads or the chosen ones give these outputs (B, T, H * d_v).

        chosen: heads at positions, bool (B, T, H).
        """
        attention = self.model.blocks[layer].attention
        if chosen is None:
            chosen = torch.ones(1, 1, attention.num_heads, dtype=torch.bool)
        return partial(patched_input, attention.w_o, put_in(outputs, chosen))

    def patch_at_question(self, layer: int, head: int, outputs: Tensor) -> Patch:
        """With it, one head gives these outputs at the position of the question alone."""
        num_heads = self.model.blocks[layer].attention.num_heads
        chosen = torch.zeros(*self.pairs.clean.shape, num_heads, dtype=torch.bool)  # (B, T, H)
        chosen[torch.arange(len(chosen)), self.pairs.position, head] = True
        return self.patch_of_heads(layer, outputs, chosen)


def main() -> None:
    torch.manual_seed(0)
    model = ToyTransformer(num_layers=1, make_attention=MultiHeadAttention)
    clean = torch.tensor([encode(["the", "farmer", MASK, "in", "a", "lake"])])
    corrupted = torch.tensor([encode(["the", "coin", MASK, "in", "a", "lake"])])
    answers = torch.tensor([encode(["swam", "fell"])])
    patching = Patching(model, Pairs(clean, corrupted, torch.tensor([2]), answers))
    outputs = patching.clean.outputs(0)
    print("One layer of four random heads. Which share of the answer does a head bring back?")
    for head in range(4):
        chosen = (torch.arange(4) == head)[None, None]  # (H,) -> (1, 1, H)
        patch = patching.patch_of_heads(0, outputs, chosen)
        print(f"   head {head}    {patching.restored(patch):5.2f}")
    print(f"   all four  {patching.restored(patching.patch_of_heads(0, outputs)):5.2f}")


if __name__ == "__main__":
    main()
