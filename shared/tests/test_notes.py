"""What course notes say (data/notes.md), tried by hand.

Most sayings are decided by a test beside the file that they speak of. Those that had none are tried
here. The number of a saying, such as C021, stands beside the lines that decide it.
"""

import math
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
from shared import training
from shared.attention_utils import (
    attention_entropy,
    attention_rollout,
    causal_mask,
    local_mask,
    padding_mask,
    strided_mask,
)
from shared.grammar.scores import with_relations
from shared.measure import count_operations, peak_memory
from shared.tests.helpers import near
from shared.toy_language import RELATIONS, START_ID, TOY_SENTENCE, VOCABULARY, encode
from shared.toy_model import Block, ToyTransformer, sinusoidal_positions

WORDS = TOY_SENTENCE.split()


def draw(*shape, seed=0):
    """Random numbers in float64, the same each time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def new(module, *arguments, **options):
    """A new module in float64, with the same initial weights each time."""
    torch.manual_seed(0)
    return module(*arguments, **options).double()


# ---- scores, softmax and the division


@pytest.mark.parametrize(("d_k", "largest"), [(8, 0.69), (64, 0.89), (512, 0.96)])
def test_how_large_dot_products_are(d_k, largest):
    """Of random queries with six random keys each."""
    scores = (draw(4000, 1, d_k) @ draw(4000, 6, d_k, seed=1).mT).squeeze(1)  # (4000, 6)
    assert scores.std().item() == pytest.approx(math.sqrt(d_k), rel=0.03)  # C006
    beyond_50 = (scores.abs() > 50).double().mean().item()
    assert beyond_50 == (pytest.approx(0.027, abs=0.005) if d_k == 512 else 0)  # C016
    found = scores.softmax(dim=-1).amax(dim=-1).mean().item()
    assert found == pytest.approx(largest, abs=0.02)  # C013, C014
    divided = scores / math.sqrt(d_k)
    assert divided.std().item() == pytest.approx(1, rel=0.03)  # C007
    assert (divided.abs() < 2).double().mean().item() == pytest.approx(0.95, abs=0.01)  # C017


def test_64_numbers_are_divided_by_8():
    """C018. q · k is 64 / 4 = 16 for the first key and 0 for the other: weights as e² to 1."""
    query = torch.full((1, 64), 0.25).double()
    key = torch.stack([torch.ones(64), torch.zeros(64)]).double()
    weights = scaled_dot_product_attention(query, key, torch.zeros(2, 1).double())[1]
    near(weights[0, 0] / weights[0, 1], math.exp(2))


@torch.no_grad()
def test_new_projections_give_scores_a_third_as_large():
    """C007. nn.Linear starts with weights of variance 1 / (3 d).

    So queries and keys have variance 1/3, and scores 1/9.
    """
    w_q, w_k = new(nn.Linear, 64, 128, bias=False).weight.chunk(2)
    queries, keys = draw(2, 2000, 64)
    scores = ((queries @ w_q.T) * (keys @ w_k.T)).sum(dim=-1) / math.sqrt(64)
    assert scores.std().item() == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.parametrize(
    ("scores", "large"), [((100.0, 95.0, 5.0, 3.0), 0.02), ((12.5, 11.875, 0.625, 0.375), 0.3)]
)
def test_gradient_goes_where_the_weight_is(scores, large):
    """The output is a plain number: its slope at a score is w (v - output)."""
    given = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    weights = given.softmax(dim=0)
    (slopes,) = torch.autograd.grad(weights @ torch.arange(4).double(), given)
    assert weights.min() > 0, "all weights are above 0, though not all gradients count"  # C015
    assert slopes[2:].abs().max() < 2e-5, "divided or not, the small scores get nothing"  # C021
    assert 0.2 * large < slopes[:2].abs().max() < large, "the large ones gain"


def test_a_long_key_scores_higher_at_a_worse_angle():
    query, aligned, long = torch.tensor([[1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    assert F.cosine_similarity(query, aligned, dim=0) > F.cosine_similarity(query, long, dim=0)
    assert query @ aligned < query @ long  # C023, C024


def test_an_exercise_with_unit_vectors_by_hand():
    """Three keys at right angles, the query is the first, d_k = 3: scores 1/√3, 0, 0."""
    weights = scaled_dot_product_attention(torch.eye(3)[:1], torch.eye(3), torch.eye(3))[1]
    assert weights[0].tolist() == pytest.approx([0.4711, 0.2645, 0.2645], abs=1e-4)  # C023


def test_a_score_of_0_beside_negative_ones_hides_nothing():
    weights = torch.tensor([-2.0, 0.0, -3.0]).softmax(dim=0)
    assert weights[1].item() == pytest.approx(0.844, abs=1e-3)  # C002


# ---- before attention


def reached(dilations, length):
    """How many inputs the last output of convolutions of width 3 hears of, at most length."""
    seen = torch.zeros(length, dtype=torch.bool)  # the last input first
    seen[0] = True
    for dilation in dilations:
        for _ in range(2):
            seen = seen | F.pad(seen, (dilation, 0))[:length]
    return int(seen.sum())


@pytest.mark.parametrize("length", [33, 65])
def test_convolutions_join_words_in_log_n_layers_if_they_are_dilated(length):
    plain, dilated = [1] * length, [2**layer for layer in range(10)]  # C037
    needed = (length - 1) // 2  # k = 3: (n - 1) / (k - 1)
    few = math.ceil(math.log2(length + 1)) - 1
    for dilations, layers in ((plain, needed), (dilated, few)):
        assert reached(dilations[:layers], length) == length
        assert reached(dilations[: layers - 1], length) < length


def test_a_linear_recurrence_needs_no_word_to_wait_for_all_before_it():
    """h_t = a_t h_(t-1) + x_t puts the words up to t together; brackets may stand anywhere."""
    factor, state = draw(2, 13)
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
    cell, kept = new(nn.LSTMCell, 7, 5), []
    for word in draw(2, 1, 7):
        memory = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
        _, after = cell(word, (torch.zeros(1, 5).double(), memory))
        kept.append(torch.autograd.grad(after.sum(), memory)[0])
    assert (kept[0] - kept[1]).abs().max() > 0.01, "C044: the forget gate reads the word"


@pytest.mark.parametrize(
    ("layer", "weights"),
    [
        (nn.RNN(11, 11, bias=False), 2 * 11**2),  # C039
        (nn.Conv1d(11, 11, 3, bias=False), 3 * 11**2),  # C038
        (SelfAttention(11), 3 * 11**2),  # C041
        (SelfAttention(11, output_projection=True), 4 * 11**2),
        (nn.Linear(7 * 11, 7 * 11, bias=False), (7 * 11) ** 2),  # C043
    ],
    ids=str,
)
def test_the_table_of_layers_counts(layer, weights):
    """Of one layer without biases, d = 11, k = 3, n = 7."""
    assert sum(parameter.numel() for parameter in layer.parameters()) == weights


def test_in_attention_every_word_is_one_step_away():
    x = draw(1, 7, 11).requires_grad_()
    (slope,) = torch.autograd.grad(new(SelfAttention, 11)(x)[0][0, -1].sum(), x)
    assert slope[0].abs().amax(dim=-1).gt(0).all()  # C040, C047


def test_bahdanau_s_decoder_reads_every_state():
    weights = new(AdditiveAttention, 11)(draw(2, 3, 11), draw(2, 7, 11))[1]
    assert weights.shape == (2, 1, 3, 7) and weights.gt(0).all()  # C172


# ---- costs


@pytest.mark.parametrize(("length", "d_model"), [(6, 64), (26, 13), (52, 13)])
def test_from_twice_the_width_on_the_scores_cost_more_than_the_projections(length, d_model):
    """4 T² d for scores and means against 8 T d² for four projections."""
    x = torch.randn(1, length, d_model)
    projections = 4 * count_operations(nn.Linear(d_model, d_model, bias=False), x)
    whole = count_operations(MultiHeadAttention(d_model, 1, bias=False), x)
    share_of_scores = 1 - projections / whole
    expected = length / (length + 2 * d_model)
    assert share_of_scores == pytest.approx(expected)  # C032, C033: half at T = 2 d


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
    with_sums_of_weights = 16 * 17
    assert linear(64) == 2 * 2 * 64 * with_sums_of_weights, "T d²"  # C054
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

    fused = max(peak(), peak(is_causal=True), peak(attn_mask=causal_mask(512)))
    plain = min(peak(dropout_p=0.1), peak(value=query[..., :8]))
    assert fused < all_weights <= plain  # C051


def test_checkpointing_keeps_less_and_still_needs_one_whole_layer():
    """C149. The weights are not kept, but made again, and one layer's still grow like T²."""
    head = SelfAttention(D_MODEL)

    class Checkpointed(nn.Module):
        def forward(self, x, _):
            return checkpoint(head, x, use_reentrant=False)

    class Kept(nn.Module):
        def forward(self, x, _):
            return head(x)

    assert kept_bytes(Checkpointed(), 256) < kept_bytes(Kept(), 256) / 10
    peaks = [peak_memory(partial(head, torch.randn(1, length, D_MODEL))) for length in (1024, 2048)]
    assert peaks[1] > 3 * peaks[0]


