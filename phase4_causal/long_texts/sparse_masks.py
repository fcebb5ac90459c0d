"""What do sparse masks reach, and what do they cost in answers?

Reach: a position sees few others, and the next layer reads what those have read. As matrices of 0
and 1, reach after a layer = pattern · reach before it; the residual connection keeps what was
there. We compare a window, every 8th word, and both in turn (Child et al. 2019). Reach says what
could arrive, not that a trained model sends it. So a model that was trained on all earlier words
then predicts the next words of held-out sentences through such masks, without any training for
them: what does it lose for each word?
"""

import math
from collections.abc import Iterator
from itertools import cycle, islice

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.models import load_causal_model
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.best_reader import next_word_floor
from shared.toy_language import PAD_ID, Sentence
from shared.toy_model import ToyTransformer
from shared.training.objectives import corpus, to_batch
from shared.visualization_utils import BLUE, ORANGE, QUIET, hatch_cell, readable

LENGTH, NEAR = 64, 8  # words; window and stride
WINDOW, STRIDE = local_mask(LENGTH, LENGTH, NEAR), strided_mask(LENGTH, LENGTH, NEAR)
PATTERNS = {
    "near words": [WINDOW],
    "every 8th word": [STRIDE],
    "near and every 8th in turn": [WINDOW, STRIDE],
}

# Of the trained model: how many words a window shows before the word itself, and the stride.
WINDOWS, EVERY = (1, 2, 4, 8), 4
FULL, FAR = "all earlier words", f"every {EVERY}th word"
BOTH = f"the word before and every {EVERY}th"


def reach(masks: list[Tensor]) -> Iterator[Tensor]:
    """Returns what has reached whom after each layer, the masks in turn -> bool (T, T).

    Row i has the words that position i can have heard of.
    """
    seen = torch.eye(len(masks[0]), dtype=torch.bool)
    for mask in cycle(masks):
        # What it knew itself, and what those that it attends to had heard of.
        seen = seen | (mask.float() @ seen.float() > 0)
        yield seen


def layers_needed(masks: list[Tensor], target: Tensor) -> float:
    """Layers until everyone has heard of all that `target` (T, T) names; inf if never."""
    enough = len(target) * len(masks)  # by then a whole turn of the masks has brought nothing new
    for count, seen in enumerate(islice(reach(masks), enough), start=1):
        if (seen | ~target).all():
            return count
    return math.inf


def after_two_layers(masks: list[Tensor]) -> Tensor:
    """Returns what has reached whom by then, bool (T, T)."""
    _, seen = islice(reach(masks), 2)
    return seen


def masks_of(length: int) -> dict[str, Tensor]:
    """Returns masks of the trained model by name, bool (T, T); the causal mask comes on top."""
    every_word = torch.ones(length, length, dtype=torch.bool)
    far = strided_mask(length, length, EVERY)
    windows = {f"window {size}": local_mask(length, length, size) for size in WINDOWS}
    return {FULL: every_word, **windows, FAR: far, BOTH: far | local_mask(length, length, 1)}


@torch.no_grad()
def answers_through(
    model: ToyTransformer, sentences: list[Sentence], mask: Tensor
) -> tuple[float, float]:
    """Loss in nats a word, and share of next words that are the likeliest one, through a mask.

    mask: bool (T, T), of all layers; T - 1 is the number of words in the longest sentence. The
    causal mask of the model comes on top, and since padding stands behind the words, it hides that.
    """
    device = model.positions.device
    tokens, _ = to_batch(sentences, "next word")
    seen, wanted = tokens[:, :-1].to(device), tokens[:, 1:].to(device)
    logits, _ = model(seen, mask=mask.to(device))
    flat = logits.flatten(0, 1)  # (N, T, V) -> (N * T, V)
    loss = F.cross_entropy(flat, wanted.flatten(), ignore_index=PAD_ID)
    right = logits.argmax(dim=-1) == wanted
    return loss.item(), right[wanted != PAD_ID].double().mean().item()


