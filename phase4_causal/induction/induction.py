"""Experiment: induction heads. A model learns to continue what it has seen once, and two layers are needed for it.

    ... red on swam ... red on ?        look for the "on" before, take what followed: "swam"

A key holds its own word, not the one before it. So a head of the first layer must first copy to each place the word
before it (previous-token head); then a head of the second layer can look for the place whose word before is the present
one, and finds the word to say right there (induction head; Elhage et al. 2021, Olsson et al. 2022).

Two layers and, as the control, one are trained on random words, so that there is nothing to know but the repetition.
Then heads are removed. The task and the scores are in induction_scores.py, what is asked of the models is in
induction_measures.py. Trains two models for each seed, which takes about 40 s:

    python phase4_causal/induction/induction.py
    python phase4_causal/induction/induction.py --seeds 3

Writes induction.png to visualizations/plots/phase4/.
"""

import math

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from phase4_causal.induction.induction_measures import (
    AS_TRAINED,
    EXPONENTIAL,
    LONGER,
    LONGER_BLOCKS,
    MATCHES,
    TWICE,
    Outcome,
    induction_heads,
    learned,
    measure,
    measured,
)
from phase4_causal.induction.induction_scores import (
    HEADS,
    PERIODS,
    STEPS,
    SYMBOLS,
    Run,
    after_earlier_occurrence,
    repeated_sequences,
)
from shared import cli, paths, training
from shared.attention_utils import causal_mask, normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import decode
from shared.visualization_utils import HEAD_COLORS, INK, QUIET, model_note, plot_attention, save_figure

INDUCTION, PREVIOUS, CONTROL = HEAD_COLORS[0], HEAD_COLORS[1], HEAD_COLORS[3]


