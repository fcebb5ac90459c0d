"""Long texts: extremes, memory, loops and states.

shared/tests/test_oracles.py compares all ways with their references, for all lengths.
"""

import itertools
import math
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.order.position_encodings import alibi
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.long_texts import hybrid, sparse_masks
from phase4_causal.long_texts.delta_rule import delta_rule, delta_rule_recurrent
from phase4_causal.long_texts.flash_attention import (
    LOG2_E,
    empty_partial,
    flash_attention,
    merge_partials,
    normalize,
    partial_softmax,
)
from phase4_causal.long_texts.gated_delta import (
    gated_delta,
    gated_delta_recurrent,
)
from phase4_causal.long_texts.linear_attention import (
    CHUNK,
    FEATURE_MAPS,
    linear_attention,
    linear_attention_recurrent,
)
from phase4_causal.long_texts.state_space import (
    state_space,
    state_space_attention,
    state_space_recurrent,
)
from phase4_causal.long_texts.topk_attention import Indexer, top_blocks, top_k_mask, top_keys
from phase4_causal.long_texts.triton_flash import triton_flash
from shared import attention_utils, paths
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.tests.helpers import near, qkv
from shared.toy_language import END_ID, START_ID, encode
from shared.training.objectives import corpus
from shared.training.recipes import Recipe, untrained_model


def inputs_of(t_q, t_k, *, leading=(2, 3)):
    return qkv(t_q * 1000 + t_k, t_q=t_q, t_k=t_k, leading=leading, d_k=5, d_v=7)


def with_gradients(inputs):
    return [x.requires_grad_() for x in inputs]


def words_of(length, *, leading=(2, 3)):
    """Queries, keys of length 1, values, and how much of each word is written."""
    query, key, value = inputs_of(length, length, leading=leading)
    generator = torch.Generator().manual_seed(length)
    beta = torch.rand(*leading, length, dtype=torch.float64, generator=generator)
    return [query, F.normalize(key, dim=-1), value, beta]


def assert_same(mine, theirs, inputs, share=1e-12):
    """Outputs and gradients."""
    near(mine, theirs, share)
    generator = torch.Generator().manual_seed(0)
    upstream = torch.randn(mine.shape, dtype=torch.float64, generator=generator)

    def slopes(output):
        gradients = torch.autograd.grad(output, inputs, upstream)
        return torch.cat([x.flatten() for x in gradients])

    near(slopes(mine), slopes(theirs), share)


# ---- tiles


@pytest.mark.parametrize("order", [[], [-2]])
@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_scores_far_from_0(far, order):
    """One key takes all or nothing, first or last: exp would overflow or vanish."""
    query, key, value = inputs_of(11, 11)
    query[..., 0], key[..., 0], key[..., 0, 1] = math.sqrt(5), far, 300.0
    inputs = with_gradients([query, key.flip(order), value])
    found = flash_attention(*inputs, causal=True, block_size=3)
    expected = F.scaled_dot_product_attention(*inputs, is_causal=True)
    assert_same(found, expected, inputs, share=1e-9)


@pytest.mark.parametrize(("t_q", "t_k", "size"), [(12, 12, 3), (11, 5, 4), (5, 11, 4)])
@pytest.mark.parametrize("intruder", [math.nan, -math.inf])
def test_a_later_key_that_is_no_number_moves_no_earlier_bit(t_q, t_k, size, intruder):
    query, key, value = inputs_of(t_q, t_k)
    tiled = partial(flash_attention, query, value=value, causal=True, block_size=size)
    before = tiled(key)
    for at in range(t_k):
        after = tiled(key.index_fill(-2, torch.arange(at, t_k), intruder))
        blind = torch.arange(t_q) + t_k - t_q < at
        assert torch.equal(after[..., blind, :], before[..., blind, :])
        assert not torch.equal(after, before)


def test_merged_in_any_order_parts_of_the_keys_are_all_keys():
    query, key, value = inputs_of(5, 11, leading=())
    scores = query @ key.mT * 9  # sharp: the largest one differs from part to part
    cuts = (slice(4), slice(4, 5), slice(5, 11))
    parts = [partial_softmax(scores[:, part] * LOG2_E, value[part]) for part in cuts]
    for a, b, c in itertools.permutations(parts):
        left = merge_partials(merge_partials(a, b), c)
        right = merge_partials(a, merge_partials(b, c))
        for merged in (left, right):
            near(merged.largest, scores.max(dim=-1, keepdim=True).values * LOG2_E)
            near(merged.weighted / merged.total, scores.softmax(dim=-1) @ value)
    none = empty_partial(torch.zeros(2, 5), d_v=3)
    output, _ = normalize(merge_partials(none, none))
    assert not output.any(), "nothing and nothing is nothing"


