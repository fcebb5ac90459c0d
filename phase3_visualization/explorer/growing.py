"""What does a page need to train the toy transformer by itself?

It needs the recipe of phase 2, the sentences to learn from, the held-out sentences with their gold,
and how often a head must follow each rule for a name. The baselines behind that are measured here,
once, as shared/grammar/roles.py does it for every picture. Training and rules are written a second
time, by hand, in JavaScript (explorer/page/model/). The tests compare the two.
"""

import itertools

from phase2_multi_head.models import MULTI_HEAD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer.models import as_text
from shared import optimization, training
from shared.grammar import roles
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.toy_language import (
    MASK_ID,
    MAX_LENGTH,
    PAD_ID,
    RELATIONS,
    SPECIAL,
    VOCABULARY,
    Sentence,
    encode,
)

TRAIN_SENTENCES = 8_000  # of the 20,000 that the other models see: each comes up about six times


def packed(sentences: list[Sentence]) -> str:
    """A byte for each word, <pad> after each sentence, as a text."""
    rows = (bytes([*encode(sentence.words), PAD_ID]) for sentence in sentences)
    return as_text(b"".join(rows))


def bars_of(base: roles.Baselines) -> dict[str, list[dict]]:
    """How often a head must follow each rule of roles.rules_of, kind by kind, and what to count for
    it.

    of: which of the relations a column belongs to, by its place in their list.
    """
    positions, relations, columns = [], [], []
    for place, name in roles.NAMES.items():
        positions.append({"name": name, "place": place, "bar": base.needed_for_position(place)})
    keys = [(relation, direction) for relation in RELATIONS for direction in DIRECTIONS]
    for relation, direction in keys:
        asked = {"relation": relation, "backward": direction == "backward"}
        bar = base.needed_for_relation((relation, direction))
        relations.append({"name": relation_name(relation, direction), **asked, "bar": bar})
    for name, key in roles.COLUMN_RULES.items():
        columns.append({"name": name, "of": keys.index(key), "bar": base.needed_for_column(name)})
    return {"positions": positions, "relations": relations, "columns": columns}


def recipe() -> dict[str, int | float]:
    """Sizes, steps and rates of shared/training.py, for a model with the seed of the reader's
    choice.
    """
    return {
        "d_model": MULTI_HEAD_RECIPE.d_model,
        "num_heads": MULTI_HEAD_RECIPE.num_heads,
        "num_layers": MULTI_HEAD_RECIPE.num_layers,
        "steps": MULTI_HEAD_RECIPE.steps,
        "batch_size": MULTI_HEAD_RECIPE.batch_size,
        "matrix_rate": optimization.MATRIX_RATE,
        "rate": optimization.RATE,
        "matrix_decay": MULTI_HEAD_RECIPE.matrix_decay,
        "decay": optimization.DECAY,
        "up": optimization.UP,
        "chosen": training.CHOSEN,
        "kept": training.KEPT,
        "swapped": training.SWAPPED,
        "mask": MASK_ID,
        "first_word": len(SPECIAL),
        "num_words": len(VOCABULARY),
        "max_length": MAX_LENGTH,
    }


def page_part() -> dict:
    """All that the page is told for growing a head; rules: on the half that names heads, and on the
    other.
    """
    train, held_out = training.corpus()
    gold = {}
    for relation in RELATIONS:
        pairs = (sentence.relations[relation] for sentence in held_out)
        gold[relation] = [list(itertools.chain.from_iterable(of_sentence)) for of_sentence in pairs]
    return {
        "recipe": recipe(),
        "train": packed(train[:TRAIN_SENTENCES]),
        "held_out": packed(held_out),
        "gold": gold,  # of each sentence from, to, from, to, ...
        "rules": [bars_of(base) for base in roles.baselines(MULTI_HEAD_RECIPE, MultiHeadAttention)],
        "pad": PAD_ID,
    }
