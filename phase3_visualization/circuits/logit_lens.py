"""What would the model say after each of its layers?

Every layer adds to the same vector, the residual stream, and the last one is read as a guess: norm, then the matrix of
words. The logit lens reads the vector like that before it is finished (nostalgebraist 2020). No layer was trained to be
read early, so a lens that shows nothing does not mean that nothing is there.

    python phase3_visualization/circuits/logit_lens.py

Writes logit_lens.png to visualizations/plots/phase3/: each word of a sentence hidden in turn.
"""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase3_visualization.circuits.patching import changed
from shared import cli, training
from shared.attention_utils import padding_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.toy_language import MASK_ID, decode, encode, pad_batch
from shared.toy_model import ToyTransformer, in_double
from shared.training import Trained
from shared.visualization_utils import headline, plot_cells, save_plot, token_labels

SENTENCES, CLEARLY = 60, 0.3  # held-out ones, nats
LOSSES = "loss after each part"


@torch.no_grad()
def lens(model: ToyTransformer, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logits before the layers and after each attention and each feed-forward network: (B, T) -> (2L + 1, B, T, V)."""
    stream: list[Tensor] = []
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
    with ExitStack() as listening:
        for norm in (*norms, model.output_norm):
            listening.enter_context(changed(norm, stream.append, read=True))
        model(tokens, mask)
    return model.output_norm(torch.stack(stream)) @ model.embedding.weight.T + model.output_bias


@torch.no_grad()
def each_word_hidden(model: ToyTransformer, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
    """Each word hidden in turn -> the lens on the hidden word, (2L + 1, N, V), and the words that were hidden (N,)."""
    rows = [(encode(words), place) for words in sentences for place in range(len(words))]
    tokens, lengths = pad_batch([row for row, _ in rows])
    hidden = torch.tensor([place for _, place in rows])
    every, mask = torch.arange(len(rows)), padding_mask(lengths, tokens.size(1))
    logits = lens(model, tokens.index_put((every, hidden), torch.tensor(MASK_ID)), mask)
    return logits[:, every, hidden], tokens[every, hidden]  # (2L + 1, N, T, V) -> (2L + 1, N, V)


@measures(
    Claim(
        id="logit-lens",
        text="Read early, the guess comes nearer to the answer with every layer",
        kind=EXPERIMENT,
        source="nostalgebraist 2020, on GPT-2; here a model of two layers that guesses hidden words",
        rule=f"each layer lowers the loss that the lens reads by {CLEARLY} nats or more",
        holds=lambda n: min(a - b for a, b in zip(n[LOSSES][:-2:2], n[LOSSES][2::2], strict=True)) >= CLEARLY,
        oracle={LOSSES: [5.0, 2.5, 2.3, 1.3, 1.3]},
        null={LOSSES: [5.0, 5.0, 5.0, 5.0, 1.3]},
        unit="nats per hidden word, held-out: before the layers, after each attention and each feed-forward network",
    )
)
def losses(trained: Trained, sentences: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """Mean loss of what the lens reads."""
    logits, words = each_word_hidden(in_double(trained.model), sentences)
    return {LOSSES: [F.cross_entropy(each, words).item() for each in logits]}


def draw(trained: Trained, words: list[str], loss: list[float]) -> tuple[Figure, str]:
    """Rows: which word is hidden; columns: how deep the lens reads; in each cell the likeliest word."""
    logits, _ = each_word_hidden(in_double(trained.model), [words])
    best, guesses = (values.T for values in logits.softmax(dim=-1).max(dim=-1))  # (2L + 1, T, V) -> (T, 2L + 1)
    parts = [f"layer {layer}:\n{part}" for layer in range(len(logits) // 2) for part in ("attention", "network")]
    names = [f"{part}\n{nats:.1f} nats" for part, nats in zip(["before\nthe layers", *parts], loss, strict=True)]
    fig, ax = plt.subplots(figsize=(max(1.3 * len(names) + 1.5, 8), 0.45 * len(words) + 2), layout="constrained")
    plot_cells(ax, best, [decode(guess.tolist()) for guess in guesses], token_labels(words), names)
    ax.tick_params(axis="y", labelsize=12)
    falls = [before - after for before, after in itertools.pairwise(loss)]
    title = "What the model would say, part by part"
    if min(falls[::2]) > max(falls[1::2]):
        title = "The guess takes shape in the attention of each layer"
    note = f"{trained.label} · each word hidden in turn · likeliest word, shade: its probability · loss: held-out"
    headline(fig, title, note)
    return fig, f"{title}. The likeliest word after each part of the model, for each hidden word of a sentence."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    sentences = [sentence.words for sentence in training.corpus()[1][: 10 if options.quick else SENTENCES]]
    models = [load_multi_head_model(options, seed) for seed in cli.seeds(options)]
    found = [losses(trained, sentences) for trained in models]
    save_plot(options, "phase3/logit_lens", *draw(models[0], options.words, found[0][LOSSES]))
    findings.record(options, *found)
    return "Loss, from before the layers to the end: " + ", ".join(f"{loss:.2f}" for loss in found[0][LOSSES])


if __name__ == "__main__":
    cli.run(main)
