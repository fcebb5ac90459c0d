"""Induction: the task and the scores of heads compared with plain loops, and with heads made by hand."""

import math

import pytest
import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase3_visualization.circuits.patching import Patching, changed, put_in, run
from phase4_causal.induction import induction, paths
from phase4_causal.induction import induction_scores as task
from phase4_causal.induction import word_tables as tables
from phase4_causal.induction.induction_scores import unrepeated_sequences
from phase4_causal.induction.models import HEADS, untrained
from shared.attention_utils import causal_mask
from shared.tests.helpers import near
from shared.toy_language import SPECIAL, VOCABULARY


def sample(count: int = 37, **options) -> Tensor:
    return task.repeated_sequences(count, torch.Generator().manual_seed(5), **options)


MODEL, TOKENS = untrained(3).double(), sample(7)


def test_sequences_repeat_a_block_of_their_own():
    tokens, periods = sample(300), set()
    assert tokens.shape == (300, task.LENGTH) and len(set(tokens[:, 0].tolist())) > 50
    assert len(SPECIAL) <= tokens.min() and tokens.max() < len(SPECIAL) + task.SYMBOLS <= len(VOCABULARY)
    for row in tokens.tolist():
        period = next(p for p in range(1, len(row)) if row[p] == row[0])  # the block has no word twice
        assert len(set(row[:period])) == period
        assert all(row[i] == row[i - period] for i in range(period, len(row)))
        periods.add(period)
    assert periods == set(range(8, 17))  # no fixed distance is right more often than one time in nine
    longer = sample(50, periods=(17, 24), length=61)
    assert longer.shape == (50, 61) and all(17 <= len(set(row)) <= 24 for row in longer.tolist())
    assert all(len(set(row)) == task.LENGTH for row in unrepeated_sequences(20, torch.Generator()).tolist())
    late = task.late_sequences(20, torch.Generator()).tolist()  # the block begins in the middle
    assert all(len(set(row[:24])) == 24 and row[24:] == row[16:25] for row in late)


def test_places_against_a_plain_loop():
    tokens = torch.randint(5, (11, 13), generator=torch.Generator().manual_seed(0))  # words also come back unplanned
    gold, certain = task.after_earlier_occurrence(tokens), task.predictable(tokens)
    for n in range(11):
        for i in range(13):
            places = {j + 1 for j in range(i) if tokens[n, j] == tokens[n, i]}
            assert set(gold[n, i].nonzero().flatten().tolist()) == places
            assert certain[n, i] == bool(places)


def test_score_of_heads_that_are_known():
    gold = task.after_earlier_occurrence(torch.tensor([[7, 9, 7, 9]]))  # query 2 should look at place 1, 3 at place 2
    assert task.even_score(gold) == pytest.approx((1 / 3 + 1 / 4) / 2, rel=1e-6)
    eye = torch.eye(4, dtype=torch.float64)
    perfect, match = eye[[0, 0, 1, 2]], eye[[0, 1, 0, 1]]
    scores = task.scores([torch.stack([perfect, match, eye])[None]], gold)
    assert scores.tolist() == [[1, 0, 0]]  # looking at the same word is not looking behind it


def test_loss_and_right_guesses_against_a_plain_loop():
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
    near(less[:, :, [0, 2]], full[:, :, [0, 2]].mean(dim=0).expand_as(less[:, :, [0, 2]]))
    assert torch.equal(less[:, :, [1, 3]], full[:, :, [1, 3]])
    attention.w_v.weight[:16] = 0  # head 0 now says the same whatever the words are: there is nothing to take away
    alone = [task.rise(model, TOKENS, 1, [head], "mean") for head in (0, 1)]
    assert abs(alone[0]) < 1e-12 < abs(alone[1])


def test_where_the_loss_falls():
    losses = [share * math.log(task.SYMBOLS) for share in (1.4, 1.0, 0.7, 0.2, 0.01)]
    assert [induction.first_below(losses, share) for share in (0.75, 0.25, 0.001)] == [20, 30, 40]


# ---- what the weights of the two layers do together, and by which path the answer comes

WIDTH = 64 // HEADS
EXACT = {"rtol": 0, "atol": 1e-10}


@pytest.fixture
def model():
    """Untrained, in float64; norms that scale and shift, biases, and heads that are not even."""
    model, draw = untrained(3).double().eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, numbers in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                numbers += 0.5 * torch.randn(numbers.shape, generator=draw)
        for block in model.blocks:
            block.attention.w_q.weight *= 4
    return model


@torch.no_grad()
@pytest.mark.parametrize("head", [0, 3])
def test_tables_of_one_text_are_what_the_model_computes_there(model, head):
    """Where no word comes twice each mean is of one place: the table must give the model's own weights and logits."""
    tokens = unrepeated_sequences(1, torch.Generator().manual_seed(1))
    here, before = tables.words_in_text(model, tokens)
    words, found, attention = tokens[0] - tables.WORDS[0], run(model, tokens), model.blocks[1].attention
    scores = tables.qk_table(model, head, here, before)[words[1:]][:, words[:-1]]  # column j: the key behind word j
    own = found.weights[1][0, head, 1:, 1:]
    weights = scores.masked_fill(~causal_mask(len(scores)), -math.inf).softmax(dim=-1)
    near(weights, own / own.sum(dim=-1, keepdim=True), share=1e-10)

    columns, norm = slice(head * WIDTH, (head + 1) * WIDTH), model.output_norm
    value = found.values[1][0, 5, columns] - attention.w_v.bias[columns]
    stream = torch.randn(64, dtype=torch.float64)
    logits = []
    for x in (stream, stream + attention.w_o.weight[:, columns] @ value):
        divisor = (x.var(correction=0) + norm.eps).sqrt()  # what the table leaves out
        logits.append(divisor * (norm(x) - norm.bias) @ model.embedding.weight[tables.WORDS].T)
    near(tables.ov_table(model, head, here)[words[5]], logits[1] - logits[0], share=1e-10)


