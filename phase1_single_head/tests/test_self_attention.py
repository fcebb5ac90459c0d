"""The core beside the table of oracles, the steps that lead to it, and a hidden word's way."""

import doctest
import math

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from phase1_single_head import from_a_mean, hidden_word, models, self_attention, visualize
from phase1_single_head.order import position_encodings
from phase1_single_head.reading import other_weights
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.attention_checks import known_to_hold
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import D_K, D_V, T_K, T_Q, B, H, near, qkv, some_mask
from shared.toy_language import MASK_ID, VOCABULARY, encode
from shared.toy_model import in_double
from shared.training.recipes import untrained_model


class Attention(nn.Module):
    """The output as that of a module, which is what PyTorch's recorders take."""

    def forward(self, query, key, value, mask=None):
        return scaled_dot_product_attention(query, key, value, mask)[0]


ATTEND = Attention()


def test_hand_worked_numbers():
    """q·k / √4 = ln 3 and 0: weights 3/4 and 1/4, so the output lies a quarter of the way."""
    query = torch.tensor([[2.0 * math.log(3.0), 0.0, 0.0, 0.0]])
    values = torch.tensor([[0.0, 8.0], [4.0, 0.0]])
    output, weights = scaled_dot_product_attention(query, torch.eye(2, 4), values)
    near(weights, torch.tensor([[0.75, 0.25]]))  # divided; sums to 1
    near(output, torch.tensor([[1.0, 6.0]]))


def test_hidden_is_exactly_zero():
    """Scores of -200,000 on the visible keys: a finite fill would lose against the hidden one."""
    query, key = torch.ones(1, 1), torch.tensor([[-2e5], [-2e5], [0.0]])
    _, weights = scaled_dot_product_attention(query, key, key, torch.tensor([[True, True, False]]))
    assert weights.tolist() == [[0.5, 0.5, 0.0]], "is it filled with -inf before softmax?"


RECORDERS = {
    "export": lambda module, inputs: torch.export.export(module, inputs).module(),
    "trace": torch.jit.trace,
    "make_fx": lambda module, inputs: make_fx(lambda *all: module(*all))(*inputs),
}


