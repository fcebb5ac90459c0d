"""The training loop of every small model here.

    losses = fit(model, lambda step: F.cross_entropy(model(inputs[step]), targets[step]), steps=200)

It takes any model, and a function that draws the batch of a step and returns its loss. Weight
matrices are moved by Muon, all else by AdamW; both rates rise and fall in one cycle.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

MATRIX_RATE, RATE, MATRIX_DECAY, DECAY = 0.04, 0.02, 0.5, 0.0  # the rates at their highest
UP = 0.3  # share of the steps in which the rates rise


def orthogonal(x: Tensor) -> Tensor:
    """Matrices (..., m, n) -> the same directions, each about equally long: of x = U S V^T only U
    V^T is kept, roughly.

    Five steps of a Newton-Schulz iteration, which needs products alone, bring the singular values
    to 1 ± 0.4 or so.
    """
    if x.size(-2) > x.size(-1):
        return orthogonal(x.mT).mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.mT  # (..., m, n) -> (..., m, m)
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal, for weight matrices (Jordan et al. 2024); the same steps as
    torch.optim.Muon.

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
            of_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    of_shape[matrix.shape].append(matrix)
            for (m, n), same in of_shape.items():
                directions = orthogonal(
                    torch.stack([self.ahead(matrix, group["momentum"]) for matrix in same])
                )
                for matrix, direction in zip(same, directions, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(direction, alpha=-group["lr"] * max(1, m / n) ** 0.5)

    def ahead(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        """The mean of the gradients so far, with the newest counted once more (Nesterov)."""
        mean = (
            self.state[matrix]
            .setdefault("mean", torch.zeros_like(matrix))
            .lerp_(matrix.grad, 1 - momentum)
        )
        return matrix.grad.lerp(mean, momentum)


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """What Muon moves: each 2-D parameter of model.blocks; in a model without blocks, the weight of
    each nn.Linear.
    """
    if hasattr(model, "blocks"):
        return [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
    return [module.weight for module in model.modules() if isinstance(module, nn.Linear)]


def optimizers(
    model: nn.Module, matrix_rate: float | None, rate: float, matrix_decay: float, decay: float
) -> list[torch.optim.Optimizer]:
    """AdamW and Muon, so that each parameter belongs to one of them; AdamW alone if matrix_rate is
    None.
    """
    inside = [] if matrix_rate is None else matrices(model)
    others = [
        parameter
        for parameter in model.parameters()
        if not any(parameter is matrix for matrix in inside)
    ]
    both = (
        [torch.optim.AdamW(others, rate, betas=(0.9, 0.95), weight_decay=decay, fused=True)]
        if others
        else []
    )
    if inside:
        both.append(Muon(inside, matrix_rate, weight_decay=matrix_decay))
    return both


def one_cycle(step: int, steps: int) -> float:
    """Share of the highest rate at a step from 0 to steps - 1: up, then down, both along half a
    wave (Smith 2018).
    """
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

    loss_of_step: step, from 0 to steps - 1 -> a loss to go down; it draws the batch, so seed the
    generator it uses. matrix_rate, matrix_decay: of Muon, for what `matrices` names;
    matrix_rate=None leaves everything to AdamW. rate, decay: of AdamW, for everything else. Decay
    takes rate * decay of each number away at each step. share: step -> share of both rates at that
    step; without it one_cycle. watch: called without gradients, with the number of steps done,
    before the first step (0) and after each (1 ...). progress: what to call this on a progress bar;
    without it there is none.
    """
    both = optimizers(model, matrix_rate, rate, matrix_decay, decay)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, share or partial(one_cycle, steps=steps))
        for each in both
    ]
    watch = torch.no_grad()(watch or (lambda done: None))
    parameters, losses = list(model.parameters()), []
    watch(0)
    bar = tqdm(
        range(steps),
        desc=progress,
        unit="step",
        mininterval=0.5,
        leave=False,
        disable=not progress or None,
    )
    for step in bar:
        if not model.training:  # at first, and where watch has tested it
            model.train()
        loss = loss_of_step(step)
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        for each in (*both, *schedules):
            each.step()
        losses.append(loss.item())
        bar.set_postfix_str(f"loss {losses[-1]:.3f}", refresh=False)
        watch(step + 1)
    model.eval()
    return losses
