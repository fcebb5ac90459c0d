"""What other projects' own tests and pages ask of the same mechanisms, as cases of ours. Each names its source.

Numbers are those that the source prints; where it compares with a reference, that is written here once more, as a loop
or with torch's own functions. Their masks may mean the opposite or count otherwise: then a comment says so.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from phase1_single_head.self_attention import SelfAttention, masked_softmax, scaled_dot_product_attention
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent
from phase4_causal.long_texts.local_attention import local_attention
from shared.attention_utils import causal_mask, local_mask, padding_mask
from shared.tests.helpers import close, qkv

# ---- rasbt/LLMs-from-scratch, ch03/01_main-chapter-code/ch03.ipynb: "Your journey starts with one step"

JOURNEY = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)


def assert_printed(found, printed):
    close(found, torch.tensor(printed), rtol=0, atol=5.1e-5)


def test_llms_from_scratch_attention_without_weights():
    """Section 3.3: the words are queries, keys and values, and nothing is divided by √3."""
    output, weights = scaled_dot_product_attention(math.sqrt(3) * JOURNEY, JOURNEY, JOURNEY)
    assert_printed(weights[1], [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581])
    assert_printed(output[1], [0.4419, 0.6515, 0.5683])


def test_llms_from_scratch_self_attention_with_seed_123():
    """Section 3.4: uniform matrices (3, 2) that the words are multiplied by from the left."""
    ours = SelfAttention(3, 2, 2)
    torch.manual_seed(123)
    for w in (ours.w_q, ours.w_k, ours.w_v):
        w.weight = nn.Parameter(torch.rand(3, 2).T)
    output, weights = ours(JOURNEY)
    assert_printed(weights[0, 1], [0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820])
    assert_printed(output[1], [0.3061, 0.8210])


def test_llms_from_scratch_causal_weights_with_seed_789():
    """Sections 3.4 and 3.5: nn.Linear without biases; then the future is hidden."""
    torch.manual_seed(789)
    ours = SelfAttention(3, 2, 2)
    assert_printed(ours(JOURNEY)[0][0], [-0.0739, 0.0713])
    weights = ours(JOURNEY, causal_mask(6))[1][0]
    assert_printed(weights[1], [0.5517, 0.4483, 0, 0, 0, 0])
    assert_printed(weights[2], [0.3800, 0.3097, 0.3103, 0, 0, 0])
    assert_printed(weights[5], [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529])


def test_llms_from_scratch_two_causal_heads_with_seed_123():
    """Section 3.6: from 3 numbers to 2, so our module, whose sizes are equal, is put together from its parts."""
    torch.manual_seed(123)
    w_q, w_k, w_v = (nn.Linear(3, 2, bias=False) for _ in range(3))
    w_o = nn.Linear(2, 2)
    query, key, value = (split_heads(w(JOURNEY[None]), 2) for w in (w_q, w_k, w_v))
    heads, _ = scaled_dot_product_attention(query, key, value, causal_mask(6))
    printed = [[0.3190, 0.4858], [0.2943, 0.3897], [0.2856, 0.3593], [0.2693, 0.3873], [0.2639, 0.3928]]
    assert_printed(w_o(merge_heads(heads))[0], [*printed, [0.2575, 0.4028]])


# ---- pytorch/pytorch, test/test_transformers.py, and its issue 41508


@pytest.mark.parametrize("shape", [(5, 7), (1, 1, 5, 7), (2, 1, 5, 7), (1, 3, 5, 7), (2, 3, 5, 7), (2, 1, 1, 7)])
def test_pytorch_masks_of_every_shape(shape):
    inputs, mask = qkv(), torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.7
    mask[..., 0] = True
    close(scaled_dot_product_attention(*inputs, mask)[0], F.scaled_dot_product_attention(*inputs, attn_mask=mask))


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")  # where ours gives 0
@pytest.mark.parametrize(("t_q", "t_k"), [(5, 5), (3, 8), (8, 3), (1, 9)])
def test_pytorch_causal_biases_of_unequal_lengths(t_q, t_k):
    """TestAttnBias: ours is causal_lower_right; the flag is_causal is the other one."""
    inputs = qkv(t_q=t_q, t_k=t_k)
    sees = causal_mask(t_q, t_k).any(dim=-1, keepdim=True)
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=causal_lower_right(t_q, t_k)._materialize())
    for found in (
        scaled_dot_product_attention(*inputs, causal_mask(t_q, t_k))[0],
        flash_attention(*inputs, causal=True, block_size=2),
    ):
        close(found, expected.where(sees, torch.zeros(()).double()))
    flag = scaled_dot_product_attention(*inputs, torch.ones(t_q, t_k, dtype=torch.bool).tril())[0]
    close(flag, F.scaled_dot_product_attention(*inputs, attn_mask=causal_upper_left(t_q, t_k)._materialize()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_pytorch_rows_that_see_nothing(dtype):
    """test_fully_masked_out_rows: 0, forwards and backwards. nn.MultiheadAttention gives NaN there (issue 41508)."""
    inputs = [x.requires_grad_() for x in qkv(dtype=dtype)]
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    output, _ = scaled_dot_product_attention(*inputs, mask)
    assert output[..., 2, :].eq(0).all()
    output.sum().backward()
    assert inputs[0].grad[..., 2, :].eq(0).all() and all(x.grad.isfinite().all() for x in inputs)
    x, nothing = torch.randn(1, 3, 6), torch.zeros(1, 1, 1, 3, dtype=torch.bool)
    theirs = nn.MultiheadAttention(6, 2, batch_first=True)
    assert theirs(x, x, x, key_padding_mask=~nothing[:, 0, 0])[0].isnan().all()
    ours = MultiHeadAttention(6, 2)
    close(ours(x, mask=nothing)[0], ours.w_o.bias.expand(1, 3, 6))


def test_pytorch_grouped_queries():
    """enable_gqa: query heads 0 and 1 read the first key-value head, 2 and 3 the second."""
    ours = GroupedQueryAttention(24, 4, 2).double()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    query, key, value = split_heads(ours.w_q(x), 4), split_heads(ours.w_k(x), 2), split_heads(ours.w_v(x), 2)
    heads = F.scaled_dot_product_attention(query, key, value, attn_mask=causal_mask(5), enable_gqa=True)
    close(ours(x, mask=causal_mask(5))[0], ours.w_o(merge_heads(heads)))


def test_pytorch_products_that_16_bits_cannot_hold():
    """test_scaled_dot_product_attention_fp16_overflow (issue 160841): scores of 586,000, an output of 256."""
    x = torch.full((1, 32, 23, 80), 256.0, dtype=torch.float16)
    for found in (scaled_dot_product_attention(x, x, x)[0], flash_attention(x, x, x)):
        assert torch.equal(found, x)


# ---- Dao-AILab/flash-attention: README.md, and the reference of tests/test_flash_attn.py


@pytest.mark.parametrize(
    ("t_q", "t_k", "printed"),
    [(2, 5, "11110 11111"), (5, 2, "00 00 00 10 11")],
)
def test_flash_attention_causal_masks_as_printed(t_q, t_k, printed):
    """README, changes of version 2.1: the mask is aligned to the bottom right; a row without a key gives 0."""
    mask = causal_mask(t_q, t_k)
    assert ["".join(str(int(cell)) for cell in row) for row in mask] == printed.split()
    output = flash_attention(*qkv(t_q=t_q, t_k=t_k), causal=True)
    assert torch.equal(output.ne(0).any(dim=-1)[0, 0], mask.any(dim=-1))


@pytest.mark.parametrize("window", [(0, 0), (3, 3), (4, 0), (30, 30)])
@pytest.mark.parametrize(("t_q", "t_k"), [(11, 11), (5, 17), (17, 5)])
def test_flash_attention_windows(window, t_q, t_k):
    """window_size=(left, right), from i + T_k - T_q - left to i + T_k - T_q + right. Ours: both alike, or causal."""
    left, right = window
    query, key, value = qkv(t_q=t_q, t_k=t_k)
    expected = torch.zeros(*query.shape[:-1], value.size(-1), dtype=torch.float64)
    for i in range(t_q):
        at = i + t_k - t_q
        seen = slice(max(0, at - left), max(0, at + right + 1))
        if key[..., seen, :].size(-2):
            expected[..., i : i + 1, :] = F.scaled_dot_product_attention(
                query[..., i : i + 1, :], key[..., seen, :], value[..., seen, :]
            )
    close(local_attention(query, key, value, window=left, causal=left != right), expected)


def test_flash_attention_alibi():
    """attn_bias_from_alibi_slopes, not causal: -slope · |i + T_k - T_q - j|, a bias that is added to the scores."""
    query, key, value = qkv()
    slopes = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)[:, None, None]
    distance = torch.tensor([[abs(i + 2 - j) for j in range(7)] for i in range(5)])
    weights = masked_softmax(query @ key.mT / math.sqrt(11) - slopes * distance)
    close(weights @ value, F.scaled_dot_product_attention(query, key, value, attn_mask=-slopes * distance))


# ---- d2l-ai/d2l-en, chapter_attention-mechanisms-and-transformers


def test_d2l_masked_softmax():
    """attention-scoring-functions: of rows of 4 scores 2 and 3 are valid; zeros elsewhere, rows sum to 1."""
    weights = masked_softmax(torch.rand(2, 2, 4), padding_mask(torch.tensor([2, 3]), 4)[:, 0])
    assert weights[0, :, 2:].eq(0).all() and weights[1, :, 3:].eq(0).all()
    close(weights.sum(dim=-1), torch.ones(2, 2))


def test_d2l_dot_product_attention_on_equal_keys():
    """The same section: ten keys of ones, so that the output is the mean of the first 2, and of the first 6, values."""
    value = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    mask = padding_mask(torch.tensor([2, 6]), 10)[:, 0]
    output, _ = scaled_dot_product_attention(torch.randn(2, 1, 2), torch.ones(2, 10, 2), value, mask)
    close(output, torch.tensor([[[2.0, 3, 4, 5]], [[10.0, 11, 12, 13]]]))


def test_d2l_multi_head_shapes_with_valid_lengths():
    """multihead-attention: 100 numbers, 5 heads, 4 queries, 6 keys, of which 3 and 2 are valid."""
    attention = MultiHeadAttention(100, 5, bias=False)
    output, weights = attention(
        torch.ones(2, 4, 100), torch.ones(2, 6, 100), mask=padding_mask(torch.tensor([3, 2]), 6)
    )
    assert output.shape == (2, 4, 100)
    close(weights[1, :, :, :2], torch.full((5, 4, 2), 0.5))


# ---- huggingface/transformers, src/transformers/masking_utils.py: docstring of sdpa_mask


@pytest.mark.parametrize(
    ("mask", "printed"),
    [
        (causal_mask(5), "10000 11000 11100 11110 11111"),
        (causal_mask(5) & local_mask(5, 5, 2), "10000 11000 11100 01110 00111"),  # sliding_window=3, itself included
    ],
)
def test_transformers_masks_as_printed(mask, printed):
    assert ["".join(str(int(cell)) for cell in row) for row in mask] == printed.split()


def test_transformers_several_texts_in_a_row():
    """packed_sequence_mask_function (xformers: BlockDiagonalCausalMask): each text as if it stood alone."""
    inputs, text = qkv(t_q=9, t_k=9), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
    packed, _ = scaled_dot_product_attention(*inputs, causal_mask(9) & (text[:, None] == text))
    parts = zip(*(x.split([4, 2, 3], dim=-2) for x in inputs), strict=True)
    alone = [flash_attention(*part, causal=True) for part in parts]
    close(packed, torch.cat(alone, dim=-2))


# ---- linear attention: idiap/fast-transformers, fla-org/flash-linear-attention


@pytest.mark.parametrize("length", [1, 64, 65, 200])
def test_fast_transformers_causal_linear_attention(length):
    """fast_transformers/attention/causal_linear_attention.py: causal products over q_i · (k_1 + ... + k_i)."""
    query, key, value = qkv(t_q=length, t_k=length, d_k=4, d_v=5)
    phi_q, phi_k = F.elu(query) + 1, F.elu(key) + 1
    expected, state, normalizer = torch.zeros_like(value), 0, 0
    for i in range(length):
        state = state + phi_k[..., i, :, None] * value[..., i, None, :]
        normalizer = normalizer + phi_k[..., i, :]
        numerator = (phi_q[..., i, :, None] * state).sum(dim=-2)
        expected[..., i, :] = numerator / (phi_q[..., i, :] * normalizer).sum(dim=-1, keepdim=True)
    close(linear_attention(query, key, value, causal=True), expected)


@pytest.mark.parametrize("length", [0, 1, 63, 128, 130])
def test_flash_linear_attention_chunks_are_the_recurrence(length):
    """fla/ops/linear_attn/naive.py: a state that each word adds itself to; with φ(x) = relu(x), and no word at all."""
    query, key, value = qkv(t_q=length, t_k=length, d_k=4, d_v=5)
    states = torch.einsum("bhtk,bhtv->bhtkv", key.relu(), value).cumsum(dim=2)
    outputs = torch.einsum("bhtk,bhtkv->bhtv", query.relu(), states)
    total = torch.einsum("bhtk,bhtk->bht", query.relu(), key.relu().cumsum(dim=2))[..., None]
    expected = outputs / total.masked_fill(total == 0, 1)
    close(linear_attention(query, key, value, causal=True, feature_map="relu"), expected)
    output, state = linear_attention_recurrent(query, key, value, feature_map="relu")
    close(output, expected)
    close(state[..., :-1], states[:, :, -1] if length else torch.zeros(2, 3, 4, 5).double())


# ---- harvardnlp/annotated-transformer, meta-pytorch/attention-gym, lucidrains/memory-efficient-attention-pytorch


def test_annotated_transformer_subsequent_mask_and_where_we_differ():
    """the_annotated_transformer.py: the same causal mask; a row that is all hidden is even with -1e9, and 0 here."""
    assert torch.equal(causal_mask(20), torch.ones(20, 20).triu(diagonal=1) == 0)
    query, key, value = (x[0, 0] for x in qkv())
    nothing = torch.zeros(5, 7, dtype=torch.bool)
    theirs = (query @ key.T / math.sqrt(11)).masked_fill(~nothing, -1e9).softmax(dim=-1) @ value
    close(theirs, value.mean(dim=0).expand(5, 13))
    assert not scaled_dot_product_attention(query, key, value, nothing)[0].any()


def test_attention_gym_prefix():
    """attn_gym/masks/prefix_lm.py: causal, or a key of the prefix; "or" is | where "and" is &."""
    inputs, prefix = qkv(t_q=7, t_k=7), torch.arange(7) < 3
    mask = causal_mask(7) | prefix
    weights = scaled_dot_product_attention(*inputs, mask)[1]
    assert all(weights[..., i, j].ne(0).all() == (j <= i or j < 3) for i in range(7) for j in range(7))


@pytest.mark.parametrize("causal", [False, True])
def test_lucidrains_buckets_that_divide_nothing(causal):
    """tests/test.py: 1,024 tokens in buckets of 64, output and gradients; here 64 does not divide the length."""
    inputs = [x.requires_grad_() for x in qkv(t_q=1037, t_k=1037, leading=(1, 1), d_k=8, d_v=8)]
    found = flash_attention(*inputs, causal=causal, block_size=64)
    expected = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    close(found, expected)
    slopes = [torch.autograd.grad(output.square().sum(), inputs) for output in (found, expected)]
    for mine, theirs in zip(*slopes, strict=True):
        close(mine, theirs)


def test_x_transformers_flash_flag_changes_nothing():
    """lucidrains/x-transformers, Attend(flash=True): the same module with torch's kernel, for a padded causal batch."""
    plain, fused = MultiHeadAttention(33, 3).double(), FusedMultiHeadAttention(33, 3, causal=True).double()
    fused.load_state_dict(plain.state_dict())
    x, mask = torch.randn(2, 7, 33, dtype=torch.float64), padding_mask(torch.tensor([7, 4]), 7)
    close(plain(x, mask=mask & causal_mask(7))[0], fused(x, mask=mask)[0])