# ---- heads


def test_a_demonstration_without_matrices_has_nothing_to_learn():
    """Q = K = V = X. Each word meets itself; with projections its key is one of many."""
    x = draw(200, 7, 64)
    _, weights = scaled_dot_product_attention(x, x, x)
    assert not weights.requires_grad  # C076
    assert weights.diagonal(dim1=-2, dim2=-1).mean() > 0.9  # C077
    projected = new(SelfAttention, 64)(x)[1]
    assert projected.diagonal(dim1=-2, dim2=-1).mean().item() == pytest.approx(1 / 7, abs=0.02)


@torch.no_grad()
def test_a_head_on_the_diagonal_adds_the_word_times_two_matrices():
    """C078: the word itself, as a residual connection does, only if the two undo each other."""
    head, x, diagonal = new(MultiHeadAttention, 64, 1, bias=False), draw(1, 7, 64), torch.eye(7) > 0
    own, _ = head(x, mask=diagonal)
    near(own, x @ head.w_v.weight.T @ head.w_o.weight.T)
    assert F.cosine_similarity(own, x, dim=-1).abs().max() < 0.5
    head.w_o.weight.copy_(torch.linalg.inv(head.w_v.weight))
    near(head(x, mask=diagonal)[0], x, share=1e-8)


@torch.no_grad()
@pytest.mark.parametrize(("d_model", "heads", "size"), [(512, 8, 64), (64, 4, 16), (128, 8, 16)])
def test_sizes_of_heads(d_model, heads, size):
    """C177."""
    output, _ = MultiHeadAttention(d_model, heads)(torch.zeros(1, 3, d_model))
    assert output.shape == (1, 3, d_model)  # C087
    assert split_heads(output, heads).shape == (1, heads, 3, size)


