"""The task that needs an induction head, the model that learns it, and the scores of its heads.

A block of 8 to 16 words, all different and in random order, is repeated until 33 words are there:

    cat red on swam | cat red on swam | cat ...        "on" stood before "swam" once: say "swam"

From the second copy on the next word is certain for whoever looks up what followed the same word
last time. Where the copy begins is drawn anew for each sequence: a head that always looks the same
distance back is right one time in nine.

The model has two layers of four causal heads, or one as the control, without feed-forward networks,
as Elhage et al. (2021) take them apart. Its loss is that of all places: nobody tells it where the
copy begins.

The induction score of a head is its mean weight on the places after earlier occurrences of the same
word (Olsson et al. 2022). Of each row the weight on all such places is summed: a perfect head
scores 1 however often the block is repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase3_visualization.circuits.patching import Pairs, exchanged, forward_pass, put_in
from phase4_causal.causal_attention import CausalSelfAttention
from shared.head_statistics import relation_weight
from shared.toy_language import SPECIAL
from shared.toy_model import ToyTransformer, patched_input
from shared.training.loop import fit

SYMBOLS = 64  # words in use
LENGTH = 33  # words of a sequence
BLOCK_LENGTHS = (8, 16)  # the shortest and the longest block
NUM_SEQUENCES = 100  # that are measured
HEADS_A_LAYER = 4
TRAINING_STEPS, BATCH, WARM_UP = 600, 32, 40
NAMED_FROM = 0.5  # from this score on we call a head a previous-token head, or an induction head


def repeated_sequences(
    count: int,
    generator: torch.Generator,
    block_lengths: tuple[int, int] = BLOCK_LENGTHS,
    length: int = LENGTH,
) -> Tensor:
    """Sequences that repeat a block -> tokens (count, length).

    The words and the length of the block are drawn anew for each.
    """
    shuffled = torch.rand(count, SYMBOLS, dtype=torch.float64, generator=generator).argsort(dim=1)
    shortest, longest = block_lengths
    period = torch.randint(shortest, longest + 1, (count, 1), generator=generator)
    sources = torch.arange(length) % period  # which of the shuffled words stands where
    words = shuffled.gather(1, sources)  # (count, SYMBOLS) -> (count, length)
    return words + len(SPECIAL)


def exchanged_words(count: int, generator: torch.Generator) -> Pairs:
    """Texts with two words of the first copy exchanged; the second asks what follows one of them.

    clean       cat on RED swam big UP ... | cat on RED ?      swam: it came behind RED
    corrupted   cat on UP swam big RED ... | cat on RED ?      another: what came behind RED here
    """
    return exchanged(repeated_sequences(count, generator, (12, 12), 16), 3, 8, period=12)


# ---- the model


def generator(seed: int, purpose: int) -> torch.Generator:
    """Random numbers of their own for each seed and purpose."""
    return torch.Generator().manual_seed(purpose * 10**6 + seed)


def untrained_repeater(seed: int, num_layers: int = 2, *, networks: bool = False) -> ToyTransformer:
    """The model of a seed before its first step.

    Without feed-forward networks: they give 0, and do not learn.
    """
    torch.manual_seed(seed)
    model = ToyTransformer(
        num_heads=HEADS_A_LAYER, num_layers=num_layers, make_attention=CausalSelfAttention
    )
    if not networks:
        for block in model.blocks:
            for numbers in block.feed_forward[-1].parameters():
                nn.init.zeros_(numbers)
            block.feed_forward.requires_grad_(False)
    return model


def train_repeater(
    model: ToyTransformer,
    seed: int,
    steps: int,
    callback: Callable[[int], None] | None = None,
) -> ToyTransformer:
    """Train a model, and return it; those of one seed see the same batches.

    After the first steps the learning rate stays the same, so that a sudden fall is not the
    schedule's doing. callback: called with the number of steps done.
    """
    batches = generator(seed, 0)

    def loss_of_step(_: int) -> Tensor:
        tokens = repeated_sequences(BATCH, batches)
        logits, _ = model(tokens[:, :-1])
        return F.cross_entropy(logits.mT, tokens[:, 1:])  # (N, T, V) -> (N, V, T)

    rates = {"matrix_rate": 0.01, "rate": 0.005, "matrix_decay": 0.0, "decay": 0.01}
    rates["schedule"] = lambda step: min(1.0, (step + 1) / WARM_UP)
    progress = f"induction, layers: {len(model.blocks)}"
    fit(model, loss_of_step, steps, **rates, callback=callback, progress=progress)
    return model


# ---- its scores, and what is left without some heads


def after_earlier_occurrence(tokens: Tensor) -> Tensor:
    """Which places come right after an earlier occurrence of a query's own word.

    tokens (N, T) -> bool (N, T, T), a row for each query.
    """
    same = tokens[:, :, None] == tokens[:, None, :]  # (N, T) -> (N, T, T)
    earlier = same.tril(diagonal=-1)
    return F.pad(earlier, (1, 0))[..., :-1]  # every mark one key to the right


def predictable(tokens: Tensor) -> Tensor:
    """Whether a word came before, so that the next one is certain: (N, T) -> bool (N, T)."""
    return after_earlier_occurrence(tokens).any(dim=-1)  # (N, T, T) -> (N, T)


def before_in_first_copy(tokens: Tensor) -> Tensor:
    """For each query of the first copy the place before it: tokens (N, T) -> bool (N, T, T)."""
    places = torch.arange(tokens.size(1))
    before = places[:, None] - 1 == places  # -> (T, T)
    return before & ~predictable(tokens)[:, :, None]


@torch.no_grad()
def scores_on(model: ToyTransformer, tokens: Tensor) -> Tensor:
    """The induction scores of a model's heads on these tokens (N, T + 1) -> (L, H)."""
    gold = after_earlier_occurrence(tokens[:, :-1])
    _, layers = model(tokens[:, :-1])
    return torch.stack([relation_weight(weights, gold) for weights in layers])