def show(outcome: Outcome, seed: int) -> None:
    two, one = outcome.two, outcome.one
    print(f"\nSeed {seed}: loss on the repeated part, nats (any of {SYMBOLS} words: {math.log(SYMBOLS):.2f})")
    print("   step       two layers   one layer   best induction score")
    for i in range(0, len(two.steps), max(len(two.steps) // 10, 1)):
        best = two.induction[i].max()
        print(f"   {two.steps[i]:>4}       {two.loss[i]:>10.2f}   {one.loss[i]:>9.2f}   {best:>20.2f}")
    print("                     induction   previous token   rise of the loss without it")
    for layer, head in measured(two).heads:
        values = (two.induction[-1, layer, head], two.previous[-1, layer, head], outcome.removal[layer, head])
        print("   layer {} head {}    {:>9.2f}   {:>14.2f}   {:>+27.3f}".format(layer, head, *values))
    print(f"   without all {len(induction_heads(two))} induction heads: {outcome.together:+.3f} nats")
    print(f"   induction score, even weights {outcome.even:.2f}, nothing repeated {outcome.unrepeated:.2f} at most")
    print("   right guesses: " + ", ".join(f"{name} {share:.3f}" for name, share in outcome.right.items()))


def draw_losses(ax: Axes, outcomes: list[Outcome]) -> None:
    first, end = outcomes[0], outcomes[0].two.steps[-1]
    for i, outcome in enumerate(outcomes):
        for run, color, name in ((outcome.two, INDUCTION, "two layers"), (outcome.one, CONTROL, "one layer")):
            ax.plot(run.steps, run.loss, color=color, alpha=0.35 if i else 1, label=None if i else name)
    for count, what in ((SYMBOLS, "words"), (PERIODS[1] - PERIODS[0] + 1, "distances")):
        ax.axhline(math.log(count), color=INK, linewidth=0.8, linestyle=":")
        ax.text(end, math.log(count) - 0.06, f"any of {count} {what}", ha="right", va="top", fontsize=8.5)
    ax.set(xlabel="step", ylabel="loss on the repeated part, nats", ylim=(0, 6.4), xlim=(0, end))
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    ax.set_title(f"no fall within {end} steps")
    if learned(first.two):
        ax.axvspan(*first.fall, color=INDUCTION, alpha=0.12, linewidth=0)
        high, low = (first.two.loss[first.two.steps.index(step)] for step in first.fall)
        ax.set_title("steps {} to {}: ".format(*first.fall) + f"from {high:.1f} to {low:.1f} nats")


def draw_scores(ax: Axes, outcome: Outcome) -> None:
    two = outcome.two
    for head in range(HEADS):
        ax.plot(two.steps, two.induction[:, 1, head], color=INDUCTION, label=None if head else "induction, layer 1")
        label = None if head else "previous token, layer 0"
        ax.plot(two.steps, two.previous[:, 0, head], color=PREVIOUS, linestyle="--", label=label)
    ax.axhline(outcome.even, color=INK, linewidth=0.8, linestyle=":", label="induction, even weights")
    if learned(outcome.two):
        ax.axvspan(*outcome.fall, ymax=1 / 1.35, color=INDUCTION, alpha=0.12, linewidth=0)  # up to the legend
    ax.set(xlabel="step", ylabel="score of each head", ylim=(0, 1.35), yticks=(0, 0.5, 1), xlim=(0, two.steps[-1]))
    ax.legend(frameon=False, fontsize=8.5, loc="upper left", ncols=2, columnspacing=1.2)
    ax.set_title(f"best induction score {two.induction[-1].max():.2f}, even weights {outcome.even:.2f}")


@torch.no_grad()
def draw_pattern(ax: Axes, run: Run, seed: int) -> None:
    """The best induction head on a block of 8 words said twice; the places it should look at are framed."""
    tokens = repeated_sequences(1, torch.Generator().manual_seed(seed), (8, 8), length=16)
    layer, head = run.best_induction
    weights = run.model(tokens)[1][layer][0, head]  # (1, H, T, T) -> (T, T)
    mask = causal_mask(tokens.size(1))
    plot_attention(weights, decode(tokens[0].tolist()), mask=mask, ax=ax, annotate=False, labels=False)
    for row, column in after_earlier_occurrence(tokens)[0].nonzero().tolist():
        ax.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=PREVIOUS, linewidth=1.3))
    ax.set_title(f"layer {layer} head {head}; framed: after the same word", pad=8)


def draw_removal(ax: Axes, outcome: Outcome) -> None:
    run = outcome.two
    heads, together = measured(run).heads, induction_heads(run)
    colors = [INDUCTION if h in together else PREVIOUS if h == run.best_previous else QUIET for h in heads]
    rises = [outcome.removal[head].item() for head in heads] + [outcome.together]
    names = [f"layer {layer} head {head}" for layer, head in heads] + [f"all {len(together)} induction\nheads"]
    places = [*range(len(heads)), len(heads) + 0.4]
    ax.barh(places, rises, color=[*colors, INDUCTION], tick_label=names)
    for place, rise in zip(places, rises, strict=True):
        ax.text(max(rise, 0), place, f" {rise:+.2f}", va="center", fontsize=9)
    ax.set_ylim(len(rises), -3.3)  # the first head above, and over it room for the legend
    ax.set(xlabel="rise of the loss on the repeated part, nats", xlim=(min(0, *rises), 1.18 * max(*rises, 0.1)))
    roles = {"best previous-token head": PREVIOUS, f"induction, score from {MATCHES}": INDUCTION, "other": QUIET}
    ax.legend(handles=[Patch(color=color, label=name) for name, color in roles.items()], frameon=False, fontsize=8.5)
    ax.set_title("without a head, none trained again")