@pytest.mark.parametrize(("t_q", "t_k", "causal"), [(37, 53, True), (53, 37, True), (5, 37, False)])
def test_the_kernel_of_a_gpu_is_pytorchs_function(t_q, t_k, causal):
    """In its interpreter; no length is a multiple of the tile."""
    pytest.importorskip("triton", reason='pip install -e ".[gpu]"')
    inputs = qkv(t_q=t_q, t_k=t_k, dtype=torch.float32, d_k=32, d_v=32)
    mask = causal_mask(t_q, t_k) if causal else None
    expected = F.scaled_dot_product_attention(*inputs, mask)
    near(triton_flash(*inputs, causal=causal, block_size=16), expected, share=5e-7)
    halves = [x.half() for x in inputs]
    near(triton_flash(*halves, causal=causal, block_size=16).float(), expected, share=1e-2)


# ---- another kernel, and the delta rule


def test_linear_attention_is_hardly_nearer_to_softmax_than_a_plain_average():
    inputs = qkv(0, t_q=100, t_k=100, leading=(), d_k=64, d_v=64)
    target = F.scaled_dot_product_attention(*inputs)
    average = (inputs[2].mean(dim=0) - target).norm()
    for name in FEATURE_MAPS:
        output = linear_attention(*inputs, feature_map=name)
        assert (output - target).norm() > 0.85 * average  # C055


def with_alpha(way):
    """A gated way of four inputs: of what stands there the more stays the more is written."""

    def of_words(query, key, value, beta, **state):
        return way(query, key, value, beta, beta.sqrt(), **state)

    return of_words


def test_where_nothing_fades_the_gated_delta_rule_is_the_delta_rule():
    query, key, value, beta = words = with_gradients(words_of(CHUNK + 9))
    state = torch.ones(2, 3, 5, 7, dtype=torch.float64)
    mine = gated_delta(*words, torch.ones_like(beta), state=state)
    theirs = delta_rule(*words, state=state)
    assert_same(mine[0], theirs[0], words)
    near(mine[1], theirs[1])
    nothing_fades = state_space_attention(query, key, value, torch.ones_like(beta))
    near(nothing_fades, (query @ key.mT).tril() @ value)  # linear attention, nothing divided


def test_an_alpha_of_0_begins_anew_and_has_a_gradient():
    """In front of one word, inside a chunk: what comes after is a text of its own."""
    query, key, value, beta = words_of(23, leading=())
    alpha = beta.sqrt().index_fill(0, torch.tensor([11]), 0.0)
    inputs = with_gradients([query, key, value, beta, alpha])
    output, _ = gated_delta(*inputs)
    assert_same(output, gated_delta_recurrent(*inputs)[0], inputs)
    alone, _ = gated_delta(*[x[11:] for x in inputs])
    near(output[11:], alone)


def linear_at_once(*words):
    return linear_attention(*words[:3], causal=True)


def linear_in_pieces(query, key, value, _, state):
    return linear_attention_recurrent(query, key, value, state=state)


def delta_at_once(*words):
    return delta_rule_recurrent(*words)[0]


def gated_at_once(*words):
    return with_alpha(gated_delta_recurrent)(*words)[0]


@pytest.mark.parametrize(
    ("way", "whole", "used"),
    [
        (linear_in_pieces, linear_at_once, 3),
        (delta_rule_recurrent, delta_at_once, 4),
        (delta_rule, delta_at_once, 4),
        (with_alpha(gated_delta_recurrent), gated_at_once, 4),
        (with_alpha(gated_delta), gated_at_once, 4),
        (state_space_recurrent, state_space_attention, 4),
        (state_space, state_space_attention, 4),
    ],
)
def test_a_text_read_in_pieces_is_the_whole_text(way, whole, used):
    """The state is handed on, and gradients go through it; of no words nothing comes."""
    words = with_gradients(words_of(CHUNK + 9))
    outputs, state = [], None
    for piece in (slice(0), slice(7), slice(7, 8), slice(8, CHUNK + 9)):
        output, state = way(*[x[:, :, piece] for x in words], state=state)
        outputs.append(output)
    assert outputs[0].shape == (2, 3, 0, 7)
    assert_same(torch.cat(outputs, dim=-2), whole(*words), words[:used])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_is_positive_as_long_as_exp_is(dtype):
    """elu(x) + 1, written so, is 0 from -17 on in float32: exp(x) - 1 rounds to -1."""
    least = math.log(torch.finfo(dtype).tiny)
    x = torch.cat([torch.linspace(math.ceil(least), 3, 101), torch.tensor([0.0, 1e4])])
    x = x.to(dtype).requires_grad_()
    features = FEATURE_MAPS["elu"](x)
    exact = x.detach().double()
    expected = torch.where(exact > 0, exact + 1, exact.clamp(max=0).exp()).to(dtype)
    near(features, expected, share=4 * torch.finfo(dtype).eps)
    (slope,) = torch.autograd.grad(features.sum(), x)
    assert features.min() > 0 and slope.min() > 0 and slope.isfinite().all()


