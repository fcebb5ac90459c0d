"""With which sentence should the explorer open?

With one in which a lever shows at once what it does. Rules choose it, since another seed or another processor trains
other heads:

1. The head ties verb and subject, in either direction, by the rules of shared/grammar/roles.py. If no head does, one
   that ties verb and place; if none does, there is no such sentence, and the page opens with the toy sentence.
2. Verb and subject (or place) of a held-out sentence are at least three words apart, so that a neighbour does not pass
   for them. The word from which the head looks is hidden, and the head looks most at the other one.
3. Of these sentences it is the one in which the hidden word loses most when the head is knocked out.
"""

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
TIES = ("verb-subject", "verb-place")  # in the order in which they are tried

Names = list[list[str | None]]  # [layer][head] -> role, None where no rule is passed
Asked = tuple[Sentence, int, int]  # a sentence, the word that looks and is hidden, the word that it should look at


def names_of(trained: Trained, make_attention: MakeAttention) -> Names | None:
    """The roles of all heads; None for a model of next words, for which there are no such rules."""
    if trained.recipe.objective != "masked word":
        return None
    names = roles.head_names(trained, make_attention)
    return [[None if name == roles.NO_NAME else name for name in layer] for layer in names]


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


def landing(trained: Trained, names: Names | None) -> dict | None:
    """The sentence, the hidden word and the head with which the page opens, by the rules above; None without one."""
    for tie in TIES:
        found = []
        for direction in DIRECTIONS:
            asked = candidates(training.corpus()[1], tie, direction)
            for layer, row in enumerate(names or []):
                for head, name in enumerate(row):
                    if name == relation_name(tie, direction):
                        best, index = rises(trained, asked, layer, head).max(dim=0)
                        found.append((best.item(), layer, head, *asked[index][:2]))
        if found:
            _, layer, head, sentence, query = max(found, key=lambda one: one[0])
            return {"words": sentence.words, "hidden": query, "layer": layer, "head": head}
    return None
