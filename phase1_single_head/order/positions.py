"""What can be learned without positions, and with which?

Two tasks that are nothing but order, for one block with one head, with each encoding of position_encodings.py and with
none. All places see each other:

    reverse              place i of 16 is to say the symbol at place 15 - i: it must know where it stands
    copy 3 to the left   place i is to say the symbol at place i - 3: knowing distances is enough

Then strings up to 16 times as long as in training. The symbols are random, so what is to be said follows from places
alone: "content decides what attends to what" is not all of it.

    python phase1_single_head/order/positions.py
    python phase1_single_head/order/positions.py --seeds 3

Writes positions.png to visualizations/plots/phase1/.
"""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from phase1_single_head.order.position_encodings import RotarySelfAttention
from phase1_single_head.self_attention import SelfAttention
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Measured, Numbers, measures
from shared.toy_model import Block, sinusoidal_positions
from shared.visualization_utils import BLUE, GREEN, GREY, INK, ORANGE, headline, label_ends, save_plot

ENCODINGS = ("none", "sinusoidal", "learned", "rotary")
REVERSE, COPY = "reverse", "copy 3 to the left"
FIRST_PLACE = {REVERSE: 0, COPY: 3}  # the first that has an answer
SYMBOLS, LENGTH, D_MODEL, BATCH, STEPS, LEARNING_RATE = 10, 16, 32, 32, 150, 1.5e-2
TEST_LENGTHS, NUM_TEST = (LENGTH, 32, 64, 128, 256), 100
COLORS = dict(zip(ENCODINGS, (GREY, BLUE, ORANGE, GREEN), strict=True))


class SymbolMover(nn.Module):
    """Embedding, one block with one head, linear. Everything but the encoding starts with the same numbers."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        attention_class = RotarySelfAttention if encoding == "rotary" else SelfAttention
        longest = max(TEST_LENGTHS)  # training stops at 16: a learned table is not trained beyond
        tables = {"sinusoidal": sinusoidal_positions(longest, D_MODEL), "learned": torch.randn(longest, D_MODEL)}
        table = tables.get(encoding, torch.zeros(longest, D_MODEL))
        self.embedding = nn.Embedding(SYMBOLS, D_MODEL)
        self.positions = nn.Parameter(table, requires_grad=encoding == "learned")
        self.block = Block(D_MODEL, attention_class(D_MODEL, output_projection=True))
        self.to_logits = nn.Linear(D_MODEL, SYMBOLS)

    def forward(self, symbols: Tensor) -> tuple[Tensor, Tensor]:
        """symbols (B, T) -> logits (B, T, SYMBOLS), weights (B, 1, T, T)."""
        x, weights = self.block(self.embedding(symbols) + self.positions[: symbols.size(1)])
        return self.to_logits(x), weights


def answers(task: str, symbols: Tensor) -> Tensor:
    """symbols (B, T) -> what each place is to say, (B, T); meaningless before FIRST_PLACE[task]."""
    return symbols.flip(dims=[1]) if task == REVERSE else symbols.roll(FIRST_PLACE[COPY], dims=1)


def train(encoding: str, task: str, seed: int, steps: int) -> SymbolMover:
    """Train one model on random strings of 16 symbols, the same strings for every encoding."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = SymbolMover(encoding)
    first = FIRST_PLACE[task]

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator)
        logits, wanted = model(symbols)[0][:, first:], answers(task, symbols)[:, first:]
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    training.fit(model, loss_of_step, steps, matrix_rate=None, rate=LEARNING_RATE)
    return model


def new_strings(length: int) -> Tensor:
    return torch.randint(SYMBOLS, (NUM_TEST, length), generator=torch.Generator().manual_seed(10**6 + length))


@torch.no_grad()
def right_by_place(model: SymbolMover, task: str, length: int = LENGTH) -> Tensor:
    """Share of right answers on strings not trained on, (length,)."""
    symbols = new_strings(length)
    return (model(symbols)[0].argmax(dim=-1) == answers(task, symbols)).double().mean(dim=0)


def right(model: SymbolMover, task: str, length: int = LENGTH) -> float:
    """Share of right answers; of longer strings than in training, at the places beyond, which no training has seen."""
    return right_by_place(model, task, length)[FIRST_PLACE[task] if length == LENGTH else LENGTH :].mean().item()


def most_frequent() -> float:
    """Share of places that hold the most frequent symbol of their string: what a bag of symbols lets one guess."""
    counts = F.one_hot(new_strings(LENGTH), SYMBOLS).sum(dim=1)  # (B, T, SYMBOLS) -> (B, SYMBOLS)
    return (counts.max(dim=-1).values / LENGTH).mean().item()


