"""How does a model learn to continue what it has seen once?

    ... red on swam ... red on ?        look for the "on" before, take what followed: "swam"

A key holds its own word, not the one before it. So a first layer must copy to each place the word
before it; a head of the second can then look for the present word there (an induction head; Elhage
et al. 2021, Olsson et al. 2022). Two layers, and one with twice the steps, are trained on random
words that repeat (induction_scores.py); then heads are taken out, one by one and all together.

    python phase4_causal/induction/induction.py
"""

import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.induction.induction_scores import (
    HEADS_A_LAYER,
    NAMED_FROM,
    NUM_SEQUENCES,
    SYMBOLS,
    TRAINING_STEPS,
    generator,
    quality,
    quality_without,
    repeated_sequences,
    scores_for_naming,
    scores_on,
    train_repeater,
    untrained_repeater,
    where_certain,
    wrong,
)
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_model import ToyTransformer
from shared.visualization_utils import (
    BLUE,
    GREY,
    QUIET,
    WIDE,
    label_ends,
)

LOOK_EVERY = 10  # steps
GUESS = math.log(SYMBOLS)  # loss of a guess among all words

# Of 24 different words the places that make a text: a block of 16, then its second half.
FROM_THE_MIDDLE = [*range(16), *range(8, 16)]


def watched(
    seed: int, num_layers: int, steps: int, tokens: Tensor
) -> tuple[ToyTransformer, list[float]]:
    """Returns a trained model, and its losses on these tokens where the next word is certain."""
    model = untrained_repeater(seed, num_layers)
    losses = []

    def look(done: int) -> None:
        if done % LOOK_EVERY == 0:
            logits, answers = where_certain(model, tokens)
            losses.append(F.cross_entropy(logits, answers).item())

    train_repeater(model, seed, steps, look)
    return model, losses


def first_below(losses: list[float], share: float) -> int:
    """Returns the first step with a loss of at most this share of that of a guess, or the last."""
    for look, loss in enumerate(losses):
        if loss <= share * GUESS:
            return LOOK_EVERY * look
    return LOOK_EVERY * (len(losses) - 1)


def phase_change(losses: list[float]) -> Numbers:
    """Returns how suddenly two layers learn: the wait, and the fall from 3/4 to 1/4 of a guess."""
    begins = first_below(losses, 0.75)
    return {
        "loss, two layers": losses[-1],
        "steps before the fall, two layers": begins,
        "steps of the fall, two layers": first_below(losses, 0.25) - begins,
    }


def beside_one_layer(
    two: ToyTransformer, one: ToyTransformer, tokens: Tensor, seed: int
) -> Numbers:
    """Returns what two layers can do that one cannot: copy from the middle of the block."""
    block = repeated_sequences(NUM_SEQUENCES, generator(seed, 6), (24, 24))
    middle = block[:, FROM_THE_MIDDLE]
    return {
        "right as in training, one layer": 1 - wrong(one, tokens),
        "right from the middle, two layers": 1 - wrong(two, middle),
        "right from the middle, one layer": 1 - wrong(one, middle),
        "best induction score, one layer": scores_on(one, tokens).max().item(),
    }


def ablated(two: ToyTransformer, tokens: Tensor, matching: Tensor) -> Numbers:
    """Returns what is lost without the induction heads of layer 1, each alone and all together.

    It is told in answers, in nats and in the margin of the logits.
    """
    heads = matching >= NAMED_FROM
    full = quality(*where_certain(two, tokens))
    together = quality_without(two, tokens, 1, heads)
    numbers = {
        "induction heads": int(heads.sum()),
        "answers lost, all together": together.wrong - full.wrong,
        "nats lost, all together": together.nats - full.nats,
        "margin lost, all together": full.margin - together.margin,
        "answers lost, each alone": 0.0,
        "nats lost, each alone": 0.0,
        "margin lost, each alone": 0.0,
    }
    for head in heads.nonzero():
        only = torch.arange(HEADS_A_LAYER) == head
        alone = quality_without(two, tokens, 1, only)
        numbers["answers lost, each alone"] += alone.wrong - full.wrong
        numbers["nats lost, each alone"] += alone.nats - full.nats
        numbers["margin lost, each alone"] += full.margin - alone.margin
    return numbers


def measure(run: Run) -> Numbers:
    """Returns losses in nats and shares right or lost, where the next word of new texts is certain.

    One layer has half the weights and twice the steps.
    """
    tokens = repeated_sequences(NUM_SEQUENCES, generator(run.seed, 1))
    steps = run.steps(TRAINING_STEPS)
    two, losses = watched(run.seed, 2, steps, tokens)
    one, losses_of_one = watched(run.seed, 1, 2 * steps, tokens)
    _, matching = scores_for_naming(two, run.seed)
    run.shown.update({"two layers": losses, "one layer": losses_of_one})
    return {
        **phase_change(losses),
        "loss, one layer": losses_of_one[-1],
        **beside_one_layer(two, one, tokens, run.seed),
        **ablated(two, tokens, matching),
    }


