"""Can a model read texts longer than any it was trained on?

One layer with rotary positions is trained on texts of 32 random words, to copy the word 3 places
back. Then it reads texts of up to 256, where only the places beyond count: as it was trained, and
with its turns slowed in the three ways of rotary_attention.py. No model is trained on longer texts.

    python phase4_causal/serving/longer.py
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from phase4_causal.rotary_attention import TRAINED, RotaryHeads
from shared import charts
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import SPECIAL
from shared.toy_model import ToyTransformer
from shared.training.loop import fit
from shared.training.recipes import Recipe, new_model
from shared.visualization_utils import BLUE, GREY, ORANGE, RED, WIDE

COLORS = {
    "interpolated": RED,
    "as trained": GREY,
    "NTK-aware": ORANGE,
    "by parts (YaRN)": BLUE,
}
LENGTHS = (32, 64, 128, 256)  # of texts when the model is used
STEPS, BACK = 300, 3
WARM_UP = 40  # steps in which the learning rate rises


def copies(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns random words, and the word BACK before, to be said, (count, length) each."""
    words = torch.randint(64, (count, length), generator=generator) + len(SPECIAL)
    return words, words.roll(BACK, dims=1)


def train_copier(seed: int, steps: int) -> ToyTransformer:
    """Returns a model that knows places by attention alone, trained on texts of TRAINED words."""
    generator = torch.Generator().manual_seed(seed)
    recipe = Recipe("longer", "next word", 4, 1, steps, seed=seed)
    model = new_model(recipe, RotaryHeads)
    model.positions = torch.zeros(LENGTHS[-1], recipe.d_model)

    def loss_of_step(_: int) -> Tensor:
        words, wanted = copies(32, TRAINED, generator)
        logits, _ = model(words)
        return F.cross_entropy(logits[:, BACK:].flatten(0, 1), wanted[:, BACK:].flatten())

    # At twice these rates the rounding of a processor decides how far the model can copy.
    rates = {"matrix_rate": 0.01, "rate": 0.005, "matrix_decay": 0.0, "decay": 0.01}
    fit(model, loss_of_step, steps, **rates, schedule=lambda step: min(1, (step + 1) / WARM_UP))
    return model


@torch.no_grad()
def share_copied(model: ToyTransformer, way: str, length: int, seed: int) -> float:
    """Returns the share of right answers in new texts of this length.

    Of texts longer than those in training only the places beyond count.
    """
    attention = model.blocks[0].attention
    attention.way = way
    attention.stretch = length // TRAINED
    words, wanted = copies(50, length, torch.Generator().manual_seed(10**6 + seed))
    logits, _ = model(words)
    right = logits.argmax(dim=-1) == wanted  # (N, T, V) -> (N, T)
    first = BACK if length == TRAINED else TRAINED
    return right[:, first:].double().mean().item()


def measure(run: Run) -> Numbers:
    """Returns the share right, of one trained model used in each way."""
    model = train_copier(run.seed, run.steps(STEPS))
    numbers = {}
    for way in COLORS:
        for length in LENGTHS:
            numbers[f"{way}, of {length}"] = share_copied(model, way, length, run.seed)
    return numbers


CLAIM = Claim(
    id="rotary-stretched-copies",
    text="A model with rotary positions copies better in longer texts if slow turns are slowed "
    "and fast ones hardly or not than if none or all are. We asked it of one layer of four heads, "
    "without more training: it copies the word 3 places back in texts 8 times as long as in "
    "training.",
    source="Peng et al. 2023, sections 3.1 and 3.2",
    rule="NTK-aware and by parts, the model copies 0.1 more of the words, or more, than as "
    "trained and than interpolated",
    effect=lambda n: (
        min(n["NTK-aware, of 256"], n["by parts (YaRN), of 256"])
        - max(n["as trained, of 256"], n["interpolated, of 256"])
    ),
    at_least=0.1,
    explored=10,
    oracle={"NTK-aware, *": 0.6, "by parts*": 0.9, "*": 0.2},
    null={"*": 0.5},
    revised="at first the rule was an order of all four ways, 0.05 apart",
)


def picture(results: Results) -> Figure:
    """Draws the share right against the length, a line for each way."""
    fig, ax = plt.subplots(figsize=(WIDE, 3.8), layout="constrained")
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.set(
        ylim=(0, 1.05),
        xlabel=f"words of a text (trained on {TRAINED})",
        ylabel="words copied right",
    )
    columns = [f"of {length}" for length in LENGTHS]
    rows = {way: results.row(way, columns) for way in COLORS}
    charts.lines(ax, LENGTHS, rows, COLORS)
    return fig


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="Interpolating positions by parts (YaRN) keeps copies right in longer texts",
    note=f"trained {STEPS} steps · only words beyond the first {TRAINED} count",
    answer="In texts 8 times as long it copies {n[as trained, of 256]:.0%} of the words right as "
    "it was trained, and {n[by parts (YaRN), of 256]:.0%} if its slow turns are slowed (YaRN)",
)

if __name__ == "__main__":
    main.run()
