"""How much of a head's weight do a few chosen keys catch?

Each query keeps four keys. Two blocks of two, its own and one more, are drawn at random, or chosen
by the mean of their keys. Single words are the last four, those of an indexer, or the best. The
heads are those of the second layer of a trained next-word model. The indexer was trained on other
sentences to predict the weights of a head, and reads 4 numbers of a key, where the head reads 16.
Beside them stand queries and keys that are random vectors, where no word is near or far. There is
nothing to predict there but the scores themselves, so they have no indexer.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import split_heads
from phase4_causal.long_texts.chosen_keys import (
    Indexer,
    best_blocks,
    best_keys,
    best_of,
    block_scores,
)
from phase4_causal.models import load_causal_model
from shared import charts, training
from shared.attention_utils import causal_mask, streaming_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.optimization import fit
from shared.toy_model import changed
from shared.training import Trained
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE

KEPT, BLOCK = 4, 2  # keys for each query, and keys in a block
TEXTS, BATCH, STEPS = 3000, 64, 300  # of the indexers' training
INDEX_HEADS, D_INDEX = 2, 4
SIZE = 2**0.5  # of the numbers in random vectors: scores have a standard deviation of 2
COLORS = {
    "random blocks": GREY,
    "last words": GREY,
    "blocks by mean": ORANGE,
    "indexer": BLUE,
    "best words": GREEN,
}


@dataclass(frozen=True)
class Heads:
    """Heads of one layer, on texts of which the first TEXTS are for training."""

    query: Tensor  # (N, H, T, d_k)
    key: Tensor  # (N, H, T, d_k)

    @property
    def weights(self) -> Tensor:
        """The causal weights, (N, H, T, T)."""
        mask = causal_mask(self.key.size(2))
        return scaled_dot_product_attention(self.query, self.key, self.key, mask)[1]


def asked_of(lengths: Tensor, length: int) -> Tensor:
    """The queries that are measured, bool (N, T).

    They see twice as many keys as they keep, or more, and stand last in their block: so both blocks
    are whole.
    """
    seen = torch.arange(1, length + 1)
    return (seen >= 2 * KEPT) & (seen % BLOCK == 0) & (seen <= lengths[:, None])


@torch.no_grad()
def last_layer(trained: Trained, tokens: Tensor) -> tuple[Tensor, Heads]:
    """What the last layer reads, (N, T, d_model), and its heads, on the CPU."""
    attention = trained.model.blocks[-1].attention
    read: list[Tensor] = []
    with changed(attention, read.append, read=True):
        trained.logits(tokens)
    x = read[0]
    query = split_heads(attention.w_q(x), attention.num_heads)
    key = split_heads(attention.w_k(x), attention.num_heads)
    return x.cpu(), Heads(query.cpu(), key.cpu())


def trained_indexers(x: Tensor, weights: Tensor, asked: Tensor, run: Run) -> nn.ModuleList:
    """An indexer for each head, trained to predict its weights (N, H, T, T) from x."""
    generator = torch.Generator().manual_seed(run.seed)
    torch.manual_seed(run.seed)
    indexers = nn.ModuleList()
    for _ in range(weights.size(1)):
        indexers.append(Indexer(x.size(-1), INDEX_HEADS, D_INDEX))
    past = causal_mask(x.size(1))

    def loss_of_step(_: int) -> Tensor:
        batch = torch.randint(TEXTS, (BATCH,), generator=generator)
        losses = []
        for head, indexer in enumerate(indexers):
            guessed = masked_softmax(indexer(x[batch]), past)
            loss = -weights[batch, head] * guessed.clamp(min=1e-9).log()
            losses.append(loss[asked[batch]].sum(dim=-1).mean())  # of rows (queries, T)
        return torch.stack(losses).mean()

    fit(indexers, loss_of_step, run.steps(STEPS), matrix_rate=None)
    return indexers


def chosen_by_scores(heads: Heads, generator: torch.Generator) -> dict[str, Tensor]:
    """The keys of each query by ways that need no training: bool (N, H, T, T)."""
    length, blocks = heads.key.size(2), KEPT // BLOCK
    by_mean = block_scores(heads.query, heads.key, BLOCK)
    guesses = torch.rand(by_mean.shape, generator=generator)
    return {
        "random blocks": best_blocks(guesses, length, blocks, BLOCK),
        "blocks by mean": best_blocks(by_mean, length, blocks, BLOCK),
        "best words": best_keys(heads.query, heads.key, KEPT),
    }


def measure(run: Run) -> Numbers:
    """The share of the weight on the keys that are kept, in held-out texts."""
    trained = load_causal_model(run.options, run.seed)
    run.shown["model"] = trained.label
    train, held_out = training.corpus()
    tokens, lengths = training.to_batch(train[:TEXTS] + held_out, "next word")
    tokens = tokens[:, :-1]  # <end> is never read
    length = tokens.size(1)
    asked = asked_of(lengths - 1, length)
    generator = torch.Generator().manual_seed(run.seed)
    x, heads = last_layer(trained, tokens)
    chosen = chosen_by_scores(heads, generator)
    chosen["last words"] = streaming_mask(length, KEPT)
    indexers = trained_indexers(x, heads.weights, asked, run)
    with torch.no_grad():
        scores = torch.stack([indexer(x) for indexer in indexers], dim=1)  # (N, H, T, T)
    chosen["indexer"] = best_of(scores, causal_mask(length), KEPT)

    def caught(weights: Tensor, mask: Tensor) -> float:
        """The mean over all heads and all queries that are asked in the held-out texts."""
        kept = (weights * mask).sum(dim=-1).transpose(1, 2)  # (N, H, T, T) -> (N, T, H)
        return kept[TEXTS:][asked[TEXTS:]].mean().item()

    found = {}
    for way, mask in chosen.items():
        found[f"trained, {way}"] = caught(heads.weights, mask)
    shape = heads.query.shape
    query = SIZE * torch.randn(shape, generator=generator)
    vectors = Heads(query, SIZE * torch.randn(shape, generator=generator))
    for way, mask in chosen_by_scores(vectors, generator).items():
        found[f"random vectors, {way}"] = caught(vectors.weights, mask)
    return found


CLAIMS = (
    Claim(
        id="chosen-keys",
        text="In the second layer of a next-word model (two layers of four heads) a block of two "
        "words at random, beside a query's own block, catches little of the weight, and four words "
        "that a trained indexer chooses catch much",
        source="our question to NSA, MoBA and DeepSeek-V3.2",
        rule="of what the best four words hold the indexer's four hold 0.8 or more, and random "
        "blocks 0.5 or less",
        effect=lambda n: n["trained, indexer"] / n["trained, best words"],
        at_least=0.8,
        also=lambda n: n["trained, random blocks"] <= 0.5 * n["trained, best words"],
        oracle={"*, random blocks": 0.3, "*": 0.9},
        null={"*, best words": 0.9, "*": 0.5},
    ),
    Claim(
        id="chosen-not-near",
        text="A trained indexer has learned more than to choose what stands near (second layer of "
        "a next-word model, four words of 8 to 18)",
        source="our question to DeepSeek-V3.2",
        rule="its four words hold 0.05 more of all weight than the last four",
        effect=lambda n: n["trained, indexer"] - n["trained, last words"],
        at_least=0.05,
        oracle={"trained, indexer": 0.9, "trained, last words": 0.6},
        null={"*": 0.8},
    ),
    Claim(
        id="chosen-by-mean",
        text="The mean of two keys says which block of two deserves to be read, in trained heads "
        "and of random vectors",
        source="our question to MoBA (Lu et al. 2025)",
        rule="blocks by mean hold 0.1 more of the weight than random blocks, of both",
        effect=lambda n: min(
            n[f"{heads}, blocks by mean"] - n[f"{heads}, random blocks"]
            for heads in ("trained", "random vectors")
        ),
        at_least=0.1,
        oracle={"*, blocks by mean": 0.8, "*": 0.5},
        null={"*": 0.5},
        revised="written after a look at seed 0, in place of a claim that the same indexer learns "
        "nothing of random vectors, which was so, but for larger ones, too",
    ),
)


def picture(results: Results) -> Figure:
    """What each way to choose catches, in trained heads and of random vectors."""
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for ax, heads in zip(axes, ("trained", "random vectors"), strict=True):
        caught = {}
        for way in COLORS:
            if f"{heads}, {way}" in results.mean:
                caught[way] = results.each(f"{heads}, {way}")
        charts.bars(ax, caught, COLORS)
        ax.set_title(heads)
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="An indexer finds nearly all that the best four words hold",
    note="share of a head's weight on four keys · second layer, {shown[model]}, held-out sentences",
    answer="Of the weight of trained heads four keys catch: random blocks "
    "{n[trained, random blocks]:.2f}, the last words {n[trained, last words]:.2f}, blocks by mean "
    "{n[trained, blocks by mean]:.2f}, an indexer {n[trained, indexer]:.2f}, the best "
    "{n[trained, best words]:.2f}",
)

if __name__ == "__main__":
    main.run()