@torch.no_grad()
def test_a_table_of_means_is_the_mean_over_all_pairs_of_places(model):
    tokens = torch.randint(tables.WORDS[0], tables.WORDS[0] + 5, (3, 11), generator=torch.Generator().manual_seed(2))
    read, attention = [], model.blocks[1].attention
    with changed(model.blocks[1].attention_norm, read.append):
        model(tokens)
    head, scores = slice(2 * WIDTH, 3 * WIDTH), []
    for q in (tokens[:, 1:] == tables.WORDS[2]).nonzero() + torch.tensor([0, 1]):
        for k in (tokens[:, :-1] == tables.WORDS[4]).nonzero() + torch.tensor([0, 1]):
            query, key = attention.w_q(read[0][*q])[head], attention.w_k(read[0][*k])[head]
            scores.append((query @ key).item() / math.sqrt(WIDTH))
    table = tables.qk_table(model, 2, *tables.words_in_text(model, tokens))
    assert len(scores) > 9 and table[2, 4].item() == pytest.approx(sum(scores) / len(scores), abs=1e-10)
    assert table[7].isnan().all(), "a word that never came has no mean"


@torch.no_grad()
def test_weights_alone_word_by_word(model):
    first, second = model.blocks

    def read(x, norm):
        return norm.weight * (x - x.mean())

    def written(block, head, x):
        rows = slice(head * WIDTH, (head + 1) * WIDTH)
        return block.attention.w_o.weight[:, rows] @ (block.attention.w_v.weight[rows] @ read(x, block.attention_norm))

    here, before = tables.words_alone(model)
    word = model.embedding.weight[tables.WORDS[13]]
    copied = sum(written(first, head, word) for head in range(HEADS))
    near(here[13], read(word, second.attention_norm), share=1e-10)
    near(before[13], read(copied, second.attention_norm), share=1e-10)


def test_scores_of_tables_that_are_known():
    eye = torch.eye(6, dtype=torch.float64)
    turned = eye.roll(1, dims=0)
    assert tables.on_diagonal(eye) == 1 and tables.on_diagonal(turned) == 0
    assert tables.on_diagonal(eye + 9 * torch.arange(6)) == 1, "a column that is large for all words says nothing"
    lopsided = eye.clone()
    lopsided[0, :2] = torch.tensor([5.0, 3.0])
    assert tables.on_diagonal(lopsided) == 1, "rows are asked, not columns"
    assert [tables.copying_score(table) for table in (eye, -eye)] == pytest.approx([1, -1])
    assert tables.copying_score(turned) == pytest.approx(-0.2)  # sixth roots of 1; the means take the 1 away


def test_texts_differ_in_two_words_and_ask_for_what_follows_one_of_them():
    pairs = paths.sample_texts(37, torch.Generator().manual_seed(5))
    for clean, corrupted, asked, answers in zip(
        *(x.tolist() for x in (pairs.clean, pairs.corrupted, pairs.asked, pairs.answers)), strict=True
    ):
        assert sum(a != b for a, b in zip(clean, corrupted, strict=True)) == 2
        for text, answer in ((clean, answers[0]), (corrupted, answers[1])):
            assert text[text.index(clean[asked]) + 1] == answer and text[: asked + 1].count(clean[asked]) == 2


@torch.no_grad()
def test_paths_are_what_a_forward_pass_by_hand_gives(model):
    pairs = paths.sample_texts(7, torch.Generator().manual_seed(5))
    receivers = torch.tensor([True, False, False, True]).repeat_interleave(WIDTH)
    first, second = model.blocks

    def said(stream, attended):
        x = stream + attended
        x = x + second.feed_forward(second.feed_forward_norm(x))
        return pairs.lead(model.output_norm(x) @ model.embedding.weight.T + model.output_bias)

    def share(stream, **other):
        """Layer 1 on its stream; the projections named get another one, for the receivers."""
        projected = []
        for name in ("w_q", "w_k", "w_v"):
            read = (second.attention_norm(x) for x in (other.get(name, stream), stream))
            projected.append(torch.where(receivers, *map(getattr(second.attention, name), read)))
        heads, _ = scaled_dot_product_attention(*(split_heads(x, HEADS) for x in projected), causal_mask(32))
        return (said(stream, second.attention.w_o(merge_heads(heads))) - low) / (high - low)

    def attended(block, x):
        return block.attention(block.attention_norm(x))[0]

    def network(x):
        return first.feed_forward(first.feed_forward_norm(x))

    words = model.embed(pairs.corrupted)
    corrupted, sent = words + attended(first, words), words + attended(first, model.embed(pairs.clean))
    full = corrupted + network(corrupted)
    low, high = (pairs.lead(model(tokens)[0]) for tokens in (pairs.corrupted, pairs.clean))
    found = paths.by_path(Patching(model, pairs), receivers.view(HEADS, WIDTH)[:, 0])
    assert found == pytest.approx(
        {
            "queries": share(full, w_q=sent + network(sent)),
            "keys": share(full, w_k=sent + network(sent)),
            "values": share(full, w_v=sent + network(sent)),
            "past layer 1": (said(sent + network(sent), attended(second, full)) - low) / (high - low),
            "keys, straight": share(full, w_k=sent + network(corrupted)),
            "keys, by the network": share(full, w_k=corrupted + network(sent)),
        },
        abs=1e-10,
    )
    assert len({round(abs(value), 3) for value in found.values()}) == 6, "six paths, six numbers"