@torch.no_grad()
def test_examples_never_meet_and_heads_meet_in_w_o():
    attention, x = new(MultiHeadAttention, 33, 3), draw(2, 5, 33)
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
    model = new(ToyTransformer, 33, 3, num_layers, make_attention=CausalSelfAttention).eval()
    nn.init.normal_(model.embedding.weight)
    return model


@torch.no_grad()
def test_one_pass_over_a_sentence_is_one_pass_for_each_of_its_beginnings():
    """C176: so all words of a text can be trained at once."""
    model, tokens = causal_model(num_layers=2), torch.tensor([[START_ID, *encode(WORDS)]])
    logits, _ = model(tokens)  # (1, T, V)
    for end in range(tokens.shape[1]):
        beginning, _ = model(tokens[:, : end + 1])
        near(logits[0, end], beginning[0, -1])


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
    query, key = torch.eye(6).roll(-1, dims=-1)[1:].nonzero(as_tuple=True)
    assert torch.equal(key, query), "C111: query i + 1 looks at key i: below the diagonal"


def test_even_weights_under_the_mask_favour_the_first_word():
    even = masked_softmax(torch.zeros(6, 6), causal_mask(6))
    share = even.mean(dim=0)  # of each key, over all queries
    assert share[0].item() == pytest.approx(sum(1 / n for n in range(1, 7)) / 6)  # C110
    assert (round(share[0].item(), 2), round(share[5].item(), 2)) == (0.41, 0.03)


def test_padded_queries_still_put_something_out():
    mask = padding_mask(torch.tensor([3]), 5)
    output, weights = new(SelfAttention, 11)(draw(1, 5, 11), mask)
    assert not weights[..., 3:].any() and output[0, 3:].abs().min() > 0  # C113


# ---- the order of words


@torch.no_grad()
def test_without_positions_the_two_the_are_one():
    attention, x = new(SelfAttention, 11), draw(len(VOCABULARY), 11)[encode(WORDS)][None]
    output, weights = attention(x)
    near(output[0, 4], output[0, 0])  # C116: no test of positions without positions
    near(weights[0, 0, :, 4], weights[0, 0, :, 0])  # C117: nor different scores
    for other, _ in (attention(x + sinusoidal_positions(6, 11)), attention(x, causal_mask(6))):
        assert (other[0, 4] - other[0, 0]).abs().max() > 0.01


