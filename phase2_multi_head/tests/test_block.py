"""The block step by step and by parts; rank collapse against worked numbers. The block as such: test_oracles.py."""

import math

import pytest
import torch
from torch import nn

from phase2_multi_head.block import rank_collapse
from phase2_multi_head.block.block_by_parts import LAYERS, steps
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.attention_utils import causal_mask
from shared.tests.helpers import near
from shared.toy_model import Block


def new_block():
    """d_model 21, 3 heads of 7; the norms have weights of their own, so that none can stand for another."""
    torch.manual_seed(0)
    block = Block(21, MultiHeadAttention(21, 3)).double()
    for norm in (block.attention_norm, block.feed_forward_norm):
        nn.init.normal_(norm.weight, 1.0, 0.5)
        nn.init.normal_(norm.bias, 0.0, 0.5)
    return block


def words(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_steps_lead_through_the_block():
    block, x, mask = new_block(), words(2, 5, 21), causal_mask(5)
    found = steps(block, x, mask)
    near(found["what goes out"], block(x, mask)[0])
    near(found["   attention reads"], block.attention_norm(x))
    near(found["x + attention"], x + found["   attention adds"])
    near(found["   feed-forward adds"], block.feed_forward(block.feed_forward_norm(found["x + attention"])))
    assert found["   hidden, after ReLU"].shape == (2, 5, 42) and found["   hidden, after ReLU"].min() == 0


def test_layers_are_made_of_the_parts_that_they_name():
    block, x = new_block(), words(2, 5, 21)
    attend, feed, norms = block.attention, block.feed_forward, (block.attention_norm, block.feed_forward_norm)
    expected = {
        "attention alone": attend(x)[0],
        "attention, feed-forward": feed(attend(x)[0]),
        "block without residual": feed(norms[1](attend(norms[0](x))[0])),
        "attention + residual": x + attend(x)[0],
        "whole block": block(x)[0],
    }
    for name, layer in LAYERS.items():
        near(layer(block, x), expected[name])


def test_distance_to_rank_one_worked_by_hand():
    distance = rank_collapse.distance_to_rank_one
    by_hand = {
        1 / math.sqrt(2): [[1.0, 0.0], [0.0, 1.0]],  # mean (½, ½): 1 of the squares is left of 2
        1.0: [[3.0, -4.0], [-3.0, 4.0]],  # mean 0: nothing is alike
        math.sqrt(2 / 10): [[1.0, 2.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]],  # mean (1, 1): 2 left of 10
    }
    for expected, x in by_hand.items():
        assert distance(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-14)
    assert distance(words(1, 7).expand(5, 7)) < 1e-15 and distance(torch.zeros(5, 7)) == 0
    assert distance(words(5, 1) @ words(1, 7)) > 0.3, "rank one, but the rows are multiples: not all words alike"


@pytest.mark.parametrize("initial", rank_collapse.INITIAL)
def test_without_residual_the_words_become_alike_sooner(initial):
    x, blocks = rank_collapse.new_stack(initial, seed=1000)
    for name, layer in LAYERS.items():
        run = rank_collapse.distances(x, blocks[:6], layer)
        assert len(run) == 7 and run[0] == rank_collapse.distance_to_rank_one(x).item()
        if name in ("attention + residual", "whole block"):
            assert run[-1] > 0.3
        else:
            assert run[-1] == min(run) == rank_collapse.FLOOR < run[1]


def test_two_words_of_one_number_are_cubed():
    """Words m ± e, weights a number each: the outputs are w_o w_v (m ± e tanh(w_q w_k (m ± e) e)), so ± e³ is left."""
    attention, e = MultiHeadAttention(1, 1, bias=False).double(), 1e-3
    for linear, weight in zip((attention.w_q, attention.w_k, attention.w_v, attention.w_o), (2, 3, 5, 7), strict=True):
        nn.init.constant_(linear.weight, weight)
    output, _ = attention(torch.tensor([[[0.25 + e], [0.25 - e]]], dtype=torch.float64))
    near(output[0, 0] - output[0, 1], torch.tensor([2 * 5 * 7 * 2 * 3 * e**3], dtype=torch.float64), share=1e-4)


def test_xavier_reaches_the_matrices_and_leaves_the_norms():
    _, blocks = rank_collapse.new_stack("Xavier", seed=3)
    for layer in (blocks[0].attention.w_q, blocks[0].attention.w_o, blocks[0].feed_forward[2]):
        limit = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert 0.9 * limit < layer.weight.abs().max() <= limit and not layer.bias.any()
    assert (blocks[0].attention_norm.weight == 1).all()
