"""How does one ask whether attention finds the right place in another sequence?

The other sequence is a list of facts in random order, and each question is answered by one of them:
so we know of every weight whether it is right. make_attention makes the attention to use from
d_model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.attention_utils import padding_mask
from shared.toy_language import ADJECTIVES, NOUN_PAIRS
from shared.training.loop import fit

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
    draw = partial(torch.rand, dtype=torch.float64, generator=generator)
    in_random_order = draw(batch, len(NOUNS)).argsort(dim=1)
    nouns = in_random_order[:, :MOST_FACTS]
    adjectives = torch.randint(len(ADJECTIVES), (batch, MOST_FACTS), generator=generator)
    lengths = torch.randint((MOST_FACTS + 1) // 2, MOST_FACTS + 1, (batch,), generator=generator)
    aligned = (draw(batch, NUM_QUESTIONS) * lengths[:, None]).long()
    questions = (nouns.gather(1, aligned) - shift) % len(NOUNS)
    return Facts(nouns, adjectives, lengths, aligned, questions)


class Lookup(nn.Module):
    """Embeds questions and facts, attends from each question to all facts, names an adjective."""

    D_MODEL = 32

    def __init__(self, make_attention: Callable[[int], nn.Module]) -> None:
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
            "right answers": right.double().mean().item(),
            "right alignments": aligned.double().mean().item(),
        }


def train_lookup(
    make_attention: Callable[[int], nn.Module], seed: int, steps: int, shift: int = 0
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
