"""How many words does a large model write in one pass, if a small one drafts?

With drafts that are kept or replaced as in speculative_decoding.py, the large model writes what it
would have written alone: the tests add up all branches. What differs is how often it is asked. The
large model is the causal model of this phase. The small one has one layer of half the width and is
trained for a quarter of the time. Temperature changes how alike they are. Passes are counted, not
seconds: models as small as these spend their time elsewhere.

    python phase4_causal/serving/acceptance_rate.py
"""

import argparse

import torch

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.models import load_causal_model
from phase4_causal.serving.speculative_decoding import chooser, speculate
from phase4_causal.writing.sampling import Sampling
from shared.claims import Numbers
from shared.experiment import Experiment, Run
from shared.toy_language import START_ID, encode
from shared.training.checkpoints import trained_model
from shared.training.objectives import corpus
from shared.training.recipes import LITTLE_DECAY, Recipe

RECIPE = Recipe(
    "draft_model",
    "next word",
    num_heads=4,
    num_layers=1,
    steps=200,
    d_model=32,
    matrix_decay=LITTLE_DECAY,
)
TEMPERATURES = (0, 0.1, 0.25, 0.5, 1, 2)


def measure(run: Run) -> Numbers:
    """Returns what was counted in twenty sentences at each temperature."""
    large = load_causal_model(run.options, run.seed).model
    own_size = argparse.Namespace(**vars(run.options))
    own_size.d_model = own_size.heads = None  # options of the command line are for the large model
    small = trained_model(RECIPE, CausalSelfAttention, own_size, run.seed).model
    prompts = [[START_ID, *encode(sentence.words[:2])] for sentence in corpus()[1][:20]]
    numbers = {}
    for temperature in TEMPERATURES:
        choose = chooser(torch.Generator().manual_seed(run.seed))
        new = passes = accepted = judged = 0
        for prompt in prompts:
            written = speculate(large, small, prompt, Sampling(temperature), choose)
            new += len(written.tokens) - len(prompt)
            passes += written.passes
            accepted += written.accepted
            judged += written.judged
        numbers[f"words a pass, temperature {temperature:g}"] = new / passes
        numbers[f"share of judged words kept, temperature {temperature:g}"] = accepted / judged
    return numbers


main = Experiment(
    measure,
    answer="It writes {n[words a pass, temperature 1]:.1f} words a pass at temperature 1 and "
    "{n[words a pass, temperature 0]:.1f} at temperature 0, and what it writes is distributed as "
    "if it wrote alone",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
