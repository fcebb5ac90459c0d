"""What is asked of the models of induction.py: when the loss falls, what each head is worth, what carries over.

Heads are removed as in phase 2: the output of the head is multiplied by 0 before W_O (head_importance.py). No script of
its own:

    python phase4_causal/induction/induction.py
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from phase2_multi_head.pruning.head_importance import Head, Measured, gated, loss_without, removal_importance
from phase4_causal.induction.induction_scores import (
    LENGTH,
    SYMBOLS,
    Run,
    after_earlier_occurrence,
    even_score,
    repeated_loss,
    repeated_sequences,
    right,
    scores,
    train,
    unrepeated_sequences,
)
from shared.toy_model import sinusoidal_positions

FALL = (0.75, 0.25)  # of ln SYMBOLS, the loss of a guess among all words: where the fall begins and ends
EXPONENTIAL = math.log(3) / math.log(4 / 3)  # how much longer than the wait this takes when the loss decays evenly
MATCHES = 0.5  # from this score on we call a head an induction head
LONGER_BLOCKS = (17, 24)
AS_TRAINED, LONGER, TWICE = "as in training", "longer blocks", "sequences twice as long, second half"


@dataclass
class Outcome:
    """What was measured with one seed; losses in nats on the repeated part."""

    two: Run
    one: Run
    removal: Tensor  # (2, H): how far the loss rises without this head
    together: float  # how far without all induction heads
    other: float  # the highest rise without a head that is neither induction head nor best previous-token head
    others: float  # how far without all of these
    without_previous: float  # score of the best induction head when the best previous-token head is gone
    unrepeated: float  # highest score in either layer on sequences without repetition
    even: float  # score of even weights
    right: dict[str, float]  # share of right guesses on new sequences

    @property
    def fall(self) -> tuple[int, int]:
        """The steps at which the fall of the two-layer loss begins and ends; the last step if it does not."""
        return self.two.first_below(FALL[0]), self.two.first_below(FALL[1])

    @property
    def formed(self) -> int:
        """The step at which the best induction head has come half the way from its first to its last score."""
        track = self.two.induction[(slice(None), *self.two.best_induction)]  # (steps, L, H) -> (steps,)
        return self.two.steps[int((track >= (track[0] + track[-1]) / 2).nonzero()[0])]


def learned(run: Run) -> bool:
    """Whether the loss came down to the end of the fall."""
    return run.loss[-1] <= FALL[1] * math.log(SYMBOLS)


def induction_heads(run: Run) -> frozenset[Head]:
    """All heads that score MATCHES or more."""
    return frozenset((layer, head) for layer, head in (run.induction[-1] >= MATCHES).nonzero().tolist())


def measured(run: Run) -> Measured:
    """The model and its loss on the repeated part, for the removal of heads."""
    layers = [block.attention for block in run.model.blocks]
    return Measured(layers, partial(repeated_loss, run.model, run.tokens), len(run.tokens))


@torch.no_grad()
def guesses(run: Run, seed: int) -> dict[str, float]:
    """Share of right guesses on sequences that differ from those of training in what the names say."""
    generator = torch.Generator().manual_seed(2 * 10**6 + seed)
    found = {
        AS_TRAINED: right(run.model, repeated_sequences(len(run.tokens), generator)),
        LONGER: right(run.model, repeated_sequences(len(run.tokens), generator, LONGER_BLOCKS)),
    }
    twice = repeated_sequences(len(run.tokens), generator, length=2 * LENGTH)
    trained_positions = run.model.positions
    run.model.positions = sinusoidal_positions(2 * LENGTH, trained_positions.size(1))
    found[TWICE] = right(run.model, twice, first=LENGTH)
    run.model.positions = trained_positions
    return found


def measure(seed: int, steps: int) -> Outcome:
    """Train both models of a seed and ask the larger one everything."""
    two, one = train(2, seed, steps), train(1, seed, steps)
    model, best = measured(two), two.best_induction
    removal, full = removal_importance(model), loss_without(model, frozenset())
    others = frozenset(model.heads) - induction_heads(two) - {two.best_previous}
    gates = model.open_gates()
    gates[two.best_previous] = 0
    with gated(model.layers, gates):
        without_previous = scores(two.model, two.tokens)[0][best].item()
    gold = after_earlier_occurrence(two.tokens[:, :-1])  # the same places, now with nothing repeated
    control = unrepeated_sequences(len(two.tokens), torch.Generator().manual_seed(3 * 10**6 + seed))
    return Outcome(
        two,
        one,
        removal,
        together=loss_without(model, induction_heads(two)) - full,
        other=max((removal[head].item() for head in others), default=0.0),
        others=loss_without(model, others) - full,
        without_previous=without_previous,
        unrepeated=scores(two.model, control, gold)[0].max().item(),
        even=even_score(gold),
        right=guesses(two, seed),
    )
