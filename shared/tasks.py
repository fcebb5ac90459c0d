"""Tasks that several experiments share: drawn at random without end, each with an answer that is
known.

    TwoPlaces      say table[x_(t-1), x_(t-3)]: a head must look at two places at once
    SymbolMover    write a string backwards, or copy from a distance: nothing but order decides
    Lookup         answer questions from a list of facts in random order: the right fact is known
    CardReader     find four cards at once, each by another of its letters: one look-up for each head

The attention to use is an argument. A test of a task draws what no training has seen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.attention_utils import causal_mask, padding_mask
from shared.optimization import fit
from shared.toy_language import ADJECTIVES, PLACES, SUBJECTS
from shared.toy_model import Block, sinusoidal_positions

MakeOne = Callable[[int], nn.Module]  # d_model -> the attention to use


# ---- two places at once


class TwoPlaces(nn.Module):
    """One block over symbols and learned positions that predicts table[x_(t-1), x_(t-3)] at each t."""

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
        """What is to be said at the places 3 to T - 1: symbols (B, T), table (S, S) -> (B, T - 3)."""
        return table[symbols[:, cls.FIRST - 1 : -1], symbols[:, : -cls.FIRST]]


def train_two_places(
    make_attention: MakeOne, seed: int, steps: int, rate: float = 3e-3
) -> tuple[TwoPlaces, Tensor, list[float]]:
    """Train one model -> the model, its table (S, S), and how often it was right on each new batch,
    before learning.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(
        TwoPlaces.SYMBOLS, (TwoPlaces.SYMBOLS, TwoPlaces.SYMBOLS), generator=generator
    )
    model = TwoPlaces(make_attention(TwoPlaces.D_MODEL))
    right = []

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(TwoPlaces.SYMBOLS, (32, TwoPlaces.LENGTH), generator=generator)
        logits, answers = model(symbols)[:, TwoPlaces.FIRST :], TwoPlaces.answers(symbols, table)
        right.append((logits.argmax(dim=-1) == answers).float().mean().item())
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten())

    torch.set_flush_denormal(
        True
    )  # saturated weights are so near 0 that a processor is four times as slow with them
    fit(model, loss_of_step, steps, matrix_rate=None, rate=rate, share=lambda step: 1.0)
    torch.set_flush_denormal(False)
    return model, table, right


# ---- nothing but order

# place i of T is to say the symbol at place T - 1 - i, or the one at place i - 3
REVERSE, COPY = "reverse", "copy"


