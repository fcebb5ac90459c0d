"""Does a transformer with its norms behind the additions (post-norm) train here?

The first transformer normalised what came out of an addition, norm(x + sublayer(x)); today's
normalise what goes into a sub-layer (pre-norm). Xiong et al. (2020) say that post-norm needs a
learning rate that starts small and rises, called warm-up. Two layers of four heads guess hidden
words, with the norms before and behind, from the same initial weights and on the same batches: once
with the usual rates, which rise for three tenths of the training, and once from the top.
"""

import math
from dataclasses import replace
from functools import partial

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from phase2_multi_head.block.block_by_parts import PostNormBlock
from phase2_multi_head.models import MULTI_HEAD_RECIPE, train_in_order
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts, training
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.best_reader import excess_loss, questions
from shared.optimization import one_cycle
from shared.toy_model import Block
from shared.training import Trained
from shared.visualization_utils import BLUE, ORANGE

STEPS, ASKED = 300, 100  # steps, held-out sentences


def from_the_top(step: int, steps: int) -> float:
    """Share of the highest rate at a step from 0 to steps - 1.

    All of it at first, then down along half a wave.
    """
    return (1 + math.cos(math.pi * step / steps)) / 2


RATES = {"with warm-up": one_cycle, "without warm-up": from_the_top}
BLOCKS: dict[str, type[Block]] = {"pre-norm": Block, "post-norm": PostNormBlock}
COLORS = {"pre-norm": BLUE, "post-norm": ORANGE}


def model_of(kind: type[Block], seed: int) -> Trained:
    """A new toy transformer of such blocks; one seed gives the same weights to both kinds."""
    trained = training.untrained(replace(MULTI_HEAD_RECIPE, seed=seed), MultiHeadAttention)
    for i, block in enumerate(trained.model.blocks):
        own = kind(trained.recipe.d_model, block.attention)
        own.load_state_dict(block.state_dict())
        trained.model.blocks[i] = own
    return trained


def measure(run: Run) -> Numbers:
    """Excess loss on held-out sentences, in nats per hidden word."""
    asked, steps = questions(training.corpus()[1][:ASKED]), run.steps(STEPS)
    numbers = {}
    for kind, block in BLOCKS.items():
        for rates, share in RATES.items():
            name = f"{kind}, {rates}"
            trained = model_of(block, run.seed)
            train_in_order(trained, steps, name, share=partial(share, steps=steps))
            numbers[name] = excess_loss(trained.logits, asked)
    return numbers


def picture(found: Results) -> Figure:
    """The excess loss of each of the four."""
    fig, ax = plt.subplots(figsize=(7.6, 2.8), layout="constrained")
    losses = {name: found.each(name) for name in found.mean}
    colors = {name: COLORS[name.split(",")[0]] for name in losses}
    charts.bars(ax, losses, colors)
    ax.set_xlabel("excess loss, nats per hidden word")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="With its norms behind the additions the model trains, too, but more slowly",
    note=f"trained {STEPS} steps from the same weights · two layers of four heads · 0: nobody can "
    f"do better",
    answer="Post-norm loses {n[post-norm, with warm-up]:.2f} nats more than it must, pre-norm "
    "{n[pre-norm, with warm-up]:.2f}; without warm-up it is {n[post-norm, without warm-up]:.2f} "
    "and {n[pre-norm, without warm-up]:.2f}",
)

if __name__ == "__main__":
    main.run()
