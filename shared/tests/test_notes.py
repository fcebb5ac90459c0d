"""What course notes say (data/notes.md): the page and its pointers; then sayings, tried by hand.

Most sayings are decided by a test beside the file that they speak of. Those that had none are tried
here. The number of a saying, such as C021, stands beside the lines that decide it.
"""

import hashlib
import math
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from torch import nn
from torch.utils.checkpoint import checkpoint

from phase1_single_head.before.additive import AdditiveAttention
from phase1_single_head.before.scoring import D_MODEL, kept_bytes
from phase1_single_head.parts.cross_attention import CrossAttention
from phase1_single_head.self_attention import (
    SelfAttention,
    masked_softmax,
    scaled_dot_product_attention,
)
from phase2_multi_head.costs.cost_model import peak_bytes
from phase2_multi_head.models import MULTI_HEAD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from phase2_multi_head.pooling.attention_pooling import AttentionPooling
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.long_texts.linear_attention import linear_attention
from shared import paths, training
from shared.attention_utils import (
    attention_entropy,
    attention_rollout,
    causal_mask,
    local_mask,
    padding_mask,
    strided_mask,
)
from shared.evidence.claims import all_claims
from shared.grammar.scores import with_relations
from shared.measure import count_operations, peak_memory
from shared.publishing import notes, table
from shared.tests.helpers import near
from shared.tests.test_house import anchors
from shared.toy_language import RELATIONS, START_ID, TOY_SENTENCE, VOCABULARY, encode
from shared.toy_model import Block, ToyTransformer, sinusoidal_positions

ROWS = notes.rows()
WORDS = TOY_SENTENCE.split()


# ---- the page


def test_the_page_on_disk_is_that_of_the_sayings():
    text = notes.PAGE.read_text(encoding="utf-8")
    assert text == notes.page(all_claims()), "run shared/publishing/table.py"


def test_every_saying_is_told_once_and_shown_somewhere():
    ids = [row["id"] for row in ROWS]
    assert ids == [f"C{number:03d}" for number in range(1, len(ids) + 1)]
    needs = {
        "finding": ["finding"],
        "identity": ["where"],
        "erratum": ["where", "by"],
        "literature": ["by"],
        "definition": ["where", "by"],
        "opinion": ["answer"],
        "not checkable here": ["answer"],
    }
    for row in ROWS:
        assert any(row.get(way) for way in needs[row["kind"]]), row
        assert row["verdict"] in ("right", "wrong", "in part", "open"), row
        assert (row["verdict"] == "open") == (row["kind"] in ("opinion", "not checkable here")), row
        assert notes.listed(row) == ("theme" in row), row
        assert not notes.listed(row) or row["answer"].endswith((".", ".)")), row


def test_every_pointer_leads_to_a_file_that_names_the_saying():
    for row in ROWS:
        if "where" in row:
            text = (paths.ROOT / row["where"]).read_text(encoding="utf-8")
            assert re.search(rf"\b{row['id']}\b", text), f"{row['where']} does not name {row['id']}"
            assert not row["where"].startswith("data/"), row


def test_every_finding_is_measured_and_every_link_of_the_page_arrives():
    claims = all_claims()
    known = {claim.id for claim in claims}
    assert {row["finding"] for row in ROWS if "finding" in row} <= known
    text, findings = notes.page(claims), set(re.findall('<a id="(.+?)"></a>', table.page(claims)))
    for link in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = link.partition("#")
        target = notes.PAGE.parent / file
        assert target.is_file(), link
        if anchor:
            assert anchor in (findings if target == table.PAGE else anchors(target)), link
    told = set(re.findall(r"`(C\d{3})`", text))
    assert told == {row["id"] for row in ROWS if notes.listed(row)}


def test_the_text_that_a_published_model_reads_stays_as_it_is():
    """window.py reads claims and their places as one text; another text would give other numbers."""
    text = "\n".join(f"{row['claim']} ({row['said']})" for row in ROWS)
    assert hashlib.sha256(text.encode()).hexdigest().startswith("45a994ec6ce7f49768be37cf")


# ---- scores, softmax and the division


