"""How does a head guess a hidden word: "the cat ? on the mat"?

The "?" is followed through a trained model to the guess: whom it asks, what it takes from them, and
what the guess would be if they were others. Every step is computed by hand, by flow_of in
models.py. So if self_attention.py is changed, these steps and the model differ, and the last line
tells both guesses.

    python phase1_single_head/hidden_word.py --sentence "those dogs slept in a soft bed"
"""

import math

from torch import Tensor

from phase1_single_head.models import (
    Flow,
    flow_of,
    guess_hidden,
    likeliest,
    load_single_head_model,
)
from shared import cli
from shared.toy_language import PREPOSITIONS, SUBJECTS
from shared.toy_model import ToyTransformer


def print_vector(name: str, values: Tensor, limit: int = 6) -> None:
    """Print a vector, its shape and at most `limit` of its numbers."""
    numbers = " ".join(f"{value:8.3f}" for value in values[:limit].tolist())
    dots = " ..." if len(values) > limit else ""
    print(f"   {name:20} {tuple(values.shape)!s:8} {numbers}{dots}")


def print_steps(flow: Flow) -> None:
    """Print the way of the hidden word to the guess, number by number."""
    size = len(flow.query)
    print("1. Project: three views of each word, x W")
    print_vector('x of "?"', flow.x[flow.i])
    print_vector("query: looks for", flow.query)
    print_vector("key: is found by", flow.keys[flow.i])
    print_vector("value: passes on", flow.values[flow.i])

    print('\n2. Score: the query of "?" times every key, one dot product each')
    print(" " * 32 + " ".join(f"{word:>8}" for word in flow.seen))
    print_vector("q · k", flow.keys @ flow.query, limit=32)

    print(f"\n3. Scale: divide by √d_k = √{size} = {math.sqrt(size):g}")
    print_vector("q · k / √d_k", flow.scores, limit=32)

    print("\n4. Softmax: positive numbers that sum to 1")
    print_vector("weights", flow.weights, limit=32)

    print("\n5. Weighted sum of the values")
    print_vector("output", flow.output)

    print('\n6. Guess: the rest of the model turns "?" plus the output into probabilities')
    guesses = ", ".join(f"{word} {probability:.2f}" for word, probability in flow.guesses)
    print(f'   {guesses}; it was "{flow.words[flow.i]}"')


def difference(flow: Flow, by_model: Tensor) -> float:
    """How far the steps by hand are from the probabilities (V,) of the model; 1e-15 is rounding."""
    return (flow.probabilities - by_model).abs().max().item()


def best_guess(probabilities: Tensor) -> str:
    """The likeliest word of (V,), as a reader is told it: '"sat" (0.84)'."""
    word, probability = likeliest(probabilities)[0]
    return f'"{word}" ({probability:.2f})'


def most_attended_words(flow: Flow) -> str:
    """'"cat" (0.33) and "on" (0.28) most'."""
    names = [f'"{flow.words[j]}" ({flow.weights[j]:.2f})' for j in flow.most_attended]
    return f"{' and '.join(names)} most" if names else "nobody but itself"


def others_like(word: str) -> list[str]:
    """What can stand for a word that decides about the verb.

    For a subject that is one of each other class, as many as it is; for a preposition the others.
    """
    if word in PREPOSITIONS:
        return [other for other in PREPOSITIONS if other != word]
    for own_class, nouns in SUBJECTS.items():
        for noun in nouns:
            if word in noun:
                number = noun.index(word)  # 0: singular, 1: plural
                first_nouns = [SUBJECTS[name][0] for name in SUBJECTS if name != own_class]
                return [first[number] for first in first_nouns]
    return []


def print_others(model: ToyTransformer, flow: Flow) -> None:
    """Print what the model guesses if a word that was asked is another one."""
    print("\nAnd if they were others?")
    for j in flow.most_attended:
        for other in others_like(flow.words[j]):
            text = [*flow.words[:j], other, *flow.words[j + 1 :]]
            probabilities, _ = guess_hidden(model, [text], [flow.i])
            print(f'   "{other}" for "{flow.words[j]}": {best_guess(probabilities[0])}')


def answer(flow: Flow, by_model: Tensor) -> str:
    """The last line: the guess, or the two guesses where the reader has changed the code."""
    guess = best_guess(by_model)
    if difference(flow, by_model) < 1e-5:  # even in float32 rounding is less
        asking = (
            f'To guess a hidden "{flow.words[flow.i]}" the head asks {most_attended_words(flow)}'
        )
        return f"{asking}; the guess is {guess}"
    by_hand = f"the steps above give {best_guess(flow.probabilities)}"
    return f"The model now guesses {guess}; {by_hand}: you changed one of the two"


USES = "--sentence --sentences --seed --quick --device --retrain --d-model"


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__, USES), argv)
    trained = load_single_head_model(options)
    flow = flow_of(trained, options.words)
    seen = " ".join(flow.seen)
    print(f'\nOne head, {trained.label}, has to guess the word at "?": {seen}\n')
    print_steps(flow)
    by_model = guess_hidden(trained.model, [flow.words], [flow.i])[0][0]  # (1, V) -> (V,)
    print(f"   the model itself guesses {best_guess(by_model)}")
    print(f"   these probabilities differ by {difference(flow, by_model):.0e}")
    print(f"\nWhom it asked: {most_attended_words(flow)}")
    print_others(trained.model, flow)
    return answer(flow, by_model)


if __name__ == "__main__":
    cli.run(main)
