"""The grammar: scores of made heads, probabilities by hand, by Bayes and by counting."""

import itertools
import math
import random
from types import SimpleNamespace

import pytest
import torch

from phase1_single_head.reading import other_weights
from shared import toy_language, training
from shared.grammar import entropy as grammar_entropy
from shared.grammar import scores as grammar_scores
from shared.grammar.entropy import (
    excess_loss,
    hidden_word_distribution,
    questions,
    sentence_log_probability,
)
from shared.grammar.scores import chosen_and_scored, gold_matrices, score_heads, with_relations
from shared.tests.helpers import near
from shared.toy_language import (
    ADJECTIVES,
    INDEX,
    MASK_ID,
    RELATIONS,
    VOCABULARY,
    decode,
    sample_corpus,
    sample_sentence,
)


def words_of(sentence):
    return sentence.split()


def test_sentence_probability_worked_by_hand():
    bare = (0.5 / 5) * 0.5 / 3  # number and determiner, no adjective, one noun of three
    assert math.isclose(
        math.exp(sentence_log_probability(words_of("the cat sat on the mat"))), 0.8**3 * 0.7 * bare**2 / 12
    )
    subject = (0.5 / 5) * 0.2 / (7 * 6) / 3  # two adjectives, the second one of the six that are left
    attractor = (0.5 / 5) * 0.3 / 7 / 3 / 6  # one adjective; a class of places first, one of six
    place = (0.5 / 5) * 0.5 / 3
    adverbs = (0.2 / 5) ** 2 * 0.8
    words = words_of("quietly those big red dogs beside the soft barn slept again in a bed")
    expected = adverbs * 0.3 * subject * attractor * place / 12
    near(math.exp(sentence_log_probability(words)), expected, share=1e-12)


def test_the_chances_of_all_noun_phrases_sum_to_one(monkeypatch):
    monkeypatch.setattr(toy_language, "PLURAL_CHANCE", 0.2)  # even chances would hide which is which
    nouns, chances = toy_language.SUBJECTS["animal"], []
    for determiner, noun in itertools.product(grammar_entropy.KINDS["d"], itertools.chain(*nouns)):
        for count in range(3):
            for adjectives in itertools.permutations(toy_language.ADJECTIVES, count):
                chances.append(grammar_entropy.noun_phrase_probability((determiner, *adjectives, noun), nouns))
    near(sum(chances), 1)
    one, many = (grammar_entropy.noun_phrase_probability(("the", noun), nouns) for noun in nouns[0])
    near(4 * many, one)


@pytest.mark.parametrize(
    "sentence",
    [
        "a dogs sat on the mat",  # number of the determiner
        "the girl sat on the mat",  # class of the subject
        "the cat sat in the mat",  # preposition of the verb
        "the cat sat on the bed",  # class of the place
        "the big big cat sat on the mat",  # an adjective twice
        "the big red soft cat sat on the mat",  # three adjectives
        "the cat beside the dog sat on the mat",  # only places stand after beside
        "the cat quietly quietly sat on the mat",  # two adverbs in one place
        "the <mask> sat on the mat",
        "cat the sat on the mat",
        "the cat sat on the mat today",
    ],
)
def test_what_the_grammar_cannot_make_has_probability_zero(sentence):
    assert sentence_log_probability(sentence.split()) == -math.inf


def test_probability_agrees_with_the_sampler():
    # All sentences of six words, enumerated; their total is also the share of six words among sampled sentences.
    determiners = grammar_entropy.KINDS["d"]
    total = 0.0
    for verb, (subject, preposition, place) in toy_language.VERBS.items():
        nouns = [itertools.chain(*group) for group in (toy_language.SUBJECTS[subject], toy_language.PLACES[place])]
        for a, b, c, d in itertools.product(determiners, nouns[0], determiners, nouns[1]):
            total += math.exp(sentence_log_probability((a, b, verb, preposition, c, d)))
    near(total, 0.8**3 * 0.7 * 0.5**2, share=1e-12)
    rng = random.Random(11)
    drawn = [sample_sentence(rng).words for _ in range(20_000)]
    assert all(sentence_log_probability(words) > -math.inf for words in drawn[:2000])
    share = sum(len(words) == 6 for words in drawn) / len(drawn)
    assert abs(share - total) < 4 * math.sqrt(total * (1 - total) / len(drawn))


