"""What decides a toy model, and how is it made and trained?

A Recipe holds the sizes of a model, its objective, its seed and how long it is trained. train makes
the model of a recipe and trains it; trained_model in checkpoints.py does so once, and keeps it.
"""

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from shared import paths
from shared.toy_language import Sentence
from shared.toy_model import MakeAttention, ToyTransformer, default_dtype, dtype_on
from shared.training.loop import MATRIX_DECAY, MATRIX_RATE, fit
from shared.training.objectives import OBJECTIVES, corpus, endless_batches, to_batch

# The weight decay for models of one layer. More of it pulls the matrices so near to 0 that the
# model loses more, and a lone head looks at nothing but its own word.
LITTLE_DECAY = 0.1


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
    matrix_rate: float = MATRIX_RATE
    matrix_decay: float = MATRIX_DECAY
    seed: int = 0
    stages: tuple[float, ...] = ()  # shares of the training after which the model is kept, too

    @property
    def path(self) -> Path:
        return paths.CHECKPOINTS / f"{self.name}.pt"


def variant(recipe: Recipe, seed: int = 0, **sizes: int | None) -> Recipe:
    """The recipe with another seed or other numbers, and a name that says so.

    sizes: d_model, num_heads, num_layers, steps; None leaves a number as it is.
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
        logits, _ = self.model(tokens.to(self.model.positions.device))
        return logits.cpu()

    def at_stage(self, step: int) -> "Trained":
        """The model as it was after so many steps."""
        model = copy.deepcopy(self.model)
        vector_to_parameters(self.stages[step].to(model.positions.device), model.parameters())
        return replace(self, model=model)


@torch.no_grad()
def held_out_loss(trained: Trained) -> float:
    """Loss in nats per predicted word on the held-out sentences, the same words at every call."""
    model, objective = trained.model, trained.recipe.objective
    device = model.positions.device
    _, held_out = corpus()
    tokens, lengths = to_batch(held_out, objective)
    generator = torch.Generator().manual_seed(0)
    model.eval()
    loss_of_batch = OBJECTIVES[objective]
    return loss_of_batch(model, tokens.to(device), lengths.to(device), generator).item()


def new_model(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> ToyTransformer:
    """The untrained model of a recipe; its seed decides the weights."""
    torch.manual_seed(recipe.seed)
    sizes = recipe.d_model, recipe.num_heads, recipe.num_layers
    with default_dtype(dtype_on(device)):  # also for a notebook, which has its own
        model = ToyTransformer(*sizes, make_attention=make_attention)
    return model.to(device)


def untrained_model(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> Trained:
    """The model of a recipe before its first step: the control for what training is said to do."""
    return Trained(new_model(recipe, make_attention, device), replace(recipe, steps=0))


def train(
    recipe: Recipe,
    make_attention: MakeAttention,
    device: str = "cpu",
    sentences: list[Sentence] | None = None,
) -> Trained:
    """Train a new toy model by the recipe, with a progress bar; on these sentences, if given."""
    model = new_model(recipe, make_attention, device)
    generator = torch.Generator().manual_seed(recipe.seed)
    sentences = sentences or corpus()[0]
    tokens, lengths = to_batch(sentences, recipe.objective)
    batches = endless_batches(lengths, recipe.batch_size, generator)
    loss_of_batch = OBJECTIVES[recipe.objective]
    steps_kept = [round(share * recipe.steps) for share in recipe.stages]
    stages = {}

    def loss_of_step(_: int) -> Tensor:
        batch = next(batches)
        batch_lengths = lengths[batch]
        batch_tokens = tokens[batch, : batch_lengths.max()]
        return loss_of_batch(model, batch_tokens.to(device), batch_lengths.to(device), generator)

    def keep_stage(steps_done: int) -> None:
        if steps_done in steps_kept:
            stages[steps_done] = parameters_to_vector(model.parameters()).cpu()

    losses = fit(
        model,
        loss_of_step,
        recipe.steps,
        matrix_rate=recipe.matrix_rate,
        matrix_decay=recipe.matrix_decay,
        callback=keep_stage,
        progress=f"training {recipe.name}",
    )
    return Trained(model, recipe, losses, stages)
