"""Does a transformer with its norms behind the additions (post-norm) train here?

The first transformer normalised what came out of an addition, norm(x + sublayer(x)). Today's models
normalise what goes into a sub-layer (pre-norm). Xiong et al. (2020) say that post-norm needs a
learning rate that starts small and rises, which is called warm-up. We train two layers of four
heads to guess hidden words, with pre-norm and with post-norm, from the same initial weights and on
the same batches. Once the learning rate rises for three tenths of the training, as usual, and once
it starts at the top.
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
    """Returns the share of the highest learning rate at a step from 0 to steps - 1.

    It is all of it at first, then goes down along half a wave.
    """
    return (1 + math.cos(math.pi * step / steps)) / 2


TRAINS = 1  # nats above the best loss: whoever ends below has learned much of the grammar
RATES = {"with warm-up": one_cycle, "without warm-up": from_the_top}
BLOCKS: dict[str, type[Block]] = {"pre-norm": Block, "post-norm": PostNormBlock}
COLORS = {"pre-norm": BLUE, "post-norm": ORANGE}


def model_of(kind: type[Block], seed: int) -> Trained:
    """Returns a new toy transformer of such blocks; a seed gives the same weights to both kinds."""
    trained = training.untrained(replace(MULTI_HEAD_RECIPE, seed=seed), MultiHeadAttention)
    for i, block in enumerate(trained.model.blocks):
        own = kind(trained.recipe.d_model, block.attention)
        own.load_state_dict(block.state_dict())
        trained.model.blocks[i] = own
    return trained


def measure(run: Run) -> Numbers:
    """Returns the excess loss on held-out sentences, in nats per hidden word."""
    asked, steps = questions(training.corpus()[1][:ASKED]), run.steps(STEPS)
    numbers = {}
    for kind, block in BLOCKS.items():
        for rates, share in RATES.items():
            name = f"{kind}, {rates}"
            trained = model_of(block, run.seed)
            train_in_order(trained, steps, name, share=partial(share, steps=steps))
            numbers[name] = excess_loss(trained.logits, asked)
    return numbers


def answer(n: Numbers) -> str:
    """Returns the answer: post-norm trains if it ends less than a nat above the best loss."""
    with_it, without = n["post-norm, with warm-up"], n["post-norm, without warm-up"]
    said = "Yes" if with_it < TRAINS else "Not in this run"
    return (
        f"{said}: with warm-up it loses {with_it:.2f} nats more than it must, and pre-norm "
        f"{n['pre-norm, with warm-up']:.2f}. Without warm-up post-norm "
        f"{'trains' if without < TRAINS else 'does not train'} ({without:.2f} nats)."
    )


def picture(found: Results) -> Figure:
    """Draws the excess loss of each of the four."""
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
    answer=answer,
)

if __name__ == "__main__":
    main.run()
