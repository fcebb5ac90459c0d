"""Induction: the task and the scores of heads compared with plain loops, and with heads made by hand."""

import json
import math

import pytest
import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.induction import ablation, induction
from phase4_causal.induction import induction_scores as task
from shared.attention_utils import causal_mask
from shared.toy_language import SPECIAL, VOCABULARY


def sample(count: int = 37, **options) -> Tensor:
    return task.repeated_sequences(count, torch.Generator().manual_seed(5), **options)


def random_weights(tokens: Tensor, heads: int = 3) -> Tensor:
    """Causal attention weights of random scores, float64 (N, H, T, T)."""
    count, length = tokens.shape
    values = torch.randn(count, heads, length, length, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return values.masked_fill(~causal_mask(length), -math.inf).softmax(dim=-1)


def untrained_run(num_layers: int = 2, seed: int = 3) -> induction.Run:
    """An untrained model on 7 sequences; the scores are those that measuring gives."""
    model, tokens = induction.new_model(num_layers, seed).double(), sample(7)
    matched, previous = task.scores_on(model, tokens)
    loss = task.repeated_loss(model, tokens).item()
    return induction.Run(model, tokens, [0], [loss], matched[None], previous[None], (matched, previous))


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
    for head, score in enumerate(task.induction_score(weights, gold)):
        rows = [weights[n, head, i][gold[n, i]].sum().item() for n, i in gold.any(dim=-1).nonzero().tolist()]
        torch.testing.assert_close(score.item(), sum(rows) / len(rows), rtol=1e-12, atol=0)
    before = [weights[n, 2, i, i - 1].item() for n in range(5) for i in range(1, 11)]
    torch.testing.assert_close(task.previous_token_score(weights)[2].item(), sum(before) / len(before))
    rows = torch.rand(5, 11, generator=torch.Generator().manual_seed(4)) < 0.5
    hits = [[int(weights[n, h, i].argmax()) == i - 1 for h in range(3)] for n, i in rows.nonzero().tolist()]
    assert task.looks_back(weights[:, [2]], rows) == sum(hit[2] for hit in hits) / len(hits) > 0
    assert task.looks_back(weights, rows) == sum(map(any, hits)) / len(hits)


def test_induction_score_of_heads_that_are_known():
    tokens = torch.tensor([[7, 9, 7, 9]])  # query 2 should look at place 1, query 3 at place 2
    gold = task.after_earlier_occurrence(tokens)
    assert task.even_score(gold) == pytest.approx((1 / 3 + 1 / 4) / 2, rel=1e-6)
    eye = torch.eye(4, dtype=torch.float64)
    perfect, match, before = eye[[0, 0, 1, 2]], eye[[0, 1, 0, 1]], eye[[0, 0, 1, 2]]
    scores = task.induction_score(torch.stack([perfect, match, eye])[None], gold)
    assert scores.tolist() == [1, 0, 0]  # looking at the same word is not looking behind it
    assert task.previous_token_score(torch.stack([before, eye])[None]).tolist() == [1, 0]
    thrice = torch.tensor([[5, 6, 8] * 3])
    shared_out = task.after_earlier_occurrence(thrice).double()
    shared_out[shared_out.sum(dim=-1) == 0] = torch.eye(9, dtype=torch.float64)[0]
    shared_out = shared_out / shared_out.sum(dim=-1, keepdim=True)
    score = task.induction_score(shared_out[:, None], task.after_earlier_occurrence(thrice))
    assert score.item() == pytest.approx(1)  # the ceiling is 1 however often the block is repeated


def test_induction_by_two_heads_made_by_hand():
    """A previous-token head and a head that matches words with what the first one left: score 1, every guess right."""
    tokens = sample(13)
    words = torch.nn.functional.one_hot(tokens, len(VOCABULARY)).double()  # (N, T) -> (N, T, V)
    length, mask = tokens.size(1), causal_mask(tokens.size(1))
    places = torch.eye(length, dtype=torch.float64).expand(len(tokens), -1, -1)
    one_back = 1e4 * places.roll(-1, dims=-1)  # query i asks for place i - 1
    before, first = scaled_dot_product_attention(one_back, places, words, mask)
    before[:, 0] = 0  # the first place has none before it
    found, second = scaled_dot_product_attention(1e4 * words, before, words, mask)
    gold = task.after_earlier_occurrence(tokens)
    assert task.previous_token_score(first[:, None]).item() == pytest.approx(1)
    assert task.induction_score(second[:, None], gold).item() == pytest.approx(1)
    certain = task.predictable(tokens[:, :-1])
    assert (found[:, :-1].argmax(dim=-1) == tokens[:, 1:])[certain].all()
    alone, same = scaled_dot_product_attention(1e4 * words, words, words, mask)  # one layer: keys hold their own word
    assert task.induction_score(same[:, None], gold).item() < 0.01
    assert not (alone[:, :-1].argmax(dim=-1) == tokens[:, 1:])[certain].any()


def test_induction_loss_and_right_guesses_against_a_plain_loop():
    run = untrained_run()
    logits, _ = run.model(run.tokens[:, :-1])
    losses, hits, late = [], [], []
    for n, row in enumerate(run.tokens.tolist()):
        for i in range(len(row) - 1):
            if row[i] in row[:i]:
                losses.append(-logits[n, i].log_softmax(dim=-1)[row[i + 1]].item())
                hits.append(logits[n, i].argmax().item() == row[i + 1])
                late += [hits[-1]] if i >= 20 else []
    assert run.loss[0] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert task.right(run.model, run.tokens) == pytest.approx(sum(hits) / len(hits))
    assert task.right(run.model, run.tokens, first=20) == pytest.approx(sum(late) / len(late))


@torch.no_grad()
def test_zero_ablation_is_cutting_columns_of_w_o():
    run = untrained_run()
    rises, width = ablation.rises(run.model, run.tokens, 1), 64 // induction.HEADS
    assert list(rises["zero"]) == list(rises["mean"]) and len(rises["zero"]) == 2**induction.HEADS - 1
    weight = run.model.blocks[1].attention.w_o.weight
    for heads in ((2,), (0, 3), (0, 1, 2, 3)):
        kept = weight.clone()
        for head in heads:
            weight[:, head * width : (head + 1) * width] = 0
        rise = task.repeated_loss(run.model, run.tokens).item() - run.loss[0]
        weight.copy_(kept)
        assert rises["zero"][heads] == pytest.approx(rise, rel=1e-9) and abs(rise) > 1e-4
    assert task.repeated_loss(run.model, run.tokens).item() == run.loss[0], "the model itself must not change"


@torch.no_grad()
def test_mean_ablation_takes_away_what_depends_on_the_words():
    run = untrained_run()
    tokens, attention = run.tokens[:, :-1], run.model.blocks[1].attention
    means = ablation.mean_outputs(run.model, tokens, 1)
    seen = []
    hook = attention.w_o.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()), prepend=False)
    run.model(tokens)
    with ablation.replaced(run.model, 1, (0, 2), means):
        hook.remove()
        hook = attention.w_o.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
        run.model(tokens)
        hook.remove()
    full, less = (x.unflatten(-1, (induction.HEADS, -1)) for x in seen)  # (N, T, H, d_v)
    torch.testing.assert_close(less[:, :, [0, 2]], full[:, :, [0, 2]].mean(dim=0).expand_as(less[:, :, [0, 2]]))
    assert torch.equal(less[:, :, [1, 3]], full[:, :, [1, 3]])
    attention.w_v.weight[:16] = 0  # head 0 now says the same whatever the words are: there is nothing to take away
    rises = ablation.rises(run.model, run.tokens, 1)["mean"]
    assert abs(rises[0,]) < 1e-12 < abs(rises[1,])


