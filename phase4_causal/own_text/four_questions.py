"""What of the toy models' findings carries over to a text that nobody made up?

Four questions of this course, asked of a toy task and of real text: does a head look at the token
before? Does one look up what came next last time? Are four heads better than one? And scores with
the division by √d_k better than without? For the first two the same model, two layers of four
rotary heads, learns random words that repeat, or the text. For the last two models of one layer
learn the toy's own tasks (hidden words; two places at once), or the text, in as many steps.

    python phase4_causal/own_text/four_questions.py --text FILE
"""

import math
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from phase1_single_head.models import SINGLE_HEAD_RECIPE, make_single_head
from phase1_single_head.parts.undivided import UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.models import ONE_LAYER_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.pretrained.language_model import refuses
from phase4_causal.induction.induction_scores import (
    NAMED_FROM,
    NUM_SEQUENCES,
    SYMBOLS,
    TRAINING_STEPS,
    generator,
    repeated_sequences,
    train_repeater,
)
from phase4_causal.own_text.character_model import (
    READ,
    STEPS,
    WIDTH,
    CharacterModel,
    held_out_pieces,
    new_reader,
    on_held_out,
    train_on_text,
)
from phase4_causal.own_text.characters import (
    CharacterText,
    add_text,
    is_reference,
    load_characters,
)
from phase4_causal.own_text.decoder import answers_of_smollm2, has_smollm2
from phase4_causal.own_text.twice import read_twice
from shared import checkpoints, training
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run, table
from shared.grammar.best_reader import excess_loss, questions
from shared.optimization import constant
from shared.tasks import right_at_end, train_two_places
from shared.toy_language import SPECIAL
from shared.toy_model import MakeAttention, changed
from shared.training import Recipe, variant
from shared.visualization_utils import BLUE, HIDDEN, INK, hatch_cell

EARLY_STEPS = 300  # of the models of one layer, as in how_many_heads.py and scaling.py
SENTENCES = 150  # in which each word is hidden once
RATES = (0.003, 0.01)  # of AdamW, for the division; with 0.001 nothing learned more
BLOCK = 16  # different words that come twice
ENOUGH = 0.05  # nats, or share of the answers, from which on a difference counts

QUESTIONS = {  # what is asked -> the bar of its rule
    "weight on the token before": NAMED_FROM,
    "weight on what came next": NAMED_FROM,
    "loss gone when it comes twice": NAMED_FROM,
    "nats saved by four heads": ENOUGH,
    "more right with the division": ENOUGH,
}
IN_WORDS = {  # what is asked -> what the picture says of it, and what is counted
    "weight on the token before": ("a head looks at the token before", "weight there"),
    "weight on what came next": ("a head looks up what came next last time", "weight there"),
    "loss gone when it comes twice": ("what comes twice is easier", "share of the loss gone"),
    "nats saved by four heads": ("four heads beat one", "nats saved"),
    "more right with the division": ("dividing by √d_k helps", "share more right"),
}
COLUMNS = ("toy", "text", "SmolLM2")
PUBLISHED = "phase4_causal.own_text.published"  # measures the same of a published model


# ---- the toy's tasks


def toy_twice(run: Run) -> Numbers:
    """Returns what the model of the text does with the toy's words that repeat."""
    torch.manual_seed(run.seed)
    model = CharacterModel(len(SPECIAL) + SYMBOLS)
    train_repeater(model, run.seed, run.steps(TRAINING_STEPS))
    block = repeated_sequences(NUM_SEQUENCES, generator(run.seed, 1), (BLOCK, BLOCK), BLOCK)
    return read_twice(model, block, "toy")


def toy_heads(run: Run) -> float:
    """Returns how many nats of a hidden word four heads save, in one layer."""
    asked = questions(training.corpus()[1][:SENTENCES])

    def excess(recipe: Recipe, make: MakeAttention) -> float:
        early = variant(recipe, steps=EARLY_STEPS)
        trained = checkpoints.trained_model(early, make, run.options, run.seed)
        return excess_loss(trained.logits, asked)

    one = excess(SINGLE_HEAD_RECIPE, make_single_head)
    return one - excess(ONE_LAYER_RECIPE, MultiHeadAttention)


def toy_right(run: Run, head: type[SelfAttention]) -> float:
    """Returns the share of answers that one head gets right, at its best learning rate."""
    shares = []
    for rate in RATES:
        make = partial(head, output_projection=True)
        _, _, right = train_two_places(make, run.seed, run.steps(EARLY_STEPS), rate)
        shares.append(right_at_end(right))
    return max(shares)


# ---- the text