Models = dict[tuple[str, str], SymbolMover]  # (encoding, task) -> model, of one seed
GUESS, ENDS = "the most frequent symbol", "reverse with rotary, first and last place"


def made(none: float = 0.24, rotary_reverse: float = 0.24, rotary_longer: float = 1.0) -> dict[str, float]:
    """Made numbers: sinusoidal and learned positions do both tasks, and neither goes on to longer strings."""
    return {
        **{f"{name}, {REVERSE}": 1.0 for name in ENCODINGS},
        **{f"{name}, {COPY}": 1.0 for name in ENCODINGS},
        **{f"{name}, {COPY}, of 32": 0.24 for name in ENCODINGS},
        f"none, {REVERSE}": none,
        f"rotary, {REVERSE}": rotary_reverse,
        f"rotary, {COPY}, of 32": rotary_longer,
        GUESS: 0.24,
    }


def only_rotary_goes_on(numbers: Numbers) -> bool:
    sinusoidal, learned, rotary = (numbers[f"{name}, {COPY}, of 32"] for name in ENCODINGS[1:])
    return rotary >= max(0.9, sinusoidal + 0.3, learned + 0.3)


@measures(
    Claim(
        id="positions-reversal",
        text="Without positions attention cannot make use of the order of a sequence",
        kind=EXPERIMENT,
        source="Vaswani et al. 2017, section 3.5",
        rule="none at most 0.1 above naming the most frequent symbol; sinusoidal and learned at least 0.9",
        holds=lambda n: (
            n[f"none, {REVERSE}"] <= n[GUESS] + 0.1
            and min(n[f"sinusoidal, {REVERSE}"], n[f"learned, {REVERSE}"]) >= 0.9
        ),
        oracle=made(),
        null=made(none=1.0),
        unit=f"share of places right, strings of {LENGTH} reversed, not trained on; one block, no mask",
        control="the same model, strings and steps with positions",
        changed="margins of 0.1 for 0.05",
        headline=True,
        shows=(f"none, {REVERSE}", f"sinusoidal, {REVERSE}", f"learned, {REVERSE}", GUESS),
    ),
    Claim(
        id="positions-rotary",
        text="Rotary positions tell one layer how far away a word is, not where it stands",
        kind=EXPERIMENT,
        source="Su et al. 2021, section 3.2: scores of relative positions only",
        rule="rotary at least 0.9 in copying, and in reversing at least 0.3 below sinusoidal",
        holds=lambda n: n[f"rotary, {COPY}"] >= 0.9 and n[f"rotary, {REVERSE}"] <= n[f"sinusoidal, {REVERSE}"] - 0.3,
        oracle=made(),
        null=made(rotary_reverse=1.0),
        unit=f"share of places right, strings of {LENGTH}; one block, no mask",
        control="sinusoidal and learned ones, on both tasks",
        changed="was whether they can stand in for added ones, which no source says of one layer without a mask",
        shows=(f"*, {COPY}", f"*, {REVERSE}", ENDS),
    ),
    Claim(
        id="rotary-longer",
        text="Rotary positions go on to strings twice as long as in training, sinusoidal and learned ones do not",
        kind=EXPERIMENT,
        source="Su et al. 2021, abstract; Vaswani et al. 2017, section 3.5, where sinusoidal ones 'may' go on",
        rule="of strings of 32 rotary at least 0.9, and at least 0.3 above sinusoidal and above learned",
        holds=only_rotary_goes_on,
        oracle=made(),
        null=made(rotary_longer=0.24),
        unit=f"share right, {COPY}, places beyond the {LENGTH} of training; one block, no mask",
        control="all three on strings as long as in training; none; longer strings",
        changed="was rotary alone at 0.95 up to 256, with the length as a condition; sinusoidal stood apart",
        headline=True,
        shows=tuple(f"{name}, {COPY}, of *" for name in ENCODINGS[1:]),
    ),
)
def places_right(models: Models) -> dict[str, float]:
    """Both tasks at the length of training, copying on longer strings too."""
    found = {f"{encoding}, {task}": right(model, task) for (encoding, task), model in models.items()}
    for encoding in ENCODINGS:
        for n in TEST_LENGTHS[1:]:
            found[f"{encoding}, {COPY}, of {n}"] = right(models[encoding, COPY], COPY, n)
    ends = right_by_place(models["rotary", REVERSE], REVERSE)[[0, -1]].mean().item()
    return found | {ENDS: ends, GUESS: most_frequent()}


