"""Masks mixed up, leaks against planted ones, NaN where it is expected, losses against loops."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.models import MULTI_HEAD_RECIPE as MASKED_WORD_RECIPE
from phase2_multi_head.models import WITH_MASK_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.masking import (
    breaking_causality,
    causality,
    conventions,
    encoder_decoder,
    mask_patterns,
    next_word_roles,
)
from phase4_causal.models import CAUSAL_RECIPE, largest_leak, patterns_of, with_attention
from shared.attention_utils import causal_mask, document_mask
from shared.grammar.best_reader import next_word_floor
from shared.grammar.roles import MARGIN, NO_NAME, TIMES_THE_OTHERS
from shared.grammar.scores import with_relations
from shared.tests.helpers import near
from shared.toy_language import END_ID, START_ID, TOY_SENTENCE, VOCABULARY, Sentence, decode, encode
from shared.toy_model import ToyTransformer, recorded_outputs, weights_on_sentence
from shared.training.objectives import corpus, word_by_word_loss
from shared.training.recipes import train, untrained_model

_, HELD_OUT = corpus()
TOKENS = torch.tensor([[START_ID, *encode(["the", "cat", "sat", "on"])]])
RIGHT = {  # written, read
    ("True = may attend", "True = may attend"),
    ("True = may attend", "fill where mask == 0"),
    ("0 or -inf", "scores + mask"),
    ("0 or -inf", "True = hidden"),
    ("1 or 0", "True = may attend"),
    ("1 or 0", "fill where mask == 0"),
    ("True = hidden", "True = hidden"),
}

# ---- conventions, NaN


def test_a_score_of_0_beside_negative_ones_hides_nothing():
    weights = torch.tensor([-2.0, 0.0, -3.0]).softmax(dim=0)
    assert weights[1].item() == pytest.approx(0.844, abs=1e-3)


@pytest.mark.parametrize("written", conventions.WRITTEN)
@pytest.mark.parametrize("read", conventions.READ)
def test_a_mask_that_is_read_in_another_convention_leaks(written, read):
    # C092: ones are added. C093: what is added is filled.
    scores, allowed = conventions.random_scores(), causal_mask(conventions.LENGTH)
    weights = conventions.READ[read](scores, conventions.WRITTEN[written](allowed))
    mass = conventions.future_mass(weights)
    if (written, read) in RIGHT:
        near(weights, masked_softmax(scores, allowed))
        assert mass == 0
    elif (written, read) == ("0 or -inf", "scores * mask"):
        assert math.isnan(mass)
    else:
        assert mass > 0


def gradients_with_nan(softmax):
    """One row sees nothing, and it is not in the loss."""
    inputs = torch.randn(3, 3, 4).requires_grad_()
    query, key, value = inputs
    mask = causal_mask(3) & torch.tensor([False, True, True])
    output = softmax(query @ key.T / 2, mask) @ value
    output[1:].sum().backward()
    return int(inputs.grad.isnan().any(dim=(1, 2)).sum())


def test_nan_comes_from_rows_without_a_key_and_not_with_ours():
    assert conventions.blind_rows(conventions.plain_softmax) == 2  # two words of padding; C123
    assert conventions.blind_rows(masked_softmax) == 0
    assert gradients_with_nan(conventions.plain_softmax) >= 1
    assert gradients_with_nan(masked_softmax) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_only_float16_is_too_small_for_products_that_are_not_divided_before(dtype):
    query, key = torch.full((2, 3, 64), 40.0, dtype=dtype)  # C120, C122
    for scores in (query @ key.T, query @ key.T / 8):
        assert scores.softmax(dim=-1).isnan().any() == (dtype == torch.float16)
    assert not (query / 8 @ key.T).softmax(dim=-1).isnan().any()


def test_softmax_along_the_wrong_axis_makes_no_nan_but_rows_that_do_not_sum_to_1():
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))  # C121
    sums = scores.masked_fill(~causal_mask(6), -math.inf).softmax(dim=-2).sum(dim=-1)
    assert sums.min() < 0.5 and sums.max() > 1.5


# ---- leaks


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("name", causality.CAUSAL | causality.PLANTED)
def test_causal_modules_do_not_leak_and_planted_mistakes_do(name, num_layers):
    model = causality.build((causality.CAUSAL | causality.PLANTED)[name], num_layers, seed=3)
    leak, influence = largest_leak(model, TOKENS), causality.influence(model, TOKENS)
    if name in causality.CAUSAL:
        assert leak == 0 and torch.equal(influence > 0, causal_mask(5))
    else:
        assert leak > 1e-6 and influence.triu(1).max() > 1e-6


def core(query, key, value):
    return scaled_dot_product_attention(query, key, value, causal_mask(len(query)))[0]


def recurrent(query, key, value):
    return linear_attention_recurrent(query, key, value)[0]


FUNCTIONS = {  # query, key, value (T, d) -> output (T, d)
    "core": core,
    "flash": partial(flash_attention, causal=True, block_size=32),
    "local": partial(local_attention, causal=True, window=70),
    "linear": partial(linear_attention, causal=True),
    "recurrent": recurrent,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_causal_functions_do_not_move_by_a_bit(name, dtype):
    """Whatever numbers come in place of all after i; and no later number has a gradient."""
    draw = torch.Generator().manual_seed(0)
    given, others = torch.randn(2, 3, 150, 8, dtype=torch.float64, generator=draw).to(dtype)
    given.requires_grad_()
    output = FUNCTIONS[name](*given)
    for i in (0, 31, 32, 63, 64, 120):
        later = torch.arange(150)[:, None] > i
        for size in (1.0, 1e6, 1e30):
            after = FUNCTIONS[name](*torch.where(later, size * others, given))
            assert torch.equal(after[: i + 1], output[: i + 1])
        upstream = others[0, : i + 1]
        (slopes,) = torch.autograd.grad(output[: i + 1], given, upstream, retain_graph=True)
        assert slopes[:, i + 1 :].eq(0).all(), "a later number has a gradient"
        assert slopes[2, : i + 1].ne(0).any()


@pytest.mark.parametrize("word", ["the", "mat"])  # "mat" is what others are replaced by
def test_equal_later_words_cannot_be_shuffled_but_they_can_be_replaced(word):
    tokens = torch.tensor([[START_ID, *encode([word, word])]])
    assert largest_leak(causality.build(MultiHeadAttention, 1, seed=3), tokens) > 0.01


@torch.no_grad()
@pytest.mark.parametrize(("num_layers", "same"), [(1, True), (2, False)])
def test_the_last_word_needs_no_mask_in_the_first_layer(num_layers, same):
    """C100: a text that is read anew for each word needs the mask from the second layer on."""
    torch.manual_seed(0)
    masked = ToyTransformer(33, 3, num_layers, make_attention=CausalSelfAttention).double().eval()
    torch.nn.init.normal_(masked.embedding.weight)  # they outweigh the positions
    seeing = ToyTransformer(33, 3, num_layers, make_attention=MultiHeadAttention).double().eval()
    seeing.load_state_dict(masked.state_dict())
    tokens = torch.tensor([[START_ID, *encode(TOY_SENTENCE.split())]])
    (one, layers), (other, layers_seeing) = masked(tokens), seeing(tokens)
    assert torch.allclose(one[0, -1], other[0, -1], rtol=0, atol=1e-12) == same
    first, first_seeing = layers[0][0], layers_seeing[0][0]  # weights of the first layer, (H, T, T)
    near(first[:, -1], first_seeing[:, -1])
    assert (first[:, 0] - first_seeing[:, 0]).abs().max() > 0.3, "row 0 sees itself alone"


# ---- trained without the mask


@torch.no_grad()
def test_word_by_word_loss_of_a_causal_model_is_its_full_loss_and_a_loop_agrees():
    model = train(replace(WITH_MASK_RECIPE, steps=3), MultiHeadAttention).model
    terms = []
    for sentence in HELD_OUT[:5]:
        tokens = [START_ID, *encode(sentence.words), END_ID]
        for i in range(1, len(tokens)):
            logits, _ = model(torch.tensor([tokens[:i]]))
            terms.append(F.cross_entropy(logits[0, -1], torch.tensor(tokens[i])).item())
    expected = pytest.approx(sum(terms) / len(terms), abs=1e-5)
    assert breaking_causality.full_loss(model, HELD_OUT[:5], "with the mask") == expected
    assert word_by_word_loss(model, HELD_OUT[:5]) == expected


def test_the_grammar_loses_what_is_worked_out_by_hand():
    # 12 verbs; no adverb 0.8 three times; no attractor 0.7. A noun phrase without adjective: number
    # 0.5, one of 5 determiners, no adjective 0.5, one of 3 nouns. Six words and <end> are
    # predicted.
    phrase = 0.5 / 5 * 0.5 / 3
    expected = -math.log(0.8**3 * 0.7 / 12 * phrase**2) / 7
    sentence = Sentence(tuple(TOY_SENTENCE.split()), {})
    assert next_word_floor([sentence]) == pytest.approx(expected)


def test_a_bigram_model_loses_what_a_loop_counts():
    texts = ("the cat", "the mat sat", "the cat")
    sentences = [Sentence(tuple(text.split()), {}) for text in texts]
    more = 0.01 * (len(VOCABULARY) - 1)  # padding follows no word
    # After <start>, "the" and "cat" of the first sentence: how often its next word, of how many.
    chances = [3.01 / (3 + more), 2.01 / (3 + more), 2.01 / (2 + more)]
    expected = -sum(map(math.log, chances)) / 3
    found = breaking_causality.bigram_loss(sentences, sentences[:1])
    assert found == pytest.approx(expected, rel=1e-4)


# ---- patterns


def test_cut_is_what_the_first_layer_computes_under_the_mask_and_not_the_second():
    """Rows are scaled back, and deeper layers read what the mask changed."""
    trained = untrained_model(replace(MASKED_WORD_RECIPE, num_layers=2), MultiHeadAttention)
    layers, mask = mask_patterns.cut(*patterns_of(trained, HELD_OUT[:5]))
    masked = replace(trained, model=with_attention(trained, CausalSelfAttention))
    computed, _ = patterns_of(masked, HELD_OUT[:5])
    rows = mask.any(dim=-1, keepdim=True)
    apart = [((a - b) * rows).abs().max() for a, b in zip(layers, computed, strict=True)]
    assert apart[0] < 1e-6 and apart[1] > 1e-4  # C097


def test_a_causal_model_never_reads_the_end_and_its_patterns_start_with_one_more_token():
    sentences = HELD_OUT[:7]
    trained = untrained_model(CAUSAL_RECIPE, CausalSelfAttention)
    (weights, _), mask = patterns_of(trained, sentences)
    real = mask.diagonal(dim1=-2, dim2=-1).sum(dim=-1).flatten()
    assert real.tolist() == [len(sentence.words) + 1 for sentence in sentences]
    assert not weights.triu(1).any() and torch.equal(mask, mask.tril())
    alone = weights_on_sentence(trained.model, ["<start>", *sentences[0].words])[0]
    near(weights[0, :, : len(alone[0]), : len(alone[0])], alone)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            "the small cat often sat on the soft mat",
            {
                "noun → determiner": [["small", "the"], ["soft", "the"]],
                "verb → subject": [["often", "cat"]],
                "place → verb": [["soft", "sat"]],
            },
        ),
        (  # the word before the noun is its determiner, that before the verb its subject
            TOY_SENTENCE,
            {"noun → determiner": [], "verb → subject": [], "place → verb": [["the", "sat"]]},
        ),
    ],
)
def test_a_relation_is_asked_one_word_before_where_that_is_another_word(sentence, expected):
    words = ["<start>", *sentence.split()]
    gold = next_word_roles.gold_one_before([with_relations(words[1:])], len(words))
    for name, matrix in gold.items():
        pairs = matrix[0].nonzero().tolist()
        assert [[words[i], words[j]] for i, j in pairs] == expected[name]


def shares_by_loops(model, head, relation, first_asks):
    """Of one head: share right, share of others that look there, and the best fixed offset's."""
    right, others, offsets = [], [], []
    for sentence in HELD_OUT[:11]:
        ((one, other),) = sentence.relations[relation]
        # <start> is number 0, and the word before is asked, so the places move by 0 and by 1.
        asked, key = (one, other + 1) if first_asks else (other, one + 1)
        if asked != key:
            weights = weights_on_sentence(model, ["<start>", *sentence.words])[head]
            looks_at = [int(weights[i, :i].argmax()) for i in range(1, len(weights))]
            right.append(looks_at[asked - 1] == key)
            offsets.append(key - asked)
            for i in range(key + 1, len(weights)):
                if i != asked:
                    others.append(looks_at[i - 1] == key)
    most_common = max(offsets.count(offset) for offset in offsets)
    return sum(right) / len(right), sum(others) / len(others), most_common / len(offsets)


