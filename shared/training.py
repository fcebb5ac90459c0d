"""Training of the toy models: recipes, objectives, batches.

A toy model guesses hidden words from both sides (BERT; Devlin et al. 2019), or each word from those
before it (GPT; Radford et al. 2018). A Recipe holds what decides it; shared/checkpoints.py keeps
what was trained.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from shared import paths, toy_language
from shared.attention_utils import causal_mask, padding_mask
from shared.optimization import MATRIX_DECAY, fit
from shared.toy_language import PAD_ID, SPECIAL, VOCABULARY, Sentence
from shared.toy_model import MakeAttention, ToyTransformer

NUM_TRAIN, NUM_HELD_OUT = 20_000, 500
QUICK_STEPS = 30  # of a test drive

# Decay pulls the matrices to 0, which keeps the work on one relation in one head. A model of one
# layer cannot afford the usual MATRIX_DECAY: with little decay it loses less, and a lone head does
# not look at itself only.
LITTLE_DECAY = 0.1

# Of the words chosen for prediction some stay and some are swapped, so that real words learn to
# look around too.
CHOSEN, KEPT, SWAPPED = 0.3, 0.3, 0.1


@dataclass(frozen=True)
class Recipe:
    """What decides a trained model. name is the checkpoint's file name; objective is one of
    OBJECTIVES.
    """

    name: str
    objective: str
    num_heads: int
    num_layers: int
    steps: int
    d_model: int = 64
    batch_size: int = 64
    matrix_decay: float = MATRIX_DECAY
    seed: int = 0
    stages: tuple[
        float, ...
    ] = ()  # shares of the training after which all numbers are kept, for a film

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(
                f"unknown objective {self.objective!r}: choose from {', '.join(OBJECTIVES)}"
            )

    @property
    def path(self) -> Path:
        return paths.CHECKPOINTS / f"{self.name}.pt"


def variant(recipe: Recipe, seed: int = 0, **sizes: int | None) -> Recipe:
    """The recipe with another seed or other sizes (d_model, num_heads, num_layers), and a name that
    says so.
    """
    changed = {
        key: value for key, value in sizes.items() if value not in (None, getattr(recipe, key))
    }
    suffix = "".join(f"_{key.removeprefix('num_')}{value}" for key, value in changed.items())
    if seed != recipe.seed:
        suffix += f"_seed{seed}"
    return replace(recipe, name=recipe.name + suffix, seed=seed, **changed)


@dataclass
class Trained:
    """A model with the recipe that made it; losses: of each step of its training, nats per
    predicted word.
    """

    model: ToyTransformer
    recipe: Recipe  # with 0 steps for an untrained one
    losses: list[float] = field(default_factory=list)
    stages: dict[int, Tensor] = field(
        default_factory=dict
    )  # number of steps -> all numbers of the model after them

    @property
    def label(self) -> str:
        return f"trained {self.recipe.steps:,} steps" if self.recipe.steps else "untrained"

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, T, V) on the CPU, on whatever device the model is."""
        return self.model(tokens.to(self.model.positions.device))[0].cpu()

    def at_stage(self, step: int) -> "Trained":
        """The model as it was after so many steps."""
        model = copy.deepcopy(self.model)
        vector_to_parameters(self.stages[step].to(model.positions.device), model.parameters())
        return replace(self, model=model)


@cache
def corpus() -> tuple[list[Sentence], list[Sentence]]:
    """The (train, held-out) sentences of every model; the same for all seeds, so that only the
    model varies.
    """
    return toy_language.sample_corpus(NUM_TRAIN, NUM_HELD_OUT)


def to_batch(sentences: list[Sentence], objective: str) -> tuple[Tensor, Tensor]:
    """Sentences -> tokens (B, T) and lengths (B,); for next words they stand between <start> and
    <end>.
    """
    rows = [toy_language.encode(sentence.words) for sentence in sentences]
    if objective != "masked word":
        rows = [[toy_language.START_ID, *row, toy_language.END_ID] for row in rows]
    return toy_language.pad_batch(rows)


def objective_mask(lengths: Tensor, length: int, objective: str) -> Tensor:
    """Which key each query may see -> bool (B, 1, 1, T), no padding; for next words (B, 1, T, T),
    nor what comes later.

    Every model that was trained on next words needs this mask, unless its attention hides the
    future by itself.
    """
    real = padding_mask(lengths, length)
    return real & causal_mask(length, device=lengths.device) if objective == "next word" else real


def masked_word_loss(
    model: ToyTransformer, tokens: Tensor, lengths: Tensor, generator: torch.Generator
) -> Tensor:
    """Mean cross-entropy, in nats, of the words chosen for prediction."""
    chosen = (torch.rand(tokens.shape, generator=generator) < CHOSEN).to(tokens.device) & (
        tokens != PAD_ID
    )
    fate = torch.rand(tokens.shape, generator=generator).to(tokens.device)
    random_words = torch.randint(
        len(SPECIAL), len(VOCABULARY), tokens.shape, generator=generator
    ).to(tokens.device)
    seen = torch.where(chosen & (fate >= KEPT + SWAPPED), toy_language.MASK_ID, tokens)
    seen = torch.where(chosen & (fate < SWAPPED), random_words, seen)
    logits, _ = model(seen, mask=padding_mask(lengths, tokens.size(1)))
    return F.cross_entropy(logits[chosen], tokens[chosen])  # (B, T, V) -> (number chosen, V)