def random_scores(d_k):
    """Dot products of random queries with six random keys each, (4000, 6)."""
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(4000, 1, d_k, generator=draw)
    key = torch.randn(4000, 6, d_k, generator=draw)
    return (query @ key.mT).squeeze(1)  # (4000, 1, d_k) @ (4000, d_k, 6) -> (4000, 6)


def test_how_large_dot_products_are():
    found = {d_k: random_scores(d_k) for d_k in (8, 64, 512)}
    beyond_50, largest = {}, {}
    for d_k, scores in found.items():
        assert scores.std().item() == pytest.approx(math.sqrt(d_k), rel=0.03)  # C006
        beyond_50[d_k] = (scores.abs() > 50).double().mean().item()
        largest[d_k] = scores.softmax(dim=-1).amax(dim=-1).mean().item()
        divided = scores / math.sqrt(d_k)
        assert divided.std().item() == pytest.approx(1, rel=0.03)  # C007
        assert (divided.abs() < 2).double().mean().item() == pytest.approx(0.95, abs=0.01)  # C017
    assert beyond_50[64] == 0  # C016
    assert beyond_50[512] == pytest.approx(0.027, abs=0.005)
    assert largest == pytest.approx({8: 0.69, 64: 0.89, 512: 0.96}, abs=0.02)  # C013, C014


def test_64_numbers_are_divided_by_8():
    """C018. q · k is 64 / 4 = 16 for the first key and 0 for the other: weights as e² to 1."""
    query = torch.full((1, 64), 0.25).double()
    key = torch.stack([torch.ones(64), torch.zeros(64)]).double()
    weights = scaled_dot_product_attention(query, key, torch.zeros(2, 1).double())[1]
    near(weights[0, 0] / weights[0, 1], math.exp(2))


@torch.no_grad()
def test_new_projections_give_scores_a_third_as_large():
    """C007. nn.Linear starts with weights of variance 1 / (3 d): queries and keys have 1/3, scores
    1/9.
    """
    torch.manual_seed(0)
    w_q, w_k = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    queries, keys = torch.randn(2, 2000, 64, generator=torch.Generator().manual_seed(0))
    scores = (w_q(queries) * w_k(keys)).sum(dim=-1) / math.sqrt(64)
    assert scores.std().item() == pytest.approx(1 / 3, rel=0.05)


def test_gradient_goes_where_the_weight_is():
    """The output is a plain number: its slope at a score is w (v - output)."""
    value = torch.arange(4, dtype=torch.float64)
    for scores, large in (((100.0, 95.0, 5.0, 3.0), 0.02), ((12.5, 11.875, 0.625, 0.375), 0.3)):
        given = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
        weights = given.softmax(dim=0)
        (slopes,) = torch.autograd.grad(weights @ value, given)
        assert weights.min() > 0, "all weights are above 0, though not all gradients count"  # C015
        assert slopes[2:].abs().max() < 2e-5, "divided or not, the small scores get nothing"  # C021
        assert 0.2 * large < slopes[:2].abs().max() < large, "the large ones gain"