# ---- chosen keys


def test_of_equal_keys_the_first_are_chosen_and_nobody_chooses_more_than_it_sees():
    mask = top_keys(torch.ones(5, 2), torch.ones(7, 2), count=4)
    assert torch.equal(mask, torch.arange(7).expand(5, 7) < torch.tensor([[3], [4], [4], [4], [4]]))
    blocks = top_blocks(torch.zeros(5, 3), key_length=7, count=2, block_size=3)
    assert [row.nonzero().flatten().tolist() for row in blocks] == [
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 6],
    ]


def test_a_hidden_key_is_not_chosen_whatever_its_score():
    scores, allowed = torch.tensor([[9.0, -9.0, 3.0]]), torch.tensor([[False, True, True]])
    assert top_k_mask(scores, allowed, 1).tolist() == [[False, False, True]]
    assert top_k_mask(scores, allowed, 3).tolist() == allowed.tolist()


def test_pooled_the_indexer_scores_the_mean_of_each_block():
    """In a loop; what the last block lacks counts as 0."""
    torch.manual_seed(0)
    indexer, x = Indexer(7, 3, 5, block_size=4).double(), torch.randn(2, 11, 7).double()
    query = indexer.w_q(x).unflatten(-1, (3, 5))
    for block, words in enumerate(x.split(4, dim=1)):
        mean = indexer.w_k(words).sum(dim=1, keepdim=True) / 4
        matches = (query * mean[:, :, None]).sum(dim=-1).relu()  # (B, T, heads)
        near(indexer(x)[..., block], (matches * indexer.w_head_weight(x)).sum(dim=-1))


# ---- FlexAttention


def test_flex_attention_of_the_page_is_ours():
    """On the CPU, uncompiled. Behind each predicate the page has what it is in our words."""
    page = (paths.ROOT / "phase4_causal/long_texts/README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```\n(from torch.nn.attention.flex.*?)```", page, re.DOTALL)
    query, key, value = qkv(leading=(2, 4), d_k=16, d_v=16)
    there = {"torch": torch, "B": 2, "T_q": 5, "T_k": 7, "window": 2, "stride": 3, "prompt": 6}
    there |= {"query": query, "key": key[:, :2], "value": value[:, :2], "sinks": 1, "limit": 0.5}
    there |= {"lengths": torch.tensor([4, 7]), "text": torch.tensor([0, 0, 1, 1, 1, 2, 2])}
    there |= {"slopes": 2.0 ** -torch.arange(4)}
    here = there | vars(attention_utils) | {"alibi": alibi, "scores": query @ key.mT / 4}
    exec(code, there)
    for name, ours in re.findall(r"^(?:def )?(\w+)\b.*  # (.*)$", code, re.MULTILINE):
        expected = eval(ours, here)
        if expected.dtype == torch.bool:
            mask = there["create_mask"](there[name], 2, 1, 5, 7, device="cpu")
            assert torch.equal(mask, expected.expand(2, 1, 5, 7)), name
        else:
            found = there["flex_attention"](query, key, value, score_mod=there[name])
            near(found, expected.softmax(dim=-1) @ value)
    mask = eval("causal_mask(T_q, T_k) & padding_mask(lengths, T_k)", here)
    shared = query, there["key"], there["value"], mask
    near(there["output"], F.scaled_dot_product_attention(*shared, enable_gqa=True))


# ---- layers of both kinds


