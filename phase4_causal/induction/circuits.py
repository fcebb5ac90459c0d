"""Can it be read off a model's weights why it copies?

An induction head should look for the key whose word *before* is its own word, and say the word it looks at. So both of
its tables, words by words (word_tables.py), should be dark on the diagonal. They are made twice: by the weights of
attention alone, as Elhage et al. (2021) do in models that have nothing else, and with all that layer 0 does, its
feed-forward network too.
"""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.induction.induction_scores import PERIODS, unrepeated_sequences
from phase4_causal.induction.models import HEADS, chosen_by, generator, induction_model, untrained
from phase4_causal.induction.word_tables import (
    centred,
    copying_score,
    on_diagonal,
    ov_table,
    qk_table,
    words_alone,
    words_in_text,
)
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_model import ToyTransformer, in_double
from shared.visualization_utils import WEIGHT_MAP

DRAWN = 32  # of the 64 words


def tables(model: ToyTransformer, head: int, read: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """What a head of layer 1 looks for, and what it says; read: what it reads of a word, and of the word before."""
    here, before = read
    return qk_table(model, head, here, before), ov_table(model, head, here)


def scores(looks_for: Tensor, says: Tensor) -> dict[str, float]:
    """How much both tables are those of an induction head."""
    return {
        "looks for the word before": on_diagonal(looks_for),
        "says the word it looks at": on_diagonal(says),
        "copying score": copying_score(says),
    }


def measure(run: Run) -> Numbers:
    """Shares of the 64 words, by chance 1/64, and copying scores from -1 to 1; of the untrained model the best head."""
    model, control = induction_model(run.options, run.seed), in_double(untrained(run.seed))
    head = int(chosen_by(model, run.seed)[1].argmax())
    texts = unrepeated_sequences(1000, generator(run.seed, 8))[:, : PERIODS[1]]  # where the first copy stands
    both, alone = (tables(model, head, read) for read in (words_in_text(model, texts), words_alone(model)))
    controls = [scores(*tables(control, each, words_in_text(control, texts))) for each in range(HEADS)]
    run.shown.update(alone=alone[0], both=both)
    found = scores(*both)
    return (
        found
        | {f"{name}, weights of attention alone": score for name, score in scores(*alone).items()}
        | {f"{name}, best untrained head": max(each[name] for each in controls) for name in found}
    )


def is_induction(n: Numbers) -> bool:
    names = ("looks for the word before", "says the word it looks at", "copying score")
    return min(n[name] for name in names) >= 0.9 and max(n[f"{name}, best untrained head"] for name in names) <= 0.3


CLAIMS = (
    Claim(
        id="induction-circuit",
        text="An induction head looks for the word before, by its own word, and says the word that it looks at",
        source="Elhage et al. 2021, sections on QK and OV circuits; here with all that layer 0 does",
        rule="both tables of the best induction head are largest on the diagonal for 0.9 of the words, its copying "
        "score is 0.9 or more; untrained at most 0.3, all of them",
        holds=is_induction,
        oracle={"*, best untrained head": 0.02, "*": 1.0},
        null={"*": 0.02},
    ),
    Claim(
        id="induction-weights-alone",
        text="What an induction head looks for, and what it says, can be read off the weights of attention alone",
        source="Elhage et al. 2021, of models without feed-forward networks; ours has them",
        rule="both tables by weights alone are largest on the diagonal for half of the words or more",
        holds=lambda n: (
            n["looks for the word before, weights of attention alone"] >= 0.5
            and n["says the word it looks at, weights of attention alone"] >= 0.5
        ),
        oracle={"*": 1.0},
        null={"*": 0.02},
    ),
)


def draw_table(ax: Axes, table: Tensor, axes: tuple[str, str], title: str) -> None:
    """The first words of a table, from one (white) to three standard deviations above the mean (dark)."""
    values = centred(table)
    ax.imshow((values / values.std())[:DRAWN, :DRAWN].numpy(), vmin=1, vmax=3, cmap=WEIGHT_MAP)
    ax.set(xticks=[], yticks=[], ylabel=axes[0], xlabel=axes[1])
    ax.set_title(title, fontsize=12)


def picture(results: Results) -> Figure:
    """The match by weights alone and with all of layer 0, and what is said."""
    fig, (alone, match, says) = plt.subplots(1, 3, figsize=(10, 4.6), layout="constrained")
    (looks_for, said), matching = results.shown["both"], ("query: its word", "key: the word before it")
    draw_table(alone, results.shown["alone"], matching, "looks for,\nby attention's weights alone")
    draw_table(match, looks_for, matching, "looks for,\nwith all of layer 0")
    draw_table(says, said, ("word it looks at", "word it says"), "says:\nthe word it looks at")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="An induction head matches the word before; the weights of attention alone do not show it",
    note=f"best head of layer 1 · {DRAWN} of 64 words · white: average, dark: far above average",
    answer="The word before is matched for {n[looks for the word before]:.0%} of the words; by weights of attention "
    "alone for {n[looks for the word before, weights of attention alone]:.0%}",
)

if __name__ == "__main__":
    main.run()
