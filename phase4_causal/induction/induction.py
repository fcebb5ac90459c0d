"""How does a model learn to continue what it has seen once?

    ... red on swam ... red on ?        look for the "on" before, take what followed: "swam"

A key holds its own word, not the one before it. So a first layer must copy to each place the word
before it; a head of the second can then look for the present word there (an induction head; Elhage
et al. 2021, Olsson et al. 2022). Two layers, and one with twice the steps, are trained on random
words that repeat (induction_scores.py); then heads are taken out, one by one and all together.
"""

import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase4_causal.induction import induction_scores as task
from phase4_causal.induction.induction_scores import (
    HEADS,
    NAMED,
    NUM_TEST,
    STEPS,
    generator,
    head_scores,
    repeated_sequences,
    train,
    untrained,
    where_certain,
    without,
    wrong,
)
from shared.attention_utils import causal_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import relation_weight
from shared.toy_language import decode
from shared.toy_model import ToyTransformer
from shared.visualization_utils import BLUE, GREY, QUIET, RED, label_ends, plot_attention

EVERY = 10  # steps between two measurements
FROM_THE_MIDDLE = [*range(16), *range(8, 16)]  # a block of 16 words, then its second half
LATE = [*range(24), *range(16, 24), 16]  # 16 words, then a block of 8, twice
GUESS = math.log(task.SYMBOLS)  # loss of a guess among all words


def watched(
    seed: int, num_layers: int, steps: int, tokens: Tensor
) -> tuple[ToyTransformer, list[float]]:
    """Train a model -> the model, and its loss on these tokens where the next word is certain,
    every so many steps.
    """
    model, losses = untrained(seed, num_layers), []

    def look(done: int) -> None:
        if done % EVERY == 0:
            losses.append(F.cross_entropy(*where_certain(model, tokens)).item())

    return train(model, seed, steps, look), losses


def first_below(losses: list[float], share: float) -> int:
    """The first step with a loss of at most this share of that of a guess; the last step if there
    is none.
    """
    below = (place for place, loss in enumerate(losses) if loss <= share * GUESS)
    return EVERY * next(below, len(losses) - 1)


def measure(run: Run) -> Numbers:
    """Where the next word is certain, in new sequences: losses in nats, shares right, and what
    heads are worth.

    Taken out are the heads of layer 1 that score NAMED or more, each alone and all together. One
    layer has half the weights and twice the steps.
    """
    steps, tokens = run.steps(STEPS), repeated_sequences(NUM_TEST, generator(run.seed, 1))
    middle = repeated_sequences(NUM_TEST, generator(run.seed, 6), (24, 24))[:, FROM_THE_MIDDLE]
    longer = repeated_sequences(NUM_TEST, generator(run.seed, 4), (17, 24))
    late = repeated_sequences(NUM_TEST, generator(run.seed, 5), (24, 24))[:, LATE]
    two, losses = watched(run.seed, 2, steps, tokens)
    one, losses_of_one = watched(run.seed, 1, 2 * steps, tokens)
    before, matching = head_scores(two, run.seed)
    begins, first = first_below(losses, 0.75), int(before.argmax())
    later = task.before_in_first_copy(late)
    later[:, : task.PERIODS[1]] = False  # where a first copy stood in training
    heads, places = matching >= NAMED, torch.arange(HEADS)
    full, none = wrong(two, tokens), without(two, tokens, 1, heads)
    alone = [without(two, tokens, 1, places == head) for head in places[heads].tolist()]
    run.shown.update(losses=losses, losses_of_one=losses_of_one)
    run.shown.update(model=two, matching=int(matching.argmax()), before=first)
    return {
        "loss, two layers": losses[-1],
        "loss, one layer": losses_of_one[-1],
        "right as in training, one layer": 1 - wrong(one, tokens),
        "right from the middle, two layers": 1 - wrong(two, middle),
        "right from the middle, one layer": 1 - wrong(one, middle),
        "best induction score, one layer": task.scores_on(one, tokens).max().item(),
        "right in longer blocks, two layers": 1 - wrong(two, longer),
        "right in late blocks, two layers": 1 - wrong(two, late),
        "steps before the fall, two layers": begins,
        "steps of the fall, two layers": first_below(losses, 0.25) - begins,
        "weight on the word before, as in training": before[first].item(),
        "weight on the word before, late": relation_weight(two(late)[1][0], later)[first].item(),
        "induction heads": len(alone),
        "answers lost, each alone": sum(left - full for left in alone),
        "answers lost, all together": none - full,
    }


