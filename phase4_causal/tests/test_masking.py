"""Masks mixed up, leaks against planted ones, NaN where it is expected, losses and spreads against
plain loops.
"""

import itertools
import math
from dataclasses import replace
from functools import partial

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.models import MULTI_HEAD_RECIPE as MASKED_WORD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal import visualize
from phase4_causal.causal_attention import CausalSelfAttention, generate
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.masking import (
    breaking_causality,
    causality,
    conventions,
    heads_under_a_mask,
    mask_patterns,
    nan_causes,
    next_word_roles,
)
from phase4_causal.masking.breaking_causality import full_loss, train
from phase4_causal.models import RECIPE as CAUSAL_RECIPE
from phase4_causal.models import largest_leak, patterns_of, with_attention
from shared import toy_language, training
from shared.attention_utils import causal_mask, document_mask, padding_mask
from shared.grammar.best_reader import next_word_floor
from shared.grammar.roles import MARGIN, NO_NAME, TWICE
from shared.grammar.scores import with_relations
from shared.head_statistics import even_weights, layer_statistics
from shared.tests.helpers import near, qkv
from shared.toy_language import END_ID, START_ID, TOY_SENTENCE, VOCABULARY, Sentence, encode
from shared.toy_model import ToyTransformer, weights_of

LEAK_TOKENS = torch.tensor([[START_ID, *encode(["the", "cat", "sat", "on"])]])
RIGHT = {
    ("True = may attend", "True = may attend"),
    ("True = may attend", "fill where mask == 0"),
    ("0 or -inf", "scores + mask"),
    ("0 or -inf", "True = hidden"),
    ("1 or 0", "True = may attend"),
    ("1 or 0", "fill where mask == 0"),
    ("True = hidden", "True = hidden"),
}  # written, read

# ---- conventions, NaN


def test_a_mask_that_is_read_in_another_convention_leaks():
    # C092: ones are added. C093: what is added is filled. C112: 0 hides in one, shows in another.
    scores, allowed = conventions.random_scores(), causal_mask(conventions.LENGTH)
    for pair in itertools.product(conventions.WRITTEN, conventions.READ):
        weights = conventions.READ[pair[1]](scores, conventions.WRITTEN[pair[0]](allowed))
        assert torch.allclose(weights, masked_softmax(scores, allowed), rtol=0, atol=1e-12) == (
            pair in RIGHT
        )
        mass = conventions.future_mass(weights)
        assert (
            math.isnan(mass)
            if pair == ("0 or -inf", "scores * mask")
            else (mass == 0) == (pair in RIGHT)
        )
    assert conventions.future_mass(torch.ones(2, 2) / 2) == 0.5 / 2  # mean of two rows


def test_nan_comes_from_rows_without_a_key_and_from_float16_and_not_with_ours():
    expected = {
        "rows, padding on the left": [2] * 4,  # two words of padding; C114, C123
        "rows, large inputs, not scaled": [0, 0, 0, 3],  # float16 alone; C120, C122
        "rows, large inputs, scores scaled": [0, 0, 0, 3],
        "-1e9, one key hidden": [0, 0, 0, nan_causes.REFUSED],  # C005
        "-1e9, all hidden": [pytest.approx(1 / 3, abs=1e-3)] * 3 + [nan_causes.REFUSED],
    }
    found = nan_causes.main.measure(None)
    for cause in dict.fromkeys(name.rpartition(", ")[0] for name in found):
        counts = [found[f"{cause}, {dtype}"] for dtype in nan_causes.DTYPES]
        if cause == "gradients with NaN, plain softmax":
            assert min(counts) >= 1
        else:
            assert counts == expected.get(cause, [0] * 4), cause  # why: float16 has three digits
    sums = nan_causes.wrong_axis(torch.float64)
    assert sums.min() < 0.5 and sums.max() > 1.5  # no NaN, but rows that do not sum to 1; C121


def test_a_padding_mask_of_two_axes_is_read_as_one_of_queries_if_sequences_are_as_many_as_words():
    query, key, value = qkv(leading=(7, 3), t_q=7, t_k=7)
    lengths = torch.arange(1, 8)
    by_sequence = padding_mask(lengths, 7)  # (B, 1, 1, T_k)
    two_axes = by_sequence[:, 0, 0]  # (B, 1, 1, T_k) -> (B, T_k)
    output, weights = scaled_dot_product_attention(query, key, value, two_axes)
    assert not weights[:, :, 0, 1:].any() and weights[0, :, 6].all(), (
        "query 0 has the mask of sequence 0"
    )
    right, weights = scaled_dot_product_attention(query, key, value, by_sequence)
    assert not weights[0, :, :, 1:].any() and (output - right).abs().max() > 0.1