@torch.no_grad()
@pytest.mark.parametrize("offset", [-3, -1, 0])
def test_a_hidden_neighbour_is_hidden_from_one_layer_alone(offset):
    run = untrained_run()
    tokens = run.tokens[:, :-1]
    with ablation.hidden(run.model, 0, offset):
        first, second = run.model(tokens)[1]
    assert not first.diagonal(offset, -2, -1).any() and second.diagonal(offset, -2, -1).any()
    others = first[:, :, 5:].sum(dim=-1)
    torch.testing.assert_close(others, torch.ones_like(others))
    before, _ = run.model(tokens)[1]
    assert before.diagonal(offset, -2, -1).any()


def test_induction_fall_and_best_heads():
    steps, uniform = [0, 10, 20, 30, 40], math.log(task.SYMBOLS)
    track = torch.zeros(5, 2, induction.HEADS)
    track[:, 1, 3] = torch.tensor([0.0, 0.1, 0.3, 0.9, 1.0])
    track[-1, 1, 0], previous = 0.5, torch.zeros_like(track)
    previous[-1, 0, 1], previous[-1, 1, 2] = 0.4, 0.9  # the second one is not in the first layer
    loss = [share * uniform for share in (1.4, 1.0, 0.7, 0.2, 0.01)]
    chosen_by = (track[-1], previous[-1])
    run = induction.Run(None, torch.zeros(1, 3), steps, loss, track, previous, chosen_by)
    assert run.fall == (20, 30) and run.formed == 30 and run.learned
    assert run.best_induction == (1, 3) and run.best_previous == 1 and run.best_score == 1
    assert run.induction_heads == (0, 3)
    flat = induction.Run(None, torch.zeros(1, 3), steps, [uniform] * 5, track, previous, chosen_by)
    assert flat.fall == (40, 40) and not flat.learned
    decay = [uniform * math.exp(-step / 1000) for step in range(4001)]  # the control: it is not sudden
    begin, end = induction.Run(None, torch.zeros(1), list(range(4001)), decay, track, previous, chosen_by).fall
    assert (end - begin) / begin == pytest.approx(induction.EXPONENTIAL, rel=0.01)


def test_induction_run_writes_picture_and_findings(tmp_path):
    induction.main(["--quick", "--output-dir", str(tmp_path)])
    assert (tmp_path / "visualizations/plots/phase4/induction.png").stat().st_size > 10_000
    found = json.loads((tmp_path / "data/processed/findings/phase4_causal.induction.induction.json").read_bytes())
    assert found[0]["id"] == "induction-phase-change" and len(found) == 7
    assert not any(finding["here"] == "holds" for finding in found)  # 30 steps teach nothing: no rule may be met
