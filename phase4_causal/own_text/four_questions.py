"""What of the toy models' findings carries over to a text that nobody made up?

Four questions of this course, asked of a toy task and of real text: does a head look at the token
before? Does one look up what came next last time? Is what comes twice easier, then? Are four heads
better than one? For the first three the same model, two layers of four rotary heads, learns random
words that repeat, or the text. For the last one models of one layer learn to guess hidden words, or
the next character of the text, in as many steps.

    python phase4_causal/own_text/four_questions.py --text FILE
"""

import torch

from phase1_single_head.models import SINGLE_HEAD_RECIPE, make_single_head
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
    CONTEXT_LENGTH,
    D_MODEL,
    STEPS,
    CharacterModel,
    character_loss,
    held_out_pieces,
    new_reader,
    train_on_text,
)
from phase4_causal.own_text.characters import (
    CharacterText,
    add_text_option,
    is_reference,
    load_characters,
)
from phase4_causal.own_text.repeated_text import read_twice
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Run
from shared.grammar.best_reader import excess_loss, questions
from shared.toy_language import SPECIAL
from shared.toy_model import MakeAttention
from shared.training.checkpoints import trained_model
from shared.training.objectives import corpus
from shared.training.recipes import Recipe, variant

EARLY_STEPS = 300  # of the models of one layer, as in how_many_heads.py
SENTENCES = 150  # in which each word is hidden once
BLOCK = 16  # different words that come twice
ENOUGH = 0.05  # nats from which on a difference counts

QUESTIONS = {  # what is asked -> the bar of its rule
    "weight on the token before": NAMED_FROM,
    "weight on what came next": NAMED_FROM,
    "loss gone when it comes twice": NAMED_FROM,
    "nats saved by four heads": ENOUGH,
}


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
    hidden_words = questions(corpus()[1][:SENTENCES])

    def excess(recipe: Recipe, make: MakeAttention) -> float:
        early = variant(recipe, steps=EARLY_STEPS)
        trained = trained_model(early, make, run.options, run.seed)
        return excess_loss(trained.logits, hidden_words)

    one = excess(SINGLE_HEAD_RECIPE, make_single_head)
    return one - excess(ONE_LAYER_RECIPE, MultiHeadAttention)


# ---- the text


def text_twice(run: Run, text: CharacterText) -> Numbers:
    """Returns what the same model does with stretches of the held-out text, read twice."""
    model = new_reader(text, run.seed)
    train_on_text(model, text, run.seed, run.steps(STEPS))
    return read_twice(model, held_out_pieces(text, CONTEXT_LENGTH // 2), "text")


def early_loss(run: Run, text: CharacterText, num_heads: int) -> float:
    """Returns the held-out loss of one layer after EARLY_STEPS steps."""
    model = new_reader(text, run.seed, num_heads=num_heads, num_layers=1)
    train_on_text(model, text, run.seed, run.steps(EARLY_STEPS))
    return character_loss(model, text)


def text_heads(run: Run, text: CharacterText) -> float:
    """Returns how many nats a character four heads save, in one layer."""
    one = early_loss(run, text, 1)
    four = early_loss(run, text, 4)
    return one - four


def answer(n: Numbers) -> str:
    """Returns how many of the findings reach their bar on the text, too, and two of the weights."""
    reached = sum(n[f"{question}, text"] >= bar for question, bar in QUESTIONS.items())
    return (
        f"{reached} of the {len(QUESTIONS)} things we measured are so on the text, too. On the "
        "text the best head gives {n[weight on the token before, text]:.2f} of its weight to the "
        "token before, and the best one for what came next last time gives "
        "{n[weight on what came next, text]:.2f} there"
    )


@refuses
def measure(run: Run) -> Numbers:
    """Returns mean weights, shares of a loss, and nats, of toy task and text."""
    text = load_characters(run.options.text)
    return {
        **toy_twice(run),
        **text_twice(run, text),
        "nats saved by four heads, toy": toy_heads(run),
        "nats saved by four heads, text": text_heads(run, text),
    }


ON_TEXT = "on the characters of Python's own reference"
CLAIMS = (
    Claim(
        id="text-induction",
        text="That a head looks up what came next last time (induction) carries over to a real "
        f"text. We asked it of two layers of four rotary heads, trained {STEPS:,} steps {ON_TEXT}. "
        "An even share is 0.01 there. A perfect head that goes by one letter alone would have less "
        "than 0.3, because a letter comes back often, and one that goes by two would pass.",
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
        f"layer with d_model = {D_MODEL}, after {EARLY_STEPS} steps {ON_TEXT}.",
        source="the course's own hidden words, where it is so after as many steps",
        rule=f"four heads save {ENOUGH} nats a character or more in the held-out part",
        effect=lambda n: n["nats saved by four heads, text"],
        at_least=ENOUGH,
        oracle={"*": 0.3},
        null={"*": 0.0},
        explored=10,
    ),
)


main = Experiment(
    measure,
    CLAIMS,
    answer=answer,
    add_options=add_text_option,
    claims_apply=is_reference,
    machine_dependent=("*, text",),  # every version of Python has another reference
    uses="--seed --seeds --quick --device --retrain",
)

if __name__ == "__main__":
    main.run()
