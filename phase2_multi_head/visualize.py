"""What does each head look at: trained beside untrained?

Random weights draw pictures, too: courses like to show eight heads of a module that was never trained. Here it is
measured beside the trained toy model and the same model before training. The weights of all heads on every sentence of
--sentences are saved to data/processed/multi_head_patterns.pt.
"""

import argparse
import importlib
from dataclasses import replace
from statistics import fmean

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from phase1_single_head.models import choose_word, guess_hidden, likeliest
from phase2_multi_head.models import RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import checkpoints, paths, training
from shared.attention_utils import normalized_entropy
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.entropy import excess_loss, questions
from shared.grammar.roles import NO_NAME, golds, head_names
from shared.grammar.scores import relation_name, with_relations
from shared.toy_language import tokenize
from shared.toy_model import MakeAttention, weights_of
from shared.visualization_utils import plot_heads, role_color, weight_colorbar


def total_variation(weights: Tensor, rows: Tensor) -> float:
    """Mean over pairs of heads and real rows of half the sum of |difference|: 0 alike, 1 no word in common.

    weights (N, H, T, T), rows (N, T).
    """
    first, second = torch.triu_indices(weights.size(1), weights.size(1), offset=1)
    moved = (weights[:, first] - weights[:, second]).abs().sum(dim=-1) / 2  # (N, H, T, T) -> (N, pairs, T)
    return moved.mean(dim=1)[rows].mean().item()


def describe(name: str, layers: list[Tensor], mask: Tensor) -> dict[str, float]:
    """Normalised entropy, mean over heads, and how different two heads of a layer are.

    layers: weights (N, H, T, T) of each; mask (N, 1, T, T): real words.
    """
    rows = mask.any(dim=-1)[:, 0]  # (N, 1, T, T) -> (N, T)
    return {
        f"{name}, entropy": fmean(normalized_entropy(w, mask).nanmean(dim=(0, 2)).mean().item() for w in layers),
        f"{name}, difference": fmean(total_variation(weights, rows) for weights in layers),
    }


@torch.no_grad()
def measure(run: Run) -> Numbers:
    """Mean total variation between the rows of two heads of a layer, 0 alike, 1 no word in common; held-out sentences.

    Controls: untrained modules, the toy model, and 8 heads, d_model = 512, on 10 random tokens as in the figures.
    """
    options, make_attention = run.options, run.options.attention
    own_name = f"{make_attention.__module__}.{make_attention.__name__}"  # a copied file may have kept the class's name
    recipe = RECIPE if make_attention is MultiHeadAttention else replace(RECIPE, name=own_name)
    with torch.enable_grad():
        trained = checkpoints.trained_model(recipe, make_attention, options, run.seed)
    untrained = training.untrained(trained.recipe, make_attention)
    torch.manual_seed(run.seed)
    _, weights = MultiHeadAttention(512, 8)(torch.randn(2, 10, 512))
    numbers = describe("as in the figure", [weights], torch.ones(2, 1, 10, 10, dtype=torch.bool))
    for name, each in (("untrained", untrained), ("trained", trained)):
        layers, mask = training.attention_on(each.model, training.corpus()[1], each.recipe.objective)
        numbers |= describe(name, [layer.cpu() for layer in layers], mask.cpu())
    if run.seed == options.seed:
        names = head_names(trained, make_attention)
        run.shown.update(trained=trained, untrained=untrained, label=trained.label, words=options.words, names=names)
        run.shown["named"] = sum(name != NO_NAME for row in names for name in row)
        hidden = choose_word(options.words)
        ((guess, probability),) = likeliest(guess_hidden(trained.model, [options.words], [hidden])[0][0], 1)
        run.shown["guess"] = f'For a hidden "{options.words[hidden]}" the model guesses "{guess}" ({probability:.2f})'
        run.shown["excess"] = excess_loss(trained.logits, questions(training.corpus()[1][:100]))  # held out
        saved = {sentence: weights_of(trained.model, tokenize(sentence)) for sentence in options.all_sentences}
        path = options.output_dir / paths.PROCESSED / "multi_head_patterns.pt"
        with paths.whole_file(path) as unfinished, unfinished.open("wb") as file:
            torch.save(saved, file)
    return numbers


