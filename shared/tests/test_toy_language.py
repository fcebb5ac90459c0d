"""The toy language and its model: relations, probabilities by hand and by counting, made heads."""

import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from phase1_single_head.models import make_single_head
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from shared import paths, toy_language
from shared.attention_utils import padding_mask
from shared.grammar import best_reader, scores
from shared.grammar.best_reader import (
    excess_loss,
    hidden_word_distribution,
    questions,
    sentence_log_probability,
)
from shared.tests.helpers import near
from shared.toy_language import (
    INDEX,
    MASK_ID,
    RELATIONS,
    TOY_SENTENCE,
    VOCABULARY,
    encode,
    sample_sentence,
    tokenize,
)
from shared.toy_model import ToyTransformer, weights_on_sentence
from shared.training.objectives import NUM_HELD_OUT, NUM_TRAIN, corpus

TOY_WORDS = TOY_SENTENCE.split()
LONG = "quietly those big red dogs beside the soft barn slept again in a bed"


def words_of(sentence):
    return sentence.split()


def sampled(seed, count):
    rng = random.Random(seed)
    return [sample_sentence(rng).words for _ in range(count)]


# ---- sentences, relations, files


def test_gold_relations_are_those_that_the_order_of_words_shows():
    """The sampler notes them while it draws; with_relations reads them off."""
    distances = {name: set() for name in RELATIONS}
    for sentence in corpus()[1]:
        assert scores.with_relations(sentence.words) == sentence
        for name, pairs in sentence.relations.items():
            distances[name] |= {target - source for source, target in pairs}
    assert all(len(distances[name]) >= 3 for name in RELATIONS[:3]), "no fixed offset is right"
    assert scores.with_relations(words_of(LONG)).relations == {
        "determiner-noun": [(1, 4), (6, 8), (12, 13)],
        "verb-subject": [(9, 4)],
        "verb-place": [(9, 13)],
        "adjective-noun": [(2, 4), (3, 4), (7, 8)],
    }
    for words in (["on", "quietly"], words_of("mat the on sat cat the")):
        assert scores.with_relations(words).relations == {}


def test_the_sets_are_disjoint_and_the_toy_sentence_is_never_trained_on():
    train, held_out = ({sentence.words for sentence in part} for part in corpus())
    assert len(train) == NUM_TRAIN and len(held_out) == NUM_HELD_OUT
    assert not train & held_out and tuple(TOY_WORDS) not in train | held_out
    assert 90 <= len(VOCABULARY) <= 110 and len(set(VOCABULARY)) == len(VOCABULARY)
    assert toy_language.sample_corpus(10, 5, seed=1) == toy_language.sample_corpus(10, 5, seed=1)


def test_sentences_are_read_as_people_and_their_editors_write_them(tmp_path):
    assert tokenize("The cat, sat on the MAT.") == TOY_WORDS
    assert toy_language.decode(encode(TOY_WORDS)) == TOY_WORDS
    assert len(tokenize("the " * 32)) == 32
    assert toy_language.read_sentences(str(paths.TOY_SEQUENCES))[0] == TOY_SENTENCE
    file = tmp_path / "sentences.txt"
    file.write_bytes("\ufeffthe cat sat on the mat\r\n\r\n# a note\r\na dog slept\r\n".encode())
    assert toy_language.read_sentences(str(file)) == [TOY_SENTENCE, "a dog slept"]
    for text, message in {
        "# a\n\nthe cat\nthe dgo\n": r"line 4: \"dgo\" .*dog",
        "# a\n": "holds no sentence",
    }.items():
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            toy_language.read_sentences(str(file))


# ---- how likely a sentence is, and a hidden word


