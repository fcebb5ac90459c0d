"""The task that needs an induction head, the scores of heads on it, and what is left without some of them.

A block of 8 to 16 words, all different and in random order, is repeated until 33 words are there:

    cat red on swam | cat red on swam | cat ...        "on" stood before "swam" once: say "swam"

From the second copy on the next word is certain for whoever looks up what followed the same word last time. Where the
copy begins is drawn anew for each sequence: a head that always looks the same distance back is right one time in nine.

The induction score of a head is its mean weight on the places after earlier occurrences of the same word (Olsson et al.
2022). Of each row the weight on all such places is summed: a perfect head scores 1 however often the block is repeated.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from phase3_visualization.circuits.patching import changed, put_in
from shared.attention_utils import causal_mask
from shared.head_statistics import even_weights, relation_weight
from shared.toy_language import SPECIAL
from shared.toy_model import ToyTransformer

SYMBOLS, LENGTH, PERIODS = 64, 33, (8, 16)  # words in use; words of a sequence; shortest and longest block


def repeated_sequences(
    count: int, generator: torch.Generator, periods: tuple[int, int] = PERIODS, length: int = LENGTH
) -> Tensor:
    """Sequences that repeat a block -> tokens (count, length); each draws its words and its block length.

    Raises ValueError if the longest block needs more different words than there are.
    """
    shortest, longest = periods
    if not 1 <= shortest <= longest <= SYMBOLS:
        raise ValueError(f"blocks need 1 <= shortest <= longest <= {SYMBOLS} different words: got {periods}")
    words = torch.rand(count, SYMBOLS, generator=generator).argsort(dim=1)  # a random order for each sequence
    period = torch.randint(shortest, longest + 1, (count, 1), generator=generator)
    return words.gather(1, torch.arange(length) % period) + len(SPECIAL)  # (count, SYMBOLS) -> (count, length)


def late_sequences(count: int, generator: torch.Generator) -> Tensor:
    """The shortest block, repeated from the middle on, after words that come once -> tokens (count, LENGTH)."""
    words = unrepeated_sequences(count, generator)
    before, period = LENGTH // 2, PERIODS[0]
    return words[:, [*range(before), *(before + i % period for i in range(LENGTH - before))]]


def unrepeated_sequences(count: int, generator: torch.Generator) -> Tensor:
    """The control, sequences in which no word comes twice -> tokens (count, LENGTH)."""
    return repeated_sequences(count, generator, (LENGTH, LENGTH))


def after_earlier_occurrence(tokens: Tensor) -> Tensor:
    """For each query the places right after earlier occurrences of its own word: tokens (N, T) -> bool (N, T, T)."""
    same = tokens[:, :, None] == tokens[:, None, :]  # (N, T) -> (N, T, T)
    earlier = same.tril(diagonal=-1)
    return F.pad(earlier, (1, 0))[..., :-1]  # every mark one key to the right; (N, T, T) -> (N, T, T + 1) -> (N, T, T)


def predictable(tokens: Tensor) -> Tensor:
    """Places whose word came before, so that the next one is certain: tokens (N, T) -> bool (N, T)."""
    return after_earlier_occurrence(tokens).any(dim=-1)  # (N, T, T) -> (N, T)


def scores(layers: list[Tensor], gold: Tensor) -> Tensor:
    """The induction score of each head, (L, H); layers: L weights (N, H, T, T), gold: after_earlier_occurrence."""
    return torch.stack([relation_weight(weights, gold) for weights in layers])


def even_score(gold: Tensor) -> float:
    """The induction score of a head that does not choose, 1 / (i + 1) on each of the places 0 to i."""
    return relation_weight(even_weights(causal_mask(gold.size(-1)).expand(len(gold), 1, -1, -1)), gold).item()


def next_word_losses(model: ToyTransformer, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """tokens (N, T + 1) -> loss in nats at each of T places (N, T), weights (N, H, T, T) of each layer."""
    logits, layers = model(tokens[:, :-1])
    losses = F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")  # (N, T, V) -> (N, V, T) -> (N, T)
    return losses, layers


def repeated_loss(model: ToyTransformer, tokens: Tensor) -> Tensor:
    """Mean loss in nats where the next word is certain; 0 for a model that looks it up."""
    losses, _ = next_word_losses(model, tokens)
    return losses[predictable(tokens[:, :-1])].mean()


@torch.no_grad()
def right(model: ToyTransformer, tokens: Tensor) -> float:
    """Share of right guesses where the next word is certain."""
    guesses = model(tokens[:, :-1])[0].argmax(dim=-1)  # (N, T, V) -> (N, T)
    return (guesses == tokens[:, 1:])[predictable(tokens[:, :-1])].double().mean().item()


@torch.no_grad()
def scores_on(model: ToyTransformer, tokens: Tensor) -> Tensor:
    """The induction scores of a model's heads on these tokens (N, T + 1) -> (L, H)."""
    return scores(model(tokens[:, :-1])[1], after_earlier_occurrence(tokens[:, :-1]))


@torch.no_grad()
def mean_outputs(model: ToyTransformer, tokens: Tensor, layer: int) -> Tensor:
    """What the heads of a layer give on average at each place: tokens (N, T) -> (T, H * d_v), as w_o reads it."""
    seen: list[Tensor] = []
    with changed(model.blocks[layer].attention.w_o, seen.append, read=True):
        model(tokens)
    return seen[0].mean(dim=0)  # (N, T, H * d_v) -> (T, H * d_v)


@torch.no_grad()
def rise(model: ToyTransformer, tokens: Tensor, layer: int, heads: list[int], kind: str) -> float:
    """By how many nats the loss of the repeated part rises without these heads of a layer; nothing is trained again.

    kind: "zero", their output is 0; "mean", it is what they give on average at that place, whatever the words are. The
    next layer then gets what it is used to, only not what the heads found out about this sequence.
    """
    attention, full = model.blocks[layer].attention, repeated_loss(model, tokens)
    gone = torch.zeros(attention.num_heads, dtype=torch.bool)
    gone[heads] = True
    nothing = torch.zeros_like(attention.w_o.weight[0])  # (H * d_v,), as w_o reads it
    given = mean_outputs(model, tokens[:, :-1], layer) if kind == "mean" else nothing
    with changed(attention.w_o, put_in(given, gone), read=True):
        return (repeated_loss(model, tokens) - full).item()
