"""Tests: long texts."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts import sparse_reach
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent, linear_by_loops
from phase4_causal.long_texts.local_attention import local_by_loops
from phase4_causal.long_texts.long_context import flash_attention, flash_by_loops, local_attention
from phase4_causal.long_texts.sparse_attention import (
    block_sparse_attention,
    block_sparse_by_loops,
    strided_attention,
    strided_by_loops,
    tile_mask,
    tile_pattern,
)
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.measure import peak_memory

LONG_LENGTHS = [(13, 13), (5, 17), (17, 5), (1, 7), (131, 137)]  # equal, fewer queries, fewer keys, one query, primes


def long_inputs(t_q, t_k, *, leading=(2, 3), d_k=5, d_v=7):
    shapes = ((t_q, d_k), (t_k, d_k), (t_k, d_v))
    generator = torch.Generator().manual_seed(t_q * 1000 + t_k)
    return [
        torch.randn(*leading, *shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes
    ]


def long_assert_same(mine, theirs, inputs):
    upstream = torch.randn(mine.shape, dtype=torch.float64)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad(mine, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10, msg="the gradients differ, the outputs do not")


@pytest.mark.parametrize(("t_q", "t_k"), LONG_LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_size", [3, (4, 7), (256, 512)])
def test_long_flash_is_attention(t_q, t_k, causal, block_size):
    inputs = long_inputs(t_q, t_k)
    naive, _ = scaled_dot_product_attention(*inputs, causal_mask(t_q, t_k) if causal else None)
    long_assert_same(flash_attention(*inputs, causal=causal, block_size=block_size), naive, inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_long_flash_gradcheck_and_broadcast(causal):
    q, k, v = long_inputs(5, 6, leading=(2,))
    assert torch.autograd.gradcheck(lambda *x: flash_attention(*x, causal=causal, block_size=(2, 3)), (q, k, v))
    shared_key = k[:1].detach().requires_grad_()  # one key for both: its gradient is a sum
    inputs = (q, shared_key, v)
    naive, _ = scaled_dot_product_attention(*inputs, causal_mask(5, 6) if causal else None)
    long_assert_same(flash_attention(*inputs, causal=causal, block_size=2), naive, inputs)


def test_long_flash_large_scores_and_order():
    """Scores of 1e4 overflow exp unless the largest is taken off, whether it comes first or last."""
    q, k, v = (x.detach() for x in long_inputs(7, 11))
    for keys in (k * 1e4, (k * 1e4).flip(-2)):
        torch.testing.assert_close(
            flash_attention(q, keys, v, block_size=3), F.scaled_dot_product_attention(q, keys, v)
        )
    inputs = [x.detach().float() for x in (q, k, v)]
    assert flash_attention(*inputs).dtype == torch.float32


def test_long_flash_skips_what_is_above_the_diagonal():
    """Tiles that no query sees are not even read: a NaN in them would show, since 0 · NaN is NaN."""
    q, k, v = (x.detach().clone() for x in long_inputs(12, 12))
    k[..., 6:, :] = v[..., 6:, :] = math.nan
    assert flash_attention(q, k, v, causal=True, block_size=3)[..., :6, :].isfinite().all()


def test_long_loops_agree():
    for t_q, t_k in ((7, 7), (3, 8), (8, 3)):
        q, k, v = (x.detach() for x in long_inputs(t_q, t_k, leading=()))
        for causal in (False, True):
            mask = causal_mask(t_q, t_k) if causal else None
            naive, _ = scaled_dot_product_attention(q, k, v, mask)
            torch.testing.assert_close(flash_by_loops(q, k, v, causal=causal), naive)
            near = local_mask(t_q, t_k, 2) if mask is None else local_mask(t_q, t_k, 2) & mask
            naive, _ = scaled_dot_product_attention(q, k, v, near)
            torch.testing.assert_close(local_by_loops(q, k, v, window=2, causal=causal), naive)
            for name in ("elu", "relu"):
                by_loops = linear_by_loops(q, k, v, causal=causal, feature_map=name)
                torch.testing.assert_close(linear_attention(q, k, v, causal=causal, feature_map=name), by_loops)


@pytest.mark.parametrize(("t_q", "t_k"), [*LONG_LENGTHS, (11, 150), (150, 11)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 3, 71])
def test_long_local_is_masked_attention(t_q, t_k, causal, window):
    inputs = long_inputs(t_q, t_k)
    mask = local_mask(t_q, t_k, window)
    naive, _ = scaled_dot_product_attention(*inputs, mask & causal_mask(t_q, t_k) if causal else mask)
    long_assert_same(local_attention(*inputs, window=window, causal=causal), naive, inputs)


def test_long_local_gradcheck():
    inputs = long_inputs(6, 7, leading=())
    assert torch.autograd.gradcheck(lambda *x: local_attention(*x, window=2, causal=True), inputs)


@pytest.mark.parametrize("feature_map", ["elu", "relu"])
@pytest.mark.parametrize("length", [1, 63, 64, 131])
def test_long_linear_parallel_is_recurrent(length, feature_map):
    inputs = long_inputs(length, length)
    recurrent, state = linear_attention_recurrent(*inputs, feature_map=feature_map)
    long_assert_same(linear_attention(*inputs, causal=True, feature_map=feature_map), recurrent, inputs)
    assert state.shape == (2, 3, 5, 8), "the state must not depend on the length"


@pytest.mark.parametrize(("t_q", "t_k"), LONG_LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_long_linear_is_its_kernel(t_q, t_k, causal):
    """The quadratic form, with all weights written out."""
    inputs = long_inputs(t_q, t_k)
    weights = (F.elu(inputs[0]) + 1) @ (F.elu(inputs[1]) + 1).mT
    weights = weights * causal_mask(t_q, t_k) if causal else weights
    total = weights.sum(dim=-1, keepdim=True)
    quadratic = weights / total.masked_fill(total == 0, 1) @ inputs[2]
    long_assert_same(linear_attention(*inputs, causal=causal), quadratic, inputs)


def test_long_linear_by_hand_and_gradcheck():
    """φ(0) = 1, φ(1) = 2: weights 1 and 2 for a query of one feature, so (1 · 3 + 2 · 9) / 3 = 7."""
    q, k, v = torch.zeros(1, 1), torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [9.0]])
    assert linear_attention(q, k, v).item() == pytest.approx(7)
    blind = linear_attention(-torch.ones(1, 1), k, v, feature_map="relu")
    assert blind.item() == 0, "relu of a negative query gives no key any weight: the output is 0, not NaN"
    inputs = long_inputs(6, 5, leading=())
    assert torch.autograd.gradcheck(lambda *x: linear_attention(*x, causal=True), inputs)


def test_long_memory_is_linear():
    """Twice the length, at most 2.2 times the memory; naive attention takes 4 times. Backward included for flash."""

    def flash(length):
        inputs = torch.randn(3, 4, length, 16, requires_grad=True)
        output = flash_attention(*inputs, block_size=64)
        return lambda: output.sum().backward()

    calls = {
        "flash": lambda n: partial(flash_attention, *torch.randn(3, 4, n, 16), block_size=64),
        "flash backward": flash,
        "local": lambda n: partial(local_attention, *torch.randn(3, 4, n, 16), window=32),
        "linear": lambda n: partial(linear_attention, *torch.randn(3, 4, n, 16), causal=True),
    }
    for name, make in calls.items():
        assert peak_memory(make(1024)) <= 2.2 * peak_memory(make(512)), name
    x = torch.randn(4, 1024, 16)
    naive = peak_memory(lambda: scaled_dot_product_attention(x, x, x))
    assert peak_memory(calls["flash"](1024)) < naive / 20


def test_long_errors():
    x = torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"block_size must be 1 or more.*got 0"):
        flash_attention(x, x, x, block_size=0)
    with pytest.raises(ValueError, match="window must be 0 or more: got -1"):
        local_attention(x, x, x, window=-1)
    with pytest.raises(ValueError, match="unknown feature_map 'exp': choose from elu, relu"):
        linear_attention(x, x, x, feature_map="exp")
    with pytest.raises(ValueError, match="as many queries as keys: got T_q=3, T_k=4"):
        linear_attention_recurrent(x[:3], x, x)
    for function in (flash_attention, linear_attention, lambda *y: local_attention(*y, window=1)):
        with pytest.raises(ValueError, match="same length T_k: got 4 and 3"):
            function(x, x, x[:3])


SPARSE_LENGTHS = [(12, 12), (17, 17), (5, 17), (17, 5), (1, 7)]


SPARSE_ALLOWED = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)  # the second row is empty


def sparse_inputs(t_q, t_k, leading=(2, 3)):
    generator = torch.Generator().manual_seed(t_q * 100 + t_k)
    make = partial(torch.randn, dtype=torch.float64, generator=generator, requires_grad=True)
    return make(*leading, t_q, 5), make(*leading, t_k, 5), make(*leading, t_k, 4)


def sparse_assert_same(output, expected, inputs):
    """Outputs and gradients of query, key, value."""
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)
    upstream = torch.randn_like(expected)
    slopes = (torch.autograd.grad(y, inputs, upstream, retain_graph=True) for y in (output, expected))
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def sparse_torch(query, key, value, mask):
    """PyTorch's own function, with 0 where a query sees no key."""
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | ~mask.any(-1, keepdim=True))
    return output * mask.any(-1, keepdim=True)


