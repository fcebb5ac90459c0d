"""How is a toy model trained? Recipes, objectives, batches.

A toy model guesses hidden words from both sides (BERT; Devlin et al. 2019), or each word from those
before it (GPT; Radford et al. 2018). Its loss is in nats a word, so exp(loss) is its perplexity.
A Recipe holds what decides a model, and shared/checkpoints.py keeps what was trained. Optimizers
and learning-rate schedule (one_cycle) are in shared/optimization.py, the grammar of the sentences
is in shared/toy_language.py.
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

# The weight decay for models of one layer. More of it pulls the matrices so near to 0 that the
# model loses more, and a lone head looks at nothing but its own word.
LITTLE_DECAY = 0.1

# Of all words CHOSEN are to be guessed. Of these KEPT stay as they are, SWAPPED become other words,
# and the rest is hidden. So words that can be read learn to look around, too.
CHOSEN, KEPT, SWAPPED = 0.3, 0.3, 0.1


@dataclass(frozen=True)
class Recipe:
    """What decides a trained model."""

    name: str  # of the checkpoint's file
    objective: str  # one of OBJECTIVES
    num_heads: int
    num_layers: int
    steps: int
    d_model: int = 64
    batch_size: int = 64
    matrix_decay: float = MATRIX_DECAY
    seed: int = 0
    stages: tuple[float, ...] = ()  # shares of the training after which the model is kept, too

    @property
    def path(self) -> Path:
        return paths.CHECKPOINTS / f"{self.name}.pt"


def variant(recipe: Recipe, seed: int = 0, **sizes: int | None) -> Recipe:
    """The recipe with another seed or other numbers, and a name that says so.

    sizes: d_model, num_heads, num_layers or steps; None leaves a number as it is.
    """
    changed = {}
    name = recipe.name
    for size, value in sizes.items():
        if value is not None and value != getattr(recipe, size):
            changed[size] = value
            name += f"_{size.removeprefix('num_')}{value}"
    if seed != recipe.seed:
        name += f"_seed{seed}"
    return replace(recipe, name=name, seed=seed, **changed)


@dataclass
class Trained:
    """A model with the recipe that made it."""

    model: ToyTransformer
    recipe: Recipe  # with 0 steps for an untrained one
    losses: list[float] = field(default_factory=list)  # of each step, nats per predicted word
    stages: dict[int, Tensor] = field(default_factory=dict)  # steps done -> all numbers after them

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
    """The (train, held-out) sentences of every model, the same for all seeds."""
    return toy_language.sample_corpus(NUM_TRAIN, NUM_HELD_OUT)


def to_batch(sentences: list[Sentence], objective: str) -> tuple[Tensor, Tensor]:
    """Sentences -> tokens (B, T) and lengths (B,); next words stand between <start> and <end>."""
    rows = [toy_language.encode(sentence.words) for sentence in sentences]
    if objective != "masked word":
        rows = [[toy_language.START_ID, *row, toy_language.END_ID] for row in rows]
    return toy_language.pad_batch(rows)


def objective_mask(lengths: Tensor, length: int, objective: str) -> Tensor:
    """Which key each query may see, bool: no padding (B, 1, 1, T).

    For next words nor what comes later, (B, 1, T, T). Every model that was trained on next words
    needs this mask, unless its attention hides the future by itself.
    """
    real = padding_mask(lengths, length)
    if objective != "next word":
        return real
    return real & causal_mask(length, device=lengths.device)


def masked_word_loss(
    model: ToyTransformer, tokens: Tensor, lengths: Tensor, generator: torch.Generator
) -> Tensor:
    """Mean cross-entropy, in nats, of the words chosen for prediction."""
    shape, device = tokens.shape, tokens.device
    chosen = torch.rand(shape, generator=generator).to(device) < CHOSEN
    chosen = chosen & (tokens != PAD_ID)
    fate = torch.rand(shape, generator=generator).to(device)
    others = torch.randint(len(SPECIAL), len(VOCABULARY), shape, generator=generator).to(device)
    seen = torch.where(chosen & (fate >= KEPT + SWAPPED), toy_language.MASK_ID, tokens)
    seen = torch.where(chosen & (fate < SWAPPED), others, seen)
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
    """Mean cross-entropy, in nats, of each token given those before it.

    Nothing is drawn, so the generator that other objectives take is not used.
    """
    seen = tokens[:, :-1]
    wanted = tokens[:, 1:]
    logits, _ = model(seen, mask=objective_mask(lengths - 1, seen.size(1), objective))
    logits = logits.flatten(0, 1)  # (B, T, V) -> (B * T, V)
    return F.cross_entropy(logits, wanted.flatten(), ignore_index=PAD_ID)


OBJECTIVES: dict[str, Callable[[ToyTransformer, Tensor, Tensor, torch.Generator], Tensor]] = {
    "masked word": masked_word_loss,
    "next word": next_word_loss,
    "next word, without a mask": partial(next_word_loss, objective="next word, without a mask"),
}


def _batches(lengths: Tensor, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches of sentence indices.

    Sentences of a batch are of similar length, which leaves little padding.
    """
    while True:
        batches = []
        shuffled = torch.randperm(len(lengths), generator=generator)
        for chunk in shuffled.split(16 * batch_size):
            by_length = chunk[lengths[chunk].argsort(stable=True)]
            batches += by_length.split(batch_size)
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
    """Loss in nats per predicted word on the held-out sentences, the same words at every call."""
    model, objective = trained.model, trained.recipe.objective
    device = model.positions.device
    tokens, lengths = to_batch(corpus()[1], objective)
    generator = torch.Generator().manual_seed(0)
    model.eval()
    return OBJECTIVES[objective](model, tokens.to(device), lengths.to(device), generator).item()


@torch.no_grad()
def word_by_word_loss(model: ToyTransformer, sentences: list[Sentence]) -> float:
    """Next-word loss in nats per word when only the words so far go in, as in writing."""
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
    sizes = recipe.d_model, recipe.num_heads, recipe.num_layers
    return ToyTransformer(*sizes, make_attention=make_attention).to(device)


def untrained(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> Trained:
    """The model of a recipe before its first step: the control for what training is said to do."""
    return Trained(new_model(recipe, make_attention, device), replace(recipe, steps=0))


def train(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> Trained:
    """Train a new toy model by the recipe, with a progress bar."""
    model = new_model(recipe, make_attention, device)
    generator = torch.Generator().manual_seed(recipe.seed)
    tokens, lengths = to_batch(corpus()[0], recipe.objective)
    batches = _batches(lengths, recipe.batch_size, generator)
    loss = OBJECTIVES[recipe.objective]
    wanted = [round(share * recipe.steps) for share in recipe.stages]
    stages = {}

    def loss_of_step(_: int) -> Tensor:
        batch = next(batches)
        of_batch = lengths[batch]
        seen = tokens[batch, : of_batch.max()]
        return loss(model, seen.to(device), of_batch.to(device), generator)

    def keep_stage(done: int) -> None:
        if done in wanted:
            stages[done] = parameters_to_vector(model.parameters()).cpu()

    losses = fit(
        model,
        loss_of_step,
        recipe.steps,
        matrix_decay=recipe.matrix_decay,
        watch=keep_stage,
        progress=f"training {recipe.name}",
    )
    return Trained(model, recipe, losses, stages)
