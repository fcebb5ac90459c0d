"""How many more texts fit into the same memory, if the cache is cut into pages?

The trained model writes for a hundred users, who ask all at once; each brings the beginning of a
sentence (engine.py). A block as long as the longest text is a cache in one piece, so the block size
is all that differs; none is shared. In batches: nobody is let in before a whole batch has ended.
"""

import random

from phase4_causal.models import load_causal_model
from phase4_causal.serving.engine import Engine
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run
from shared.toy_language import sample_sentence
from shared.toy_model import ToyTransformer, in_double

USERS, PLACES, LONGEST = 100, 240, 20  # a sentence has 18 words at most, and <start>
BLOCKS = {
    "in one piece, in batches": LONGEST,
    "in one piece": LONGEST,
    "pages of 4": 4,
    "blocks of 1": 1,
}  # places


def served(model: ToyTransformer, prompts: list[list[str]], block_size: int, batch: int) -> Numbers:
    """Counted: passes until all is written. After those with somebody waiting: texts, share of
    their places empty.
    """
    engine = Engine(model, PLACES // block_size, block_size, share=False)
    passes, crowded = 0, []  # texts, places that they hold, and places filled
    for first in range(0, USERS, batch):
        for prompt in prompts[first : first + batch]:
            engine.add(prompt, LONGEST)
        while engine.waiting or engine.running:
            engine.step()
            passes += 1
            if engine.waiting or first + batch < USERS:
                held = block_size * sum(len(text.table) for text in engine.running)
                crowded.append(
                    (len(engine.running), held, sum(text.stored for text in engine.running))
                )
    texts, held, filled = map(sum, zip(*crowded, strict=True))
    return {"texts": texts / len(crowded), "empty": 1 - filled / held, "passes": passes}


def measure(run: Run) -> Numbers:
    model, rng, numbers = (
        in_double(load_causal_model(run.options, run.seed).model),
        random.Random(run.seed),
        {},
    )
    sentences = [list(sample_sentence(rng).words) for _ in range(USERS)]
    prompts = [words[: rng.randint(1, len(words) - 1)] for words in sentences]
    for name, block_size in BLOCKS.items():
        batch = PLACES // LONGEST if name == "in one piece, in batches" else USERS
        numbers |= {
            f"{name}, {what}": n for what, n in served(model, prompts, block_size, batch).items()
        }
    return numbers


main = Experiment(
    measure,
    answer="{n[pages of 4, texts]:.0f} texts fit in pages, {n[in one piece, texts]:.0f} in one piece: of what they "
    "hold {n[pages of 4, empty]:.0%} is empty, else {n[in one piece, empty]:.0%}",
)

if __name__ == "__main__":
    main.run()
