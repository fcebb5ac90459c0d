"""What do sparse masks cost in answers?

A model that was trained on all earlier words predicts the next words of held-out sentences through
masks that it has never met: a window of the words before, every 4th word, and both together (Child
et al. 2019). What does it lose for each word?
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.models import load_causal_model
from shared import charts
from shared.attention_utils import local_mask, strided_mask
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.best_reader import next_word_floor
from shared.toy_language import PAD_ID, Sentence
from shared.toy_model import ToyTransformer
from shared.training.objectives import corpus, to_batch
from shared.visualization_utils import BLUE, GREY, QUIET, WIDE

WINDOWS = (1, 2, 4, 8)  # words before the word itself
EVERY = 4  # the stride
FULL = "all earlier words"
FAR = f"every {EVERY}th word"
BOTH = f"the word before and every {EVERY}th"


def masks_of(length: int) -> dict[str, Tensor]:
    """Masks by name, bool (T, T); the causal mask of the model comes on top."""
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
    return loss.item(), right[wanted != PAD_ID].cpu().double().mean().item()


def measure(run: Run) -> Numbers:
    """Returns nats a word and the share of right next words, through each mask."""
    trained = load_causal_model(run.options, run.seed)
    run.shown["model"] = trained.label
    sentences = corpus()[1]
    longest = max(len(sentence.words) for sentence in sentences)
    numbers = {}
    for name, mask in masks_of(longest + 1).items():  # with <start>
        loss, right = answers_through(trained.model, sentences, mask)
        numbers[f"{name}, nats"] = loss
        numbers[f"{name}, right next words"] = right
    numbers["the grammar, nats"] = next_word_floor(sentences)
    return numbers


def picture(results: Results) -> Figure:
    """Draws nats a word through each window, and without one."""
    fig, ax = plt.subplots(figsize=(WIDE, 3.2), layout="constrained")
    names = {f"{size} before": f"window {size}" for size in WINDOWS} | {"all before": FULL}
    losses = {label: results.each(f"{name}, nats") for label, name in names.items()}
    colors = dict.fromkeys(losses, GREY) | {"4 before": BLUE}
    charts.bars(ax, losses, colors)
    ax.tick_params(labelsize=11)
    ax.spines.bottom.set_visible(False)
    ax.set_title("nats lost a word, by how many words it sees", color=QUIET)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Through a window of 4 words the model answers\nnearly as well as with all of them",
    note="{shown[model]} on all earlier words, never through such a mask",
    answer="A trained model loses {n[window 4, nats]:.2f} nats a word through a window of 4, and "
    "{n[all earlier words, nats]:.2f} when it sees all earlier words",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
