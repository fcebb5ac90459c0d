"""Numbers that other projects print of the same mechanisms, and what their issues are about. Each names its source."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase4_causal.long_texts.flash_attention import flash_attention
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


def test_d2l_dot_product_attention_on_equal_keys():
    """d2l-ai/d2l-en, attention-scoring-functions: keys of ones, so means of the first 2 and of the first 6 values."""
    value = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    mask = padding_mask(torch.tensor([2, 6]), 10)[:, 0]
    output, _ = scaled_dot_product_attention(torch.randn(2, 1, 2), torch.ones(2, 10, 2), value, mask)
    close(output, torch.tensor([[[2.0, 3, 4, 5]], [[10.0, 11, 12, 13]]]))


# ---- masks as they are printed


def printed(mask):
    return " ".join("".join(str(int(cell)) for cell in row) for row in mask)


@pytest.mark.parametrize(("t_q", "t_k", "expected"), [(2, 5, "11110 11111"), (5, 2, "00 00 00 10 11")])
def test_flash_attention_causal_masks(t_q, t_k, expected):
    """Dao-AILab/flash-attention, README, version 2.1: aligned to the bottom right; a row without a key gives 0."""
    mask = causal_mask(t_q, t_k)
    assert printed(mask) == expected
    output = flash_attention(*qkv(t_q=t_q, t_k=t_k), causal=True)
    assert torch.equal(output.ne(0).any(dim=-1)[0, 0], mask.any(dim=-1))


def test_transformers_masks():
    """huggingface/transformers, masking_utils.py: docstring of sdpa_mask; sliding_window=3 counts the word itself."""
    assert printed(causal_mask(5)) == "10000 11000 11100 11110 11111"
    assert printed(causal_mask(5) & local_mask(5, 5, 2)) == "10000 11000 11100 01110 00111"


def test_transformers_several_texts_in_a_row():
    """packed_sequence_mask_function (xformers: BlockDiagonalCausalMask): each text as if it stood alone."""
    inputs, text = qkv(t_q=9, t_k=9), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
    packed, _ = scaled_dot_product_attention(*inputs, causal_mask(9) & (text[:, None] == text))
    parts = zip(*(x.split([4, 2, 3], dim=-2) for x in inputs), strict=True)
    alone = [flash_attention(*part, causal=True) for part in parts]
    close(packed, torch.cat(alone, dim=-2))


# ---- pytorch/pytorch, test/test_transformers.py, and its issues


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")  # where ours gives 0
@pytest.mark.parametrize(("t_q", "t_k"), [(5, 5), (3, 8), (8, 3), (1, 9)])
def test_pytorch_causal_biases_of_unequal_lengths(t_q, t_k):
    """TestAttnBias: ours is causal_lower_right; the flag is_causal is the other one."""
    inputs, mask = qkv(t_q=t_q, t_k=t_k), causal_mask(t_q, t_k)
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=causal_lower_right(t_q, t_k)._materialize())
    sees = mask.any(dim=-1, keepdim=True)
    close(scaled_dot_product_attention(*inputs, mask)[0], expected.where(sees, torch.zeros(()).double()))
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


def test_pytorch_products_that_16_bits_cannot_hold():
    """test_scaled_dot_product_attention_fp16_overflow (issue 160841): scores of 586,000, an output of 256."""
    x = torch.full((1, 32, 23, 80), 256.0, dtype=torch.float16)
    for found in (scaled_dot_product_attention(x, x, x)[0], flash_attention(x, x, x)):
        assert torch.equal(found, x)
