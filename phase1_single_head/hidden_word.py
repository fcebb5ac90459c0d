"""How does a head guess a hidden word: "the cat ? on the mat"?

The "?" is followed through a trained model to the guess: whom it asks, what it takes from them, and
what the guess would be if they were others. Every step is written out here. So if self_attention.py
is changed, this walk and the model differ, and the last line tells both guesses.

    python phase1_single_head/hidden_word.py --sentence "those dogs slept in a soft bed"
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from phase1_single_head.models import (
    attention_input,
    choose_word,
    guess_hidden,
    hide,
    likeliest,
    load_single_head_model,
    most_asked,
    shown,
)
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import cli
from shared.toy_language import SUBJECTS, VERBS, encode
from shared.toy_model import ToyTransformer, in_double

PREPOSITIONS = sorted({preposition for _, preposition, _ in VERBS.values()})


def nouns_of(subject_class: str, noun: str) -> list[str]:
    """The nouns of a class of subjects, singular or plural as this noun is: ("toy", "cats") ->
    balls, coins, kites.
    """
    plural = any(noun == pair[1] for pairs in SUBJECTS.values() for pair in pairs)
    return [pair[plural] for pair in SUBJECTS[subject_class]]


def others_like(word: str) -> list[str]:
    """What can stand for a word that decides about the verb: a subject of each other class, each
    other preposition.
    """
    if word in PREPOSITIONS:
        return [other for other in PREPOSITIONS if other != word]
    own = next((name for name in SUBJECTS if word in nouns_of(name, word)), None)
    return [nouns_of(name, word)[0] for name in SUBJECTS if own not in (None, name)]


def show(name: str, values: Tensor, limit: int = 6) -> None:
    """Print a vector, its shape and at most `limit` of its numbers."""
    numbers = " ".join(f"{value:8.3f}" for value in values[:limit].tolist())
    print(
        f"   {name:20} {tuple(values.shape)!s:8} {numbers}{' ...' if len(values) > limit else ''}"
    )


@dataclass(frozen=True)
class Walked:
    """What the walk gives for the hidden word of T words."""

    weights: Tensor  # (T,)
    output: Tensor  # (d_v,)
    probabilities: Tensor  # (V,), how likely each word of the vocabulary is


def walk(model: ToyTransformer, words: list[str], i: int) -> Walked:
    """Print the way of the hidden word i to the guess, number by number."""
    block, seen = model.blocks[0], hide(words, i)
    attention: SelfAttention = block.attention
    x = attention_input(model, seen)
    d_k = attention.w_k.out_features

    print("1. Project: three views of each word, x W")
    query = x @ attention.w_q.weight.T  # (T, d_model) @ (d_model, d_k) -> (T, d_k)
    key = x @ attention.w_k.weight.T
    value = x @ attention.w_v.weight.T
    show('x of "?"', x[i])
    show("query: looks for", query[i])
    show("key: is found by", key[i])
    show("value: passes on", value[i])

    print('\n2. Score: the query of "?" times every key, one dot product each')
    print(" " * 32 + " ".join(f"{word:>8}" for word in shown(seen)))
    scores = torch.stack([torch.dot(query[i], key[j]) for j in range(len(words))])
    show("q · k", scores, limit=32)

    print(f"\n3. Scale: divide by √d_k = √{d_k} = {math.sqrt(d_k):g}")
    scores = scores / math.sqrt(d_k)
    show("q · k / √d_k", scores, limit=32)

    print("\n4. Softmax: positive numbers that sum to 1")
    weights = torch.exp(scores) / sum(torch.exp(score) for score in scores)
    show("weights", weights, limit=32)

    print("\n5. Weighted sum of the values")
    output = sum(weights[j] * value[j] for j in range(len(words)))
    show("output", output)

    print(
        '\n6. Guess: "?" plus the output; the rest of the model turns that into a probability for every word'
    )
    stream = model.embed(torch.tensor([encode(seen)]))[0, i] + attention.w_o(output)
    stream = stream + block.feed_forward(block.feed_forward_norm(stream))
    logits = model.output_norm(stream) @ model.embedding.weight.T  # (d_model,) -> (V,)
    logits = logits + model.output_bias
    probabilities = logits.softmax(dim=-1)
    best = ", ".join(f"{word} {probability:.2f}" for word, probability in likeliest(probabilities))
    print(f'   {best}; it was "{words[i]}"')

    return Walked(weights, output, probabilities)


def compare(model: ToyTransformer, words: list[str], i: int, walked: Walked) -> Tensor:
    """Print how far the walk is from the code that it explains -> the model's probabilities (V,)."""
    attention: SelfAttention = model.blocks[0].attention
    x = attention_input(model, hide(words, i))
    query, key, value = attention.w_q(x), attention.w_k(x), attention.w_v(x)
    by_matrix, _ = scaled_dot_product_attention(query, key, value)
    whole, _ = guess_hidden(model, [words], [i])
    of_output = (walked.output - by_matrix[i]).abs().max()
    of_guess = (walked.probabilities - whole[0]).abs().max()
    print("\nAll words at once, as one matrix product (a difference of 1e-15 is rounding):")
    print(f"   {'the walk above against the matrix form':42} differ by {of_output:.0e}")
    print(f"   {'the guess above against the whole model':42} differ by {of_guess:.0e}")
    same = "as above" if agree(walked, whole[0]) else "not as above: the code was changed"
    print(f"   The whole model guesses {said(whole[0])}, {same}")
    return whole[0]


