"""How does one ask whether attention knows where a symbol stands?

By two tasks in which nothing but order matters: write a string backwards, or copy it from three
places before. Strings are drawn at random, those of a test as no training has seen them.
make_attention makes the attention to use from d_model.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.toy_model import Block, sinusoidal_positions
from shared.training.loop import fit

# place i of T is to say the symbol at place T - 1 - i, or the one at place i - 3
REVERSE, COPY = "reverse", "copy"
FIRST_PLACE = {REVERSE: 0, COPY: 3}  # that has an answer


class SymbolMover(nn.Module):
    """Embedding, one block with one head, linear.

    encoding: "sinusoidal" or "learned" positions are added to the symbols; with any other name none
    are. Everything but the encoding starts with the same numbers.
    """

    SYMBOLS, LENGTH, D_MODEL = 10, 16, 32
    LONGEST = 256  # that it can be asked; in training a learned table meets its first 16 rows

    def __init__(self, encoding: str, make_attention: Callable[[int], nn.Module]) -> None:
        super().__init__()
        shape = self.LONGEST, self.D_MODEL
        tables = {"sinusoidal": sinusoidal_positions(*shape), "learned": torch.randn(shape)}
        table = tables.get(encoding, torch.zeros(shape))
        self.embedding = nn.Embedding(self.SYMBOLS, self.D_MODEL)
        self.positions = nn.Parameter(table, requires_grad=encoding == "learned")
        self.block = Block(self.D_MODEL, make_attention(self.D_MODEL))
        self.to_logits = nn.Linear(self.D_MODEL, self.SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols (B, T) -> logits (B, T, SYMBOLS)."""
        x, _ = self.block(self.embedding(symbols) + self.positions[: symbols.size(1)])
        return self.to_logits(x)

    @staticmethod
    def answers(task: str, symbols: Tensor) -> Tensor:
        """What each place is to say: symbols (B, T) -> (B, T).

        The first three places of a copy have nothing to say.
        """
        return symbols.flip(dims=[1]) if task == REVERSE else symbols.roll(3, dims=1)

    @classmethod
    def test_strings(cls, length: int, number: int = 100) -> Tensor:
        """Strings (number, length) that no training has seen."""
        generator = torch.Generator().manual_seed(10**6 + length)
        return torch.randint(cls.SYMBOLS, (number, length), generator=generator)


def train_mover(
    encoding: str, make_attention: Callable[[int], nn.Module], task: str, seed: int, steps: int
) -> SymbolMover:
    """Train one model on random strings of 16 symbols, the same strings for every encoding."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = SymbolMover(encoding, make_attention)
    first = FIRST_PLACE[task]

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(SymbolMover.SYMBOLS, (32, SymbolMover.LENGTH), generator=generator)
        logits = model(symbols)[:, first:]
        wanted = SymbolMover.answers(task, symbols)[:, first:]
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    fit(model, loss_of_step, steps, matrix_rate=None, rate=1.5e-2)
    return model