@torch.no_grad()
def scores_for_naming(model: ToyTransformer, seed: int) -> tuple[Tensor, Tensor]:
    """The scores by which heads are named, on sequences of their own: (H,) each.

    Of layer 0 the mean weight on the word before, within the first copy; of layer 1 the induction
    score.
    """
    tokens = repeated_sequences(NUM_SEQUENCES, generator(seed, 2))
    _, layers = model(tokens[:, :-1])
    before = relation_weight(layers[0], before_in_first_copy(tokens[:, :-1]))
    _, matching = scores_on(model, tokens)
    return before, matching


@torch.no_grad()
def where_certain(model: ToyTransformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (M, V) and answers (M,) at the M places where the next word is certain.

    tokens: (N, T + 1).
    """
    seen, wanted = tokens[:, :-1], tokens[:, 1:]
    places = predictable(seen)
    logits, _ = model(seen)
    return logits[places], wanted[places]  # (N, T, V) -> (M, V), (N, T) -> (M,)


def wrong(model: ToyTransformer, tokens: Tensor) -> float:
    """The share of wrong answers where the next word is certain: tokens (N, T + 1)."""
    return quality(*where_certain(model, tokens)).wrong


@dataclass(frozen=True)
class Quality:
    """How good answers are, in three units, each a mean.

    wrong: the share that is not the word found most likely. nats: the loss. margin: how far the
    logit of the answer lies above that of the best other word.
    """

    wrong: float
    nats: float
    margin: float


def quality(logits: Tensor, answers: Tensor) -> Quality:
    """Returns how good guesses are: logits (M, V), answers (M,)."""
    of_answer = logits.gather(1, answers[:, None])  # (M, V) -> (M, 1)
    others = logits.scatter(1, answers[:, None], -torch.inf)
    margins = of_answer[:, 0] - others.amax(dim=1)
    return Quality(
        (logits.argmax(dim=-1) != answers).double().mean().item(),
        F.cross_entropy(logits, answers).item(),
        margins.mean().item(),
    )


@torch.no_grad()
def quality_without(model: ToyTransformer, tokens: Tensor, layer: int, heads: Tensor) -> Quality:
    """How good answers are without some heads of a layer, bool (H,); nothing is retrained.

    Mean ablation: they give what they give on average at that place, whatever the words are. The
    next layer then gets what it is used to, only not what the heads found out about this sequence.
    """
    given = (
        forward_pass(model, tokens[:, :-1]).outputs(layer).mean(dim=0)
    )  # (N, T, H * d_v) -> (T, H * d_v)
    with patched_input(model.blocks[layer].attention.w_o, put_in(given, heads)):
        return quality(*where_certain(model, tokens))