def draw_reverse(ax: Axes, found: dict[str, float]) -> None:
    """Places right with each encoding, beside the line of naming the most frequent symbol."""
    names = ENCODINGS[::-1]  # from the bottom up
    shares = [found[f"{name}, {REVERSE}"] for name in names]
    ax.barh(names, shares, 0.6, color=[COLORS[name] for name in names])
    for place, share in enumerate(shares):
        ax.text(max(share, found[GUESS]) + 0.03, place, f"{share:.2f}", va="center")
    ax.vlines(found[GUESS], -0.5, len(names) - 0.5, color=INK, linewidth=1, linestyle=":")
    ax.text(found[GUESS], -0.6, "a guess", ha="center", va="top")
    ax.set(xlim=(0, 1.2), ylim=(-1, len(names) - 0.5), xticks=[])
    ax.set_title(f"write {LENGTH} symbols backwards:\nasks for a place")
    ax.tick_params(length=0)
    ax.spines.bottom.set_visible(False)


def draw_copy(ax: Axes, found: dict[str, float]) -> None:
    """Places right on longer and longer strings; all but rotary end so near to each other that they share a label."""
    last = {}
    for name in ENCODINGS:
        beyond = [found[f"{name}, {COPY}, of {length}"] for length in TEST_LENGTHS[1:]]
        shares = [found[f"{name}, {COPY}"], *beyond]
        ax.plot(TEST_LENGTHS, shares, color=COLORS[name], marker="o", markersize=5, linewidth=2, clip_on=False)
        last[name] = shares[-1]
    ax.set_xscale("log", base=2)
    ax.set_xticks(TEST_LENGTHS, TEST_LENGTHS)
    ax.set(xlim=(14, TEST_LENGTHS[-1]), ylim=(0, 1.05), yticks=(0, 0.5, 1), ylabel="answers right")
    ax.set(xlabel=f"symbols (beyond {LENGTH}: only new places count)", title=f"{COPY}:\nasks for a distance")
    rotary = last.pop("rotary")
    others = ",\n".join(sorted(last, key=last.get, reverse=True))
    middle = statistics.mean(last.values())
    label_ends(ax, {"rotary": (TEST_LENGTHS[-1], rotary, GREEN), others: (TEST_LENGTHS[-1], middle, INK)}, size=10)


def draw(runs: Sequence[Measured], steps: int) -> tuple[Figure, str]:
    """Left, small: a task that asks for a place. Right: one that asks for a distance, on longer strings."""
    found = {name: statistics.mean(run[name] for run in runs) for name in runs[0]}
    fig, (left, right_ax) = plt.subplots(1, 2, figsize=(8.8, 4.6), width_ratios=(2, 3), layout="constrained")
    draw_reverse(left, found)
    draw_copy(right_ax, found)
    title = "Copying from a distance, only rotary positions go on\nbeyond the length of training"
    if not all(claim.holds(found) for claim in runs[0].claims):
        title = f"{steps} steps are too few to tell the positions apart"
    note = f"trained {steps} steps on strings of {LENGTH} · guess: the most frequent symbol of the string"
    headline(fig, title, note)
    return fig, title.replace("\n", " ") + ". Right answers by kind of positions, backwards and copying."


def show(found: Measured) -> None:
    print(f"\nPlaces right, {NUM_TEST} strings not trained on; by the most frequent symbol {found[GUESS]:.2f}")
    print(f"   of strings longer than {LENGTH}, only the places that no training has seen")
    print(f"   {'':12}{REVERSE:>10}{COPY:>22}" + "".join(f"{f'of {length}':>8}" for length in TEST_LENGTHS[1:]))
    for name in ENCODINGS:
        reverse, copied, *longer = (share for key, share in found.items() if key.startswith(f"{name}, "))
        print(f"   {name:12}{reverse:>10.2f}{copied:>22.2f}" + "".join(f"{share:>8.2f}" for share in longer))


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    pairs = [(encoding, task) for task in (REVERSE, COPY) for encoding in ENCODINGS]
    seeds = [
        {pair: train(*pair, seed, steps) for pair in tqdm(pairs, desc="training on order", leave=False, disable=None)}
        for seed in cli.seeds(options)
    ]
    runs = [places_right(models) for models in seeds]
    show(runs[0])
    print("\nReverse with rotary, place by place: at both ends the answer is the symbol farthest away")
    print("   " + " ".join(f"{share:.2f}" for share in right_by_place(seeds[0]["rotary", REVERSE], REVERSE).tolist()))
    save_plot(options, "phase1/positions", *draw(runs, steps))
    findings.record(options, *runs, show_numbers=False)
    none, added, rotary = (f"{runs[0][f'{name}, {REVERSE}']:.0%}" for name in ("none", "sinusoidal", "rotary"))
    return f"A reversed string is {none} right without positions, {added} with sinusoidal, {rotary} with rotary"


if __name__ == "__main__":
    cli.run(main)
