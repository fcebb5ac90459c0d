"""What can be learned without positions, and with which?

Two tasks that are nothing but order, for one block with one head, with each encoding of position_encodings.py and with
none. All places see each other:

    reverse              place i of 16 is to say the symbol at place 15 - i: it must know where it stands
    copy 3 to the left   place i is to say the symbol at place i - 3: knowing distances is enough

Then strings up to 16 times as long as in training, at the places that no training has seen. The symbols are random, so
what is to be said follows from places alone: "content decides what attends to what" is not all of it.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import RotarySelfAttention
from phase1_single_head.self_attention import SelfAttention
from shared import charts, training
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_model import Block, sinusoidal_positions
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE

COLORS = {"none": GREY, "sinusoidal": BLUE, "learned": ORANGE, "rotary": GREEN}
REVERSE, COPY = "reverse", "copy 3 to the left"
FIRST_PLACE = {REVERSE: 0, COPY: 3}  # the first that has an answer
SYMBOLS, LENGTH, D_MODEL, BATCH, STEPS, LEARNING_RATE = 10, 16, 32, 32, 150, 1.5e-2
LONGER, NUM_TEST = (32, 64, 128, 256), 100


class SymbolMover(nn.Module):
    """Embedding, one block with one head, linear. Everything but the encoding starts with the same numbers."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        attention_class = RotarySelfAttention if encoding == "rotary" else SelfAttention
        longest = LONGER[-1]  # training stops at 16: a learned table is not trained beyond
        tables = {"sinusoidal": sinusoidal_positions(longest, D_MODEL), "learned": torch.randn(longest, D_MODEL)}
        table = tables.get(encoding, torch.zeros(longest, D_MODEL))
        self.embedding = nn.Embedding(SYMBOLS, D_MODEL)
        self.positions = nn.Parameter(table, requires_grad=encoding == "learned")
        self.block = Block(D_MODEL, attention_class(D_MODEL, output_projection=True))
        self.to_logits = nn.Linear(D_MODEL, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols (B, T) -> logits (B, T, SYMBOLS)."""
        x, _ = self.block(self.embedding(symbols) + self.positions[: symbols.size(1)])
        return self.to_logits(x)


def answers(task: str, symbols: Tensor) -> Tensor:
    """symbols (B, T) -> what each place is to say, (B, T); meaningless before FIRST_PLACE[task]."""
    return symbols.flip(dims=[1]) if task == REVERSE else symbols.roll(FIRST_PLACE[COPY], dims=1)


def train(encoding: str, task: str, seed: int, steps: int) -> SymbolMover:
    """Train one model on random strings of 16 symbols, the same strings for every encoding."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, first = SymbolMover(encoding), FIRST_PLACE[task]

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator)
        logits, wanted = model(symbols)[:, first:], answers(task, symbols)[:, first:]
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    training.fit(model, loss_of_step, steps, matrix_rate=None, rate=LEARNING_RATE)
    return model


def new_strings(length: int) -> Tensor:
    return torch.randint(SYMBOLS, (NUM_TEST, length), generator=torch.Generator().manual_seed(10**6 + length))


@torch.no_grad()
def right(model: SymbolMover, task: str, length: int = LENGTH) -> float:
    """Share of right answers; of longer strings than in training, at the places beyond, which no training has seen."""
    symbols = new_strings(length)
    hits = (model(symbols).argmax(dim=-1) == answers(task, symbols)).double()
    return hits[:, FIRST_PLACE[task] if length == LENGTH else LENGTH :].mean().item()


def most_frequent() -> float:
    """Share of places that hold the most frequent symbol of their string: what a bag of symbols lets one guess."""
    counts = F.one_hot(new_strings(LENGTH), SYMBOLS).sum(dim=1)  # (B, T, SYMBOLS) -> (B, SYMBOLS)
    return (counts.max(dim=-1).values / LENGTH).mean().item()