@pytest.mark.parametrize(("t_q", "t_k"), SPARSE_LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stride", [1, 4, 7, 19])
def test_sparse_strided_is_masked_attention(t_q, t_k, causal, stride):
    """Lengths that the stride divides and others, more and fewer queries than keys, strides longer than the text."""
    inputs = sparse_inputs(t_q, t_k)
    mask = strided_mask(t_q, t_k, stride)
    mask = mask & causal_mask(t_q, t_k) if causal else mask
    output = strided_attention(*inputs, stride=stride, causal=causal)
    sparse_assert_same(output, sparse_torch(*inputs, mask), inputs)
    assert not output[..., ~mask.any(dim=-1), :].any(), "a query that sees no key gets 0"


def test_sparse_strided_loops_and_broadcasting():
    for t_q, t_k in SPARSE_LENGTHS:
        inputs = [x.detach() for x in sparse_inputs(t_q, t_k, leading=())]
        for causal in (False, True):
            by_loops = strided_by_loops(*inputs, stride=3, causal=causal)
            torch.testing.assert_close(strided_attention(*inputs, stride=3, causal=causal), by_loops)
    query, key, value = (x.detach() for x in sparse_inputs(11, 11))
    shared_key = strided_attention(query, key[:1, :1], value, stride=4, causal=True)
    assert torch.equal(shared_key, strided_attention(query, key[:1, :1].expand_as(key), value, stride=4, causal=True))
    no_axes = strided_attention(query, key[0, 0], value, stride=4)
    torch.testing.assert_close(no_axes, strided_attention(query, key[:1, :1].expand_as(key), value, stride=4))


def test_sparse_strided_by_hand():
    """Equal keys: the plain mean. Stride 2 of 5: positions 0, 2, 4 and 1, 3; causal: the mean of those so far."""
    flat, value = torch.zeros(5, 3), torch.tensor([[1.0], [10.0], [3.0], [30.0], [8.0]])
    assert strided_attention(flat, flat, value, stride=2).flatten().tolist() == [4, 20, 4, 20, 4]
    assert strided_attention(flat, flat, value, stride=2, causal=True).flatten().tolist() == [1, 10, 2, 20, 4]
    last_two = strided_attention(flat[:2], flat, value, stride=2)
    assert last_two.flatten().tolist() == [20, 4], "the last query stands at the last key"


@pytest.mark.parametrize(("t_q", "t_k"), [(12, 16), (9, 13), (10, 15)])
def test_sparse_tiles_are_masked_attention(t_q, t_k):
    """Whole tiles and shorter last ones; the second row of tiles is empty."""
    inputs = sparse_inputs(t_q, t_k)
    mask = torch.tensor([[bool(SPARSE_ALLOWED[i // 4, j // 4]) for j in range(t_k)] for i in range(t_q)])
    assert torch.equal(tile_mask(SPARSE_ALLOWED, 4, t_q, t_k), mask)
    output = block_sparse_attention(*inputs, block_size=4, allowed=SPARSE_ALLOWED)
    sparse_assert_same(output, sparse_torch(*inputs, mask), inputs)
    assert not output[..., 4:8, :].any(), "a query without a tile gets 0"
    alone = [x[0, 0] for x in inputs]
    by_loops = block_sparse_by_loops(*alone, block_size=4, allowed=SPARSE_ALLOWED)
    torch.testing.assert_close(output[0, 0], by_loops)


def test_sparse_tiles_all_or_none():
    inputs = sparse_inputs(10, 10)
    everything, nothing = torch.ones(4, 4, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.bool)
    full = F.scaled_dot_product_attention(*inputs)
    sparse_assert_same(block_sparse_attention(*inputs, block_size=3, allowed=everything), full, inputs)
    output = block_sparse_attention(*inputs, block_size=3, allowed=nothing)
    assert not output.any() and not torch.autograd.grad(output.sum(), inputs)[0].any()


def test_sparse_hidden_tiles_are_not_read():
    """A NaN in them would show in a masked computation, since 0 · NaN is NaN."""
    query, key, value = (x.detach().clone() for x in sparse_inputs(12, 12))
    key[..., 8:, :] = value[..., 8:, :] = math.nan
    near = tile_pattern(3, window=0)
    assert block_sparse_attention(query, key, value, block_size=4, allowed=near)[..., 4:8, :].isfinite().all()
    masked, _ = scaled_dot_product_attention(query, key, value, tile_mask(near, 4, 12, 12))
    assert masked.isnan().all()


def test_sparse_wrong_patterns_are_noticed():
    """Planted mistakes: another stride, queries aligned with the first key, the tile matrix transposed."""
    inputs = sparse_inputs(9, 16)
    output = strided_attention(*inputs, stride=3)
    for wrong in (strided_mask(9, 16, 4), strided_mask(16, 16, 3)[:9]):
        with pytest.raises(AssertionError):
            sparse_assert_same(output, sparse_torch(*inputs, wrong), inputs)
    inputs = sparse_inputs(12, 12)
    one_way = torch.ones(3, 3, dtype=torch.bool).tril()
    output = block_sparse_attention(*inputs, block_size=4, allowed=one_way)
    with pytest.raises(AssertionError):
        sparse_assert_same(output, sparse_torch(*inputs, tile_mask(one_way.T, 4, 12, 12)), inputs)


def test_sparse_tile_pattern():
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


def test_sparse_memory():
    """Far below one T x T matrix, backward included; strided: T²/stride, so four times for twice the length."""
    length = 1024
    inputs = torch.randn(3, 1, length, 16, requires_grad=True)
    tiles = partial(block_sparse_attention, block_size=64, allowed=tile_pattern(16, num_random=1))
    for attention in (partial(strided_attention, stride=32), tiles):
        peak = peak_memory(lambda attention=attention: torch.autograd.grad(attention(*inputs).sum(), inputs))
        assert peak < length * length * 4 / 2
    for size in (512, 1024):
        x = torch.randn(1, size, 16)
        allowed = tile_pattern(size // 64)
        peak = peak_memory(partial(block_sparse_attention, x, x, x, block_size=64, allowed=allowed))
        assert peak < 8 * size * (16 + 64) * 4, "forward memory must be O(T (d + block))"


def test_sparse_errors():
    x = torch.randn(6, 3)
    with pytest.raises(ValueError, match="stride must be 1 or more: got 0"):
        strided_attention(x, x, x, stride=0)
    with pytest.raises(ValueError, match="block_size must be 1 or more: got 0"):
        block_sparse_attention(x, x, x, block_size=0, allowed=torch.ones(6, 6, dtype=torch.bool))
    for allowed in (torch.ones(3, 2, dtype=torch.bool), torch.ones(2, 2)):
        with pytest.raises(ValueError, match=r"bool, one cell for each tile of 4 x 4, \(2, 2\): got torch"):
            block_sparse_attention(x, x, x, block_size=4, allowed=allowed)
    tiles = partial(block_sparse_attention, block_size=3, allowed=torch.ones(2, 2, dtype=torch.bool))
    for function in (partial(strided_attention, stride=2), tiles):
        with pytest.raises(ValueError, match="same length T_k: got 6 and 5"):
            function(x, x, x[:5])


def test_sparse_reach_by_hand():
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


def test_sparse_reach_is_a_product_of_paths():
    """Reach after n layers = pairs joined by a path of n steps, from the integer matrix power."""
    allowed = tile_pattern(6, window=0, num_global=0, num_random=1, seed=3)
    for n, seen in enumerate(sparse_reach.reach([allowed] * 4), start=1):
        assert torch.equal(seen, torch.linalg.matrix_power(allowed.double(), n) > 0)


def test_sparse_score_cells():
    """Counted at the products: T² under a mask, and the sum of the tiles or the T²/stride pairs without one."""
    allowed = tile_pattern(6, num_random=1)
    for length in (48, 45):  # a shorter last tile
        cells = int(tile_mask(allowed, 8, length, length).sum())
        tiles = partial(block_sparse_attention, block_size=8, allowed=allowed)
        assert sparse_reach.score_cells(tiles, length) == cells
    assert sparse_reach.score_cells(partial(strided_attention, stride=8), 48) == 48 * 48 // 8
    assert sparse_reach.score_cells(sparse_reach.masked(strided_mask(48, 48, 8)), 48) == 48 * 48


def test_sparse_reach_table():
    table = sparse_reach.reach_table(64)
    assert table[sparse_reach.LOCAL] == (8, 8)  # 63 steps of 8
    assert table[sparse_reach.STRIDED] == (math.inf, math.inf)
    assert table[sparse_reach.IN_TURN] == (2, 2)
    assert table[sparse_reach.FIRST][0] == 2 < table[sparse_reach.FIRST][1]


def test_sparse_reach_runs(tmp_path, capsys):
    sparse_reach.main(["--quick", "--output-dir", str(tmp_path)])
    assert "never" in capsys.readouterr().out
    assert (tmp_path / "visualizations/plots/phase4/sparse_reach.png").exists()
