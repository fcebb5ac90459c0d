"""Can a model write a sentence in another word order (encoder and decoder)?

Figure 1 of Vaswani et al. 2017 in small. It has three kinds of attention, here in one block each:
the words of the source look at each other, the words written look back, and then look at the source
(cross-attention). What stands behind the verb is to come first: "the cat sat on the mat" -> "on the
mat sat the cat". The paper has six layers of each kind, eight heads, norms behind the additions,
and in a layer of the decoder one feed-forward network, not two.

    python phase4_causal/masking/encoder_decoder.py
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.attention_utils import causal_mask, normalized_entropy
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.scores import with_relations
from shared.toy_language import END_ID, PAD_ID, START_ID, TOY_SENTENCE, Sentence, decode
from shared.toy_model import ToyTransformer
from shared.training.loop import fit
from shared.training.objectives import corpus, to_batch
from shared.visualization_utils import ORANGE, WIDE, frame_cell, plot_attention

STEPS, BATCH = 400, 32


class EncoderDecoder(ToyTransformer):
    """The toy transformer, with its three blocks in other places."""

    def forward(self, source: Tensor, read: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns the logits (B, T, V) of each next word, and the weights of the three blocks.

        source (B, S), padded; read (B, T): what is written so far, from <start> on. The weights are
        (B, H, S, S), (B, H, T, T) and (B, H, T, S).
        """
        encoder, decoder, cross = self.blocks
        real = (source != PAD_ID)[:, None, None]  # (B, S) -> (B, 1, 1, S)
        memory, in_source = encoder(self.embed(source), real)
        x, in_written = decoder(self.embed(read), causal_mask(read.size(1)))
        x, across = cross(x, real, key=memory)  # asks from x, looks in memory
        logits = self.output_norm(x) @ self.embedding.weight.T + self.output_bias
        return logits, [in_source, in_written, across]


def tasks(sentences: list[Sentence]) -> tuple[Tensor, Tensor]:
    """Returns the sources (B, S), and (B, S + 2): <start>, what is to be written, <end>."""
    reordered = []
    for sentence in sentences:
        words = sentence.words
        ((verb, _),) = sentence.relations["verb-subject"]
        reordered.append(Sentence((*words[verb + 1 :], words[verb], *words[:verb]), {}))
    return to_batch(sentences, "masked word")[0], to_batch(reordered, "next word")[0]


def rewrite(model: EncoderDecoder, source: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Writes word by word, always the likeliest; what is behind <end> is no text.

    Returns what was written, (B, S + 2), and the weights at the last step.
    """
    written = torch.full((len(source), 1), START_ID)
    for _ in range(source.size(1) + 1):
        logits, maps = model(source, written)
        written = torch.cat([written, logits[:, -1:].argmax(dim=-1)], dim=1)
    return written, maps


@torch.no_grad()
def measure(run: Run) -> Numbers:
    """Returns the share of sentences that are right, and of words at which the decoder looks."""
    train, held_out = corpus()
    torch.manual_seed(run.seed)
    model = EncoderDecoder(num_heads=1, num_layers=3, make_attention=MultiHeadAttention)

    def loss_of_step(step: int) -> Tensor:
        source, target = tasks(train[step * BATCH :][:BATCH])
        logits, _ = model(source, target[:, :-1])
        return F.cross_entropy(logits.mT, target[:, 1:], ignore_index=PAD_ID)

    # Lower rates than usual, with which all processors end at the same model.
    fit(model, loss_of_step, run.steps(STEPS), matrix_rate=0.01, rate=0.01)
    source, target = tasks(held_out)
    written, (*_, across) = rewrite(model, source)
    right = (written == target) | (target == PAD_ID)
    looks_at = source.gather(1, across[:, 0].argmax(dim=-1))  # (B, 1, T, S) -> (B, T): a word
    is_word = target[:, 1:] > END_ID
    source, _ = tasks([with_relations(TOY_SENTENCE.split())])
    rewritten, (*_, across) = rewrite(model, source)
    weights = across[0, 0]  # (1, 1, T, S) -> (T, S)
    entropy = normalized_entropy(weights).mean().item()
    run.shown.update(said=decode(rewritten[0])[1:], weights=weights, entropy=entropy)
    return {
        "sentences right": right.all(dim=1).double().mean().item(),
        "looks at the word": (looks_at == written[:, 1:])[is_word].double().mean().item(),
    }


def picture(results: Results) -> Figure:
    """Draws where the decoder looks in the toy sentence: a row for each word that it says."""
    fig, ax = plt.subplots(figsize=(WIDE, 4.2), layout="constrained")
    weights, said, source = results.shown["weights"], results.shown["said"], TOY_SENTENCE.split()
    plot_attention(ax, weights, said, source, annotate=False)
    for row, column in enumerate(weights.argmax(dim=-1).tolist()):
        if said[row] == source[column]:
            frame_cell(ax, row, column, ORANGE)
    ax.set(xlabel="word of the source", ylabel="word that is said")
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="To say a word, the decoder looks at it in the source",
    note=f"framed: the same word · trained {STEPS} steps · "
    "normalised entropy {shown[entropy]:.2f}\n"
    "it writes {n[sentences right]:.0%} of new sentences correctly",
    answer="It writes {n[sentences right]:.0%} of new sentences without a mistake, and in "
    "{n[looks at the word]:.1%} of its steps it looks at the word that it says",
)

if __name__ == "__main__":
    main.run()
