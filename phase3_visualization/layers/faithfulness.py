"""Experiment: which method finds the words that matter?

A word of a sentence is hidden, the trained model of phase 2 guesses it, and leave_one_out.py says which other words
carry the information. Each method gives every other word a number, read in the row of the hidden word:

    raw weights        last layer, heads averaged                   raw product   of the layers, see rollout.py
    norm-weighted      last layer, || sum_h a_ij^h v_j^h W_O^h ||   rollout, flow see rollout.py (Abnar & Zuidema 2020)
    gradient           length of dL / d embedding of word j         gradient x input   |gradient . embedding|
    nearest word       minus its distance: reads neither weights nor words

and is asked two things. Is your largest number on a word that matters? And do your numbers rank the words as the
experiment does that hides word j as well (leave-one-out)?

    python phase3_visualization/layers/faithfulness.py

Writes rollout.png to visualizations/plots/phase3/.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import fmean as mean

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase2_multi_head.pruning.head_importance import rank_correlation, ranks
from phase3_visualization.layers.leave_one_out import Case, gradients, hide, last_layer_norms, leave_one_out, make_cases
from phase3_visualization.layers.rollout import maximum_flow, raw_product
from shared import cli, paths, training
from shared.attention_utils import attention_rollout
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.grammar.entropy import KIND
from shared.toy_language import MASK, TOY_SENTENCE
from shared.toy_model import ToyTransformer
from shared.training import Trained
from shared.visualization_utils import INK, QUIET, head_color, model_note, plot_attention, save_figure

TRIED_ON = 120  # held-out sentences that this comparison was developed on; the numbers come from the others
SENTENCES, QUICK_SENTENCES = 200, 8
SHUFFLES = 200
MARGIN = 0.05  # a method is better than another one only by more than this
RAW, PRODUCT, ROLLOUT, FLOW, NORMS = "raw weights", "raw product", "rollout", "flow", "norm-weighted"
GRADIENT, INPUT, NEAREST, TRUTH = "gradient", "gradient x input", "nearest word", "leave-one-out"


@torch.no_grad()
def combined(model: ToyTransformer, tokens: Tensor) -> dict[str, Tensor]:
    """The weights of all layers as one matrix (T, T), in four ways. tokens: (1, T)."""
    layers = [weights[0].double().cpu() for weights in model(tokens)[1]]
    return {
        RAW: layers[-1].mean(dim=0),
        PRODUCT: raw_product(layers),
        ROLLOUT: attention_rollout(layers),
        FLOW: maximum_flow(layers),
    }


@torch.no_grad()
def scores(model: ToyTransformer, case: Case) -> dict[str, Tensor]:
    """Method -> a number for each word (T,); that of the hidden word itself is not looked at."""
    tokens = torch.tensor([hide(case.words, case.hidden)], device=model.positions.device)
    layers = [weights[0].double().cpu() for weights in model(tokens)[1]]
    gradient, times_input = gradients(model, case)
    return {
        RAW: layers[-1].mean(dim=0)[case.hidden],
        NORMS: last_layer_norms(model, tokens, case.hidden).double().cpu(),
        PRODUCT: raw_product(layers)[case.hidden],
        ROLLOUT: attention_rollout(layers)[case.hidden],
        FLOW: maximum_flow(layers, [case.hidden])[0],
        GRADIENT: gradient,
        INPUT: times_input,
        NEAREST: -(torch.arange(len(case.words)) - case.hidden).abs().double(),
        TRUTH: leave_one_out(model, case),
    }


@dataclass(frozen=True)
class Scoreboard:
    """Method -> share of cases with a relevant word first, and mean rank correlation with leave-one-out.

    determiners: the share among hidden determiners alone. chance: the share that guessing gives. band: what the mean
    correlation of 95 of 100 random rankings stays below.
    """

    found: dict[str, float]
    determiners: dict[str, float]
    agreement: dict[str, float]
    chance: float
    band: float


def finds(values: Tensor, case: Case) -> float:
    """1 if the largest number among the other words is on a relevant one; with a tie, the share of those that are."""
    others = values[case.others]
    first = [j for j, value in zip(case.others, others.tolist(), strict=True) if value == others.max().item()]
    return sum(j in case.relevant for j in first) / len(first)


def chance_band(cases: Sequence[Case], generator: torch.Generator) -> float:
    """95th percentile of the mean rank correlation of random rankings with a fixed one."""
    means = torch.zeros(SHUFFLES, dtype=torch.float64)
    for case in cases:
        place = ranks(torch.arange(len(case.others)))
        place = F.normalize(place - place.mean(), dim=0)  # so that a product of two is their correlation
        order = torch.rand(SHUFFLES, len(place), generator=generator).argsort(dim=-1)
        means += place[order] @ place / len(cases)  # (SHUFFLES, n - 1) -> (SHUFFLES,)
    return means.quantile(0.95).item()


def score_methods(model: ToyTransformer, cases: Sequence[Case], generator: torch.Generator) -> Scoreboard:
    """Ask every method about every case."""
    right: dict[str, list[float]] = {}
    agreement: dict[str, list[float]] = {}
    for case in tqdm(cases, desc="sentences", leave=False, disable=None):
        answers = scores(model, case)
        for name, values in answers.items():
            right.setdefault(name, []).append(finds(values, case))
            rho = rank_correlation(values[case.others], answers[TRUTH][case.others])
            agreement.setdefault(name, []).append(0.0 if math.isnan(rho) else rho)  # all alike: no order, no agreement
    determiner = [KIND[case.words[case.hidden]] == "d" for case in cases]
    return Scoreboard(
        {name: mean(values) for name, values in right.items()},
        {name: mean(compress(values, determiner)) for name, values in right.items()},
        {name: mean(values) for name, values in agreement.items()},
        mean(case.chance for case in cases),
        chance_band(cases, generator),
    )


def draw(trained: Trained, board: Scoreboard, count: int) -> tuple[Figure, str]:
    """Left: one sentence, its weights combined in four ways. Right: how often each method is right."""
    words = TOY_SENTENCE.split()
    hidden = 1
    shown = [MASK if j == hidden else word for j, word in enumerate(words)]
    tokens = torch.tensor([hide(words, hidden)], device=trained.model.positions.device)
    fig = plt.figure(figsize=(11.2, 6.0), layout="constrained")
    left, right = fig.subfigures(1, 2, width_ratios=(1.05, 1))
    for ax, (name, matrix) in zip(left.subplots(2, 2).flat, combined(trained.model, tokens).items(), strict=True):
        plot_attention(matrix, shown, ax=ax, labels=False, annotate=False)
        title = f"{name}, last layer" if name == RAW else name
        ax.set_title(title, fontsize=10, color=QUIET, pad=4)
        ax.add_patch(plt.Rectangle((0, hidden), len(words), 1, fill=False, edgecolor="#d55e00", linewidth=1.6))
    draw_scoreboard(right.subplots(), board)
    title = headline(board)
    fig.suptitle(title, fontsize=12.5)
    model_note(fig, f"{trained.label}; {count} held-out sentences, one hidden word each · boxed row: the hidden word")
    return fig, title + ". Left: where the hidden word looks, combined over layers. Right: all methods."


def headline(board: Scoreboard) -> str:
    """The title: how often the raw weights, rollout and the best method find a word that matters."""
    best = max((name for name in board.found if name != TRUTH), key=board.found.__getitem__)
    parts = [f"{name} {board.found[name]:.0%}" for name in dict.fromkeys((RAW, ROLLOUT, best))]
    return f"A word that matters comes first: {', '.join(parts)} of the time; by chance {board.chance:.0%}"


def draw_scoreboard(ax: Axes, board: Scoreboard) -> None:
    names = sorted(board.found, key=lambda name: board.found[name])
    for row, name in enumerate(names):
        weights = name in (RAW, PRODUCT, ROLLOUT, FLOW, NORMS)
        color = head_color(0) if weights else INK if name == TRUTH else "#aab2bb"
        ax.barh(row, board.found[name], 0.68, color=color)
        ax.text(
            board.found[name] + 0.015, row, f"{board.found[name]:.2f}   ρ {board.agreement[name]:+.2f}",
            va="center", fontsize=9,
        )  # fmt: skip
    ax.axvline(board.chance, color="black", linewidth=1.4, linestyle=":")
    ax.text(board.chance, len(names) - 0.45, "chance", ha="center", fontsize=8.5)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(length=0)
    ax.set(xlim=(0, 1.32), xticks=(0, 0.5, 1), ylim=(-0.6, len(names) - 0.1))
    ax.set_xlabel(
        "share of sentences with a word that matters first\n"
        f"ρ: rank correlation with leave-one-out (by chance below {board.band:.2f})\n"
        "blue: made of attention weights",
        color=QUIET,
        fontsize=9,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    fresh = training.corpus()[1][TRIED_ON:]
    cases = make_cases(fresh[: QUICK_SENTENCES if options.quick else SENTENCES])
    trained.model.eval()
    board = score_methods(trained.model, cases, torch.Generator().manual_seed(options.seed))
    print(f"\n{len(cases)} sentences with one hidden word, {trained.label}")
    print("                      a word that matters first      rank correlation")
    print("                      all   determiner hidden        with leave-one-out")
    for name in sorted(board.found, key=board.found.__getitem__, reverse=True):
        print(
            f"   {name:16} {board.found[name]:>7.2f} {board.determiners[name]:>12.2f} {board.agreement[name]:>+23.2f}"
        )
    print(f"   {'chance':16} {board.chance:>7.2f} {'':12}    95 of 100 below {board.band:>+.2f}")
    figure, caption = draw(trained, board, len(cases))
    save_figure(figure, options.output_dir / paths.PLOTS / "phase3" / f"rollout.{options.format}", caption=caption)
    record_findings(board, len(cases), options)


def better(board: Scoreboard, name: str, other: str) -> bool:
    """Better in both measures, by more than MARGIN."""
    return all(measure[name] > measure[other] + MARGIN for measure in (board.found, board.agreement))


def record_findings(board: Scoreboard, count: int, options: argparse.Namespace) -> None:
    def measured(*names: str) -> dict[str, float]:
        first = {f"{name}: found": board.found[name] for name in names} | {"chance: found": board.chance}
        return first | {f"{name}: correlation": board.agreement[name] for name in names}

    unit = f"share of {count} sentences with a word that matters first; mean rank correlation with leave-one-out"
    findings.record(
        "phase3_visualization/layers/faithfulness.py",
        [
            Finding(
                "faithful-weights",
                "Attention weights show which words mattered",
                "course notes",
                measured(RAW, GRADIENT, NEAREST),
                unit,
                "raw weights of the last layer: found in 0.9 or more, correlation 0.5 or more",
                findings.verdict(board.found[RAW] >= 0.9 and board.agreement[RAW] >= 0.5),
                control="the nearest word; the gradient, which reads no weights",
                seeds=[options.seed],
            ),
            *(
                Finding(
                    f"faithful-{name}",
                    claim,
                    "Abnar & Zuidema 2020",
                    measured(name, RAW),
                    unit,
                    f"higher than the raw weights of the last layer by more than {MARGIN} in both measures",
                    findings.verdict(better(board, name, RAW)),
                    control="raw weights of the last layer",
                    seeds=[options.seed],
                )
                for name, claim in (
                    (ROLLOUT, "Attention rollout shows better than raw attention which words mattered"),
                    (FLOW, "Attention flow shows better than raw attention which words mattered"),
                )
            ),
            Finding(
                "leave-one-out",
                "Leave a word out, and you see whether it mattered",
                "course notes",
                {"all": board.found[TRUTH], "determiner hidden": board.determiners[TRUTH]},
                f"share of {count} sentences in which the loss rises most without a word that matters",
                "0.95 or more",
                **findings.conditional(
                    board.found[TRUTH] >= 0.95,
                    board.determiners[TRUTH] >= 0.95,
                    "what it says stands nowhere else in the sentence, like the number of a noun for its determiner",
                ),
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
