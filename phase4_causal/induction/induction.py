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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase4_causal.induction.induction_scores import (
    SYMBOLS,
    after_earlier_occurrence,
    even_score,
    late_sequences,
    repeated_loss,
    repeated_sequences,
    right,
    rise,
    scores_on,
)
from phase4_causal.induction.models import HEADS, MATCHES, NUM_TEST, STEPS, chosen_by, generator, train
from shared import charts
from shared.attention_utils import causal_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import decode
from shared.toy_model import ToyTransformer
from shared.visualization_utils import BLUE, GREY, QUIET, RED, label_ends, plot_attention

EVERY = 10  # steps between two measurements
GUESS = math.log(SYMBOLS)  # loss of a guess among all words


def watched(seed: int, num_layers: int, steps: int, tokens: Tensor) -> tuple[ToyTransformer, list[float]]:
    """Train a model -> the model, and its loss on these tokens where the next word is certain, every so many steps."""
    losses = []

    def look(model: ToyTransformer, done: int) -> None:
        if done % EVERY == 0:
            losses.append(repeated_loss(model, tokens).item())

    return train(seed, num_layers, steps, look), losses


def first_below(losses: list[float], share: float) -> int:
    """The first step with a loss of at most this share of that of a guess; the last step if there is none."""
    below = (place for place, loss in enumerate(losses) if loss <= share * GUESS)
    return EVERY * next(below, len(losses) - 1)


def measure(run: Run) -> Numbers:
    """Where the next word is certain, in new sequences: losses in nats, by how much they rise, and share right.

    What is taken out are the heads that score MATCHES or more, each alone and all together. One layer has half the
    weights and twice the steps.
    """
    steps, tokens = run.steps(STEPS), repeated_sequences(NUM_TEST, generator(run.seed, 1))
    two, losses = watched(run.seed, 2, steps, tokens)
    one, losses_of_one = watched(run.seed, 1, 2 * steps, tokens)
    chosen = chosen_by(two, run.seed)
    best, heads = divmod(int(chosen.argmax()), HEADS), (chosen[1] >= MATCHES).nonzero().flatten().tolist()
    numbers = {
        "two layers, loss": losses[-1],
        "two layers, best score": scores_on(two, tokens)[best].item(),
        "one layer, loss": losses_of_one[-1],
        "one layer, best score": scores_on(one, tokens)[0, int(chosen_by(one, run.seed).argmax())].item(),
        "even weights, best score": even_score(after_earlier_occurrence(tokens[:, :-1])),
        "fall begins": first_below(losses, 0.75),
        "fall ends": first_below(losses, 0.25),
        "induction heads": len(heads),
        "right as in training": right(two, repeated_sequences(NUM_TEST, generator(run.seed, 3))),
        "right in longer blocks": right(two, repeated_sequences(NUM_TEST, generator(run.seed, 4), (17, 24))),
        "right in late blocks": right(two, late_sequences(NUM_TEST, generator(run.seed, 5))),
    }
    for kind in ("zero", "mean"):
        alone = [rise(two, tokens, 1, [head], kind) for head in range(HEADS)]
        numbers |= {
            f"{kind}, worst alone": max([alone[head] for head in heads], default=0.0),
            f"{kind}, summed": sum(alone[head] for head in heads),
            f"{kind}, all together": rise(two, tokens, 1, heads, kind),
        }
        run.shown[kind] = alone
    run.shown.update(model=two, losses=losses, losses_of_one=losses_of_one, best=best, heads=heads)
    return numbers


