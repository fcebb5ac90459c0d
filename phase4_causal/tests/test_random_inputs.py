"""Random and hostile inputs for the public functions, from hypothesis: shapes, dtypes, masks, values to the limits.

The oracle is torch's own function in float64, or a plain loop. The examples are the same at every run, and no files of
earlier ones are kept.
"""

import math
import tempfile

import pytest
import torch
import torch.nn.functional as F
from hypothesis import configuration, given, settings
from hypothesis import strategies as st

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, StackOfHeads
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent, linear_by_loops
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.long_texts.strided_attention import strided_attention
from shared.attention_checks import torch_twin
from shared.attention_utils import (
    causal_mask,
    local_mask,
    padding_mask,
    strided_mask,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LARGEST = {torch.float64: 1e150, torch.float32: 1e17, torch.bfloat16: 1e17, torch.float16: 6e4}  # scores stay finite
lengths, sizes, seeds = st.integers(0, 9), st.integers(1, 7), st.integers(0, 2**32)
NOTES = tempfile.TemporaryDirectory(prefix="hypothesis-")  # it keeps some even without a database; gone at the end
configuration.set_hypothesis_home_dir(NOTES.name)
leadings = st.lists(st.integers(0, 3), max_size=2).map(tuple)


def examples(count):
    return settings(max_examples=count, derandomize=True, database=None, deadline=None)


def normal(seed, *shapes, size=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [(size * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype) for shape in shapes]


def random_mask(seed, shape):
    """From nearly nothing to nearly all visible."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) < torch.rand((), generator=generator)


@st.composite
def sized(draw, dtype):
    """1, or anything up to the limit of the dtype."""
    most = math.log10(LARGEST[dtype])
    return 10 ** draw(st.one_of(st.just(0.0), st.floats(-most, most)))


@st.composite
def attention_inputs(draw):
    """query, key, value of any dtype, size and number of axes, and a mask of each accepted shape, or none."""
    dtype, leading, seed = draw(st.sampled_from(DTYPES)), draw(leadings), draw(seeds)
    t_q, t_k, d_k, d_v = draw(lengths), draw(lengths), draw(sizes), draw(sizes)
    (query,), (key,), (value,) = (
        normal(seed + i, (*leading, *shape), size=draw(sized(dtype)) / 8, dtype=dtype)
        for i, shape in enumerate(((t_q, d_k), (t_k, d_k), (t_k, d_v)))
    )
    full = (*leading, t_q, t_k)
    shapes = [None, (t_q, t_k), *({tuple(draw(st.sampled_from((1, n))) for n in full)} if leading else ())]
    shape = draw(st.sampled_from(shapes))
    return query, key, value, None if shape is None else random_mask(seed, shape)


def by_torch(query, key, value, mask):
    """In float64, with 0 where a query sees no key."""
    t_q, t_k = query.size(-2), key.size(-2)
    mask = torch.ones(t_q, t_k, dtype=torch.bool) if mask is None else mask
    sees = mask.any(dim=-1, keepdim=True) & torch.ones(t_q, 1, dtype=torch.bool)
    output = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), attn_mask=mask | ~sees)
    return output.masked_fill(~sees, 0.0)


def room_for_rounding(query, key, value):
    """How far a mean of the values may be off: the scores by rounding, and the result by its own."""
    work = torch.finfo(query.dtype if query.dtype.itemsize > 2 else torch.float32).eps
    scores = (query.double().abs() @ key.double().abs().mT).amax() if query.numel() * key.numel() else 0.0
    given = torch.finfo(query.dtype)
    return (4 * given.eps + 32 * work * (1 + scores)) * value.double().abs().max() + given.eps * given.tiny


@examples(600)
@given(attention_inputs())
def test_core_is_torchs_function_and_its_output_a_mean_of_what_is_seen(inputs):
    query, key, value, mask = inputs
    inputs = [x.requires_grad_() for x in (query, key, value)]
    output, weights = scaled_dot_product_attention(*inputs, mask)
    assert output.dtype == weights.dtype == query.dtype
    full = torch.ones(weights.shape, dtype=torch.bool) & (True if mask is None else mask)
    assert not weights[~full].any(), "a hidden key has a weight"
    total, sees = weights.double().sum(dim=-1), full.any(dim=-1)
    tolerance = 2 * key.size(-2) * torch.finfo(query.dtype).eps
    torch.testing.assert_close(total, sees.double(), rtol=0, atol=max(tolerance, 1e-15))
    if value.numel():
        error = (output.double() - by_torch(query, key, value, mask)).abs()
        assert (error <= room_for_rounding(query, key, value)).all()
    slopes = torch.autograd.grad(output.double().sum(), inputs)
    if query.double().abs().sum() * key.double().abs().sum() * value.double().abs().sum() < 1e4:
        assert all(slope.isfinite().all() for slope in slopes)


anything = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@examples(500)
@given(st.tuples(anything, anything, anything), st.one_of(st.none(), anything), st.sampled_from((*DTYPES, torch.int64)))
def test_any_shapes_give_what_torch_gives_or_an_error_of_ours(shapes, mask_shape, dtype):
    """Nothing else: no error from inside torch, no result where torch has another one or none."""
    query, key, value = (torch.ones(shape, dtype=dtype) for shape in shapes)
    mask = None if mask_shape is None else torch.ones(mask_shape, dtype=torch.bool)
    try:
        output, weights = scaled_dot_product_attention(query, key, value, mask)
    except ValueError as error:
        assert "got" in str(error) or "does not broadcast" in str(error) or "must agree" in str(error)
        # of masks and vectors we take fewer kinds, so that none has two meanings. Products say what torch's function
        # does not look at: it takes values that are more than the keys
        if "mask" not in str(error) and all(x.dim() >= 2 and x.numel() for x in (query, key, value)):
            with pytest.raises(RuntimeError):
                (query @ key.mT).softmax(dim=-1) @ value
        return
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    assert weights.shape[-2:] == (query.size(-2), key.size(-2)) and output.shape[-1] == value.size(-1)
    same = [x.expand(*leading, *x.shape[-2:]).double() for x in (query, key, value)]
    torch.testing.assert_close(output.double(), F.scaled_dot_product_attention(*same, attn_mask=mask))


@st.composite
def long_inputs(draw):
    """float64, with lengths of their own, and whether the future is hidden."""
    leading, t_q, t_k = draw(leadings), draw(st.integers(0, 40)), draw(st.integers(0, 40))
    d_k, d_v = draw(sizes), draw(sizes)
    shapes = [(*leading, *shape) for shape in ((t_q, d_k), (t_k, d_k), (t_k, d_v))]
    return normal(draw(seeds), *shapes, size=draw(st.sampled_from((0.1, 1.0, 30.0)))), draw(st.booleans())


def assert_masked(output, inputs, mask):
    torch.testing.assert_close(output, by_torch(*inputs, mask), rtol=0, atol=1e-9)


@examples(200)
@given(long_inputs(), st.integers(1, 50))
def test_tiles_of_any_size_are_masked_attention(drawn, block_size):
    inputs, causal = drawn
    t_q, t_k = inputs[0].size(-2), inputs[1].size(-2)
    mask = torch.ones(t_q, t_k, dtype=torch.bool).tril(t_k - t_q) if causal else None
    assert_masked(flash_attention(*inputs, causal=causal, block_size=block_size), inputs, mask)


@examples(200)
@given(long_inputs(), st.integers(0, 45), st.integers(1, 45))
def test_bands_and_strides_are_masked_attention(drawn, window, stride):
    inputs, causal = drawn
    t_q, t_k = inputs[0].size(-2), inputs[1].size(-2)
    distance = torch.arange(t_k) - torch.arange(t_q)[:, None] - (t_k - t_q)
    past = distance <= 0 if causal else torch.ones(t_q, t_k, dtype=torch.bool)
    assert_masked(local_attention(*inputs, window=window, causal=causal), inputs, past & (distance.abs() <= window))
    strided = strided_attention(*inputs, stride=stride, causal=causal)
    assert_masked(strided, inputs, past & (distance % stride == 0))


@examples(150)
@given(st.integers(0, 12), st.integers(0, 12), sizes, seeds, st.sampled_from((0.1, 1.0, 5.0)), st.booleans())
def test_linear_attention_is_its_loops(t_q, t_k, d, seed, size, causal):
    inputs = normal(seed, (t_q, d), (t_k, d), (t_k, 3), size=size)
    for feature_map in ("elu", "relu"):
        by_loops = linear_by_loops(*inputs, causal=causal, feature_map=feature_map)
        found = linear_attention(*inputs, causal=causal, feature_map=feature_map)
        torch.testing.assert_close(found, by_loops, rtol=0, atol=1e-10)
        if causal and t_q == t_k:
            recurrent, _ = linear_attention_recurrent(*inputs, feature_map=feature_map)
            torch.testing.assert_close(recurrent, by_loops, rtol=0, atol=1e-10)


@examples(150)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12), st.lists(st.integers(0, 12), max_size=4))
def test_masks_are_their_predicates(t_q, t_k, number, of_sequences):
    step = max(number, 1)
    predicates = {
        causal_mask: lambda i, j: j <= i,
        (lambda t_q, t_k: local_mask(t_q, t_k, number)): lambda i, j: abs(i - j) <= number,
        (lambda t_q, t_k: strided_mask(t_q, t_k, step)): lambda i, j: (i - j) % step == 0,
    }
    for mask, predicate in predicates.items():
        expected = [[predicate(i + t_k - t_q, j) for j in range(t_k)] for i in range(t_q)]
        assert mask(t_q, t_k).tolist() == expected
    lengths = torch.tensor(of_sequences, dtype=torch.long)
    if any(length > t_k for length in of_sequences):
        with pytest.raises(ValueError, match=f"between 0 and T_k={t_k}"):
            padding_mask(lengths, t_k)
    else:
        expected = [[j < length for j in range(t_k)] for length in of_sequences]
        assert padding_mask(lengths, t_k).flatten(1).tolist() == expected


@examples(150)
@given(sizes, sizes, st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.booleans(), seeds)
def test_multi_head_is_torchs_module_and_a_stack_of_heads(heads, d_k, batch, t_q, t_k, bias, seed):
    torch.manual_seed(seed)
    ours = MultiHeadAttention(heads * d_k, heads, bias=bias).double()
    x, context = normal(seed, (batch, t_q, heads * d_k), (batch, t_k, heads * d_k))
    mask = random_mask(seed, (batch, heads, t_q, t_k))
    mask[..., 0] = True  # torch's module gives NaN to a query without a key
    hidden = ~mask.flatten(0, 1)
    theirs = torch_twin(ours)(x, context, context, attn_mask=hidden, average_attn_weights=False)
    for a, b in zip(ours(x, context, mask=mask), theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    if not bias:
        stack = StackOfHeads(heads * d_k, heads).double()
        stack.copy_weights(ours)
        own = causal_mask(t_q)
        torch.testing.assert_close(stack(x, own), ours(x, mask=own), rtol=0, atol=1e-11)


@examples(100)
@given(sizes, sizes, st.lists(st.integers(0, 4), min_size=1, max_size=5), seeds)
def test_a_cache_filled_in_any_chunks_is_one_pass(heads, d_k, chunks, seed):
    torch.manual_seed(seed)
    chunks = [chunk for chunk in chunks if chunk] or [1]
    attention = CausalSelfAttention(heads * d_k, heads).double()
    (x,) = normal(seed, (2, sum(chunks), heads * d_k))
    cache = KeyValueCache(2, heads, sum(chunks), d_k, dtype=torch.float64)
    with torch.no_grad():
        parts = [attention(part, cache=cache)[0] for part in x.split(chunks, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), attention(x)[0], rtol=0, atol=1e-11)
