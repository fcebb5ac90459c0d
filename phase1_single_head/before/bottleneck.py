"""Why was attention invented?

A recurrent reader takes in a string of random letters, a recurrent writer writes it backwards. y is the letter written
last, s the writer's state, memory the reader's states, c what attention brings:

    none        s = GRU(y, s)                                    all it knows of the string is where s starts
    Luong       s = GRU(y, s), then c = attention(s, memory)     predicts from tanh(W [c; s])   (Luong et al. 2015)
    Bahdanau    c = attention(s, memory), then s = GRU([c; y], s)        predicts from [c; s]   (Bahdanau et al. 2014)

Without attention all that the writer knows of the string is one vector of 64 numbers, whatever the length: the
bottleneck. With attention it also looks back at every state of the reader: Luong's after it has read y, Bahdanau's
before. All three are trained alike on strings of 4 to 24 letters, and tested on longer ones too. Without attention
letters get lost: those read first, or those written last? Backwards these are the same letters. So a fourth model
reads from first to last only, and writes in that order.

    python phase1_single_head/before/bottleneck.py
    python phase1_single_head/before/bottleneck.py --seeds 3

Writes bottleneck.png, written_first.png and alignment.png to visualizations/plots/phase1/.
"""

import string
from collections.abc import Sequence
from functools import partial
from statistics import mean

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase1_single_head.before.seq2seq import SIZE, BahdanauSeq2Seq, LuongSeq2Seq, Seq2Seq
from shared import cli, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Measured, Numbers, measures
from shared.visualization_utils import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    QUIET,
    RED,
    headline,
    label_ends,
    plot_attention,
    save_plot,
)

LETTERS = string.ascii_lowercase[:12]
START = len(LETTERS)  # what the writer reads before it has written anything
SHORTEST, LONGEST = 4, 24  # in training
TEST_LENGTHS = (4, 8, 12, 16, 20, 24, 32, 40)
ALONE_LENGTHS = (4, 12, 24)  # writing alone is slow: every letter runs the model once more
BATCH, STEPS, LEARNING_RATE, NUM_TEST = 64, 250, 2e-2, 100
COLORS = {"none": GREY, "Luong": BLUE, "Bahdanau": ORANGE}


IN_ORDER = "none, in the order read"
MODELS = {
    "none": partial(Seq2Seq, len(LETTERS)),
    "Luong": partial(LuongSeq2Seq, len(LETTERS)),
    "Bahdanau": partial(BahdanauSeq2Seq, len(LETTERS)),
    IN_ORDER: partial(Seq2Seq, len(LETTERS), directions=1),
}


def draw_strings(
    number: int, length: int, generator: torch.Generator, in_order: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Random strings, what the decoder reads, what it is to write: backwards or in_order; each (number, length)."""
    source = torch.randint(len(LETTERS), (number, length), generator=generator)
    target = source if in_order else source.flip(dims=[1])
    start = torch.full((number, 1), START)
    return source, torch.cat([start, target[:, :-1]], dim=1), target


def train(name: str, seed: int, steps: int) -> Seq2Seq:
    """Train one model on strings of random length, the same strings for every model."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[name]()

    def loss_of_step(_: int) -> Tensor:
        length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=generator))
        source, previous, target = draw_strings(BATCH, length, generator, in_order=name == IN_ORDER)
        return F.cross_entropy(model(source, previous)[0].flatten(0, 1), target.flatten())

    progress = f"writing strings, attention: {name}"
    training.fit(model, loss_of_step, steps, matrix_rate=None, rate=LEARNING_RATE, progress=progress)
    return model


@torch.no_grad()
def accuracy_by_place(model: Seq2Seq, length: int = LONGEST, in_order: bool = False) -> Tensor:
    """Share of letters right by their place in the string that was read, each after the right letters -> (length,)."""
    generator = torch.Generator().manual_seed(10**6 + length)
    source, previous, target = draw_strings(NUM_TEST, length, generator, in_order)
    right = (model(source, previous)[0].argmax(dim=-1) == target).float().mean(dim=0)
    return right if in_order else right.flip(dims=[0])  # as written -> as read


@torch.no_grad()
def accuracy_alone(model: Seq2Seq, length: int) -> float:
    """Share of letters right when the model reads its own letters, so that one mistake can lead to the next."""
    source, previous, target = draw_strings(NUM_TEST, length, torch.Generator().manual_seed(10**6 + length))
    written = previous[:, :1]
    for _ in range(length):
        logits, _ = model(source, written)
        written = torch.cat([written, logits[:, -1:].argmax(dim=-1)], dim=1)
    return (written[:, 1:] == target).float().mean().item()


