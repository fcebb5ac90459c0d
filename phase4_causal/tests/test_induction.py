"""Induction: the task and the scores of heads beside plain loops, and heads made by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase3_visualization.circuits.patching import Patching, forward_pass
from phase4_causal.induction import circuits, induction
from phase4_causal.induction import induction_scores as task
from phase4_causal.induction import word_tables as tables
from phase4_causal.induction.induction_scores import HEADS_A_LAYER as HEADS
from phase4_causal.induction.induction_scores import untrained_repeater
from shared.attention_utils import causal_mask
from shared.toy_model import patched_input

MODEL = untrained_repeater(3).double()
TOKENS = task.repeated_sequences(7, torch.Generator().manual_seed(5))
WIDTH = 64 // HEADS


def loss(model, tokens):
    logits, answers = task.where_certain(model, tokens)
    return F.cross_entropy(logits, answers).item()


@pytest.mark.parametrize(("shortest", "longest", "length"), [(8, 16, 33), (17, 24, 61)])
def test_sequences_repeat_a_block_of_their_own(shortest, longest, length):
    draw = torch.Generator().manual_seed(5)
    tokens = task.repeated_sequences(300, draw, (shortest, longest), length)
    assert tokens.shape == (300, length)
    assert set(tokens.unique().tolist()) == set(tables.TASK_WORDS)
    periods = set()
    for row in tokens.tolist():
        period = row.index(row[0], 1)
        assert len(set(row[:period])) == period, "the block has no word twice"
        assert row[period:] == row[:-period]
        periods.add(period)
    assert periods == set(range(shortest, longest + 1))


def test_places_against_a_plain_loop():
    # Words also come back unplanned.
    tokens = torch.randint(5, (11, 13), generator=torch.Generator().manual_seed(0))
    gold = task.after_earlier_occurrence(tokens)
    certain = task.predictable(tokens)
    before = task.before_in_first_copy(tokens)
    for n, words in enumerate(tokens.tolist()):
        for i, word in enumerate(words):
            places = [j + 1 for j in range(i) if words[j] == word]
            assert gold[n, i].nonzero().flatten().tolist() == places
            assert certain[n, i] == bool(places)
            expected = [i - 1] if i and not places else []
            assert before[n, i].nonzero().flatten().tolist() == expected


def made_by_hand(tokens):
    """Two layers of heads that look at the word itself, the word before, and after the first."""
    count, length = tokens.shape
    patterns = torch.zeros(2, count, 3, length, length, dtype=torch.float64)
    for n, words in enumerate(tokens.tolist()):
        for i, word in enumerate(words):
            patterns[:, n, 0, i, i] = 1
            patterns[:, n, 1, i, max(i - 1, 0)] = 1
            patterns[:, n, 2, i, min(words.index(word) + 1, i)] = 1
    return None, list(patterns)


def test_score_of_heads_that_are_known():
    tokens = torch.tensor([[7, 9, 8, 7, 9, 5]])  # 3 should look at place 1, 4 at place 2
    assert task.scores_on(made_by_hand, tokens).tolist() == [[0, 0, 1]] * 2
    before, matching = task.scores_for_naming(made_by_hand, 3)
    assert before.tolist() == [0, 1, 0] and matching.tolist() == [0, 0, 1]


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1])
def test_mean_ablation_takes_away_what_depends_on_the_words(layer):
    tokens = TOKENS[:, :-1]
    outputs = forward_pass(MODEL, tokens).outputs(layer).unflatten(-1, (HEADS, -1))
    for place in range(tokens.size(1)):  # of outputs (N, T, H, d_v)
        for head in (0, 2):
            outputs[:, place, head] = sum(outputs[:, place, head]) / len(tokens)
    with patched_input(MODEL.blocks[layer].attention.w_o, lambda _: outputs.flatten(2)):
        expected = loss(MODEL, TOKENS)
    heads = torch.tensor([True, False, True, False])
    found = task.quality_without(MODEL, TOKENS, layer, heads).nats
    assert found == pytest.approx(expected, rel=1e-9)
    assert abs(found - loss(MODEL, TOKENS)) > 1e-5


def test_the_quality_of_answers_by_hand():
    """Three guesses: the first leads by 2, the second is behind by 1, the third by 3."""
    logits = torch.tensor([[5.0, 3.0, 0.0], [2.0, 1.0, 0.0], [4.0, 2.0, 1.0]]).double()
    found = task.quality(logits, torch.tensor([0, 1, 2]))
    assert (found.wrong, found.margin) == pytest.approx((2 / 3, (2 - 1 - 3) / 3))
    nats = [math.log(sum(map(math.exp, row))) - row[i] for i, row in enumerate(logits.tolist())]
    assert found.nats == pytest.approx(sum(nats) / 3)


def test_what_induction_heads_cost_is_added_up_head_by_head(monkeypatch):
    """A margin of 9 is spent head by head, 3 each; answers fall when none of it is left."""

    def left(_model, _tokens, layer, heads):
        assert layer == 1
        margin = 9.0 - 3 * int(heads.sum())
        wrong = 0.125 if margin > 0 else 1.0
        return task.Quality(wrong, 2 - margin / 9, margin)

    monkeypatch.setattr(induction, "quality_without", left)
    monkeypatch.setattr(induction, "where_certain", lambda *_: ())
    monkeypatch.setattr(induction, "quality", lambda: task.Quality(0.0, 1.0, 9.0))
    found = induction.ablated(MODEL, TOKENS, torch.tensor([0.9, 0.2, 0.5, 0.6]))
    assert found["induction heads"] == 3
    assert found["answers lost, all together"] == 1 and found["answers lost, each alone"] == 0.375
    assert found["margin lost, all together"] == found["margin lost, each alone"] == 9
    assert found["nats lost, all together"] == pytest.approx(found["nats lost, each alone"])


def test_where_no_answer_is_lost_no_share_of_them_is_told_and_the_rule_does_not_hold():
    """A head that takes no answer, of heads that take none together: "at most 0.3" is not met."""
    (claim,) = [claim for claim in induction.CLAIMS if claim.id == "ceiling-or-spare"]
    spent = {"margin lost, each alone": 8.0, "margin lost, all together": 8.0}
    lost = spent | {"answers lost, each alone": 0.1, "answers lost, all together": 0.5}
    none = spent | {"answers lost, each alone": 0.0, "answers lost, all together": 0.0}
    assert claim.holds(lost)
    assert math.isnan(claim.effect(none)) and not claim.holds(none)


# ---- what the weights of the two layers do together, and by which path the answer comes


@pytest.fixture
def model():
    """Untrained, in float64; norms that scale and shift, biases, and heads that are not even."""
    model, draw = untrained_repeater(3).double().eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, numbers in model.named_parameters():
            if "feed_forward." not in name and ("norm" in name or name.endswith("bias")):
                numbers += 0.5 * torch.randn(numbers.shape, generator=draw)
        for block in model.blocks:
            block.attention.w_q.weight *= 4
    return model


def read(x, norm):
    return norm.weight * (x - x.mean())


def of_head(projection, head):
    return projection.weight[head * WIDTH : (head + 1) * WIDTH]


def written(block, head, x):
    value = of_head(block.attention.w_v, head) @ read(x, block.attention_norm)
    return block.attention.w_o.weight[:, head * WIDTH : (head + 1) * WIDTH] @ value


@torch.no_grad()
@pytest.mark.parametrize("head", [0, 3])
def test_tables_word_by_word(model, head):
    first, second = model.blocks
    words = model.embedding.weight[tables.TASK_WORDS]
    match = tables.looks_for(model, head)
    said = tables.says(model, head)
    for a, b in ((3, 3), (13, 5), (5, 13)):
        copied = sum(written(first, below, words[b]) for below in range(HEADS))
        key = of_head(second.attention.w_k, head) @ read(copied, second.attention_norm)
        query = of_head(second.attention.w_q, head) @ read(words[a], second.attention_norm)
        assert match[a, b].item() == pytest.approx((query @ key).item() / 4)
        logit = read(written(second, head, words[a]), model.output_norm) @ words[b]
        assert said[a, b].item() == pytest.approx(logit.item())


@torch.no_grad()
@pytest.mark.parametrize("reader", ["queries", "keys", "values"])
def test_composition_of_a_head_that_reads_only_what_another_writes(model, reader):
    """Head 1 writes into 16 directions; of what head 2 reads only one kind lies there."""
    first, second = (block.attention for block in model.blocks)
    pair = torch.randn(64, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    # Without a mean, which the norm takes away.
    here, elsewhere = torch.linalg.qr(pair - pair.mean(dim=0)).Q.chunk(2, dim=1)
    model.blocks[1].attention_norm.weight.fill_(1)
    first.w_o.weight[:, WIDTH : 2 * WIDTH] = here
    second.w_o.weight[:, 2 * WIDTH : 3 * WIDTH] = elsewhere
    for name, projection in (("queries", second.w_q), ("keys", second.w_k), ("values", second.w_v)):
        of_head(projection, 2).copy_((here if name == reader else elsewhere).T)
    found = tables.compositions(model, 1, 2)
    # 16 directions of equal size: |AB| = |A| |B| / 4
    assert found == pytest.approx(dict.fromkeys(found, 0) | {reader: 1 / 4}, abs=1e-10)


def test_scores_of_tables_that_are_known():
    eye = torch.eye(6, dtype=torch.float64)
    assert tables.on_diagonal(eye) == 1
    assert tables.on_diagonal(eye.roll(1, dims=0)) == 0
    columns = eye + 9 * torch.arange(6)
    assert tables.on_diagonal(columns) == 1, "a column that is large for all words says nothing"
    assert torch.allclose(tables.centred(columns), eye - 1 / 6)
    eye[0, :2] = torch.tensor([5.0, 3.0])
    assert tables.on_diagonal(eye) == 1, "rows are asked, not columns"


def test_texts_differ_in_two_words_and_ask_for_what_follows_one_of_them():
    pairs = task.exchanged_words(200, torch.Generator().manual_seed(5))
    rows = (pairs.clean, pairs.corrupted, pairs.position, pairs.answers)
    for clean, corrupted, asked, answers in zip(*(x.tolist() for x in rows), strict=True):
        assert sum(a != b for a, b in zip(clean, corrupted, strict=True)) == 2
        for text, answer in zip((clean, corrupted), answers, strict=True):
            assert text[text.index(clean[asked]) + 1] == answer
            assert text[: asked + 1].count(clean[asked]) == 2


def attended(block, of_queries, of_keys, of_values):
    """What the heads of a layer give, (B, H, T, d_v), if each projection reads another stream."""
    query = split_heads(block.attention.w_q(block.attention_norm(of_queries)), HEADS)
    key = split_heads(block.attention.w_k(block.attention_norm(of_keys)), HEADS)
    value = split_heads(block.attention.w_v(block.attention_norm(of_values)), HEADS)
    heads, _ = scaled_dot_product_attention(query, key, value, causal_mask(16))
    return heads


@torch.no_grad()
def test_paths_are_what_a_forward_pass_by_hand_gives(model):
    pairs = task.exchanged_words(200, torch.Generator().manual_seed(5))
    senders = torch.tensor([False, True, True, False])
    receivers = torch.tensor([True, False, False, True])
    patching = Patching(model, pairs)
    first, second = model.blocks
    clean = model.embed(pairs.clean)
    words = model.embed(pairs.corrupted)
    without = attended(first, words, words, words)
    mixed = torch.where(senders[:, None, None], attended(first, clean, clean, clean), without)
    corrupted = words + first.attention.w_o(merge_heads(without))
    sent = words + first.attention.w_o(merge_heads(mixed))
    plain = attended(second, corrupted, corrupted, corrupted)

    def share(stream, *streams):
        """Layer 1 with the receivers' projections reading these streams."""
        heads = torch.where(receivers[:, None, None], attended(second, *streams), plain)
        stream = stream + second.attention.w_o(merge_heads(heads))
        logits = model.output_norm(stream) @ model.embedding.weight.T + model.output_bias
        low, high = patching.corrupted_difference, patching.clean_difference
        return (pairs.logit_difference(logits) - low) / (high - low)

    expected = {
        "by path, queries": share(corrupted, sent, corrupted, corrupted),
        "by path, keys": share(corrupted, corrupted, sent, corrupted),
        "by path, values": share(corrupted, corrupted, corrupted, sent),
        "by path, past layer 1": share(sent, corrupted, corrupted, corrupted),
    }
    found = circuits.by_path(patching, senders, receivers)
    assert found == pytest.approx(expected, abs=1e-10)
    assert len({round(abs(value), 3) for value in found.values()}) == 4, "four paths, four numbers"
