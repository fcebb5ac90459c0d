"""How does a model learn to continue what it has seen once?

    ... red on swam ... red on ?        look for the "on" before, take what followed: "swam"

A key holds its own word, not the one before it. So a first layer must copy to each place the word before it; a head of
the second can then look for the present word there (an induction head; Elhage et al. 2021, Olsson et al. 2022). Two
layers, and one with twice the steps, are trained on random words that repeat (induction_scores.py); then heads are
taken out, one by one and all together.
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
from phase4_causal.induction.induction_scores import repeated_sequences, where_certain, without
from phase4_causal.induction.models import HEADS, NAMED, NUM_TEST, STEPS, generator, head_scores, train, untrained
from shared import charts
from shared.attention_utils import causal_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import decode
from shared.toy_model import ToyTransformer
from shared.visualization_utils import BLUE, GREY, QUIET, RED, label_ends, plot_attention

EVERY = 10  # steps between two measurements
FROM_THE_MIDDLE = [*range(16), *range(8, 16)]  # a block of 16 words, then its second half
LATE = [*range(24), *range(16, 24), 16]  # 16 words, then a block of 8, twice
GUESS = math.log(task.SYMBOLS)  # loss of a guess among all words


def watched(seed: int, num_layers: int, steps: int, tokens: Tensor) -> tuple[ToyTransformer, list[float]]:
    """Train a model -> the model, and its loss on these tokens where the next word is certain, every so many steps."""
    model, losses = untrained(seed, num_layers), []

    def look(done: int) -> None:
        if done % EVERY == 0:
            losses.append(F.cross_entropy(*where_certain(model, tokens)).item())

    return train(model, seed, steps, look), losses


def first_below(losses: list[float], share: float) -> int:
    """The first step with a loss of at most this share of that of a guess; the last step if there is none."""
    below = (place for place, loss in enumerate(losses) if loss <= share * GUESS)
    return EVERY * next(below, len(losses) - 1)


def right(model: ToyTransformer, tokens: Tensor) -> float:
    return 1 - task.quality(*where_certain(model, tokens))["wrong"]


def measure(run: Run) -> Numbers:
    """Where the next word is certain, in new sequences: losses in nats, shares right, and what heads are worth.

    What is taken out are the heads of layer 1 that score NAMED or more, each alone and all together. One layer has half
    the weights and twice the steps.
    """
    steps, tokens = run.steps(STEPS), repeated_sequences(NUM_TEST, generator(run.seed, 1))
    middle = repeated_sequences(NUM_TEST, generator(run.seed, 6), (24, 24))[:, FROM_THE_MIDDLE]
    two, losses = watched(run.seed, 2, steps, tokens)
    one, losses_of_one = watched(run.seed, 1, 2 * steps, tokens)
    before, matching = head_scores(two, run.seed)
    numbers = {
        "two layers, loss": losses[-1],
        "two layers, right from the middle": right(two, middle),
        "one layer, loss": losses_of_one[-1],
        "one layer, right as in training": right(one, tokens),
        "one layer, right from the middle": right(one, middle),
        "one layer, best score": task.scores_on(one, tokens).max().item(),
        "fall begins": first_below(losses, 0.75),
        "fall ends": first_below(losses, 0.25),
        "right as in training": right(two, tokens),
        "right in longer blocks": right(two, repeated_sequences(NUM_TEST, generator(run.seed, 4), (17, 24))),
        "right in late blocks": right(two, repeated_sequences(NUM_TEST, generator(run.seed, 5), (24, 24))[:, LATE]),
    }
    heads, places = matching >= NAMED, torch.arange(HEADS)
    full, none = task.quality(*where_certain(two, tokens)), without(two, tokens, 1, heads)
    alone = {f"without head {head}": without(two, tokens, 1, places == head) for head in places[heads].tolist()}
    for unit, there in full.items():
        numbers[f"without one, summed, {unit}"] = sum(left[unit] - there for left in alone.values())
        numbers[f"without all, {unit}"] = none[unit] - there
    left = {"all heads there": full, **alone, f"without all {len(alone)}": none}
    run.shown.update(right={name: [1 - each["wrong"]] for name, each in left.items()}, model=two)
    run.shown.update(losses=losses, losses_of_one=losses_of_one)
    run.shown.update(before=int(before.argmax()), matching=int(matching.argmax()))
    return numbers | {"induction heads": len(alone)}


CLAIMS = (
    Claim(
        id="induction-phase-change",
        text="A model of two layers waits, and then learns to continue a repetition in one sudden fall of the loss",
        source="Olsson et al. 2022, argument 1",
        rule="the loss comes to 1/4 of that of a guess, and the fall from 3/4 to there takes no longer than the wait",
        holds=lambda n: n["two layers, loss"] <= 0.25 * GUESS and n["fall ends"] <= 2 * n["fall begins"],
        oracle={"two layers, loss": 0.0, "fall begins": 230, "fall ends": 290},
        null={"two layers, loss": 0.0, "fall begins": 100, "fall ends": 480},  # an even decay takes 3.8 times the wait
        headline=True,
    ),
    Claim(
        id="induction-one-layer",
        text="Induction takes two layers: one has no induction head, and does not continue a copy from the middle",
        source="Elhage et al. 2021",
        rule="where the copy begins in the middle of the block, two layers are right in at least 0.9; one layer, after "
        "twice the steps, in at most 0.2, and none of its heads scores more than 0.2",
        holds=lambda n: (
            n["two layers, right from the middle"] >= 0.9
            and max(n["one layer, right from the middle"], n["one layer, best score"]) <= 0.2
        ),
        oracle={"two layers, *": 1.0, "one layer, *": 0.1},
        null={"*": 1.0},
        headline=True,
    ),
    Claim(
        id="induction-head-ablation",
        text="Induction heads stand in for each other: all together are worth far more than each alone, added up",
        source="Olsson et al. 2022, argument 3 (all of them); Wang et al. 2022 (backup heads)",
        rule="mean ablation of all together costs 0.8 of the answers or more, and twice the sum of each alone or more",
        holds=lambda n: n["without all, wrong"] >= max(0.8, 2 * n["without one, summed, wrong"]),
        oracle={"without all, *": 0.98, "*": 0.02},
        null={"*": 0.98},
        headline=True,
    ),
    Claim(
        id="induction-carries-over",
        text="An induction head works on repetitions that were never in training",
        source="Elhage et al. 2021; Olsson et al. 2022, argument 4",
        rule="at least 0.9 on longer blocks and on blocks in the second half; or else on longer blocks",
        holds=lambda n: min(n["right in longer blocks"], n["right in late blocks"]) >= 0.9,
        only_if=lambda n: n["right in longer blocks"] >= 0.9,
        condition="the first copy stands where it stood in training, at the beginning",
        oracle={"*": 1.0},
        null={"*": 1 / task.SYMBOLS},
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
    plot_attention(weights, decode(tokens[0].tolist()), mask=causal_mask(16), ax=ax, annotate=False, labels=False)
    ax.tick_params(labelsize=8)
    ax.set(xlabel="key (attended to)", ylabel="query (attending)")
    ax.set_title(title, pad=8)
    framed = task.after_earlier_occurrence(tokens) if layer else task.before_in_first_copy(tokens)
    for row, column in framed[0].nonzero().tolist():
        ax.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=RED, linewidth=1.6))


def picture(results: Results) -> Figure:
    """Losses while training, what the induction heads are worth, and the best head of each kind."""
    fig, axes = plt.subplots(2, 2, figsize=(9.6, 8.6), layout="constrained", height_ratios=(2, 3))
    shown = results.shown
    draw_losses(axes[0, 0], shown["losses"], shown["losses_of_one"])
    charts.bars(axes[0, 1], shown["right"], dict.fromkeys(shown["right"], BLUE), number="{:.0%}")
    axes[0, 1].set_title("answers right, induction heads taken out")
    draw_pattern(axes[1, 0], shown["model"], 0, shown["before"], "layer 0; framed: the word before, first copy")
    draw_pattern(axes[1, 1], shown["model"], 1, shown["matching"], "layer 1; framed: after the same word")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Two layers learn to look up what came next; one layer does not, in twice the steps",
    note=f"trained {STEPS} and {2 * STEPS} steps · the best head of each kind",
    answer="Loss: {n[two layers, loss]:.2f} with two layers, {n[one layer, loss]:.2f} with one and twice the steps",
)

if __name__ == "__main__":
    main.run()
