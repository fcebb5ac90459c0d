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
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Run
from shared.tasks import TwoPlaces

MODELS = ("toy language", "two look-ups")
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
    """At each step remove the head without which the loss is lowest, measured without those that
    are gone already.
    """
    left, removed = list(heads), []
    while left:
        cheapest = min(left, key=lambda head: loss(frozenset([*removed, head])))
        left.remove(cheapest)
        removed.append(cheapest)
    return removed


def greedy_rises(model: Sampled) -> Tensor:
    """By how much the loss on each example rises with 0, 1, ... all heads removed greedily ->
    (heads + 1, B).
    """
    losses = cache(model.losses_without)
    order = greedy_order(model.heads, lambda removed: losses(removed).mean().item())
    removals = (frozenset(order[:count]) for count in range(len(order) + 1))
    return torch.stack([losses(removed) for removed in removals]) - losses(frozenset())


def measure(run: Run) -> Numbers:
    """How many of eight heads can go, and nats that the loss rises by at most without the cheapest."""
    quick = run.options.quick
    trained = load_multi_head_model(run.options, run.seed)
    language = language_model(trained, 40 if quick else training.NUM_HELD_OUT)
    numbers = {}
    for name, sample in zip(
        MODELS, (language, two_lookups(run.seed, run.steps(STEPS))), strict=True
    ):
        alone, greedy = removal_importance(sample), greedy_rises(sample)
        (_, alone_at_most), (_, high) = over_examples(alone), over_examples(greedy)
        together = max(count for count, rise in enumerate(high) if rise < TOLERANCE)
        numbers |= {
            f"{name}, cheapest head costs at most": alone_at_most.min().item(),
            f"{name}, heads that can each go": int((alone_at_most < TOLERANCE).sum()),
            f"{name}, share that can go together": together / len(sample.heads),
        }
    return numbers


CLAIM = Claim(
    id="pruning-share",
    text="A fifth of the heads and more can be removed from a trained model: two of eight and more, in one layer that "
    "learned two look-ups",
    source="Michel et al. 2019: 20 % in a translation model, 40 % in BERT, both far larger than ours",
    rule="at least 0.2 of eight heads, in steps of 1/8, can go together",
    effect=lambda n: n["two look-ups, share that can go together"],
    at_least=0.2,
    oracle={"*, share that can go together": 0.375},
    null={"*, share that can go together": 0.0},
    revised="was of every model, then of the mean of both tasks, by the loss itself, for which its interval stands now",
)


main = Experiment(
    measure,
    [CLAIM],
    answer="For less than 0.01 nats {n[toy language, share that can go together]:.0%} of the heads can go in the toy "
    "language, {n[two look-ups, share that can go together]:.0%} in two look-ups",
)

if __name__ == "__main__":
    main.run()
