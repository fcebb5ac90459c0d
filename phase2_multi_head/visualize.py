"""What does each head look at: trained beside untrained?

Random weights draw pictures, too: courses like to show eight heads of a module that was never
trained. Here we measure the trained toy model beside the same model before training, each head for
itself. The weights of all heads on every sentence of --sentences are saved to
data/processed/multi_head_patterns.pt. Draws multi_head_grid.png and attention_entropy.png.
"""

import itertools
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.models import choose_word, guess_hidden, likeliest
from phase2_multi_head.models import MULTI_HEAD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, paths
from shared.claims import Numbers
from shared.experiment import Experiment, Picture, Results, Run
from shared.grammar.best_reader import excess_loss, questions
from shared.grammar.roles import NO_NAME, head_names
from shared.grammar.scores import related_pairs
from shared.head_statistics import (
    effective_context,
    layer_statistics,
)
from shared.toy_language import tokenize
from shared.toy_model import MakeAttention, weights_on_sentence
from shared.training.checkpoints import save_tensors, trained_model
from shared.training.objectives import attention_weights, corpus
from shared.training.recipes import Recipe, Trained, untrained_model
from shared.visualization_utils import (
    HIDDEN,
    INK,
    QUIET,
    WIDE,
    frame_cell,
    plot_attention,
    readable,
    role_color,
)


def total_variation(layers: list[Tensor], mask: Tensor) -> float:
    """Returns how far two heads of a layer are apart, mean over pairs and real rows.

    0: alike, 1: no word in common. The distance of two rows of weights is half the sum of their
    absolute differences. layers: weights (N, H, T, T) of each; mask: bool (N, 1, T, T).
    """
    real = mask.any(dim=-1)[:, 0]  # (N, 1, T, T) -> (N, T)
    rows = torch.stack(layers).transpose(2, 3)[:, real]  # -> (L, N, T, H, T) -> (L, rows, H, T)
    distances = torch.cdist(rows, rows, p=1) / 2  # -> (L, rows, H, H)
    num_heads = rows.size(2)
    first, second = torch.triu_indices(num_heads, num_heads, offset=1)
    return distances[..., first, second].mean().item()


def describe_heads(layers: list[Tensor], before: list[Tensor], mask: Tensor) -> dict[str, Tensor]:
    """Returns how widely each head spreads its weight, by column, (L, H); entropy is normalised.

    layers, before: weights (N, H, T, T) of each layer, trained and untrained; mask: bool (N, 1, T,
    T).
    """
    return {
        "entropy": layer_statistics(layers, mask)["normalised entropy"],
        "before training": layer_statistics(before, mask)["normalised entropy"],
        "effective context": torch.stack([effective_context(weights, mask) for weights in layers]),
    }


def numbers_of(columns: dict[str, Tensor]) -> Numbers:
    """Returns every number of every head, as "layer 0 head 1, entropy", and how many are sharper.

    A head is sharper if its entropy is lower than before training.
    """
    sharper = columns["entropy"] < columns["before training"]  # (L, H)
    numbers = {"all heads": sharper.numel(), "sharper heads": int(sharper.sum())}
    for layer, head in torch.ones_like(sharper).nonzero().tolist():
        for column, of_heads in columns.items():
            numbers[f"layer {layer} head {head}, {column}"] = of_heads[layer, head].item()
    return numbers


def recipe_of(make_attention: MakeAttention) -> Recipe:
    """Returns the recipe of this phase; the reader's own attention gets a checkpoint of its own."""
    if make_attention is MultiHeadAttention:
        return MULTI_HEAD_RECIPE
    # With the module in its name, since a copied file may have kept the name of the class.
    name = f"{make_attention.__module__}.{make_attention.__name__}"
    return replace(MULTI_HEAD_RECIPE, name=name)


