"""Random and hostile inputs for the public functions, from hypothesis: shapes, dtypes, masks,
values to the limits.

The oracle is torch's own function in float64, or a plain loop. The examples are the same at every
run, and no files of earlier ones are kept.
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
from phase4_causal.long_texts.local_attention import local_attention
from shared.attention_checks import torch_twin
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import as_printed, near

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LARGEST = {
    torch.float64: 1e150,
    torch.float32: 1e17,
    torch.bfloat16: 1e17,
    torch.float16: 6e4,
}  # scores stay finite
lengths, sizes, seeds = st.integers(0, 9), st.integers(1, 7), st.integers(0, 2**32)
NOTES = tempfile.TemporaryDirectory(
    prefix="hypothesis-"
)  # it keeps some even without a database; gone at the end
configuration.set_hypothesis_home_dir(NOTES.name)
leadings = st.lists(st.integers(0, 3), max_size=2).map(tuple)


def examples(count):
    return settings(max_examples=count, derandomize=True, database=None, deadline=None)


def normal(seed, *shapes, size=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [
        (size * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
        for shape in shapes
    ]


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
    """query, key, value of any dtype, size and number of axes, and a mask of each accepted shape,
    or none.
    """
    dtype, leading, seed = draw(st.sampled_from(DTYPES)), draw(leadings), draw(seeds)
    t_q, t_k, d_k, d_v = draw(lengths), draw(lengths), draw(sizes), draw(sizes)
    (query,), (key,), (value,) = (
        normal(seed + i, (*leading, *shape), size=draw(sized(dtype)) / 8, dtype=dtype)
        for i, shape in enumerate(((t_q, d_k), (t_k, d_k), (t_k, d_v)))
    )
    full = (*leading, t_q, t_k)
    shapes = [
        None,
        (t_q, t_k),
        *({tuple(draw(st.sampled_from((1, n))) for n in full)} if leading else ()),
    ]
    shape = draw(st.sampled_from(shapes))
    return query, key, value, None if shape is None else random_mask(seed, shape)


def by_torch(query, key, value, mask):
    """In float64, with 0 where a query sees no key."""
    t_q, t_k = query.size(-2), key.size(-2)
    mask = torch.ones(t_q, t_k, dtype=torch.bool) if mask is None else mask
    sees = mask.any(dim=-1, keepdim=True) & torch.ones(t_q, 1, dtype=torch.bool)
    output = F.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), attn_mask=mask | ~sees
    )
    return output.masked_fill(~sees, 0.0)


def room_for_rounding(query, key, value):
    """How far a mean of the values may be off: the scores by rounding, and the result by its own."""
    work = torch.finfo(query.dtype if query.dtype.itemsize > 2 else torch.float32).eps
    scores = (
        (query.double().abs() @ key.double().abs().mT).amax()
        if query.numel() * key.numel()
        else 0.0
    )
    given = torch.finfo(query.dtype)
    return (
        4 * given.eps + 32 * work * (1 + scores)
    ) * value.double().abs().max() + given.eps * given.tiny


@examples(700)
@given(attention_inputs())
def test_core_is_torchs_function_and_its_output_a_mean_of_what_is_seen(inputs):
    query, key, value, mask = inputs
    inputs = [x.requires_grad_() for x in (query, key, value)]
    output, weights = scaled_dot_product_attention(*inputs, mask)
    assert output.dtype == weights.dtype == query.dtype
    full = torch.ones(weights.shape, dtype=torch.bool) & (True if mask is None else mask)
    assert not weights[~full].any(), "a hidden key has a weight"
    total, sees = weights.double().sum(dim=-1), full.any(dim=-1)
    tolerance = 20 * key.size(-2) * torch.finfo(query.dtype).eps
    near(total, sees.double(), share=max(tolerance, 1e-15))
    if value.numel():
        error = (output.double() - by_torch(query, key, value, mask)).abs()
        assert (error <= room_for_rounding(query, key, value)).all()
    slopes = torch.autograd.grad(output.double().sum(), inputs)
    if query.double().abs().sum() * key.double().abs().sum() * value.double().abs().sum() < 1e4:
        assert all(slope.isfinite().all() for slope in slopes)


anything = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@examples(650)
@given(
    st.tuples(anything, anything, anything),
    st.one_of(st.none(), anything),
    st.sampled_from((*DTYPES, torch.int64)),
)
def test_any_shapes_give_what_torch_gives_or_an_error_of_ours(shapes, mask_shape, dtype):
    """Nothing else: no error from inside torch, no result where torch has another one or none."""
    query, key, value = (torch.ones(shape, dtype=dtype) for shape in shapes)
    mask = None if mask_shape is None else torch.ones(mask_shape, dtype=torch.bool)
    try:
        output, weights = scaled_dot_product_attention(query, key, value, mask)
    except ValueError as error:
        assert (
            "got" in str(error) or "does not broadcast" in str(error) or "must agree" in str(error)
        )
        # of masks and vectors we take fewer kinds, so that none has two meanings. Products say what
        # torch's function does not look at: it takes values that are more than the keys
        if "mask" not in str(error) and all(
            x.dim() >= 2 and x.numel() for x in (query, key, value)
        ):
            with pytest.raises(RuntimeError):
                (query @ key.mT).softmax(dim=-1) @ value
        return
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    assert weights.shape[-2:] == (query.size(-2), key.size(-2)) and output.shape[-1] == value.size(
        -1
    )
    same = [x.expand(*leading, *x.shape[-2:]).double() for x in (query, key, value)]
    near(output.double(), F.scaled_dot_product_attention(*same, attn_mask=mask))


@st.composite
def long_inputs(draw):
    """float64, with lengths of their own, and whether the future is hidden."""
    leading, t_q, t_k = draw(leadings), draw(st.integers(0, 40)), draw(st.integers(0, 40))
    d_k, d_v = draw(sizes), draw(sizes)
    shapes = [(*leading, *shape) for shape in ((t_q, d_k), (t_k, d_k), (t_k, d_v))]
    return normal(draw(seeds), *shapes, size=draw(st.sampled_from((0.1, 1.0, 30.0)))), draw(
        st.booleans()
    )


def assert_masked(output, inputs, mask):
    near(output, by_torch(*inputs, mask), share=1e-9)


@examples(200)
@given(long_inputs(), st.integers(1, 50))
def test_tiles_of_any_size_are_masked_attention(drawn, block_size):
    inputs, causal = drawn
    t_q, t_k = inputs[0].size(-2), inputs[1].size(-2)
    mask = torch.ones(t_q, t_k, dtype=torch.bool).tril(t_k - t_q) if causal else None
    assert_masked(flash_attention(*inputs, causal=causal, block_size=block_size), inputs, mask)


@examples(200)
@given(long_inputs(), st.integers(0, 45))
def test_a_band_is_masked_attention(drawn, window):
    inputs, causal = drawn
    t_q, t_k = inputs[0].size(-2), inputs[1].size(-2)
    distance = torch.arange(t_k) - torch.arange(t_q)[:, None] - (t_k - t_q)
    near_by = (distance >= -window) & (distance <= (0 if causal else window))
    assert_masked(local_attention(*inputs, window=window, causal=causal), inputs, near_by)


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
        near(a, b, share=1e-11)
    if not bias:
        stack = StackOfHeads(heads * d_k, heads).double()
        stack.copy_weights(ours)
        own = causal_mask(t_q)
        near(stack(x, own), ours(x, mask=own), share=1e-11)


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
        near(torch.cat(parts, dim=1), attention(x)[0], share=1e-11)


# ---- numbers that other projects print of the same mechanisms, and what their issues are about; each names its source


def test_llms_from_scratch_attention_without_weights():
    """rasbt/LLMs-from-scratch, section 3.3: words are queries, keys and values, and nothing is
    divided by √3.
    """
    words = [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
    ]
    x = torch.tensor([*words, [0.05, 0.80, 0.55]])
    output, weights = scaled_dot_product_attention(math.sqrt(3) * x, x, x)
    as_printed(weights[1], [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581], digits=4)
    as_printed(output[1], [0.4419, 0.6515, 0.5683], digits=4)


def test_d2l_dot_product_attention_on_equal_keys():
    """d2l-ai/d2l-en, attention-scoring-functions: keys of ones, so means of the first 2 and of the
    first 6 values.
    """
    value = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    mask = padding_mask(torch.tensor([2, 6]), 10)[:, 0]
    output, _ = scaled_dot_product_attention(
        torch.randn(2, 1, 2), torch.ones(2, 10, 2), value, mask
    )
    near(output, torch.tensor([[[2.0, 3, 4, 5]], [[10.0, 11, 12, 13]]]))


def test_pytorch_products_that_16_bits_cannot_hold():
    """test_scaled_dot_product_attention_fp16_overflow (issue 160841): scores of 586,000, an output
    of 256.
    """
    x = torch.full((1, 32, 23, 80), 256.0, dtype=torch.float16)
    for found in (scaled_dot_product_attention(x, x, x)[0], flash_attention(x, x, x)):
        assert torch.equal(found, x)
