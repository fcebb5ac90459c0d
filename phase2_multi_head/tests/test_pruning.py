"""Gates against W_O without the columns of a head; orders of removal by hand."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from phase2_multi_head.models import RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pruning.head_importance import Sampled, gated, language_model, over_examples, removal_importance
from phase2_multi_head.pruning.head_pruning import greedy_order, greedy_rises
from shared import training
from shared.tests.helpers import near
from shared.toy_language import MASK_ID, encode


class TwoLayers(torch.nn.Module):
    """Two layers of attention and a readout, float64; the loss has curvature in every gate."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(MultiHeadAttention(33, 3) for _ in range(2))
        self.readout = torch.nn.Linear(33, 11)
        self.double()
        self.x = torch.randn(7, 5, 33, dtype=torch.float64)
        self.target = torch.randint(11, (7, 5))

    def losses(self):
        x = self.x
        for layer in self.layers:
            x = x + layer(x)[0]
        return F.cross_entropy(self.readout(x).mT, self.target, reduction="none").mean(dim=-1)


def test_open_gates_change_nothing_and_no_hook_stays_even_after_an_error():
    model = TwoLayers()
    before = model.losses()
    with gated(model.layers, torch.ones(2, 3, dtype=torch.float64)):
        assert torch.equal(model.losses(), before), "a gate of 1 must not change a single bit"
    removal_importance(Sampled(model.layers, model.losses))
    with pytest.raises(RuntimeError), gated(model.layers, torch.zeros(2, 3, dtype=torch.float64)):
        raise RuntimeError
    assert torch.equal(model.losses(), before)


def test_a_closed_gate_is_a_head_without_its_columns_of_w_o():
    model = TwoLayers()
    rises, before = removal_importance(Sampled(model.layers, model.losses)), model.losses()
    assert rises.shape == (2, 3, 7)
    for layer, head in itertools.product(range(2), range(3)):
        other = TwoLayers()
        with torch.no_grad():
            other.layers[layer].w_o.weight[:, 11 * head : 11 * (head + 1)] = 0
        near(rises[layer, head], other.losses() - before)
        assert rises[layer, head].abs().max() > 1e-4, "the head does something"


@pytest.mark.parametrize("shape", [(3,), (7, 2, 4)])
def test_wrong_gates_are_refused(shape):
    message = r"one number for each head, \(L, H\) = \(2, 3\)"
    with pytest.raises(ValueError, match=message), gated(TwoLayers().layers, torch.ones(shape)):
        pass


def test_greedy_measures_again_where_two_heads_stand_in_for_each_other():
    twins, third = {(0, 0), (0, 1)}, (0, 2)

    def loss(removed):
        return 5.0 * (twins <= removed) + 1.0 * (third in removed) + 0.1 * ((0, 1) in removed)

    heads = [(0, 0), (0, 1), third]
    assert sorted(heads, key=lambda head: loss(frozenset([head]))) == heads  # a twin is cheap while the other is there
    assert greedy_order(heads, loss) == [(0, 0), third, (0, 1)]


def test_greedy_rises_begin_with_the_cheapest_head_and_end_without_any():
    model = TwoLayers()
    sample = Sampled(model.layers, model.losses)
    rises, alone = greedy_rises(sample), removal_importance(sample).mean(dim=-1)
    assert rises.shape == (7, 7) and not rises[0].any()
    assert rises[1].mean() == alone.min()
    near(rises[-1], sample.losses_without(frozenset(sample.heads)) - model.losses())


def test_an_interval_is_as_wide_as_theory_says_and_holds_the_mean():
    values = torch.randn(3, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2 + 5
    low, high = over_examples(values)
    assert ((low < values.mean(dim=-1)) & (values.mean(dim=-1) < high)).all()
    # why: the sample's own quantiles, not rounding
    near(high - low, 2 * 1.96 * values.std(dim=-1) / 20, share=0.1)


def test_the_loss_of_the_language_model_counts_each_hidden_word_alike():
    model = training.untrained(RECIPE, MultiHeadAttention)
    sample = language_model(model, 13)
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
