"""What is the smallest change that lets the toy transformer read any text?

Another alphabet, and heads that know places by rotary positions (phase 1), since a text has no
beginning and no end. Blocks, training loop and learning rates are those of the other small models.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase4_causal.own_text.characters import CharacterText
from phase4_causal.rotary_attention import RotaryHeads
from phase4_causal.writing.sampling import Sampling
from shared.toy_model import ToyTransformer
from shared.training.loop import fit

D_MODEL = 64
CONTEXT_LENGTH = 128  # characters that are read at once
STEPS, BATCH = 1000, 16
MOST_PIECES = 200  # of the held-out part


class CharacterModel(ToyTransformer):
    """The toy transformer over an alphabet of `size` characters, with rotary heads.

    Nothing is added to a character for its place.
    """

    def __init__(self, size: int, num_heads: int = 4, num_layers: int = 2) -> None:
        super().__init__(D_MODEL, num_heads, num_layers, make_attention=RotaryHeads)
        self.embedding = nn.Embedding(size, D_MODEL)
        nn.init.normal_(self.embedding.weight, std=0.2)
        self.output_bias = nn.Parameter(torch.zeros(size))
        self.positions = torch.zeros(CONTEXT_LENGTH, D_MODEL)


def new_reader(text: CharacterText, seed: int, **sizes: int) -> CharacterModel:
    """An untrained model for this text; sizes: as CharacterModel takes them."""
    torch.manual_seed(seed)
    return CharacterModel(len(text.alphabet), **sizes)


def held_out_pieces(text: CharacterText, length: int = CONTEXT_LENGTH + 1) -> Tensor:
    """Pieces of the held-out part, evenly spread and without overlap -> (N, length)."""
    last = len(text.held_out) - length
    number = min(MOST_PIECES, last // length + 1)
    starts = torch.linspace(0, last, number).long()
    return text.held_out[starts[:, None] + torch.arange(length)]


def next_characters(model: nn.Module, pieces: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N * T, V), and the characters (N * T,) that come: pieces (N, T + 1)."""
    logits, _ = model(pieces[:, :-1])
    return logits.flatten(0, 1), pieces[:, 1:].flatten()


@torch.no_grad()
def character_loss(model: nn.Module, text: CharacterText) -> float:
    """Returns the loss in the held-out part, in nats a character."""
    return F.cross_entropy(*next_characters(model, held_out_pieces(text))).item()


def train_on_text(model: nn.Module, text: CharacterText, seed: int, steps: int) -> list[float]:
    """Train on random pieces of the training part; returns the loss of each step.

    With one seed all models read the same pieces.
    """
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(CONTEXT_LENGTH + 1)

    def loss_of_step(_: int) -> Tensor:
        starts = torch.randint(len(text.training) - CONTEXT_LENGTH, (BATCH, 1), generator=generator)
        return F.cross_entropy(*next_characters(model, text.training[starts + offsets]))

    rate = 0.02  # at twice this rate the rounding of a processor decides what the model becomes
    return fit(model, loss_of_step, steps, matrix_rate=rate, progress=f"reads {text.name}")


@torch.no_grad()
def continued(model: nn.Module, tokens: Tensor, length: int, seed: int) -> Tensor:
    """Tokens (T,) and what the model writes behind them, (T + length,).

    It draws at temperature 0.7, and reads the last CONTEXT_LENGTH characters each time.
    """
    sampling = Sampling(temperature=0.7)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(length):
        logits, _ = model(tokens[None, -CONTEXT_LENGTH:])
        chances = sampling.probabilities(logits[0, -1])
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)])
    return tokens