ON, AFTER, SAME, OWN = "on the letter", "one after it", "on the same place", ", after its own"


@torch.no_grad()
def alignment(model: Seq2Seq) -> dict[str, float]:
    """Where the largest weight lies while letters are written, as shares of letters."""
    source, previous, _ = draw_strings(NUM_TEST, LONGEST, torch.Generator().manual_seed(10**6))
    largest = model(source, previous)[1][:, 0].argmax(dim=-1)  # (B, 1, T, T) -> (B, T)
    step = torch.arange(LONGEST)
    letter = LONGEST - 1 - step  # step 0 copies the last letter
    places = {ON: letter, AFTER: letter + 1, SAME: step}
    return {name: (largest == place).float().mean().item() for name, place in places.items()}


def letters_right(attention: float, none: float) -> dict[str, float]:
    """Made numbers: shares at the longest length of training; all are right at the shortest."""
    shares = {"none": none, "Luong": attention, "Bahdanau": attention}
    return {f"{name}, {LONGEST} letters": share for name, share in shares.items()} | {f"none, {SHORTEST} letters": 1.0}


def opens(numbers: Numbers) -> bool:
    """With attention long strings come through; without it they do not, and short ones do."""
    long = f"{LONGEST} letters"
    with_it, without = min(numbers[f"Luong, {long}"], numbers[f"Bahdanau, {long}"]), numbers[f"none, {long}"]
    return with_it >= 0.8 and without <= min(with_it, numbers[f"none, {SHORTEST} letters"]) - 0.3


@measures(
    Claim(
        id="I134",
        text="A vector of fixed size is a bottleneck for long strings; attention opens it",
        kind=EXPERIMENT,
        source="Bahdanau et al. 2014, section 1; Cho et al. 2014",
        rule=f"at {LONGEST} letters at least 0.8 with either attention; without it at least 0.3 less, and at least 0.3 "
        f"less than at {SHORTEST} letters",
        holds=opens,
        oracle=letters_right(attention=1.0, none=0.4),
        null=letters_right(attention=0.4, none=0.4),
        unit="share of letters right, each after the right letters, strings not trained on",
        control=f"the same reader, strings and {STEPS} steps without attention, which adds 8,256 or 21,376 weights",
        headline=True,
        shows=tuple(f"*, {length} letters*" for length in (SHORTEST, LONGEST, TEST_LENGTHS[-1])),
    ),
    Claim(
        id="C174",
        text="Without attention the letters read first are often forgotten by the time the writing starts",
        kind=EXPERIMENT,
        source="course notes, 24.1",
        rule="written in the order read: the first quarter at least 0.1 below the last",
        holds=lambda n: n["first quarter, in order"] <= n["last quarter, in order"] - 0.1,
        oracle={"first quarter, in order": 0.3, "last quarter, in order": 0.7},
        null={"first quarter, in order": 0.5, "last quarter, in order": 0.5},
        unit=f"share of letters right by place in a string of {LONGEST} letters, read in one direction",
        control="backwards, where what was read first is written last",
        shows=("* quarter, *",),
    ),
)
def letters_that_pass(models: dict[str, Seq2Seq]) -> dict[str, float]:
    """Share of letters right by model and length, and without attention by place; models: of one seed."""
    found = {}
    for name in COLORS:
        for length in TEST_LENGTHS:
            found[f"{name}, {length} letters"] = accuracy_by_place(models[name], length).mean().item()
        for length in ALONE_LENGTHS:
            found[f"{name}, {length} letters{OWN}"] = accuracy_alone(models[name], length)
    for order, name in (("backwards", "none"), ("in order", IN_ORDER)):
        first, *_, last = accuracy_by_place(models[name], in_order=name == IN_ORDER).chunk(4)
        found |= {f"first quarter, {order}": first.mean().item(), f"last quarter, {order}": last.mean().item()}
    return found


def follows(numbers: Numbers) -> bool:
    return min(numbers[f"Luong, {ON}"], numbers[f"Bahdanau, {AFTER}"]) >= 0.7


