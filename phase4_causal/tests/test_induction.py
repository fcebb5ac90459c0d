"""Induction: the task and the scores of heads compared with plain loops, and with heads made by hand."""

import math

import pytest
import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase3_visualization.circuits.patching import changed, put_in
from phase4_causal.induction import induction
from phase4_causal.induction import induction_scores as task
from phase4_causal.induction.models import HEADS, untrained
from shared.attention_utils import causal_mask
from shared.toy_language import SPECIAL, VOCABULARY


def sample(count: int = 37, **options) -> Tensor:
    return task.repeated_sequences(count, torch.Generator().manual_seed(5), **options)


def random_weights(tokens: Tensor, heads: int = 3) -> Tensor:
    """Causal attention weights of random scores, float64 (N, H, T, T)."""
    count, length = tokens.shape
    values = torch.randn(count, heads, length, length, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return values.masked_fill(~causal_mask(length), -math.inf).softmax(dim=-1)


MODEL, TOKENS = untrained(3).double(), sample(7)


def test_induction_sequences_repeat_a_block_of_their_own():
    tokens = sample(300)
    assert tokens.shape == (300, task.LENGTH)
    assert len(SPECIAL) <= tokens.min() and tokens.max() < len(SPECIAL) + task.SYMBOLS <= len(VOCABULARY)
    periods, first_words = set(), set()
    for row in tokens.tolist():
        period = next(p for p in range(1, len(row)) if row[p] == row[0])  # the block has no word twice
        assert len(set(row[:period])) == period
        assert all(row[i] == row[i - period] for i in range(period, len(row)))
        periods.add(period)
        first_words.add(row[0])
    assert periods == set(range(8, 17))  # no fixed distance is right more often than one time in nine
    assert len(first_words) > 50


def test_induction_sequences_can_be_other_than_in_training():
    longer = sample(50, periods=(17, 24), length=61)
    assert longer.shape == (50, 61)
    assert all(17 <= len(set(row)) <= 24 for row in longer.tolist())
    control = task.unrepeated_sequences(20, torch.Generator().manual_seed(2))
    assert all(len(set(row)) == task.LENGTH for row in control.tolist())
    assert not task.predictable(control).any()
    late = task.late_sequences(20, torch.Generator().manual_seed(2))
    assert task.predictable(late).nonzero()[:, 1].min() == 16 + 8  # the first copy begins at place 16
    assert all(len(set(row[:24])) == 24 and row[24:] == row[16:25] for row in late.tolist())
    with pytest.raises(ValueError, match=r"1 <= shortest <= longest <= 64 different words: got \(8, 65\)"):
        sample(1, periods=(8, 65))
    with pytest.raises(ValueError, match=r"got \(9, 8\)"):
        sample(1, periods=(9, 8))


def test_induction_places_against_a_plain_loop():
    tokens = torch.randint(5, (11, 13), generator=torch.Generator().manual_seed(0))  # words also come back unplanned
    gold, certain = task.after_earlier_occurrence(tokens), task.predictable(tokens)
    for n in range(11):
        for i in range(13):
            places = {j + 1 for j in range(i) if tokens[n, j] == tokens[n, i]}
            assert set(gold[n, i].nonzero().flatten().tolist()) == places
            assert certain[n, i] == bool(places)


def test_induction_score_against_a_plain_loop():
    tokens = sample(5, periods=(2, 5), length=11)
    weights, gold = random_weights(tokens), task.after_earlier_occurrence(tokens)
    for head, score in enumerate(task.scores([weights], gold)[0]):
        rows = [weights[n, head, i][gold[n, i]].sum().item() for n, i in gold.any(dim=-1).nonzero().tolist()]
        torch.testing.assert_close(score.item(), sum(rows) / len(rows), rtol=1e-12, atol=0)


def test_induction_score_of_heads_that_are_known():
    tokens = torch.tensor([[7, 9, 7, 9]])  # query 2 should look at place 1, query 3 at place 2
    gold = task.after_earlier_occurrence(tokens)
    assert task.even_score(gold) == pytest.approx((1 / 3 + 1 / 4) / 2, rel=1e-6)
    eye = torch.eye(4, dtype=torch.float64)
    perfect, match = eye[[0, 0, 1, 2]], eye[[0, 1, 0, 1]]
    scores = task.scores([torch.stack([perfect, match, eye])[None]], gold)
    assert scores.tolist() == [[1, 0, 0]]  # looking at the same word is not looking behind it
    thrice = torch.tensor([[5, 6, 8] * 3])
    shared_out = task.after_earlier_occurrence(thrice).double()
    shared_out[shared_out.sum(dim=-1) == 0] = torch.eye(9, dtype=torch.float64)[0]
    shared_out = shared_out / shared_out.sum(dim=-1, keepdim=True)
    score = task.scores([shared_out[:, None]], task.after_earlier_occurrence(thrice))
    assert score.item() == pytest.approx(1)  # the ceiling is 1 however often the block is repeated


def test_induction_by_two_heads_made_by_hand():
    """A previous-token head and a head that matches words with what the first one left: score 1, every guess right."""
    tokens = sample(13)
    words = torch.nn.functional.one_hot(tokens, len(VOCABULARY)).double()  # (N, T) -> (N, T, V)
    length, mask = tokens.size(1), causal_mask(tokens.size(1))
    places = torch.eye(length, dtype=torch.float64).expand(len(tokens), -1, -1)
    one_back = 1e4 * places.roll(-1, dims=-1)  # query i asks for place i - 1
    before, _ = scaled_dot_product_attention(one_back, places, words, mask)
    before[:, 0] = 0  # the first place has none before it
    found, second = scaled_dot_product_attention(1e4 * words, before, words, mask)
    gold = task.after_earlier_occurrence(tokens)
    assert task.scores([second[:, None]], gold).item() == pytest.approx(1)
    certain = task.predictable(tokens[:, :-1])
    assert (found[:, :-1].argmax(dim=-1) == tokens[:, 1:])[certain].all()
    alone, same = scaled_dot_product_attention(1e4 * words, words, words, mask)  # one layer: keys hold their own word
    assert task.scores([same[:, None]], gold).item() < 0.01
    assert not (alone[:, :-1].argmax(dim=-1) == tokens[:, 1:])[certain].any()


def test_induction_loss_and_right_guesses_against_a_plain_loop():
    logits, _ = MODEL(TOKENS[:, :-1])
    losses, hits = [], []
    for n, row in enumerate(TOKENS.tolist()):
        for i in range(len(row) - 1):
            if row[i] in row[:i]:
                losses.append(-logits[n, i].log_softmax(dim=-1)[row[i + 1]].item())
                hits.append(logits[n, i].argmax().item() == row[i + 1])
    assert task.repeated_loss(MODEL, TOKENS).item() == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert task.right(MODEL, TOKENS) == pytest.approx(sum(hits) / len(hits))


@torch.no_grad()
def test_zero_ablation_is_cutting_columns_of_w_o():
    weight, width, full = MODEL.blocks[1].attention.w_o.weight, 64 // HEADS, task.repeated_loss(MODEL, TOKENS)
    for heads in ([2], [0, 3], [0, 1, 2, 3]):
        kept = weight.clone()
        for head in heads:
            weight[:, head * width : (head + 1) * width] = 0
        rise = (task.repeated_loss(MODEL, TOKENS) - full).item()
        weight.copy_(kept)
        found = task.rise(MODEL, TOKENS, 1, heads, "zero")
        assert found == pytest.approx(rise, rel=1e-9) and abs(rise) > 1e-4
    assert task.repeated_loss(MODEL, TOKENS) == full, "the model itself must not change"


@torch.no_grad()
def test_mean_ablation_takes_away_what_depends_on_the_words():
    model, tokens = untrained(3).double(), TOKENS[:, :-1]
    attention, seen = model.blocks[1].attention, []
    means = task.mean_outputs(model, tokens, 1)
    for change in (seen.append, put_in(means, torch.tensor([True, False, True, False]))):
        with changed(attention.w_o, change, read=True), changed(attention.w_o, seen.append, read=True):
            model(tokens)
    full, less = (x.unflatten(-1, (HEADS, -1)) for x in seen[1:])  # (N, T, H, d_v)
    torch.testing.assert_close(less[:, :, [0, 2]], full[:, :, [0, 2]].mean(dim=0).expand_as(less[:, :, [0, 2]]))
    assert torch.equal(less[:, :, [1, 3]], full[:, :, [1, 3]])
    attention.w_v.weight[:16] = 0  # head 0 now says the same whatever the words are: there is nothing to take away
    alone = [task.rise(model, TOKENS, 1, [head], "mean") for head in (0, 1)]
    assert abs(alone[0]) < 1e-12 < abs(alone[1])


def test_where_the_loss_falls():
    losses = [share * math.log(task.SYMBOLS) for share in (1.4, 1.0, 0.7, 0.2, 0.01)]
    assert [induction.first_below(losses, share) for share in (0.75, 0.25, 0.001)] == [20, 30, 40]
