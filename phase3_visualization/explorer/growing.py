"""What does a page need to train the toy transformer by itself?

The recipe of phase 2, the sentences to learn from, the held-out sentences with their gold, and the bars over which a
head must get for a name: the baselines are measured here, once, as shared/grammar/roles.py does it for every picture.
The training is written a second time, by hand, in JavaScript: explorer/page/grow/. The tests compare the two.
"""

from phase2_multi_head.models import RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer.models import as_text
from shared import optimization, training
from shared.grammar import roles
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.toy_language import MASK_ID, MAX_LENGTH, PAD_ID, RELATIONS, SPECIAL, VOCABULARY, Sentence, encode

TRAIN_SENTENCES = 8_000  # of the 20,000 that the other models see: each comes up about six times
TIES = [(relation, direction, relation_name(relation, direction)) for relation in RELATIONS for direction in DIRECTIONS]


def packed(sentences: list[Sentence]) -> str:
    """A byte for each word, <pad> after each sentence, as a text."""
    rows = (bytes([*encode(sentence.words), PAD_ID]) for sentence in sentences)
    return as_text(b"".join(rows))


def rule(base: roles.Baselines) -> dict[str, list[dict]]:
    """The bars of roles.margins, in its order: a head has a name if its share is as high or higher."""
    positions = [
        {"name": name, "place": place, "bar": max(roles.POSITIONAL, base.untrained[place] + roles.MARGIN)}
        for place, name in roles.NAMES.items()
    ]
    relations = [
        {"name": name, "relation": r, "backward": way == DIRECTIONS[1], "bar": base.bar((r, way)) + roles.MARGIN}
        for r, way, name in TIES
    ]
    keys = list(base.fixed_offset)
    columns = [
        {"name": name, "of": keys.index(key), "bar": max(roles.MOST, base.untrained[name] + roles.MARGIN)}
        for name, key in roles.COLUMNS.items()
    ]
    return {"positions": positions, "relations": relations, "columns": columns}


def recipe() -> dict[str, int | float]:
    """Sizes, steps and rates of shared/training.py, for a model with the seed of the reader's choice."""
    return {
        "d_model": RECIPE.d_model,
        "num_heads": RECIPE.num_heads,
        "num_layers": RECIPE.num_layers,
        "steps": RECIPE.steps,
        "batch_size": RECIPE.batch_size,
        "matrix_rate": optimization.MATRIX_RATE,
        "rate": optimization.RATE,
        "matrix_decay": RECIPE.matrix_decay,
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
    """All that the page is told for growing a head; rules: of the half that names heads, and of the other."""
    train, held_out = training.corpus()
    return {
        "recipe": recipe(),
        "train": packed(train[:TRAIN_SENTENCES]),
        "held_out": packed(held_out),
        "gold": {r: [[i for pair in s.relations[r] for i in pair] for s in held_out] for r in RELATIONS},  # flat
        "rules": [rule(base) for base in roles.baselines(RECIPE, MultiHeadAttention)],
        "pad": PAD_ID,
    }
