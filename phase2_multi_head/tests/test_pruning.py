"""Gates against W_O without the columns of a head; orders of removal by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from phase2_multi_head.models import RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pruning.head_importance import (
    Sampled,
    gated,
    language_model,
    over_examples,
    removal_importance,
)
from phase2_multi_head.pruning.head_pruning import greedy_order, greedy_rises
from shared import training
from shared.tests.helpers import near
from shared.toy_language import MASK_ID, encode

GATE_B, GATE_T, GATE_D, GATE_H, GATE_C = 7, 5, 33, 3, 11


class TwoLayers(torch.nn.Module):
    """Two layers of attention and a readout, float64; the loss has curvature in every gate."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(MultiHeadAttention(GATE_D, GATE_H) for _ in range(2))
        self.readout = torch.nn.Linear(GATE_D, GATE_C)
        self.double()
        self.x = torch.randn(GATE_B, GATE_T, GATE_D, dtype=torch.float64)
        self.target = torch.randint(GATE_C, (GATE_B, GATE_T))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.readout(x)

    def loss(self, x=None, target=None):
        x, target = (self.x, self.target) if x is None else (x, target)
        return F.cross_entropy(self(x).flatten(0, 1), target.flatten())

    def losses(self):
        return F.cross_entropy(self(self.x).mT, self.target, reduction="none").mean(dim=-1)

    def sampled(self):
        return Sampled(list(self.layers), self.losses)


@pytest.fixture
def model():
    return TwoLayers()


def hooks(module):
    return sum(len(part._forward_pre_hooks) + len(part._forward_hooks) for part in module.modules())


def test_open_gates_change_nothing(model):
    plain = model(model.x)
    with gated(model.layers, torch.ones(2, GATE_H, dtype=torch.float64)):
        assert hooks(model) == 2
        assert torch.equal(model(model.x), plain), "a gate of 1 must not change a single bit"


@pytest.mark.parametrize("layer", range(2))
@pytest.mark.parametrize("head", range(GATE_H))
def test_a_closed_gate_is_a_head_without_its_columns_of_w_o(model, layer, head):
    other = TwoLayers()
    size = GATE_D // GATE_H
    with torch.no_grad():
        other.layers[layer].w_o.weight[:, head * size : (head + 1) * size] = 0
    expected = other.loss().item()
    assert abs(expected - model.loss().item()) > 1e-4  # the head does something
    rises = removal_importance(model.sampled())
    assert rises.shape == (2, GATE_H, GATE_B)
    assert rises[layer, head].mean().item() == pytest.approx(expected - model.loss().item(), abs=1e-12)


def test_no_hook_stays_even_after_an_error(model):
    before = model(model.x)
    removal_importance(model.sampled())
    with pytest.raises(RuntimeError), gated(model.layers, torch.zeros(2, GATE_H, dtype=torch.float64)):
        raise RuntimeError
    assert hooks(model) == 0
    assert torch.equal(model(model.x), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("shape", [(GATE_H,), (GATE_H, 2), (GATE_B, 2, GATE_H + 1), (1, GATE_B, 2, GATE_H)])
def test_wrong_gates_are_refused(model, shape):
    with (
        pytest.raises(ValueError, match=r"one number for each head, \(L, H\) = \(2, 3\)"),
        gated(model.layers, torch.ones(shape)),
    ):
        pass
    assert hooks(model) == 0


def test_greedy_measures_again_where_two_heads_stand_in_for_each_other():
    twins, third = {(0, 0), (0, 1)}, (0, 2)

    def loss(removed):
        return 5.0 * (twins <= removed) + 1.0 * (third in removed) + 0.1 * ((0, 1) in removed)

    heads = [(0, 0), (0, 1), third]
    assert sorted(heads, key=lambda head: loss(frozenset([head]))) == heads  # a twin is cheap while the other is there
    assert greedy_order(heads, loss) == [(0, 0), third, (0, 1)]


def test_greedy_rises_begin_with_the_cheapest_head_and_end_without_any(model):
    sample = model.sampled()
    rises, alone = greedy_rises(sample), removal_importance(sample).mean(dim=-1)
    assert rises.shape == (2 * GATE_H + 1, GATE_B) and not rises[0].any()
    assert rises[1].mean() == alone.min()
    everything = sample.losses_without(frozenset(sample.heads)) - sample.losses_without(frozenset())
    near(rises[-1], everything)


def test_an_interval_is_as_wide_as_theory_says_and_holds_the_mean():
    values = torch.randn(3, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2 + 5
    low, high = over_examples(values)
    assert ((low < values.mean(dim=-1)) & (values.mean(dim=-1) < high)).all()
    # why: the sample's own quantiles, not rounding
    near(high - low, 2 * 1.96 * values.std(dim=-1) / 20, share=0.1)
    constant = torch.full((4,), 0.25).double()
    assert [end.item() for end in over_examples(constant)] == [0.25, 0.25]


def test_the_loss_of_the_language_model_counts_each_hidden_word_alike():
    model = training.untrained(RECIPE, MultiHeadAttention)
    sample = language_model(model, 13)
    assert len(sample.layers) == 2
    sentences = training.corpus()[1][:13]
    length = max(len(sentence.words) for sentence in sentences)
    drawn = torch.rand(13, length, generator=torch.Generator().manual_seed(0)) < training.CHOSEN
    costs = []
    for sentence, row in zip(sentences, drawn, strict=True):
        words, hidden = encode(sentence.words), row[: len(sentence.words)].nonzero().flatten().tolist()
        seen = [MASK_ID if place in hidden else word for place, word in enumerate(words)]
        logits = model.model(torch.tensor([seen]))[0][0].log_softmax(dim=-1)  # (T, V)
        costs += [-logits[place, words[place]].item() for place in hidden]
    assert len(costs) > 13
    assert sample.losses().mean().item() == pytest.approx(math.fsum(costs) / len(costs), rel=1e-5)