CLAIM = Claim(
    id="C075",
    text="By training, different heads of a layer come to look at different words, in two layers of four heads; those "
    "of a new module do not",
    source="course notes: titles of figures, over modules with random weights",
    rule="trained heads are at least 0.2 further apart than those of the same model before training and those of the "
    "figures",
    effect=lambda n: n["trained, difference"] - max(n["untrained, difference"], n["as in the figure, difference"]),
    at_least=0.2,
    oracle={"trained, difference": 0.6, "*, difference": 0.1},
    null={"*, difference": 0.6},
    revised="one rule for five sentences (C071 to C075), which were judged by entropy, distance and sparseness",
)


def picture(found: Results) -> Figure:
    """Every trained head on one sentence, a layer in each row, by its role; below, the last layer before training."""
    words, names = found.shown["words"], found.shown["names"]
    weights, before = (weights_of(found.shown[model].model, words) for model in ("trained", "untrained"))
    num_layers, num_heads = weights.shape[:2]
    side = max(1.85, 0.17 * len(words))
    size = (side * num_heads + 1.6, side * (num_layers + 1) + 1.2)
    fig, axes = plt.subplots(num_layers + 1, num_heads, figsize=size, squeeze=False, layout="constrained")
    for layer, row in enumerate(names):
        titles = [f"{name} ({layer}.{head})" for head, name in enumerate(row)]
        plot_heads(weights[layer], words, axes=axes[layer], titles=titles, colors=list(map(role_color, row)))
        axes[layer, 0].set_ylabel(f"layer {layer}", fontsize=12)
        for ax, name in zip(axes[layer], row, strict=True):
            frame_related(ax, name, words)
    plot_heads(before[-1], words, axes=axes[-1], titles=[""] * num_heads)
    axes[-1, 0].set_ylabel(f"layer {num_layers - 1},\nuntrained", fontsize=12)
    for place, ax in enumerate(axes.flat):
        ax.tick_params(labeltop=place < num_heads, labelleft=place % num_heads == 0)  # the words once, at the edges
    weight_colorbar(fig, list(axes.flat), shrink=0.4, aspect=30)
    return fig


def frame_related(ax: Axes, name: str, words: list[str]) -> None:
    """Frame the cells where the role of a head has its weight, if it is a relation and this sentence has it."""
    gold = {relation_name(*key): matrix[0] for key, matrix in golds([with_relations(words)]).items()}
    for query, key in gold[name].nonzero().tolist() if name in gold else []:
        ax.add_patch(Rectangle((key, query), 1, 1, fill=False, edgecolor=role_color(name), linewidth=2.5, zorder=4))


def attention_class(name: str) -> MakeAttention:
    """What --attention names: "phase2_multi_head.alibi_attention:AlibiAttention"."""
    module, _, own = name.partition(":")
    try:
        return getattr(importlib.import_module(module), own)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"MODULE:CLASS, please: {error}") from None


main = Experiment(
    measure,
    [CLAIM],
    picture,
    title="Training gives {shown[named]} of these heads a role",
    note="{shown[label]} · roles by rule; framed: the words they are about · normalised entropy "
    "{n[trained, entropy]:.2f}, untrained {n[untrained, entropy]:.2f}",
    answer="Two heads of a layer are {n[trained, difference]:.2f} apart, before training "
    "{n[untrained, difference]:.2f}: 0 is alike, 1 no word in common. "
    "{shown[guess]}, and its excess loss is {shown[excess]:.2f} nats",
    options=lambda parser: parser.add_argument(
        "--attention", type=attention_class, default=MultiHeadAttention, help="MODULE:CLASS of an attention of your own"
    ),
    about=lambda options: options.attention is MultiHeadAttention,
)

if __name__ == "__main__":
    main.run()
