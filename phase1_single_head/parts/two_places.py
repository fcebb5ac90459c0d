"""How does one ask whether a head can look at two places at once?

Each symbol is given by the ones 1 and 3 places before it, through a table that is drawn at random.
Strings are drawn without end. make_attention makes the attention to use from d_model.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.attention_utils import causal_mask
from shared.toy_model import Block
from shared.training.loop import constant, fit


class TwoPlaces(nn.Module):
    """One block over symbols and learned positions: it predicts table[x_(t-1), x_(t-3)]."""

    SYMBOLS, LENGTH, D_MODEL = 8, 12, 64
    FIRST = 3  # the first place that has a symbol three places before it

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(self.SYMBOLS, self.D_MODEL)
        self.positions = nn.Parameter(torch.randn(self.LENGTH, self.D_MODEL))
        self.block = Block(self.D_MODEL, attention)
        self.to_logits = nn.Linear(self.D_MODEL, self.SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols (B, T) -> logits (B, T, SYMBOLS)."""
        x, _ = self.block(self.embedding(symbols) + self.positions, causal_mask(self.LENGTH))
        return self.to_logits(x)

    @classmethod
    def answers(cls, symbols: Tensor, table: Tensor) -> Tensor:
        """What the places from 3 on are to say: symbols (B, T), table (S, S) -> (B, T - 3)."""
        one_before = symbols[:, cls.FIRST - 1 : -1]
        three_before = symbols[:, : -cls.FIRST]
        return table[one_before, three_before]


def train_two_places(
    make_attention: Callable[[int], nn.Module], seed: int, steps: int, rate: float = 3e-3
) -> tuple[TwoPlaces, Tensor, list[float]]:
    """Train a model on a table of its own, at a learning rate that does not change.

    Returns the model, its table (S, S), and the share of answers that were right in the batch of
    each step, before the model learned from it.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    num_symbols = TwoPlaces.SYMBOLS
    table = torch.randint(num_symbols, (num_symbols, num_symbols), generator=generator)
    model = TwoPlaces(make_attention(TwoPlaces.D_MODEL))
    right = []

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(num_symbols, (32, TwoPlaces.LENGTH), generator=generator)
        logits = model(symbols)[:, TwoPlaces.FIRST :]
        answers = TwoPlaces.answers(symbols, table)
        right.append((logits.argmax(dim=-1) == answers).double().mean().item())
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten())

    # Saturated weights are so near 0 that a processor is four times as slow with them.
    torch.set_flush_denormal(True)
    fit(model, loss_of_step, steps, matrix_rate=None, rate=rate, schedule=constant)
    torch.set_flush_denormal(False)
    return model, table, right
