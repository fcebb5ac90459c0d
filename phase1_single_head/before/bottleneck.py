"""Experiment: the problem that attention was invented for.

A recurrent reader takes in a string of random letters, a recurrent writer writes it backwards (seq2seq.py). Without
attention all that the writer knows of the string is one vector of 64 numbers, whatever the length: the bottleneck. With
attention it also looks back at every state of the reader. Three models are trained alike on strings of 4 to 24 letters,
and tested on longer ones too.

    python phase1_single_head/before/bottleneck.py
    python phase1_single_head/before/bottleneck.py --seeds 3

Writes bottleneck.png and alignment.png to visualizations/plots/phase1/.
"""

import argparse
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import trange

from phase1_single_head.before.seq2seq import LETTERS, MODELS, SIZE, START, Seq2Seq
from phase1_single_head.parts.queries_and_keys import share_on_diagonal
from phase1_single_head.self_attention import scaled_dot_product_attention
from shared import cli, paths, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.visualization_utils import INK, QUIET, head_color, model_note, plot_attention, save_figure, weight_colorbar

SHORTEST, LONGEST = 4, 24  # in training
TEST_LENGTHS = (4, 8, 12, 16, 20, 24, 32, 40)
ALONE_LENGTHS = (4, 12, 24)  # writing alone is slow: every letter runs the model once more
BATCH, STEPS, LEARNING_RATE, NUM_TEST = 64, 400, 8e-3, 100


@dataclass
class Alignment:
    """Where the largest weight lies while letters are written (shares), and the smallest weight of all."""

    on_the_letter: float
    one_after_it: float
    same_place: float
    smallest: float


VERTICAL = {"none": "center", "Luong": "bottom", "Bahdanau": "top"}  # labels of lines that end close together
COLORS = {"none": QUIET, "Luong": head_color(0), "Bahdanau": head_color(1)}


def draw_strings(number: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Random strings, what the decoder reads, what it is to write; each (number, length)."""
    source = torch.randint(len(LETTERS), (number, length), generator=generator)
    target = source.flip(dims=[1])
    start = torch.full((number, 1), START)
    return source, torch.cat([start, target[:, :-1]], dim=1), target


def train(name: str, seed: int, steps: int) -> Seq2Seq:
    """Train one model on strings of random length, the same strings for every model."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in trange(steps, desc=f"reversing strings, attention: {name}", leave=False):
        length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=generator))
        source, previous, target = draw_strings(BATCH, length, generator)
        logits, _ = model(source, previous)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy_by_place(model: Seq2Seq, length: int = LONGEST) -> Tensor:
    """Share of letters right by their place in the string that was read -> (length,)."""
    source, previous, target = draw_strings(NUM_TEST, length, torch.Generator().manual_seed(10**6 + length))
    logits, _ = model(source, previous)
    return (logits.argmax(dim=-1) == target).float().mean(dim=0).flip(dims=[0])  # as written -> as read


def accuracy(model: Seq2Seq, length: int) -> float:
    """Share of letters right, each after the right letters before it, as in training."""
    return accuracy_by_place(model, length).mean().item()


@torch.no_grad()
def accuracy_alone(model: Seq2Seq, length: int) -> float:
    """Share of letters right when the model reads its own letters, so that one mistake can lead to the next."""
    source, previous, target = draw_strings(NUM_TEST, length, torch.Generator().manual_seed(10**6 + length))
    written = previous[:, :1]
    for _ in range(length):
        logits, _ = model(source, written)
        written = torch.cat([written, logits[:, -1:].argmax(dim=-1)], dim=1)
    return (written[:, 1:] == target).float().mean().item()


@torch.no_grad()
def alignment(model: Seq2Seq, length: int = LONGEST) -> Alignment:
    """Where the largest weight lies while each letter is written."""
    source, previous, _ = draw_strings(NUM_TEST, length, torch.Generator().manual_seed(10**6))
    _, weights = model(source, previous)
    copied = torch.arange(length).flip(dims=[0])  # step 0 copies the last letter
    offset = weights[:, 0].argmax(dim=-1) - copied  # (B, T)
    same = share_on_diagonal(weights)
    return Alignment(*((offset == o).float().mean().item() for o in (0, 1)), same, weights.min().item())


def bare_diagonal(length: int = LONGEST) -> float:
    """Share of rows with the largest weight on themselves, in self-attention among random vectors, Q = K = V = X."""
    x = torch.randn(NUM_TEST, length, SIZE, generator=torch.Generator().manual_seed(0))
    return share_on_diagonal(scaled_dot_product_attention(x, x, x)[1])


