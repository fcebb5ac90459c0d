"""Scores beside the table of oracles: masks, sizes, memory; recurrent readers and writers."""

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.before import bottleneck
from phase1_single_head.before.additive import AdditiveAttention, LuongAttention
from phase1_single_head.before.seq2seq import LuongSeq2Seq, Seq2Seq, bahdanau_step
from shared.attention_utils import padding_mask
from shared.tests.helpers import D_K, T_K, T_Q, B, near


@pytest.mark.parametrize(
    ("method", "squares", "vectors"),
    [("dot", 0, 0), ("general", 1, 0), ("concat", 2, 2), ("additive", 2, 2)],
)
def test_scores_hide_what_the_mask_hides(method, squares, vectors):
    """Hidden memory can be anything; a query that sees nothing gives 0; gradients stay finite.

    All that is visible is read. And each has as many matrices and vectors as the page says.
    """
    torch.manual_seed(24)
    attention = AdditiveAttention(D_K) if method == "additive" else LuongAttention(D_K, method)
    weighs = sum(parameter.numel() for parameter in attention.parameters())
    assert weighs == squares * D_K**2 + vectors * D_K
    query, memory = torch.randn(B, T_Q, D_K), torch.randn(B, T_K, D_K, requires_grad=True)
    mask = padding_mask(torch.tensor([0, 4]), T_K)
    other = torch.where(mask[:, 0, 0, :, None], memory, 1000 * torch.randn(B, T_K, D_K))
    output, weights = attention(query, memory, mask)
    near(output, attention(query, other, mask)[0], share=0)
    assert not weights[0].any() and not output[0].any() and not weights[1, ..., 4:].any()
    assert weights[1, ..., :4].gt(0).all()
    (gradient,) = torch.autograd.grad(output.sum(), memory)
    assert gradient.isfinite().all() and not gradient[1, 4:].any()


@pytest.mark.parametrize("make", [Seq2Seq, LuongSeq2Seq])
def test_writers_take_their_steps_one_by_one(make):
    """Luong's state asks after the letter; none sees a letter that it is to write."""
    torch.manual_seed(27)
    model = make(12).double()
    source, previous = torch.randint(12, (B, 7)), torch.randint(12, (B, 5))
    logits, weights = model(source, previous)
    memory, state = model.read(source)
    near(state, memory[:, -1])  # all that a writer without attention knows
    for t, letter in enumerate(model.embedding(previous).unbind(dim=1)):
        predicts = state = model.decoder(letter[:, None], state[None])[0][:, 0]
        if make is LuongSeq2Seq:
            context, row = model.attention(state[:, None], memory)
            predicts = torch.tanh(model.combine(torch.cat([context[:, 0], state], dim=-1)))
            near(weights[:, :, t], row[:, :, 0])
        near(logits[:, t], model.to_logits(predicts))


def test_bahdanaus_state_asks_before_it_reads_the_last_letter():
    torch.manual_seed(28)
    attention, cell = AdditiveAttention(D_K).double(), torch.nn.GRUCell(2 * D_K, D_K).double()
    state, letter = torch.randn(2, B, D_K).double()
    memory = torch.randn(B, T_K, D_K).double()
    new_state, weights = bahdanau_step(attention, cell, state, letter, memory)
    context, row = attention(state[:, None], memory)
    near(weights, row[:, 0])
    near(new_state, cell(torch.cat([letter, context[:, 0]], dim=-1), state))


def test_what_the_writers_are_scored_by_on_writers_made_by_hand():
    """One knows all; one goes on with its first mistake if it reads its own letters."""

    def knows_all(strings, _):
        weights = torch.eye(strings.size(1)).expand(len(strings), 1, -1, -1)
        return F.one_hot(strings, 12), weights

    def wrong_at_2(strings, previous):
        wrong = strings + (torch.arange(7) == 2)
        wrong[:, 3:] += previous[:, 3:] != strings[:, 2:-1]
        return F.one_hot(wrong % 12, 12), None

    assert bottleneck.accuracy_by_place(knows_all, 7).mean() == 1
    assert bottleneck.looks_at_its_own(knows_all, {}) == 1
    assert bottleneck.accuracy_by_place(wrong_at_2, 7).tolist() == [1, 1, 0, 1, 1, 1, 1]
    assert bottleneck.accuracy_by_place(wrong_at_2, 7, own=True).tolist() == [1, 1, 0, 0, 0, 0, 0]


def test_strings_are_written_again_after_the_letters_before():
    generator = torch.Generator().manual_seed(0)
    strings, written, previous = bottleneck.draw_strings(5, 7, generator, backwards=True)
    assert torch.equal(written, strings.flip(dims=[1]))
    assert torch.equal(previous[:, 1:], written[:, :-1])
    assert (previous[:, 0] == bottleneck.FIRST_INPUT).all()


def test_the_lead_is_that_of_what_is_written_first(monkeypatch):
    """A writer that has the first half of what it writes right, in either direction."""
    by_place = torch.tensor([1.0] * 12 + [0.0] * 12)
    monkeypatch.setattr(bottleneck, "train_writer", lambda *_, **__: None)
    monkeypatch.setattr(bottleneck, "accuracy_by_place", lambda *_, **__: by_place)
    for way in bottleneck.WAYS:
        assert bottleneck.measure_way(way, run=None)[f"{way}, right letters, lead"] == 1
