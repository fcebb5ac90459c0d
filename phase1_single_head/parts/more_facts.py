"""Does attention find one fact among 256 if it was trained with 16?

Softmax shares a weight of 1 among all facts, so each further fact takes a little from the right
one. How far does the right fact's weight fall, and does that cost answers? A list of facts gives
each key a value, and a question is one of the keys. We train one head on lists of 16 facts and then
ask it about longer ones, once as it is and once with sharper scores: multiplied by log n / log 16
for n facts, they keep the weight of the right fact alike (Chiang & Cholak 2022).
"""

import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.parts.cross_attention import CrossAttention
from shared import charts
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.optimization import fit
from shared.visualization_utils import BLUE, GREEN

KEYS, VALUES, D_MODEL = 512, 16, 32
TRAINED = 16  # facts in a list
COUNTS = (16, 64, 256)  # of the lists that are asked about
STEPS, BATCH, NUM_TEST = 400, 64, 1000


class FactReader(nn.Module):
    """One head that reads a list of facts, each the sum of a key and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Embedding(KEYS, D_MODEL)
        self.values = nn.Embedding(VALUES, D_MODEL)
        self.attention = CrossAttention(D_MODEL)
        self.to_logits = nn.Linear(D_MODEL, VALUES)

    def forward(
        self, keys: Tensor, values: Tensor, asked: Tensor, sharpness: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Returns logits (B, VALUES) and the weight of each fact (B, n).

        keys and values (B, n), asked (B,): the key in question. sharpness multiplies all scores.
        """
        facts = self.keys(keys) + self.values(values)
        question = sharpness * self.keys(asked).unsqueeze(1)  # (B, d_model) -> (B, 1, d_model)
        output, weights = self.attention(question, facts)
        return self.to_logits(output[:, 0]), weights[:, 0, 0]


def draw_lists(
    number: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws lists of facts whose keys differ, and of each list the place that is asked for.

    Returns keys (number, count), values (number, count) and places (number,).
    """
    keys = torch.rand(number, KEYS, generator=generator).argsort(dim=1)[:, :count]
    values = torch.randint(VALUES, (number, count), generator=generator)
    places = torch.randint(count, (number,), generator=generator)
    return keys, values, places


def train_reader(run: Run) -> FactReader:
    """Trains one head on lists of 16 facts."""
    torch.manual_seed(run.seed)
    generator = torch.Generator().manual_seed(run.seed)
    model = FactReader()
    lists = torch.arange(BATCH)

    def loss_of_step(_: int) -> Tensor:
        keys, values, places = draw_lists(BATCH, TRAINED, generator)
        logits, _ = model(keys, values, keys[lists, places])
        return F.cross_entropy(logits, values[lists, places])

    steps = run.steps(STEPS)
    fit(model, loss_of_step, steps, matrix_rate=None, rate=1e-2, progress="looking up facts")
    return model


@torch.no_grad()
def asked_about(model: FactReader, count: int, sharpness: float) -> tuple[float, float]:
    """Returns the share of questions answered right, and the mean weight of the right fact."""
    keys, values, places = draw_lists(NUM_TEST, count, torch.Generator().manual_seed(10**6 + count))
    lists = torch.arange(NUM_TEST)
    logits, weights = model(keys, values, keys[lists, places], sharpness)
    right = logits.argmax(dim=-1) == values[lists, places]
    return right.double().mean().item(), weights[lists, places].mean().item()


def measure(run: Run) -> Numbers:
    """Returns answers and weights for lists of each length, with scores as they are and sharper."""
    model = train_reader(run)
    found = {}
    for count in COUNTS:
        for way, sharpness in {
            "as trained": 1.0,
            "sharper": math.log(count) / math.log(TRAINED),
        }.items():
            right, weight = asked_about(model, count, sharpness)
            found[f"right, {way}, {count} facts"] = right
            found[f"weight of the fact, {way}, {count} facts"] = weight
    return found


def lost(n: Numbers) -> float:
    """Returns how many fewer questions are answered right among 256 facts than among 16."""
    return n["right, as trained, 16 facts"] - n["right, as trained, 256 facts"]


CLAIMS = (
    Claim(
        id="many-facts",
        text="A head that learned to find one fact among few fails more often among many, because "
        "softmax spreads its weight, and sharper scores give half of that back. We asked it of one "
        "head that had learned to find one of 16 facts and was asked about 256. The sharper scores "
        "are multiplied by log n / log 16 for n facts.",
        source="Veličković et al. 2024, who ask larger models for the largest of many numbers; the "
        "logarithm is that of Chiang & Cholak 2022",
        rule="the share of questions that are answered right is at least 0.2 lower among 256 facts "
        "than among 16, and sharper scores give at least half of the difference back",
        effect=lost,
        at_least=0.2,
        also=lambda n: (
            n["right, sharper, 256 facts"] - n["right, as trained, 256 facts"] >= 0.5 * lost(n)
        ),
        oracle={"right, as trained, 256 facts": 0.6, "*": 1.0},
        null={"*": 1.0},
        revised="the rule was committed only then, but with the numbers that we had first thought "
        "of",
        explored=0,
    ),
)


def answer(n: Numbers) -> str:
    """Returns the answer; its first word depends on the share of questions answered right."""
    right = n["right, as trained, 256 facts"]
    often = "Nearly always" if right >= 0.9 else "Mostly" if right >= 0.5 else "Rarely"
    return (
        f"{often}: it answers {right:.0%} of the questions right among 256 facts, and "
        "{n[right, as trained, 16 facts]:.0%} among 16."
    )


def picture(found: Results) -> Figure:
    """Left: the weight of the right fact. Right: the questions that are answered right."""
    fig, axes = plt.subplots(1, 2, figsize=(9.4, 4.2), sharey=True, layout="constrained")
    colors = {"as trained": BLUE, "sharper": GREEN}
    columns = [f"{count} facts" for count in COUNTS]
    titles = {
        "weight of the fact": "the right fact loses weight",
        "right": "most answers stay right",
    }
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        rows = {way: found.row(f"{name}, {way}", columns) for way in colors}
        charts.lines(ax, COUNTS, rows, colors)
        ax.set(title=title, xlabel=f"facts in the list ({TRAINED} in training)", ylim=(0, 1.05))
    axes[0].set_ylabel("weight of the right fact")
    axes[1].set_ylabel("questions answered right")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Among more facts the right one loses weight, and few answers are lost",
    note=f"one head of {D_MODEL} numbers, trained {STEPS} steps · sharper: scores times "
    "log n / log 16",
    answer=answer,
)

if __name__ == "__main__":
    main.run()
