"""What would the model say after each layer, and which heads bring the answer?

Every part adds to the same vector, the residual stream, and the last one is read as a guess: norm,
then the matrix of words. The logit lens reads the vector like that before it is finished
(nostalgebraist 2020). Direct logit attribution reads what one head adds in the same way (Elhage et
al. 2021): with the norm's last scale it is the head's own share of the logit of the right word. No
part was trained to be read alone: a lens that shows nothing may still miss something.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import split_heads
from shared import charts, training
from shared.attention_utils import padding_mask
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import added_by_heads
from shared.toy_language import MASK_ID, decode, encode, pad_batch
from shared.toy_model import ToyTransformer, in_double
from shared.visualization_utils import BLUE, plot_cells, token_labels

SENTENCES, QUICK_SENTENCES = 60, 10  # held-out


@torch.no_grad()
def each_word_hidden(
    model: ToyTransformer, sentences: Sequence[Sequence[str]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Each word hidden in turn: what the parts add to its place, and which word it was.

    -> the stream before the layers and after each attention and each feed-forward network, (2L + 1, N, d_model); what
    each head adds, (L, H, N, d_model); the hidden words, (N,).
    """
    rows = [(encode(words), place) for words in sentences for place in range(len(words))]
    tokens, lengths = pad_batch([row for row, _ in rows])
    every, hidden = torch.arange(len(rows)), torch.tensor([place for _, place in rows])
    mask = padding_mask(lengths, tokens.size(1))
    stream, added = [model.embed(tokens.index_put((every, hidden), torch.tensor(MASK_ID)))], []
    for block in model.blocks:
        attention, x = block.attention, block.attention_norm(stream[-1])
        output, weights = attention(x, mask=mask)
        heads = weights @ split_heads(attention.w_v(x), attention.num_heads)  # (N, H, T, d_v)
        added.append(
            added_by_heads(attention, heads)[every, :, hidden]
        )  # -> (N, H, T, d_model) -> (N, H, d_model)
        stream.append(stream[-1] + output)
        stream.append(stream[-1] + block.feed_forward(block.feed_forward_norm(stream[-1])))
    return (
        torch.stack(stream)[:, every, hidden],
        torch.stack(added).transpose(1, 2),
        tokens[every, hidden],
    )


@torch.no_grad()
def read(model: ToyTransformer, stream: Tensor) -> Tensor:
    """Logits, as if the model ended here: (..., d_model) -> (..., V)."""
    return model.output_norm(stream) @ model.embedding.weight.T + model.output_bias


@torch.no_grad()
def share_of_logit(model: ToyTransformer, added: Tensor, last: Tensor, words: Tensor) -> Tensor:
    """Direct logit attribution: how far vectors (..., N, d_model) raise the right word above a mean
    word -> (..., N).

    last: the finished stream (N, d_model), whose spread is what the norm divides by. The shares of
    all that was added to the stream sum to what `read` gives, less the biases of norm and words.
    """
    spread = (
        last.var(dim=-1, unbiased=False) + model.output_norm.eps
    ).sqrt()  # (N, d_model) -> (N,)
    direction = (
        model.embedding.weight[words] - model.embedding.weight.mean(dim=0)
    ) * model.output_norm.weight
    return ((added - added.mean(dim=-1, keepdim=True)) * direction).sum(dim=-1) / spread


def measure(run: Run) -> Numbers:
    """Nats per hidden word, and logits, mean over the hidden words of held-out sentences; heads:
    "layer.head".
    """
    trained = load_multi_head_model(run.options, run.seed)
    sentences = training.corpus()[1][: QUICK_SENTENCES if run.options.quick else SENTENCES]
    model = in_double(trained.model)
    stream, added, words = each_word_hidden(model, [sentence.words for sentence in sentences])
    run.shown.update(
        label=trained.label, example=each_word_hidden(model, [run.options.words]), model=model
    )
    parts = [f"{part} {layer}" for layer in range(len(added)) for part in ("attention", "network")]
    found = {}
    for name, logits in zip(["embedding", *parts], read(model, stream), strict=True):
        found[f"{name}, loss behind it"] = F.cross_entropy(logits, words).item()
    losses = list(found.values())
    by_attention = sum(
        before - behind for before, behind in zip(losses[:-1:2], losses[1::2], strict=True)
    )
    run.shown["by attention"] = by_attention / (losses[0] - losses[-1])
    for layer, row in enumerate(
        share_of_logit(model, added, stream[-1], words).mean(dim=-1).tolist()
    ):
        found |= {f"head {layer}.{head}, adds": share for head, share in enumerate(row)}
    return found


def picture(results: Results) -> Figure:
    """Left, for each hidden word the likeliest word at each depth; right, what each head adds to
    the right one.
    """
    (stream, _, _), words = results.shown["example"], results.options.words
    best, guesses = (
        values.T for values in read(results.shown["model"], stream).softmax(dim=-1).max(dim=-1)
    )
    named = [name.partition(", ") for name in results.mean]
    depths = [
        f"{part}\n{results.mean[f'{part}, {what}']:.1f} nats"
        for part, _, what in named
        if "loss" in what
    ]
    heads = {part: results.each(f"{part}, adds") for part, _, what in named if what == "adds"}
    size = (1.15 * len(depths) + 4.5, max(0.45 * len(words), 0.35 * len(heads)) + 2)
    fig, (left, right) = plt.subplots(1, 2, figsize=size, width_ratios=(3, 1), layout="constrained")
    plot_cells(
        left, best, [decode(guess.tolist()) for guess in guesses], token_labels(words), depths
    )
    charts.bars(right, heads, dict.fromkeys(heads, BLUE), number="{:.1f}")
    right.set_title("what each head adds to the\nlogit of the right word")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Attention goes {shown[by attention]:.0%} of the way to the guess, the feed-forward networks the rest",
    note="{shown[label]} · left: each word hidden in turn; likeliest word, shade: its probability · losses and logits: "
    "held-out",
    answer="Loss before the layers {n[embedding, loss behind it]:.2f}, behind the first attention "
    "{n[attention 0, loss behind it]:.2f}",
)

if __name__ == "__main__":
    main.run()