def stand_in(n: Numbers, kind: str) -> bool:
    """Whether all heads together matter, and by far more than the sum of each alone."""
    return n[f"{kind}, all together"] >= max(2.0, 2 * n[f"{kind}, summed"])


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
        text="Induction takes two layers: one has no induction head, and does not learn to continue the repetition",
        source="Elhage et al. 2021, on models of attention alone; here with feed-forward networks",
        rule="two layers at most 0.3 nats; one layer, after twice the steps, at least 1.0, and no head's score more "
        "than 0.1 above even weights",
        holds=lambda n: (
            n["two layers, loss"] <= 0.3
            and n["one layer, loss"] >= 1.0
            and n["one layer, best score"] <= n["even weights, best score"] + 0.1
        ),
        oracle={"two layers, loss": 0.0, "one layer, loss": 2.2, "*": 0.06},  # a guess among nine distances
        null={"one layer, best score": 1.0, "even weights, best score": 0.06, "*": 0.0},
        headline=True,
    ),
    Claim(
        id="induction-head-ablation",
        text="Induction heads stand in for each other: all together are worth far more than each alone, added up",
        source="Olsson et al. 2022, argument 3 (all of them); Wang et al. 2022 (backup heads)",
        rule="by zero and by mean ablation all together cost 2 nats or more, and twice the sum of each alone or more",
        holds=lambda n: all(stand_in(n, kind) for kind in ("zero", "mean")),
        oracle={"*, summed": 0.1, "*, all together": 5.0},
        null={"*": 5.0},
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
        null={"*": 1 / SYMBOLS},
    ),
)


def draw_losses(ax: Axes, losses: list[float], losses_of_one: list[float]) -> None:
    ends = {}
    for name, track, color in (("one layer", losses_of_one, GREY), ("two layers", losses, BLUE)):
        steps = range(0, EVERY * len(track), EVERY)
        ax.plot(steps, track, color=color, linewidth=2)
        ends[name] = (steps[-1], track[-1] + 0.2, color)
    ax.axhline(GUESS, color=QUIET, linewidth=0.8, linestyle=":")
    ax.text(steps[-1], GUESS + 0.05, f"a guess among {SYMBOLS} words", color=QUIET)
    ax.set(xlabel="step", ylabel="loss on the repeated part, nats", ylim=(0, 6), xlim=(0, None))
    label_ends(ax, ends, size=10)


@torch.no_grad()
def draw_pattern(ax: Axes, model: ToyTransformer, layer: int, head: int) -> None:
    """A head on a block of 8 words said twice; the places it should look at are framed."""
    tokens = repeated_sequences(1, generator(0, 0), (8, 8), length=16)
    weights = model(tokens)[1][layer][0, head]  # (1, H, T, T) -> (T, T)
    plot_attention(weights, decode(tokens[0].tolist()), mask=causal_mask(16), ax=ax, annotate=False, labels=False)
    ax.tick_params(labelsize=8)
    ax.set(xlabel="key (attended to)", ylabel="query (attending)")
    ax.set_title("the best head; framed: after the same word", pad=8)
    for row, column in after_earlier_occurrence(tokens)[0].nonzero().tolist():
        ax.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=RED, linewidth=1.6))


def picture(results: Results) -> Figure:
    """Losses while training, the pattern of the best induction head, what each head is worth."""
    fig, axes = plt.subplot_mosaic([["loss", "loss"], ["pattern", "removal"]], figsize=(8.8, 8.2), layout="constrained")
    shown, numbers = results.shown, results.runs[0]
    draw_losses(axes["loss"], shown["losses"], shown["losses_of_one"])
    draw_pattern(axes["pattern"], shown["model"], *shown["best"])
    rises = {f"head {head}": [loss] for head, loss in enumerate(shown["zero"])}
    rises[f"all {len(shown['heads'])}\ninduction\nheads"] = [numbers["zero, all together"]]
    colors = {name: BLUE if place in (*shown["heads"], HEADS) else GREY for place, name in enumerate(rises)}
    charts.bars(axes["removal"], rises, colors, number="{:+.1f}")
    axes["removal"].set(title="heads taken out: alone, and together", xlabel="rise of the loss, nats")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Two layers learn to look up what came next; one layer does not, in twice the steps",
    note=f"trained {STEPS} and {2 * STEPS} steps · the heads are those of layer 1",
    answer="Loss: {n[two layers, loss]:.2f} with two layers, {n[one layer, loss]:.2f} with one and twice the steps",
)

if __name__ == "__main__":
    main.run()