def measure(run: Run) -> Numbers:
    """Layers until all words have met, or, if causal, each has heard of all before it; nats a word.

    A pattern that never gets there has no number of layers.
    """
    past = causal_mask(LENGTH)
    found: Numbers = {}
    for name, masks in PATTERNS.items():
        both_ways = layers_needed(masks, past | ~past)
        causal = layers_needed([mask & past for mask in masks], past)
        for way, layers in {"both ways": both_ways, "causal": causal}.items():
            if layers < math.inf:
                found[f"{name}, {way}"] = layers
        found[f"{name}, met in two layers"] = after_two_layers(masks).double().mean().item()
    trained = load_causal_model(run.options, run.seed)
    run.shown["model"] = trained.label
    sentences = corpus()[1]
    longest = max(len(sentence.words) for sentence in sentences)
    for name, mask in masks_of(longest + 1).items():  # with <start>
        loss, right = answers_through(trained.model, sentences, mask)
        found[f"{name}, nats"] = loss
        found[f"{name}, right next words"] = right
    found["the grammar, nats"] = next_word_floor(sentences)
    return found


def draw_answers(ax: Axes, found: Results) -> Axes:
    """Draws nats a word against the window, with the strides beside it and two lines to compare."""
    places = range(len(WINDOWS))
    losses = [found.mean[f"window {size}, nats"] for size in WINDOWS]
    ax.plot(places, losses, "o-", color=BLUE, linewidth=2, markersize=6)
    ax.text(0.08, losses[0], "a window of the words before", va="bottom", color=readable(BLUE))
    labels = [f"{size} back" for size in WINDOWS]
    for name, text in {FAR: f"every\n{EVERY}th", BOTH: f"1 and\nevery {EVERY}th"}.items():
        ax.plot(len(labels), found.mean[f"{name}, nats"], "D", color=ORANGE, markersize=8)
        labels.append(text)
    full, floor = found.mean[f"{FULL}, nats"], found.mean["the grammar, nats"]
    for level, up, text in ((full, 9, FULL), (floor, -9, "no model can be better")):
        ax.axhline(level, color=QUIET, linewidth=1, linestyle=":", zorder=0)
        place = {"xytext": (0, up), "textcoords": "offset points", "ha": "right", "va": "center"}
        ax.annotate(text, (len(labels) - 0.5, level), **place, color=QUIET)
    ax.set_xticks(range(len(labels)), labels)
    ax.set(xlim=(-0.3, len(labels) - 0.5), ylim=(min(floor, full) - 0.2, None))
    ax.set(xlabel="which earlier words a word may see", ylabel="loss, nats a word")
    ax.set_title("a trained model, asked through masks: less is better", loc="left", color=QUIET)
    return ax


def draw_reach(ax: Axes, name: str) -> Axes:
    """Draws where an input (across) has reached an output (down) after two layers; else hatched."""
    seen = after_two_layers(PATTERNS[name])
    hatch_cell(ax, 0, 0, *seen.shape)
    ax.pcolormesh(seen.float().masked_fill(~seen, math.nan).numpy(), cmap=ListedColormap([BLUE]))
    ax.set(xlim=(0, LENGTH), ylim=(LENGTH, 0), aspect="equal", xticks=[], yticks=[])
    ax.set_title(name, fontsize=11)
    ax.set_xlabel(f"{seen.double().mean():.0%} of the pairs", color=QUIET)
    return ax


def picture(found: Results) -> Figure:
    """Draws what a trained model loses through masks, and what patterns reach in two layers."""
    fig = plt.figure(figsize=(8, 7), layout="constrained")
    above, below = fig.subfigures(2, 1, height_ratios=(1.3, 1))
    draw_answers(above.subplots(), found)
    for ax, name in zip(below.subplots(1, len(PATTERNS)), PATTERNS, strict=True):
        draw_reach(ax, name)
    title = "what two layers reach: only both patterns in turn connect every word with every other"
    below.suptitle(title, x=0.02, ha="left", fontsize=11, color=QUIET)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Through a window of 4 words the model answers nearly as well as with all of them",
    note="above: {shown[model]} on all earlier words, never through such a mask\n"
    f"below: which of {LENGTH} words (across) has reached which place (down); hatched: none · no "
    "model",
    answer=f"With near and far words in turn {LENGTH} words have met after "
    f"{{n[near and every 8th in turn, both ways]:.0f}} layers, with a window of {NEAR} alone "
    "after {n[near words, both ways]:.0f}. A trained model loses {n[window 4, nats]:.2f} nats a "
    "word through a window of 4, and {n[all earlier words, nats]:.2f} when it sees all earlier "
    "words",
)

if __name__ == "__main__":
    main.run()
