"""Training: one loop for every small model, and the objectives of the toy models.

`fit` takes any model and a function that draws the batch of a step and returns its loss:

    losses = fit(model, lambda step: F.cross_entropy(model(inputs[step]), targets[step]), steps=200)

A toy model guesses hidden words from both sides (BERT; Devlin et al. 2019), or each word from those before it (GPT;
Radford et al. 2018). A Recipe holds what decides it; shared/checkpoints.py keeps what was trained.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from shared import paths, toy_language
from shared.attention_utils import causal_mask, padding_mask
from shared.toy_language import PAD_ID, SPECIAL, VOCABULARY, Sentence
from shared.toy_model import MakeAttention, ToyTransformer

NUM_TRAIN, NUM_HELD_OUT = 20_000, 500
QUICK_STEPS = 30  # of a test drive

# The rates at their highest. Decay pulls the matrices to 0, which keeps the work on one relation in one head. A model
# of one layer cannot afford that much: with little decay it loses less, and a lone head does not look at itself only.
MATRIX_RATE, RATE, MATRIX_DECAY, DECAY = 0.04, 0.02, 0.5, 0.0
LITTLE_DECAY = 0.1
UP = 0.3  # share of the steps in which the rates rise

# Of the words chosen for prediction some stay and some are swapped, so that real words learn to look around too.
CHOSEN, KEPT, SWAPPED = 0.3, 0.3, 0.1


@dataclass(frozen=True)
class Recipe:
    """What decides a trained model. name is the checkpoint's file name; objective is one of OBJECTIVES."""

    name: str
    objective: str
    num_heads: int
    num_layers: int
    steps: int
    d_model: int = 64
    batch_size: int = 64
    matrix_decay: float = MATRIX_DECAY
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"unknown objective {self.objective!r}: choose from {', '.join(OBJECTIVES)}")

    @property
    def path(self) -> Path:
        return paths.CHECKPOINTS / f"{self.name}.pt"


def variant(recipe: Recipe, seed: int = 0, **sizes: int | None) -> Recipe:
    """The recipe with another seed or other sizes (d_model, num_heads, num_layers), and a name that says so."""
    changed = {key: value for key, value in sizes.items() if value not in (None, getattr(recipe, key))}
    suffix = "".join(f"_{key.removeprefix('num_')}{value}" for key, value in changed.items())
    if seed != recipe.seed:
        suffix += f"_seed{seed}"
    return replace(recipe, name=recipe.name + suffix, seed=seed, **changed)


@dataclass
class Trained:
    """A model with the recipe that made it; losses: of each step of its training, nats per predicted word."""

    model: ToyTransformer
    recipe: Recipe  # with 0 steps for an untrained one
    losses: list[float] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"trained {self.recipe.steps:,} steps" if self.recipe.steps else "untrained"


@cache
def corpus() -> tuple[list[Sentence], list[Sentence]]:
    """The (train, held-out) sentences of every model; the same for all seeds, so that only the model varies."""
    return toy_language.sample_corpus(NUM_TRAIN, NUM_HELD_OUT)


def to_batch(sentences: list[Sentence], objective: str) -> tuple[Tensor, Tensor]:
    """Sentences -> tokens (B, T) and lengths (B,); for next words they stand between <start> and <end>."""
    rows = [toy_language.encode(sentence.words) for sentence in sentences]
    if objective != "masked word":
        rows = [[toy_language.START_ID, *row, toy_language.END_ID] for row in rows]
    return toy_language.pad_batch(rows)


def objective_mask(lengths: Tensor, length: int, objective: str) -> Tensor:
    """Which key each query may see -> bool (B, 1, 1, T), no padding; for next words (B, 1, T, T), nor what comes later.

    Every model that was trained on next words needs this mask, unless its attention hides the future by itself.
    """
    real = padding_mask(lengths, length)
    return real & causal_mask(length, device=lengths.device) if objective == "next word" else real


