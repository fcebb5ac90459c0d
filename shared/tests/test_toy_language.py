"""The toy language and the toy model: gold relations, tokenizer, files, positions, padding, float64."""

import itertools
import math

import pytest
import torch

from phase1_single_head import models
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from shared import paths, toy_language, training
from shared.attention_utils import padding_mask
from shared.tests.helpers import near
from shared.toy_language import RELATIONS, TOY_SENTENCE, VOCABULARY, encode, tokenize
from shared.toy_model import ToyTransformer, in_double, sinusoidal_positions, watch_embedding, weights_of


def test_every_gold_relation_joins_words_of_the_right_kind():
    nouns = {form for c in (toy_language.SUBJECTS, toy_language.PLACES) for ps in c.values() for p in ps for form in p}
    singular = {p[0] for c in (toy_language.SUBJECTS, toy_language.PLACES) for ps in c.values() for p in ps}
    distances = {name: set() for name in RELATIONS}
    for sentence in training.corpus()[1]:
        words = sentence.words
        for name, pairs in sentence.relations.items():
            distances[name] |= {target - source for source, target in pairs}
        for determiner, noun in sentence.relations["determiner-noun"]:
            assert words[noun] in nouns
            allowed = toy_language.SINGULAR_DETERMINERS if words[noun] in singular else toy_language.PLURAL_DETERMINERS
            assert words[determiner] in (*allowed, "the")
        for adjective, noun in sentence.relations["adjective-noun"]:
            assert words[adjective] in toy_language.ADJECTIVES and words[noun] in nouns
        ((verb, subject),) = sentence.relations["verb-subject"]
        ((same_verb, place),) = sentence.relations["verb-place"]
        subject_class, preposition, place_class = toy_language.VERBS[words[verb]]
        assert verb == same_verb and subject < verb < place and preposition in words[verb:place]
        assert words[subject] in itertools.chain(*toy_language.SUBJECTS[subject_class])
        assert words[place] in itertools.chain(*toy_language.PLACES[place_class])
    assert all(len(distances[name]) >= 3 for name in RELATIONS[:3]), "a fixed offset would be a good guess"


def test_the_sets_are_disjoint_and_the_toy_sentence_is_never_trained_on():
    train, held_out = ({sentence.words for sentence in part} for part in training.corpus())
    assert len(train) == training.NUM_TRAIN and len(held_out) == training.NUM_HELD_OUT
    assert not train & held_out
    assert tuple(TOY_SENTENCE.split()) not in train | held_out
    assert 90 <= len(VOCABULARY) <= 110 and len(set(VOCABULARY)) == len(VOCABULARY)
    assert toy_language.sample_corpus(10, 5, seed=1) == toy_language.sample_corpus(10, 5, seed=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the sentence is empty"),
        ("  . ", "the sentence is empty"),
        ("the cta sat", '"cta" is not among the .* nearest known words: .*cat'),
        ("the zzzzqx sat", '"zzzzqx" is not among'),
        ("the <pad> sat", '"<pad>" is not among'),
        ("the " * 33, "33 words: the limit is 32"),
    ],
)
def test_tokenizer_says_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message):
        tokenize(text)


def test_tokenizer_reads_what_it_should():
    assert tokenize("The cat, sat on the MAT.") == TOY_SENTENCE.split()
    assert toy_language.decode(encode(TOY_SENTENCE.split())) == TOY_SENTENCE.split()
    assert len(tokenize("the " * 32)) == 32


def test_sentence_files(tmp_path):
    assert toy_language.read_sentences(str(paths.TOY_SEQUENCES))[0] == TOY_SENTENCE
    file = tmp_path / "sentences.txt"
    file.write_text("# comment\n\nthe cat sat\nthe dgo sat\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 4: \"dgo\" is not among .*dog"):
        toy_language.read_sentences(str(file))
    file.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no sentence"):
        toy_language.read_sentences(str(file))


def test_positions_follow_the_published_formula():
    for d_model in (6, 7, 64):
        encoding = sinusoidal_positions(11, d_model)
        for position, column in itertools.product(range(11), range(d_model)):
            angle = position / 10000 ** (2 * (column // 2) / d_model)
            expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            assert encoding[position, column].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "make_attention",
    [models.make_single_head, MultiHeadAttention, CausalSelfAttention],
    ids=lambda f: f.__name__,
)
def test_padding_changes_nothing_for_any_attention(make_attention):
    """A sentence alone and in a padded batch: the same logits and weights, to rounding."""
    torch.manual_seed(0)
    heads = 1 if make_attention is models.make_single_head else 4
    model = ToyTransformer(num_heads=heads, make_attention=make_attention).double().eval()
    short, long = (encode(text.split()) for text in (TOY_SENTENCE, "those dogs beside the dark barn slept in a bed"))
    tokens, lengths = toy_language.pad_batch([short, long])
    logits, layers = model(tokens, mask=padding_mask(lengths, tokens.size(1)))
    alone, alone_layers = model(torch.tensor([short]))
    near(logits[0, : len(short)], alone[0])
    for padded, single in zip(layers, alone_layers, strict=True):
        assert padded.shape == (2, heads, len(long), len(long))
        near(padded[0, :, : len(short), : len(short)], single[0])


def test_model_of_another_size_and_its_limit():
    model = ToyTransformer(128, 8, 3, make_attention=MultiHeadAttention)
    logits, layers = model(torch.zeros(1, 32, dtype=torch.long))
    assert logits.shape == (1, 32, len(VOCABULARY)) and [w.shape for w in layers] == [(1, 8, 32, 32)] * 3
    with pytest.raises(ValueError, match="at most 34 tokens: got 35"):
        model(torch.zeros(1, 35, dtype=torch.long))


def test_a_model_is_asked_in_float64_without_being_changed():
    torch.manual_seed(0)
    model = ToyTransformer(15, 3, 2, make_attention=MultiHeadAttention)
    words, tokens = TOY_SENTENCE.split(), torch.tensor([encode(TOY_SENTENCE.split())])
    weights = weights_of(model, words)
    for layer, expected in enumerate(model(tokens)[1]):
        near(weights[layer], expected[0])
    double = in_double(model)
    assert not double.training and model.training and model.output_bias.dtype == torch.float32
    near(weights_of(double, words), weights.double(), share=1e-5)
    assert weights_of(double, words).dtype == torch.float64


def test_the_embedding_is_watched_only_inside_the_block():
    model = ToyTransformer(15, 3, 1, make_attention=MultiHeadAttention)
    tokens = torch.tensor([[5, 7, 11]])
    with pytest.raises(RuntimeError, match="inside"), watch_embedding(model) as seen:
        model(tokens)[0].sum().backward()
        assert torch.equal(seen[0], model.embedding(tokens))  # the second pass is seen, too
        raise RuntimeError("inside")
    model(tokens)
    assert len(seen) == 2 and not model.embedding._forward_hooks
