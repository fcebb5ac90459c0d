"""On which held-out sentences does the page show best what it is about?

Rules choose them, since another seed or another processor trains other models.

    landings           where the page opens: a hidden word whose head looks most at the word that it ties to it, three
                       words away or more, and without the head loses 0.2 nats or more; for each
                       verb the sentence in which it loses most. The head ties verb and subject,
                       else verb and place
    hidden_verb        the head that a hidden verb needs most, the head that hidden words need least, and the sentence
                       in which the verb loses most without the first
    pretty_line        a hidden word whose thickest line goes to another word than the one that it and a perfect reader
                       miss most; the sentence in which the two differ most
    one_word_changed   the first sentence of seven words: with <start> each of four heads cut wrongly holds two of them;
                       a word's place is taken by the word of its kind that moves the guesses most
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_multi_head.heads.head_importance import (
    LayerAndHead,
    gated,
    language_model,
    over_examples,
    removal_importance,
)
from phase3_visualization.layers.readers import (
    TRIED_ON,
    Case,
    first,
    hide,
    leave_one_out,
    make_cases,
    perfect_reader,
)
from shared import training
from shared.attention_utils import causal_mask, padding_mask
from shared.grammar.best_reader import KIND
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.toy_language import MASK_ID, PLACES, START_ID, SUBJECTS, VERBS, Sentence, encode
from shared.training import Trained

LONGEST = 10  # words, so that a sentence fits a phone
SHORT = 7
APART = (
    3  # words between a hidden word and the one that its head looks at: no neighbour passes for it
)
LEAST = 0.2  # nats that a head is worth
TIES = ("verb-subject", "verb-place")  # in the order in which they are tried


def held_out(longest: int = LONGEST) -> list[Sentence]:
    return [sentence for sentence in training.corpus()[1] if len(sentence.words) <= longest]


def verb_of(sentence: Sentence) -> int:
    return sentence.relations["verb-subject"][0][0]


@torch.no_grad()
def hidden_losses(
    trained: Trained,
    sentences: Sequence[Sentence],
    hidden: Sequence[int],
    without: LayerAndHead | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """-ln p of one hidden word in each sentence (N,), without a head if one is named; all weights,
    L x (N, H, T, T).
    """
    tokens, lengths = training.to_batch(sentences, "masked word")
    rows, mask = torch.arange(len(sentences)), padding_mask(lengths, tokens.size(1))
    truth = tokens[rows, hidden]
    tokens[rows, hidden] = MASK_ID
    device, layers = (
        trained.model.positions.device,
        [block.attention for block in trained.model.blocks],
    )
    gates = torch.ones(len(layers), layers[0].num_heads, device=device)
    if without is not None:
        gates[without] = 0
    with gated(layers, gates):
        logits, weights = trained.model(tokens.to(device), mask=mask.to(device))
    return F.cross_entropy(logits[rows, hidden].cpu(), truth, reduction="none"), [
        layer.cpu() for layer in weights
    ]


def seen_through(
    trained: Trained, layer: int, head: int, relation: str, direction: str
) -> list[dict]:
    """The sentences in which a head looks most at the word that is tied to the hidden one, and is
    worth something.

    cost: what the hidden word loses without the head, in nats.
    """
    asked = []
    for sentence in held_out():
        query, key = sentence.relations[relation][0][:: 1 if direction == "forward" else -1]
        if abs(query - key) >= APART:
            asked.append((sentence, query, key))
    sentences, queries, keys = map(list, zip(*asked, strict=True))
    whole, weights = hidden_losses(trained, sentences, queries)
    blind, _ = hidden_losses(trained, sentences, queries, (layer, head))
    most = weights[layer][torch.arange(len(asked)), head, queries].argmax(
        dim=-1
    )  # (N, H, T, T) -> (N,)
    found = zip(sentences, queries, keys, most.tolist(), (blind - whole).tolist(), strict=True)
    return [
        {
            "words": s.words,
            "relations": s.relations,
            "hidden": i,
            "layer": layer,
            "head": head,
            "cost": round(cost, 4),
        }
        for s, i, key, at, cost in found
        if at == key and cost >= LEAST
    ]


def landings(trained: Trained, names: list[list[str | None]]) -> list[dict]:
    """The views of the page, the first one first; none if no head ties the verb to a noun. names:
    [layer][head].
    """
    for tie in TIES:
        found = [
            view
            for direction in DIRECTIONS
            for layer, row in enumerate(names)
            for head, name in enumerate(row)
            if name == relation_name(tie, direction)
            for view in seen_through(trained, layer, head, tie, direction)
        ]
        if found:
            found.sort(key=lambda view: view["cost"])
            worst = {
                next(word for word in view["words"] if word in VERBS): view for view in found
            }  # the last of each
            return sorted(worst.values(), key=lambda view: -view["cost"])
    return []


def has_rival(verb: str) -> bool:
    """Whether the subject must decide: another verb goes with the same preposition and the same
    kind of place.
    """
    return [where for _, *where in VERBS.values()].count(list(VERBS[verb][1:])) > 1


def hidden_verb(trained: Trained) -> dict[str, Any]:
    """Sentence, verb, the two heads; and without each head the rise of the loss on all hidden words
    (95 %).
    """
    sentences = [
        sentence for sentence in held_out() if has_rival(sentence.words[verb_of(sentence)])
    ]
    verbs, sample = [verb_of(sentence) for sentence in sentences], language_model(trained)
    full, _ = hidden_losses(trained, sentences, verbs)
    of_verb = {
        head: hidden_losses(trained, sentences, verbs, head)[0] - full for head in sample.heads
    }
    rises = removal_importance(sample).flatten(0, 1)  # (L, H, B) -> (L * H, B)
    mean, ends = rises.mean(dim=-1), over_examples(rises)
    needed = max(sample.heads, key=lambda head: of_verb[head].mean().item())
    sentence = sentences[int(of_verb[needed].argmax())]
    return {
        "words": sentence.words,
        "hidden": verb_of(sentence),
        "needed": needed,
        "spare": sample.heads[int(mean.argmin())],
        "rises": [
            {"head": head, "rise": round(rise, 4), "span": [round(end, 4) for end in span]}
            for head, rise, span in zip(
                sample.heads, mean.tolist(), torch.stack(ends, -1).tolist(), strict=True
            )
        ],
    }


@torch.no_grad()
def gap(trained: Trained, case: Case) -> float:
    """By how many nats the word that the model misses most costs more than the word at the thickest
    line.

    Lines are the weights of the last layer in the row of the hidden word, heads averaged.
    """
    _, layers = trained.model(
        torch.tensor([hide(case.words, case.hidden)], device=trained.model.positions.device)
    )
    weights = layers[-1][0, :, case.hidden].mean(dim=0)  # (1, H, T, T) -> (T,)
    costs, thickest = (
        leave_one_out(trained.model, case),
        max(case.others, key=lambda j: weights[j].item()),
    )
    return (costs.max() - costs[thickest]).item()


def pretty_line(trained: Trained) -> dict[str, Any]:
    """Words and the hidden position; the best there is where model and perfect reader agree on no
    sentence.
    """
    cases = [
        case for case in make_cases(training.corpus()[1][TRIED_ON:]) if len(case.words) <= LONGEST
    ]
    cases.sort(key=lambda case: gap(trained, case), reverse=True)
    agreed = (
        c for c in cases if first(leave_one_out(trained.model, c), c) <= first(perfect_reader(c), c)
    )
    case = next(agreed, cases[0])
    return {"words": case.words, "hidden": case.hidden}


def kind_of(word: str) -> tuple[str, bool]:
    """What a word may be exchanged for: the same part of speech, a noun in the same number."""
    plurals = {plural for nouns in (*SUBJECTS.values(), *PLACES.values()) for _, plural in nouns}
    return KIND[word], word in plurals


@torch.no_grad()
def other_word(causal: Trained, words: tuple[str, ...], place: int) -> str:
    """Of the words of its kind the one that, in its stead, moves the guesses at all places most
    (total variation).
    """
    same = [word for word in KIND if kind_of(word) == kind_of(words[place])]
    rows = [[START_ID, *encode((*words[:place], word, *words[place + 1 :]))] for word in same]
    tokens = torch.tensor(rows, device=causal.model.positions.device)
    logits, _ = causal.model(tokens, mask=causal_mask(tokens.size(1), device=tokens.device))
    guesses = logits.softmax(dim=-1)
    moves = (guesses - guesses[same.index(words[place])]).abs().sum(dim=(1, 2))  # (N, T, V) -> (N,)
    return same[int(moves.argmax())]


def one_word_changed(causal: Trained) -> dict[str, Any]:
    """A sentence, and for each of its words another one that may stand there."""
    words = next(sentence.words for sentence in held_out() if len(sentence.words) == SHORT)
    return {
        "words": words,
        "others": [other_word(causal, words, place) for place in range(len(words))],
    }
