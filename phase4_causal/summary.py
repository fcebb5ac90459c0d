"""One picture for all four phases: one head, many heads, what they do, and the view without a future.

    python phase4_causal/summary.py

Writes summary_all_phases.png to visualizations/plots/.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from phase1_single_head.self_attention import choose_word, load_single_head_model
from phase1_single_head.visualize import attention_weights
from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase2_multi_head.visualize import patterns
from phase3_visualization.attention_flow import draw_flow
from phase4_causal.causal_attention import load_causal_model
from phase4_causal.visualize import weights_of
from shared import cli, paths, training
from shared.attention_utils import causal_mask, normalized_entropy
from shared.grammar_scores import best_heads, score_heads
from shared.toy_language import START
from shared.training import Trained, attention_on
from shared.visualization_utils import (
    head_color,
    model_note,
    plot_attention,
    plot_heads,
    save_figure,
    weight_colorbar,
)

RELATIONS = ("determiner-noun", "verb-subject", "verb-place")


def draw(single: Trained, multi: Trained, causal: Trained, words: list[str]) -> tuple[Figure, str]:
    """Four parts, a phase in each."""
    held_out = training.corpus()[1]
    layers, _ = attention_on(multi.model, held_out, multi.recipe.objective)
    best = best_heads(score_heads(layers, held_out))
    weights = patterns(multi, words)  # (L, H, T, T)

    fig = plt.figure(figsize=(10.6, 9.8), layout="constrained")
    parts = fig.subfigures(2, 2, hspace=0.05, wspace=0.04).flat

    one_head = attention_weights(single, words)
    verb = choose_word(words)
    target = int(one_head[verb].argmax())
    ax = parts[0].subplots()
    plot_attention(one_head, words, ax=ax)
    parts[0].suptitle(
        f'1  One head: "{words[verb]}" gives "{words[target]}" {one_head[verb, target]:.2f} of its weight'
    )

    num_layers, num_heads = weights.shape[:2]
    axes = parts[1].subplots(num_layers, num_heads, squeeze=False)
    for layer in range(num_layers):
        titles = [f"layer {layer} head {head}" for head in range(num_heads)]
        plot_heads(weights[layer], words, axes=axes[layer], titles=titles)
        for ax in axes[layer]:
            ax.set(xticks=[], yticks=[])
    parts[1].suptitle("2  Many heads: different patterns, same sentence")

    axes = parts[2].subplots(len(RELATIONS), 1)
    for ax, relation in zip(axes, RELATIONS, strict=True):
        head = best[relation]
        draw_flow(ax, weights[head.layer, head.head], words, color=head_color(head.head), threshold=2, bend=0.3)
        direction = (
            relation.replace("-", " → ") if head.direction == "forward" else " → ".join(relation.split("-")[::-1])
        )
        ax.set_title(
            f"{direction}: {head.name}, right for {head.accuracy:.0%}", fontsize=9.5, color=head_color(head.head)
        )
    parts[2].suptitle("3  Nobody told them the grammar, yet heads follow it")

    seen = [START, *words]
    mask = causal_mask(len(seen))
    learned = torch.cat(weights_of(causal.model, seen))  # (L * H, T, T)
    sharpest = int(normalized_entropy(learned, mask.expand_as(learned)).nanmean(dim=-1).argmin())
    ax = parts[3].subplots()
    plot_attention(learned[sharpest], seen, mask=mask, ax=ax)
    weight_colorbar(parts[3], ax, shrink=0.6)
    parts[3].suptitle("4  Without a future: what a model that writes can see")

    title = f'Attention in four steps: "{" ".join(words)}"'
    fig.suptitle(title, fontsize=14)
    entropy = [
        normalized_entropy(w, m).nanmean().item()
        for w, m in ((one_head, None), (weights, None), (learned, mask.expand_as(learned)))
    ]
    model_note(
        fig,
        f"1: {single.label} · 2 and 3: {multi.label} · 4: {causal.label}, causal · "
        f"normalised entropy {entropy[0]:.2f}, {entropy[1]:.2f}, {entropy[2]:.2f}",
    )
    return fig, f"{title}: one head, many heads, the relations they learn, and the causal view."


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    models = (load_single_head_model(options), load_multi_head_model(options), load_causal_model(options))
    if options.train_only:
        return
    figure, caption = draw(*models, options.words)
    save_figure(figure, options.output_dir / paths.PLOTS / f"summary_all_phases.{options.format}", caption=caption)


if __name__ == "__main__":
    cli.run(main)