def test_hidden_words_against_bayes_and_by_hand():
    words = words_of("the cat sat on the mat")
    subject = hidden_word_distribution(words, 1)
    animals = ("cat", "cats", "dog", "dogs", "fox", "foxes")  # "the" takes both numbers
    assert {VOCABULARY[i] for i in subject.nonzero().flatten()} == set(animals)
    near(subject[INDEX["fox"]].item(), 1 / 6)
    determiner, verb = (torch.special.entr(hidden_word_distribution(words, place)).sum().item() for place in (0, 2))
    assert math.isclose(determiner, math.log(5)) and verb == 0  # the and four determiners for one cat
    near(hidden_word_distribution(["the", "<mask>", *words[2:]], 1), subject)
    rng = random.Random(3)
    for sentence in (sample_sentence(rng).words for _ in range(13)):
        for position in range(len(sentence)):
            p = hidden_word_distribution(sentence, position)
            joint = [
                math.exp(sentence_log_probability((*sentence[:position], w, *sentence[position + 1 :])))
                for w in VOCABULARY
            ]
            expected = torch.tensor(joint, dtype=torch.float64) / sum(joint)
            near(p, expected)
            assert p.sum().item() == pytest.approx(1, abs=1e-12)
            possible = p[p > 0]
            assert p[INDEX[sentence[position]]] > 0
            assert possible.max() - possible.min() < 1e-12, "all words that fit are equally likely, as the lesson says"


def test_hidden_word_frequencies():
    # Of many sampled sentences, those that agree with a pattern in all but one word: how often which word?
    rng = random.Random(5)
    seen = [words[1] for words in (sample_sentence(rng).words for _ in range(20_000)) if words[0] == "every"]
    nouns = [word for word in seen if grammar_entropy.KIND[word] == "n"]
    # Hidden after "every", before the verb of each class, the noun is one of three; together one of twelve.
    verbs = {
        "animal": "sat on the mat",
        "person": "swam in the lake",
        "vehicle": "stalled on the hill",
        "toy": "fell in the lake",
    }
    p = sum(hidden_word_distribution(["every", "?", *rest.split()], 1) for rest in verbs.values()) / 4
    for i in p.nonzero().flatten().tolist():
        expected = p[i].item()
        share = nouns.count(VOCABULARY[i]) / len(nouns)
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / len(nouns))


def test_hidden_word_errors():
    with pytest.raises(ValueError, match="position must lie between 0 and 5: got 6"):
        hidden_word_distribution(words_of("the cat sat on the mat"), 6)
    with pytest.raises(ValueError, match=r'no word makes "a \.\.\. sat in the mat"'):
        hidden_word_distribution(words_of("a cat sat in the mat"), 1)


def test_excess_loss_of_the_grammar_itself_is_zero():
    asked = questions(sample_corpus(0, 7)[1])

    def oracle(tokens):
        logits = torch.zeros(*tokens.shape, len(VOCABULARY), dtype=torch.float64)
        for row, ids in enumerate(tokens.tolist()):
            position = ids.index(MASK_ID)
            logits[row, position] = hidden_word_distribution(decode(ids), position).log().clamp(min=-1e4)
        return logits

    def indifferent(tokens):
        return torch.zeros(*tokens.shape, len(VOCABULARY))

    assert excess_loss(oracle, asked) == pytest.approx(0, abs=1e-12)
    entropies = torch.cat([torch.special.entr(p).sum(dim=-1) for *_, p in asked])
    expected = math.log(len(VOCABULARY)) - entropies.mean().item()
    near(excess_loss(indifferent, asked), expected, share=1e-9)
    assert len(entropies) == sum(len(sentence.words) for sentence in sample_corpus(0, 7)[1])


