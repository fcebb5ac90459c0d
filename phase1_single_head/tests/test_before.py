"""Scores beside the table of oracles: masks, sizes, memory; recurrent readers and writers."""

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.before import bottleneck, scoring
from phase1_single_head.before.additive import LUONG_METHODS, AdditiveAttention, LuongAttention
from phase1_single_head.before.seq2seq import LuongSeq2Seq, Seq2Seq
from shared.attention_utils import padding_mask
from shared.tests.helpers import D_K, T_K, T_Q, B, near


def test_what_scorings_weigh():
    """Additive has 2 d more than a dot product with W_q and W_k; a dot product alone nothing."""
    d = 512
    weigh = {}
    for name, make in scoring.SCORINGS.items():
        weigh[name] = sum(p.numel() for p in make(d).parameters())
    hidden = 2 * d**2 + 2 * d
    expected = {"dot": 0, "scaled dot": 4 * d**2, "general": d**2}
    assert weigh == expected | {"concat": hidden, "additive": hidden}


@pytest.mark.parametrize("method", [*LUONG_METHODS, "additive"])
def test_scores_hide_what_the_mask_hides(method):
    """Hidden memory can be anything; a query that sees nothing gives 0; gradients stay finite."""
    torch.manual_seed(24)
    attention = AdditiveAttention(D_K) if method == "additive" else LuongAttention(D_K, method)
    query, memory = torch.randn(B, T_Q, D_K), torch.randn(B, T_K, D_K, requires_grad=True)
    mask = padding_mask(torch.tensor([0, 4]), T_K)
    other = torch.where(mask[:, 0, 0, :, None], memory, 1000 * torch.randn(B, T_K, D_K))
    output, weights = attention(query, memory, mask)
    near(output, attention(query, other, mask)[0], share=0)
    assert not weights[0].any() and not output[0].any() and not weights[1, ..., 4:].any()
    (gradient,) = torch.autograd.grad(output.sum(), memory)
    assert gradient.isfinite().all() and not gradient[1, 4:].any()


def test_bahdanau_s_decoder_reads_every_state():
    torch.manual_seed(0)
    _, weights = AdditiveAttention(D_K)(torch.randn(B, T_Q, D_K), torch.randn(B, T_K, D_K))
    assert weights.shape == (B, 1, T_Q, T_K) and weights.gt(0).all()


@pytest.mark.parametrize(
    ("query", "memory", "mask", "message"),
    [
        ((2, 3, 5), (2, 3, 4), None, r"d_model=4\): got query \(2, 3, 5\)"),
        ((2, 3, 4), (3, 3, 4), None, "one batch size B: got query 2, key 3"),
        ((2, 3, 4), (2, 5, 4), (2, 3, 5), r"2 axes .* 3; .* with mask.unsqueeze\(1\)"),
    ],
)
def test_errors_of_scores_name_rule_and_numbers(query, memory, mask, message):
    mask = None if mask is None else torch.ones(mask).bool()
    with pytest.raises(ValueError, match=message):
        AdditiveAttention(4)(torch.ones(query), torch.ones(memory), mask)
    with pytest.raises(ValueError, match="unknown method 'cosine': choose from dot, general, conc"):
        LuongAttention(4, "cosine")


def test_kept_bytes_are_the_tensors_that_the_backward_pass_needs():
    """A plain dot product keeps its weights, T² floats; the additive score T² d_hidden more."""
    d = scoring.D_MODEL
    assert scoring.kept_bytes(LuongAttention(d), 7) == 4 * 7**2
    assert scoring.kept_bytes(AdditiveAttention(d), 7) == 4 * (7**2 * d + 7**2)


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


def test_what_the_writers_are_scored_by_on_writers_made_by_hand():
    """One knows all; one goes on with its first mistake if it reads its own letters."""

    def knows_all(strings, _):
        return F.one_hot(strings, 12), None

    def wrong_at_2(strings, previous):
        wrong = strings + (torch.arange(7) == 2)
        wrong[:, 3:] += previous[:, 3:] != strings[:, 2:-1]
        return F.one_hot(wrong % 12, 12), None

    assert bottleneck.accuracy_by_place(knows_all, 7).mean() == 1
    assert bottleneck.accuracy_by_place(wrong_at_2, 7).tolist() == [1, 1, 0, 1, 1, 1, 1]
    assert bottleneck.accuracy_by_place(wrong_at_2, 7, own=True).tolist() == [1, 1, 0, 0, 0, 0, 0]


def test_strings_are_written_again_after_the_letters_before():
    for backwards in (False, True):
        generator = torch.Generator().manual_seed(0)
        strings, written, previous = bottleneck.draw_strings(5, 7, generator, backwards=backwards)
        assert torch.equal(written, strings.flip(dims=[1]) if backwards else strings)
        assert torch.equal(previous[:, 1:], written[:, :-1])
        assert (previous[:, 0] == bottleneck.FIRST_INPUT).all()


def test_a_writer_that_writes_backwards_is_asked_for_what_it_writes():
    """This one knows nothing but how to turn a string around."""

    def turns_around(strings, _):
        return F.one_hot(strings.flip(dims=[1]), 12), None

    assert bottleneck.accuracy_by_place(turns_around, 7, backwards=True).mean() == 1
    assert bottleneck.accuracy_by_place(turns_around, 7).mean() < 0.5


def test_a_linear_probe_finds_what_stands_in_the_vector(monkeypatch):
    """This vector holds the letter of place 3 and the number of the letter of place 5."""

    class Reader:
        def read(self, strings):
            vectors = torch.zeros(len(strings), bottleneck.SIZE)
            vectors[:, :12] = F.one_hot(strings[:, 3], 12)
            vectors[:, 12] = strings[:, 5] / 12
            return None, vectors

    monkeypatch.setattr(bottleneck, "NUM_PROBED", 500)
    found = bottleneck.held_by_vector(Reader())
    assert found[3] == 1 and 0.12 < found[5] < 0.5
    assert max(found[0], found[-1]) < 0.15


def test_the_lead_is_that_of_what_is_written_first(monkeypatch):
    """A writer that has the first half of what it writes right, in either direction."""
    by_place = torch.tensor([1.0] * 12 + [0.0] * 12)
    monkeypatch.setattr(bottleneck, "train_writer", lambda *_, **__: None)
    monkeypatch.setattr(bottleneck, "accuracy_by_place", lambda *_, **__: by_place)
    monkeypatch.setattr(bottleneck, "held_by_vector", lambda _: by_place)
    for way, first in {"forwards": 1.0, "backwards": 0.0}.items():
        found = bottleneck.measure_way(way, run=None)
        assert found[f"{way}, right letters, lead"] == 1
        assert found[f"{way}, right letters, first"] == first
        assert found[f"{way}, in the vector, first"] == 1
