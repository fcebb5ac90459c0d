"""What does each head do, by rules that a head can fail?

It is easy to look at a heatmap and call it "the previous-word head". Here a head gets a name only
if it follows a rule often enough, on held-out sentences. A word "looks at" the word on which the
largest weight of its row lies. There are three kinds of rules:

    position   Nine of ten words look at the same offset (themselves, the previous word, the next
               or another fixed offset), or at the first word (Voita et al. 2019).
    relation   The words that have a relation look at the word that they are related to. They do so
               0.10 more often than the best fixed offset is right (Voita et al. 2019), and twice as
               often as the other words of the sentence look there (our addition). Whether a word
               looks at itself is left out.
    column     Half of all other words look at one word, whoever asks: "most → subject".

Every rule also asks for 0.10 more than the best head of three untrained models reaches.

A head must pass a rule on both halves of the held-out sentences. If it passes several, it is named
after a position, because that is the plainest explanation, before a relation, and after a column
last; of one kind it gets the rule that it passes by most on the first half. So more than one rule
may be tried on the second half, which gives luck more chances. That costs little, because only the
rules that a head has passed on the first half are tried there, and heads that were never trained
pass none (phase3_visualization/tests/test_roles.py asks some).

phase3_visualization/roles/head_roles.py draws the scores, and every picture names and colours heads
by these rules.
"""

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from shared.grammar.scores import (
    Key,
    attended_word,
    best_fixed_offset,
    gold_masks,
    relation_name,
    share_of_others,
    share_right,
)
from shared.head_statistics import (
    OFFSETS,
    first_share,
    layer_statistics,
    offset_shares,
    stacked,
)
from shared.toy_language import Sentence
from shared.toy_model import MakeAttention
from shared.training.objectives import attention_weights, corpus
from shared.training.recipes import Recipe, Trained, untrained_model

NEEDED_AT_A_POSITION = 0.90  # of the rows have their largest weight there (Voita et al. 2019)
MARGIN = 0.10  # above what a head reaches that learned nothing (Voita et al. 2019)
FIXED_OFFSETS = range(-5, 6)  # the offsets that are tried
UNTRAINED_MODELS = 3  # that a head is compared with
SEEDS_APART = 10**6  # between their seeds, so that no two seeds of the record share one
TIMES_THE_OTHERS = 2  # so much more often than other words do the related ones look at their word
NEEDED_IN_A_COLUMN = 0.50  # of the other words look at the word of a column
NO_NAME = "no name"
RULE_KINDS = ("position", "relation", "column")  # in this order they are tried

# An offset, or "first": the first word, which is <start> for a model of next words.
Position = int | str
NAMES: dict[Position, str] = {offset: f"offset {offset:+d}" for offset in FIXED_OFFSETS}
NAMES |= {offset: name for name, offset in OFFSETS.items()}
NAMES["first"] = "first word"

# The words that each sentence has once, each with a relation whose other words are asked.
COLUMN_RULES: dict[str, Key] = {
    "most → subject": ("verb-subject", "forward"),
    "most → verb": ("verb-subject", "backward"),
    "most → place": ("verb-place", "forward"),
}


# ---- what is measured


