"""The same model trained with and without the causal mask: how cheating looks, and what breaks.

The task is the next word at every position at once. Without a mask the next word stands in the input, one place to the
right, and the model learns to copy it: the loss falls to almost 0 and nothing was learnt that helps to write. It shows
when the model must do what it is for, read only the past. Three tests (mask_training.py): the whole sentence with the
mask, the whole sentence without, and word by word, without a mask but with nothing after the last word.

Two lines frame every loss. The floor is the loss of the grammar itself on the same sentences: by the chain rule the
next-word losses of a sentence add up to -ln P(sentence), which shared/grammar/entropy.py computes. No model of the
language is better on average. The ceiling is a uniform guess, ln V; what is above it was better not asked.

    python phase4_causal/masking/breaking_causality.py

Writes next_token.png and break_causality.png to visualizations/plots/phase4/.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from phase4_causal.masking.mask_training import (
    ATTENTION,
    TESTS,
    UNIFORM,
    WITH,
    WITHOUT,
    Losses,
    floor,
    full_loss,
    losses,
    train,
)
from shared import cli, paths, training
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import TOY_SENTENCE, Sentence
from shared.training import Trained
from shared.visualization_utils import INK, head_color, model_note, save_figure

STEPS, SENTENCE_STEPS = 200, 60
NUM_SENTENCES, QUICK_SENTENCES = 300, 40
FLOOR_MARGIN, CHEATING = 0.1, 0.05  # nats
LAYERS = {1: "one layer", 2: "two layers"}

Key = tuple[str, int]  # (how it was trained, number of layers)


def draw_next_token(runs: dict[Key, Trained], tested: dict[Key, Losses], least: float) -> tuple[Figure, str]:
    """Training loss of both modes, and beside it what they can do with the past alone; two layers."""
    fig, (curves, bars) = plt.subplots(
        1, 2, figsize=(9.6, 4.6), sharey=True, width_ratios=(1.5, 1), layout="constrained"
    )
    for place, mode in enumerate((WITH, WITHOUT)):
        curve = torch.tensor(runs[mode, 2].history.loss)
        smooth = curve.unfold(0, min(10, len(curve)), 1).mean(dim=-1)  # (steps,) -> (steps - 9,)
        curves.plot(range(len(curve) - len(smooth) + 1, len(curve) + 1), smooth, color=head_color(place), label=mode)
        past = tested[mode, 2][TESTS[0] if mode == WITH else TESTS[2]]  # with the mask, whole sentences are the past
        bars.bar(place, past, width=0.6, color=head_color(place))
        bars.text(place, past + 0.1, f"{past:.2f}", ha="center", va="bottom")
    top = max(UNIFORM, curves.dataLim.y1, bars.dataLim.y1)
    for ax in (curves, bars):
        ax.axhline(least, color=INK, linestyle="--", linewidth=1.1)
        ax.axhline(UNIFORM, color=INK, linestyle=":", linewidth=1.3)
    for y, text, side in ((least - 0.12, "floor: the grammar", "top"), (UNIFORM + 0.06, "uniform guess", "bottom")):
        value = least if side == "top" else UNIFORM
        curves.text(
            0.99, y, f"{text}, {value:.2f}", transform=curves.get_yaxis_transform(), ha="right", va=side, fontsize=9
        )
    curves.set(
        xlabel="step", ylabel="loss, nats per word", title="in training (mean of 10 steps)", ylim=(0, 1.12 * top)
    )
    curves.legend(frameon=False, loc="upper right", title="trained")
    bars.set_xticks([0, 1], [f"trained\n{WITH}", f"trained\n{WITHOUT}"])
    bars.set_title("from the past alone, held-out")
    cheat, honest = tested[WITHOUT, 2], tested[WITH, 2]
    title = (
        f"Without the mask the loss is {cheat[TESTS[1]]:.1g}, and {cheat[TESTS[2]]:.1f} from the past alone; "
        f"with it {honest[TESTS[0]]:.2f}"
    )
    fig.suptitle(title, fontsize=12.5)
    model_note(fig, f"two layers, {runs[WITH, 2].label} each, same first weights and batches")
    return fig, f"{title}. Dashed: the loss of the grammar itself; dotted: a uniform guess."


def draw_breaking(tested: dict[Key, Losses], least: float, note: str) -> tuple[Figure, str]:
    """Loss of every model in every test."""
    fig, ax = plt.subplots(figsize=(9.6, 4.8), layout="constrained")
    for group, values in enumerate(tested.values()):
        for place, (test, value) in enumerate(values.items()):
            x = group + (place - 1) * 0.26
            ax.bar(x, value, width=0.24, color=head_color(place), label=test if group == 0 else None)
            ax.text(x, value + 0.08, f"{value:.2f}", ha="center", va="bottom", fontsize=9)
    ax.axhline(least, color=INK, linestyle="--", linewidth=1.1, label=f"floor: the grammar, {least:.2f}")
    ax.axhline(UNIFORM, color=INK, linestyle=":", linewidth=1.3, label=f"uniform guess, {UNIFORM:.2f}")
    ax.set_xticks(range(len(tested)), [f"trained {mode},\n{LAYERS[n]}" for mode, n in tested])
    ax.set_ylabel("loss, nats per word (held-out)")
    ax.tick_params(axis="x", length=0)
    ax.legend(frameon=False, loc="upper left", title="tested", title_fontproperties={"size": 9}, fontsize=9)
    honest, cheat = tested[WITH, 2], tested[WITHOUT, 2]
    title = (
        f"Taking the mask away: {honest[TESTS[0]]:.2f} becomes {honest[TESTS[1]]:.2f}. "
        f"Putting it on: {cheat[TESTS[1]]:.2f} becomes {cheat[TESTS[0]]:.2f} nats"
    )
    fig.suptitle(title, fontsize=12.5)
    model_note(fig, note)
    return fig, f"{title} (two layers)."


def show(tested: dict[Key, Losses], least: float) -> None:
    print(f"\nheld-out loss in nats per word (grammar {least:.3f}, uniform guess {UNIFORM:.3f})")
    print("   trained" + " " * 25 + "".join(f"{test:>22}" for test in TESTS))
    for (mode, num_layers), values in tested.items():
        print(
            f"   {mode}, layers: {num_layers:<20}"[:34].ljust(35) + "".join(f"{values[test]:22.3f}" for test in TESTS)
        )


def one_sentence(seed: int, steps: int) -> dict[str, float]:
    """The loss of both modes when all of training is one sentence, each tested as it was trained; one layer."""
    only = [Sentence(tuple(TOY_SENTENCE.split()), {})]
    return {mode: full_loss(train(mode, 1, only, steps, seed).model, only) for mode in ATTENTION}


Seeds = list[dict[Key, Losses]]


def make_findings(
    tested: Seeds, in_training: list[Losses], single: list[Losses], least: float, seeds: range
) -> list[Finding]:
    """The findings of this script; every list of numbers has one for each seed."""

    def of(mode: str, num_layers: int, test: int) -> list[float]:
        return [found[mode, num_layers][TESTS[test]] for found in tested]

    def differences(mode: str, num_layers: int, test: int, base: int) -> list[float]:
        return [a - b for a, b in zip(of(mode, num_layers, test), of(mode, num_layers, base), strict=True)]

    full = {f"{LAYERS[n]}, full": differences(WITH, n, 1, 0) for n in LAYERS}
    written = {f"{LAYERS[n]}, word by word": differences(WITH, n, 2, 0) for n in LAYERS}
    cheats = [loss[f"{WITHOUT}, {n}"] for loss in in_training for n in LAYERS]
    blind = {f"{LAYERS[n]}, word by word": of(WITHOUT, n, 2) for n in LAYERS}
    masked = {f"{LAYERS[n]}, full, with the mask": of(WITHOUT, n, 0) for n in LAYERS}
    honest = {LAYERS[n]: of(WITH, n, 0) for n in LAYERS}
    other = {f"trained {WITH}, tested {WITHOUT}, {key}": values for key, values in full.items()} | {
        f"trained {WITHOUT}, tested {WITH}, {LAYERS[n]}, full": differences(WITHOUT, n, 0, 1) for n in LAYERS
    }
    apart = [min(loss[f"{WITH}, {n}"] - loss[f"{WITHOUT}, {n}"] for n in LAYERS) for loss in in_training]
    return [
        Finding(
            "C101",
            "Trained without a mask the model cheats: it copies the next word",
            "course notes",
            {"in training, 1 and 2 layers": cheats} | blind | masked,
            "loss, nats per word",
            "in training below 0.05, which the grammar does not allow; from the past alone above a uniform guess",
            findings.verdict(max(cheats) < CHEATING and min(map(min, (blind | masked).values())) > UNIFORM),
            control=f"the grammar itself loses {least:.2f}, a uniform guess {UNIFORM:.2f}",
            seeds=list(seeds),
        ),
        Finding(
            "next-token-floor",
            "Trained with the mask the model learns the language: it predicts nearly as well as the grammar",
            "the chain rule; Shannon 1948",
            honest | {"the grammar": least},
            "held-out loss, nats per word",
            "less than 0.1 above the grammar's own loss, with one layer and with two",
            findings.verdict(max(map(max, honest.values())) - least < FLOOR_MARGIN),
            control="the same models trained without the mask",
            seeds=list(seeds),
        ),
        Finding(
            "C102",
            "Trained with the mask and tested without, the model is confused",
            "course notes",
            full | written,
            "how much the held-out loss rises, nats per word",
            "by more than 0.1 when whole sentences go in and also word by word, with one layer and with two",
            **findings.conditional(
                min(map(min, (full | written).values())) > 0.1,
                min(map(min, full.values())) > 0.1,
                "whole sentences go in, so that later words are there to be seen; not when it writes word by word",
            ),
            control="the same models with the mask",
            seeds=list(seeds),
        ),
        Finding(
            "C115",
            "The same model can be run with the mask and without it, to compare the two",
            "course notes",
            other,
            "how much the held-out loss rises in the mode that the model was not trained in, nats per word",
            "by 0.1 or less, both ways, with one layer and with two",
            findings.verdict(max(map(max, other.values())) <= 0.1),
            control="it runs without an error; the same models in the mode that they were trained in",
            seeds=list(seeds),
        ),
        Finding(
            "no-mask-when-writing",
            "When a model writes, no mask is needed: the future does not exist yet",
            "course notes",
            written,
            "how much the loss changes word by word when the mask is left out, nats per word",
            "by less than 0.00001 with one layer and with two",
            **findings.conditional(
                max(abs(x) for values in written.values() for x in values) < 1e-5,
                max(map(abs, written["one layer, word by word"])) < 1e-5,
                "there is one layer (or keys and values are kept, not computed anew): in a second layer the words of "
                "the prefix have looked at each other",
            ),
            seeds=list(seeds),
        ),
        Finding(
            "C103",
            "Predicting the next word shows the difference that the mask makes",
            "course notes",
            {f"one sentence, {mode}": [loss[mode] for loss in single] for mode in ATTENTION}
            | {"grammar, with less without": apart},
            "loss in training, nats per word",
            "more than 0.1 apart on one fixed sentence and on sentences of the grammar",
            **findings.conditional(
                min(loss[WITH] - loss[WITHOUT] for loss in single) > 0.1 and min(apart) > 0.1,
                min(apart) > 0.1,
                "the next word is uncertain: one fixed sentence can be learnt by heart with the mask, too",
            ),
            seeds=list(seeds),
        ),
    ]


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    num_sentences = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    train_sentences, held_out = training.corpus()[0], training.corpus()[1][:num_sentences]
    least = floor(held_out)
    all_runs, tested, in_training, single = [], [], [], []
    for seed in cli.seeds(options):
        runs = {(mode, n): train(mode, n, train_sentences, steps, seed) for mode in ATTENTION for n in LAYERS}
        all_runs.append(runs)
        tested.append({key: losses(trained, held_out) for key, trained in runs.items()})
        seen = train_sentences[:num_sentences]
        in_training.append({f"{mode}, {n}": full_loss(trained.model, seen) for (mode, n), trained in runs.items()})
        single.append(one_sentence(seed, min(steps, SENTENCE_STEPS)))
    show(tested[0], least)
    plots = options.output_dir / paths.PLOTS / "phase4"
    figure, caption = draw_next_token(all_runs[0], tested[0], least)
    save_figure(figure, plots / f"next_token.{options.format}", caption=caption)
    note = f"{all_runs[0][WITH, 2].label} each, without a checkpoint · {num_sentences} held-out sentences"
    figure, caption = draw_breaking(tested[0], least, note)
    save_figure(figure, plots / f"break_causality.{options.format}", caption=caption)
    found = make_findings(tested, in_training, single, least, cli.seeds(options))
    findings.record("phase4_causal/masking/breaking_causality.py", found, options.output_dir)


if __name__ == "__main__":
    cli.run(main)