@torch.no_grad()
def draw(outcomes: list[Outcome], seed: int) -> tuple[Figure, str]:
    """Losses, scores while training, the pattern of the best induction head, what each head is worth."""
    first, steps = outcomes[0], outcomes[0].two.steps[-1]
    fig, ((losses, curves), (pattern, removal)) = plt.subplots(2, 2, figsize=(9.6, 8.6), layout="constrained")
    draw_losses(losses, outcomes)
    draw_scores(curves, first)
    draw_pattern(pattern, first.two, seed)
    draw_removal(removal, first)
    two, one = first.two.loss[-1], first.one.loss[-1]
    title = f"After {steps} steps: two layers at {two:.2f} nats, one layer at {one:.2f}"
    if learned(first.two) and not learned(first.one):
        title = f"Two layers learn to look up what came next: loss {two:.2f}; one layer is still at {one:.2f}"
    fig.suptitle(title, fontsize=13)
    _, layers = first.two.model(first.two.tokens[:, :-1])
    entropy = [normalized_entropy(w, causal_mask(w.size(-1))).nanmean().item() for w in layers]
    model_note(
        fig,
        f"trained {steps} steps, {HEADS} heads in a layer, seeds: {len(outcomes)}; normalised entropy: "
        f"layer 0 {entropy[0]:.2f}, layer 1 {entropy[1]:.2f}; removal: {len(first.two.tokens)} new sequences",
    )
    return fig, f"{title}. Loss by step, scores of the heads by step, pattern of the best head, loss without each head."


def findings_on_training(outcomes: list[Outcome], seeds: list[int]) -> list[Finding]:
    """When the loss falls, whether the head forms then, and what one layer does in the same steps."""
    waits = [outcome.fall[0] for outcome in outcomes]
    takes = [outcome.fall[1] - outcome.fall[0] for outcome in outcomes]
    formed = [outcome.formed for outcome in outcomes]
    two, one = ([run.loss[-1] for run in runs] for runs in zip(*((o.two, o.one) for o in outcomes), strict=True))
    done = all(learned(outcome.two) for outcome in outcomes)
    near = (outcome.fall[0] - 0.2 * outcome.fall[1] <= outcome.formed <= 1.2 * outcome.fall[1] for outcome in outcomes)
    return [
        Finding(
            "induction-phase-change",
            "The loss on the repeated part waits and then falls suddenly",
            "Olsson et al. 2022, argument 1",
            {"steps before the fall": waits, "steps of the fall": takes},
            f"steps until 3/4 of ln {SYMBOLS}, and from there until 1/4; the last step if never",
            "reaches 1/4, and the fall takes no longer than the wait with any seed",
            findings.verdict(done and all(take <= wait for take, wait in zip(takes, waits, strict=True))),
            control=f"exponential decay takes {EXPONENTIAL:.1f} times the wait; the learning rate stays the same",
            seeds=seeds,
        ),
        Finding(
            "induction-together",
            "Induction heads form while the loss falls",
            "Olsson et al. 2022, argument 1",
            {"best head half way up": formed, "fall begins": waits, "fall ends": [o.fall[1] for o in outcomes]},
            "step",
            "half way during the fall, or before or after it by at most a fifth of the step at which it ends",
            findings.verdict(done and all(near)),
            seeds=seeds,
        ),
        Finding(
            "induction-one-layer",
            "One layer does not learn it: induction takes two",
            "Elhage et al. 2021",
            {"two layers": two, "one layer": one, "one layer, best score": [o.one.best_score for o in outcomes]},
            "loss on the repeated part after the same steps, nats; induction score",
            "two layers at most 0.3 nats, one layer at least 1.5, with every seed",
            findings.verdict(max(two) <= 0.3 and min(one) >= 1.5),
            control=f"any of {SYMBOLS} words: {math.log(SYMBOLS):.2f} nats",
            seeds=seeds,
        ),
    ]


