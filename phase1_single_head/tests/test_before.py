"""Scores against their formulas in loops; recurrent models against what they may not see; scores of made writers."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase1_single_head.before import bottleneck, scoring
from phase1_single_head.before.scoring import METHODS, AdditiveAttention, LuongAttention
from shared.attention_utils import padding_mask
from shared.tests.helpers import D_K, D_V, T_K, T_Q, B, close


def loop_scores(query, memory, score):
    """Scores and output of one rule, one pair at a time, with softmax written out."""
    outputs, rows = [], []
    for q in query:
        raw = [math.exp(float(score(q, k))) for k in memory]
        weights = torch.tensor([r / sum(raw) for r in raw], dtype=torch.float64)
        rows.append(weights)
        outputs.append(sum(w * k for w, k in zip(weights, memory, strict=True)))
    return torch.stack(outputs), torch.stack(rows)


def test_every_scoring_rule_is_its_formula():
    torch.manual_seed(22)
    query, memory = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    additive = AdditiveAttention(D_K, d_hidden=3).double()
    general, concat = (LuongAttention(D_K, method).double() for method in ("general", "concat"))
    w_q, w_k, v = additive.w_q, additive.w_k.weight, additive.v.weight[0]
    rules = {
        LuongAttention(D_K, "dot"): lambda q, k: q @ k,
        general: lambda q, k: q @ general.w.weight @ k,
        concat: lambda q, k: concat.v.weight[0] @ torch.tanh(concat.w(torch.cat([q, k]))),
        additive: lambda q, k: v @ torch.tanh(w_q.weight @ q + w_q.bias + w_k @ k),
    }
    for attention, score in rules.items():
        output, weights = attention(query, memory)
        assert weights.shape == (B, 1, T_Q, T_K)
        for b in range(B):
            with torch.no_grad():
                expected_output, expected_weights = loop_scores(query[b], memory[b], score)
            close(output[b], expected_output, rtol=0, atol=1e-12)
            close(weights[b, 0], expected_weights, rtol=0, atol=1e-12)


def test_concat_is_additive_with_its_matrix_cut_in_two():
    torch.manual_seed(21)
    concat, additive = LuongAttention(D_K, "concat").double(), AdditiveAttention(D_K).double()
    state = {"w_q.weight": concat.w.weight[:, :D_K], "w_k.weight": concat.w.weight[:, D_K:]}
    additive.load_state_dict(state | {"w_q.bias": concat.w.bias, "v.weight": concat.v.weight})
    query, memory = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    for ours, theirs in zip(additive(query, memory), concat(query, memory), strict=True):
        close(ours, theirs, rtol=0, atol=1e-12)


def test_a_long_key_outdoes_a_near_one():
    """q · k = |q| |k| cos: at equal lengths the nearer key wins, and one 60 degrees away if it is longer."""
    near, apart = torch.tensor([1.0, 0.0]), torch.tensor([0.5, math.sqrt(0.75)])
    scores = LuongAttention(2).score(near[None, None], torch.stack([near, apart, 4 * apart])[None])
    close(scores, torch.tensor([[[1.0, 0.5, 2.0]]]))


def test_the_additive_score_has_as_many_parameters_as_two_projections():
    """At d_model = 512: only 2 d_model more than a dot product with W_q and W_k, and that without projections none."""
    of = {rule: scoring.parameters(make(512)) for rule, make in scoring.RULES.items()}
    assert of["additive"] == 2 * 512**2 + 2 * 512 and of["dot"] == 0 and of["general"] == 512**2
    assert of[scoring.SCALED] == 4 * 512**2 and of["concat"] == of["additive"]


def test_additive_attention_takes_a_memory_of_another_size():
    torch.manual_seed(23)
    attention = AdditiveAttention(D_K, 3, d_memory=D_V).double()
    output, _ = attention(torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_V).double())
    assert output.shape == (B, T_Q, D_V)
    assert sum(p.numel() for p in attention.parameters()) == 3 * D_K + 3 + 3 * D_V + 3  # one bias, v without


@pytest.mark.parametrize("make", [AdditiveAttention, *(lambda d, m=m: LuongAttention(d, m) for m in METHODS)])
def test_scores_hide_what_the_mask_hides(make):
    """Hidden memory can be anything; a query that sees nothing gives 0; gradients stay finite."""
    torch.manual_seed(24)
    attention = make(D_K).double()
    query, memory = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    mask = padding_mask(torch.tensor([0, 4]), T_K)
    other = torch.where(mask[:, 0, 0, :, None], memory, 1000 * torch.randn(B, T_K, D_K).double())
    output, weights = attention(query, memory.requires_grad_(), mask)
    close(output, attention(query, other, mask)[0], rtol=0, atol=0)
    assert not weights[0].any() and not output[0].any() and not weights[1, ..., 4:].any()
    (gradient,) = torch.autograd.grad(output.sum(), memory)
    assert gradient.isfinite().all() and not gradient[1, 4:].any()


@pytest.mark.parametrize("name", bottleneck.MODELS)
def test_writers_never_see_what_they_are_to_write(name):
    """Changing a later letter of `previous` must not move an earlier prediction; changing the source must."""
    torch.manual_seed(25)
    model = bottleneck.MODELS[name]().double()
    source, previous = torch.randint(12, (B, 7)), torch.randint(12, (B, 5))
    logits, weights = model(source, previous)
    changed = previous.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 12
    assert torch.equal(model(source, changed)[0][:, :3], logits[:, :3])
    assert not torch.allclose(model(source, changed)[0][:, 3:], logits[:, 3:])
    assert not torch.allclose(model((source + 1) % 12, previous)[0], logits)
    assert name.startswith("none") or (
        weights.shape == (B, 1, 5, 7) and torch.allclose(weights.sum(-1), torch.ones(()).double())
    )
    assert weights is None or (weights > 0).all()  # softmax: every state contributes to every letter


def test_without_attention_one_vector_carries_the_string():
    """Two strings that leave the reader in the same state are written alike: only the last states count."""
    torch.manual_seed(26)
    model = bottleneck.Seq2Seq()
    memory, last = model.read(torch.randint(12, (1, 7)))
    half = bottleneck.SIZE // 2
    close(last[0, :half], memory[0, -1, :half])  # reading forwards ends at the last letter
    close(last[0, half:], memory[0, 0, half:])  # reading backwards ends at the first
    memory, last = bottleneck.Seq2Seq(directions=1).read(torch.randint(12, (1, 7)))
    close(last, memory[:, -1])


def test_what_attention_adds():
    """The weights that I134 names beside its comparison."""
    of = {name: scoring.parameters(make()) for name, make in bottleneck.MODELS.items()}
    assert (of["Luong"] - of["none"], of["Bahdanau"] - of["none"]) == (8_256, 21_376)


def test_luong_asks_after_the_letter_and_bahdanau_before():
    """The row of weights with which letter t is written depends on previous[t] for Luong, not for Bahdanau."""
    torch.manual_seed(27)
    source, previous = torch.randint(12, (1, 7)), torch.randint(12, (1, 5))
    changed = previous.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 12
    for name, moves in (("Luong", True), ("Bahdanau", False)):
        model = bottleneck.MODELS[name]()
        rows = [model(source, letters)[1][0, 0, -1] for letters in (previous, changed)]
        assert torch.equal(*rows) != moves


def test_bottleneck_scores_are_those_of_a_writer_made_by_hand():
    """A model that reverses perfectly scores 1 everywhere, and its weights lie on the anti-diagonal."""

    class Perfect(nn.Module):
        def forward(self, source, previous):
            length = previous.size(1)
            weights = torch.eye(source.size(1)).flip(0)[:length].expand(len(source), 1, -1, -1)
            return F.one_hot(source.flip(1)[:, :length], 12).float(), weights

    assert bottleneck.accuracy_by_place(Perfect(), 7).mean() == bottleneck.accuracy_alone(Perfect(), 7) == 1
    aligned = bottleneck.alignment(Perfect())
    assert [aligned[name] for name in (bottleneck.ON, bottleneck.AFTER, bottleneck.SAME)] == [1, 0, 0]
    source, previous, target = bottleneck.draw_strings(5, 7, torch.Generator().manual_seed(0))
    assert torch.equal(bottleneck.draw_strings(5, 7, torch.Generator().manual_seed(0), in_order=True)[2], source)
    assert target.tolist() == [row[::-1] for row in source.tolist()]
    assert previous[:, 1:].tolist() == target[:, :-1].tolist() and (previous[:, 0] == bottleneck.START).all()


@pytest.mark.parametrize(("in_order", "place"), [(False, 6), (True, 0)])
def test_letters_are_counted_at_the_place_where_they_were_read(in_order, place):
    """A writer that gets its first letter right and no other: of a string of 7, the last one read or the first."""

    class FirstOnly(nn.Module):
        def forward(self, source, previous):
            target = source if in_order else source.flip(1)
            return F.one_hot((target + (torch.arange(7) > 0)) % 12, 12).float(), None

    assert bottleneck.accuracy_by_place(FirstOnly(), 7, in_order).tolist() == [float(i == place) for i in range(7)]


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
    length = 7
    assert scoring.kept_bytes(LuongAttention(scoring.D_MODEL), length) == 4 * length**2
    additive = AdditiveAttention(scoring.D_MODEL)
    assert scoring.kept_bytes(additive, length) == 4 * (length**2 * scoring.D_MODEL + length**2)


def title_of(drawn):
    figure, _ = drawn
    bottleneck.plt.close(figure)
    return figure.get_suptitle()


def test_title_says_what_was_found():
    """Attention opens the bottleneck only if one vector loses letters, and if a writer alone gets most of them."""

    def letters(none=0.25, alone=0.7):
        found = {}
        for name, share in (("none", none), ("Luong", 1.0), ("Bahdanau", 1.0)):
            found |= {f"{name}, {length} letters": share for length in bottleneck.TEST_LENGTHS}
            found |= {f"{name}, {length} letters{bottleneck.OWN}": alone for length in bottleneck.ALONE_LENGTHS}
        return title_of(bottleneck.draw_letters(found | {"none, 4 letters": 1.0}, 9))

    assert letters().startswith("One vector carries about 6 letters of 24")
    assert all(title.startswith("9 steps are too few") for title in (letters(none=1.0), letters(alone=0.4)))
