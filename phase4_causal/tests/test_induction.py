"""Induction: the task and the scores of heads compared with plain loops, and with heads made by
hand.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase3_visualization.circuits.patching import Patching, run
from phase4_causal.induction import circuits, induction
from phase4_causal.induction import induction_scores as task
from phase4_causal.induction import word_tables as tables
from phase4_causal.induction.induction_scores import HEADS, untrained
from shared.attention_utils import causal_mask
from shared.toy_language import SPECIAL, VOCABULARY
from shared.toy_model import changed


def sample(count: int = 37, **options) -> Tensor:
    return task.repeated_sequences(count, torch.Generator().manual_seed(5), **options)


MODEL, TOKENS = untrained(3).double(), sample(7)
WIDTH = 64 // HEADS


def loss(model, tokens: Tensor) -> float:
    return F.cross_entropy(*task.where_certain(model, tokens)).item()


def test_sequences_repeat_a_block_of_their_own():
    tokens, periods = sample(300), set()
    assert tokens.shape == (300, task.LENGTH) and len(set(tokens[:, 0].tolist())) > 50
    assert len(SPECIAL) <= tokens.min() and tokens.max() < len(SPECIAL) + task.SYMBOLS <= len(
        VOCABULARY
    )
    for row in tokens.tolist():
        period = next(
            p for p in range(1, len(row)) if row[p] == row[0]
        )  # the block has no word twice
        assert len(set(row[:period])) == period
        assert all(row[i] == row[i - period] for i in range(period, len(row)))
        periods.add(period)
    assert periods == set(
        range(8, 17)
    )  # no fixed distance is right more often than one time in nine
    longer = sample(50, periods=(17, 24), length=61)
    assert longer.shape == (50, 61) and all(17 <= len(set(row)) <= 24 for row in longer.tolist())
    for places, period in ((induction.FROM_THE_MIDDLE, 8), (induction.LATE, 8)):
        again = next(
            i for i, place in enumerate(places) if place in places[:i]
        )  # where the copy begins
        assert places[:again] == list(range(again)) and places[again] == again - period > 0
        assert places[again:] == [again - period + i % period for i in range(len(places) - again)]


def test_places_against_a_plain_loop():
    tokens = torch.randint(
        5, (11, 13), generator=torch.Generator().manual_seed(0)
    )  # words also come back unplanned
    gold, certain = task.after_earlier_occurrence(tokens), task.predictable(tokens)
    before = task.before_in_first_copy(tokens)
    for n in range(11):
        for i in range(13):
            places = {j + 1 for j in range(i) if tokens[n, j] == tokens[n, i]}
            assert set(gold[n, i].nonzero().flatten().tolist()) == places
            assert certain[n, i] == bool(places)
            assert before[n, i].nonzero().flatten().tolist() == (
                [i - 1] if i and not places else []
            )


def made_by_hand(tokens: Tensor) -> tuple[None, list[Tensor]]:
    """A model of heads that look at the word itself, at the word before, and after the first time
    it was said.
    """
    patterns = torch.zeros(2, len(tokens), 3, tokens.size(1), tokens.size(1), dtype=torch.float64)
    for n, words in enumerate(tokens.tolist()):
        for i, word in enumerate(words):
            for head, key in enumerate((i, max(i - 1, 0), min(words.index(word) + 1, i))):
                patterns[:, n, head, i, key] = 1
    return None, list(patterns)


def test_score_of_heads_that_are_known():
    tokens = torch.tensor(
        [[7, 9, 8, 7, 9, 5]]
    )  # query 3 should look at place 1, query 4 at place 2
    assert task.scores_on(made_by_hand, tokens).tolist() == [[0, 0, 1]] * 2
    before, matching = task.head_scores(made_by_hand, 3)
    assert before.tolist() == [0, 1, 0] and matching.tolist() == [0, 0, 1]


def test_wrong_guesses_against_a_plain_loop():
    logits, _ = MODEL(TOKENS[:, :-1])
    misses = []
    for n, row in enumerate(TOKENS.tolist()):
        for i in range(len(row) - 1):
            if row[i] in row[:i]:
                misses.append(logits[n, i].argmax().item() != row[i + 1])
    assert task.wrong(MODEL, TOKENS) == pytest.approx(sum(misses) / len(misses))


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1])
def test_mean_ablation_takes_away_what_depends_on_the_words(layer, monkeypatch):
    monkeypatch.setattr(task, "wrong", loss)  # which sees more than shares do
    tokens = TOKENS[:, :-1]
    outputs = run(MODEL, tokens).outputs(layer).unflatten(-1, (HEADS, -1))  # (N, T, H, d_v)
    for place in range(tokens.size(1)):
        for head in (0, 2):
            outputs[:, place, head] = sum(
                outputs[n, place, head] for n in range(len(tokens))
            ) / len(tokens)
    with changed(MODEL.blocks[layer].attention.w_o, lambda _: outputs.flatten(2), read=True):
        expected = loss(MODEL, TOKENS)
    found = task.without(MODEL, TOKENS, layer, torch.tensor([True, False, True, False]))
    assert found == pytest.approx(expected, rel=1e-9)
    assert abs(found - loss(MODEL, TOKENS)) > 1e-5


def test_where_the_loss_falls():
    losses = [share * math.log(task.SYMBOLS) for share in (1.4, 1.0, 0.7, 0.2, 0.01)]
    assert [induction.first_below(losses, share) for share in (0.75, 0.25, 0.001)] == [20, 30, 40]


def test_attention_alone_learns_and_networks_only_where_they_are_wanted():
    with_networks, alone = (
        task.train(untrained(3, networks=there), 3, 60) for there in (True, False)
    )
    assert all((block.feed_forward[-1].weight != 0).any() for block in with_networks.blocks)
    assert not any(block.feed_forward(torch.randn(5, 64)).any() for block in alone.blocks)
    assert loss(alone, TOKENS) < 4.5, "the loss is that of the next word"


# ---- what the weights of the two layers do together, and by which path the answer comes


@pytest.fixture
def model():
    """Untrained, in float64; norms that scale and shift, biases, and heads that are not even."""
    model, draw = untrained(3).double().eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, numbers in model.named_parameters():
            if "feed_forward." not in name and ("norm" in name or name.endswith("bias")):
                numbers += 0.5 * torch.randn(numbers.shape, generator=draw)
        for block in model.blocks:
            block.attention.w_q.weight *= 4
    return model


def read(x, norm):
    return norm.weight * (x - x.mean())


def written(block, head, x):
    rows = slice(head * WIDTH, (head + 1) * WIDTH)
    return block.attention.w_o.weight[:, rows] @ (
        block.attention.w_v.weight[rows] @ read(x, block.attention_norm)
    )


@torch.no_grad()
@pytest.mark.parametrize("head", [0, 3])
def test_tables_word_by_word(model, head):
    first, second = model.blocks
    rows, words = slice(head * WIDTH, (head + 1) * WIDTH), model.embedding.weight[tables.WORDS]
    match, said = tables.looks_for(model, head), tables.says(model, head)
    for a, b in ((3, 3), (13, 5), (5, 13)):
        key = sum(written(first, below, words[b]) for below in range(HEADS))
        query, key = (
            projection.weight[rows] @ read(x, second.attention_norm)
            for projection, x in ((second.attention.w_q, words[a]), (second.attention.w_k, key))
        )
        assert match[a, b].item() == pytest.approx(
            sum(q * k for q, k in zip(query, key, strict=True)).item() / 4
        )
        logit = read(written(second, head, words[a]), model.output_norm) @ words[b]
        assert said[a, b].item() == pytest.approx(logit.item())


@torch.no_grad()
@pytest.mark.parametrize("reader", ["queries", "keys", "values"])
def test_composition_of_a_head_that_reads_only_what_another_writes(model, reader):
    """Head 1 writes into 16 directions. Of what head 2 reads, only the queries, keys or values lie
    there.
    """
    first, second = (block.attention for block in model.blocks)
    pair = torch.randn(64, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    here, elsewhere = torch.linalg.qr(pair - pair.mean(dim=0)).Q.chunk(
        2, dim=1
    )  # no mean: the norm takes it away
    model.blocks[1].attention_norm.weight.fill_(1)
    first.w_o.weight[:, WIDTH : 2 * WIDTH] = here
    second.w_o.weight[:, 2 * WIDTH : 3 * WIDTH] = elsewhere
    for name, projection in (("queries", second.w_q), ("keys", second.w_k), ("values", second.w_v)):
        projection.weight[2 * WIDTH : 3 * WIDTH] = (here if name == reader else elsewhere).T
    found = tables.compositions(model, 1, 2)
    expected = dict.fromkeys(found, 0) | {
        reader: 1 / math.sqrt(16)
    }  # 16 directions of equal size: |AB| = |A| |B| / 4
    assert found == pytest.approx(expected, abs=1e-10)


def test_scores_of_tables_that_are_known():
    eye = torch.eye(6, dtype=torch.float64)
    assert tables.on_diagonal(eye) == 1 and tables.on_diagonal(eye.roll(1, dims=0)) == 0
    assert tables.on_diagonal(eye + 9 * torch.arange(6)) == 1, (
        "a column that is large for all words says nothing"
    )
    assert torch.allclose(tables.centred(eye + 9 * torch.arange(6)), eye - 1 / 6)
    lopsided = eye.clone()
    lopsided[0, :2] = torch.tensor([5.0, 3.0])
    assert tables.on_diagonal(lopsided) == 1, "rows are asked, not columns"


def test_texts_differ_in_two_words_and_ask_for_what_follows_one_of_them():
    pairs = task.exchanged_words(200, torch.Generator().manual_seed(5))
    for clean, corrupted, asked, answers in zip(
        *(x.tolist() for x in (pairs.clean, pairs.corrupted, pairs.asked, pairs.answers)),
        strict=True,
    ):
        assert sum(a != b for a, b in zip(clean, corrupted, strict=True)) == 2
        for text, answer in ((clean, answers[0]), (corrupted, answers[1])):
            assert (
                text[text.index(clean[asked]) + 1] == answer
                and text[: asked + 1].count(clean[asked]) == 2
            )


@torch.no_grad()
def test_paths_are_what_a_forward_pass_by_hand_gives(model):
    pairs = task.exchanged_words(200, torch.Generator().manual_seed(5))
    senders, receivers = (
        torch.tensor([False, True, True, False]),
        torch.tensor([True, False, False, True]),
    )
    first, second = model.blocks

    def said(stream, attended):
        return pairs.lead(
            model.output_norm(stream + attended) @ model.embedding.weight.T + model.output_bias
        )

    def share(stream, **other):
        """Layer 1 on its stream; the projections named get another one, for the receivers."""
        projected = []
        for name in ("w_q", "w_k", "w_v"):
            here = (second.attention_norm(x) for x in (other.get(name, stream), stream))
            chosen = receivers.repeat_interleave(WIDTH)
            projected.append(torch.where(chosen, *map(getattr(second.attention, name), here)))
        heads, _ = scaled_dot_product_attention(
            *(split_heads(x, HEADS) for x in projected), causal_mask(16)
        )
        return (said(stream, second.attention.w_o(merge_heads(heads))) - low) / (high - low)

    def before_w_o(tokens):
        here = first.attention_norm(model.embed(tokens))
        parts = (
            split_heads(w(here), HEADS)
            for w in (first.attention.w_q, first.attention.w_k, first.attention.w_v)
        )
        return scaled_dot_product_attention(*parts, causal_mask(16))[0]

    words, clean, other = (
        model.embed(pairs.corrupted),
        before_w_o(pairs.clean),
        before_w_o(pairs.corrupted),
    )
    mixed = torch.where(senders[:, None, None], clean, other)
    corrupted, sent = (words + first.attention.w_o(merge_heads(heads)) for heads in (other, mixed))
    attended = second.attention(second.attention_norm(corrupted))[0]
    low, high = (pairs.lead(model(tokens)[0]) for tokens in (pairs.corrupted, pairs.clean))
    found = circuits.by_path(Patching(model, pairs), senders, receivers)
    assert found == pytest.approx(
        {
            "queries": share(corrupted, w_q=sent),
            "keys": share(corrupted, w_k=sent),
            "values": share(corrupted, w_v=sent),
            "past layer 1": (said(sent, attended) - low) / (high - low),
        },
        abs=1e-10,
    )
    assert len({round(abs(value), 3) for value in found.values()}) == 4, "four paths, four numbers"