def next_word_loss(
    model: ToyTransformer,
    tokens: Tensor,
    lengths: Tensor,
    _: object = None,
    *,
    objective: str = "next word",
) -> Tensor:
    """Mean cross-entropy, in nats, of each token given those before it. Nothing is drawn, so no
    generator is used.
    """
    seen, wanted = tokens[:, :-1], tokens[:, 1:]
    logits, _ = model(seen, mask=objective_mask(lengths - 1, seen.size(1), objective))
    return F.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD_ID
    )  # (B, T, V) -> (B * T, V)


OBJECTIVES: dict[str, Callable[[ToyTransformer, Tensor, Tensor, torch.Generator], Tensor]] = {
    "masked word": masked_word_loss,
    "next word": next_word_loss,
    "next word, without a mask": partial(next_word_loss, objective="next word, without a mask"),
}


def _batches(lengths: Tensor, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches of sentence indices; sentences of a batch are of similar length, which leaves
    little padding.
    """
    while True:
        shuffled = torch.randperm(len(lengths), generator=generator)
        by_length = [
            chunk[lengths[chunk].argsort(stable=True)] for chunk in shuffled.split(16 * batch_size)
        ]
        batches = [batch for chunk in by_length for batch in chunk.split(batch_size)]
        for i in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[i]


@torch.no_grad()
def attention_on(
    model: ToyTransformer, sentences: list[Sentence], objective: str, *, end: bool = True
) -> tuple[list[Tensor], Tensor]:
    """Weights of every layer, each (N, H, T, T), and what each token may see, bool (N, 1, T, T).

    Both are on the CPU. A row of padding may see nothing. end=False leaves out <end>, which follows
    the sentences of a next-word model: it is only predicted, so it never was a query in training.
    """
    tokens, lengths = to_batch(sentences, objective)
    if not end and objective != "masked word":
        tokens, lengths = tokens[:, :-1], lengths - 1
    length = tokens.size(1)
    visible = objective_mask(lengths, length, objective)
    device = model.positions.device
    model.eval()
    _, layers = model(tokens.to(device), mask=visible.to(device))
    real_queries = padding_mask(lengths, length).mT  # (N, 1, 1, T) -> (N, 1, T, 1)
    return [weights.cpu() for weights in layers], visible & real_queries


@torch.no_grad()
def held_out_loss(trained: Trained) -> float:
    """Loss in nats per predicted word on the held-out sentences; the words to predict are the same
    at every call.
    """
    tokens, lengths = (
        t.to(trained.model.positions.device)
        for t in to_batch(corpus()[1], trained.recipe.objective)
    )
    trained.model.eval()
    loss = OBJECTIVES[trained.recipe.objective](
        trained.model, tokens, lengths, torch.Generator().manual_seed(0)
    )
    return loss.item()


@torch.no_grad()
def word_by_word_loss(model: ToyTransformer, sentences: list[Sentence]) -> float:
    """Next-word loss in nats per word when only the words so far go in, one prefix after the other,
    as in writing.
    """
    tokens, _ = to_batch(sentences, "next word")
    losses = []
    for length in range(1, tokens.size(1)):
        rows = tokens[tokens[:, length] != PAD_ID]  # the sentences that have a next word here
        logits, _ = model(rows[:, :length])
        losses.append(F.cross_entropy(logits[:, -1], rows[:, length], reduction="none"))
    return torch.cat(losses).mean().item()


def new_model(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> ToyTransformer:
    """The untrained model of a recipe; its seed decides the weights."""
    torch.manual_seed(recipe.seed)
    return ToyTransformer(
        recipe.d_model, recipe.num_heads, recipe.num_layers, make_attention=make_attention
    ).to(device)


def untrained(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> Trained:
    """The model of a recipe before its first step: the control for everything that training is said
    to do.
    """
    return Trained(new_model(recipe, make_attention, device), replace(recipe, steps=0))


def train(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> Trained:
    """Train a new toy model by the recipe, with a progress bar."""
    model = new_model(recipe, make_attention, device)
    generator = torch.Generator().manual_seed(recipe.seed)
    tokens, lengths = to_batch(corpus()[0], recipe.objective)
    batches = _batches(lengths, recipe.batch_size, generator)

    def loss_of_step(_: int) -> Tensor:
        batch = next(batches)
        batch_tokens = tokens[batch, : int(lengths[batch].max())].to(device)
        return OBJECTIVES[recipe.objective](
            model, batch_tokens, lengths[batch].to(device), generator
        )

    kept, stages = {round(share * recipe.steps) for share in recipe.stages}, {}

    def watch(done: int) -> None:
        if done in kept:
            stages[done] = parameters_to_vector(model.parameters()).cpu()

    more = {
        "matrix_decay": recipe.matrix_decay,
        "watch": watch,
        "progress": f"training {recipe.name}",
    }
    return Trained(model, recipe, fit(model, loss_of_step, recipe.steps, **more), stages)