def test_sentence_probability_worked_by_hand(monkeypatch):
    monkeypatch.setattr(best_reader, "PLURAL_CHANCE", 0.2)  # even chances hide which is which
    uncached = best_reader.noun_phrase_probability.__wrapped__
    monkeypatch.setattr(best_reader, "noun_phrase_probability", uncached)
    bare = (0.8 / 5) * 0.5 / 3  # number and determiner, no adjective, one noun of three
    near(math.exp(sentence_log_probability(TOY_WORDS)), 0.8**3 * 0.7 * bare**2 / 12)
    two_adjectives = 0.2 / (7 * 6)  # the second is one of the six that are left
    subject = (0.2 / 5) * two_adjectives / 3
    attractor = (0.8 / 5) * 0.3 / 7 / 3 / 6  # one adjective; a class of places first, one of six
    adverbs = (0.2 / 5) ** 2 * 0.8
    expected = adverbs * 0.3 * subject * attractor * bare / 12
    near(math.exp(sentence_log_probability(words_of(LONG))), expected)


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
        "the cat sat on the mat today",
    ],
)
def test_what_the_grammar_cannot_make_has_probability_zero(sentence):
    assert sentence_log_probability(sentence.split()) == -math.inf


def test_the_sampler_draws_what_the_grammar_says_as_often_as_it_says():
    """Lengths and the noun after "every", among many sentences, against the exact shares."""
    drawn = sampled(11, 20_000)
    assert all(sentence_log_probability(words) > -math.inf for words in drawn[:2000])
    nouns = torch.zeros(len(VOCABULARY), dtype=torch.float64)
    for rest in ("sat on the mat", "swam in the lake", "turned near a park", "lay on a bed"):
        nouns += hidden_word_distribution(["every", "?", *rest.split()], 1) / 4  # each class once
    second = [words[1] for words in drawn if words[0] == "every"]
    seen = Counter(word for word in second if best_reader.KIND[word] == "n")
    bare = 0.8**3 * 0.7 * 0.5**2  # no adverb, no second noun, no adjective: six words
    cases = [(bare, sum(len(words) == 6 for words in drawn), len(drawn))]
    cases += [(nouns[INDEX[noun]].item(), count, seen.total()) for noun, count in seen.items()]
    assert len(cases) == 1 + int((nouns > 0).sum())
    for expected, count, total in cases:
        assert abs(count / total - expected) < 4 * math.sqrt(expected * (1 - expected) / total)


def test_words_that_fit_a_gap_are_equally_likely():
    subject = hidden_word_distribution(TOY_WORDS, 1)
    animals = ("cat", "cats", "dog", "dogs", "fox", "foxes")  # "the" takes both numbers
    assert {VOCABULARY[i] for i in subject.nonzero().flatten()} == set(animals)
    near(subject[INDEX["fox"]].item(), 1 / 6)
    near(hidden_word_distribution(["the", "<mask>", *TOY_WORDS[2:]], 1), subject)
    for sentence in sampled(3, 5):
        for position in range(len(sentence)):
            p = hidden_word_distribution(sentence, position)
            fits = torch.zeros(len(VOCABULARY), dtype=torch.float64)
            for index, word in enumerate(VOCABULARY):
                words = (*sentence[:position], word, *sentence[position + 1 :])
                fits[index] = sentence_log_probability(words) > -math.inf
            near(p, fits / fits.sum())
            assert fits[INDEX[sentence[position]]]


def test_excess_loss_of_the_grammar_itself_is_zero():
    sentences = toy_language.sample_corpus(0, 7)[1]
    gaps = questions(sentences)

    def oracle(tokens):
        logits = torch.zeros(*tokens.shape, len(VOCABULARY), dtype=torch.float64)
        for row, position in (tokens == MASK_ID).nonzero().tolist():
            words = toy_language.decode(tokens[row].tolist())
            logits[row, position] = hidden_word_distribution(words, position).log().clamp(min=-1e4)
        return logits

    assert excess_loss(oracle, gaps) == pytest.approx(0, abs=1e-12)
    indifferent = excess_loss(lambda tokens: torch.zeros(*tokens.shape, len(VOCABULARY)), gaps)
    near(indifferent, math.log(len(VOCABULARY)) - best_reader.floor(gaps), share=1e-9)
    assert sum(len(each.tokens) for each in gaps) == sum(len(s.words) for s in sentences)


# ---- heads, made so that their score is known


def longest(sentences):
    return max(len(sentence.words) for sentence in sentences)


def test_a_perfect_head_scores_one_and_an_inverse_head_zero():
    sentences = corpus()[1][:50]
    length = longest(sentences)
    for gold in scores.gold_masks(sentences).values():
        perfect = gold.double() + torch.eye(length)  # its own position does not count
        wrong = (1 - gold.double()) / length
        attended = scores.attended_word(torch.stack([perfect, wrong], dim=1))
        near(scores.share_right(attended, gold), torch.tensor([1.0, 0.0]).double())