def test_the_printed_sinusoidal_code_takes_an_even_size_alone():
    """C136: the columns for the cosines are one fewer than the angles."""
    angle = torch.ones(5, 4)
    torch.zeros(5, 8)[:, 1::2] = angle.cos()
    with pytest.raises(RuntimeError):
        torch.zeros(5, 7)[:, 1::2] = angle.cos()


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
    query, key, value = draw(20, 64), draw(20, 64, seed=1), torch.zeros(20, 1).double()
    _, diagonal = scaled_dot_product_attention(query, 10 * query, value)
    assert diagonal.diagonal().min() > 0.999  # C133
    _, divided = scaled_dot_product_attention(query, key, value)
    assert attention_entropy(divided).exp().mean() > 10  # C134: of 20 words
    assert attention_entropy((query @ key.T).softmax(dim=-1)).exp().mean() < 2


@pytest.mark.parametrize("name", ["YlOrRd", "Blues"])
def test_in_the_maps_of_the_notes_darker_is_more(name):
    none, all_of_it = colormaps[name]([0, 255])[:, :3] @ (0.2126, 0.7152, 0.0722)  # luminance
    assert none > 0.9 and all_of_it < 0.2  # C138


def test_one_row_says_nothing_of_the_others():
    weights = torch.zeros(2, 5, 5)  # (B, T, T)
    weights[0, 0] = 0.2
    assert weights[0, 0].sum() == 1 and weights.sum(dim=-1).eq(0).sum() == 9  # C140


def test_products_of_weights_forget_who_asked_and_half_a_residual_remembers():
    layers = list(draw(6, 4, 11, 11).softmax(dim=-1))

    def apart(rows):
        return rows.std(dim=0).mean().item()

    product = torch.linalg.multi_dot([layer.mean(dim=0) for layer in reversed(layers)])
    assert apart(product) < 0.001 * apart(layers[0].mean(dim=0))  # C143
    assert apart(attention_rollout(layers)) > 10 * apart(product)


def test_in_cross_attention_one_text_asks_and_the_other_answers():
    attention, x, context = new(CrossAttention, 11), draw(2, 3, 11), draw(2, 5, 11)
    output, weights = attention(x, context)
    assert output.shape == (2, 3, 11) and weights.shape == (2, 1, 3, 5)  # C162
    key, value = attention.w_k(context), attention.w_v(context)  # C151: both of the other text
    near(output, attention.w_o(F.scaled_dot_product_attention(attention.w_q(x), key, value)))


# ---- examples


def test_the_toy_sentence():
    assert len(WORDS) == 6 and len(set(WORDS)) == 5  # C169: one word twice
    assert len(VOCABULARY) - 4 == 97  # C168: and four that are no words
    assert "it" not in WORDS  # C165
    relations = with_relations(WORDS).relations
    assert relations["verb-place"] == ((2, 5),)  # C164: and the grammar knows no object
    assert not any("object" in name for name in RELATIONS)


def test_what_is_printed_is_added_up():
    weights_of_it = [0.02, 0.05, 0.03, 0.04, 0.08, 0.65, 0.05, 0.03, 0.03, 0.02]
    assert sum(weights_of_it) == pytest.approx(1)  # C166
    assert len(["<start>", "le", "chat", "est", "noir", "<end>"]) == 6  # C167
    on_an_apple_gpu = [20, 5, 10, 10, 15, 10, 15, 10, 10]  # seconds; said to be 5 to 7 minutes
    on_a_processor = [40, 10, 15, 20, 25, 20, 30, 15, 20]  # 10 to 15 minutes
    assert (sum(on_an_apple_gpu), sum(on_a_processor)) == (105, 195)  # C124


def test_the_models_are_small():
    model = training.untrained(MULTI_HEAD_RECIPE, MultiHeadAttention).model
    assert sum(parameter.nbytes for parameter in model.parameters()) < 400_000  # C126


@torch.no_grad()
def test_pooling_by_attention_can_be_the_mean_and_the_first_word():
    pooling, x = new(AttentionPooling, 3), draw(2, 5, 3)
    x[:, 0] = torch.tensor([9.0, 0, 0])
    pooling.query.zero_()
    near(pooling(x)[0], x.mean(dim=1))  # C170
    pooling.query[..., 0] = 999
    near(pooling(x)[0], x[:, 0])