def draw_accuracy(
    forced: dict[str, list[list[float]]], alone: dict[str, list[float]], steps: int
) -> tuple[Figure, str]:
    """Letters right against length, a line for each model; beyond the longest training string on grey ground."""
    fig, ax = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    ax.axvspan(LONGEST, TEST_LENGTHS[-1] + 1, color="#f1f2f4", zorder=0)
    ax.text(LONGEST + 0.5, 0.02, "longer than in training", fontsize=8.5, color=QUIET)
    for name, runs in forced.items():
        mean = [sum(values) / len(runs) for values in zip(*runs, strict=True)]
        ax.plot(TEST_LENGTHS, mean, color=COLORS[name], marker="o", markersize=4)
        ax.plot(ALONE_LENGTHS, alone[name], "--", color=COLORS[name], marker="o", markersize=4)
        label = "no attention" if name == "none" else name
        ax.text(TEST_LENGTHS[-1] + 1.5, mean[-1], label, color=COLORS[name], va=VERTICAL[name], fontsize=9.5)
    ax.axhline(1 / len(LETTERS), color=INK, linewidth=0.8, linestyle=":")
    ax.text(SHORTEST, 1 / len(LETTERS) + 0.01, "by chance", fontsize=8.5, va="bottom")
    ax.set(xlim=(3, 47), ylim=(0, 1.03), yticks=(0, 0.5, 1), xticks=TEST_LENGTHS)
    ax.set(xlabel="letters to reverse", ylabel="letters right")
    at_longest = {name: min(run[TEST_LENGTHS.index(LONGEST)] for run in runs) for name, runs in forced.items()}
    title = (
        f"Of {LONGEST} letters {at_longest['none']:.0%} pass the bottleneck, "
        f"{min(at_longest['Luong'], at_longest['Bahdanau']):.0%} with attention"
    )
    ax.set_title(title, pad=12)
    model_note(fig, f"trained {steps} steps · full line: after the right letters, dashed: after its own")
    return fig, title + ": share of letters right when a recurrent model writes a string backwards."


@torch.no_grad()
def draw_alignment(models: dict[str, Seq2Seq], aligned: dict[str, Alignment], steps: int) -> tuple[Figure, str]:
    """The weights of both attentions while the same string is written backwards."""
    source, previous, target = draw_strings(1, 12, torch.Generator().manual_seed(12))
    read, wrote = ([LETTERS[i] for i in row[0].tolist()] for row in (source, target))
    fig, axes = plt.subplots(1, 2, figsize=(10, 5.4), layout="compressed")
    entropy = []
    for ax, name in zip(axes, ("Luong", "Bahdanau"), strict=True):
        _, weights = models[name](source, previous)
        entropy.append(normalized_entropy(weights).mean().item())
        plot_attention(weights[0, 0], wrote, read, ax=ax, annotate=False)
        ax.set(xlabel="letter read (key)", ylabel="letter written (query)" if name == "Luong" else "")
        where = aligned[name]
        ax.set_title(f"{name}: {where.on_the_letter:.0%} on the letter, {where.one_after_it:.0%} one after it", pad=10)
    weight_colorbar(fig, list(axes), shrink=0.6)
    title = "Nobody told them where to look: the weights run backwards through the string"
    if min(where.on_the_letter + where.one_after_it for where in aligned.values()) < 0.8:
        title = f"{steps} steps are too few: the weights do not follow the letters yet"
    fig.suptitle(title, fontsize=13)
    model_note(fig, f"trained {steps} steps · normalised entropy {entropy[0]:.2f} and {entropy[1]:.2f}")
    return fig, title + ". Letters written down, letters read across; attention of Luong and of Bahdanau."


