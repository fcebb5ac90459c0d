"""How does a head guess a hidden word: "the cat ? on the mat"?

The "?" is followed through a trained model to the guess: whom it asks, what it takes from them, and what the guess
would be if they were others. Every step is written out here, so a change in self_attention.py shows as a difference.

    python phase1_single_head/hidden_word.py --sentence "those dogs slept in a soft bed"
"""

import math

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
    """The nouns of a class of subjects, singular or plural as this noun is: ("toy", "cats") -> balls, coins, kites."""
    plural = any(noun == pair[1] for pairs in SUBJECTS.values() for pair in pairs)
    return [pair[plural] for pair in SUBJECTS[subject_class]]


def others_like(word: str) -> list[str]:
    """What can stand for a word that decides about the verb: a subject of each other class, each other preposition."""
    if word in PREPOSITIONS:
        return [other for other in PREPOSITIONS if other != word]
    own = next((name for name in SUBJECTS if word in nouns_of(name, word)), None)
    return [nouns_of(name, word)[0] for name in SUBJECTS if own not in (None, name)]


def show(name: str, values: Tensor, limit: int = 6) -> None:
    """Print a vector, its shape and at most `limit` of its numbers."""
    numbers = " ".join(f"{value:8.3f}" for value in values[:limit].tolist())
    print(f"   {name:20} {tuple(values.shape)!s:8} {numbers}{' ...' if len(values) > limit else ''}")


def walk(model: ToyTransformer, words: list[str], i: int) -> tuple[Tensor, Tensor]:
    """Print the way of the hidden word i, number by number -> how likely every word is there (V,), its weights (T,)."""
    block, seen = model.blocks[0], hide(words, i)
    attention: SelfAttention = block.attention
    x = attention_input(model, seen)
    d_k = attention.w_k.out_features

    print("1. Project: three views of each word, x W")
    query, key, value = x @ attention.w_q.weight.T, x @ attention.w_k.weight.T, x @ attention.w_v.weight.T
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

    print('\n6. Guess: "?" plus the output; the rest of the model turns that into a probability for every word')
    stream = model.embed(torch.tensor([encode(seen)]))[0, i] + attention.w_o(output)
    stream = stream + block.feed_forward(block.feed_forward_norm(stream))
    logits = model.output_norm(stream) @ model.embedding.weight.T + model.output_bias  # (d_model,) -> (V,)
    probabilities = logits.softmax(dim=-1)
    best = ", ".join(f"{word} {probability:.2f}" for word, probability in likeliest(probabilities))
    print(f'   {best}; it was "{words[i]}"')

    print("\nAll words at once, as one matrix product (a difference of 1e-15 is rounding):")
    by_matrix, _ = scaled_dot_product_attention(query, key, value)
    whole, _ = guess_hidden(model, [words], [i])
    for name, one, other in (
        ("the walk above against the matrix form", output, by_matrix[i]),
        ("the guess above against the whole model's", probabilities, whole[0]),
    ):
        print(f"   {name:42} differ by {(one - other).abs().max():.0e}")
    ((guess, probability),) = likeliest(whole[0], 1)
    same = "as above" if (whole - probabilities).abs().max() < 1e-9 else "not as above: the code was changed"
    print(f"   The whole model guesses {guess} {probability:.2f}, {same}")
    return probabilities, weights


def ask_others(model: ToyTransformer, words: list[str], i: int, asked: list[int]) -> None:
    """Print what the model guesses for word i when a word that it asked is another one, where the grammar has such."""
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
    print(f'\nOne head, {trained.label}, has to guess the word at "?": {" ".join(shown(hide(words, i)))}\n')
    probabilities, weights = walk(model, words, i)
    asked = most_asked(weights, i)
    told = " and ".join(f'"{words[j]}" ({weights[j]:.2f})' for j in asked) or "nobody but itself"
    print(f"\nWhom it asked: {told}")
    ask_others(model, words, i, asked)
    ((guess, probability),) = likeliest(probabilities, 1)
    return f'To guess a hidden "{words[i]}" the head asks {told}; the guess is "{guess}" ({probability:.2f})'


if __name__ == "__main__":
    cli.run(main)