CLAIMS = (
    Claim(
        id="induction-phase-change",
        text="A model of two layers of four heads waits, and then learns to continue a repetition in one sudden fall "
        "of the loss",
        source="Olsson et al. 2022, argument 1",
        rule="the fall from 3/4 to 1/4 of the loss of a guess takes no more steps than the wait before it",
        effect=lambda n: (
            n["steps of the fall, two layers"] / n["steps before the fall, two layers"]
        ),
        at_most=1,
        also=lambda n: n["loss, two layers"] <= 0.25 * GUESS,
        oracle={"loss, *": 0.0, "steps before *": 230, "steps of *": 60},
        null={
            "loss, *": 0.0,
            "steps before *": 100,
            "steps of *": 380,
        },  # an even decay takes 3.8 times the wait
    ),
    Claim(
        id="induction-one-layer",
        text="Induction takes two layers: one of four heads has no induction head, and does not continue a copy that "
        "begins in the middle of the block, in twice the steps",
        source="Elhage et al. 2021",
        rule="there two layers are right in 0.7 more of the words, or more; none of the heads of the one layer scores "
        "more than 0.2, nor is it right in more",
        effect=lambda n: (
            n["right from the middle, two layers"] - n["right from the middle, one layer"]
        ),
        at_least=0.7,
        also=lambda n: (
            max(n["right from the middle, one layer"], n["best induction score, one layer"]) <= 0.2
        ),
        oracle={"*, two layers": 1.0, "*, one layer": 0.1},
        null={"*": 1.0},
        revised="was a loss after twice the steps; one layer gets low by another way: now a copy from the middle, of "
        "which two layers had to get 0.9 right, then 0.7 more",
    ),
    Claim(
        id="induction-head-ablation",
        text="In two layers of four heads induction heads stand in for each other: all together are worth far more "
        "than each alone, added up",
        source="Olsson et al. 2022, argument 3 (all of them); Wang et al. 2022 (backup heads)",
        rule="without all together (mean ablation) 0.5 more of the answers are lost than without each alone, added up",
        effect=lambda n: n["answers lost, all together"] - n["answers lost, each alone"],
        at_least=0.5,
        oracle={"*, all together": 0.98, "*": 0.02},
        null={"*": 0.98},
        revised="was 1 nat, then 2, by zero ablation; then 0.8 of the answers, and twice the sum, by mean ablation",
    ),
    Claim(
        id="induction-carries-over",
        text="Induction heads, in two layers of four, work on repetitions that were never in training: on longer "
        "blocks, and on blocks that begin later",
        source="Elhage et al. 2021; Olsson et al. 2022, argument 4",
        rule="0.9 or more are right in blocks that begin in the second half, and in longer blocks",
        effect=lambda n: n["right in late blocks, two layers"],
        at_least=0.9,
        also=lambda n: n["right in longer blocks, two layers"] >= 0.9,
        oracle={"*": 1.0},
        null={"*": 1 / task.SYMBOLS},
        revised="late blocks came when it was seen where the first layer looks; longer ones alone no longer suffice",
    ),
)


def draw_losses(ax: Axes, losses: list[float], losses_of_one: list[float]) -> None:
    ends = {}
    for name, track, color in (("one layer", losses_of_one, GREY), ("two layers", losses, BLUE)):
        steps = range(0, EVERY * len(track), EVERY)
        ax.plot(steps, track, color=color, linewidth=2)
        ends[name] = (steps[-1], track[-1] + 0.2, color)
    ax.axhline(GUESS, color=QUIET, linewidth=0.8, linestyle=":")
    ax.text(steps[-1], GUESS + 0.05, f"a guess among {task.SYMBOLS} words", color=QUIET)
    ax.set(xlabel="step", ylabel="loss on the repeated part, nats", ylim=(0, 6), xlim=(0, None))
    label_ends(ax, ends, size=10)


@torch.no_grad()
def draw_pattern(ax: Axes, model: ToyTransformer, layer: int, head: int, title: str) -> None:
    """A head on a block of 8 words said twice; the places it should look at are framed."""
    tokens = repeated_sequences(1, generator(0, 0), (8, 8), length=16)
    weights = model(tokens)[1][layer][0, head]  # (1, H, T, T) -> (T, T)
    plot_attention(
        weights,
        decode(tokens[0].tolist()),
        mask=causal_mask(16),
        ax=ax,
        annotate=False,
        labels=False,
    )
    ax.tick_params(labelsize=9)
    ax.set(xlabel="key (attended to)", ylabel="query (attending)")
    ax.set_title(title, pad=8)
    framed = task.after_earlier_occurrence(tokens) if layer else task.before_in_first_copy(tokens)
    for row, column in framed[0].nonzero().tolist():
        ax.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=RED, linewidth=1.6))


def picture(results: Results) -> Figure:
    """Losses while training, and beneath it the best head of each kind."""
    fig, axes = plt.subplot_mosaic(
        "LL;AB", figsize=(9, 8.2), layout="constrained", height_ratios=(4, 7)
    )
    shown = results.shown
    draw_losses(axes["L"], shown["losses"], shown["losses_of_one"])
    draw_pattern(
        axes["A"], shown["model"], 0, shown["before"], "layer 0 looks at the word before (framed)"
    )
    draw_pattern(
        axes["B"], shown["model"], 1, shown["matching"], "layer 1 looks at what came next (framed)"
    )
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Two layers learn to look up what came next, one layer does not",
    note=f"trained {STEPS} and {2 * STEPS} steps · the best head of each kind",
    answer="Loss: {n[loss, two layers]:.2f} with two layers, {n[loss, one layer]:.2f} with one and twice the steps",
)

if __name__ == "__main__":
    main.run()
