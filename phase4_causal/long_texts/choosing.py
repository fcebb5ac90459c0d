"""How much of a head's weight do a few chosen keys catch?

Each query keeps four keys. Two blocks of two, its own and one more, are drawn at random, or chosen
by the mean of their keys. Single words are the last four, those of an indexer, or the best. The
heads are those of the second layer of a trained next-word model. Beside them stand heads whose
queries and keys are random vectors, and the same indexer. It was trained on other texts to predict
the weights of a head, and reads 4 numbers of a key, where the head reads 16.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
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
    "blocks by mean": ORANGE,
    "last words": GREY,
    "indexer": BLUE,
    "best words": GREEN,
}


@dataclass(frozen=True)
class Heads:
    """Heads of one layer, on texts of which the first TEXTS are for training."""

    x: Tensor  # what an indexer reads, (N, T, d)
    query: Tensor  # (N, H, T, d_k)
    key: Tensor  # (N, H, T, d_k)

    @property
    def weights(self) -> Tensor:
        """The causal weights, (N, H, T, T)."""
        mask = causal_mask(self.x.size(1))
        return scaled_dot_product_attention(self.query, self.key, self.key, mask)[1]


def asked_of(lengths: Tensor, length: int) -> Tensor:
    """The queries that are measured, bool (N, T).

    They see twice as many keys as they keep, or more, and stand last in their block: so both blocks
    are whole.
    """
    seen = torch.arange(1, length + 1)
    return (seen >= 2 * KEPT) & (seen % BLOCK == 0) & (seen <= lengths[:, None])


@torch.no_grad()
def trained_heads(trained: Trained, tokens: Tensor) -> Heads:
    """The heads of the last layer; an indexer reads what they read."""
    attention = trained.model.blocks[-1].attention
    read: list[Tensor] = []
    with changed(attention, read.append, read=True):
        trained.logits(tokens)
    query = split_heads(attention.w_q(read[0]), attention.num_heads)
    key = split_heads(attention.w_k(read[0]), attention.num_heads)
    return Heads(read[0].cpu(), query.cpu(), key.cpu())


def random_heads(like: Heads, generator: torch.Generator) -> Heads:
    """As many heads of random vectors; an indexer reads their queries and keys themselves."""
    query = SIZE * torch.randn(like.query.shape, generator=generator)
    key = SIZE * torch.randn(like.key.shape, generator=generator)
    x = torch.cat([merge_heads(query), merge_heads(key)], dim=-1)
    return Heads(x, query, key)


def trained_indexers(heads: Heads, asked: Tensor, run: Run) -> nn.ModuleList:
    """An indexer for each head, trained to predict its weights."""
    generator = torch.Generator().manual_seed(run.seed)
    torch.manual_seed(run.seed)
    indexers = nn.ModuleList()
    for _ in range(heads.query.size(1)):
        indexers.append(Indexer(heads.x.size(-1), INDEX_HEADS, D_INDEX))
    past, weights = causal_mask(heads.x.size(1)), heads.weights

    def loss_of_step(_: int) -> Tensor:
        batch = torch.randint(TEXTS, (BATCH,), generator=generator)
        losses = []
        for head, indexer in enumerate(indexers):
            guessed = masked_softmax(indexer(heads.x[batch]), past)
            loss = -weights[batch, head] * guessed.clamp(min=1e-9).log()
            losses.append(loss[asked[batch]].sum(dim=-1).mean())  # of rows (queries, T)
        return torch.stack(losses).mean()

    fit(indexers, loss_of_step, run.steps(STEPS), matrix_rate=None)
    return indexers


@torch.no_grad()
def chosen_by(
    heads: Heads, indexers: nn.ModuleList, generator: torch.Generator
) -> dict[str, Tensor]:
    """For each way to choose, the keys of each query: bool, (T, T) or (N, H, T, T)."""
    length = heads.x.size(1)
    by_mean = block_scores(heads.query, heads.key, BLOCK)
    guesses = torch.rand(by_mean.shape, generator=generator)
    indexed = torch.stack([indexer(heads.x) for indexer in indexers], dim=1)
    blocks = KEPT // BLOCK
    return {
        "random blocks": best_blocks(guesses, length, blocks, BLOCK),
        "blocks by mean": best_blocks(by_mean, length, blocks, BLOCK),
        "last words": streaming_mask(length, KEPT),
        "indexer": best_of(indexed, causal_mask(length), KEPT),
        "best words": best_keys(heads.query, heads.key, KEPT),
    }


def measure(run: Run) -> Numbers:
    """The share of the weight on the keys that are kept, in held-out texts."""
    trained = load_causal_model(run.options, run.seed)
    run.shown["model"] = trained.label
    train, held_out = training.corpus()
    tokens, lengths = training.to_batch(train[:TEXTS] + held_out, "next word")
    tokens = tokens[:, :-1]  # <end> is never read
    asked = asked_of(lengths - 1, tokens.size(1))
    generator = torch.Generator().manual_seed(run.seed)
    heads = trained_heads(trained, tokens)
    found = {}
    for name, layer in {"trained": heads, "random": random_heads(heads, generator)}.items():
        indexers = trained_indexers(layer, asked, run)
        for way, mask in chosen_by(layer, indexers, generator).items():
            kept = (layer.weights * mask).sum(dim=-1)  # (N, H, T, T) -> (N, H, T)
            of_queries = kept.transpose(1, 2)[TEXTS:][asked[TEXTS:]]  # -> (queries, H)
            found[f"{name}, {way}"] = of_queries.mean().item()
    return found


def of_the_best(n: Numbers, heads: str, way: str) -> float:
    """What a way to choose catches, as a share of what the best four words hold."""
    return n[f"{heads}, {way}"] / n[f"{heads}, best words"]


CLAIMS = (
    Claim(
        id="chosen-keys",
        text="In the second layer of a next-word model (two layers of four heads) a block of two "
        "words at random, beside a query's own block, catches little of the weight, and four words "
        "that a trained indexer chooses catch much",
        source="our question to NSA, MoBA and DeepSeek-V3.2",
        rule="of what the best four words hold the indexer's four hold 0.8 or more, and random "
        "blocks 0.5 or less",
        effect=lambda n: of_the_best(n, "trained", "indexer"),
        at_least=0.8,
        also=lambda n: of_the_best(n, "trained", "random blocks") <= 0.5,
        oracle={"*, random blocks": 0.3, "*": 0.9},
        null={"*, best words": 0.9, "*": 0.5},
    ),
    Claim(
        id="chosen-not-near",
        text="A trained indexer has learned more than to choose what stands near (second layer of "
        "a next-word model, four of 8 to 18 words)",
        source="our question to DeepSeek-V3.2",
        rule="its four words hold 0.05 more of all weight than the last four",
        effect=lambda n: n["trained, indexer"] - n["trained, last words"],
        at_least=0.05,
        oracle={"trained, indexer": 0.9, "trained, last words": 0.6},
        null={"*": 0.8},
    ),
    Claim(
        id="chosen-of-random",
        text="What a small indexer learns of trained heads it cannot learn of random vectors, "
        "since nothing in them can be said in fewer numbers",
        source="our question to DeepSeek-V3.2",
        rule="as a share of what the best four words hold its four hold 0.1 less on random vectors",
        effect=lambda n: of_the_best(n, "trained", "indexer") - of_the_best(n, "random", "indexer"),
        at_least=0.1,
        oracle={"random, indexer": 0.5, "*": 0.9},
        null={"*": 0.8},
    ),
)


def picture(results: Results) -> Figure:
    """What each way to choose catches, in trained heads and of random vectors."""
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for ax, heads in zip(axes, ("trained", "random"), strict=True):
        caught = {way: results.each(f"{heads}, {way}") for way in COLORS}
        charts.bars(ax, caught, COLORS)
    axes[0].set_title("heads of the trained model")
    axes[1].set_title("random vectors")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="A trained indexer finds most of the weight, blocks at random much less",
    note="share of a head's weight on four keys · second layer, {shown[model]}, held-out sentences",
    answer="Of the weight four keys catch: blocks at random {n[trained, random blocks]:.2f}, blocks "
    "by mean {n[trained, blocks by mean]:.2f}, an indexer {n[trained, indexer]:.2f}, the best "
    "{n[trained, best words]:.2f}; of random vectors {n[random, random blocks]:.2f}, "
    "{n[random, blocks by mean]:.2f}, {n[random, indexer]:.2f}, {n[random, best words]:.2f}",
)

if __name__ == "__main__":
    main.run()
