"""Which held-out sentences show best what the page is about?

Another seed or another processor trains other models, so rules choose the sentences:

    landings            where the page opens: a hidden word that needs a head with a name,
    teaching_first      and that the model learned to guess
    hidden_verb         a verb that loses much without the head that hidden verbs need most,
    ablation_costs      and what each head costs
    pretty_line         a hidden word whose thickest line does not go to the word that it needs
    one_word_changed    a short sentence, and another word for each of its words
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.models import choose_word
from phase1_single_head.parts.facts import NOUNS
from phase2_multi_head.heads.head_importance import (
    Sampled,
    language_model,
    over_examples,
    removal_importance,
)
from phase3_visualization.layers.readers import (
    TRIED_ON,
    HiddenWord,
    leave_one_out,
    make_cases,
    perfect_reader,
    where_largest,
)
from shared.attention_utils import causal_mask, padding_mask
from shared.grammar.best_reader import KIND
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.toy_language import MASK_ID, SPECIAL, START_ID, VERBS, Sentence, encode
from shared.toy_model import ToyTransformer
from shared.training.objectives import corpus, to_batch
from shared.training.recipes import Trained

LONGEST = 10  # words, so that a sentence fits a phone
SHORT = 7  # words: with <start> each of four heads cut wrongly holds two of them
APART = 3  # positions from a hidden word to the one its head looks at, so never a neighbour
LEAST = 0.2  # nats that a head is worth
SHOWN_GUESSES = 5  # of a model, below the sentence
OPENING_RELATIONS = ("verb-subject", "verb-place")  # the second only if no head has the first


def short_sentences(longest: int = LONGEST) -> list[Sentence]:
    """Returns the held-out sentences of at most so many words."""
    return [sentence for sentence in corpus()[1] if len(sentence.words) <= longest]


@torch.no_grad()
def hidden_losses(
    trained: Trained, sentences: list[Sentence], hidden: list[int]
) -> tuple[Tensor, list[Tensor]]:
    """Returns -ln p of one hidden word in each sentence, (N,), and all weights, L x (N, H, T, T).

    hidden: the position of that word in each sentence.
    """
    tokens, lengths = to_batch(sentences, "masked word")
    rows = torch.arange(len(sentences))
    truth = tokens[rows, hidden]
    tokens[rows, hidden] = MASK_ID
    logits, layers = trained.model(tokens, mask=padding_mask(lengths, tokens.size(1)))
    return F.cross_entropy(logits[rows, hidden], truth, reduction="none"), layers


def with_hidden_words(trained: Trained, sentences: list[Sentence], hidden: list[int]) -> Sampled:
    """Returns the model on these questions, so that head_importance.py can take its heads out."""
    layers = [block.attention for block in trained.model.blocks]
    return Sampled(layers, lambda: hidden_losses(trained, sentences, hidden)[0])


def seen_through(
    trained: Trained, layer: int, head: int, relation: str, direction: str
) -> list[dict]:
    """Returns the sentences in which a hidden word needs a head, which looks most at its relative.

    cost: what the hidden word loses without the head, in nats.
    """
    sentences, hidden, relatives = [], [], []
    for sentence in short_sentences():
        ((query, key),) = sentence.relations[relation]
        if direction == "backward":
            query, key = key, query
        if abs(query - key) >= APART:
            sentences.append(sentence)
            hidden.append(query)
            relatives.append(key)
    _, layers = hidden_losses(trained, sentences, hidden)
    sampled = with_hidden_words(trained, sentences, hidden)
    costs = sampled.losses_without(frozenset([(layer, head)])) - sampled.losses_without(frozenset())
    views = []
    for n, query in enumerate(hidden):
        most_attended = layers[layer][n, head, query].argmax()
        if most_attended == relatives[n] and costs[n] >= LEAST:
            view = {
                "words": sentences[n].words,
                "hidden": query,
                "layer": layer,
                "head": head,
                "cost": round(costs[n].item(), 4),
            }
            views.append(view)
    return views


def landings(trained: Trained, heads: list[list[dict]]) -> list[dict]:
    """Returns the views of the page, for each verb that in which the head costs most.

    heads: [layer][head], see models.heads_of. If none ties the verb to a noun there are no views.
    """
    views = []
    for relation in OPENING_RELATIONS:
        for direction in DIRECTIONS:
            role = relation_name(relation, direction)
            for layer, row in enumerate(heads):
                for head, shares in enumerate(row):
                    if shares["role"] == role:
                        views += seen_through(trained, layer, head, relation, direction)
        if views:
            break
    costliest = {}
    for view in sorted(views, key=lambda view: view["cost"]):
        verb = view["words"][choose_word(view["words"])]
        costliest[verb] = view
    return sorted(costliest.values(), key=lambda view: -view["cost"])


@torch.no_grad()
def words_before(trained: Trained, view: dict) -> int:
    """Returns how many words the model finds likelier than the hidden one."""
    tokens = torch.tensor([encode(view["words"])])
    hidden = view["hidden"]
    truth = int(tokens[0, hidden])
    tokens[0, hidden] = MASK_ID
    logits, _ = trained.model(tokens)
    guesses = logits[0, hidden]  # (1, T, V) -> (V,)
    return int((guesses[len(SPECIAL) :] > guesses[truth]).sum())


def tells_of_people(words: Sequence[str]) -> bool:
    """Returns whether the sentence says what a person does: a reader can reason out who works."""
    subject_kind, *_ = VERBS[words[choose_word(words)]]
    return subject_kind == "person"


def teaching_first(views: list[dict], untrained: Trained, trained: Trained) -> list[dict]:
    """Returns the views, first those that show what training teaches, of these those of people.

    There the hidden word is not among the five best guesses before training, and is the best one at
    the end. If it led from the beginning, by luck, dragging time would begin by getting worse.
    """

    def rank(view: dict) -> int:
        is_unknown = words_before(untrained, view) >= SHOWN_GUESSES
        if not is_unknown or words_before(trained, view) > 0:
            return 2
        return 0 if tells_of_people(view["words"]) else 1

    return sorted(views, key=rank)


def has_rival(verb: str) -> bool:
    """Returns whether another verb goes with the same preposition and the same kind of place.

    Then only the subject can decide between them.
    """
    where = VERBS[verb][1:]
    return any(other != verb and VERBS[other][1:] == where for other in VERBS)


def hidden_verb(trained: Trained) -> dict:
    """Returns a sentence whose verb loses most without the head that hidden verbs need most."""
    sentences, verbs = [], []
    for sentence in short_sentences():
        verb = choose_word(sentence.words)
        if has_rival(sentence.words[verb]):
            sentences.append(sentence)
            verbs.append(verb)
    sampled = with_hidden_words(trained, sentences, verbs)
    costs = removal_importance(sampled).flatten(0, 1)  # (L, H, N) -> (L * H, N)
    needed = int(costs.mean(dim=-1).argmax())
    hardest = int(costs[needed].argmax())
    return {
        "words": sentences[hardest].words,
        "hidden": verbs[hardest],
        "needed": sampled.heads[needed],
    }


def ablation_costs(trained: Trained) -> list[dict]:
    """Returns what each head costs if it is removed, in nats a hidden word, and its 95 % interval.

    Its mean is over all hidden words of the held-out sentences.
    """
    sampled = language_model(trained)
    costs = removal_importance(sampled).flatten(0, 1)  # (L, H, N) -> (L * H, N)
    heads = []
    for head, of_head in zip(sampled.heads, costs, strict=True):
        interval = [round(end.item(), 4) for end in over_examples(of_head)]
        heads.append({"head": head, "cost": round(of_head.mean().item(), 4), "interval": interval})
    return heads


@torch.no_grad()
def line_misses(trained: Trained, case: HiddenWord) -> float:
    """Returns how much more the word that matters most costs than the word at the thickest line.

    Both costs are what the hidden word loses without them, in nats. The lines are the weights of
    the hidden word in the last layer, the mean of its heads.
    """
    _, layers = trained.model(torch.tensor([case.tokens()]))
    lines = layers[-1][0, :, case.hidden].mean(dim=0)  # (1, H, T, T) -> (T,)
    costs = leave_one_out(trained.model, case)
    thickest = max(case.others, key=lambda position: lines[position])
    return (costs.max() - costs[thickest]).item()


def pretty_line(trained: Trained) -> dict:
    """Returns the sentence in which the thickest line misses most what the hidden word needs.

    A perfect reader must need the same word as the model.
    """
    cases = make_cases(corpus()[1][TRIED_ON:])
    cases = [case for case in cases if len(case.words) <= LONGEST]
    cases.sort(key=lambda case: -line_misses(trained, case))
    for case in cases:
        needed = where_largest(leave_one_out(trained.model, case), case)
        if needed <= where_largest(perfect_reader(case), case):
            break
    return {"words": case.words, "hidden": case.hidden}


@torch.no_grad()
def one_word_changed(causal: ToyTransformer) -> dict:
    """Returns a sentence, and for each word that which moves all guesses most if it stands there.

    Tried are words of the same part of speech, for a noun of the same number. How far a guess moves
    is its total variation.
    """
    words = next(each.words for each in short_sentences() if len(each.words) == SHORT)
    others = []
    for position, word in enumerate(words):
        same_part = [other for other in KIND if KIND[other] == KIND[word]]
        tries = [other for other in same_part if (other in NOUNS) == (word in NOUNS)]
        rows = torch.tensor([START_ID, *encode(words)]).repeat(len(tries), 1)  # -> (N, T)
        rows[:, position + 1] = torch.tensor(encode(tries))
        logits, _ = causal(rows, mask=causal_mask(len(words) + 1))
        guesses = logits.softmax(dim=-1)
        moves = (guesses - guesses[tries.index(word)]).abs().sum(dim=(1, 2))  # (N, T, V) -> (N,)
        others.append(tries[int(moves.argmax())])
    return {"words": words, "others": others}
