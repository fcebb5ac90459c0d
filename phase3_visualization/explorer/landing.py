"""With which sentences should the explorer open?

With those in which a lever shows at once what it does. Rules choose it, since another seed or another processor trains
other heads:

1. The head ties verb and subject, in either direction, by the rules of shared/grammar/roles.py. If no head does, one
   that ties verb and place; if none does, there are no such sentences, and the page opens with the toy sentence.
2. Verb and subject (or place) of a held-out sentence are at least three words apart, so that a neighbour does not pass
   for them. The word from which the head looks is hidden, and the head looks most at the other one.
3. When the head is knocked out, the hidden word loses at least 0.2 nats. Of these sentences, for each verb the one
   where it loses most; the first is where it loses most of all. If there is none, the next tie of rule 1 is tried.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_multi_head.pruning.head_importance import gated
from shared import training
from shared.attention_utils import padding_mask
from shared.grammar import roles
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.toy_language import INDEX, MASK_ID, Sentence
from shared.toy_model import MakeAttention
from shared.training import Trained

APART, LONGEST = 3, 10  # words: between the two, and of a sentence that is to be seen at a glance
LEAST = 0.2  # nats that the head is worth
TIES = ("verb-subject", "verb-place")  # in the order in which they are tried


@dataclass(frozen=True)
class View:
    """A sentence with its hidden word, seen through one head; cost: what the word loses without the head, in nats."""

    sentence: Sentence
    hidden: int
    layer: int
    head: int
    cost: float

    @property
    def verb(self) -> str:
        return self.sentence.words[self.sentence.relations["verb-subject"][0][0]]


Asked = tuple[Sentence, int, int]  # a sentence, the word that looks and is hidden, the word that it should look at


def roles_of(trained: Trained, make_attention: MakeAttention) -> list[list[dict]] | None:
    """[layer][head] -> its role by rule or None, and the rule that is nearest: its name, the head's share, the bar.

    None for a model of next words, for which there are no such rules.
    """
    if trained.recipe.objective != "masked word":
        return None
    halves = roles.halves_of(trained, make_attention)
    num_layers, num_heads = halves[0][0].first.shape

    def of_head(layer: int, head: int) -> dict:
        name, (rule, share, needed) = roles.role_name(halves, layer, head), roles.nearest_rule(halves, layer, head)
        role = None if name == roles.NO_NAME else name
        return {"role": role, "rule": rule, "share": round(share, 4), "needed": round(needed, 4)}

    return [[of_head(layer, head) for head in range(num_heads)] for layer in range(num_layers)]


def candidates(sentences: list[Sentence], relation: str, direction: str) -> list[Asked]:
    """Each short sentence whose two words stand apart."""
    pairs = [(sentence, *sentence.relations[relation][0]) for sentence in sentences if len(sentence.words) <= LONGEST]
    pairs = [(sentence, a, b) if direction == "forward" else (sentence, b, a) for sentence, a, b in pairs]
    return [(sentence, query, key) for sentence, query, key in pairs if abs(query - key) >= APART]


@torch.no_grad()
def rises(trained: Trained, asked: list[Asked], layer: int, head: int) -> Tensor:
    """What the hidden word loses without the head, in nats -> (N,); -inf where the head does not look as it should."""
    rows, (queries, keys) = torch.arange(len(asked)), torch.tensor([[q, k] for _, q, k in asked]).T
    truth = torch.tensor([INDEX[sentence.words[query]] for sentence, query, _ in asked])
    tokens, lengths = training.to_batch([sentence for sentence, _, _ in asked], "masked word")
    tokens[rows, queries] = MASK_ID
    real = padding_mask(lengths, tokens.size(1))
    layers = [block.attention for block in trained.model.blocks]
    losses = []
    for gate in (1.0, 0.0):
        gates = torch.ones(len(layers), layers[0].num_heads)
        gates[layer, head] = gate
        with gated(layers, gates):
            logits, weights = trained.model(tokens, mask=real)
        losses.append(F.cross_entropy(logits[rows, queries], truth, reduction="none"))
    looks = weights[layer][rows, head, queries].argmax(dim=-1) == keys  # knocked out, a head still looks
    return (losses[1] - losses[0]).where(looks, -torch.inf)


def views(trained: Trained, names: list[list[str | None]], tie: str) -> list[View]:
    """All sentences in which a head that ties these two words looks as it should."""
    found = []
    for direction in DIRECTIONS:
        asked = candidates(training.corpus()[1], tie, direction)
        heads = [(layer, head) for layer, row in enumerate(names) for head in range(len(row))]
        for layer, head in heads:
            if names[layer][head] == relation_name(tie, direction):
                costs = rises(trained, asked, layer, head).tolist()
                found += [
                    View(sentence, hidden, layer, head, cost)
                    for cost, (sentence, hidden, _) in zip(costs, asked, strict=True)
                    if cost >= LEAST
                ]
    return found


def landings(trained: Trained, names: list[list[str | None]]) -> list[View]:
    """The views of the page by the rules above, the first one first; none if no head ties the verb to a noun."""
    for tie in TIES:
        if found := sorted(views(trained, names, tie), key=lambda view: -view.cost):
            first_of_verb = {view.verb: view for view in reversed(found)}
            return sorted(first_of_verb.values(), key=lambda view: -view.cost)
    return []
