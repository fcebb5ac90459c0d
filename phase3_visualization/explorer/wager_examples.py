"""On which sentences do the wagers show what they are about?

On held-out ones, chosen by a rule from the models at hand, since another seed or another processor trains others:

    hidden_verb        the head that a hidden verb needs most, the head that hidden words need least, and the sentence
                       in which the verb loses most without the first
    pretty_line        a hidden word whose thickest line goes to another word than the one that it and a perfect reader
                       miss most; the sentence in which the two differ most
    to_be_written      the first short sentences
    one_word_changed   the first sentence of seven words: with <start> each of four heads cut wrongly holds two of them;
                       a word's place is taken by the word of its kind that moves the guesses most
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_multi_head.pruning.head_importance import language_model, over_examples, removal_importance, removed_from
from phase3_visualization.layers.readers import TRIED_ON, Case, first, hide, leave_one_out, make_cases, perfect_reader
from shared import training
from shared.attention_utils import causal_mask, padding_mask
from shared.grammar.entropy import KIND
from shared.toy_language import MASK_ID, PLACES, START_ID, SUBJECTS, VERBS, Sentence, encode
from shared.training import Trained

LONGEST = 10  # words, so that a sentence fits a phone
SHORT = 7
TO_WRITE = 4  # sentences that the reader can leaf through


def held_out(longest: int = LONGEST) -> list[Sentence]:
    return [sentence for sentence in training.corpus()[1] if len(sentence.words) <= longest]


# ---- a head knocked out


def has_rival(verb: str) -> bool:
    """Whether the subject must decide: another verb goes with the same preposition and the same kind of place."""
    return [where for _, *where in VERBS.values()].count(list(VERBS[verb][1:])) > 1


def verb_of(sentence: Sentence) -> int:
    return sentence.relations["verb-subject"][0][0]


@torch.no_grad()
def verb_losses(trained: Trained, sentences: list[Sentence]) -> Tensor:
    """-ln p(verb) when it is hidden, for each sentence -> (N,)."""
    tokens, lengths = training.to_batch(sentences, "masked word")
    rows, verbs = torch.arange(len(sentences)), torch.tensor([verb_of(sentence) for sentence in sentences])
    truth, mask = tokens[rows, verbs], padding_mask(lengths, tokens.size(1))
    tokens[rows, verbs] = MASK_ID
    device = trained.model.positions.device
    logits, _ = trained.model(tokens.to(device), mask=mask.to(device))
    return F.cross_entropy(logits[rows, verbs], truth.to(device), reduction="none").cpu()


def hidden_verb(trained: Trained) -> dict[str, Any]:
    """Sentence, verb, the two heads; and without each head the rise of the loss on all hidden words, at most (95 %)."""
    sentences = [sentence for sentence in held_out() if has_rival(sentence.words[verb_of(sentence)])]
    sample, full = language_model(trained), verb_losses(trained, sentences)
    rises, of_verb = dict(zip(sample.heads, removal_importance(sample).flatten(0, 1), strict=True)), {}
    for head in sample.heads:
        with removed_from(sample, frozenset([head])):
            of_verb[head] = verb_losses(trained, sentences) - full
    needed = max(sample.heads, key=lambda head: of_verb[head].mean().item())
    spare = min(sample.heads, key=lambda head: rises[head].mean().item())
    sentence = sentences[int(of_verb[needed].argmax())]
    at_most = over_examples(torch.stack(list(rises.values())))[1]
    return {
        "words": sentence.words,
        "hidden": verb_of(sentence),
        "needed": needed,
        "spare": spare,
        "rises": [
            {"head": head, "rise": round(rise.mean().item(), 4), "at_most": round(most, 4)}
            for (head, rise), most in zip(rises.items(), at_most.tolist(), strict=True)
        ],
    }


# ---- a pretty line


@torch.no_grad()
def lines(trained: Trained, case: Case) -> Tensor:
    """Weights of the last layer in the row of the hidden word, heads averaged -> (T,)."""
    _, layers = trained.model(torch.tensor([hide(case.words, case.hidden)], device=trained.model.positions.device))
    return layers[-1][0, :, case.hidden].mean(dim=0).cpu()  # (1, H, T, T) -> (T,)


def gap(trained: Trained, case: Case) -> float:
    """By how many nats the word that the model misses most costs more than the word at the thickest line."""
    costs, weights = leave_one_out(trained.model, case), lines(trained, case)
    thickest = max(case.others, key=lambda j: weights[j].item())
    return (costs.max() - costs[thickest]).item()


def pretty_line(trained: Trained) -> dict[str, Any]:
    """Words and the hidden position; the best there is where model and perfect reader agree on no sentence."""
    cases = [case for case in make_cases(training.corpus()[1][TRIED_ON:]) if len(case.words) <= LONGEST]
    cases.sort(key=lambda case: gap(trained, case), reverse=True)
    agreed = (c for c in cases if first(leave_one_out(trained.model, c), c) <= first(perfect_reader(c), c))
    case = next(agreed, cases[0])
    return {"words": case.words, "hidden": case.hidden}


# ---- writing, and a word changed


def to_be_written() -> list[tuple[str, ...]]:
    return [sentence.words for sentence in held_out(SHORT)[:TO_WRITE]]


def kind_of(word: str) -> tuple[str, bool]:
    """What a word may be exchanged for: the same part of speech, a noun in the same number."""
    plurals = {plural for nouns in (*SUBJECTS.values(), *PLACES.values()) for _, plural in nouns}
    return KIND[word], word in plurals


@torch.no_grad()
def other_word(causal: Trained, words: tuple[str, ...], place: int) -> str:
    """Of the words of its kind the one that, in its stead, moves the guesses at all places most (total variation)."""
    same = [word for word in KIND if kind_of(word) == kind_of(words[place])]
    rows = [[START_ID, *encode((*words[:place], word, *words[place + 1 :]))] for word in same]
    tokens = torch.tensor(rows, device=causal.model.positions.device)
    logits, _ = causal.model(tokens, mask=causal_mask(tokens.size(1), device=tokens.device))
    guesses = logits.softmax(dim=-1)
    moves = (guesses - guesses[same.index(words[place])]).abs().sum(dim=(1, 2))  # (N, T, V) -> (N,)
    return same[int(moves.argmax())]


def one_word_changed(causal: Trained) -> dict[str, Any]:
    """A sentence, and for each of its words another one that may stand there."""
    words = next(sentence.words for sentence in training.corpus()[1] if len(sentence.words) == SHORT)
    return {"words": words, "others": [other_word(causal, words, place) for place in range(len(words))]}