@measures(
    Claim(
        id="bottleneck-alignment",
        text="Luong's weights follow the letter that is copied, Bahdanau's the letter beside it that was copied last",
        kind=EXPERIMENT,
        source="Luong et al. 2015, section 3.1, and Bahdanau et al. 2014, section 3.1: the state after and before",
        rule="at least 0.7 of the letters, Luong's on the letter itself, Bahdanau's one after it",
        holds=follows,
        oracle={f"Luong, {ON}": 1.0, f"Bahdanau, {AFTER}": 1.0},
        null={f"Luong, {ON}": 1 / LONGEST, f"Bahdanau, {AFTER}": 1 / LONGEST},
        unit=f"share of letters with the largest weight there, {LONGEST} letters backwards; by chance 1 in {LONGEST}",
        control="the same place in both strings, the diagonal of the picture",
    ),
)
def where_they_look(models: dict[str, Seq2Seq]) -> dict[str, float]:
    """The alignment of both attentions; models: of one seed."""
    runs = {name: alignment(models[name]) for name in ("Luong", "Bahdanau")}
    return {f"{name}, {place}": share for name, run in runs.items() for place, share in run.items()}


def over_seeds(runs: Sequence[Measured]) -> dict[str, float]:
    return {name: mean(run[name] for run in runs) for name in runs[0]}


def draw_letters(found: dict[str, float], steps: int) -> tuple[Figure, str]:
    """Letters that come through against letters to reverse: told the right ones so far, and writing alone."""
    fig, ax = plt.subplots(figsize=(8, 5), layout="constrained")
    ends = {"by chance": (LONGEST, LONGEST / len(LETTERS), QUIET)}
    for end in (LONGEST, LONGEST / len(LETTERS)):
        ax.plot((0, LONGEST), (0, end), ":", color=QUIET, linewidth=1)
    ax.text(17.5, 18, "all letters ", color=QUIET, ha="right")
    told = [length for length in TEST_LENGTHS if length <= LONGEST]
    for lengths, ending, style, how in ((told, "", "-", ""), (ALONE_LENGTHS, OWN, "--", ", alone")):
        for name, color in COLORS.items():
            letters = [length * found[f"{name}, {length} letters{ending}"] for length in lengths]
            ax.plot(lengths, letters, style, color=color, marker="o", markersize=5, linewidth=2, clip_on=False)
            ends[("no attention" if name == "none" else name) + how] = (LONGEST, letters[-1], color)
    ax.set(xlim=(0, LONGEST), ylim=(0, LONGEST), xticks=told, yticks=told)
    ax.set(xlabel="letters to reverse", ylabel="letters right")
    label_ends(ax, ends, size=10)
    full = f"One vector carries about {LONGEST * found[f'none, {LONGEST} letters']:.0f} letters of {LONGEST} at most"
    title = f"{full};\nwith attention most come through"
    if not opens(found) or min(found[f"{name}, {LONGEST} letters{OWN}"] for name in ("Luong", "Bahdanau")) < 0.5:
        title = f"{steps} steps are too few: attention does not open the bottleneck yet"
    headline(fig, title, f"trained {steps} steps · solid: told the right letters so far · alone: after its own letters")
    return fig, title.replace("\n", " ") + ". Letters right against letters to write backwards."


def draw_places(seeds: Sequence[dict[str, Seq2Seq]], found: dict[str, float], steps: int) -> tuple[Figure, str]:
    """Letters right by place in the string, without attention, written from either end."""
    fig, ax = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
    places, ends = range(1, LONGEST + 1), {}
    for name, label, color, first in (
        ("none", "written backwards", PURPLE, -1),
        (IN_ORDER, "written in\nthe order read", GREEN, 0),
    ):
        runs = [accuracy_by_place(models[name], in_order=name == IN_ORDER) for models in seeds]
        right = torch.stack(runs).mean(dim=0).tolist()  # (seeds, LONGEST) -> (LONGEST,)
        ax.plot(places, right, color=color, marker="o", markersize=5, linewidth=2, clip_on=False)
        ends[label] = (LONGEST, right[-1], color)
        last, near = (0, right[:5]) if first else (-1, right[-5:])
        side, other, away = ("right", "left", -9) if first else ("left", "right", 9)
        style = {"textcoords": "offset points", "va": "center", "color": color}
        ax.annotate("written first", (places[first], right[first]), (away, 3), ha=side, **style)
        ax.annotate("written last", (places[last], min(near)), (0, -14), ha=other, **style)
    ax.set(xlim=(0.5, LONGEST), ylim=(0, 1.03), yticks=(0, 0.5, 1), xticks=(1, 6, 12, 18, 24))
    ax.set(xlabel="place in the string that was read", ylabel="letters right")
    label_ends(ax, ends, size=10)
    title = "What is written first comes through, whichever end it stands at"
    kept = min(found["last quarter, backwards"], found["first quarter, in order"])
    if kept < 0.1 + max(found["first quarter, backwards"], found["last quarter, in order"]):
        title = f"{steps} steps are too few: no end of the string comes through better yet"
    headline(fig, title, f"no attention, trained {steps} steps, {LONGEST} letters, each written after the right ones")
    return fig, f"{title}. Letters right by place in the string, written backwards and in the order read."


