"""What is a toy model trained to do? The sentences, their batches, and the losses.

A toy model guesses hidden words from both sides (BERT; Devlin et al. 2019), or each word from those
before it (GPT; Radford et al. 2018). Its loss is in nats a word, so exp(loss) is its perplexity.
The grammar of the sentences is in shared/toy_language.py. There are three objectives, and models
are called by them: "masked word", "next word" and, to show what goes wrong then, "next word,
without a mask".
"""

from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from shared import toy_language
from shared.attention_utils import causal_mask, padding_mask
from shared.toy_language import PAD_ID, SPECIAL, VOCABULARY, Sentence
from shared.toy_model import ToyTransformer

NUM_TRAIN, NUM_HELD_OUT = 20_000, 500

# Which words are to be guessed is drawn. Most of them are hidden. Some can be read, since else a
# model would learn nothing about looking around from a word that can be read.
CHOSEN_SHARE = 0.3  # of all words: these are to be guessed
SWAPPED_SHARE = 0.1  # of the chosen: another word stands there
KEPT_SHARE = 0.3  # of the chosen: the word stays


@cache
def corpus() -> tuple[list[Sentence], list[Sentence]]:
    """The (train, held-out) sentences of every model, the same for all seeds."""
    return toy_language.sample_corpus(NUM_TRAIN, NUM_HELD_OUT)


def to_batch(sentences: list[Sentence], objective: str) -> tuple[Tensor, Tensor]:
    """Sentences -> tokens (B, T) and lengths (B,).

    For next words <start> stands before a sentence and <end> behind it.
    """
    rows = [toy_language.encode(sentence.words) for sentence in sentences]
    if objective != "masked word":
        rows = [[toy_language.START_ID, *row, toy_language.END_ID] for row in rows]
    return toy_language.pad_batch(rows)


def objective_mask(lengths: Tensor, length: int, objective: str) -> Tensor:
    """Which key each query may see, bool: all but padding, (B, 1, 1, T).

    The objective "next word" hides later words, too, (B, 1, T, T). Every model that was trained by
    it needs this mask, unless its attention hides the future by itself.
    """
    real_keys = padding_mask(lengths, length)
    if objective != "next word":
        return real_keys
    return real_keys & causal_mask(length, device=lengths.device)


def masked_word_loss(
    model: ToyTransformer, tokens: Tensor, lengths: Tensor, generator: torch.Generator
) -> Tensor:
    """Mean cross-entropy, in nats, of the words chosen for prediction."""
    shape, device = tokens.shape, tokens.device
    draw = partial(torch.rand, shape, dtype=torch.float64, generator=generator)  # on the CPU
    chosen = (draw() < CHOSEN_SHARE).to(device) & (tokens != PAD_ID)
    # From 0 to 1: first the swapped ones, then those that stay, then those that are hidden.
    fate = draw()
    swapped = (fate < SWAPPED_SHARE).to(device) & chosen
    hidden = (fate >= SWAPPED_SHARE + KEPT_SHARE).to(device) & chosen
    first_word = len(SPECIAL)  # the special tokens have the first numbers
    others = torch.randint(first_word, len(VOCABULARY), shape, generator=generator).to(device)
    seen = torch.where(hidden, toy_language.MASK_ID, tokens)
    seen = torch.where(swapped, others, seen)
    logits, _ = model(seen, mask=padding_mask(lengths, tokens.size(1)))
    return F.cross_entropy(logits[chosen], tokens[chosen])  # (B, T, V) -> (number chosen, V)


def next_word_loss(
    model: ToyTransformer,
    tokens: Tensor,
    lengths: Tensor,
    generator: torch.Generator | None = None,
    *,
    objective: str = "next word",
) -> Tensor:
    """Mean cross-entropy, in nats, of each token given those before it.

    Nothing is drawn, so the generator, which masked_word_loss needs, is not used.
    """
    seen = tokens[:, :-1]
    wanted = tokens[:, 1:]
    # In a shorter sentence <end> is not the last column. It is hidden as padding is.
    logits, _ = model(seen, mask=objective_mask(lengths - 1, seen.size(1), objective))
    logits = logits.flatten(0, 1)  # (B, T, V) -> (B * T, V)
    return F.cross_entropy(logits, wanted.flatten(), ignore_index=PAD_ID)


OBJECTIVES: dict[str, Callable[[ToyTransformer, Tensor, Tensor, torch.Generator], Tensor]] = {
    "masked word": masked_word_loss,
    "next word": next_word_loss,
    "next word, without a mask": partial(next_word_loss, objective="next word, without a mask"),
}


def endless_batches(
    lengths: Tensor, batch_size: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Endless batches of sentence indices.

    Sentences of a batch are of similar length, which leaves little padding.
    """
    while True:
        batches = []
        shuffled = torch.randperm(len(lengths), generator=generator)
        # Sorted 16 batches at a time: if all were, each round would have the same batches.
        for chunk in shuffled.split(16 * batch_size):
            order = lengths[chunk].argsort(stable=True)
            batches += chunk[order].split(batch_size)
        for i in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[i]


@torch.no_grad()
def attention_weights(
    model: ToyTransformer, sentences: list[Sentence], objective: str, *, end: bool = True
) -> tuple[list[Tensor], Tensor]:
    """Weights of every layer, each (B, H, T, T), and what each token may see, bool (B, 1, T, T).

    Both are on the CPU. A row of padding may see nothing. end=False leaves out <end>, which follows
    the sentences of a next-word model: it is only predicted, so it never was a query in training.
    """
    tokens, lengths = to_batch(sentences, objective)
    has_end = objective != "masked word"
    if has_end and not end:
        tokens, lengths = tokens[:, :-1], lengths - 1  # in shorter ones <end> is padding now
    length = tokens.size(1)
    visible = objective_mask(lengths, length, objective)
    device = model.positions.device
    model.eval()
    _, weights = model(tokens.to(device), mask=visible.to(device))
    real_queries = padding_mask(lengths, length).mT  # (B, 1, 1, T) -> (B, 1, T, 1)
    return [of_layer.cpu() for of_layer in weights], visible & real_queries


@torch.no_grad()
def word_by_word_loss(model: ToyTransformer, sentences: list[Sentence]) -> float:
    """Next-word loss in nats per word when only the words so far go in, as in writing."""
    tokens, _ = to_batch(sentences, "next word")
    tokens = tokens.to(model.positions.device)
    model.eval()
    losses = []
    for length in range(1, tokens.size(1)):
        rows = tokens[tokens[:, length] != PAD_ID]  # the sentences that have a next word here
        logits, _ = model(rows[:, :length])  # these rows have no padding
        losses.append(F.cross_entropy(logits[:, -1], rows[:, length], reduction="none"))
    return torch.cat(losses).mean().item()
