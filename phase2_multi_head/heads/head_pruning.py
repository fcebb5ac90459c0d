"""How many of its heads does a trained model need?

We remove heads and do not train again: first each as the only one, then greedily, each time the
cheapest of those that are left. A head can go if the loss rises by less than 0.01 nats, judged by
the upper end of its 95 % interval (bootstrap; Efron 1979). We ask it in two tasks: in the toy
language, of two layers of four heads, and in two look-ups at once, of one layer of eight heads, as
trained in heads/two_lookups.py.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.parts.two_places import TwoPlaces
from phase2_multi_head.heads.head_importance import (
    LayerAndHead,
    Sampled,
    language_model,
    over_examples,
    removal_importance,
)
from phase2_multi_head.models import load_multi_head_model, train_two_lookups
from shared.claims import Numbers
from shared.experiment import Experiment, Run
from shared.training.objectives import NUM_HELD_OUT

TOLERANCE = 0.01  # nats that the loss may rise
STEPS = 200  # of two look-ups


def two_lookups(seed: int, steps: int) -> Sampled:
    """Returns a new model with eight heads of size 8, and examples that it has not seen."""
    model, symbols, answers = train_two_lookups(8, seed, steps)

    def losses() -> Tensor:
        logits = model(symbols)[:, TwoPlaces.FIRST :]  # (B, T - 3, S)
        return F.cross_entropy(logits.mT, answers, reduction="none").mean(dim=-1)

    return Sampled([model.block.attention], losses)


def greedy_order(
    heads: Sequence[LayerAndHead], loss: Callable[[frozenset[LayerAndHead]], float]
) -> list[LayerAndHead]:
    """Returns the heads in the order of removal: next is the one without which the loss is lowest.

    The loss is measured without those that are gone already.
    """
    left, removed = list(heads), []
    while left:
        cheapest = min(left, key=lambda head: loss(frozenset([*removed, head])))
        left.remove(cheapest)
        removed.append(cheapest)
    return removed


def greedy_rises(model: Sampled) -> Tensor:
    """Returns how much the loss on each example rises without 0 to all heads (heads + 1, B)."""
    losses = cache(model.losses_without)
    order = greedy_order(model.heads, lambda removed: losses(removed).mean().item())
    without = [losses(frozenset(order[:count])) for count in range(len(order) + 1)]
    return torch.stack(without) - without[0]


def measure(run: Run) -> Numbers:
    """Returns how many of eight heads can go, and what the loss rises by without the cheapest."""
    sentences = 40 if run.options.quick else NUM_HELD_OUT
    models = {
        "toy language": language_model(load_multi_head_model(run.options, run.seed), sentences),
        "two look-ups": two_lookups(run.seed, run.steps(STEPS)),
    }
    numbers = {}
    for name, model in models.items():
        _, alone = over_examples(removal_importance(model))  # the upper ends, (L, H)
        _, together = over_examples(greedy_rises(model))  # (heads + 1,)
        most = max(count for count, rise in enumerate(together) if rise < TOLERANCE)
        numbers[f"{name}, cheapest head costs at most"] = alone.min().item()
        numbers[f"{name}, heads that can each go"] = int((alone < TOLERANCE).sum())
        numbers[f"{name}, share that can go together"] = most / len(model.heads)
    return numbers


def answer(n: Numbers) -> str:
    """Returns the answer, in shares of all heads that cannot go."""
    language = 1 - n["toy language, share that can go together"]
    lookups = 1 - n["two look-ups, share that can go together"]
    return (
        f"To lose less than {TOLERANCE} nats, a model needs {language:.0%} of its heads in the toy "
        f"language and {lookups:.0%} of them in two look-ups."
    )


main = Experiment(
    measure,
    answer=answer,
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
