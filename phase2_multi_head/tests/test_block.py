"""The block step by step and with dropout; rank collapse by worked numbers; normalised queries and
keys, and the gate.

The block in its transformer: test_oracles.py.
"""

import importlib
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase2_multi_head.block import learning_rates, rank_collapse
from phase2_multi_head.block.block_by_parts import LAYERS_BY_PARTS, steps
from phase2_multi_head.block.gated_attention import GatedAttention
from phase2_multi_head.block.qk_norm import QKNormAttention
from phase2_multi_head.models import next_word_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.attention_utils import causal_mask
from shared.tests.helpers import near
from shared.toy_model import Block


def new_block(**more):
    """d_model 21, 3 heads of 7; the norms have weights of their own, so that no two are alike."""
    torch.manual_seed(0)
    block = Block(21, MultiHeadAttention(21, 3), **more).double()
    for norm in (block.attention_norm, block.feed_forward_norm):
        nn.init.normal_(norm.weight, 1.0, 0.5)
        nn.init.normal_(norm.bias, 0.0, 0.5)
    return block


def words(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_steps_lead_through_the_block():
    block, x, mask = new_block(), words(2, 5, 21), causal_mask(5)
    by_name = steps(block, x, mask)
    near(by_name["what goes out"], block(x, mask)[0])
    near(by_name["   attention reads"], block.attention_norm(x))
    stream = by_name["x + attention"]
    near(stream, x + by_name["   attention adds"])
    near(by_name["   feed-forward adds"], block.feed_forward(block.feed_forward_norm(stream)))
    hidden = by_name["   hidden, after ReLU"]
    assert hidden.shape == (2, 5, 42) and hidden.min() == 0


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_dropout_is_of_what_a_sub_layer_adds_and_not_of_the_stream(part):
    """The other sub-layer is silenced: each number that this one adds is 0 or 1/0.6 of itself."""
    block, x = new_block(dropout=0.4).train(), words(7, 11, 21)
    if part == "attention":
        silent, (wanted, _) = block.feed_forward[2], block.attention(block.attention_norm(x))
    else:
        silent, wanted = block.attention.w_o, block.feed_forward(block.feed_forward_norm(x))
    nn.init.zeros_(silent.weight)
    nn.init.zeros_(silent.bias)
    added = block(x)[0] - x
    gone = added.abs() < 1e-9
    near(added.masked_fill(gone, 0), (wanted / 0.6).masked_fill(gone, 0))
    assert 0.35 < gone.double().mean() < 0.45  # why: 1,617 draws


# ---- layers by their parts


def test_layers_are_made_of_the_parts_that_they_name():
    block, x = new_block(), words(2, 5, 21)
    output, _ = block.attention(block.attention_norm(x))
    expected = {
        "attention alone": block.attention(x)[0],
        "block without residual": block.feed_forward(block.feed_forward_norm(output)),
        "attention + residual": x + block.attention(x)[0],
        "whole block": block(x)[0],
    }
    for name, layer in LAYERS_BY_PARTS.items():
        near(layer(block, x), expected[name])


@pytest.mark.parametrize(
    ("share", "x"),
    [
        (1 / 2, [[1.0, 0.0], [0.0, 1.0]]),  # mean (½, ½): 1 of the squares is left of 2
        (1, [[3.0, -4.0], [-3.0, 4.0]]),  # mean 0: nothing is alike
        (2 / 10, [[1.0, 2.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]),  # mean (1, 1): 2 left of 10
        (0, [[0.0, 0.0], [0.0, 0.0]]),
        (1 / 10, [[1.0, 1.0], [2.0, 2.0]]),  # rank one, but multiples: not all words alike
    ],
)
def test_distance_to_rank_one_worked_by_hand(share, x):
    distance = rank_collapse.distance_to_rank_one(torch.tensor(x, dtype=torch.float64))
    near(distance.item(), math.sqrt(share))


@pytest.mark.parametrize("initial", rank_collapse.INITIAL)
def test_without_residual_the_words_become_alike_sooner(initial):
    x, blocks = rank_collapse.new_stack(initial, seed=1000)
    for name, layer in LAYERS_BY_PARTS.items():
        run = rank_collapse.distances(x, blocks[:6], layer)
        assert len(run) == 7 and run[0] == rank_collapse.distance_to_rank_one(x).item()
        if name in ("attention + residual", "whole block"):
            assert run[-1] > 0.3
        else:
            assert run[-1] == min(run) == rank_collapse.FLOOR < run[1]


def test_two_words_of_one_number_are_cubed():
    """Of words m ± e only ± e³ is left: outputs are w_o w_v (m ± e tanh(w_q w_k (m ± e) e))."""
    attention, e = MultiHeadAttention(1, 1, bias=False).double(), 1e-3
    for name, weight in {"w_q": 2, "w_k": 3, "w_v": 5, "w_o": 7}.items():
        nn.init.constant_(getattr(attention, name).weight, weight)
    output, _ = attention(torch.tensor([[[0.25 + e], [0.25 - e]]], dtype=torch.float64))
    near((output[0, 0] - output[0, 1]).item(), 2 * 5 * 7 * 2 * 3 * e**3, share=1e-4)


# ---- normalised queries and keys, and a gate


def reference_of_qwen(kind, ours):
    """The attention of a published model, three heads of 14, with the weights of ours."""
    transformers = pytest.importorskip("transformers", reason='pip install -e ".[pretrained]"')
    family = QWEN[kind]
    heads = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 14}
    eager = {"hidden_size": 42, "attn_implementation": "eager"}
    config = transformers.AutoConfig.for_model(family, **heads, **eager)
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    reference = getattr(modeling, kind)(config, layer_idx=0)
    own = getattr(ours, "heads", ours)
    parameters = {
        "q_proj.weight": own.w_q.projection.weight,
        "k_proj.weight": own.w_k.projection.weight,
        "v_proj.weight": own.w_v.weight,
        "o_proj.weight": ours.w_o.weight,
        "q_norm.weight": own.w_q.norm_weight,
        "k_norm.weight": own.w_k.norm_weight,
    }
    if family == "qwen3_next":  # a matrix has each head's query and its gate; sizes are 1 + weight
        both = [own.w_q.projection.weight.unflatten(0, (3, 14))]
        both.append(ours.w_gate.weight.unflatten(0, (3, 14)))
        parameters["q_proj.weight"] = torch.cat(both, dim=1).flatten(0, 1)
        parameters["q_norm.weight"] = own.w_q.norm_weight - 1
        parameters["k_norm.weight"] = own.w_k.norm_weight - 1
    reference.load_state_dict(parameters)
    return reference


def without_biases(attention):
    """Parameters large enough that heads choose; biases of 0."""
    torch.manual_seed(3)
    for name, parameter in attention.named_parameters():
        nn.init.normal_(parameter, std=0.5)
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    return attention


GATED_AND_NORMED = partial(GatedAttention, make_attention=QKNormAttention)
QWEN = {"Qwen3Attention": "qwen3", "Qwen3NextAttention": "qwen3_next"}


@pytest.mark.parametrize("kind", QWEN)
def test_qwen_computes_the_same(kind):
    """In float32, in which the library normalises; with angles of 0, so that nothing is turned."""
    make = QKNormAttention if kind == "Qwen3Attention" else GATED_AND_NORMED
    ours = without_biases(make(42, 3))
    reference = reference_of_qwen(kind, ours)
    x = words(2, 5, 42).float().requires_grad_()
    angles = torch.ones(2, 5, 14), torch.zeros(2, 5, 14)  # their cosines and sines
    hidden = torch.zeros(5, 5).masked_fill(~causal_mask(5), -math.inf)
    expected = reference(x, angles, hidden)
    output = ours(x, mask=causal_mask(5))
    near(output, expected)
    upstream = words(2, 5, 42).float().flip(0)
    slope = torch.autograd.grad(output[0], x, upstream)
    near(slope, torch.autograd.grad(expected[0], x, upstream))


def test_normalised_weights_do_not_follow_the_size_of_what_is_read():
    """Without biases a word and its thousandfold have one direction."""
    attention = without_biases(QKNormAttention(21, 3)).double()
    x = words(2, 5, 21)
    near(attention(1000 * x)[1], attention(x)[1], share=1e-4)  # why: epsilon
    plain = MultiHeadAttention(21, 3).double()
    assert (plain(1000 * x)[1] - plain(x)[1]).abs().max() > 0.1


def test_queries_and_keys_have_norm_weights_of_their_own():
    attention = QKNormAttention(21, 3)
    assert attention.w_q.norm_weight is not attention.w_k.norm_weight


# ---- what the experiment on them compares


def test_the_rate_rises_only_where_the_name_says_warm_up(monkeypatch):
    schedules = {}

    def train(trained, steps, row, *, schedule, **rates):
        schedules[row] = schedule

    monkeypatch.setattr(learning_rates, "train_in_order", train)
    monkeypatch.setattr(learning_rates, "held_out_loss", lambda trained: 0.0)
    learning_rates.measure(SimpleNamespace(seed=0, steps=lambda steps: steps))
    for row, schedule in schedules.items():
        rates = [schedule(step) for step in (0, 49, 149)]
        near(rates, [0.02, 1.0, 1.0] if "warm-up" in row else [1.0, 1.0, 1.0])
    assert len(schedules) == 16


def test_models_with_and_without_a_gate_have_equally_many_weights():
    counts = []
    for make_attention in learning_rates.SIDES.values():
        model = next_word_model(make_attention, seed=0).model
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    assert max(counts) / min(counts) < 1.002


def test_scores_and_what_is_added_start_equally_large():
    sizes = []
    for make_attention in learning_rates.SIDES.values():
        block = next_word_model(make_attention, seed=0).model.blocks[0]
        x = F.layer_norm(words(50, 9, 64), [64])
        heads = getattr(block.attention, "heads", block.attention)
        scores = heads.w_q(x) * heads.w_k(x.roll(1, 0))  # of words that do not know each other
        scores = scores.unflatten(-1, (4, 16)).sum(dim=-1)
        added = block.attention(x)[0]
        sizes.append([scores.std().item(), added.std().item()])
    spread = torch.tensor(sizes)
    assert ((spread.amax(dim=0) / spread.amin(dim=0)) < 1.1).all()
