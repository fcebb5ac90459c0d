"""Scores against their formulas in loops; recurrent models against what they may not see; scores of made writers."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase1_single_head.before import bottleneck, scoring
from phase1_single_head.before.additive import METHODS, AdditiveAttention, LuongAttention, attend_by_loops
from phase1_single_head.before.seq2seq import SIZE, BahdanauSeq2Seq, LuongSeq2Seq, Seq2Seq
from shared.attention_utils import padding_mask
from shared.tests.helpers import D_K, T_K, T_Q, B, near

WRITERS = (Seq2Seq, LuongSeq2Seq, BahdanauSeq2Seq)


def test_scores_become_weights_as_in_the_loops():
    torch.manual_seed(22)
    query, memory, general = torch.randn(T_Q, D_K).double(), torch.randn(T_K, D_K).double(), torch.randn(D_K, D_K)
    attention = LuongAttention(D_K, "general").double()
    attention.w.weight.data.copy_(general)
    output, weights = attention(query[None], memory[None])
    by_loops = attend_by_loops(query, memory, lambda q, k: q @ general.double() @ k)
    near((output[0], weights[0, 0]), by_loops)


def test_concat_is_additive_with_its_matrix_cut_in_two():
    torch.manual_seed(21)
    concat, additive = LuongAttention(D_K, "concat").double(), AdditiveAttention(D_K).double()
    state = {"w_q.weight": concat.w.weight[:, :D_K], "w_k.weight": concat.w.weight[:, D_K:]}
    additive.load_state_dict(state | {"w_q.bias": concat.w.bias, "v.weight": concat.v.weight})
    query, memory = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    for ours, theirs in zip(additive(query, memory), concat(query, memory), strict=True):
        near(ours, theirs)


def test_a_long_key_outdoes_a_near_one():
    """q · k = |q| |k| cos: at equal lengths the nearer key wins, and one 60 degrees away if it is longer."""
    close, apart = torch.tensor([1.0, 0.0]), torch.tensor([0.5, math.sqrt(0.75)])
    scores = LuongAttention(2).score(close[None, None], torch.stack([close, apart, 4 * apart])[None])
    near(scores, torch.tensor([[[1.0, 0.5, 2.0]]]))


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_what_rules_and_writers_weigh():
    """Additive has 2 d more than a dot product with W_q and W_k; a dot product alone nothing. What attention adds."""
    of = {rule: parameters(make(512)) for rule, make in scoring.RULES.items()}
    assert of["additive"] == of["concat"] == 2 * 512**2 + 2 * 512 and of["general"] == 512**2
    assert of["dot"] == 0 and of["scaled dot"] == 4 * 512**2
    none, luong, bahdanau = (parameters(make(12)) for make in WRITERS)
    assert (luong - none, bahdanau - none) == (8_256, 21_376)


def test_additive_attention_has_one_bias():
    assert parameters(AdditiveAttention(D_K, 3)) == 2 * 3 * D_K + 3 + 3  # of the hidden units; v has none


@pytest.mark.parametrize("make", [AdditiveAttention, *(lambda d, m=m: LuongAttention(d, m) for m in METHODS)])
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


@pytest.mark.parametrize(
    ("make", "query", "memory", "mask", "message"),
    [
        (LuongAttention, (2, 3, 5), (2, 3, 4), None, r"query must have shape \(B, T, 4\)"),
        (AdditiveAttention, (2, 3, 4), (2, 3, 5), None, r"memory must have shape \(B, T, 4\)"),
        (AdditiveAttention, (2, 3, 4), (3, 3, 4), None, "same batch size: got 2 and 3"),
        (LuongAttention, (2, 3, 4), (2, 5, 4), torch.ones(2, 3, 5).bool(), r"2 axes .* 3; .* with mask.unsqueeze\(1\)"),
        (LuongAttention, (2, 3, 4), (2, 5, 4), torch.ones(3, 5), "must be bool, True = may attend: got torch.float32"),
    ],
)
def test_errors_of_scores_name_rule_and_numbers(make, query, memory, mask, message):
    with pytest.raises(ValueError, match=message):
        make(4)(torch.ones(query), torch.ones(memory), mask)
    with pytest.raises(ValueError, match="unknown method 'cosine': choose from dot, general, concat"):
        LuongAttention(4, "cosine")


def test_kept_bytes_are_the_tensors_that_the_backward_pass_needs():
    """The plain dot product keeps its weights alone, T² floats; the additive score T² d_hidden more."""
    assert scoring.kept_bytes(LuongAttention(scoring.D_MODEL), 7) == 4 * 7**2
    assert scoring.kept_bytes(AdditiveAttention(scoring.D_MODEL), 7) == 4 * (7**2 * scoring.D_MODEL + 7**2)


@pytest.mark.parametrize("make", WRITERS)
def test_writers_never_see_what_they_are_to_write(make):
    """Changing a later letter of `previous` must not move an earlier prediction; changing the source must."""
    torch.manual_seed(25)
    model = make(12).double()
    source, previous = torch.randint(12, (B, 7)), torch.randint(12, (B, 5))
    logits, weights = model(source, previous)
    changed = previous.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 12
    assert torch.equal(model(source, changed)[0][:, :3], logits[:, :3])
    assert not torch.allclose(model(source, changed)[0][:, 3:], logits[:, 3:])
    assert not torch.allclose(model((source + 1) % 12, previous)[0], logits)
    if make is not Seq2Seq:  # softmax: every state contributes to every letter
        assert weights.shape == (B, 1, 5, 7) and (weights > 0).all()
        near(weights.sum(dim=-1), torch.ones(B, 1, 5).double())


def test_without_attention_one_vector_carries_the_string():
    """Only the last states count: reading forwards ends at the last letter, reading backwards at the first."""
    torch.manual_seed(26)
    memory, last = Seq2Seq(12).read(torch.randint(12, (1, 7)))
    near(last[0], torch.cat([memory[0, -1, : SIZE // 2], memory[0, 0, SIZE // 2 :]]))
    memory, last = Seq2Seq(12, directions=1).read(torch.randint(12, (1, 7)))
    near(last, memory[:, -1])


def test_luong_asks_after_the_letter_and_bahdanau_before():
    """The row of weights with which letter t is written depends on previous[t] for Luong, not for Bahdanau."""
    torch.manual_seed(27)
    source, previous = torch.randint(12, (1, 7)), torch.randint(12, (1, 5))
    changed = previous.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 12
    for make, moves in ((LuongSeq2Seq, True), (BahdanauSeq2Seq, False)):
        model = make(12)
        rows = [model(source, letters)[1][0, 0, -1] for letters in (previous, changed)]
        assert torch.equal(*rows) != moves


class Perfect(nn.Module):
    """Reverses without a mistake, and its weights lie on the letter that is copied."""

    def forward(self, source, previous):
        length = previous.size(1)
        weights = torch.eye(source.size(1)).flip(0)[:length].expand(len(source), 1, -1, -1)
        return F.one_hot(source.flip(1)[:, :length], 12).float(), weights


class FirstOnly(nn.Module):
    """Gets its first letter right and no other."""

    def __init__(self, in_order):
        super().__init__()
        self.in_order = in_order

    def forward(self, source, previous):
        target = source if self.in_order else source.flip(1)
        return F.one_hot((target + (torch.arange(7) > 0)) % 12, 12).float(), None


def test_scores_of_the_bottleneck_are_those_of_writers_made_by_hand():
    assert bottleneck.accuracy_by_place(Perfect(), 7).mean() == bottleneck.accuracy_alone(Perfect(), 7) == 1
    assert list(bottleneck.alignment(Perfect()).values()) == [1, 0]
    for in_order, place in ((False, 6), (True, 0)):  # letters are counted at the place where they were read
        found = bottleneck.accuracy_by_place(FirstOnly(in_order), 7, in_order)
        assert found.tolist() == [float(i == place) for i in range(7)]


def test_strings_are_written_backwards_or_in_order():
    source, previous, target = bottleneck.draw_strings(5, 7, torch.Generator().manual_seed(0))
    assert torch.equal(bottleneck.draw_strings(5, 7, torch.Generator().manual_seed(0), in_order=True)[2], source)
    assert target.tolist() == [row[::-1] for row in source.tolist()]
    assert previous[:, 1:].tolist() == target[:, :-1].tolist() and (previous[:, 0] == bottleneck.START).all()