def text_twice(run: Run, text: CharacterText) -> Numbers:
    """Returns what the same model does with stretches of the held-out text, read twice."""
    model = new_reader(text, run.seed)
    train_on_text(model, text, run.seed, run.steps(STEPS))
    return read_twice(model, held_out_pieces(text, READ // 2), "text")


def early_reader(
    run: Run, text: CharacterText, num_heads: int, longer: float = 1, **rates: Any
) -> tuple[float, float]:
    """Loss and share of right characters of one layer after EARLY_STEPS steps.

    longer: by how much its queries are longer; √d_k undoes the division of the scores.
    """
    model = new_reader(text, run.seed, num_heads=num_heads, num_layers=1)
    with changed(model.blocks[0].attention.w_q, lambda query: longer * query):
        train_on_text(model, text, run.seed, run.steps(EARLY_STEPS), **rates)
        return on_held_out(model, text)


def text_heads(run: Run, text: CharacterText) -> float:
    """Returns how many nats a character four heads save, in one layer."""
    one, _ = early_reader(run, text, 1)
    four, _ = early_reader(run, text, 4)
    return one - four


def text_right(run: Run, text: CharacterText, longer: float) -> float:
    """Returns the share of characters that one head gets right, at its best learning rate."""
    shares = []
    for rate in RATES:
        rates = {"matrix_rate": None, "rate": rate, "share": constant}
        _, share = early_reader(run, text, 1, longer, **rates)
        shares.append(share)
    return max(shares)


def carried(numbers: Numbers) -> str:
    """Returns in a sentence how many of the findings reach their bar on the text, too."""
    reached = sum(numbers[f"{asked}, text"] >= bar for asked, bar in QUESTIONS.items())
    return f"{reached} of the {len(QUESTIONS)} things we measured are so on the text, too"


@refuses
def measure(run: Run) -> Numbers:
    """Returns mean weights, shares of a loss and of answers, and nats, of toy task and text."""
    text = load_characters(run.options.text)
    run.shown["text"] = text.name
    if run.seed == run.options.seed and has_smollm2():
        run.shown["published"] = answers_of_smollm2(text)
        beside = table(run.shown["published"], PUBLISHED, "SmolLM2")
        print(f"\nWhat a published model does on the same text, with every seed:\n{beside}")
    toy_gain = toy_right(run, SelfAttention) - toy_right(run, UndividedSelfAttention)
    undivided = math.sqrt(WIDTH)
    numbers = {
        **toy_twice(run),
        **text_twice(run, text),
        "nats saved by four heads, toy": toy_heads(run),
        "nats saved by four heads, text": text_heads(run, text),
        "more right with the division, toy": toy_gain,
        "more right with the division, text": text_right(run, text, 1)
        - text_right(run, text, undivided),
    }
    run.shown["carried"] = carried(numbers)
    return numbers


ON_TEXT = "on the characters of Python's own reference"
CLAIMS = (
    Claim(
        id="text-induction",
        text="That a head looks up what came next last time (induction) carries over to a real "
        f"text. We asked it of two layers of four rotary heads, trained {STEPS:,} steps {ON_TEXT}.",
        source="Olsson et al. 2022, who measured larger models; in the course's own toy task our "
        "models have such heads",
        rule=f"in a stretch that comes twice, the best head gives {NAMED_FROM} or more of its "
        "weight to what came next in the first copy. The head is chosen on one half of the "
        "stretches and scored on the other",
        effect=lambda n: n["weight on what came next, text"],
        at_least=NAMED_FROM,
        oracle={"*": 0.9},
        null={"*": 0.02},
        explored=0,
    ),
    Claim(
        id="text-four-heads",
        text="That four heads are better than one carries over to a real text. We asked it of one "
        f"layer with d_model = {WIDTH}, after {EARLY_STEPS} steps {ON_TEXT}.",
        source="the course's own hidden words, where it is so after as many steps",
        rule=f"four heads save {ENOUGH} nats a character or more in the held-out part",
        effect=lambda n: n["nats saved by four heads, text"],
        at_least=ENOUGH,
        oracle={"*": 0.3},
        null={"*": 0.0},
        explored=10,
    ),
    Claim(
        id="text-division",
        text="That training needs the division by √d_k carries over to a real text. We asked it "
        f"of one layer with one head of d_k = {WIDTH}, after {EARLY_STEPS} steps of AdamW "
        f"{ON_TEXT}.",
        source="the course's own task of two places, where without it training fails",
        rule=f"with the division {ENOUGH} more of the held-out characters are right, or more, "
        "where each model has the better of two learning rates, 0.003 and 0.01",
        effect=lambda n: n["more right with the division, text"],
        at_least=ENOUGH,
        oracle={"*": 0.3},
        null={"*": 0.0},
        explored=10,
    ),
)


def picture(results: Results) -> Figure:
    """Draws a table: a row for each question, blue where the answer reaches the bar of its rule."""
    numbers = results.mean | results.shown.get("published", {})
    fig, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
    for row, (question, bar) in enumerate(QUESTIONS.items()):
        for column, name in enumerate(COLUMNS):
            number = numbers.get(f"{question}, {name}")
            enough = number is not None and number >= bar
            corner = (column - 0.47, row - 0.44)
            style = {"ha": "center", "va": "center", "color": "white" if enough else INK}
            if number is None:
                hatch_cell(ax, *corner, 0.94, 0.88)
                around = {"facecolor": HIDDEN, "edgecolor": "none", "pad": 2}
                ax.text(column, row, "not asked", bbox=around, **style)
                continue
            ax.add_patch(plt.Rectangle(corner, 0.94, 0.88, color=BLUE if enough else HIDDEN))
            ax.text(column, row, f"{number:.2f}".replace("-", "−"), **style)
    ax.set(xlim=(-0.5, len(COLUMNS) - 0.5), ylim=(len(QUESTIONS) - 0.5, -0.5))
    ax.set_xticks(range(len(COLUMNS)), ("a toy task", "a real text", "SmolLM2,\npublished"))
    rows = []
    for question, bar in QUESTIONS.items():
        finding, counted = IN_WORDS[question]
        rows.append(f"{finding}\n({counted}: {bar:g} or more)")
    ax.set_yticks(range(len(QUESTIONS)), rows)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Most of what the toy shows carries over to a small model of real text,\n"
    "looking up what came next does not",
    note="Blue: yes, as much as the rule in brackets asks; grey: no. Hatched: would need another "
    "training\nsmall models of one or two layers, trained here · the text: {shown[text]}",
    answer="{shown[carried]}. On the text the best head gives "
    "{n[weight on the token before, text]:.2f} of its weight to the token before, and the best "
    "one for what came next last time gives {n[weight on what came next, text]:.2f} there",
    options=add_text,
    about=is_reference,
)

if __name__ == "__main__":
    main.run()