def ratio(part: float, whole: float) -> float:
    """Returns part / whole, or NaN where the whole is 0.

    A model that was hardly trained, as with --quick, has no answer to lose. Then nothing can be
    said of a share of them, and a rule that asks for one does not hold: NaN lies within no bounds.
    """
    return part / whole if whole else math.nan


CLAIMS = (
    Claim(
        id="induction-phase-change",
        text="A model waits, and then learns to continue a repetition in one sudden fall of the "
        "loss. We asked it of two layers of four heads.",
        source="Olsson et al. 2022, argument 1",
        rule="the loss needs no more steps to fall from 3/4 to 1/4 of what a guess loses than it "
        "waited before",
        effect=lambda n: ratio(
            n["steps of the fall, two layers"], n["steps before the fall, two layers"]
        ),
        at_most=1,
        also=lambda n: n["loss, two layers"] <= 0.25 * GUESS,
        explored=10,
        oracle={"loss, *": 0.0, "steps before *": 230, "steps of *": 60},
        # An even decay takes 3.8 times the wait.
        null={"loss, *": 0.0, "steps before *": 100, "steps of *": 380},
    ),
    Claim(
        id="induction-one-layer",
        text="A model of two layers learns to look up what came next last time (induction), and "
        "a model of one layer does not. One layer of four heads has no induction head after twice "
        "the steps, and it does not continue a copy that begins in the middle of the block. (Its "
        "keys cannot say which word stood before, so this had to be expected.)",
        source="Elhage et al. 2021",
        rule="in such a copy two layers are right in 0.7 more of the words, or more, while none "
        "of the heads of the one layer scores more than 0.2, and the one layer is right in no "
        "more than 0.2 of the words",
        effect=lambda n: (
            n["right from the middle, two layers"] - n["right from the middle, one layer"]
        ),
        at_least=0.7,
        also=lambda n: (
            max(n["right from the middle, one layer"], n["best induction score, one layer"]) <= 0.2
        ),
        explored=10,
        oracle={"*, two layers": 1.0, "*, one layer": 0.1},
        null={"*": 1.0},
        revised="at first the rule was about a loss after twice the steps, which one layer lowers "
        "in another way",
    ),
    Claim(
        id="ceiling-or-spare",
        text="Take induction heads away one at a time, and few answers are lost, although much of "
        "the margin by which the answer leads is lost. No other head steps in, nor could it: "
        "these heads stand side by side in the last layer, and none reads what another writes. We "
        "asked it of two layers of four heads.",
        source="our own question to Olsson et al. 2022, argument 3, and to Michel et al. 2019, "
        "who count what a model gets right",
        rule="the induction heads are replaced by their mean one at a time, and what this costs "
        "adds up to at most 0.3 of the answers that all of them together cost, and to at least "
        "half of the margin",
        # That parts of the margin nearly add up is algebra, since heads of the last layer add into
        # one stream. That hardly an answer falls with one of them is not.
        effect=lambda n: ratio(n["answers lost, each alone"], n["answers lost, all together"]),
        at_most=0.3,
        also=lambda n: n["margin lost, each alone"] >= 0.5 * n["margin lost, all together"],
        oracle={"margin*": 8.0, "answers lost, all together": 0.98, "answers*": 0.1},
        # Heads that do stand in for each other cost neither answers nor margin alone.
        null={"*, all together": 1.0, "*": 0.05},
        revised="at first the margin was what decides; the two conditions are the same",
        explored=10,
    ),
)


def picture(results: Results) -> Figure:
    """Draws the loss of each model while it is trained, and a dotted line for a guess."""
    fig, ax = plt.subplots(figsize=(WIDE, 3.4), layout="constrained")
    ends = {}
    for name, color in (("two layers", BLUE), ("one layer", GREY)):
        losses = results.shown[name]
        steps = range(0, LOOK_EVERY * len(losses), LOOK_EVERY)
        ax.plot(steps, losses, color=color, linewidth=2)
        ends[name] = (steps[-1], losses[-1] + 0.25, color)
    ax.axhline(GUESS, color=QUIET, linewidth=0.8, linestyle=":")
    style = {"ha": "right", "va": "bottom", "color": QUIET}
    ax.text(steps[-1], GUESS + 0.1, f"a guess among {SYMBOLS} words", **style)
    ax.set(xlabel="step", ylabel="loss, nats", ylim=(0, 5), xlim=(0, None))
    label_ends(ax, ends, size=11)
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Two layers learn to look up what came next, one layer does not",
    note=f"random words that repeat · trained {TRAINING_STEPS} and {2 * TRAINING_STEPS} steps",
    answer="One layer can hand on the word before, and a second one can look it up. The loss of "
    "two layers falls to {n[loss, two layers]:.2f}, and that of one layer, trained for twice the "
    "steps, to {n[loss, one layer]:.2f}",
)

if __name__ == "__main__":
    main.run()
