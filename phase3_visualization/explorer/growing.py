"""What does a page need to train the toy transformer by itself?

It needs the recipe of phase 2, the sentences to learn from, the held-out sentences with their gold,
and how often a head must follow each rule for a name. The baselines behind that are measured here,
once, as shared/grammar/roles.py does it for every picture. Training and rules are written a second
time, by hand, in JavaScript (explorer/page/model/). The tests compare the two.
"""

from dataclasses import asdict

from phase2_multi_head.models import MULTI_HEAD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer.models import as_text
from shared import optimization, training
from shared.grammar import roles
from shared.grammar.scores import relation_name
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
    """Returns all sentences as one text: a byte for each word, <pad> after each sentence."""
    data = b""
    for sentence in sentences:
        data += bytes([*encode(sentence.words), PAD_ID])
    return as_text(data)


def bars_of(base: roles.Baselines) -> dict[str, list]:
    """Returns what to count for each rule of roles.rules_of, and how often a head must follow it.

    of: which of the relations a column belongs to, by its place in their list.
    """
    keys = list(base.fixed_offset)
    positions = [
        {"name": name, "place": place, "bar": base.needed_for_position(place)}
        for place, name in roles.NAMES.items()
    ]
    columns = [
        {"name": name, "of": keys.index(key), "bar": base.needed_for_column(name)}
        for name, key in roles.COLUMN_RULES.items()
    ]
    relations = []
    for relation, direction in keys:
        rule = {
            "name": relation_name(relation, direction),
            "relation": relation,
            "backward": direction == "backward",
            "bar": base.needed_for_relation((relation, direction)),
        }
        relations.append(rule)
    return {"positions": positions, "relations": relations, "columns": columns}


def page_recipe() -> dict:
    """Returns the sizes, steps and rates of shared/training.py; the reader chooses the seed."""
    return asdict(MULTI_HEAD_RECIPE) | {
        "matrix_rate": optimization.MATRIX_RATE,
        "rate": optimization.RATE,
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
    """Returns all that the page is told for growing a head.

    gold: for each held-out sentence from, to, from, to, ...; rules: on the half that names heads,
    and on the other.
    """
    train, held_out = training.corpus()
    gold = {}
    for relation in RELATIONS:
        gold[relation] = [sum(sentence.relations[relation], ()) for sentence in held_out]
    baselines = roles.baselines(MULTI_HEAD_RECIPE, MultiHeadAttention)
    return {
        "recipe": page_recipe(),
        "train": packed(train[:TRAIN_SENTENCES]),
        "held_out": packed(held_out),
        "gold": gold,
        "rules": [bars_of(base) for base in baselines],
        "pad": PAD_ID,
    }
