"""Scores beside the table of oracles: masks, sizes, memory; recurrent models against what they may
not see.
"""

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.before import bottleneck, scoring
from phase1_single_head.before.additive import LUONG_METHODS, AdditiveAttention, LuongAttention
from phase1_single_head.before.seq2seq import LuongSeq2Seq, Seq2Seq
from shared.attention_utils import padding_mask
from shared.tests.helpers import D_K, T_K, T_Q, B, near


def test_what_rules_weigh():
    """Additive has 2 d more than a dot product with W_q and W_k; a dot product alone nothing."""
    weigh = {
        rule: sum(p.numel() for p in make(512).parameters())
        for rule, make in scoring.SCORINGS.items()
    }
    expected = {"dot": 0, "scaled dot": 4 * 512**2, "general": 512**2}
    assert weigh == expected | dict.fromkeys(("concat", "additive"), 2 * 512**2 + 2 * 512)  # C063


@pytest.mark.parametrize(
    "make", [AdditiveAttention, *(lambda d, m=m: LuongAttention(d, m) for m in LUONG_METHODS)]
)
def test_scores_hide_what_the_mask_hides(make):
    """Hidden memory can be anything; a query that sees nothing gives 0; gradients stay finite."""
    torch.manual_seed(24)
    attention = make(D_K).double()
    query, memory = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    mask = padding_mask(torch.tensor([0, 4]), T_K)
    other = torch.where(mask[:, 0, 0, :, None], memory, 1000 * torch.randn(B, T_K, D_K).double())
    output, weights = attention(query, memory.requires_grad_(), mask)
    near(output, attention(query, other, mask)[0], share=0)
    assert not weights[0].any() and not output[0].any() and not weights[1, ..., 4:].any()
    (gradient,) = torch.autograd.grad(output.sum(), memory)
    assert gradient.isfinite().all() and not gradient[1, 4:].any()


def test_errors_of_scores_name_rule_and_numbers():
    for shapes, mask, message in (
        (((2, 3, 5), (2, 3, 4)), None, r"d_model=4\): got query \(2, 3, 5\)"),
        (((2, 3, 4), (3, 3, 4)), None, "one batch size B: got query 2, key 3"),
        (
            ((2, 3, 4), (2, 5, 4)),
            torch.ones(2, 3, 5).bool(),
            r"2 axes .* 3; .* with mask.unsqueeze\(1\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            AdditiveAttention(4)(*map(torch.ones, shapes), mask)
    with pytest.raises(
        ValueError, match="unknown method 'cosine': choose from dot, general, concat"
    ):
        LuongAttention(4, "cosine")


def test_kept_bytes_are_the_tensors_that_the_backward_pass_needs():
    """The plain dot product keeps its weights alone, T² floats; the additive score T² d_hidden
    more.
    """
    assert scoring.kept_bytes(LuongAttention(scoring.D_MODEL), 7) == 4 * 7**2
    assert scoring.kept_bytes(AdditiveAttention(scoring.D_MODEL), 7) == 4 * (
        7**2 * scoring.D_MODEL + 7**2
    )


@pytest.mark.parametrize("make", [Seq2Seq, LuongSeq2Seq])
def test_writers_take_their_steps_one_by_one(make):
    """Luong's state asks after the letter; none sees a letter that it is to write."""
    torch.manual_seed(27)
    model, source, previous = (
        make(12).double(),
        torch.randint(12, (B, 7)),
        torch.randint(12, (B, 5)),
    )
    logits, weights = model(source, previous)
    memory, state = model.read(source)
    for t, letter in enumerate(model.embedding(previous).unbind(dim=1)):
        predicts = state = model.decoder(letter[:, None], state[None])[0][:, 0]
        if make is LuongSeq2Seq:
            context, row = model.attention(state[:, None], memory)
            predicts = torch.tanh(model.combine(torch.cat([context[:, 0], state], dim=-1)))
        near(logits[:, t], model.to_logits(predicts))
        assert weights is None or torch.allclose(weights[:, :, t], row[:, :, 0])


def test_without_attention_one_vector_carries_the_string():
    torch.manual_seed(26)
    memory, last = Seq2Seq(12).read(torch.randint(12, (1, 7)))
    near(last, memory[:, -1])  # C059


def test_what_the_writers_are_scored_by_on_writers_made_by_hand():
    """One knows all; one repeats what it has read last of its own, and so goes on with its first
    mistake.
    """
    assert (
        bottleneck.accuracy_by_place(lambda strings, _: (F.one_hot(strings, 12), None), 7).mean()
        == 1
    )

    def wrong_at_2(strings, previous):
        wrong = strings + (torch.arange(7) == 2)
        wrong[:, 3:] += previous[:, 3:] != strings[:, 2:-1]
        return F.one_hot(wrong % 12, 12), None

    assert bottleneck.accuracy_by_place(wrong_at_2, 7).tolist() == [1, 1, 0, 1, 1, 1, 1]
    assert bottleneck.accuracy_by_place(wrong_at_2, 7, own=True).tolist() == [1, 1, 0, 0, 0, 0, 0]


def test_strings_are_written_again_after_the_letters_before():
    strings, previous = bottleneck.draw_strings(5, 7, torch.Generator().manual_seed(0))
    assert (
        torch.equal(previous[:, 1:], strings[:, :-1])
        and (previous[:, 0] == bottleneck.FIRST_INPUT).all()
    )
