"""Tasks that several experiments share: drawn at random without end, each with a known answer.

    TwoPlaces      say table[x_(t-1), x_(t-3)]: a head must look at two places at once
    SymbolMover    write a string backwards, or copy from a distance: nothing but order decides
    Lookup         answer questions from a list of facts in random order: the right fact is known

The attention to use is an argument. A test of a task draws what no training has seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.attention_utils import causal_mask, padding_mask
from shared.optimization import constant, fit
from shared.toy_language import ADJECTIVES, NOUN_PAIRS
from shared.toy_model import Block, sinusoidal_positions

MakeOne = Callable[[int], nn.Module]  # d_model -> the attention to use


# ---- two places at once


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
    make_attention: MakeOne, seed: int, steps: int, rate: float = 3e-3
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
        right.append((logits.argmax(dim=-1) == answers).float().mean().item())
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten())

    # Saturated weights are so near 0 that a processor is four times as slow with them.
    torch.set_flush_denormal(True)
    fit(model, loss_of_step, steps, matrix_rate=None, rate=rate, share=constant)
    torch.set_flush_denormal(False)
    return model, table, right


def right_at_end(right: list[float]) -> float:
    """The mean share of right answers in the last tenth of a training."""
    tenth = max(1, len(right) // 10)
    return fmean(right[-tenth:])


# ---- nothing but order

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

    def __init__(self, encoding: str, make_attention: MakeOne) -> None:
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
    encoding: str, make_attention: MakeOne, task: str, seed: int, steps: int
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


# ---- a fact among others

NOUNS = [singular for singular, plural in NOUN_PAIRS]
MOST_FACTS, NUM_QUESTIONS = 9, 5


@dataclass
class Facts:
    """A batch of lists of facts, "cat: red", "mat: soft", and questions about some of the nouns."""

    nouns: Tensor  # (B, M) positions in NOUNS; beyond a list's length they are padding
    adjectives: Tensor  # (B, M) positions in ADJECTIVES
    lengths: Tensor  # (B,) number of facts in each list
    aligned: Tensor  # (B, T_q) the fact that answers each question
    questions: Tensor  # (B, T_q) positions in NOUNS

    @property
    def answers(self) -> Tensor:
        """The adjective of the right fact, (B, T_q)."""
        return self.adjectives.gather(1, self.aligned)

    @property
    def mask(self) -> Tensor:
        """Hides the padding, (B, 1, 1, M)."""
        return padding_mask(self.lengths, self.nouns.size(1))


def draw_facts(batch: int, generator: torch.Generator, shift: int = 0) -> Facts:
    """Lists of 5 to 9 facts, no noun twice, with NUM_QUESTIONS questions each.

    shift: 0, a question is answered by the fact with its own noun; 1, by that of the noun that
    follows it in NOUNS, so that what is looked for and what it is found by are different words.
    """
    in_random_order = torch.rand(batch, len(NOUNS), generator=generator).argsort(dim=1)
    nouns = in_random_order[:, :MOST_FACTS]
    adjectives = torch.randint(len(ADJECTIVES), (batch, MOST_FACTS), generator=generator)
    lengths = torch.randint((MOST_FACTS + 1) // 2, MOST_FACTS + 1, (batch,), generator=generator)
    aligned = (torch.rand(batch, NUM_QUESTIONS, generator=generator) * lengths[:, None]).long()
    questions = (nouns.gather(1, aligned) - shift) % len(NOUNS)
    return Facts(nouns, adjectives, lengths, aligned, questions)


class Lookup(nn.Module):
    """Embeds questions and facts, attends from each question to all facts, names an adjective."""

    D_MODEL = 32

    def __init__(self, make_attention: MakeOne) -> None:
        super().__init__()
        attention = make_attention(self.D_MODEL)
        self.noun = nn.Embedding(len(NOUNS), self.D_MODEL)
        self.adjective = nn.Embedding(len(ADJECTIVES), self.D_MODEL)
        self.attention = attention
        self.to_logits = nn.Linear(self.D_MODEL, len(ADJECTIVES))

    def memory(self, facts: Facts) -> Tensor:
        """What is asked: a vector for each fact, (B, M, D_MODEL)."""
        return self.noun(facts.nouns) + self.adjective(facts.adjectives)

    def forward(self, facts: Facts) -> tuple[Tensor, Tensor]:
        """Returns logits (B, T_q, adjectives) and weights (B, 1, T_q, M)."""
        output, weights = self.attention(self.noun(facts.questions), self.memory(facts), facts.mask)
        return self.to_logits(output), weights

    @torch.no_grad()
    def scores(self, facts: Facts) -> dict[str, float]:
        """Share of right answers, and of questions whose largest weight lies on the right fact."""
        logits, weights = self(facts)
        right = logits.argmax(dim=-1) == facts.answers
        aligned = weights[:, 0].argmax(dim=-1) == facts.aligned
        return {
            "right answers": right.float().mean().item(),
            "right alignments": aligned.float().mean().item(),
        }


def train_lookup(
    make_attention: MakeOne, seed: int, steps: int, shift: int = 0
) -> tuple[Lookup, dict[str, float]]:
    """Train a look-up -> the model, and how well it does on lists that it has not seen."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    unseen = draw_facts(500, torch.Generator().manual_seed(10**6 + seed), shift)
    model = Lookup(make_attention)
    before = model.scores(unseen)

    def loss_of_step(_: int) -> Tensor:
        facts = draw_facts(64, generator, shift)
        logits, _ = model(facts)
        return F.cross_entropy(logits.flatten(0, 1), facts.answers.flatten())

    fit(model, loss_of_step, steps, matrix_rate=None)
    return model, model.scores(unseen) | {"before training": before["right alignments"]}