def test_a_long_key_scores_higher_at_a_worse_angle():
    query, aligned, long = torch.tensor([[1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    assert F.cosine_similarity(query, aligned, dim=0) > F.cosine_similarity(query, long, dim=0)
    assert query @ aligned < query @ long  # C023, C024
    unit = F.normalize(torch.stack([long, aligned]), dim=-1)
    assert (unit @ query).argmax() == 1, "of unit vectors the one in the same direction"


def test_an_exercise_with_unit_vectors_by_hand():
    """Three keys at right angles, the query is the first, d_k = 3: scores 1/√3, 0, 0."""
    weights = scaled_dot_product_attention(torch.eye(3)[:1], torch.eye(3), torch.eye(3))[1]
    assert weights[0].tolist() == pytest.approx([0.4711, 0.2645, 0.2645], abs=1e-4)  # C023


def test_a_score_of_0_beside_negative_ones_hides_nothing():
    weights = torch.tensor([-2.0, 0.0, -3.0]).softmax(dim=0)
    assert weights[1].item() == pytest.approx(0.844, abs=1e-3)  # C002


# ---- before attention


def reached(dilations, length):
    """Which inputs the last output of convolutions of width 3 hears of, the last input first."""
    seen = torch.zeros(length, dtype=torch.bool)
    seen[0] = True
    for dilation in dilations:
        one, two = (F.pad(seen, (steps * dilation, 0))[:length] for steps in (1, 2))
        seen = seen | one | two
    return seen


@pytest.mark.parametrize("length", [33, 65])
def test_convolutions_join_words_in_log_n_layers_if_they_are_dilated(length):
    plain, dilated = [1] * length, [2**layer for layer in range(10)]  # C037
    needed = (length - 1) // 2  # k = 3: (n - 1) / (k - 1)
    assert reached(plain[:needed], length).all() and not reached(plain[: needed - 1], length).all()
    few = math.ceil(math.log2(length + 1)) - 1
    assert reached(dilated[:few], length).all() and not reached(dilated[: few - 1], length).all()


def test_a_linear_recurrence_needs_no_word_to_wait_for_all_before_it():
    """h_t = a_t h_(t-1) + x_t puts the words up to t together; brackets may stand anywhere."""
    draw = torch.Generator().manual_seed(0)
    factor = torch.rand(13, generator=draw).double()
    state = torch.randn(13, generator=draw).double()
    expected = [state[0]]
    for t in range(1, 13):
        expected.append(factor[t] * expected[-1] + state[t])
    step, rounds = 1, 0
    while step < 13:  # all words at once, with what stands `step` places before
        earlier_state = F.pad(state, (step, 0))[:13]
        earlier_factor = F.pad(factor, (step, 0), value=1.0)[:13]
        state, factor = state + factor * earlier_state, factor * earlier_factor
        step, rounds = 2 * step, rounds + 1
    near(state, torch.stack(expected))
    assert rounds == 4, "C042: log2 of 13 words, rounded up"


def test_what_an_lstm_keeps_depends_on_the_words_it_reads():
    torch.manual_seed(0)
    cell, kept = nn.LSTMCell(7, 5).double(), []
    for word in torch.randn(2, 1, 7).double():
        memory = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
        _, after = cell(word, (torch.zeros(1, 5).double(), memory))
        kept.append(torch.autograd.grad(after.sum(), memory)[0])
    assert (kept[0] - kept[1]).abs().max() > 0.01, "C044: the forget gate reads the word"


def test_the_table_of_layers_counts():
    """Of one layer without biases, d = 11, k = 3, n = 7."""

    def weights(layer):
        return sum(parameter.numel() for parameter in layer.parameters())

    assert weights(nn.RNN(11, 11, bias=False)) == 2 * 11**2  # C039
    assert weights(nn.Conv1d(11, 11, 3, bias=False)) == 3 * 11**2  # C038
    assert weights(SelfAttention(11)) == 3 * 11**2  # C041
    assert weights(SelfAttention(11, output_projection=True)) == 4 * 11**2
    assert weights(nn.Linear(7 * 11, 7 * 11, bias=False)) == (7 * 11) ** 2  # C043
    x = torch.randn(1, 7, 11, requires_grad=True)
    (slope,) = torch.autograd.grad(SelfAttention(11)(x)[0][0, -1].sum(), x)
    assert slope[0].abs().amax(dim=-1).gt(0).all(), "C040, C047: every word is one step away"


def test_bahdanau_s_decoder_reads_every_state():
    torch.manual_seed(0)
    weights = AdditiveAttention(11)(torch.randn(2, 3, 11), torch.randn(2, 7, 11))[1]
    assert weights.shape == (2, 1, 3, 7) and weights.gt(0).all()  # C172


# ---- costs


@pytest.mark.parametrize(("length", "d_model"), [(6, 64), (26, 13), (52, 13)])
def test_from_twice_the_width_on_the_scores_cost_more_than_the_projections(length, d_model):
    """4 T² d for scores and means against 8 T d² for four projections."""
    x = torch.randn(1, length, d_model)
    projections = 4 * count_operations(nn.Linear(d_model, d_model, bias=False), x)
    scores = count_operations(MultiHeadAttention(d_model, 1, bias=False), x) - projections
    share = scores / (scores + projections)
    assert share == pytest.approx(length / (length + 2 * d_model))  # C032, C033: half at T = 2 d


def test_what_becomes_smaller_if_memory_is_short():
    """C061, at 4,096 words, where the weights are nearly all of it."""
    whole = peak_bytes("in steps", 4096, 64, 8)
    assert peak_bytes("in steps", 2048, 64, 8) == pytest.approx(whole / 4, rel=0.01), "shorter"
    assert peak_bytes("in steps", 4096, 64, 4) == pytest.approx(whole / 2, rel=0.01), "fewer heads"
    assert peak_bytes("in steps", 4096, 32, 8) == pytest.approx(whole, rel=0.01), "narrower"
    weights = MultiHeadAttention(64, 4)(torch.randn(1, 6, 64))[1]
    assert weights.nbytes == 4 * 4 * 6**2 == 576 and 4 * 8 * 4096**2 == 512 * 2**20  # C060


def test_linear_attention_counts_a_table_of_d_by_d_for_each_word():
    def operations(attention, length):
        return count_operations(attention, *torch.randn(3, 1, length, 16))

    softmax = partial(operations, lambda q, k, v: scaled_dot_product_attention(q, k, v)[0])
    linear = partial(operations, linear_attention)
    assert softmax(128) == 4 * softmax(64) and linear(128) == 2 * linear(64)  # C053
    assert linear(64) == 2 * 2 * 64 * 16 * 17, (
        "T d², with a column for the sum of the weights"
    )  # C054
    assert linear(8) > softmax(8) and linear(32) < softmax(32), "less if the text is longer than d"


def test_how_many_pairs_patterns_leave():
    """Every k-th word: T² / k pairs, with k = √T they are T √T. A window of 3: T (2 · 3 + 1)."""
    few = int(strided_mask(64, 64, 8).sum())
    assert few == 64 * 8  # C057
    assert strided_mask(256, 256, 8).sum() == 16 * few, "4 times the words, and k stays"
    assert strided_mask(256, 256, 16).sum() == 8 * few, "4 times the words, and k grows with √T"
    pairs = [int(local_mask(length, length, 3).sum()) for length in (50, 100, 200)]
    assert pairs[2] - pairs[1] == 2 * (pairs[1] - pairs[0]) == 100 * 7  # C058
    assert not local_mask(50, 50, 3)[0, 4:].any(), "what is further away is not seen in one layer"


def test_when_torchs_attention_holds_no_table_of_weights():
    """On a processor. Dropout, or values of another size, bring the table; a mask does not."""
    query = torch.randn(1, 8, 512, 16)
    all_weights = 4 * 8 * 512**2  # bytes

    def peak(value=query, **options):
        return peak_memory(lambda: F.scaled_dot_product_attention(query, query, value, **options))

    fused = [peak(), peak(is_causal=True), peak(attn_mask=causal_mask(512))]
    plain = [peak(dropout_p=0.1), peak(value=query[..., :8])]
    assert max(fused) < all_weights <= min(plain)  # C051


def test_checkpointing_keeps_less_and_still_needs_one_whole_layer():
    """C149. The weights are not kept, but made again, and one layer's still grow like T²."""
    head = SelfAttention(D_MODEL)

    class Checkpointed(nn.Module):
        def forward(self, x, _):
            return checkpoint(head, x, use_reentrant=False)

    class Kept(nn.Module):
        def forward(self, x, _):
            return head(x)

    kept = [kept_bytes(Kept(), length) for length in (128, 256)]
    waiting = [kept_bytes(Checkpointed(), length) for length in (128, 256)]
    assert waiting[1] < kept[1] / 10
    peaks = [peak_memory(partial(head, torch.randn(1, length, D_MODEL))) for length in (1024, 2048)]
    assert peaks[1] > 3 * peaks[0]


# ---- heads


def test_a_demonstration_without_matrices_has_nothing_to_learn():
    """Q = K = V = X. Each word meets itself; with projections its key is one of many."""
    x = torch.randn(200, 7, 64, generator=torch.Generator().manual_seed(0))
    _, weights = scaled_dot_product_attention(x, x, x)
    assert not weights.requires_grad  # C076
    assert weights.diagonal(dim1=-2, dim2=-1).mean() > 0.9  # C077
    torch.manual_seed(0)
    projected = SelfAttention(64)(x)[1]
    assert projected.diagonal(dim1=-2, dim2=-1).mean().item() == pytest.approx(1 / 7, abs=0.02)


@torch.no_grad()
def test_a_head_on_the_diagonal_adds_the_word_times_two_matrices():
    """C078: the word itself, as a residual connection does, only if the two undo each other."""
    torch.manual_seed(0)
    head = MultiHeadAttention(64, 1, bias=False).double()
    x = torch.randn(1, 7, 64, dtype=torch.float64)
    own, _ = head(x, mask=torch.eye(7).bool())
    near(own, x @ head.w_v.weight.T @ head.w_o.weight.T)
    assert F.cosine_similarity(own, x, dim=-1).abs().max() < 0.5
    head.w_o.weight.copy_(torch.linalg.inv(head.w_v.weight))
    near(head(x, mask=torch.eye(7).bool())[0], x, share=1e-8)


@torch.no_grad()
def test_sizes_of_heads():
    """C177."""
    for d_model, heads, size in ((512, 8, 64), (64, 4, 16), (128, 8, 16)):
        output, _ = MultiHeadAttention(d_model, heads)(torch.zeros(1, 3, d_model))
        assert output.shape == (1, 3, d_model)  # C087
        assert split_heads(output, heads).shape == (1, heads, 3, size)


@torch.no_grad()
def test_examples_never_meet_and_heads_meet_in_w_o():
    torch.manual_seed(0)
    attention, x = MultiHeadAttention(33, 3).double(), torch.randn(2, 5, 33, dtype=torch.float64)
    output, weights = attention(x)
    with_another, _ = attention(torch.stack([x[0], x[1] + 1]))
    near(with_another[0], output[0])  # C163
    assert (with_another[1] - output[1]).abs().max() > 0.01
    attention.w_q.weight[:11] *= 2  # head 0
    changed, moved = attention(x)
    near(moved[:, 1:], weights[:, 1:])
    assert (moved[:, 0] - weights[:, 0]).abs().max() > 0.01
    assert (changed - output).abs().amax(dim=(0, 1)).gt(1e-6).all(), "all columns: W_O mixes heads"


def test_a_block_has_a_network_beside_its_attention():
    """C160: half of the matrices, two thirds where the hidden layer is four times as wide."""
    block = Block(21, MultiHeadAttention(21, 3, bias=False))
    matrices = [part.numel() for part in block.feed_forward.parameters() if part.dim() == 2]
    assert sum(matrices) == 4 * 21**2 == sum(part.numel() for part in block.attention.parameters())
    assert pytest.approx(2 / 3) == 8 * 21**2 / (8 + 4) / 21**2


# ---- masks, and models that write


def causal_model(num_layers):
    """Untrained, float64, with embeddings that outweigh the positions."""
    torch.manual_seed(0)
    model = ToyTransformer(33, 3, num_layers, make_attention=CausalSelfAttention).double().eval()
    nn.init.normal_(model.embedding.weight)
    return model


@torch.no_grad()
def test_one_pass_over_a_sentence_is_one_pass_for_each_of_its_beginnings():
    """C176: so all words of a text can be trained at once."""
    model, tokens = causal_model(num_layers=2), [START_ID, *encode(WORDS)]
    at_once = model(torch.tensor([tokens]))[0][0]  # (T, V)
    one_by_one = [model(torch.tensor([tokens[: end + 1]]))[0][0, -1] for end in range(len(tokens))]
    near(at_once, torch.stack(one_by_one))


@torch.no_grad()
@pytest.mark.parametrize(("num_layers", "same"), [(1, True), (2, False)])
def test_the_last_word_needs_no_mask_in_the_first_layer(num_layers, same):
    """C100: a text that is read anew for each word needs the mask from the second layer on."""
    masked = causal_model(num_layers)
    seeing = ToyTransformer(33, 3, num_layers, make_attention=MultiHeadAttention).double().eval()
    seeing.load_state_dict(masked.state_dict())
    tokens = torch.tensor([[START_ID, *encode(WORDS)]])
    (one, layers), (other, layers_seeing) = masked(tokens), seeing(tokens)
    assert torch.allclose(one[0, -1], other[0, -1], rtol=0, atol=1e-12) == same
    first, first_seeing = layers[0][0], layers_seeing[0][0]  # weights of the first layer, (H, T, T)
    near(first[:, -1], first_seeing[:, -1])  # C104
    assert (first[:, 0] - first_seeing[:, 0]).abs().max() > 0.3, "row 0 sees itself alone"  # C098


def test_under_the_mask_a_noun_can_look_back_and_its_determiner_not_ahead():
    determiner, noun = with_relations(WORDS).relations["determiner-noun"][0]
    assert not causal_mask(6)[determiner, noun] and causal_mask(6)[noun, determiner]  # C109
    previous = torch.eye(6).roll(-1, dims=-1)[1:]  # a row for each query but the first
    assert torch.equal(previous, torch.eye(6)[:-1]), (
        "query i looks at key i - 1: below the diagonal"
    )  # C111


def test_even_weights_under_the_mask_favour_the_first_word():
    even = masked_softmax(torch.zeros(6, 6), causal_mask(6))
    share = even.mean(dim=0)  # of each key, over all queries
    assert share[0].item() == pytest.approx(sum(1 / n for n in range(1, 7)) / 6)  # C110
    assert (round(share[0].item(), 2), round(share[5].item(), 2)) == (0.41, 0.03)


def test_padded_queries_still_put_something_out():
    torch.manual_seed(0)
    output, weights = SelfAttention(11)(torch.randn(1, 5, 11), padding_mask(torch.tensor([3]), 5))
    assert not weights[..., 3:].any() and output[0, 3:].abs().min() > 0  # C113


# ---- the order of words


@torch.no_grad()
def test_without_positions_the_two_the_are_one():
    torch.manual_seed(0)
    attention, embedding = SelfAttention(11).double(), torch.randn(len(VOCABULARY), 11).double()
    x = embedding[encode(WORDS)][None]
    output, weights = attention(x)
    near(output[0, 4], output[0, 0])  # C116: no test of positions without positions
    near(weights[0, 0, :, 4], weights[0, 0, :, 0])  # C117: nor different scores
    for other, _ in (attention(x + sinusoidal_positions(6, 11)), attention(x, causal_mask(6))):
        assert (other[0, 4] - other[0, 0]).abs().max() > 0.01


def test_the_printed_sinusoidal_code_takes_an_even_size_alone():
    for d_model, works in ((8, True), (7, False)):  # C136
        encoding, angle = torch.zeros(5, d_model), torch.ones(5, (d_model + 1) // 2)
        encoding[:, 0::2] = angle.sin()
        if works:
            encoding[:, 1::2] = angle.cos()
        else:
            with pytest.raises(RuntimeError):
                encoding[:, 1::2] = angle.cos()


# ---- reading weights


def test_a_mean_of_sharp_heads_is_no_head():
    heads = torch.eye(4).double()[:, None]  # (H, T_q, T_k): each looks at another word
    assert attention_entropy(heads).max() == 0
    near(attention_entropy(heads.mean(dim=0))[0], math.log(4))  # C130
    rows = torch.stack([torch.eye(4)[0], torch.full((4,), 0.25)]).double()  # one word; four words
    entropy = attention_entropy(rows)
    assert entropy.exp().mean().item() == pytest.approx(2.5)  # C132
    assert entropy.mean().exp().item() == pytest.approx(2), "the mean taken first says 2"


def test_peaked_and_spread_out_weights():
    query = torch.randn(20, 64, generator=torch.Generator().manual_seed(0)).double()
    key = torch.randn(20, 64, generator=torch.Generator().manual_seed(1)).double()
    value = torch.zeros(20, 1).double()
    _, diagonal = scaled_dot_product_attention(query, 10 * query, value)
    assert diagonal.diagonal().min() > 0.999  # C133
    _, divided = scaled_dot_product_attention(query, key, value)
    undivided = (query @ key.T).softmax(dim=-1)
    effective = [attention_entropy(weights).exp().mean().item() for weights in (divided, undivided)]
    assert effective[0] > 10 and effective[1] < 2  # C134: of 20 words


def brightness(color):
    """Luminance, of red, green and blue from 0 to 1."""
    red, green, blue = color
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_in_the_maps_of_the_notes_darker_is_more():
    for name in ("YlOrRd", "Blues"):
        none, all_of_it = colormaps[name]([0, 255])[:, :3]  # red, green, blue
        assert brightness(none) > 0.9 and brightness(all_of_it) < 0.2  # C138


def test_one_row_says_nothing_of_the_others():
    weights = torch.zeros(2, 5, 5)  # (B, T, T)
    weights[0, 0] = 0.2
    assert weights[0, 0].sum() == 1 and weights.sum(dim=-1).eq(0).sum() == 9  # C140


def test_products_of_weights_forget_who_asked_and_half_a_residual_remembers():
    scores = torch.randn(6, 4, 11, 11, generator=torch.Generator().manual_seed(0)).double()
    layers = list(scores.softmax(dim=-1))

    def apart(rows):
        return rows.std(dim=0).mean().item()

    product = torch.linalg.multi_dot([layer.mean(dim=0) for layer in reversed(layers)])
    assert apart(product) < 0.001 * apart(layers[0].mean(dim=0))  # C143
    assert apart(attention_rollout(layers)) > 10 * apart(product)


def test_in_cross_attention_one_text_asks_and_the_other_answers():
    torch.manual_seed(0)
    attention, x, context = CrossAttention(11), torch.randn(2, 3, 11), torch.randn(2, 5, 11)
    output, weights = attention(x, context)
    assert output.shape == (2, 3, 11) and weights.shape == (2, 1, 3, 5)  # C162
    key, value = attention.w_k(context), attention.w_v(context)  # C151: both of the other text
    expected = F.scaled_dot_product_attention(attention.w_q(x), key, value)
    near(output, attention.w_o(expected), share=1e-5)


# ---- examples


def test_the_toy_sentence():
    assert len(WORDS) == 6 and len(set(WORDS)) == 5  # C169: one word twice
    assert len(VOCABULARY) - 4 == 97  # C168: and four that are no words
    assert "it" not in WORDS  # C165
    relations = with_relations(WORDS).relations
    assert relations["verb-place"] == ((2, 5),)  # C164: and the grammar knows no object
    assert not any("object" in name for name in RELATIONS)


def test_the_weights_that_are_printed_for_it_sum_to_1():
    printed = [0.02, 0.05, 0.03, 0.04, 0.08, 0.65, 0.05, 0.03, 0.03, 0.02]
    assert sum(printed) == pytest.approx(1)  # C166


def test_positions_of_a_french_sentence():
    assert len(["<start>", "le", "chat", "est", "noir", "<end>"]) == 6  # C167


def test_the_times_that_are_printed_do_not_add_up():
    on_an_apple_gpu = [20, 5, 10, 10, 15, 10, 15, 10, 10]  # seconds; said to be 5 to 7 minutes
    on_a_processor = [40, 10, 15, 20, 25, 20, 30, 15, 20]  # 10 to 15 minutes
    assert (sum(on_an_apple_gpu), sum(on_a_processor)) == (105, 195)  # C124


def test_the_models_are_small():
    model = training.untrained(MULTI_HEAD_RECIPE, MultiHeadAttention).model
    assert sum(parameter.nbytes for parameter in model.parameters()) < 400_000  # C126


@torch.no_grad()
def test_pooling_by_attention_can_be_the_mean_and_the_first_word():
    pooling, x = AttentionPooling(3).double(), torch.randn(2, 5, 3, dtype=torch.float64)
    x[:, 0] = torch.tensor([9.0, 0, 0]).double()
    pooling.query.zero_()
    near(pooling(x)[0], x.mean(dim=1))  # C170
    pooling.query.copy_(torch.tensor([999.0, 0, 0]).double().view_as(pooling.query))
    near(pooling(x)[0], x[:, 0])