def test_the_best_fixed_offset_by_hand():
    sentence = scores.with_relations(words_of("the big small cat sat on the mat"))
    gold = scores.gold_masks([sentence])
    shares = [scores.best_fixed_offset(gold["adjective-noun", way]) for way in scores.DIRECTIONS]
    assert shares == [0.5, 1.0]
    better = scores.offset_baselines([sentence])
    assert better["adjective-noun"] == 1.0, "that of the better direction"
    farthest = torch.zeros(1, 5, 5, dtype=torch.bool)
    farthest[0, 0, 4] = True
    assert scores.best_fixed_offset(farthest) == scores.best_fixed_offset(farthest.mT) == 1.0


def test_gold_stands_behind_start():
    sentences = corpus()[1][:20]
    gold = scores.gold_masks(sentences, "next word", longest(sentences) + 2)
    for n, sentence in enumerate(sentences):
        ((source, target),) = sentence.relations["verb-place"]
        assert gold["verb-place", "forward"][n].nonzero().tolist() == [[source + 1, target + 1]]
        assert gold["verb-place", "backward"][n].nonzero().tolist() == [[target + 1, source + 1]]


def test_scores_name_the_right_head_layer_and_direction():
    sentences = corpus()[1][:20]
    length = longest(sentences)
    gold = scores.gold_masks(sentences)["verb-place", "backward"]
    layers = [torch.full((20, 3, length, length), 1 / length) for _ in range(2)]
    layers[1][:, 2] = gold.float()
    share = scores.score_heads(layers, sentences)["verb-place"]  # (L, H, 2)
    assert share.argmax() == 11 and share[1, 2, scores.DIRECTIONS.index("backward")] == 1


def test_the_best_head_is_chosen_on_one_half_and_scored_on_the_other(monkeypatch):
    sentences = toy_language.sample_corpus(0, 40)[1]
    length = longest(sentences)
    gold = scores.gold_masks(sentences)["verb-subject", "forward"].double()
    lucky, steady, wrong = gold.clone(), gold.clone(), torch.eye(length).roll(1, dims=1)
    lucky[20:] = wrong  # right on the first half alone
    steady[:2] = wrong  # wrong at first, then right: worse on the first half
    layer = torch.stack([lucky, steady], dim=1)  # (40, 2, T, T)
    trained = SimpleNamespace(model=None, recipe=SimpleNamespace(objective="masked word"))

    def scored(layer, sentences):
        monkeypatch.setattr(scores, "attention_weights", lambda *_: ([layer], None))
        monkeypatch.setattr(scores, "corpus", lambda: ([], sentences))
        return scores.chosen_and_scored(trained)["verb-subject"]

    assert scored(layer, sentences) < 0.5
    assert scores.score_heads([layer], sentences)["verb-subject"].max() > 0.9
    near(scored(layer.flip(0), sentences[::-1]), 0.9)


# ---- the toy model; its forward pass stands in test_oracles.py


@pytest.mark.parametrize(
    "make_attention", [make_single_head, MultiHeadAttention, CausalSelfAttention]
)
def test_padding_changes_nothing_for_any_attention(make_attention):
    """A sentence alone and in a padded batch: the same logits and weights, to rounding."""
    torch.manual_seed(0)
    heads = 1 if make_attention is make_single_head else 4
    model = ToyTransformer(num_heads=heads, make_attention=make_attention).double().eval()
    short, long = encode(TOY_WORDS), encode(words_of(LONG))
    tokens, lengths = toy_language.pad_batch([short, long])
    logits, layers = model(tokens, mask=padding_mask(lengths, tokens.size(1)))
    alone, alone_layers = model(torch.tensor([short]))
    near(logits[0, : len(short)], alone[0])
    near(weights_on_sentence(model, TOY_WORDS), torch.cat(alone_layers))
    for padded, single in zip(layers, alone_layers, strict=True):
        assert padded.shape == (2, heads, len(long), len(long))
        near(padded[0, :, : len(short), : len(short)], single[0])
