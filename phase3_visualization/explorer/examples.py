"""Which held-out sentences show best what the page is about?

Another seed or another processor trains other models, so rules choose the sentences:

    landings            where the page opens: a hidden word that needs a head with a name,
    teaching_first      and that the model learned to guess
    hidden_verb         a verb that loses much without the head that hidden verbs need most
    pretty_line         a hidden word whose thickest line does not go to the word that it needs
    one_word_changed    a short sentence, and another word for each of its words
"""

import torch
import torch.nn.functional as F
from torch import Tensor

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
from shared.training.objectives import corpus, to_batch
from shared.training.recipes import Trained

LONGEST = 10  # words, so that a sentence fits a phone
SHORT = 7  # words: with <start> each of four heads cut wrongly holds two of them
APART = 3  # places from a hidden word to the word that its head looks at, so never a neighbour
LEAST = 0.2  # nats that a head is worth
SHOWN_GUESSES = 5  # of a model, below the sentence
TIES = ("verb-subject", "verb-place")  # the second is tried only if no head has the first


def short_sentences(longest: int = LONGEST) -> list[Sentence]:
    """Returns the held-out sentences of at most so many words."""
    return [sentence for sentence in corpus()[1] if len(sentence.words) <= longest]


def verb_place(sentence: Sentence) -> int:
    """Returns the position of the verb."""
    ((verb, _),) = sentence.relations["verb-subject"]
    return verb


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
        (pair,) = sentence.relations[relation]
        if abs(pair[0] - pair[1]) >= APART:
            query, key = pair if direction == "forward" else reversed(pair)
            sentences.append(sentence)
            hidden.append(query)
            relatives.append(key)
    _, layers = hidden_losses(trained, sentences, hidden)
    asked = with_hidden_words(trained, sentences, hidden)
    costs = asked.losses_without(frozenset([(layer, head)])) - asked.losses_without(frozenset())
    views = []
    for n, query in enumerate(hidden):
        looks_at = layers[layer][n, head, query].argmax()
        if looks_at == relatives[n] and costs[n] >= LEAST:
            cost = round(costs[n].item(), 4)
            view = {"hidden": query, "layer": layer, "head": head, "cost": cost}
            views.append(vars(sentences[n]) | view)
    return views


def landings(trained: Trained, heads: list[list[dict]]) -> list[dict]:
    """Returns the views of the page, for each verb that in which the head costs most.

    heads: [layer][head], see models.heads_of. If none ties the verb to a noun there are no views.
    """
    views = []
    for relation in TIES:
        for direction in DIRECTIONS:
            wanted = relation_name(relation, direction)
            for layer, row in enumerate(heads):
                for head, said in enumerate(row):
                    if said["role"] == wanted:
                        views += seen_through(trained, layer, head, relation, direction)
        if views:
            break
    costliest = {}
    for view in sorted(views, key=lambda view: view["cost"]):
        ((verb, _),) = view["relations"]["verb-subject"]
        costliest[view["words"][verb]] = view
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


def tells_of_people(view: dict) -> bool:
    """Returns whether the sentence says what a person does: a reader can reason out who works."""
    return any(word in VERBS and VERBS[word][0] == "person" for word in view["words"])


def teaching_first(views: list[dict], untrained: Trained, trained: Trained) -> list[dict]:
    """Returns the views, first those that show what training teaches, of these those of people.

    There the hidden word is not among the five best guesses before training, and is the best one at
    the end. If it led from the beginning, by luck, dragging time would begin by getting worse.
    """
    of_people, learned, others = [], [], []
    for view in views:
        is_unknown = words_before(untrained, view) >= SHOWN_GUESSES
        is_learned = is_unknown and words_before(trained, view) == 0
        if is_learned and tells_of_people(view):
            of_people.append(view)
        elif is_learned:
            learned.append(view)
        else:
            others.append(view)
    return of_people + learned + others


def has_rival(verb: str) -> bool:
    """Returns whether another verb goes with the same preposition and the same kind of place.

    Then only the subject can decide between them.
    """
    where = VERBS[verb][1:]
    return any(other != verb and VERBS[other][1:] == where for other in VERBS)


def hidden_verb(trained: Trained) -> dict:
    """Returns a sentence whose verb loses most without the head that hidden verbs need most.

    heads: what each head costs if it is removed, in nats a hidden word, with its 95 % interval.
    """
    sentences, verbs = [], []
    for sentence in short_sentences():
        verb = verb_place(sentence)
        if has_rival(sentence.words[verb]):
            sentences.append(sentence)
            verbs.append(verb)
    of_verbs = removal_importance(with_hidden_words(trained, sentences, verbs)).flatten(0, 1)
    needed = int(of_verbs.mean(dim=-1).argmax())  # (L * H, N) -> (L * H,)
    hardest = int(of_verbs[needed].argmax())
    all_words = language_model(trained)
    heads = []
    of_heads = removal_importance(all_words).flatten(0, 1)  # (L, H, N) -> (L * H, N)
    for head, costs in zip(all_words.heads, of_heads, strict=True):
        interval = [round(end.item(), 4) for end in over_examples(costs)]
        heads.append({"head": head, "cost": round(costs.mean().item(), 4), "interval": interval})
    return {
        "words": sentences[hardest].words,
        "hidden": verbs[hardest],
        "needed": all_words.heads[needed],
        "heads": heads,
    }


@torch.no_grad()
def line_misses(trained: Trained, case: HiddenWord) -> float:
    """Returns how much more the word that matters most costs than the word at the thickest line.

    Both costs are what the hidden word loses without them, in nats. The lines are the weights of
    the hidden word in the last layer, the mean of its heads.
    """
    _, layers = trained.model(torch.tensor([case.tokens()]))
    lines = layers[-1][0, :, case.hidden].mean(dim=0)  # (1, H, T, T) -> (T,)
    costs = leave_one_out(trained.model, case)
    thickest = max(case.others, key=lambda place: lines[place])
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


def exchangeable(word: str) -> list[str]:
    """Returns the words of the same part of speech, for a noun those of the same number."""
    same_part = [other for other in KIND if KIND[other] == KIND[word]]
    return [other for other in same_part if (other in NOUNS) == (word in NOUNS)]


@torch.no_grad()
def one_word_changed(causal: Trained) -> dict:
    """Returns a sentence, and for each word that which moves all guesses most if it stands there.

    How far a guess moves is its total variation.
    """
    words = next(each.words for each in short_sentences() if len(each.words) == SHORT)
    others = []
    for place, word in enumerate(words):
        tries = exchangeable(word)
        rows = [[START_ID, *encode((*words[:place], new, *words[place + 1 :]))] for new in tries]
        logits, _ = causal.model(torch.tensor(rows), mask=causal_mask(len(words) + 1))
        guesses = logits.softmax(dim=-1)
        moves = (guesses - guesses[tries.index(word)]).abs().sum(dim=(1, 2))  # (N, T, V) -> (N,)
        others.append(tries[int(moves.argmax())])
    return {"words": words, "others": others}