class SymbolMover(nn.Module):
    """Embedding, one block with one head, linear. Everything but the encoding starts with the same
    numbers.

    encoding: "sinusoidal" or "learned" are added to the symbols; with any other name nothing is.
    """

    SYMBOLS, LENGTH, D_MODEL = 10, 16, 32
    LONGEST = (
        256  # that it can be asked; training stops at 16, so a learned table is not trained beyond
    )

    def __init__(self, encoding: str, make_attention: MakeOne) -> None:
        super().__init__()
        shape = self.LONGEST, self.D_MODEL
        tables = {"sinusoidal": sinusoidal_positions(*shape), "learned": torch.randn(shape)}
        self.embedding = nn.Embedding(self.SYMBOLS, self.D_MODEL)
        self.positions = nn.Parameter(
            tables.get(encoding, torch.zeros(shape)), requires_grad=encoding == "learned"
        )
        self.block = Block(self.D_MODEL, make_attention(self.D_MODEL))
        self.to_logits = nn.Linear(self.D_MODEL, self.SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols (B, T) -> logits (B, T, SYMBOLS)."""
        x, _ = self.block(self.embedding(symbols) + self.positions[: symbols.size(1)])
        return self.to_logits(x)

    @staticmethod
    def answers(task: str, symbols: Tensor) -> Tensor:
        """What each place is to say: symbols (B, T) -> (B, T); meaningless at the first three
        places of a copy.
        """
        return symbols.flip(dims=[1]) if task == REVERSE else symbols.roll(3, dims=1)

    @staticmethod
    def first(task: str) -> int:
        """The first place that has an answer."""
        return 0 if task == REVERSE else 3

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
    model, first = SymbolMover(encoding, make_attention), SymbolMover.first(task)

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(SymbolMover.SYMBOLS, (32, SymbolMover.LENGTH), generator=generator)
        logits, wanted = model(symbols)[:, first:], SymbolMover.answers(task, symbols)[:, first:]
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    fit(model, loss_of_step, steps, matrix_rate=None, rate=1.5e-2)
    return model


# ---- a fact among others

NOUNS = [
    singular for group in (SUBJECTS, PLACES) for pairs in group.values() for singular, _ in pairs
]
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
        return self.adjectives.gather(1, self.aligned)

    @property
    def mask(self) -> Tensor:
        return padding_mask(self.lengths, self.nouns.size(1))


def draw_facts(batch: int, generator: torch.Generator, shift: int = 0) -> Facts:
    """Lists of 5 to 9 facts, no noun twice, with NUM_QUESTIONS questions each.

    shift: 0, a question is answered by the fact with its own noun; 1, by that of the noun that
    follows it in NOUNS, so that what is looked for and what it is found by are different words.
    """
    nouns = torch.rand(batch, len(NOUNS), generator=generator).argsort(dim=1)[
        :, :MOST_FACTS
    ]  # random, no repeats
    adjectives = torch.randint(len(ADJECTIVES), (batch, MOST_FACTS), generator=generator)
    lengths = torch.randint((MOST_FACTS + 1) // 2, MOST_FACTS + 1, (batch,), generator=generator)
    aligned = (torch.rand(batch, NUM_QUESTIONS, generator=generator) * lengths[:, None]).long()
    return Facts(
        nouns, adjectives, lengths, aligned, (nouns.gather(1, aligned) - shift) % len(NOUNS)
    )


class Lookup(nn.Module):
    """Embeds questions and facts, attends from each question to all facts, and names an adjective."""

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
        """-> logits (B, T_q, adjectives), weights (B, 1, T_q, M)."""
        output, weights = self.attention(self.noun(facts.questions), self.memory(facts), facts.mask)
        return self.to_logits(output), weights

    @torch.no_grad()
    def scores(self, facts: Facts) -> tuple[float, float]:
        """Share of right answers, and of questions whose largest weight lies on the right fact."""
        logits, weights = self(facts)
        right = (logits.argmax(dim=-1) == facts.answers).float().mean().item()
        return right, (weights[:, 0].argmax(dim=-1) == facts.aligned).float().mean().item()


def train_lookup(
    make_attention: MakeOne, seed: int, steps: int, shift: int = 0
) -> tuple[Lookup, dict[str, float]]:
    """Train a look-up -> the model, and how well it does on lists that it has not seen."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    unseen = draw_facts(500, torch.Generator().manual_seed(10**6 + seed), shift)
    model = Lookup(make_attention)
    _, before = model.scores(unseen)

    def loss_of_step(_: int) -> Tensor:
        facts = draw_facts(64, generator, shift)
        return F.cross_entropy(model(facts)[0].flatten(0, 1), facts.answers.flatten())

    fit(model, loss_of_step, steps, matrix_rate=None)
    answers, alignments = model.scores(unseen)
    return model, {
        "right answers": answers,
        "right alignments": alignments,
        "before training": before,
    }


# ---- four look-ups at once


class CardReader(nn.Module):
    """What stands on a card is added up; then one block, and at each question a guess for each
    colour.
    """

    CARDS, COLOURS, LETTERS, DIGITS = (
        8,
        4,
        16,
        10,
    )  # as many questions as cards; with fewer letters it is easier
    D_MODEL = 64

    def __init__(self, make_attention: MakeOne) -> None:
        super().__init__()
        self.embedding = nn.Embedding(self.COLOURS * self.LETTERS + self.DIGITS + 1, self.D_MODEL)
        nn.init.normal_(self.embedding.weight, std=0.2)
        self.blocks = nn.ModuleList([Block(self.D_MODEL, make_attention(self.D_MODEL))])
        self.to_logits = nn.Sequential(
            nn.LayerNorm(self.D_MODEL), nn.Linear(self.D_MODEL, self.COLOURS * self.DIGITS)
        )

    @classmethod
    def draw(cls, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Cards and, behind them, questions -> symbols (count, 2 CARDS, COLOURS + 1), digits
        (count, CARDS, COLOURS).

        A card has a letter in each colour, and a digit. A question has a letter in each colour,
        from any cards, and is answered by the digits of all four.
        """
        letters = torch.rand(count, cls.COLOURS, cls.LETTERS, generator=generator).argsort(dim=-1)
        letters = letters[
            ..., : cls.CARDS
        ].mT  # no two alike in a colour; (B, COLOURS, LETTERS) -> (B, CARDS, COLOURS)
        digits = torch.randint(cls.DIGITS, (count, cls.CARDS, 1), generator=generator)
        asked = torch.randint(
            cls.CARDS, letters.shape, generator=generator
        )  # the card for each colour of a question
        symbols = torch.cat(
            [letters, letters.gather(1, asked)], dim=1
        ) + cls.LETTERS * torch.arange(cls.COLOURS)
        shown = F.pad(
            digits, (0, 0, 0, cls.CARDS), value=cls.DIGITS
        )  # -> (B, 2 CARDS, 1): questions show no digit
        answers = digits.expand_as(asked).gather(1, asked)
        return torch.cat(
            [symbols, shown + cls.COLOURS * cls.LETTERS], dim=-1
        ), answers  # -> (B, 2 CARDS, COLOURS + 1)

    def loss(self, symbols: Tensor, answers: Tensor) -> Tensor:
        """What draw gives -> mean cross-entropy of an answer, in nats."""
        x = self.embedding(symbols).sum(
            dim=-2
        )  # (B, T, COLOURS + 1) -> (B, T, COLOURS + 1, d_model) -> (B, T, d_model)
        x, _ = self.blocks[0](x, causal_mask(x.size(1)))
        logits = self.to_logits(
            x[:, self.CARDS :]
        )  # (B, T, d_model) -> (B, CARDS, COLOURS * DIGITS)
        return F.cross_entropy(logits.reshape(-1, self.DIGITS), answers.flatten())


def train_card_reader(make_attention: MakeOne, seed: int, steps: int) -> float:
    """Train one model on cards -> its loss on others. With one seed all models see the same cards."""
    torch.manual_seed(seed)
    model, generator = CardReader(make_attention), torch.Generator().manual_seed(seed)

    def loss_of_step(_: int) -> Tensor:
        return model.loss(*CardReader.draw(32, generator))

    fit(model, loss_of_step, steps, rate=0.02, matrix_rate=0.04, matrix_decay=0.0)
    with torch.no_grad():
        return model.loss(*CardReader.draw(500, torch.Generator().manual_seed(10**6 + seed))).item()