@torch.no_grad()
def draw_alignment(models: dict[str, Seq2Seq], looks: Measured, steps: int) -> tuple[Figure, str]:
    """The weights of both attentions while the same string is written backwards; outlined, the letter to be written."""
    source, previous, target = draw_strings(1, 10, torch.Generator().manual_seed(12))
    read, wrote = ([LETTERS[i] for i in row[0].tolist()] for row in (source, target))
    fig, axes = plt.subplots(1, 2, figsize=(9, 5.2), layout="compressed")
    entropy = []
    for ax, name, asks in zip(axes, ("Luong", "Bahdanau"), ("after", "before"), strict=True):
        _, weights = models[name](source, previous)
        entropy.append(normalized_entropy(weights).mean().item())
        plot_attention(weights[0, 0], wrote, read, ax=ax, annotate=False)
        for row in range(len(read)):
            ax.add_patch(Rectangle((len(read) - 1 - row, row), 1, 1, fill=False, edgecolor=RED, linewidth=2))
        ax.set(xlabel="letter read (key)", ylabel="letter written (query)" if name == "Luong" else "")
        ax.set_title(f"{name} asks {asks} the writer's step", pad=10)
    title = "Writing backwards, Luong looks at the letter to be written,\nBahdanau at the one just written"
    if not follows(looks):
        title = f"{steps} steps are too few: the weights do not follow the letters yet"
    note = f"trained {steps} steps · outlined: the letter to be written · darker: more weight"
    headline(fig, title, f"{note}, normalised entropy {entropy[0]:.2f} and {entropy[1]:.2f}")
    return fig, title.replace("\n", " ") + ". Letters written down, letters read across; the weights run backwards."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    seeds = [{name: train(name, seed, steps) for name in MODELS} for seed in cli.seeds(options)]
    right, aligned = ([measure(models) for models in seeds] for measure in (letters_that_pass, where_they_look))
    print(f"\nLetters right, {NUM_TEST} strings not trained on (by chance {1 / len(LETTERS):.2f}), seed {options.seed}")
    print(f"   {'letters to reverse':25}" + "".join(f"{length:>6}" for length in TEST_LENGTHS))
    for name in COLORS:
        weights = f"{name}, {sum(p.numel() for p in seeds[0][name].parameters()):,} weights"
        for label, ending in ((weights, ""), ("  after its own letters", OWN)):
            shares = [right[0].get(f"{name}, {length} letters{ending}") for length in TEST_LENGTHS]
            print(f"   {label:25}" + "".join(" " * 6 if share is None else f"{share:>6.2f}" for share in shares))
    for order in ("backwards", "in order"):
        first, last = (right[0][f"{quarter} quarter, {order}"] for quarter in ("first", "last"))
        print(f"   none, {LONGEST} letters {order}: of those read first {first:.2f} right, read last {last:.2f}")
    for name in ("Luong", "Bahdanau"):
        looks = ", ".join(f"{aligned[0][f'{name}, {place}']:.2f} {place}" for place in (ON, AFTER, SAME))
        print(f"   where {name}'s largest weight lies: {looks}")
    found = over_seeds(right)
    save_plot(options, "phase1/bottleneck", *draw_letters(found, steps))
    save_plot(options, "phase1/written_first", *draw_places(seeds, found, steps))
    save_plot(options, "phase1/alignment", *draw_alignment(seeds[0], aligned[0], steps))
    findings.record(options, *right, *aligned, show_numbers=False)
    without, with_it = (right[0][f"{name}, {LONGEST} letters"] for name in ("none", "Luong"))
    return f"Of {LONGEST} letters {without:.0%} pass one vector of {SIZE} numbers, {with_it:.0%} pass with attention"


if __name__ == "__main__":
    cli.run(main)
