"""Is a role found in the same head when the model is trained again?

Nothing tells the heads of a layer apart at the start, so training can give "head 2" any role. Two
models are compared that differ in their seed alone: for each relation of the grammar the head that
follows it best in one model is looked up in the other. No model is in two pairs, so that ten runs
are ten independent answers.
"""

from statistics import fmean

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import AGAIN, load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.roles import head_names
from shared.grammar.scores import CORE_RELATIONS, DIRECTIONS, relation_name, score_heads
from shared.toy_language import Sentence
from shared.training.objectives import attention_weights, corpus
from shared.training.recipes import Trained
from shared.visualization_utils import HIDDEN, WIDE, readable, role_color

CLOSE = 0.10  # so near to the best head of a relation, a head has that role as well


def shares_right(trained: Trained, sentences: list[Sentence]) -> Tensor:
    """Returns how often each head is right, (heads, relations), in the better direction."""
    layers, _ = attention_weights(trained.model, sentences, "masked word")
    scores = score_heads(layers, sentences)  # relation -> (L, H, directions)
    best = [scores[relation].amax(dim=-1).flatten() for relation in CORE_RELATIONS]
    return torch.stack(best, dim=-1)


def same_heads(first: Tensor, second: Tensor) -> Numbers:
    """Returns the best head of each relation in one model, looked up in the other, both ways.

    first, second: how often each head of a model is right, (heads, relations).
    """
    reappear, shares = [], []
    for one, other in ((first, second), (second, first)):
        best_heads = one.argmax(dim=0, keepdim=True)
        share = other.gather(0, best_heads)[0]  # (heads, relations) -> (relations,)
        shares.append(share.mean().item())
        reappear.append((share >= other.amax(dim=0) - CLOSE).double().mean().item())
    return {
        "roles found in the same head": fmean(reappear),
        "share right, same head": fmean(shares),
        "share right, mean head": fmean(torch.cat([first, second]).flatten().tolist()),
    }


def measure(run: Run) -> Numbers:
    """Returns shares of six roles, and of held-out pairs: of the same head, of the mean head."""
    _, sentences = corpus()
    if run.options.quick:
        sentences = sentences[:100]
    one = load_multi_head_model(run.options, run.seed)
    other = load_multi_head_model(run.options, run.seed + AGAIN)
    run.shown.update(model=one.label, models=[one, other])
    return same_heads(shares_right(one, sentences), shares_right(other, sentences))


def draw_who_follows(ax: Axes, names: list[list[str]], relation: str) -> None:
    """Draws the heads of a model, a row for each layer; those that follow it are filled."""
    follow = {relation_name(relation, direction) for direction in DIRECTIONS}
    for layer, row in enumerate(names):
        for head, name in enumerate(row):
            color = role_color(relation) if name in follow else HIDDEN
            corner = (head + 0.04, layer + 0.05)
            ax.add_patch(plt.Rectangle(corner, 0.92, 0.9, color=color, linewidth=0))
            if name in follow:
                style = {"ha": "center", "va": "center", "weight": "bold", "fontsize": 10}
                ax.text(head + 0.5, layer + 0.5, f"{layer}.{head}", color="white", **style)
    ax.set(xlim=(0, len(names[0])), ylim=(len(names), 0), xticks=[], yticks=[])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def picture(results: Results) -> Figure:
    """Draws a row for each core relation, a column for each of two models."""
    models = results.shown["models"]
    size = {"figsize": (WIDE, 4.3), "layout": "constrained"}
    fig, axes = plt.subplots(len(CORE_RELATIONS), len(models), **size)
    fig.get_layout_engine().set(wspace=0.06, hspace=0.08)
    for column, trained in enumerate(models):
        names = head_names(trained, MultiHeadAttention)
        axes[-1, column].set_xlabel(("first training", "second training")[column], fontsize=11)
        for row, relation in enumerate(CORE_RELATIONS):
            draw_who_follows(axes[row, column], names, relation)
    layers = [f"layer {layer}" for layer in range(len(names))]
    for ax, relation in zip(axes[:, 0], CORE_RELATIONS, strict=True):
        style = {"loc": "left", "weight": "bold", "fontsize": 11}
        name = relation.replace("-", " ↔ ")
        ax.set_title(name, color=readable(role_color(relation)), **style)
        ax.set_yticks([layer + 0.5 for layer in range(len(names))], layers)
    return fig


def finding(n: Numbers) -> str:
    """Returns how many roles come back."""
    how_many = "{n[roles found in the same head]:.0%} of the roles come"
    if n["roles found in the same head"] == 0:
        how_many = "no role comes"
    return f"Train again: {how_many} back in the same head"


main = Experiment(
    measure,
    picture=picture,
    title=finding,
    note="a box: a head · coloured: it has this role · adjectives are left out\n"
    "{shown[model]}, each with a seed of its own",
    answer="Of two models, {n[roles found in the same head]:.0%} of the roles reappear in the "
    "same head. That head finds the related word in {n[share right, same head]:.0%} of the "
    "cases, and an average head in {n[share right, mean head]:.0%}",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