def agree(walked: Walked, whole: Tensor) -> bool:
    """Whether the walk and the model differ by rounding alone."""
    return bool((walked.probabilities - whole).abs().max() < 1e-9)


def said(probabilities: Tensor) -> str:
    """The likeliest word of (V,), as a reader is told it: '"sat" (0.84)'."""
    ((word, probability),) = likeliest(probabilities, 1)
    return f'"{word}" ({probability:.2f})'


def answer(word: str, asked: str, walked: Walked, whole: Tensor) -> str:
    """The last line: the guess, or the two guesses where the reader has changed the code."""
    if agree(walked, whole):
        guess = said(whole)
        return f'To guess a hidden "{word}" the head asks {asked}; the guess is {guess}'
    return (
        f"The model now guesses {said(whole)}; the walk above gives {said(walked.probabilities)}: "
        "you changed one of the two"
    )


def ask_others(model: ToyTransformer, words: list[str], i: int, asked: list[int]) -> None:
    """Print what the model guesses for word i when a word that it asked is another one, where the
    grammar has such.
    """
    changed = [(j, other) for j in asked for other in others_like(words[j])]
    if not changed:
        return
    print("\nAnd if they were others?")
    texts = [[*words[:j], other, *words[j + 1 :]] for j, other in changed]
    probabilities, _ = guess_hidden(model, texts, [i] * len(texts))
    for (j, other), row in zip(changed, probabilities, strict=True):
        ((guess, probability),) = likeliest(row, 1)
        print(f'   "{other}" for "{words[j]}": {guess} {probability:.2f}')


@torch.no_grad()
@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_single_head_model(options)
    model, words, i = in_double(trained.model), options.words, choose_word(options.words)
    seen = " ".join(shown(hide(words, i)))
    print(f'\nOne head, {trained.label}, has to guess the word at "?": {seen}\n')
    walked = walk(model, words, i)
    whole = compare(model, words, i, walked)
    asked = most_asked(walked.weights, i)
    told = " and ".join(f'"{words[j]}" ({walked.weights[j]:.2f})' for j in asked)
    told = f"{told} most" if asked else "nobody but itself"
    print(f"\nWhom it asked: {told}")
    ask_others(model, words, i, asked)
    return answer(words[i], told, walked, whole)


if __name__ == "__main__":
    cli.run(main)