def measure(run: Run) -> Numbers:
    """Share of places right, on strings not trained on; the same model, strings and steps for each encoding."""
    found = {}
    for encoding in COLORS:
        for task in (REVERSE, COPY):
            model = train(encoding, task, run.seed, run.steps(STEPS))
            found[f"{encoding}, {task}"] = right(model, task)
        found |= {f"{encoding}, {COPY}, of {n}": right(model, COPY, n) for n in LONGER}
    return found | {"the most frequent symbol": most_frequent()}


CLAIMS = (
    Claim(
        id="positions-reversal",
        text="Without positions attention cannot make use of the order of a sequence",
        source="Vaswani et al. 2017, section 3.5",
        rule="none at most 0.1 above naming the most frequent symbol; sinusoidal and learned at least 0.9",
        holds=lambda n: (
            n["none, reverse"] <= n["the most frequent symbol"] + 0.1
            and min(n["sinusoidal, reverse"], n["learned, reverse"]) >= 0.9
        ),
        oracle={"none, reverse": 0.24, "*, reverse": 1.0, "the most frequent symbol": 0.24},
        null={"*, reverse": 1.0, "the most frequent symbol": 0.24},
        headline=True,
    ),
    Claim(
        id="positions-rotary",
        text="Rotary positions tell one layer how far away a word is, not where it stands",
        source="Su et al. 2021, section 3.2: scores of relative positions only",
        rule="rotary at least 0.9 in copying, and in reversing at least 0.3 below sinusoidal",
        holds=lambda n: n[f"rotary, {COPY}"] >= 0.9 and n["rotary, reverse"] <= n["sinusoidal, reverse"] - 0.3,
        oracle={"rotary, copy*": 1.0, "rotary, reverse": 0.24, "sinusoidal, reverse": 1.0},
        null={"*": 1.0},
    ),
    Claim(
        id="rotary-longer",
        text="Rotary positions go on to strings twice as long as in training, sinusoidal and learned ones do not",
        source="Su et al. 2021, abstract; Vaswani et al. 2017, section 3.5, where sinusoidal ones 'may' go on",
        rule="of strings of 32 rotary at least 0.9, and at least 0.3 above sinusoidal and above learned",
        holds=lambda n: (
            n[f"rotary, {COPY}, of 32"]
            >= max(0.9, *(n[f"{other}, {COPY}, of 32"] + 0.3 for other in ("sinusoidal", "learned")))
        ),
        oracle={"rotary, *": 1.0, "*, of 32": 0.24},
        null={"*, of 32": 0.24},
        headline=True,
    ),
)


def picture(found: Results) -> Figure:
    """Left, small: a task that asks for a place. Right: one that asks for a distance, on longer strings."""
    fig, (left, far) = plt.subplots(1, 2, figsize=(8.8, 4.6), width_ratios=(2, 3), layout="constrained")
    guess = found.mean["the most frequent symbol"]
    charts.bars(left, {name: found.each(f"{name}, {REVERSE}") for name in COLORS}, COLORS, guess=guess)
    left.set_title(f"write {LENGTH} symbols backwards:\nasks for a place")
    places = [COPY, *(f"{COPY}, of {length}" for length in LONGER)]
    far.set(ylim=(0, 1.05), xlabel=f"symbols (beyond {LENGTH}: only new places count)", ylabel="answers right")
    charts.lines(far, (LENGTH, *LONGER), {name: found.row(name, places) for name in COLORS}, COLORS)
    far.set_title(f"{COPY}:\nasks for a distance")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Copying from a distance, only rotary positions go on\nbeyond the length of training",
    note=f"trained {STEPS} steps on strings of {LENGTH}",
    answer="A reversed string is {n[none, reverse]:.0%} right without positions, {n[sinusoidal, reverse]:.0%} with "
    "sinusoidal, {n[rotary, reverse]:.0%} with rotary",
)

if __name__ == "__main__":
    main.run()