@pytest.mark.parametrize(
    ("name", "relation", "first_asks"),
    [("verb → subject", "verb-subject", True), ("place → verb", "verb-place", False)],
)
def test_how_often_heads_follow_a_relation_is_what_a_loop_counts(name, relation, first_asks):
    recipes = [replace(CAUSAL_RECIPE, seed=seed) for seed in (5, 2, 3)]
    trained, *blanks = [untrained_model(recipe, CausalSelfAttention) for recipe in recipes]
    followed = next_word_roles.followed(trained, blanks, HELD_OUT[:11])[name]
    heads = list(itertools.product(range(2), range(4)))
    by_chance = 0
    for blank, head in itertools.product(blanks, heads):
        by_chance = max(by_chance, shares_by_loops(blank.model, head, relation, first_asks)[0])
    for head in heads:
        right, others, offset = shares_by_loops(trained.model, head, relation, first_asks)
        near(followed.right[head], right)
        near(
            followed.needed[head],
            max(by_chance + MARGIN, offset + MARGIN, TIMES_THE_OTHERS * others),
        )


DETERMINER, SUBJECT, _ = next_word_roles.PAST_RELATIONS


@pytest.mark.parametrize(
    ("naming", "scoring", "expected"),  # margins of the first two relations
    [
        ((0.1, 0.2), (0.3, 0.1), SUBJECT),
        ((0.2, 0.1), (0.1, 0.3), DETERMINER),
        ((0.1, 0.2), (0.3, -0.1), DETERMINER),  # the clearest fails on the other half
        ((-0.1, 0.2), (0.3, -0.1), NO_NAME),
    ],
)
def test_a_head_has_the_relation_that_it_passes_on_both_halves(naming, scoring, expected):
    halves = []
    for margins in (naming, scoring):
        needed, half = torch.full((1, 1), 0.5), {}
        for name, margin in zip((DETERMINER, SUBJECT), margins, strict=True):
            half[name] = next_word_roles.Followed(needed + margin, needed)
        halves.append(half)
    assert next_word_roles.relation_of(next_word_roles.OnBothHalves(*halves), 0, 0) == expected


