"""The task that needs an induction head, and the scores of heads on it; used by induction.py.

A block of 8 to 16 words, all different and in random order, is repeated until 33 words are there:

    cat red on swam | cat red on swam | cat ...        "on" stood before "swam" once: say "swam"

From the second copy on the next word is certain for whoever looks up what followed the same word last time. Where the
copy begins is drawn anew for each sequence: a head that always looks the same distance back is right one time in nine.

    induction score        mean weight on the places after earlier occurrences of the same word  (Olsson et al. 2022)
    previous-token score   mean weight on the place before, as in shared/head_statistics.py

Of each row the weight on all such places is summed before rows are averaged, so that a perfect head scores 1 however
often the block is repeated. The paper's text speaks of the word before the match; its definition of an induction head,
used here, needs the one after it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.attention_utils import causal_mask
from shared.head_statistics import even_weights, offset_weight, relation_weight
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


def induction_score(weights: Tensor, gold: Tensor) -> Tensor:
    """weights (N, H, T, T), gold = after_earlier_occurrence(tokens) -> (H,)."""
    return relation_weight(weights, gold)


def previous_token_score(weights: Tensor) -> Tensor:
    """weights (N, H, T, T) of a causal model -> (H,); the first row has no place before it and does not count."""
    return offset_weight(weights, _causal(weights), -1)


def looks_back(weights: Tensor, rows: Tensor) -> float:
    """Share of these rows, bool (N, T), in which some head has its largest weight on the place before: (N, H, T, T)."""
    before = torch.arange(weights.size(-1), device=weights.device) - 1
    hits = (weights.argmax(dim=-1) == before).any(dim=1)  # (N, H, T, T) -> (N, H, T) -> (N, T)
    return hits[rows].double().mean().item()


def even_score(gold: Tensor) -> float:
    """The induction score of a head that does not choose, 1 / (i + 1) on each of the places 0 to i."""
    return induction_score(even_weights(_causal(gold[:, None])), gold).item()


def _causal(weights: Tensor) -> Tensor:
    """The mask of N sequences of real words -> bool (N, 1, T, T)."""
    return causal_mask(weights.size(-1)).expand(len(weights), 1, -1, -1)


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
def right(model: ToyTransformer, tokens: Tensor, first: int = 0) -> float:
    """Share of right guesses where the next word is certain, from place `first` on."""
    guesses = model(tokens[:, :-1])[0].argmax(dim=-1)  # (N, T, V) -> (N, T)
    asked = predictable(tokens[:, :-1])
    asked[:, :first] = False
    return (guesses == tokens[:, 1:])[asked].double().mean().item()


def scores(layers: list[Tensor], gold: Tensor) -> tuple[Tensor, Tensor]:
    """Induction and previous-token score of each head, (L, H) each; layers: L weights (N, H, T, T)."""
    return (
        torch.stack([induction_score(weights, gold) for weights in layers]),
        torch.stack([previous_token_score(weights) for weights in layers]),
    )


@torch.no_grad()
def scores_on(model: ToyTransformer, tokens: Tensor, gold: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The scores of a model's heads on these tokens (N, T + 1); gold: of these tokens unless others are given."""
    _, layers = model(tokens[:, :-1])
    return scores(layers, after_earlier_occurrence(tokens[:, :-1]) if gold is None else gold)
