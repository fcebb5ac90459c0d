"""How many of its heads does a trained model need?

Heads are removed, without training again: each as the only one, then greedily, the cheapest of
those that are left. The loss may rise by less than 0.01 nats, by the upper end of its 95 % interval
(bootstrap; Efron 1979). Two tasks: the toy language, two layers of four heads; and two look-ups at
once, one layer of eight, as trained in heads/two_lookups.py.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_multi_head.heads.head_importance import (
    LayerAndHead,
    Sampled,
    language_model,
    over_examples,
    removal_importance,
)
from phase2_multi_head.models import load_multi_head_model, train_two_lookups
from shared import training
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run
from shared.tasks import TwoPlaces

TOLERANCE = 0.01  # nats that the loss may rise
STEPS = 200  # of two look-ups


def two_lookups(seed: int, steps: int) -> Sampled:
    """A new model with eight heads of size 8; its examples are strings that it has not seen."""
    model, symbols, answers = train_two_lookups(8, seed, steps)

    def losses() -> Tensor:
        logits = model(symbols)[:, TwoPlaces.FIRST :]  # (B, T - 3, S)
        return F.cross_entropy(logits.mT, answers, reduction="none").mean(dim=-1)

    return Sampled([model.block.attention], losses)


def greedy_order(
    heads: Sequence[LayerAndHead], loss: Callable[[frozenset[LayerAndHead]], float]
) -> list[LayerAndHead]:
    """At each step remove the head without which the loss is lowest.

    It is measured without those that are gone already.
    """
    left, removed = list(heads), []
    while left:
        cheapest = min(left, key=lambda head: loss(frozenset([*removed, head])))
        left.remove(cheapest)
        removed.append(cheapest)
    return removed


def greedy_rises(model: Sampled) -> Tensor:
    """How much the loss on each example rises with 0 to all heads removed -> (heads + 1, B)."""
    losses = cache(model.losses_without)
    order = greedy_order(model.heads, lambda removed: losses(removed).mean().item())
    without = [losses(frozenset(order[:count])) for count in range(len(order) + 1)]
    return torch.stack(without) - without[0]


def measure(run: Run) -> Numbers:
    """How many of eight heads can go, and nats that the loss rises by without the cheapest."""
    sentences = 40 if run.options.quick else training.NUM_HELD_OUT
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


main = Experiment(
    measure,
    answer="For less than 0.01 nats {n[toy language, share that can go together]:.0%} of the heads "
    "can go in the toy language, {n[two look-ups, share that can go together]:.0%} in two look-ups",
)

if __name__ == "__main__":
    main.run()