def test_texts_packed_into_one_row_are_the_texts_alone():
    attention = CausalSelfAttention(33, 3).double()
    texts = torch.randn(1, 12, 33, dtype=torch.float64)
    packed, _ = attention(texts, mask=document_mask(torch.tensor([0] * 5 + [1] * 7)))
    first, _ = attention(texts[:, :5])
    second, _ = attention(texts[:, 5:])
    near(packed, torch.cat([first, second], dim=1))


class Counter(ToyTransformer):
    """Predicts the word after the last one in the vocabulary."""

    def forward(self, tokens, mask=None):
        return F.one_hot((tokens + 1) % len(VOCABULARY), len(VOCABULARY)).float(), []


def test_generation_follows_the_logits_stops_at_end_and_at_the_limit():
    model = Counter(make_attention=MultiHeadAttention)
    assert generate(model, [VOCABULARY[-3]], limit=2) == list(VOCABULARY[-3:-1])
    assert generate(model, [VOCABULARY[-3]], limit=20)[:3] == list(VOCABULARY[-3:])
    before_end = [VOCABULARY[END_ID - 1]]
    assert generate(model, before_end) == before_end


# ---- encoder and decoder


def test_a_decoder_reads_all_of_the_source_and_nothing_later_of_what_is_written():
    torch.manual_seed(3)
    model = encoder_decoder.EncoderDecoder(44, 1, 3, make_attention=MultiHeadAttention).double()
    source, target = encoder_decoder.tasks([*HELD_OUT[:4], with_relations(TOY_SENTENCE.split())])
    assert " ".join(decode(target[-1, 1:7])) == "on the mat sat the cat"
    written, _ = encoder_decoder.rewrite(model, source)
    with recorded_outputs(model.embedding) as embeddings:
        logits, _ = model(source, written[:, :-1])
    assert torch.equal(logits.argmax(dim=-1), written[:, 1:])
    logits[:, 3].sum().backward(inputs=embeddings)
    of_source, of_written = (embedding.grad.abs().amax(dim=-1) > 0 for embedding in embeddings)
    assert torch.equal(of_source, source != 0)
    assert of_written[:, :4].all() and not of_written[:, 4:].any()
    padded, _ = model(F.pad(source, (0, 3)), written[:, :4])
    near(padded, logits[:, :4])