def weights_on_held_out(trained: Trained) -> tuple[list[Tensor], Tensor]:
    """Returns the weights of every layer, and which words are real; see attention_weights."""
    return attention_weights(trained.model, corpus()[1], trained.recipe.objective)


@torch.no_grad()
def measure(run: Run) -> Numbers:
    """Returns entropies, and how far two heads of a layer are apart, on held-out sentences.

    The control is the same model before training.
    """
    make_attention = run.options.attention
    recipe = recipe_of(make_attention)
    trained = trained_model(recipe, make_attention, run.options, run.seed)
    untrained = untrained_model(trained.recipe, make_attention)
    layers, mask = weights_on_held_out(trained)
    before, _ = weights_on_held_out(untrained)
    columns = describe_heads(layers, before, mask)
    names = head_names(trained, make_attention)
    all_names = list(itertools.chain(*names))
    sharpest = all_names[columns["entropy"].argmin()]  # counted through all layers
    run.shown.update(trained=trained, untrained=untrained, names=names)
    run.shown["named"] = len(all_names) - all_names.count(NO_NAME)
    run.shown["sharpest"] = "has no name" if sharpest == NO_NAME else f"is {sharpest}"
    run.shown.update(example(trained, run.options.words))
    return {
        "untrained, entropy": columns["before training"].mean().item(),
        "untrained, difference": total_variation(before, mask),
        "trained, entropy": columns["entropy"].mean().item(),
        "trained, difference": total_variation(layers, mask),
        **numbers_of(columns),
    }


def example(trained: Trained, words: list[str]) -> dict[str, Any]:
    """Returns what the model guesses for a hidden word of a sentence, and how much it loses."""
    hidden = choose_word(words)
    guesses, _ = guess_hidden(trained.model, [words], [hidden])
    [(guess, probability)] = likeliest(guesses[0], 1)
    held_out = corpus()[1]
    return {
        "guess": f'For a hidden "{words[hidden]}" the model guesses "{guess}" ({probability:.2f})',
        "excess": excess_loss(trained.logits, questions(held_out[:100])),
    }


def save_patterns(results: Results) -> None:
    """Saves the weights of all heads (L, H, T, T) on each of --sentences."""
    model = results.shown["trained"].model
    saved = {
        text: weights_on_sentence(model, tokenize(text)) for text in results.options.all_sentences
    }
    path = results.options.output_dir / paths.PROCESSED / "multi_head_patterns.pt"
    save_tensors(saved, path)


def grid(results: Results) -> Figure:
    """Draws every trained head on one sentence, a layer in each row; below, the last untrained.

    A head whose relation does not occur in the sentence says so, because nothing is framed.
    """
    words, names = results.options.words, results.shown["names"]
    weights = weights_on_sentence(results.shown["trained"].model, words)
    before = weights_on_sentence(results.shown["untrained"].model, words)
    num_layers, num_heads = weights.shape[:2]
    rows = num_layers + 1
    side = max(1.15, 0.17 * len(words))
    size = (side * num_heads + 0.9, (side + 0.4) * rows + 1.2)
    fig, axes = plt.subplots(rows, num_heads, figsize=size, squeeze=False, layout="constrained")
    for layer, row in enumerate(names):
        for head, name in enumerate(row):
            ax = axes[layer, head]
            plot_attention(ax, weights[layer, head], words, annotate=False, labels=False)
            title = f"{layer}.{head} {name}".replace(" →", "\n→")
            ax.set_title(title, fontsize=10, color=readable(role_color(name)), pad=8)
            if name != NO_NAME and not related_pairs(name, words):
                middle = len(words) / 2
                below = {"ha": "center", "va": "top", "color": QUIET}
                ax.text(middle, len(words) + 0.3, "(no such pair\nin this sentence)", **below)
            for query, key in related_pairs(name, words):
                frame_cell(ax, query, key, role_color(name))
    for head, ax in enumerate(axes[-1]):
        plot_attention(ax, before[-1, head], words, annotate=False, labels=False)
        title = f"{num_layers - 1}.{head} untrained"
        ax.set_title(title, fontsize=10, color=QUIET, pad=4)
    for ax in axes.flat:
        ax.label_outer()  # the words once, at the edges
        plt.setp(ax.get_xticklabels(), rotation=90, va="center")
    fig.get_layout_engine().set(w_pad=0.05)
    return fig


