"""Long texts: tiles, bands, strides and kernels, compared with torch's function under a mask and with plain loops.

float64, outputs and gradients; lengths that tiles and chunks divide and others, more and fewer queries than keys.
"""

import itertools
import math
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts import linear_kernel, long_context, sparse_reach
from phase4_causal.long_texts.flash_attention import SCORES, VALUES, flash_attention, flash_by_loops, merge, two_tiles
from phase4_causal.long_texts.linear_attention import (
    FEATURE_MAPS,
    linear_attention,
    linear_attention_recurrent,
    linear_by_loops,
    positive_random_features,
    random_directions,
)
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.long_texts.sparse_attention import (
    block_sparse_attention,
    strided_attention,
    tile_mask,
    tile_pattern,
)
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.measure import peak_memory
from shared.tests.helpers import qkv

LENGTHS = [(13, 13), (5, 17), (17, 5), (1, 7), (131, 137), (11, 150), (150, 11)]  # queries, keys
ALLOWED = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)  # the second row is empty
NEAR = tile_pattern(3, window=0)


def everything(t_q, t_k):
    return torch.ones(t_q, t_k, dtype=torch.bool)


WAYS = {  # what a fast function is to be told, and the mask that says the same
    **{f"flash, {size}": (partial(flash_attention, block_size=size), everything) for size in (3, (4, 7), (256, 512))},
    **{
        f"local, {window}": (partial(local_attention, window=window), partial(local_mask, window=window))
        for window in (0, 3, 71)
    },
    **{
        f"strided, {stride}": (partial(strided_attention, stride=stride), partial(strided_mask, stride=stride))
        for stride in (1, 4, 7, 19)
    },
}


def inputs_of(t_q, t_k, *, leading=(2, 3)):
    return [x.requires_grad_() for x in qkv(t_q * 1000 + t_k, t_q=t_q, t_k=t_k, leading=leading, d_k=5, d_v=7)]


def by_torch(query, key, value, mask):
    """PyTorch's own function, with 0 where a query sees no key."""
    sees = mask.any(dim=-1, keepdim=True)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask | ~sees) * sees


def assert_same(mine, theirs, inputs):
    """Outputs and gradients, which may be large where the weights of a kernel nearly sum to 0."""
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    upstream = torch.randn(mine.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slopes = (torch.autograd.grad(output, inputs, upstream) for output in (mine, theirs))
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg="the gradients differ, the outputs do not")


@pytest.mark.parametrize(("t_q", "t_k"), LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_fast_is_masked_attention(way, causal, t_q, t_k):
    attention, mask_of = WAYS[way]
    inputs = inputs_of(t_q, t_k)
    mask = mask_of(t_q, t_k) & causal_mask(t_q, t_k) if causal else mask_of(t_q, t_k)
    output = attention(*inputs, causal=causal)
    assert_same(output, by_torch(*inputs, mask), inputs)
    assert not output[..., ~mask.any(dim=-1), :].any(), "a query that sees no key gets 0"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("batch", "t_q", "t_k"), [(2, 0, 5), (2, 5, 0), (2, 0, 0), (0, 5, 7), (0, 0, 0)])
@pytest.mark.parametrize("attention", [flash_attention, partial(local_attention, window=2), linear_attention])
def test_no_queries_no_keys_no_batch(attention, causal, batch, t_q, t_k):
    """As torch: nothing comes out where nothing went in, and a query without a key gets 0; so are the gradients."""
    inputs = [torch.randn(batch, t, 3, requires_grad=True) for t in (t_q, t_k, t_k)]
    output, expected = attention(*inputs, causal=causal), F.scaled_dot_product_attention(*inputs)
    assert output.shape == expected.shape and not output.any()
    assert not any(slope.any() for slope in torch.autograd.grad(output.sum(), inputs))


