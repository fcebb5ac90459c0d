"""The model that continues what it has seen once: two layers of attention, and by what its heads are chosen.

Two layers of four causal heads, or one as the control, without feed-forward networks, as Elhage et al. (2021) take them
apart. They read the sequences of induction_scores.py. The loss is that of all places, predictable or not: nobody tells
a model where the copy begins.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.induction.induction_scores import before_in_first_copy, repeated_sequences, scores_on
from shared.head_statistics import relation_weight
from shared.optimization import fit
from shared.toy_model import ToyTransformer

HEADS, STEPS, BATCH, WARM_UP = 4, 600, 32, 40
NUM_TEST = 100  # sequences that are measured
NAMED = 0.5  # from this score on we call a head a previous-token head, or an induction head


def generator(seed: int, purpose: int) -> torch.Generator:
    """Random numbers of their own for each seed and purpose."""
    return torch.Generator().manual_seed(purpose * 10**6 + seed)


def untrained(seed: int, num_layers: int = 2, *, networks: bool = False) -> ToyTransformer:
    """The model of a seed before its first step. Without feed-forward networks: they give 0, and do not learn."""
    torch.manual_seed(seed)
    model = ToyTransformer(num_heads=HEADS, num_layers=num_layers, make_attention=CausalSelfAttention)
    for block in [] if networks else model.blocks:
        for numbers in block.feed_forward[-1].parameters():
            nn.init.zeros_(numbers)
        block.feed_forward.requires_grad_(False)
    return model


def train(model: ToyTransformer, seed: int, steps: int, watch: Callable[[int], None] | None = None) -> ToyTransformer:
    """Train a model; those of one seed see the same batches. watch: called with the number of steps done.

    After the first steps the learning rate stays the same, so that a sudden fall is not the schedule's doing.
    """
    batches = generator(seed, 0)

    def loss_of_step(_: int) -> Tensor:
        tokens = repeated_sequences(BATCH, batches)
        return F.cross_entropy(model(tokens[:, :-1])[0].mT, tokens[:, 1:])  # (N, T, V) -> (N, V, T)

    rates = {"matrix_rate": 0.01, "rate": 0.005, "matrix_decay": 0.0, "decay": 0.01}
    rates |= {"share": lambda step: min(1.0, (step + 1) / WARM_UP)}
    fit(model, loss_of_step, steps, **rates, watch=watch, progress=f"induction, layers: {len(model.blocks)}")
    return model


@torch.no_grad()
def head_scores(model: ToyTransformer, seed: int) -> tuple[Tensor, Tensor]:
    """By which heads are chosen, on sequences of their own: 2 x (H,).

    Of layer 0 the mean weight on the word before, within the first copy; of layer 1 the induction score.
    """
    tokens = repeated_sequences(NUM_TEST, generator(seed, 2))
    weights = model(tokens[:, :-1])[1][0]
    return relation_weight(weights, before_in_first_copy(tokens[:, :-1])), scores_on(model, tokens)[1]