def record_findings(
    forced: dict[str, list[list[float]]],
    aligned: dict[str, list[Alignment]],
    places: list[Tensor],
    options: argparse.Namespace,
) -> None:
    def at(name: str, length: int) -> list[float]:
        return [run[TEST_LENGTHS.index(length)] for run in forced[name]]

    seeds = list(cli.seeds(options))
    lines, own = ([getattr(run, place) for run in aligned["Luong"]] for place in ("on_the_letter", "same_place"))
    bare = bare_diagonal()
    quarter = LONGEST // 4
    first, last = ([place[part].mean().item() for place in places] for part in (slice(quarter), slice(-quarter, None)))
    findings.record(
        "phase1_single_head/before/bottleneck.py",
        [
            Finding(
                "I134",
                "A vector of fixed size is a bottleneck for long strings; attention opens it",
                "Bahdanau et al. 2014; Cho et al. 2014",
                {f"{name}, {n} letters": at(name, n) for name in MODELS for n in (SHORTEST, LONGEST, TEST_LENGTHS[-1])},
                "share of letters right, strings not trained on",
                f"at {LONGEST} letters at least 0.93 with attention, at most 0.55 without; at {SHORTEST} all above 0.9",
                findings.verdict(
                    min(at("Luong", LONGEST) + at("Bahdanau", LONGEST)) >= 0.93
                    and max(at("none", LONGEST)) <= 0.55
                    and min(at("none", SHORTEST)) >= 0.9
                ),
                control="the same strings, sizes and steps without attention",
                seeds=seeds,
            ),
            Finding(
                "C174",
                "Without attention the letters read first are forgotten",
                "course notes",
                {"first quarter": first, "last quarter": last},
                f"share of letters right without attention, by place in a string of {LONGEST} letters",
                "the first quarter at least 0.2 below the last, with every seed",
                findings.verdict(all(a <= b - 0.2 for a, b in zip(first, last, strict=True))),
                seeds=seeds,
            ),
            Finding(
                "C172",
                "The decoder attends to all states of the encoder",
                "Bahdanau et al. 2014",
                {f"{name}, smallest weight": [run.smallest for run in aligned[name]] for name in aligned},
                f"smallest of all weights on strings of {LONGEST} letters",
                "above 0: every state contributes to every letter",
                findings.verdict(min(run.smallest for runs in aligned.values() for run in runs) > 0),
                seeds=seeds,
            ),
            Finding(
                "C146",
                "A line of large weights across the picture means that words attend to themselves",
                "course notes",
                {"on the line, Luong": lines, "same place, Luong": own, "same place, self-attention, Q = K": bare},
                f"share of {LONGEST} rows by where the largest weight lies",
                "where more than 0.6 lie on a line, more than 0.6 lie on the same place as well",
                **findings.conditional(
                    min(lines + own) > 0.6,
                    bare > 0.6,
                    "it is the diagonal of self-attention; across two sequences a line is their common order",
                ),
                seeds=seeds,
            ),
            Finding(
                "bottleneck-alignment",
                "The weights of Luong and of Bahdanau follow the letter that is being copied",
                "Luong et al. 2015; Bahdanau et al. 2014",
                {
                    f"{name}, {where.replace('_', ' ')}": [getattr(run, where) for run in aligned[name]]
                    for name in aligned
                    for where in ("on_the_letter", "one_after_it")
                },
                "share of letters with the largest weight there",
                "at least 0.8 on the letter itself, with both",
                **findings.conditional(
                    min(run.on_the_letter for runs in aligned.values() for run in runs) >= 0.8,
                    min(run.on_the_letter + run.one_after_it for runs in aligned.values() for run in runs) >= 0.8,
                    "one place is allowed: Bahdanau's query is the state before it has read the letter written last",
                ),
                seeds=seeds,
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    models = {name: [train(name, seed, steps) for seed in cli.seeds(options)] for name in MODELS}
    forced = {name: [[accuracy(model, n) for n in TEST_LENGTHS] for model in runs] for name, runs in models.items()}
    alone = {name: [accuracy_alone(runs[0], n) for n in ALONE_LENGTHS] for name, runs in models.items()}
    aligned = {name: [alignment(model) for model in models[name]] for name in ("Luong", "Bahdanau")}
    places = [accuracy_by_place(model) for model in models["none"]]

    print(f"\nLetters right, {NUM_TEST} strings not trained on (by chance {1 / len(LETTERS):.2f}), seed {options.seed}")
    print(f"   {'letters to reverse':22}" + "".join(f"{n:>6}" for n in TEST_LENGTHS))
    for name in MODELS:
        print(f"   {name:22}" + "".join(f"{value:>6.2f}" for value in forced[name][0]))
        by_length = dict(zip(ALONE_LENGTHS, alone[name], strict=True))
        cells = (f"{by_length[n]:>6.2f}" if n in by_length else " " * 6 for n in TEST_LENGTHS)
        print(f"   {'  after its own letters':22}"[:25] + "".join(cells))
    plots = options.output_dir / paths.PLOTS / "phase1"
    figure, caption = draw_accuracy(forced, alone, steps)
    save_figure(figure, plots / f"bottleneck.{options.format}", caption=caption)
    first = {name: runs[0] for name, runs in aligned.items()}
    figure, caption = draw_alignment({name: runs[0] for name, runs in models.items()}, first, steps)
    save_figure(figure, plots / f"alignment.{options.format}", caption=caption)
    record_findings(forced, aligned, places, options)


if __name__ == "__main__":
    cli.run(main)