def test_a_recurrence_over_no_words_leaves_the_state_empty():
    output, state = linear_attention_recurrent(*(torch.zeros(2, 0, d) for d in (3, 3, 5)))
    assert output.shape == (2, 0, 5) and state.shape == (2, 3, 6) and not state.any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("fast", "by_loops", "settings"),
    [
        (flash_attention, flash_by_loops, {}),
        (linear_attention, linear_by_loops, {"feature_map": "elu"}),
        (linear_attention, linear_by_loops, {"feature_map": "relu"}),
    ],
)
def test_fast_is_its_specification(fast, by_loops, settings, causal):
    for t_q, t_k in ((7, 7), (3, 8), (8, 3), (12, 12), (1, 7)):
        inputs = [x.detach() for x in inputs_of(t_q, t_k, leading=())]
        expected = by_loops(*inputs, causal=causal, **settings)
        torch.testing.assert_close(fast(*inputs, causal=causal, **settings), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", [partial(flash_attention, block_size=2), partial(strided_attention, stride=4)])
def test_keys_that_heads_share(attention, causal):
    """One key for both: its gradient is a sum. Keys without the axes of queries and values broadcast, too."""
    query, key, value = inputs_of(5, 6, leading=(2,))
    shared = key[:1].detach().requires_grad_()
    inputs = (query, shared, value)
    expanded = attention(query, shared.expand_as(key), value, causal=causal)
    assert_same(attention(*inputs, causal=causal), expanded, inputs)
    torch.testing.assert_close(attention(query, shared[0], value, causal=causal), expanded)


def test_flash_large_scores_and_order():
    """Scores of 1e4 overflow exp unless the largest is taken off, whether it comes first or last."""
    q, k, v = (x.detach() for x in inputs_of(7, 11))
    for keys in (k * 1e4, (k * 1e4).flip(-2)):
        torch.testing.assert_close(
            flash_attention(q, keys, v, block_size=3), F.scaled_dot_product_attention(q, keys, v)
        )
    inputs = [x.detach().float() for x in (q, k, v)]
    assert flash_attention(*inputs).dtype == torch.float32


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_flash_in_16_bits_sums_in_float32_however_small_the_tiles(dtype, causal):
    """About as near to float64 as torch's kernel, also where 16 bits cannot hold the products of queries and keys."""
    for size in (1.0, 100.0):
        inputs = [x.to(dtype) for x in qkv(3, t_q=512, t_k=512, leading=(2,), d_k=64, d_v=16)]
        inputs[:2] = [size * x for x in inputs[:2]]
        outcomes = []
        for attention, kind in (
            (partial(F.scaled_dot_product_attention, is_causal=causal), torch.float64),
            (partial(F.scaled_dot_product_attention, is_causal=causal), dtype),
            (partial(flash_attention, causal=causal), dtype),
            (partial(flash_attention, causal=causal, block_size=(16, 8)), dtype),
        ):
            mine = [x.to(kind).requires_grad_() for x in inputs]
            output = attention(*mine)
            outcomes.append([output, *torch.autograd.grad(output.sum(), mine)])
        for exact, theirs, *ours in zip(*outcomes, strict=True):
            bound = 2 * (theirs.double() - exact).abs().max() + torch.finfo(dtype).eps / 2 * exact.abs().max()
            for found in ours:
                assert found.dtype == dtype and (found.double() - exact).abs().max() <= bound


def kept(scores, values):
    """What flash attention keeps of some keys, (T_q, n) and (n, d_v)."""
    largest = scores.max(dim=-1, keepdim=True).values
    numerators = (scores - largest).exp()
    return largest, numerators.sum(dim=-1, keepdim=True), numerators @ values


def test_merged_in_any_order_parts_of_the_keys_are_all_keys():
    query, key, value = (x.detach() for x in inputs_of(5, 11, leading=()))
    scores = query @ key.mT * 9  # sharp: the largest one differs from part to part
    parts = [kept(scores[:, part], value[part]) for part in (slice(4), slice(4, 5), slice(5, 11))]
    for a, b, c in itertools.permutations(parts):
        for one, other in ((merge(a, b), c), (a, merge(b, c))):
            largest, total, weighted = merge(one, other)
            torch.testing.assert_close(largest, scores.max(dim=-1, keepdim=True).values)
            torch.testing.assert_close(weighted / total, scores.softmax(dim=-1) @ value, rtol=0, atol=1e-12)
    without = merge(parts[0], (parts[1][0], torch.zeros(5, 1).double(), torch.zeros(5, 7).double()))
    assert not torch.allclose(without[2] / without[1], scores[:, :5].softmax(dim=-1) @ value[:5])


def test_two_tiles_by_hand_are_what_a_calculator_says():
    """The arithmetic of each line, done with the numbers as printed; at the end it is that of flash_attention."""
    lines = two_tiles()
    assert max(map(len, lines)) <= 90
    sums = [part.split(" = ") for line in lines for part in re.split(" {2,}", line) if " = " in part]
    assert len(sums) == 9
    for terms, result in sums:
        value = eval(terms.replace("·", "*").replace("e^", "math.e**"))
        assert f"{value:.{len(result.split('.')[1])}f}" == result, terms
    score, value = (torch.tensor(x, dtype=torch.float64)[:, None] for x in (SCORES, VALUES))
    expected = flash_attention(torch.ones(1, 1).double(), score, value, block_size=2).item()
    assert [line.split()[-1] for line in lines[-2:]] == [f"{expected:.2f}"] * 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_linear_in_16_bits_sums_in_float32(dtype, causal):
    """700 values of 100 and a little are more than float16 holds, and a sum in bfloat16 stops growing before."""
    inputs = [x.to(dtype) for x in inputs_of(700, 700, leading=())]
    inputs[2] = inputs[2].abs() + 100
    exact = linear_attention(*(x.double() for x in inputs), causal=causal)
    found = [linear_attention(*inputs, causal=causal)]
    if causal:
        found.append(linear_attention_recurrent(*inputs)[0])
    features = positive_random_features(random_directions(8, 5, torch.Generator().manual_seed(0)))
    assert linear_attention(*inputs, causal=causal, feature_map=features).isfinite().all()
    for output in found:
        assert output.dtype == dtype
        torch.testing.assert_close(output.double(), exact, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("feature_map", ["elu", "relu"])
@pytest.mark.parametrize("length", [1, 63, 64, 131])
def test_linear_parallel_is_recurrent(length, feature_map):
    inputs = inputs_of(length, length)
    recurrent, state = linear_attention_recurrent(*inputs, feature_map=feature_map)
    assert_same(linear_attention(*inputs, causal=True, feature_map=feature_map), recurrent, inputs)
    assert state.shape == (2, 3, 5, 8), "the state must not depend on the length"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", ["elu", "relu"])
def test_linear_with_hidden_keys_is_its_specification(feature_map, causal):
    """A mask for each text, which its heads share; of the second text every key is hidden."""
    for t_q, t_k in ((7, 7), (3, 8), (8, 3)):
        inputs, ways = inputs_of(t_q, t_k), {"causal": causal, "feature_map": feature_map}
        mask = torch.arange(t_k) % 3 != torch.tensor([[[1]], [[0]]])  # (2, 1, T_k)
        mask[1] = False
        loops = [
            [linear_by_loops(*(x[b, h] for x in inputs), mask=mask[b, 0], **ways) for h in range(3)] for b in (0, 1)
        ]
        assert_same(linear_attention(*inputs, mask=mask, **ways), torch.stack([*map(torch.stack, loops)]), inputs)
        assert not loops[1][0].any()


@pytest.mark.parametrize("feature_map", ["elu", "relu"])
def test_a_text_read_in_pieces_is_the_whole_text(feature_map):
    """The state is handed on; some keys are hidden in both pieces."""
    inputs, mask = inputs_of(13, 13), torch.arange(13) % 3 > 0
    outputs, state = [], None
    for piece in (slice(5), slice(5, 6), slice(6, 13)):
        parts = (x[..., piece, :] for x in inputs)
        output, state = linear_attention_recurrent(*parts, mask=mask[piece], state=state, feature_map=feature_map)
        outputs.append(output)
    whole = linear_attention(*inputs, causal=True, mask=mask, feature_map=feature_map)
    assert_same(torch.cat(outputs, dim=-2), whole, inputs)


@pytest.mark.parametrize(("t_q", "t_k"), LENGTHS[:5])
@pytest.mark.parametrize("causal", [False, True])
def test_linear_is_its_kernel(t_q, t_k, causal):
    """The quadratic form, with all weights written out."""
    inputs = inputs_of(t_q, t_k)
    weights = (F.elu(inputs[0]) + 1) @ (F.elu(inputs[1]) + 1).mT
    weights = weights * causal_mask(t_q, t_k) if causal else weights
    total = weights.sum(dim=-1, keepdim=True)
    quadratic = weights / total.masked_fill(total == 0, 1) @ inputs[2]
    assert_same(linear_attention(*inputs, causal=causal), quadratic, inputs)


def test_linear_takes_fewer_operations_from_d_tokens_on():
    """4 T d (d + 1) operations against 4 T² d; twice as many for twice the tokens."""
    for length in (16, 64, 65, 512, 4096):
        softmax, linear = linear_kernel.operations(length)
        assert (softmax, linear) == (4 * length**2 * 64, 4 * length * 64 * 65)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_is_positive_as_long_as_exp_is(dtype):
    """elu(x) + 1, written so, is 0 from -17 on in float32: exp(x) - 1 rounds to -1."""
    least = math.log(torch.finfo(dtype).tiny)
    x = torch.cat([torch.linspace(math.ceil(least), 3, 101), torch.tensor([0.0, 1e4])])
    x = x.to(dtype).requires_grad_()
    features = FEATURE_MAPS["elu"](x)
    expected = [value + 1 if value > 0 else math.exp(value) for value in x.tolist()]
    assert features.gt(0).all()
    torch.testing.assert_close(features, torch.tensor(expected, dtype=dtype), rtol=torch.finfo(dtype).eps, atol=0)
    (slope,) = torch.autograd.grad(features.sum(), x)
    assert slope.isfinite().all() and slope.gt(0).all()


def test_linear_attention_keeps_keys_far_below_zero_apart():
    """In bfloat16, too: near -8 elu(x) + 1 has no digit left, and φ(k) is what the weights are made of."""
    query, key, value = (x.detach() for x in inputs_of(5, 7))
    expected = linear_attention(query, key - 8, value)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
        found = linear_attention(*(x.to(dtype) for x in (query, key - 8, value)))
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


def test_random_features_by_their_kernel():
    """On average over directions the product of the features is exp(q·k / √d); blocks of directions are orthogonal."""
    query, key, value = (x.detach() for x in inputs_of(3, 4, leading=()))
    query, key = query / 3, key / 3  # for longer ones 20,000 directions are few
    directions = random_directions(20_003, 5, torch.Generator().manual_seed(0))
    assert directions.shape == (20_003, 5)
    block = directions[5:10] @ directions[5:10].mT
    torch.testing.assert_close(block, block.diagonal().diag(), rtol=0, atol=1e-12)
    torch.testing.assert_close(directions.mean(dim=0), torch.zeros(5, dtype=torch.float64), rtol=0, atol=0.03)
    torch.testing.assert_close(
        directions.mT @ directions / 20_003, torch.eye(5, dtype=torch.float64), rtol=0, atol=0.03
    )
    features = positive_random_features(directions)
    kernel = features(query) @ features(key).mT / 20_003
    torch.testing.assert_close(kernel, (query @ key.mT / 5**0.5).exp(), rtol=0.1, atol=0)
    expected, _ = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(linear_attention(query, key, value, feature_map=features), expected, rtol=0, atol=0.05)
    recurrent, _ = linear_attention_recurrent(query, key[1:], value[1:], feature_map=features)
    causal = linear_attention(query, key[1:], value[1:], causal=True, feature_map=features)
    torch.testing.assert_close(causal, recurrent, rtol=0, atol=1e-12)


def test_linear_by_hand():
    """φ(0) = 1, φ(1) = 2: weights 1 and 2 for a query of one feature, so (1 · 3 + 2 · 9) / 3 = 7."""
    q, k, v = torch.zeros(1, 1), torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [9.0]])
    assert linear_attention(q, k, v).item() == pytest.approx(7)
    blind = linear_attention(-torch.ones(1, 1), k, v, feature_map="relu")
    assert blind.item() == 0, "relu of a negative query gives no key any weight: the output is 0, not NaN"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(flash_attention, block_size=0), "block_size must be 1 or more.*got 0"),
        (partial(flash_attention, block_size=2.0), "block_size must be 1 or more.*got 2.0"),
        (partial(flash_attention, block_size=(2, None)), r"block_size must be 1 or more.*got \(2, None\)"),
        (partial(local_attention, window=-1), "window must be 0 or more: got -1"),
        (partial(linear_attention, feature_map="exp"), "unknown feature_map 'exp': choose from elu, relu"),
        (lambda q, k, v: linear_attention_recurrent(q[:3], k, v), "as many queries as keys: got T_q=3, T_k=6"),
        (partial(linear_attention_recurrent, state=torch.zeros(3, 4).double()), "torch.float32: got .*torch.float64"),
        (partial(linear_attention_recurrent, state=torch.zeros(3, 3)), r"shape \(3, 4\) of .*: got \(3, 3\)"),
        (partial(linear_attention, mask=torch.ones(6)), "mask must be bool"),
        (partial(linear_attention, mask=everything(1, 5)[0]), r"mask of shape \(1, 5\) does not broadcast"),
        (partial(strided_attention, stride=0), "stride must be 1 or more: got 0"),
        (
            partial(block_sparse_attention, block_size=0, allowed=everything(6, 6)),
            "block_size must be 1 or more: got 0",
        ),
        *(
            (
                partial(block_sparse_attention, block_size=4, allowed=allowed),
                r"bool, one cell for each tile of 4 x 4, \(2, 2\): got torch",
            )
            for allowed in (everything(3, 2), torch.ones(2, 2))
        ),
        *(
            (lambda q, k, v, attention=attention: attention(q, k, v[:5]), "same length T_k: got 6 and 5")
            for attention in (
                flash_attention,
                linear_attention,
                partial(local_attention, window=1),
                partial(strided_attention, stride=2),
                partial(block_sparse_attention, block_size=3, allowed=everything(2, 2)),
            )
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    x = torch.randn(6, 3)
    with pytest.raises(ValueError, match=message):
        call(x, x, x)


@pytest.mark.parametrize(("t_q", "t_k"), [(12, 16), (9, 13), (10, 15)])
def test_tiles_are_masked_attention(t_q, t_k):
    """Whole tiles and shorter last ones; the second row of tiles is empty."""
    inputs = inputs_of(t_q, t_k)
    mask = torch.tensor([[bool(ALLOWED[i // 4, j // 4]) for j in range(t_k)] for i in range(t_q)])
    assert torch.equal(tile_mask(ALLOWED, 4, t_q, t_k), mask)
    output = block_sparse_attention(*inputs, block_size=4, allowed=ALLOWED)
    assert_same(output, by_torch(*inputs, mask), inputs)
    assert not output[..., 4:8, :].any(), "a query without a tile gets 0"


@pytest.mark.parametrize(
    ("attention", "mask"),
    [
        (partial(flash_attention, causal=True, block_size=3), causal_mask(12)),
        (partial(block_sparse_attention, block_size=4, allowed=NEAR), tile_mask(NEAR, 4, 12, 12)),
    ],
)
def test_hidden_tiles_are_not_even_read(attention, mask):
    """A NaN in them would show, as it does in a masked computation, since 0 · NaN is NaN."""
    query, key, value = (x.detach().clone() for x in inputs_of(12, 12))
    key[..., 8:, :] = value[..., 8:, :] = math.nan
    assert attention(query, key, value)[..., 4:6, :].isfinite().all()  # whose tiles end before key 8
    assert scaled_dot_product_attention(query, key, value, mask)[0].isnan().all()


@pytest.mark.parametrize(
    ("attention", "share", "growth"),
    [
        (partial(flash_attention, block_size=64), 1 / 10, 2.2),
        (partial(local_attention, window=32), 1 / 2, 2.2),
        (partial(linear_attention, causal=True), 1 / 2, 2.2),
        (partial(strided_attention, stride=32), 1 / 4, 4.1),
        (lambda *x: block_sparse_attention(*x, block_size=64, allowed=tile_pattern(x[0].size(-2) // 64)), 1 / 2, 2.2),
    ],
)
def test_memory_is_far_below_one_matrix_and_linear(attention, share, growth):
    """Forward and backward: as a share of T x T scores, and from one length to twice as much."""

    def peak(length):
        inputs = torch.randn(3, 4, length, 16, requires_grad=True)
        return peak_memory(lambda: torch.autograd.grad(attention(*inputs).sum(), inputs))

    assert peak(1024) < share * 4 * 1024 * 1024 * 4
    assert peak(1024) <= growth * peak(512), "plain attention takes 4 times"


def test_wrong_patterns_are_noticed():
    """Planted mistakes: another stride, queries aligned with the first key, the tile matrix transposed."""
    inputs = inputs_of(9, 16)
    output = strided_attention(*inputs, stride=3)
    for wrong in (strided_mask(9, 16, 4), strided_mask(16, 16, 3)[:9]):
        with pytest.raises(AssertionError):
            assert_same(output, by_torch(*inputs, wrong), inputs)
    inputs = inputs_of(12, 12)
    one_way = torch.ones(3, 3, dtype=torch.bool).tril()
    output = block_sparse_attention(*inputs, block_size=4, allowed=one_way)
    with pytest.raises(AssertionError):
        assert_same(output, by_torch(*inputs, tile_mask(one_way.T, 4, 12, 12)), inputs)


def test_tile_pattern():
    by_hand = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 0, 1, 1, 1], [1, 0, 0, 1, 1]]
    near_and_first = tile_pattern(5)
    assert near_and_first.int().tolist() == by_hand
    assert torch.equal(tile_pattern(5, num_global=0, window=2), local_mask(5, 5, 2))
    for seed in range(3):
        big_bird = tile_pattern(9, num_random=2, seed=seed)
        added = big_bird & ~tile_pattern(9)
        assert big_bird[0].all() and added[1:].sum(dim=-1).tolist() == [2] * 8
    assert torch.equal(tile_pattern(9, num_random=2, seed=1), tile_pattern(9, num_random=2, seed=1))
    assert not torch.equal(tile_pattern(9, num_random=2, seed=1), tile_pattern(9, num_random=2, seed=2))


def test_reach_by_hand():
    """A window of 1 over 4 positions: 1 step a layer, 3 layers; stride 2 keeps odd and even apart."""
    after = [seen.int().tolist() for seen in sparse_reach.reach([local_mask(4, 4, 1)] * 2)]
    assert after[0] == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert after[1] == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]]
    all_pairs = torch.ones(4, 4, dtype=torch.bool)
    near, far = local_mask(4, 4, 1), strided_mask(4, 4, 2)
    assert sparse_reach.layers_needed([near], all_pairs) == 3
    assert sparse_reach.layers_needed([far], all_pairs) == math.inf
    assert sparse_reach.layers_needed([near, far], all_pairs) == 2
    assert sparse_reach.layers_needed([all_pairs], all_pairs) == 1
    past = causal_mask(4)
    assert sparse_reach.layers_needed([near & past], past) == 3
    assert sparse_reach.layers_needed([past], all_pairs) == math.inf, "nobody hears of the future"
    nothing_new = torch.eye(4, dtype=torch.bool)
    assert sparse_reach.layers_needed([nothing_new, all_pairs], all_pairs) == 2, "one idle layer is not the end"


def test_reach_is_a_product_of_paths():
    """Reach after n layers = pairs joined by a path of n steps, from the integer matrix power."""
    allowed = tile_pattern(6, window=0, num_global=0, num_random=1, seed=3)
    for n, seen in enumerate(sparse_reach.reach([allowed] * 4), start=1):
        assert torch.equal(seen, torch.linalg.matrix_power(allowed.double(), n) > 0)


def test_score_cells():
    """Counted at the products: T² under a mask, and the sum of the tiles or the T²/stride pairs without one."""
    allowed = tile_pattern(6, num_random=1)
    for length in (48, 45):  # a shorter last tile
        cells = int(tile_mask(allowed, 8, length, length).sum())
        tiles = partial(block_sparse_attention, block_size=8, allowed=allowed)
        assert sparse_reach.score_cells(tiles, length) == cells
    assert sparse_reach.score_cells(partial(strided_attention, stride=8), 48) == 48 * 48 // 8
    assert sparse_reach.score_cells(long_context.masked(strided_mask(48, 48, 8)), 48) == 48 * 48
    shares = sparse_reach.shares_computed(256)  # 4 tiles a side: 3 on the diagonal and beside, the first row and column
    assert shares == {"strided, masked": 1, "strided": 1 / 64, "tiles, masked": 1, "tiles": 14 / 16}


def test_pairs_of_a_stride_grow_as_the_square_unless_the_stride_grows_too():
    pairs = {
        n: (strided_mask(n, n, 8).sum().item(), strided_mask(n, n, round(n**0.5)).sum().item()) for n in (256, 1024)
    }
    assert [long / short for short, long in zip(pairs[256], pairs[1024], strict=True)] == [16, 8]  # T²: 16, T √T: 8


def test_reach_table():
    table = sparse_reach.layers_by_pattern(64)
    assert table[sparse_reach.LOCAL] == (8, 8)  # 63 steps of 8
    assert table[sparse_reach.STRIDED] == (math.inf, math.inf)
    assert table[sparse_reach.IN_TURN] == (2, 2)
    assert table[sparse_reach.FIRST][0] == 2 < table[sparse_reach.FIRST][1]