@dataclass(frozen=True)
class Scores:
    """What the heads of a model do, one number for each head: (L, H)."""

    position: dict[Position, Tensor]  # share of the rows whose largest weight lies there
    relation: dict[Key, Tensor]  # share of the related words that find their gold word
    others: dict[Key, Tensor]  # share of the words without the relation that look at the same word
    statistics: dict[str, Tensor]  # how widely the weights spread

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(layer, head) of all heads."""
        num_layers, num_heads = self.position["first"].shape
        return list(itertools.product(range(num_layers), range(num_heads)))


@dataclass(frozen=True)
class Baselines:
    """What a head that learned nothing reaches, and so how often a head must follow a rule."""

    fixed_offset: dict[Key, float]
    untrained: dict[Position | Key, float]  # the best head of all untrained models; columns by name

    def bar(self, key: Key) -> float:
        """The better of the two baselines of a relation and direction."""
        return max(self.fixed_offset[key], self.untrained[key])

    def needed_for_relation(self, key: Key) -> float:
        """How often the related words must find their gold word, whatever the others do."""
        return self.bar(key) + MARGIN

    def needed_there(self, place: Position, least: float) -> float:
        """How often the largest weight must lie at a position or in a column, at least so often."""
        return max(least, self.untrained[place] + MARGIN)


@dataclass(frozen=True)
class Half:
    """A model on one half of the held-out sentences, and what it is compared with there."""

    scores: Scores
    baselines: Baselines


@dataclass(frozen=True)
class Halves:
    """A head gets its name on one half of the held-out sentences, if the other half agrees.

    The scores that are shown are those of the other, the scoring half, where nothing was chosen.
    """

    naming: Half
    scoring: Half


def attention_of_words(trained: Trained, sentences: list[Sentence]) -> tuple[list[Tensor], Tensor]:
    """The weights of each layer, (N, H, T, T), and what each word may see, bool (N, 1, T, T).

    Only words are queries. <start> sees nothing here: under a causal mask it has no
    choice, since it sees itself alone. <end> is left out, because it has never been a query in
    training. Under a causal mask it would also be the only token behind the place of a sentence, so
    "most → place" would be said of a head by what <end> alone looks at.
    """
    objective = trained.recipe.objective
    layers, mask = attention_weights(trained.model, sentences, objective, end=False)
    if objective != "masked word":
        mask[:, :, 0] = False
    return layers, mask


def scores_of(trained: Trained, sentences: list[Sentence]) -> Scores:
    """All scores of a model, whether it guesses hidden words or next words."""
    layers, mask = attention_of_words(trained, sentences)
    attended = attended_word(torch.stack(layers))  # (L, N, H, T, T) -> (L, N, H, T)
    relation, others = {}, {}
    for key, gold in gold_masks(sentences, trained.recipe.objective).items():
        relation[key] = share_right(attended, gold)
        others[key] = share_of_others(attended, gold, mask[:, 0])
    position = stacked([position_shares(weights, mask) for weights in layers])
    return Scores(position, relation, others, layer_statistics(layers, mask))


def position_shares(weights: Tensor, mask: Tensor) -> dict[Position, Tensor]:
    """Share of the rows whose largest weight lies at each position, (H,)."""
    shares = offset_shares(weights, mask, FIXED_OFFSETS)
    return shares | {"first": first_share(weights, mask)}


def halves() -> tuple[list[Sentence], list[Sentence]]:
    """The naming and the scoring half of the held-out sentences: every other one is in each."""
    _, held_out = corpus()
    return held_out[0::2], held_out[1::2]


@cache
def baselines(recipe: Recipe, make_attention: MakeAttention) -> list[Baselines]:
    """The baselines of a model on the half that names heads, and on the half that must agree."""
    blanks = []
    for i in range(UNTRAINED_MODELS):
        another = replace(recipe, seed=recipe.seed + i * SEEDS_APART)
        blanks.append(untrained_model(another, make_attention))
    return [baselines_on(sentences, blanks) for sentences in halves()]


def baselines_on(sentences: list[Sentence], blanks: list[Trained]) -> Baselines:
    """The best fixed offset of each relation, and the best head of untrained models."""
    models = [scores_of(blank, sentences) for blank in blanks]
    fixed_offset, untrained = {}, {}
    for key, gold in gold_masks(sentences, blanks[0].recipe.objective).items():
        fixed_offset[key] = best_fixed_offset(gold)
        untrained[key] = highest_share([scores.relation[key] for scores in models])
    for position in NAMES:
        untrained[position] = highest_share([scores.position[position] for scores in models])
    for name, key in COLUMN_RULES.items():
        untrained[name] = highest_share([scores.others[key] for scores in models])
    return Baselines(fixed_offset, untrained)


def highest_share(shares: list[Tensor]) -> float:
    """The highest share of all heads of some models, each (L, H)."""
    return torch.stack(shares).max().item()


def halves_of(trained: Trained, make_attention: MakeAttention) -> Halves:
    """Scores and baselines of a model on both halves of the held-out sentences."""
    naming_sentences, scoring_sentences = halves()
    naming_baselines, scoring_baselines = baselines(trained.recipe, make_attention)
    naming = Half(scores_of(trained, naming_sentences), naming_baselines)
    scoring = Half(scores_of(trained, scoring_sentences), scoring_baselines)
    return Halves(naming, scoring)


# ---- rules, and the names that they give


@dataclass(frozen=True)
class Rule:
    """One way to earn a name: how often a head follows it, and how often it must."""

    name: str
    kind: str  # one of RULE_KINDS
    share: float
    needed: float

    @property
    def margin(self) -> float:
        """By how much the head passes: below 0 if it does not, or if nobody could be asked."""
        return -math.inf if math.isnan(self.share) else self.share - self.needed


@dataclass(frozen=True)
class Tried:
    """One rule, tried on both halves of the held-out sentences."""

    naming: Rule
    scoring: Rule

    @property
    def name(self) -> str:
        return self.naming.name

    @property
    def kind(self) -> str:
        return self.naming.kind

    @property
    def worse(self) -> Rule:
        """The rule on the half where the head does worse."""
        return min(self.naming, self.scoring, key=lambda rule: rule.margin)

    @property
    def passed(self) -> bool:
        """Whether the head passes the rule on both halves."""
        return self.worse.margin >= 0


def needed_beside_others(least: float, others: Tensor) -> Tensor:
    """How often the related words must find their word, of each head: (L, H).

    That is twice as often as the other words look there, and at least as often as the baselines
    ask. least: what the baselines ask. others: the share of the other words that look at the same
    word, (L, H), NaN if there are no other words.
    """
    needed = TIMES_THE_OTHERS * others.nan_to_num(0.0)
    return needed.clamp(min=least)


def rules_of(half: Half, layer: int, head: int) -> list[Rule]:
    """How often this head follows each rule on one half of the sentences, and how often it must."""
    scores, base = half.scores, half.baselines
    at = layer, head
    rules = []
    for position, share in scores.position.items():
        needed = base.needed_there(position, NEEDED_AT_A_POSITION)
        rules.append(Rule(NAMES[position], "position", share[at].item(), needed))
    for key, share in scores.relation.items():
        needed = needed_beside_others(base.needed_for_relation(key), scores.others[key])
        name = relation_name(*key)
        rules.append(Rule(name, "relation", share[at].item(), needed[at].item()))
    for name, key in COLUMN_RULES.items():
        needed = base.needed_there(name, NEEDED_IN_A_COLUMN)
        rules.append(Rule(name, "column", scores.others[key][at].item(), needed))
    return rules


def rules_tried(halves: Halves, layer: int, head: int) -> list[Tried]:
    """All rules on both halves, for one head."""
    naming = rules_of(halves.naming, layer, head)
    scoring = rules_of(halves.scoring, layer, head)
    return [Tried(*both) for both in zip(naming, scoring, strict=True)]


def nearest_rule(halves: Halves, layer: int, head: int) -> Tried:
    """The rule that names a head or, if it passes none on both halves, the one it misses by least.

    What it misses by is counted on the half where it does worse.
    """
    all_tried = rules_tried(halves, layer, head)
    for kind in RULE_KINDS:
        passed = [tried for tried in all_tried if tried.kind == kind and tried.passed]
        if passed:
            return max(passed, key=lambda tried: tried.naming.margin)
    return max(all_tried, key=lambda tried: tried.worse.margin)


def role_name(halves: Halves, layer: int, head: int) -> str:
    """The role of a head, or "no name" if it passes no rule on both halves."""
    tried = nearest_rule(halves, layer, head)
    return tried.name if tried.passed else NO_NAME


def names_of(halves: Halves) -> list[list[str]]:
    """[layer][head] -> the name of each head, by the rules above."""
    names: dict[int, list[str]] = {}
    for layer, head in halves.naming.scores.heads:
        names.setdefault(layer, []).append(role_name(halves, layer, head))
    return list(names.values())


def head_names(trained: Trained, make_attention: MakeAttention) -> list[list[str]]:
    """[layer][head] -> the name of each head of a model, whatever it guesses."""
    return names_of(halves_of(trained, make_attention))