@pytest.mark.parametrize("record", RECORDERS.values(), ids=RECORDERS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_program_recorded_where_every_query_sees_a_key_is_right_where_one_sees_none(record):
    """Work may be left out if each query sees a key, but a recorded program is for all masks."""
    query, key, value = qkv()
    mask = some_mask(torch.Generator().manual_seed(0), (B, H, T_Q, T_K))  # query 0 may see no key
    recorded = record(ATTEND, (query, key, value, torch.ones_like(mask)))
    near(recorded(query, key, value, mask), ATTEND(query, key, value, mask))


def test_it_is_known_whether_all_of_a_condition_holds():
    assert known_to_hold(torch.ones(T_Q, 1, dtype=torch.bool))
    assert not known_to_hold(torch.arange(T_Q)[:, None] > 0), "one query sees no key"
    no_values = torch.ones(T_Q, 1, dtype=torch.bool, device="meta")
    assert not known_to_hold(no_values)


def test_vmap_over_masks_is_a_loop_over_masks():
    query, key, value = qkv(leading=())
    masks = torch.ones(3, T_Q, T_K, dtype=torch.bool).tril()
    masks[1, 2] = False  # in one of the masks a query may see no key
    together = torch.vmap(lambda mask: ATTEND(query, key, value, mask))(masks)
    near(together, torch.stack([ATTEND(query, key, value, mask) for mask in masks]))


def test_dropout_is_for_training_alone_and_weights_are_those_before_it():
    torch.manual_seed(0)
    query, key, value = qkv()
    dropout = nn.Dropout(0.5)
    output, weights = scaled_dot_product_attention(query, key, value, dropout=dropout)
    near(weights.sum(dim=-1), torch.ones(B, H, T_Q).double())
    assert not torch.allclose(output, weights @ value), "dropout had no effect on the output"
    output, _ = scaled_dot_product_attention(query, key, value, dropout=dropout.eval())
    near(output, weights @ value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_query_that_sees_nothing_gets_zero_and_finite_gradients(dtype):
    inputs = [x.requires_grad_() for x in qkv(dtype=dtype)]
    mask = some_mask(torch.Generator().manual_seed(0), (T_Q, T_K))
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        output, weights = scaled_dot_product_attention(*inputs, mask)
        output.float().sum().backward()
    assert not weights[..., ~mask].any() and not output[..., 0, :].any()  # C004
    assert all(x.grad.isfinite().all() for x in inputs)
    assert not inputs[0].grad[..., 0, :].any()


def with_gradients(attention, inputs, mask, upstream, dtype):
    inputs = [x.to(dtype).requires_grad_() for x in inputs]
    output = attention(*inputs, mask)
    return [output, *torch.autograd.grad(output, inputs, upstream.to(dtype))]


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, causal_mask(97)])
def test_16_bits_are_enough_for_inputs_and_outputs_and_not_for_the_sums(dtype, size, mask):
    """As near to float64 as torch's own kernel, whose sums are in float32."""
    query, key, value = qkv(t_q=97, t_k=97, d_k=64, d_v=8)
    inputs = [x.to(dtype) for x in (size * query, size * key, value)]
    asked = (inputs, mask, qkv(1, t_q=97, d_k=8)[0].to(dtype))
    exact = with_gradients(F.scaled_dot_product_attention, *asked, torch.float64)
    theirs = with_gradients(F.scaled_dot_product_attention, *asked, dtype)
    ours = with_gradients(ATTEND, *asked, dtype)
    for right, their, our in zip(exact, theirs, ours, strict=True):
        assert our.dtype == dtype and our.isfinite().all()
        rounding = torch.finfo(dtype).eps / 2 * right.abs().max()  # of the result
        bound = (their.double() - right).abs().max() + rounding
        assert (our.double() - right).abs().max() <= bound
    assert scaled_dot_product_attention(*inputs, mask)[1].dtype == dtype


Q, K, V = qkv()
LONG = Q.long(), K.long(), V.long()
ONES = torch.ones(B, T_Q, T_K)
MASKS = {
    r"mask must be bool.*got torch.float32.*mask.bool\(\)": ONES[0],
    r"\(5, 6\) does not broadcast to scores of .*\(2, 3, 5, 7\)": causal_mask(T_Q, 6),
    r"head axis with mask.unsqueeze\(1\)": ONES.bool(),
    r"2 axes \(T_q, T_k\) or 4 like the scores: got 1": ONES[0, 0].bool(),
}
REFUSED = {
    r"share their last size d_k: got 5 and 11": (Q[..., :5], K, V),
    r"same length T_k: got 7 and 6": (Q, K, V[..., :6, :]),
    r"query needs at least 2 axes": (Q[0, 0, 0], K, V),
    r"axes before length and size must agree": (Q[:, :2], K, V),
    r"one floating dtype: got torch.float32, torch.float64": (Q.float(), K, V),
    r"floating dtype: got torch.int64": LONG,
} | {message: (Q, K, V, mask) for message, mask in MASKS.items()}


