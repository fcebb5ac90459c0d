"""Random and hostile inputs for the public functions: shapes, dtypes, masks, sizes (hypothesis).

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
from shared.tests.helpers import as_printed, near

LARGEST = {  # scores stay finite
    torch.float64: 1e150,
    torch.float32: 1e17,
    torch.bfloat16: 1e17,
    torch.float16: 6e4,
}
lengths, sizes, seeds = st.integers(0, 9), st.integers(1, 7), st.integers(0, 2**32)
leadings = st.lists(st.integers(0, 3), max_size=2).map(tuple)
# It keeps some files even without a database; they are gone at the end.
NOTES = tempfile.TemporaryDirectory(prefix="hypothesis-")
configuration.set_hypothesis_home_dir(NOTES.name)


def examples(count):
    return settings(max_examples=count, derandomize=True, database=None, deadline=None)


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_mask(seed, shape):
    """From nearly nothing to nearly all visible."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) < torch.rand((), generator=generator)


@st.composite
def attention_inputs(draw):
    """query, key, value of any dtype, size and number of axes, and an accepted mask, or none."""
    dtype, leading, seed = draw(st.sampled_from(list(LARGEST))), draw(leadings), draw(seeds)
    t_q, t_k, d_k, d_v = draw(lengths), draw(lengths), draw(sizes), draw(sizes)
    most = math.log10(LARGEST[dtype])
    inputs = []
    for i, shape in enumerate(((t_q, d_k), (t_k, d_k), (t_k, d_v))):
        size = 10 ** draw(st.one_of(st.just(0.0), st.floats(-most, most)))
        inputs.append((size / 8 * normal(seed + i, *leading, *shape)).to(dtype))
    shapes = [None, (t_q, t_k)]
    if leading:
        shapes.append(tuple(draw(st.sampled_from((1, n))) for n in (*leading, t_q, t_k)))
    shape = draw(st.sampled_from(shapes))
    return inputs, None if shape is None else random_mask(seed, shape)


def by_torch(query, key, value, mask):
    """In float64, with 0 where a query sees no key."""
    sees = mask.any(dim=-1, keepdim=True)
    inputs = query.double(), key.double(), value.double()
    output = F.scaled_dot_product_attention(*inputs, attn_mask=mask | ~sees)
    return output.masked_fill(~sees, 0.0)


def room_for_rounding(query, key, value):
    """How far a mean of values may be off: the scores by rounding, and the result by its own."""
    given = torch.finfo(query.dtype)
    work = min(given.eps, torch.finfo(torch.float32).eps)
    scores = query.double().abs() @ key.double().abs().mT
    largest = scores.amax() if scores.numel() else 0.0
    share = 4 * given.eps + 32 * work * (1 + largest)
    return share * value.double().abs().max() + given.eps * given.tiny


@examples(700)
@given(attention_inputs())
def test_core_is_torchs_function_and_its_output_a_mean_of_what_is_seen(drawn):
    inputs, mask = drawn
    query, key, value = [x.requires_grad_() for x in inputs]
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert output.dtype == weights.dtype == query.dtype
    full = torch.ones(weights.shape, dtype=torch.bool) & (True if mask is None else mask)
    assert not weights[~full].any(), "a hidden key has a weight"
    tolerance = 20 * key.size(-2) * torch.finfo(query.dtype).eps
    near(weights.double().sum(dim=-1), full.any(dim=-1).double(), share=max(tolerance, 1e-15))
    if value.numel():
        error = (output.double() - by_torch(query, key, value, full)).abs()
        assert (error <= room_for_rounding(query, key, value)).all()
    slopes = torch.autograd.grad(output.double().sum(), inputs)
    if math.prod(x.double().abs().sum() for x in inputs) < 1e4:
        assert all(slope.isfinite().all() for slope in slopes)


anything = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@examples(650)
@given(
    st.tuples(anything, anything, anything),
    st.one_of(st.none(), anything),
    st.sampled_from((*LARGEST, torch.int64)),
)
def test_any_shapes_give_what_torch_gives_or_an_error_of_ours(shapes, mask_shape, dtype):
    """Nothing else: no error from inside torch, no result where torch has another one or none."""
    query, key, value = inputs = [torch.ones(shape, dtype=dtype) for shape in shapes]
    mask = None if mask_shape is None else torch.ones(mask_shape, dtype=torch.bool)
    try:
        output, weights = scaled_dot_product_attention(query, key, value, mask)
    except ValueError as error:
        said = str(error)
        assert "got" in said or "does not broadcast" in said or "must agree" in said
        # Of masks and vectors we take fewer kinds, so that none has two meanings. Products say what
        # torch's function does not look at: it takes values that are more than the keys.
        if "mask" not in said and all(x.dim() >= 2 and x.numel() for x in inputs):
            with pytest.raises(RuntimeError):
                (query @ key.mT).softmax(dim=-1) @ value
        return
    leading = torch.broadcast_shapes(*[shape[:-2] for shape in shapes])
    assert weights.shape[-2:] == (query.size(-2), key.size(-2))
    assert output.shape[-1] == value.size(-1)
    same = [x.expand(*leading, *x.shape[-2:]).double() for x in inputs]
    near(output.double(), F.scaled_dot_product_attention(*same, attn_mask=mask))


# ---- numbers that other projects print of the same mechanisms; each names its source


def test_llms_from_scratch_attention_without_weights():
    """rasbt/LLMs-from-scratch, section 3.3: words are queries, keys, values; nothing by √3."""
    first = [0.43, 0.15, 0.89, 0.55, 0.87, 0.66, 0.57, 0.85, 0.64]
    last = [0.22, 0.58, 0.33, 0.77, 0.25, 0.10, 0.05, 0.80, 0.55]
    x = torch.tensor([*first, *last]).view(6, 3)
    output, weights = scaled_dot_product_attention(math.sqrt(3) * x, x, x)
    as_printed(weights[1], [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581], digits=4)
    as_printed(output[1], [0.4419, 0.6515, 0.5683], digits=4)