# ---- leaks


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("name", causality.CAUSAL | causality.PLANTED)
def test_causal_modules_do_not_leak_and_planted_mistakes_do(name, num_layers):
    model = causality.build((causality.CAUSAL | causality.PLANTED)[name], num_layers, seed=3)
    leak, influence = largest_leak(model, LEAK_TOKENS), causality.influence(model, LEAK_TOKENS)
    if name in causality.CAUSAL:
        assert leak == 0 and torch.equal(influence > 0, causal_mask(5))  # C099
    else:
        assert leak > 1e-6 and influence.triu(1).max() > 1e-6


FUNCTIONS = {  # name -> query, key, value (T, d) -> output (T, d)
    "scaled_dot_product_attention": lambda q, k, v: scaled_dot_product_attention(
        q, k, v, causal_mask(len(q))
    )[0],
    "flash_attention": partial(flash_attention, causal=True, block_size=32),
    "local_attention": partial(local_attention, causal=True, window=70),
    "linear_attention": partial(linear_attention, causal=True),
    "linear_attention_recurrent": lambda q, k, v: linear_attention_recurrent(q, k, v)[0],
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_causal_functions_do_not_move_by_a_bit(name, dtype):
    """Whatever numbers come in place of all after i; and no later number has a gradient."""
    draw = torch.Generator().manual_seed(0)
    given, others, (upstream, *_) = torch.randn(
        3, 3, 150, 8, dtype=torch.float64, generator=draw
    ).to(dtype)
    inputs = [x.clone().requires_grad_() for x in given]  # query, key, value
    output = FUNCTIONS[name](*inputs)
    for i in (0, 31, 32, 63, 64, 120):
        later = torch.arange(150)[:, None] > i
        for size in (1.0, 1e6, 1e30):
            after = FUNCTIONS[name](*torch.where(later, size * others, given))
            assert torch.equal(after[: i + 1], output[: i + 1])
        slopes = torch.autograd.grad(output[: i + 1], inputs, upstream[: i + 1], retain_graph=True)
        assert all(slope[i + 1 :].eq(0).all() for slope in slopes), "a later number has a gradient"
        assert slopes[2][: i + 1].ne(0).any()


def test_equal_later_words_cannot_be_shuffled_but_they_can_be_replaced():  # C105
    for word in (
        "the",
        "mat",
    ):  # the same in the other order; and "mat" is what the others are replaced by
        tokens = torch.tensor([[START_ID, *encode([word, word])]])
        assert (
            largest_leak(causality.build(causality.PLANTED["mistake: no mask"], 1, seed=3), tokens)
            > 0.01
        )


# ---- trained without the mask


def test_word_by_word_loss_of_a_causal_model_is_its_full_loss_and_a_loop_agrees():
    model, _ = train("with the mask", 1, training.corpus()[0][:64], 3, seed=5)
    sentences, terms = training.corpus()[1][:5], []
    with torch.no_grad():
        for sentence in sentences:
            tokens = [START_ID, *encode(sentence.words), END_ID]
            for i in range(1, len(tokens)):
                logits, _ = model(torch.tensor([tokens[:i]]))
                terms.append(-logits[0, -1].log_softmax(dim=-1)[tokens[i]].item())
    expected = pytest.approx(sum(terms) / len(terms), abs=1e-5)
    assert (
        full_loss(model, sentences, "with the mask")
        == expected
        == training.word_by_word_loss(model, sentences)
    )


def test_the_grammar_loses_what_is_worked_out_by_hand():
    # 12 verbs; no adverb 0.8 three times; no attractor 0.7. A noun phrase without adjective: number
    # 0.5, one of 5 determiners, no adjective 0.5, one of 3 nouns. Six words and <end> are
    # predicted.
    phrase = 0.5 / 5 * 0.5 / 3
    expected = -math.log(0.8**3 * 0.7 / 12 * phrase**2) / 7
    sentence = Sentence(tuple(TOY_SENTENCE.split()), {})
    assert next_word_floor([sentence]) == pytest.approx(expected)


def test_a_bigram_model_loses_what_a_loop_counts():
    sentences = [
        Sentence(words, {}) for words in (("the", "cat"), ("the", "mat", "sat"), ("the", "cat"))
    ]
    uniform = 0.01 * (len(VOCABULARY) - 1)  # padding follows no word
    after = {
        ("the", "cat"): (2, 3),
        ("cat", "<end>"): (2, 2),
        ("<start>", "the"): (3, 3),
    }  # count, all of that word
    expected = (
        -sum(math.log((count + 0.01) / (every + uniform)) for count, every in after.values()) / 3
    )
    assert breaking_causality.bigram_loss(sentences, sentences[:1]) == pytest.approx(
        expected, rel=1e-4
    )


# ---- patterns


@pytest.mark.parametrize("causal", [False, True])
def test_statistics_by_layer_and_head_are_those_of_plain_loops_and_one_for_even_weights(causal):
    real = torch.arange(7) < torch.tensor([7, 5])[:, None]
    mask = (real[:, None, :] & real[:, :, None])[:, None]  # (N, T, T) -> (N, 1, T, T)
    mask = mask.tril() if causal else mask
    scores = torch.randn(
        2, 2, 3, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    layers = [masked_softmax(of_layer, mask) for of_layer in scores]
    found = layer_statistics(layers, mask)
    for layer, head in itertools.product(range(2), range(3)):
        rows = {name: [] for name in found}
        for n, length in enumerate((7, 5)):
            for i in range(length):
                seen = range(i + 1 if causal else length)
                w = [layers[layer][n, head, i, j].item() for j in seen]
                entropy = -sum(x * math.log(x) for x in w)
                distance = sum(x * abs(i - j) for x, j in zip(w, seen, strict=True))
                rows["entropy"].append(entropy)
                rows["distance"].append(distance)
                if len(seen) > 1:
                    rows["normalised entropy"].append(entropy / math.log(len(seen)))
                    rows["normalised distance"].append(
                        distance * len(seen) / sum(abs(i - j) for j in seen)
                    )
        for name, values in rows.items():
            near(
                found[name][layer, head], sum(values) / len(values), 1e-5
            )  # why: 1/n of even weights is float32
    of_even = layer_statistics([even_weights(mask)], mask)
    near(
        of_even["normalised entropy"], torch.ones(1, 1, dtype=torch.float64), 1e-5
    )  # why: float32, as above
    near(of_even["normalised distance"], torch.ones(1, 1, dtype=torch.float64), 1e-5)


def test_distance_by_layer_by_hand():
    """Three words under the causal mask: the first layer is even, in the second each word looks at
    the one before.
    """
    mask = causal_mask(3)[None, None]
    previous = torch.tensor([[1, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)[None, None]
    heads = layer_statistics([even_weights(mask).double(), previous], mask)
    near(
        heads["distance"],
        torch.tensor([[(0 + 1 / 2 + 1) / 3], [(0 + 1 + 1) / 3]], dtype=torch.float64),
        1e-5,
    )
    near(
        heads["normalised distance"], torch.tensor([[1], [(2 + 1) / 2]], dtype=torch.float64), 1e-5
    )  # rows 1 and 2
    spread = heads_under_a_mask.Spread(heads, {})
    numbers = heads_under_a_mask.by_layer("it", spread) | heads_under_a_mask.by_head("it", spread)
    assert (
        numbers["it, first layer, distance"]
        == numbers["it, layer 0 head 0, distance"]
        == pytest.approx(1 / 2)
    )
    assert (
        numbers["it, last layer, distance"]
        == numbers["it, layer 1 head 0, distance"]
        == pytest.approx(2 / 3)
    )
    assert (
        numbers["it, first layer, most focused"] == pytest.approx(1)
        and numbers["it, last layer, least focused"] == 0
    )


def test_cut_is_what_the_first_layer_computes_under_the_mask_and_not_the_second():
    """Zeros above the diagonal are not enough, rows are scaled back; and deeper layers read what
    the mask changed.
    """
    trained = training.untrained(replace(MASKED_WORD_RECIPE, num_layers=2), MultiHeadAttention)
    sentences = training.corpus()[1][:5]
    layers, mask = mask_patterns.cut(*patterns_of(trained, sentences))
    masked = replace(trained, model=with_attention(trained, CausalSelfAttention))
    computed, rows = patterns_of(masked, sentences)[0], mask.any(dim=-1, keepdim=True)
    first, second = (
        (a - b).masked_fill(~rows, 0).abs().max() for a, b in zip(layers, computed, strict=True)
    )
    assert first < 1e-6 and second > 1e-4  # C097


def test_a_causal_model_never_reads_the_end_and_its_patterns_start_with_one_more_token():
    sentences = training.corpus()[1][:7]
    trained = training.untrained(CAUSAL_RECIPE, CausalSelfAttention)
    (weights, _), mask = patterns_of(trained, sentences)
    real = mask.diagonal(dim1=-2, dim2=-1).sum(dim=-1).flatten()
    assert real.tolist() == [len(sentence.words) + 1 for sentence in sentences]
    assert not weights.triu(1).any() and torch.equal(mask, mask.tril())  # C096
    alone = weights_of(trained.model, ["<start>", *sentences[0].words])[0]
    near(weights[0, :, : len(alone[0]), : len(alone[0])], alone)


def test_a_relation_is_asked_one_word_before_where_that_is_another_word():
    words = ["the", "small", "cat", "often", "sat", "on", "the", "soft", "mat"]
    gold = next_word_roles.gold_of_past([with_relations(words)], len(words) + 1)
    pairs = {}
    for name, matrix in gold.items():
        before = next_word_roles.asked_one_before(matrix)
        pairs[name] = [
            [(i - 1, j - 1) for _, i, j in way.nonzero().tolist()] for way in (matrix, before)
        ]  # by word
    assert pairs == {
        "noun → determiner": [
            [(2, 0), (8, 6)],
            [(1, 0), (7, 6)],
        ],  # "small" asks for "cat", "soft" for "mat"
        "verb → subject": [[(4, 2)], [(3, 2)]],  # "often" for "sat"
        "place → verb": [[(8, 4)], [(7, 4)]],  # "soft" for "mat"
    }
    together = next_word_roles.gold_of_past([with_relations(TOY_SENTENCE.split())], 7)
    asked = {
        name: int(next_word_roles.asked_one_before(matrix).sum())
        for name, matrix in together.items()
    }
    assert asked == {"noun → determiner": 0, "verb → subject": 0, "place → verb": 1}, (
        "the word before is the word"
    )


# relation of the grammar, and whether the first word of its pairs is the one that asks
ASKED = {
    "noun → determiner": ("determiner-noun", False),
    "verb → subject": ("verb-subject", True),
    "place → verb": ("verb-place", False),
}


@pytest.mark.parametrize("one_before", [False, True])
def test_how_often_heads_follow_a_relation_is_what_a_loop_counts(one_before):
    sentences = training.corpus()[1][:11]
    recipes = [replace(CAUSAL_RECIPE, seed=seed) for seed in (5, 10, 13)]
    trained, *untrained = [training.untrained(recipe, CausalSelfAttention) for recipe in recipes]
    found = next_word_roles.followed(trained, untrained, sentences, one_before=one_before)

    def shares(model, layer, head, name):
        """Of those that are asked, and of all others that may see a word that is looked for."""
        right, others, offsets = [], [], []
        relation, first_asks = ASKED[name]
        for sentence in sentences:
            weights = weights_of(model, ["<start>", *sentence.words])[layer, head]
            pairs = [(a, b) if first_asks else (b, a) for a, b in sentence.relations[relation]]
            pairs = [(i + 1 - one_before, j + 1) for i, j in pairs]  # <start> is number 0
            pairs = [(i, j) for i, j in pairs if i != j]
            looks_at = {
                i: max(range(i), key=weights[i].tolist().__getitem__)
                for i in range(1, len(weights))
            }
            right += [looks_at[i] == j for i, j in pairs]
            offsets += [j - i for i, j in pairs]
            for key in {j for _, j in pairs}:
                others += [
                    looks_at[i] == key
                    for i in range(key + 1, len(weights))
                    if (i, key) not in pairs
                ]
        most_common = max(offsets.count(offset) for offset in offsets) / len(offsets)
        return sum(right) / len(right), sum(others) / len(others), most_common

    places = list(itertools.product(range(2), range(4)))
    for name, followed in found.items():
        by_chance = max(
            shares(blank.model, *place, name)[0] for blank in untrained for place in places
        )
        for place in places:
            right, others, offset = shares(trained.model, *place, name)
            near(followed.found[place], right)
            near(followed.needed[place], max(by_chance + MARGIN, offset + MARGIN, TWICE * others))


def test_a_head_has_the_relation_that_it_passes_on_both_halves_and_the_clearest():
    def relations(*margins):
        needed = torch.full((1, 1), 0.5)
        return {
            name: next_word_roles.Followed(needed + m, needed)
            for name, m in zip(next_word_roles.RELATIONS, margins, strict=False)
        }

    def name_of(naming, scoring):
        asked = next_word_roles.Asked(relations(*naming), relations(*scoring))
        return next_word_roles.relations_of_heads(asked)

    determiner, subject, _ = next_word_roles.RELATIONS
    assert name_of((0.1, 0.2), (0.3, 0.1)) == [[subject]]
    assert name_of((0.2, 0.1), (0.1, 0.3)) == [[determiner]]
    assert name_of((0.1, 0.2), (0.3, -0.1)) == [[determiner]], (
        "the clearest fails on the other half"
    )
    assert name_of((-0.1, 0.2), (0.3, -0.1)) == [[NO_NAME]]


def test_a_position_comes_before_a_relation_and_a_relation_before_the_other_names(monkeypatch):
    by_rule = [["previous", "most → verb", NO_NAME], [NO_NAME, "most → verb", "place → verb"]]
    monkeypatch.setattr(heads_under_a_mask, "head_names", lambda *_: by_rule)
    relations = [
        ["verb → subject", "verb → subject", "verb → subject"],
        [NO_NAME, NO_NAME, NO_NAME],
    ]
    names = heads_under_a_mask.names_under_the_mask(None, relations)
    assert names == [
        ["previous", "verb → subject", "verb → subject"],
        [NO_NAME, "most → verb", "place → verb"],
    ]
    assert heads_under_a_mask.with_a_relation(names) == 3


def test_only_the_end_could_look_back_at_the_place():
    """So "most → place" would be the name of a row that the model never reads: nothing stands
    behind the place.
    """
    for sentence in itertools.chain(*training.corpus()):
        assert sentence.relations["verb-place"][0][1] == len(sentence.words) - 1


def test_the_picture_of_the_causal_mask_has_the_words_of_the_sentence_on_both_axes():
    figure, _ = visualize.draw_masks(TOY_SENTENCE.split())
    ax = figure.axes[0]
    across, down = (
        [label.get_text() for label in axis.get_ticklabels()] for axis in (ax.xaxis, ax.yaxis)
    )
    assert across == down == ["0 the", "1 cat", "2 sat", "3 on", "4 the", "5 mat"]
    hidden = {tuple(map(int, cell.get_xy())) for cell in ax.patches if cell.get_hatch()}
    assert hidden == {(key, query) for query in range(6) for key in range(query + 1, 6)}
    plt.close(figure)


def test_masks_have_no_parameters():  # C115
    """The same weights in a model with another attention: with the mask, without, and under a mask
    of the caller.
    """
    trained = training.untrained(
        training.Recipe("t", "next word", 3, 2, 0, d_model=33), MultiHeadAttention
    )
    torch.nn.init.normal_(trained.model.output_bias)
    tokens = torch.tensor([encode(TOY_SENTENCE.split())])
    with torch.no_grad():
        near(
            with_attention(trained, CausalSelfAttention)(tokens)[0],
            trained.model(tokens, mask=causal_mask(6))[0],
        )
        near(
            with_attention(trained, MultiHeadAttention)(tokens)[0],
            trained.model(tokens)[0],
            share=0,
        )


def test_texts_packed_into_one_row_are_the_texts_alone():
    attention, texts = (
        CausalSelfAttention(33, 3).double(),
        torch.randn(12, 33, dtype=torch.float64).split([5, 7]),
    )
    packed, _ = attention(
        torch.cat(texts)[None], mask=document_mask(torch.tensor([0] * 5 + [1] * 7))
    )
    near(packed[0], torch.cat([attention(x[None])[0][0] for x in texts]))


def test_generation_follows_the_logits_stops_at_end_and_at_the_limit():
    class Counter(ToyTransformer):
        """Predicts the word after the last one in the vocabulary."""

        def forward(self, tokens, mask=None):
            return F.one_hot((tokens + 1) % len(VOCABULARY), len(VOCABULARY)).float(), []

    model, before_end = (
        Counter(make_attention=MultiHeadAttention),
        toy_language.decode([toy_language.END_ID - 1]),
    )
    assert generate(model, [VOCABULARY[-3]], limit=2) == list(VOCABULARY[-3:-1])
    assert generate(model, [VOCABULARY[-3]], limit=20)[:3] == list(VOCABULARY[-3:])
    assert generate(model, before_end) == before_end  # C181