@pytest.mark.parametrize("message", REFUSED)
def test_errors_name_the_rule_and_both_numbers(message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(*REFUSED[message])


@pytest.mark.parametrize("module", [self_attention, position_encodings, other_weights])
def test_docstring_examples(module):
    examples = doctest.testmod(module)
    assert examples.attempted > 0 and examples.failed == 0


def test_head_axis_and_masks_of_self_attention():
    x = torch.randn(B, T_Q, D_K)
    output, weights = SelfAttention(D_K, d_v=D_V)(x, padding_mask(torch.tensor([3, 5]), T_Q))
    assert output.shape == (B, T_Q, D_V) and weights.shape == (B, 1, T_Q, T_Q)
    assert weights[0, :, :, 3:].eq(0).all() and weights[1].gt(0).all()


# ---- the steps from a mean to attention


def test_each_step_is_its_sums_and_the_last_is_torchs():
    torch.manual_seed(1)
    x, w_q, w_k = torch.randn(7, 5), torch.randn(5, 3), torch.randn(5, 3)
    x, w_q, w_k, w_v = x.double(), w_q.double(), w_k.double(), torch.randn(5, 2).double()
    near(from_a_mean.plain_mean(x), torch.stack([sum(x) / 7] * 7))
    alike, closeness = from_a_mean.similarity_mean(x)
    output, weights = from_a_mean.all_words_ask(x, w_q, w_k, w_v)
    projected = [(x @ w)[None] for w in (w_q, w_k, w_v)]
    near(output, F.scaled_dot_product_attention(*projected)[0])
    for i in range(7):
        powers = torch.stack([x[i] @ word for word in x]).exp()
        near(closeness[i], powers / powers.sum())
        near(alike[i], sum(closeness[i, j] * x[j] for j in range(7)))
        near(from_a_mean.one_word_asks(x, i, w_q, w_k, w_v), (output[i], weights[i]))


# ---- a hidden word followed number by number, and its pictures

SENTENCES = [
    "the cat sat on the mat",
    "those big dogs beside a barn slept in a bed",
    "these teachers",
    "cats",
]
CAT = SENTENCES[0].split()


@pytest.fixture(scope="module")
def trained():
    """Untrained, but with larger words and queries: weights differ, and no guess is certain."""
    found = untrained_model(models.SINGLE_HEAD_RECIPE, models.make_single_head)
    with torch.no_grad():
        found.model.embedding.weight.mul_(2)
        found.model.blocks[0].attention.w_q.weight.mul_(4)
    return found


@torch.no_grad()
def plain_pass(trained, words, i):
    """By a pass of the model and nothing else: probabilities (V,), row of weights (T,)."""
    tokens = torch.tensor([encode(words)])
    tokens[0, i] = MASK_ID
    logits, (weights,) = in_double(trained.model)(tokens)
    return F.softmax(logits[0, i], dim=-1), weights[0, 0, i]


def guessed(probabilities):
    return f'"{VOCABULARY[int(probabilities.argmax())]}" ({probabilities.max():.2f})'


@pytest.mark.parametrize("text", SENTENCES)
@torch.no_grad()
def test_what_is_walked_and_drawn_is_what_a_plain_pass_computes(trained, text, capsys):
    words = text.split()
    flow = models.flow_of(trained, words)
    probabilities, weights = plain_pass(trained, words, flow.i)
    near((flow.probabilities, flow.weights), (probabilities, weights))
    near((flow.scores.softmax(dim=0), flow.output), (weights, weights @ flow.values))
    attention = in_double(trained.model).blocks[0].attention
    near((attention.w_q(flow.x)[flow.i], attention.w_k(flow.x)), (flow.query, flow.keys))
    near(attention.w_v(flow.x), flow.values)
    hidden_word.print_steps(flow)
    printed = capsys.readouterr().out
    assert " ".join(f"{weight:8.3f}" for weight in weights.tolist()) in printed
    assert hidden_word.difference(flow, probabilities) < 1e-12
    assert hidden_word.best_guess(flow.probabilities) == guessed(probabilities)


def test_the_last_line_tells_both_guesses_where_the_reader_has_changed_the_code(trained):
    flow = models.flow_of(trained, CAT)
    right, by_model = guessed(flow.probabilities), flow.probabilities
    asked = hidden_word.most_attended_words(flow)
    expected = f'To guess a hidden "sat" the head asks {asked}; the guess is {right}'
    assert hidden_word.answer(flow, by_model) == expected
    changed = by_model.roll(1)
    expected = f"The model now guesses {guessed(changed)}; the steps above give {right}: "
    assert hidden_word.answer(flow, changed) == f"{expected}you changed one of the two"


def test_many_hidden_words_at_once_are_as_one_by_one(trained):
    texts = [text.split() for text in SENTENCES]
    positions = [models.choose_word(words) for words in texts]
    assert positions == [2, 6, 1, 0], "the verb, or the last word"
    probabilities, rows = models.guess_hidden(in_double(trained.model), texts, positions)
    for words, i, probability, row in zip(texts, positions, probabilities, rows, strict=True):
        near((probability, row[: len(words)]), plain_pass(trained, words, i))
        assert row[len(words) :].eq(0).all()


def test_the_most_attended_words_are_others():
    weights = torch.tensor([0.1, 0.3, 0.4, 0.15, 0.05])
    assert models.most_attended(weights, 2) == [1, 3] and models.most_attended(weights, 1) == [2, 3]
    assert models.most_attended(torch.ones(1), 0) == []


def test_what_else_could_stand_there(trained, capsys):
    others = {
        "cats": ["girls", "cars", "balls"],
        "bus": ["cat", "girl", "ball"],
        "on": ["in", "near"],
        "mat": [],
    }
    assert {word: hidden_word.others_like(word) for word in others} == others
    flow = models.flow_of(trained, CAT)
    hidden_word.print_others(in_double(trained.model), flow)
    expected = []
    for j in flow.most_attended:
        for other in hidden_word.others_like(CAT[j]):
            changed = [*CAT[:j], other, *CAT[j + 1 :]]
            guess = guessed(plain_pass(trained, changed, 2)[0])
            expected.append(f'   "{other}" for "{CAT[j]}": {guess}')
    assert capsys.readouterr().out.splitlines()[2:] == expected != []


def test_the_heatmap_hides_the_word_and_frames_its_row(trained):
    figure, _ = visualize.draw_heatmap(trained, CAT)
    ax = figure.axes[0]
    assert ax.get_yticklabels()[2].get_text() == "2 ?"
    row = ax.collections[0].get_array()[2].tolist()
    near(torch.tensor(row).double(), plain_pass(trained, CAT, 2)[1], share=1e-5)
    (framed,) = [patch for patch in ax.patches if not patch.get_fill()]
    assert (framed.get_xy(), framed.get_width(), framed.get_height()) == ((0, 2), 6, 1)
    plt.close("all")


def test_the_flow_writes_the_sizes_of_its_tensors_and_draws_their_numbers():
    x, query, keys = torch.randn(5, 11), torch.randn(3), torch.randn(5, 3)
    values, scores, output = torch.randn(5, 7), torch.randn(5), torch.randn(7)
    weights = torch.tensor([0.1, 0.3, 0.4, 0.15, 0.05])
    words = ["a", "cat", "sat", "on", "mats"]
    probabilities = torch.rand(len(VOCABULARY))
    flow = models.Flow(words, 2, x, query, keys, values, scores, weights, output, probabilities)
    figure, axes = plt.subplot_mosaic(visualize.LAYOUT)
    visualize.draw_panels(axes, flow)
    visualize.connect_panels(axes)
    drawn = {
        "x": ('x of "?" (11)', x[2:3]),
        "query": ("query (3): W_q (11 × 3)", query[None]),
        "words": ("x of all (5, 11)", x),
        "keys": ("keys (5, 3): W_k (11 × 3)", keys),
        "values": ("values (5, 7): W_v (11 × 7)", values),
        "weighted": ("weight × value (5, 7)", torch.diag(weights) @ values),
        "output": ("output (7): their sum", output[None]),
        "scores": ("scores (5): q · k / √3", scores),
        "weights": ("weights (5): softmax", weights),
        "guess": ("the rest of the model", probabilities.topk(4).values),
    }
    for panel, (text, expected) in drawn.items():
        ax = axes[panel]
        assert text in [each.get_text() for each in ax.texts], panel
        bars = torch.tensor([bar.get_width() for bar in ax.patches])
        found = torch.tensor(ax.images[0].get_array()) if ax.images else bars
        near(found.float(), expected, share=1e-5)
    plt.close(figure)
