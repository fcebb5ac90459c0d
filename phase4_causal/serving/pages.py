"""How many more texts fit into the same memory, if the cache is cut into pages?

The trained model writes for a hundred users, who ask all at once; each brings the beginning of a
sentence (engine.py). A block as long as the longest text is a cache in one piece, so the block size
is all that differs; none is shared. The third way is a batch: nobody is let in before the whole
batch before has ended.

    python phase4_causal/serving/pages.py
"""

import random

from phase4_causal.models import load_causal_model
from phase4_causal.serving.engine import Engine
from phase4_causal.serving.packed_toy import PackedToy
from shared.claims import Numbers
from shared.experiment import Experiment, Run
from shared.toy_language import sample_sentence
from shared.toy_model import ToyTransformer

USERS, PLACES, LONGEST = 100, 240, 20  # a sentence has 18 words at most, and <start>
BLOCKS = {  # places of a block
    "in one piece, in batches": LONGEST,
    "in one piece": LONGEST,
    "pages of 4": 4,
    "blocks of 1": 1,
}


def served(model: ToyTransformer, prompts: list[list[str]], block_size: int, batch: int) -> Numbers:
    """Counts passes until all is written, and looks into the memory after those with a queue.

    texts: how many are in it, on average. empty: the share of the places in their blocks that holds
    nothing yet.
    """
    engine = Engine(PackedToy(model), PLACES // block_size, block_size, share=False)
    passes = looks = texts = held = filled = 0
    for first in range(0, USERS, batch):
        for prompt in prompts[first : first + batch]:
            engine.add(" ".join(prompt), LONGEST + 1)  # the last word is written, but not kept
        while engine.waiting or engine.running:
            engine.step()
            passes += 1
            if engine.waiting or first + batch < USERS:
                looks += 1
                for text in engine.running:
                    texts += 1
                    held += block_size * len(text.table)
                    filled += text.stored
    return {"texts": texts / looks, "empty": 1 - filled / held, "passes": passes}


def measure(run: Run) -> Numbers:
    """Returns what is counted of each kind of block."""
    model = load_causal_model(run.options, run.seed).model.cpu()
    rng = random.Random(run.seed)
    sentences = [sample_sentence(rng).words for _ in range(USERS)]
    prompts = [list(words[: rng.randint(1, len(words) - 1)]) for words in sentences]
    numbers = {}
    for name, block_size in BLOCKS.items():
        batch = PLACES // LONGEST if name.endswith("in batches") else USERS
        for what, count in served(model, prompts, block_size, batch).items():
            numbers[f"{name}, {what}"] = count
    return numbers


main = Experiment(
    measure,
    answer="{n[pages of 4, texts]:.0f} texts fit instead of {n[in one piece, texts]:.0f}, because "
    "pages are {n[pages of 4, empty]:.0%} empty, and a cache in one piece "
    "{n[in one piece, empty]:.0%}",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