def entropy_bars(results: Results) -> Figure:
    """Draws how even each head of the first run is, as an arrow from before training to after."""
    numbers, names = results.measured[0], results.shown["names"]
    num_heads = sum(len(row) for row in names)
    fig, ax = plt.subplots(figsize=(WIDE, 1.6 + 0.36 * num_heads), layout="constrained")
    heights, labels = [], {}
    for layer, row in enumerate(names):
        for head, name in enumerate(row):
            of_head = f"layer {layer} head {head}"
            y = len(heights) + 0.5 * layer  # half a row between two layers
            entropy, before = numbers[f"{of_head}, entropy"], numbers[f"{of_head}, before training"]
            color = role_color(name)
            ax.plot([0, 1], [y, y], color=HIDDEN, linewidth=8, solid_capstyle="butt")
            arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 3, "mutation_scale": 18}
            arrow |= {"shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (entropy, y), (before, y), arrowprops=arrow)
            ax.plot(before, y, "o", color=INK, markersize=7)
            beside = {"va": "center", "ha": "right", "fontsize": 11, "color": readable(color)}
            ground = {"facecolor": "white", "edgecolor": "none", "pad": 2}
            ax.text(entropy - 0.02, y, f"{entropy:.2f}", bbox=ground, **beside)
            heights.append(y)
            labels[f"{name}  {layer}.{head}"] = name
    first = numbers["layer 0 head 0, entropy"]
    for x, when in ((first, "after"), (numbers["layer 0 head 0, before training"], "before")):
        ax.text(x, -0.6, when, ha="center", va="bottom", color=QUIET)
    ax.set_yticks(heights, labels, fontsize=11)
    for label, name in zip(ax.get_yticklabels(), labels.values(), strict=True):
        label.set(color=readable(role_color(name)), weight="normal" if name == NO_NAME else "bold")
    ax.set_xticks([0, 1], ["0: all weight\non one word", "1: even"])
    ax.set(xlim=(0, 1.05), ylim=(heights[-1] + 0.5, -0.6))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return fig


main = Experiment(
    measure,
    more_pictures=[
        Picture(
            "multi_head_grid",
            grid,
            title="Before training all heads look alike; after it {shown[named]} of "
            "{n[all heads]:.0f} have a role",
            note="rows look, dark cells are looked at · framed: the related word\n"
            "{shown[trained].label}: normalised entropy {n[trained, entropy]:.2f}; untrained: "
            "{n[untrained, entropy]:.2f}",
        ),
        Picture(
            "attention_entropy",
            entropy_bars,
            title="Training makes {n[sharper heads]:.0f} of {n[all heads]:.0f} heads sharper; the "
            "sharpest {shown[sharpest]}",
            note="normalised entropy, mean over new sentences · {shown[trained].label}",
        ),
    ],
    keep=save_patterns,
    answer="After training {shown[named]} of the {n[all heads]:.0f} heads have a role, and two "
    "heads of a layer are {n[trained, difference]:.2f} apart; before it they were "
    "{n[untrained, difference]:.2f} apart (0: alike, 1: no word in common). {shown[guess]}, and it "
    "loses {shown[excess]:.2f} nats more than somebody who knows the grammar.",
    add_options=lambda parser: parser.add_argument(
        "--attention",
        type=cli.attention_class,
        default=MultiHeadAttention,
        help="MODULE:CLASS of an attention of your own",
    ),
    claims_apply=lambda options: options.attention is MultiHeadAttention,
    uses="--sentence --sentences --seed --seeds --quick "
    "--device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
