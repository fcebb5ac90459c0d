"""What would the model say after each layer, and which heads bring the answer?

Each part of a model adds to one vector, the residual stream, and the finished vector is read as a
guess: a norm, then the matrix of words. The logit lens reads the vector before it is finished
(nostalgebraist 2020). Direct logit attribution reads in the same way what one head adds (Elhage et
al. 2021): with the last norm's own scale it is the head's share of the logit of the right word. No
part was trained to be read alone, so a lens that shows nothing may still miss something.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import split_heads
from shared.attention_utils import padding_mask
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import added_by_heads
from shared.toy_language import MASK_ID, SPECIAL, VOCABULARY, encode, pad_batch
from shared.toy_model import ToyTransformer
from shared.training.objectives import corpus
from shared.visualization_utils import BLUE, GREY, HIDDEN, QUIET, WIDE, readable

SENTENCES = 60  # held-out


@dataclass(frozen=True)
class HiddenWords:
    """N hidden words (N,), and what the parts of a model add at their positions.

    stream: before the layers, and after each attention and each feed-forward network,
    (2L + 1, N, d_model); by_heads: what each head adds to it, (L, H, N, d_model).
    """

    words: Tensor
    stream: Tensor
    by_heads: Tensor


@torch.no_grad()
def each_word_hidden(model: ToyTransformer, sentences: Sequence[Sequence[str]]) -> HiddenWords:
    """Reads every sentence as often as it has words, each time with another word hidden."""
    rows, positions = [], []
    for sentence in sentences:
        rows += [encode(sentence)] * len(sentence)
        positions += range(len(sentence))
    tokens, lengths = pad_batch(rows)
    mask = padding_mask(lengths, tokens.size(1))
    every = torch.arange(len(rows))
    words = tokens[every, positions]
    tokens[every, positions] = MASK_ID
    x = model.embed(tokens)
    stream = [x[every, positions]]  # (N, T, d_model) -> (N, d_model)
    by_heads = []
    for block in model.blocks:
        attention = block.attention
        normed = block.attention_norm(x)
        output, weights = attention(normed, mask=mask)
        heads = weights @ split_heads(attention.w_v(normed), attention.num_heads)  # (N, H, T, d_v)
        by_heads.append(added_by_heads(attention, heads)[every, :, positions])  # -> (N, H, d_model)
        x = x + output
        stream.append(x[every, positions])
        x = x + block.feed_forward(block.feed_forward_norm(x))
        stream.append(x[every, positions])
    added = torch.stack(by_heads).transpose(1, 2)  # (L, N, H, d_model) -> (L, H, N, d_model)
    return HiddenWords(words, torch.stack(stream), added)


@torch.no_grad()
def read_with_lens(model: ToyTransformer, stream: Tensor) -> Tensor:
    """Returns the logits as if the model ended here: (..., d_model) -> (..., V)."""
    return model.output_norm(stream) @ model.embedding.weight.T + model.output_bias


@torch.no_grad()
def share_of_logit(model: ToyTransformer, added: Tensor, last: Tensor, words: Tensor) -> Tensor:
    """Returns how far vectors raise the right word above a mean one: (..., N, d_model) -> (..., N).

    last: the finished stream (N, d_model), by whose spread the norm divides. The shares of all that
    was added to the stream sum to what `read_with_lens` gives, less the biases of norm and words.
    """
    norm, embedding = model.output_norm, model.embedding.weight
    spread = (last.var(dim=-1, unbiased=False) + norm.eps).sqrt()  # (N, d_model) -> (N,)
    direction = (embedding[words] - embedding.mean(dim=0)) * norm.weight
    centred = added - added.mean(dim=-1, keepdim=True)
    return (centred * direction).sum(dim=-1) / spread


def measure(run: Run) -> Numbers:
    """Returns nats per held-out hidden word, and what heads add to its logit, in the mean."""
    trained = load_multi_head_model(run.options, run.seed)
    model = trained.model.cpu()
    _, held_out = corpus()
    hidden = each_word_hidden(model, [sentence.words for sentence in held_out[:SENTENCES]])
    losses = [
        F.cross_entropy(logits, hidden.words).item()
        for logits in read_with_lens(model, hidden.stream)
    ]
    numbers = {"embedding, loss behind it": losses[0]}
    by_attention = 0.0
    for layer in range(len(model.blocks)):
        before, after_attention, after_network = losses[2 * layer : 2 * layer + 3]
        numbers[f"attention {layer}, loss behind it"] = after_attention
        numbers[f"network {layer}, loss behind it"] = after_network
        by_attention += before - after_attention
    adds = share_of_logit(model, hidden.by_heads, hidden.stream[-1], hidden.words).mean(dim=-1)
    for (layer, head), share in np.ndenumerate(adds.numpy()):
        numbers[f"head {layer}.{head}, adds"] = float(share)
    run.shown["at the end"] = losses[-1]
    run.shown["label"] = trained.label
    run.shown["by attention"] = by_attention / (losses[0] - losses[-1])
    return numbers


def picture(results: Results) -> Figure:
    """Draws the loss before the layers, and how far each part lets it fall from there.

    A fall is that of the losses as they are written, so that a reader can add up.
    """
    losses = {}  # name of a part -> nats after it
    for name, mean in results.mean.items():
        part, _, what = name.partition(", ")
        kind, _, layer = part.partition(" ")
        if what != "adds":
            losses[f"layer {layer}:\n{kind}" if layer else kind] = mean
    fig, ax = plt.subplots(figsize=(WIDE, 3.9), layout="constrained")
    style = {"ha": "center", "va": "bottom", "fontsize": 10}
    (_, first), *parts = losses.items()
    before = round(first, 2)
    ax.bar(0.5, before, 0.7, color=HIDDEN)
    ax.text(0.5, before, f"{before:.2f}", **style)
    for column, (part, loss) in enumerate(parts, 1):
        after = round(loss, 2)
        middle = column + 0.5
        by_attention = "attention" in part
        ax.plot([middle - 0.65, middle + 0.35], [before, before], color=QUIET, linewidth=0.8)
        ax.bar(middle, after - before, 0.7, before, color=BLUE if by_attention else GREY)
        change = f"{after - before:+.2f}".replace("-", "−")
        color = readable(BLUE) if by_attention else QUIET
        ax.text(middle, max(before, after), change, color=color, weight="bold", **style)
        before = after
    ax.axhline(before, color=QUIET, linewidth=0.8, linestyle=":", zorder=0)
    ax.text(0.97 * len(losses), 0.5 * before, f"{before:.2f} is left", ha="right", va="center")
    guess = math.log(len(VOCABULARY) - len(SPECIAL))
    ax.axhline(guess, color=QUIET, linewidth=0.8, linestyle=":", zorder=0)
    ax.text(0.97 * len(losses), guess, f"blind guess {guess:.2f}", ha="right", va="bottom")
    ax.set_xticks(0.5 + np.arange(len(losses)), losses)
    ax.set(ylabel="loss, nats", xlim=(0, len(losses)), ylim=(0, 1.12 * max(losses.values())))
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Attention brings {shown[by attention]:.0%} of the fall in loss,\n"
    "the feed-forward networks the rest",
    note="Each word is hidden in turn · {shown[label]}",
    answer="The loss of its guess is {n[embedding, loss behind it]:.2f} before the layers and "
    "{shown[at the end]:.2f} after all of them. Attention brings {shown[by attention]:.0%} of "
    "this fall",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
