"""How much of a head's weight do a few chosen keys catch?

Each query keeps four keys. Two blocks of two, its own and one more, are drawn at random, or chosen
by the mean of their keys. Single words are the last four, those of an indexer, or the best. The
heads are those of the second layer of a trained next-word model. The indexer was trained on other
sentences to predict the weights of a head, and reads 4 numbers of a key, where the head reads 16.
Beside them stand queries and keys that are random vectors, where no word is near or far. There is
nothing to predict there but the scores themselves, so they have no indexer.
"""

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
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.optimization import fit
from shared.toy_model import changed
from shared.visualization_utils import BLUE, GREY, QUIET

KEPT, BLOCK = 4, 2  # keys for each query, and keys in a block
TEXTS, BATCH, STEPS = 3000, 64, 300  # of the indexers' training
INDEX_HEADS, D_INDEX = 2, 4
SIZE = 2**0.5  # of the numbers in random vectors: scores have a standard deviation of 2
LABELS = {  # way -> how the picture says it
    "random blocks": "two random blocks of two",
    "last words": "the last four words",
    "blocks by mean": "two blocks of two, by\nthe mean of their keys",
    "indexer": "four words that\na small indexer picks",
    "best words": "the best four words",
}


def trained_indexers(x: Tensor, weights: Tensor, asked: Tensor, steps: int) -> nn.ModuleList:
    """Returns an indexer for each head, trained on the first TEXTS to predict its weights."""
    indexers = nn.ModuleList()
    for _ in range(weights.size(1)):
        indexers.append(Indexer(x.size(-1), INDEX_HEADS, D_INDEX))
    past = causal_mask(x.size(1))

    def loss_of_step(_: int) -> Tensor:
        batch = torch.randint(TEXTS, (BATCH,))
        total = torch.tensor(0.0)
        for head, indexer in enumerate(indexers):
            guessed = masked_softmax(indexer(x[batch]), past).clamp(min=1e-9)
            loss = -(weights[batch, head] * guessed.log()).sum(dim=-1)  # -> (BATCH, T)
            total = total + loss[asked[batch]].mean()
        return total

    fit(indexers, loss_of_step, steps, matrix_rate=None)
    return indexers


def chosen_untrained(query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Returns the keys of each query by ways that need no training: bool (N, H, T, T)."""
    length, blocks = key.size(2), KEPT // BLOCK
    by_mean = block_scores(query, key, BLOCK)
    return {
        "random blocks": best_blocks(torch.rand(by_mean.shape), length, blocks, BLOCK),
        "blocks by mean": best_blocks(by_mean, length, blocks, BLOCK),
        "best words": best_keys(query, key, KEPT),
    }


@torch.no_grad()
def measure(run: Run) -> Numbers:
    """Returns the share of the weight on the keys that are kept, in held-out texts."""
    trained = load_causal_model(run.options, run.seed)
    run.shown["model"] = trained.label
    train, held_out = training.corpus()
    texts = train[:TEXTS] + held_out
    attention = trained.model.blocks[-1].attention
    read: list[Tensor] = []
    with changed(attention, read.append, read=True):
        layers, visible = training.attention_on(trained.model, texts, "next word", end=False)
    seen = visible.sum(dim=-1).squeeze(1)  # keys of each query, 0 for padding: -> (N, T)
    # Those that see twice as many keys as they keep, or more, and stand last in their block: so
    # both blocks are whole.
    asked = (seen >= 2 * KEPT) & (seen % BLOCK == 0)
    past = causal_mask(seen.size(1))
    found = {}

    def note(heads: str, weights: Tensor, chosen: dict[str, Tensor]) -> None:
        """Means over all heads and all queries that are asked in held-out texts."""
        for way, mask in chosen.items():
            kept = (weights * mask).sum(dim=-1).transpose(1, 2)  # (N, H, T, T) -> (N, T, H)
            found[f"{heads}, {way}"] = kept[TEXTS:][asked[TEXTS:]].mean().item()

    torch.manual_seed(run.seed)
    x, weights = read[0].cpu(), layers[-1]
    query = split_heads(attention.w_q(read[0]), attention.num_heads).cpu()
    key = split_heads(attention.w_k(read[0]), attention.num_heads).cpu()
    chosen = chosen_untrained(query, key)
    chosen["last words"] = streaming_mask(seen.size(1), KEPT)
    scores = [indexer(x) for indexer in trained_indexers(x, weights, asked, run.steps(STEPS))]
    chosen["indexer"] = best_of(torch.stack(scores, dim=1), past, KEPT)
    note("trained", weights, chosen)

    query, key = SIZE * torch.randn(2, *query.shape)
    _, weights = scaled_dot_product_attention(query, key, key, past)
    note("random vectors", weights, chosen_untrained(query, key))
    return found


def by_mean(n: Numbers, heads: str) -> float:
    """Returns how much more blocks by mean hold than random blocks."""
    return n[f"{heads}, blocks by mean"] - n[f"{heads}, random blocks"]


def picture(results: Results) -> Figure:
    """Draws what each way to choose catches of the weight of trained heads."""
    fig, ax = plt.subplots(figsize=(8, 4), layout="constrained")
    caught = {label: results.each(f"trained, {way}") for way, label in LABELS.items()}
    colors = dict.fromkeys(caught, GREY) | {LABELS["indexer"]: BLUE}
    charts.bars(ax, caught, colors, number="{:.0%}")
    ax.tick_params(labelsize=11)
    ax.spines.bottom.set_visible(False)
    ax.set_title("how much of a head's attention falls on these four words", color=QUIET)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Four words that a small indexer picks catch nearly as much as the best four",
    note="indexer: a few numbers of each word, trained to predict where a head will look\n"
    "heads of the second layer, {shown[model]} · held-out sentences",
    answer="Four keys that a small indexer chooses catch {n[trained, indexer]:.0%} of the weight "
    "of trained heads. The best four would catch {n[trained, best words]:.0%}, and random blocks "
    "catch {n[trained, random blocks]:.0%}",
)

if __name__ == "__main__":
    main.run()