def test_every_question_of_a_text_has_the_value_that_stands_behind_its_key():
    symbols, answers = hybrid.pairs_and_questions(11, 7, torch.Generator().manual_seed(0))
    assert symbols.shape == (11, 21)
    for text, wanted in zip(symbols.tolist(), answers.tolist(), strict=True):
        values = dict(zip(text[0:14:2], text[1:14:2], strict=True))
        assert len(values) == 7 and max(values) < hybrid.KEYS
        assert [values[key] - hybrid.KEYS for key in text[14:]] == wanted
    assert not torch.equal(symbols[:, 14:], symbols[:, 0:14:2]), "asked in another order"


def heads_of_words(parts):
    """Queries, keys, values (B, T, d_model) each -> (B, H, T, d_k)."""
    return [part.unflatten(-1, (hybrid.HEADS, -1)).transpose(1, 2) for part in parts]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["softmax", "delta"])
def test_a_layer_reads_the_past_and_its_convolution_the_word_before(kind):
    torch.manual_seed(0)
    layer, x = hybrid.Layer(kind).double(), torch.randn(2, 11, 32).double()
    words = layer.norm(x)
    projected = layer.w_qkv(words)
    before, own = layer.convolution.weight.unbind(dim=-1)  # (96, 1) each
    shifted = F.pad(projected, (0, 0, 1, 0))[:, :-1]
    projected = before[:, 0] * shifted + own[:, 0] * projected + layer.convolution.bias
    query, key, value = heads_of_words(projected.chunk(3, dim=-1))
    if kind == "softmax":
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    else:
        query, key = query / query.norm(dim=-1)[..., None], key / key.norm(dim=-1)[..., None]
        beta = layer.w_beta(words).sigmoid().transpose(1, 2)
        heads, _ = delta_rule_recurrent(query, key, value, beta)
    near(layer(x), x + layer.w_o(heads.transpose(1, 2).flatten(2)))


# ---- reach


@pytest.mark.parametrize(
    ("masks", "layers"),
    [
        ([local_mask(64, 64, 8)], 8),  # T / window
        ([strided_mask(64, 64, 8)], math.inf),
        ([local_mask(64, 64, 8), strided_mask(64, 64, 8)], 2),  # in turn
    ],
)
def test_how_many_layers_it_takes_until_all_words_have_met(masks, layers):
    """What the page says of 64 words; the residual connection keeps what was there."""
    seen, count = torch.eye(64), 0
    while not seen.all() and count < 64:
        seen = seen + (masks[count % len(masks)].float() @ seen).sign()
        count += 1
    assert (count if seen.all() else math.inf) == layers


def test_masks_of_the_trained_model_are_what_their_names_say():
    apart = (torch.arange(11)[:, None] - torch.arange(11)).abs()
    far = apart % 4 == 0
    expected = {f"window {size}": apart <= size for size in (1, 2, 4, 8)}
    expected |= {
        "all earlier words": apart >= 0,
        "every 4th word": far,
        "the word before and every 4th": far | (apart <= 1),
    }
    found = sparse_masks.masks_of(11)
    assert found.keys() == expected.keys()
    for name, mask in found.items():
        assert torch.equal(mask, expected[name]), name


def sayer_of_end(make_attention):
    """An untrained model that says <end> everywhere, and is right once a sentence."""
    recipe = Recipe("t", "next word", 3, 2, 0, d_model=33)
    model = untrained_model(recipe, make_attention).model.double()
    torch.nn.init.constant_(model.output_bias[END_ID], 9.0)
    return model


@torch.no_grad()
@pytest.mark.parametrize("name", sparse_masks.masks_of(1))
def test_answers_through_a_mask_are_those_of_a_loop_over_words(name):
    """Each sentence alone, in a model that is told of every pair of words; nothing is padded."""
    sentences = corpus()[1][:7]
    longest = max(len(sentence.words) for sentence in sentences)
    mask = sparse_masks.masks_of(longest + 1)[name]
    found = sparse_masks.answers_through(sayer_of_end(CausalSelfAttention), sentences, mask)
    masked = sayer_of_end(MultiHeadAttention)
    losses, right = [], []
    for sentence in sentences:
        tokens = [START_ID, *encode(sentence.words), END_ID]
        own = sparse_masks.masks_of(len(tokens) - 1)[name]
        logits, _ = masked(torch.tensor([tokens[:-1]]), mask=own.tril())
        for said, word in zip(logits[0], tokens[1:], strict=True):
            losses.append(-said.log_softmax(dim=-1)[word].item())
            right.append(said.argmax().item() == word)
    near(found, (sum(losses) / len(losses), sum(right) / len(right)))