def test_a_perfect_head_scores_one_an_inverse_head_zero_and_an_offset_what_it_deserves():
    sentences = training.corpus()[1][:50]
    length = max(len(s.words) for s in sentences)
    gold = grammar_scores.gold_matrices(sentences, length)
    for name in RELATIONS:
        perfect = gold[name].double() + torch.eye(length)  # its own position does not count
        wrong = (1 - gold[name].double()) / length
        weights = torch.stack([perfect, wrong], dim=1)
        near(
            grammar_scores.share_right(grammar_scores.attended_word(weights), gold[name]),
            torch.tensor([1.0, 0.0]).double(),
        )
    for name in RELATIONS:  # the baseline against a count by hand
        pairs = [(i, j) for s in sentences for i, j in s.relations[name]]
        offsets = [j - i for i, j in pairs]
        expected = max(offsets.count(o) for o in set(offsets)) / len(offsets)
        assert grammar_scores.best_fixed_offset(gold[name])[1] == pytest.approx(expected)


@pytest.mark.parametrize("shift", [0, 2])
def test_scores_name_the_right_head_layer_and_direction(shift):
    sentences = training.corpus()[1][:20]
    length = max(len(s.words) for s in sentences) + shift
    gold = grammar_scores.gold_matrices(sentences, length, shift)
    places = [[n, i + shift, j + shift] for n, s in enumerate(sentences) for i, j in s.relations["verb-place"]]
    assert gold["verb-place"].nonzero().tolist() == places
    layers = [torch.full((20, 3, length, length), 1 / length) for _ in range(2)]
    layers[1][:, 2] = gold["verb-place"].mT.float()
    best = grammar_scores.best_heads(grammar_scores.score_heads(layers, sentences, shift))["verb-place"]
    assert (best.layer, best.head, best.direction, best.accuracy) == (1, 2, "backward", 1.0)


def test_the_best_offset_is_that_of_the_better_direction():
    """Of two adjectives one stands right before the noun; of one noun, one adjective does."""
    sentence = with_relations(["the", *ADJECTIVES[:2], "cat", "sat", "on", "the", "mat"])
    gold = grammar_scores.gold_matrices([sentence], 8)["adjective-noun"]
    assert [grammar_scores.best_fixed_offset(way)[1] for way in (gold, gold.mT)] == [0.5, 1.0]
    assert grammar_scores.offset_baselines([sentence])["adjective-noun"] == 1.0


def test_relations_are_read_off_the_order_of_words_as_the_grammar_gave_them():
    for sentence in training.corpus()[1]:
        assert with_relations(sentence.words) == sentence
    for words in (["on", "quietly"], ["mat", "the", "on", "sat", "cat", "the"]):
        assert with_relations(words).relations == {}


def test_hidden_words_stay_hidden():
    generator = torch.Generator().manual_seed(3)
    value, scores = torch.randn(11, 2, generator=generator).double(), torch.randn(11, generator=generator).double()
    hidden = torch.arange(11) % 3 == 0
    weights = scores.masked_fill(hidden, -math.inf).softmax(dim=0)
    other = other_weights.alternative_weights(weights, value)
    assert (other[hidden] == 0).all() and (other - weights).abs().sum() > 1e-2
    near(other @ value, weights @ value)


def test_the_best_head_is_chosen_on_one_half_and_scored_on_the_other(monkeypatch):
    sentences = sample_corpus(0, 40)[1]
    length = max(len(sentence.words) for sentence in sentences)
    gold = gold_matrices(sentences, length)["verb-subject"].double()
    lucky, steady = gold.clone(), gold.clone()
    lucky[20:] = torch.eye(length).roll(1, dims=1)  # right on the first half alone
    steady[:2] = torch.eye(length).roll(1, dims=1)  # wrong at first, then right: worse on the first half
    layer = torch.stack([lucky, steady], dim=1)  # (40, 2, T, T)
    trained = SimpleNamespace(model=None, recipe=SimpleNamespace(objective="masked word"))

    def scored(layer, sentences):
        monkeypatch.setattr(training, "attention_on", lambda *_: ([layer], None))
        monkeypatch.setattr(training, "corpus", lambda: ([], sentences))
        return chosen_and_scored(trained)["verb-subject"]

    assert scored(layer, sentences) < 0.5 < 0.9 < score_heads([layer], sentences)["verb-subject"].max()
    assert scored(layer.flip(0), sentences[::-1]) == pytest.approx(0.9)
