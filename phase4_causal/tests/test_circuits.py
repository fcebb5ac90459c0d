"""Tables against the scores and logits of the model itself, paths against a forward pass by hand."""

import math

import pytest
import torch

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase3_visualization.circuits.patching import Patching, changed, run
from phase4_causal.induction import paths
from phase4_causal.induction import word_tables as tables
from phase4_causal.induction.induction_scores import unrepeated_sequences
from phase4_causal.induction.models import HEADS, untrained
from shared.attention_utils import causal_mask

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
    torch.testing.assert_close(weights, own / own.sum(dim=-1, keepdim=True), **EXACT)

    columns, norm = slice(head * WIDTH, (head + 1) * WIDTH), model.output_norm
    value = found.values[1][0, 5, columns] - attention.w_v.bias[columns]
    stream = torch.randn(64, dtype=torch.float64)
    logits = []
    for x in (stream, stream + attention.w_o.weight[:, columns] @ value):
        divisor = (x.var(correction=0) + norm.eps).sqrt()  # what the table leaves out
        logits.append(divisor * (norm(x) - norm.bias) @ model.embedding.weight[tables.WORDS].T)
    torch.testing.assert_close(tables.ov_table(model, head, here)[words[5]], logits[1] - logits[0], **EXACT)


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
    torch.testing.assert_close(here[13], read(word, second.attention_norm), **EXACT)
    torch.testing.assert_close(before[13], read(copied, second.attention_norm), **EXACT)


def test_scores_of_tables_that_are_known():
    eye = torch.eye(6, dtype=torch.float64)
    turned = eye.roll(1, dims=0)
    assert tables.on_diagonal(eye) == 1 and tables.on_diagonal(turned) == 0
    assert tables.on_diagonal(eye + 9 * torch.arange(6)) == 1, "a column that is large for all words says nothing"
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