def findings_on_heads(outcomes: list[Outcome], seeds: list[int]) -> list[Finding]:
    """What the score measures, and what the heads are for."""
    best = [outcome.two.best_score for outcome in outcomes]
    untrained = [outcome.two.induction[0].max().item() for outcome in outcomes]
    even, unrepeated = [o.even for o in outcomes], [o.unrepeated for o in outcomes]
    low = all(max(u, n) <= e + 0.1 for u, n, e in zip(untrained, unrepeated, even, strict=True))
    alone = [outcome.removal[outcome.two.best_induction].item() for outcome in outcomes]
    together = [outcome.together for outcome in outcomes]
    previous = [outcome.removal[outcome.two.best_previous].item() for outcome in outcomes]
    drops = [b - outcome.without_previous for b, outcome in zip(best, outcomes, strict=True)]
    carried = {name: [outcome.right[name] for outcome in outcomes] for name in (AS_TRAINED, LONGER, TWICE)}
    return [
        Finding(
            "induction-score-calibrated",
            "A high induction score comes from looking up, not from a habit of place",
            "definition of Olsson et al. 2022",
            {"trained": best, "nothing repeated": unrepeated, "untrained": untrained, "even weights": even},
            "induction score, highest of the heads; 1 is perfect",
            "trained at least 0.8; untrained, or on sequences where nothing repeats, at most 0.1 above even weights",
            findings.verdict(min(best) >= 0.8 and low),
            seeds=seeds,
        ),
        Finding(
            "induction-head-ablation",
            "Without its induction head the model cannot continue the repetition",
            "Olsson et al. 2022, argument 3",
            {
                "without the best": alone,
                f"without all that score {MATCHES}": together,
                "number of these": [len(induction_heads(outcome.two)) for outcome in outcomes],
                "without one other head, highest": [outcome.other for outcome in outcomes],
                "without all others": [outcome.others for outcome in outcomes],
            },
            "rise of the loss on the repeated part, nats",
            "at least 1 nat without the best one; failing that, without all of them",
            **findings.conditional(
                min(alone) >= 1, min(together) >= 1, "all induction heads go together: they stand in for each other"
            ),
            control="others: the heads that are neither induction heads nor the best previous-token head",
            seeds=seeds,
        ),
        Finding(
            "induction-previous-token",
            "Induction heads need a previous-token head in the layer before",
            "Elhage et al. 2021; Olsson et al. 2022",
            {
                "rise of the loss without it": previous,
                "best induction score, all heads": best,
                "the same head without it": [outcome.without_previous for outcome in outcomes],
                "its previous-token score": [o.two.previous[-1][o.two.best_previous].item() for o in outcomes],
            },
            "nats; scores",
            "without it the loss rises by at least 0.5 nats and the score falls by at least 0.2",
            findings.verdict(min(previous) >= 0.5 and min(drops) >= 0.2),
            control=f"neither kind of head, highest rise {max(outcome.other for outcome in outcomes):.3f} nats",
            seeds=seeds,
        ),
        Finding(
            "induction-carries-over",
            "An induction head works on what was never in training",
            "Olsson et al. 2022, argument 4",
            carried,
            "share right where the next word is certain; longer blocks: {} to {} words".format(*LONGER_BLOCKS),
            "at least 0.9 on both; failing that, on longer blocks",
            **findings.conditional(
                min(carried[LONGER] + carried[TWICE]) >= 0.9,
                min(carried[LONGER]) >= 0.9,
                "no place is later than in training",
            ),
            control=f"all sequences are new; by chance {1 / SYMBOLS:.3f}",
            seeds=seeds,
        ),
    ]


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    seeds = list(cli.seeds(options))
    outcomes = [measure(seed, training.QUICK_STEPS if options.quick else STEPS) for seed in seeds]
    for seed, outcome in zip(seeds, outcomes, strict=True):
        show(outcome, seed)
    figure, caption = draw(outcomes, options.seed)
    save_figure(figure, options.output_dir / paths.PLOTS / "phase4" / f"induction.{options.format}", caption=caption)
    recorded = findings_on_training(outcomes, seeds) + findings_on_heads(outcomes, seeds)
    findings.record("phase4_causal/induction/induction.py", recorded, options.output_dir)


if __name__ == "__main__":
    cli.run(main)
