"""Two pictures of many heads: what each of them looks at, and how sharply; trained beside untrained.

    python phase2_multi_head/visualize.py
    python phase2_multi_head/visualize.py --sentence "those dogs slept in a soft bed"

Writes multi_head_grid.png and attention_entropy.png to visualizations/plots/phase2/, and the weights of all heads on
every sentence of --sentences to data/processed/multi_head_patterns.pt. Why untrained models beside the trained ones:
random weights draw pictures too, and only the comparison shows what was learned.
"""

import argparse
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from shared import cli, paths, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import encode, tokenize
from shared.training import Trained, head_entropy
from shared.visualization_utils import HIDDEN, QUIET, head_color, model_note, plot_heads, save_figure, weight_colorbar

UNTRAINED_MODELS = 20  # with different seeds, to see how far chance alone spreads the heads


@torch.no_grad()
def patterns(trained: Trained, words: list[str]) -> Tensor:
    """Weights of all heads of all layers on one sentence -> (L, H, T, T)."""
    tokens = torch.tensor([encode(words)], device=trained.model.positions.device)
    _, layers = trained.model(tokens)
    return torch.cat(layers).cpu()  # L x (1, H, T, T) -> (L, H, T, T)


def draw_grid(trained: Trained, untrained: Trained, words: list[str]) -> tuple[Figure, str]:
    """Every head on one sentence, a layer in each row, the trained model above the untrained one."""
    models = (trained, untrained)
    weights = [patterns(model, words) for model in models]  # each (L, H, T, T)
    num_layers, num_heads = weights[0].shape[:2]
    entropy = [normalized_entropy(w).nanmean().item() for w in weights]
    side = max(2.1, 0.2 * len(words))
    fig = plt.figure(figsize=(side * num_heads + 1.2, (side + 0.35) * 2 * num_layers + 1.1), layout="constrained")
    parts = fig.subfigures(2, 1)
    for part, model, w, e in zip(parts, models, weights, entropy, strict=True):
        axes = part.subplots(num_layers, num_heads, squeeze=False)
        for layer in range(num_layers):
            titles = [f"layer {layer} head {head}" for head in range(num_heads)]
            plot_heads(w[layer], words, axes=axes[layer], titles=titles)
        part.suptitle(f"{model.label}: normalised entropy {e:.2f}", fontsize=11, color=QUIET)
        weight_colorbar(part, list(axes.flat), shrink=0.6, aspect=30)
    title = f"Training turns {num_layers * num_heads} blurred heads into sharp, different ones"
    if entropy[0] > entropy[1] - 0.1:
        title = f"{trained.recipe.steps} steps are too few: trained and untrained heads look alike"
    fig.suptitle(title, fontsize=13)
    return fig, f'{title}: every head on "{" ".join(words)}", queries down, keys across, trained above untrained.'


def draw_entropy(trained: Trained, chance: Tensor) -> tuple[Figure, str, list[float]]:
    """A bar per head over the held-out sentences, and the band in which untrained heads lie."""
    entropy = head_entropy(trained.model, training.corpus()[1], trained.recipe.objective)
    bars = [(layer, head, value) for layer, row in enumerate(entropy) for head, value in enumerate(row)]
    low, high = chance.min().item(), chance.max().item()
    below = sum(value < low for _, _, value in bars)
    title = f"{below} of {len(bars)} heads are sharper than any of {chance.numel()} untrained heads"
    fig, ax = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    ax.axhspan(low, high, color=HIDDEN, zorder=0)
    ax.text(-0.4, high + 0.012, f"untrained heads: {low:.2f} to {high:.2f}", color=QUIET, fontsize=9, va="bottom")
    ax.bar(range(len(bars)), [value for *_, value in bars], color=[head_color(head) for _, head, _ in bars], width=0.7)
    for x, (_, _, value) in enumerate(bars):
        ax.text(x, value + 0.012, f"{value:.2f}", ha="center", fontsize=9)
    ax.set_xticks(range(len(bars)), [f"layer {layer}\nhead {head}" for layer, head, _ in bars], fontsize=9)
    ax.set(ylim=(0, 1.1), yticks=(0, 0.5, 1), ylabel="normalised entropy\n(0: one word, 1: all words alike)")
    ax.set_title(title, pad=10)
    model_note(
        fig,
        f"{trained.label}, {trained.recipe.num_layers} layers; mean over {training.NUM_HELD_OUT} held-out sentences",
    )
    return fig, title + ": normalised entropy of every head.", [value for *_, value in bars]


def untrained_entropies(recipe: training.Recipe, number: int) -> Tensor:
    """Normalised entropy of the heads of many untrained models -> (models, L, H)."""
    held_out = training.corpus()[1][:100]
    models = (training.new_model(replace(recipe, seed=seed), MultiHeadAttention) for seed in range(number))
    return torch.tensor([head_entropy(model, held_out, recipe.objective) for model in models])


def record_findings(entropies: list[float], chance: Tensor, options: argparse.Namespace) -> None:
    spread = max(entropies) - min(entropies)
    chance_spread = (chance.flatten(1).amax(dim=1) - chance.flatten(1).amin(dim=1)).max().item()
    findings.record(
        "phase2_multi_head/visualize.py",
        [
            Finding(
                "C070",
                "Attention patterns emerge during training; they are not built in",
                "course notes",
                {"trained heads": entropies, "lowest of the untrained heads": chance.min().item()},
                "normalised entropy on held-out sentences",
                "every trained head at least 0.05 below the lowest untrained one",
                findings.verdict(max(entropies) < chance.min().item() - 0.05),
                control=f"{len(chance)} untrained models",
                seeds=[options.seed],
            ),
            Finding(
                "C072",
                "Entropy per head reveals which heads are specialised",
                "course notes",
                {"spread of the trained heads": spread, "largest spread in an untrained model": chance_spread},
                "normalised entropy, largest minus smallest head of one model",
                "trained at least twice the untrained; and untrained below 0.02, so that nothing can be misread",
                **findings.conditional(
                    spread >= 2 * chance_spread and chance_spread < 0.02,
                    spread >= 2 * chance_spread,
                    "the model is trained: untrained heads differ too, by chance",
                ),
                control=f"{len(chance)} untrained models",
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)

    saved = {sentence: patterns(trained, tokenize(sentence)) for sentence in options.all_sentences}
    with paths.whole_file(options.output_dir / paths.PROCESSED / "multi_head_patterns.pt") as unfinished:
        torch.save(saved, unfinished)

    plots = options.output_dir / paths.PLOTS / "phase2"
    untrained = training.untrained(trained.recipe, MultiHeadAttention)
    figure, caption = draw_grid(trained, untrained, options.words)
    save_figure(figure, plots / f"multi_head_grid.{options.format}", caption=caption)

    chance = untrained_entropies(trained.recipe, 4 if options.quick else UNTRAINED_MODELS)
    figure, caption, entropies = draw_entropy(trained, chance)
    save_figure(figure, plots / f"attention_entropy.{options.format}", caption=caption)
    record_findings(entropies, chance, options)


if __name__ == "__main__":
    cli.run(main)