def masked_word_loss(model: ToyTransformer, tokens: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Mean cross-entropy, in nats, of the words chosen for prediction."""
    chosen = (torch.rand(tokens.shape, generator=generator) < CHOSEN).to(tokens.device) & (tokens != PAD_ID)
    fate = torch.rand(tokens.shape, generator=generator).to(tokens.device)
    random_words = torch.randint(len(SPECIAL), len(VOCABULARY), tokens.shape, generator=generator).to(tokens.device)
    seen = torch.where(chosen & (fate >= KEPT + SWAPPED), toy_language.MASK_ID, tokens)
    seen = torch.where(chosen & (fate < SWAPPED), random_words, seen)
    logits, _ = model(seen, mask=padding_mask(lengths, tokens.size(1)))
    return F.cross_entropy(logits[chosen], tokens[chosen])  # (B, T, V) -> (number chosen, V)


def next_word_loss(
    model: ToyTransformer, tokens: Tensor, lengths: Tensor, _: object = None, *, objective: str = "next word"
) -> Tensor:
    """Mean cross-entropy, in nats, of each token given those before it. Nothing is drawn, so no generator is used."""
    seen, wanted = tokens[:, :-1], tokens[:, 1:]
    logits, _ = model(seen, mask=objective_mask(lengths - 1, seen.size(1), objective))
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD_ID)  # (B, T, V) -> (B * T, V)


OBJECTIVES: dict[str, Callable[[ToyTransformer, Tensor, Tensor, torch.Generator], Tensor]] = {
    "masked word": masked_word_loss,
    "next word": next_word_loss,
    "next word, without a mask": partial(next_word_loss, objective="next word, without a mask"),
}


def _batches(lengths: Tensor, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches of sentence indices; sentences of a batch are of similar length, which leaves little padding."""
    while True:
        shuffled = torch.randperm(len(lengths), generator=generator)
        by_length = [chunk[lengths[chunk].argsort(stable=True)] for chunk in shuffled.split(16 * batch_size)]
        batches = [batch for chunk in by_length for batch in chunk.split(batch_size)]
        for i in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[i]


@torch.no_grad()
def attention_on(model: ToyTransformer, sentences: list[Sentence], objective: str) -> tuple[list[Tensor], Tensor]:
    """Weights of every layer, each (N, H, T, T), and what the real queries may see, bool (N, 1, T, T)."""
    tokens, lengths = (t.to(model.positions.device) for t in to_batch(sentences, objective))
    visible, queries = objective_mask(lengths, tokens.size(1), objective), padding_mask(lengths, tokens.size(1)).mT
    model.eval()
    _, layers = model(tokens, mask=visible)
    return layers, visible & queries


@torch.no_grad()
def held_out_loss(trained: Trained) -> float:
    """Loss in nats per predicted word on the held-out sentences; the words to predict are the same at every call."""
    tokens, lengths = (t.to(trained.model.positions.device) for t in to_batch(corpus()[1], trained.recipe.objective))
    trained.model.eval()
    loss = OBJECTIVES[trained.recipe.objective](trained.model, tokens, lengths, torch.Generator().manual_seed(0))
    return loss.item()


def new_model(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> ToyTransformer:
    """The untrained model of a recipe; its seed decides the weights."""
    torch.manual_seed(recipe.seed)
    return ToyTransformer(recipe.d_model, recipe.num_heads, recipe.num_layers, make_attention=make_attention).to(device)


def untrained(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> Trained:
    """The model of a recipe before its first step: the control for everything that training is said to do."""
    return Trained(new_model(recipe, make_attention, device), replace(recipe, steps=0))


def orthogonal(x: Tensor) -> Tensor:
    """Matrices (..., m, n) -> the same directions, each about equally long: of x = U S V^T only U V^T is kept, roughly.

    Five steps of a Newton-Schulz iteration, which needs products alone, bring the singular values to 1 ± 0.4 or so.
    """
    if x.size(-2) > x.size(-1):
        return orthogonal(x.mT).mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.mT  # (..., m, n) -> (..., m, m)
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal, for weight matrices (Jordan et al. 2024); the same steps as torch.optim.Muon.

    torch.optim.Muon multiplies in bfloat16, one matrix after the other, which is made for large models on a GPU. A
    processor without instructions for bfloat16, as in most laptops, needs more than ten times as long for that.
    """

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.85, weight_decay: float = 0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        """One step down the gradients; matrices of one shape are made orthogonal together."""
        for group in self.param_groups:
            of_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    of_shape[matrix.shape].append(matrix)
            for (m, n), same in of_shape.items():
                directions = orthogonal(torch.stack([self.ahead(matrix, group["momentum"]) for matrix in same]))
                for matrix, direction in zip(same, directions, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(direction, alpha=-group["lr"] * max(1, m / n) ** 0.5)

    def ahead(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        """The mean of the gradients so far, with the newest counted once more (Nesterov)."""
        mean = self.state[matrix].setdefault("mean", torch.zeros_like(matrix)).lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(mean, momentum)


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """What Muon moves: each 2-D parameter of model.blocks; in a model without blocks, the weight of each nn.Linear."""
    if hasattr(model, "blocks"):
        return [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
    return [module.weight for module in model.modules() if isinstance(module, nn.Linear)]


def optimizers(
    model: nn.Module, matrix_rate: float | None, rate: float, matrix_decay: float, decay: float
) -> list[torch.optim.Optimizer]:
    """AdamW and Muon, so that each parameter belongs to one of them; AdamW alone if matrix_rate is None."""
    inside = [] if matrix_rate is None else matrices(model)
    others = [parameter for parameter in model.parameters() if not any(parameter is matrix for matrix in inside)]
    both = [torch.optim.AdamW(others, rate, betas=(0.9, 0.95), weight_decay=decay, fused=True)] if others else []
    if inside:
        both.append(Muon(inside, matrix_rate, weight_decay=matrix_decay))
    return both


def one_cycle(step: int, steps: int) -> float:
    """Share of the highest rate at a step from 0 to steps - 1: up, then down, both along half a wave (Smith 2018)."""
    phase = np.interp(step + 1, (0, UP * steps, steps + 1), (0, 1, 2))
    return (1 - math.cos(math.pi * phase)) / 2


@torch.enable_grad()
def fit(
    model: nn.Module,
    loss_of_step: Callable[[int], Tensor],
    steps: int,
    *,
    matrix_rate: float | None = MATRIX_RATE,
    rate: float = RATE,
    matrix_decay: float = MATRIX_DECAY,
    decay: float = DECAY,
    share: Callable[[int], float] | None = None,
    watch: Callable[[int], None] | None = None,
    progress: str = "",
) -> list[float]:
    """Train a model and leave it ready for use (model.eval()); returns the loss of each step.

    loss_of_step: step, from 0 to steps - 1 -> a loss to go down; it draws the batch, so seed the generator it uses.
    matrix_rate, matrix_decay: of Muon, for what `matrices` names; matrix_rate=None leaves everything to AdamW.
    rate, decay: of AdamW, for everything else. Decay takes rate * decay of each number away at each step.
    share: step -> share of both rates at that step; without it one_cycle.
    watch: called without gradients, with the number of steps done, before the first step (0) and after each (1 ...).
    progress: what to call this on a progress bar; without it there is none.
    """
    both = optimizers(model, matrix_rate, rate, matrix_decay, decay)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, share or partial(one_cycle, steps=steps)) for each in both]
    watch = torch.no_grad()(watch or (lambda done: None))
    losses = []
    watch(0)
    bar = tqdm(range(steps), desc=progress, unit="step", mininterval=0.5, leave=False, disable=not progress or None)
    for step in bar:
        model.train()
        loss = loss_of_step(step)
        model.zero_grad()
        loss.backward()
        for each in (*both, *schedules):
            each.step()
        losses.append(loss.item())
        bar.set_postfix_str(f"loss {losses[-1]:.3f}", refresh=False)
        watch(step + 1)
    model.eval()
    return losses


def train(
    recipe: Recipe,
    make_attention: MakeAttention,
    device: str = "cpu",
    *,
    look: Callable[[ToyTransformer, int], None] | None = None,
) -> Trained:
    """Train a new toy model by the recipe, with a progress bar.

    look: called with the model and the number of steps done, before the first step and after each.
    """
    model = new_model(recipe, make_attention, device)
    generator = torch.Generator().manual_seed(recipe.seed)
    tokens, lengths = to_batch(corpus()[0], recipe.objective)
    batches = _batches(lengths, recipe.batch_size, generator)

    def loss_of_step(_: int) -> Tensor:
        batch = next(batches)
        batch_tokens = tokens[batch, : int(lengths[batch].max())].to(device)
        return OBJECTIVES[recipe.objective](model, batch_tokens, lengths[batch].to(device), generator)

    watch, progress = look and partial(look, model), f"training {recipe.name}"
    losses = fit(model, loss_of_step, recipe.steps, matrix_decay=recipe.matrix_decay, watch=watch, progress=progress)
    return Trained(model, recipe, losses)
