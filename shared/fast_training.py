"""Fewer steps to the same loss: Muon for the matrices of the layers, AdamW for everything else.

The gradient of a weight matrix is mostly a few strong directions; a plain step moves these far and the others hardly.
Muon makes every direction of its step the same length (Jordan et al. 2024), which shortens the time in which attention
seems to learn nothing. Experiments that train many small models use it, the first is heads_vs_loss.py of phase 2; the
checkpoints of shared/training.py do not.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shared.toy_model import ToyTransformer


class FastTraining:
    """Both optimizers and their learning rates for a number of steps: call step with the loss of each batch.

    share: step -> share of both rates; without it they go up for a tenth of the steps and down again (one cycle).
    """

    def __init__(
        self,
        model: ToyTransformer,
        steps: int,
        *,
        matrix_rate: float,
        learning_rate: float,
        matrix_decay: float,
        weight_decay: float,
        share: Callable[[int], float] | None = None,
    ) -> None:
        self.model = model
        matrices = [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
        others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
        optimizers = (
            torch.optim.Muon(matrices, matrix_rate, momentum=0.85, weight_decay=matrix_decay),
            torch.optim.AdamW(others, learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay, fused=True),
        )
        schedules = [
            torch.optim.lr_scheduler.LambdaLR(each, share)
            if share
            else torch.optim.lr_scheduler.OneCycleLR(
                each, each.param_groups[0]["lr"], total_steps=steps, pct_start=0.1, cycle_momentum=False
            )
            for each in optimizers
        ]
        self.moving = (*optimizers, *schedules)

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of a loss, a number computed with the model."""
        self.model.zero_grad()
        loss.backward()
        for each in self.moving:
            each.step()
