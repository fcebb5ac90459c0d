"""The training loop of every small model here, its optimizers and its learning-rate schedule.

    losses = fit(model, loss_of_step, steps=200)

fit takes a model, and a function that draws the batch of a step and returns its loss. The weight
matrices of its blocks are moved by Muon, all else by AdamW. Both learning rates follow one_cycle.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

MATRIX_RATE = 0.04  # the highest learning rate of Muon
MATRIX_DECAY = 0.5  # its weight decay
RATE, DECAY = 0.02, 0.0  # those of AdamW
UP = 0.3  # share of the steps in which the rates rise


def orthogonal(x: Tensor) -> Tensor:
    """Matrices x = U S Vᵀ of shape (..., m, n) -> roughly U Vᵀ: all singular values become 1.

    Five steps of a Newton-Schulz iteration, which needs products alone, bring them to 1 ± 0.4 or
    so. Its coefficients are those of Jordan et al. 2024.
    """
    if x.size(-2) > x.size(-1):
        return orthogonal(x.mT).mT  # the products below are smaller for a wide matrix
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT  # (..., m, n) -> (..., m, m)
        correction = (2.0315 * gram) @ gram - 4.7750 * gram
        x = 3.4445 * x + correction @ x
    return x


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal, for weight matrices (Jordan et al. 2024), as torch.optim.Muon.

    torch.optim.Muon multiplies in bfloat16, one matrix after the other, which is made for large
    models on a GPU. A processor without instructions for bfloat16, as in most laptops, needs more
    than ten times as long for that.
    """

    def __init__(
        self, params: list[nn.Parameter], lr: float, momentum: float = 0.85, weight_decay: float = 0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        """One step down the gradients; matrices of one shape are made orthogonal together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for (m, n), matrices in by_shape.items():
                means = []
                for matrix in matrices:
                    means.append(self.update_mean(matrix, group["momentum"]))
                directions = orthogonal(torch.stack(means))
                # The numbers of a tall orthogonal matrix are smaller, by √(m / n).
                rate = group["lr"] * max(1, m / n) ** 0.5
                for matrix, direction in zip(matrices, directions, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(direction, alpha=-rate)

    def update_mean(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        """Updates the mean of the gradients; returns it with the newest counted once more."""
        mean = self.state[matrix].setdefault("mean", torch.zeros_like(matrix))
        mean.lerp_(matrix.grad, 1 - momentum)  # momentum * mean + (1 - momentum) * grad
        return matrix.grad.lerp(mean, momentum)  # and the same again (Nesterov)


def make_optimizers(
    model: nn.Module, *, matrix_rate: float | None, matrix_decay: float, rate: float, decay: float
) -> list[torch.optim.Optimizer]:
    """AdamW and Muon, each parameter in one of them; AdamW alone if matrix_rate is None.

    Muon moves the matrices of model.blocks, AdamW all else: embeddings, biases, norms.
    """
    matrices = []
    if matrix_rate is not None:
        matrices = [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
    moved_by_muon = {id(matrix) for matrix in matrices}
    others = [p for p in model.parameters() if id(p) not in moved_by_muon]
    adamw = torch.optim.AdamW(others, rate, betas=(0.9, 0.95), weight_decay=decay, fused=True)
    if not matrices:
        return [adamw]
    return [adamw, Muon(matrices, matrix_rate, weight_decay=matrix_decay)]


def one_cycle(step: int, steps: int) -> float:
    """The learning-rate schedule: the share of the highest rate at a step from 0 to steps - 1.

    It goes up, then down, both along half a wave (Smith 2018).
    """
    top = UP * steps
    end = steps + 1  # one step after the last, where the rate would be 0
    phase = np.interp(step + 1, (0, top, end), (0, 1, 2))  # 1 at the top of the wave
    return (1 - math.cos(math.pi * phase)) / 2


def constant(step: int) -> float:
    """A schedule without a rise and a fall: the whole rate at every step."""
    return 1.0


@torch.enable_grad()  # also where the caller measures without gradients
def fit(
    model: nn.Module,
    loss_of_step: Callable[[int], Tensor],
    steps: int,
    *,
    matrix_rate: float | None = MATRIX_RATE,
    rate: float = RATE,
    matrix_decay: float = MATRIX_DECAY,
    decay: float = DECAY,
    schedule: Callable[[int], float] | None = None,
    callback: Callable[[int], None] | None = None,
    progress: str = "",
) -> list[float]:
    """Train a model and leave it ready for use (model.eval()); returns the loss of each step.

    loss_of_step: step, from 0 to steps - 1 -> a loss to go down. It draws the batch, so seed the
        generator that it uses.
    matrix_rate, matrix_decay: of Muon; matrix_rate=None leaves everything to AdamW, as in a model
        without blocks.
    rate, decay: of AdamW, for everything else. Both decays take rate * decay of each number away
        at each step.
    schedule: step -> the share of both rates at that step, as `constant`; one_cycle unless given.
    callback: called without gradients, with the number of steps done: 0, and after each step.
    progress: what to call this on a progress bar; without it there is none.
    """
    optimizers = make_optimizers(
        model, matrix_rate=matrix_rate, matrix_decay=matrix_decay, rate=rate, decay=decay
    )
    schedule = schedule or partial(one_cycle, steps=steps)
    schedulers = [LambdaLR(optimizer, schedule) for optimizer in optimizers]

    @torch.no_grad()
    def call_back(steps_done: int) -> None:
        if callback:
            callback(steps_done)

    losses = []
    call_back(0)
    no_bar = None if progress else True  # None leaves it to tqdm: a bar in a terminal alone
    bar = tqdm(range(steps), desc=progress, leave=False, disable=no_bar)
    for step in bar:
        if not model.training:  # at first, and where callback has tested it
            model.train()
        loss = loss_of_step(step)
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        losses.append(loss.item())
        bar.set_postfix_str(f"loss {losses[-1]:.3f}", refresh=False)
        call_back(step + 1)
    model.eval()
    return losses
