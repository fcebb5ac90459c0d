"""Can attention look into another sequence, and find the right place?

The other sequence is a list of facts in random order, such as "cat: red" and "mat: soft". The
questions are nouns: which adjective belongs to "mat"? The fact with the same noun is the right one,
so we can say of every weight whether it is right or wrong. We compare the model with itself before
training, and with chance.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from phase1_single_head.parts.cross_attention import CrossAttention
from phase1_single_head.parts.facts import NOUNS, Facts, draw_facts, train_lookup
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import ADJECTIVES
from shared.visualization_utils import RED, frame_cell, plot_attention

STEPS = 120


def fact_labels(facts: Facts) -> list[str]:
    """Returns ["cat: red", ..., "(padding)"] for the first list."""
    labels = []
    for number, noun in enumerate(facts.nouns[0].tolist()):
        if number < facts.lengths[0]:
            adjective = facts.adjectives[0, number]
            labels.append(f"{NOUNS[noun]}: {ADJECTIVES[adjective]}")
        else:
            labels.append("(padding)")
    return labels


def measure(run: Run) -> Numbers:
    """Returns shares of the questions in 500 lists that no training has seen.

    An alignment is right if the largest weight of a question lies on the fact that answers it.
    """
    model, scores = train_lookup(CrossAttention, run.seed, run.steps(STEPS))
    facts = draw_facts(500, torch.Generator().manual_seed(10**6 - 1))
    run.shown.update(facts=facts, weights=model(facts)[1].detach())
    return scores | {"by chance": (1 / facts.lengths).mean().item()}


def picture(results: Results) -> Figure:
    """The weights of the first list, a row for each question; the right fact is outlined."""
    facts = results.shown["facts"]
    weights = results.shown["weights"][0, 0]  # (B, 1, T_q, M) -> (T_q, M)
    mask = facts.mask[0, 0]  # (B, 1, 1, M) -> (1, M)
    questions = [f"{NOUNS[noun]}?" for noun in facts.questions[0].tolist()]
    fig, ax = plt.subplots(figsize=(7.6, 4.8), layout="constrained")
    plot_attention(ax, weights, questions, fact_labels(facts), mask=mask, annotate=False)
    for row, column in enumerate(facts.aligned[0].tolist()):
        frame_cell(ax, row, column, RED)
    ax.set(xlabel="the other sequence: facts (keys)", ylabel="questions (queries)")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="{n[right alignments]:.0%} of the questions find their fact in another sequence",
    note=f"trained {STEPS} steps · darker: more weight · outlined: the right fact · "
    "hatched: hidden",
    answer="{n[right alignments]:.0%} of the questions put their largest weight on the fact that "
    "answers them, and before training {n[before training]:.0%} did.",
)

if __name__ == "__main__":
    main.run()
