"""The core beside the table of oracles, the steps that lead to it, and a hidden word followed
number by number.
"""

import doctest
import math
import re

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
from shared import training
from shared.attention_checks import known_to_hold
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import D_K, D_V, T_K, T_Q, B, H, near, qkv, some_mask
from shared.toy_language import MASK_ID, VOCABULARY, encode
from shared.toy_model import in_double


def test_hand_worked_numbers():
    """q·k / √4 = ln 3 and 0: weights 3/4 and 1/4, so the output lies a quarter of the way to the
    second value.
    """
    query = torch.tensor([[2.0 * math.log(3.0), 0.0, 0.0, 0.0]])
    key = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    output, weights = scaled_dot_product_attention(
        query, key, torch.tensor([[0.0, 8.0], [4.0, 0.0]])
    )
    near(weights, torch.tensor([[0.75, 0.25]]))  # C056: divided; C139: sums to 1
    near(output, torch.tensor([[1.0, 6.0]]))


def test_hidden_is_exactly_zero():
    """Scores of -100,000 on the visible keys: a finite fill would lose against the hidden one."""
    query, key = (
        torch.ones(1, 1, dtype=torch.float64),
        torch.tensor([[-200000.0], [-200000.0], [0.0]]).double(),
    )
    mask = torch.tensor([[True, True, False]])
    _, weights = scaled_dot_product_attention(query, key, torch.eye(3).double(), mask)
    assert weights.tolist() == [[0.5, 0.5, 0.0]], (
        "a hidden key got weight: is it filled with -inf before softmax?"
    )


class Attention(nn.Module):
    """The function as a module, which is what PyTorch's recorders take."""

    def forward(self, query, key, value, mask):
        return scaled_dot_product_attention(query, key, value, mask)[0]


RECORDERS = {
    "export": lambda module, inputs: torch.export.export(module, inputs).module(),
    "trace": torch.jit.trace,
    "make_fx": lambda module, inputs: make_fx(lambda *inputs: module(*inputs))(*inputs),
}


@pytest.mark.parametrize("record", RECORDERS.values(), ids=RECORDERS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_program_recorded_where_every_query_sees_a_key_is_right_where_one_sees_none(record):
    """Attention may leave out work where no query is without a key, but a recorded program is for
    all masks.
    """
    query, key, value = qkv()
    mask = some_mask(torch.Generator().manual_seed(0), (B, H, T_Q, T_K))  # query 0 may see no key
    recorded = record(Attention(), (query, key, value, torch.ones_like(mask)))
    near(recorded(query, key, value, mask), Attention()(query, key, value, mask))


def test_it_is_known_whether_all_of_a_condition_holds():
    assert known_to_hold(torch.ones(T_Q, 1, dtype=torch.bool))
    assert not known_to_hold(torch.arange(T_Q)[:, None] > 0), "one query sees no key"
    assert not known_to_hold(torch.ones(T_Q, 1, dtype=torch.bool, device="meta")), (
        "there are no values to ask for"
    )


def test_vmap_over_masks_is_a_loop_over_masks():
    query, key, value = (tensor[0, 0] for tensor in qkv())
    masks = torch.ones(3, T_Q, T_K, dtype=torch.bool).tril()
    masks[1, 2] = False  # in one of the masks a query may see no key
    together = torch.vmap(lambda mask: Attention()(query, key, value, mask))(masks)
    for output, mask in zip(together, masks, strict=True):
        near(output, Attention()(query, key, value, mask))


def test_dropout_is_for_training_alone_and_weights_are_those_before_it():
    torch.manual_seed(0)
    query, key, value = qkv()
    output, weights = scaled_dot_product_attention(
        query, key, value, dropout=nn.Dropout(0.5).train()
    )
    near(weights.sum(dim=-1), torch.ones(B, H, T_Q).double())
    assert not torch.allclose(output, weights @ value), "dropout had no effect on the output"
    near(
        scaled_dot_product_attention(query, key, value, dropout=nn.Dropout(0.5).eval())[0],
        weights @ value,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_query_that_sees_nothing_gets_zero_and_finite_gradients(dtype):
    inputs = [t.requires_grad_() for t in qkv(dtype=dtype)]
    mask = some_mask(torch.Generator().manual_seed(0), (T_Q, T_K))
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        output, weights = scaled_dot_product_attention(*inputs, mask)
        output.float().sum().backward()
    assert weights[..., 0, :].eq(0).all() and output[..., 0, :].eq(0).all()
    assert weights[..., ~mask].eq(0).all()  # C004
    assert all(t.grad.isfinite().all() for t in inputs)
    assert inputs[0].grad[..., 0, :].eq(0).all()


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, causal_mask(97)])
def test_16_bits_are_enough_for_inputs_and_outputs_and_not_for_the_sums(dtype, size, mask):
    """As near to float64 as torch's own kernel, whose sums are in float32; finite where that is
    finite.
    """
    query, key, _ = qkv(t_q=97, t_k=97, d_k=64, d_v=8)
    _, value, upstream = qkv(1, t_q=97, t_k=97, d_k=8, d_v=8)
    *inputs, upstream = (x.to(dtype) for x in (size * query, size * key, value, upstream))
    outcomes = {}
    for name, attention, kind in (
        ("exact", F.scaled_dot_product_attention, torch.float64),
        ("torch", F.scaled_dot_product_attention, dtype),
        (
            "ours",
            lambda q, k, v, attn_mask: scaled_dot_product_attention(q, k, v, attn_mask)[0],
            dtype,
        ),
    ):
        mine = [x.to(kind).requires_grad_() for x in inputs]
        output = attention(*mine, attn_mask=mask)
        outcomes[name] = [output, *torch.autograd.grad(output, mine, upstream.to(kind))]
    for exact, theirs, ours in zip(*outcomes.values(), strict=True):
        assert ours.dtype == dtype and ours.isfinite().all()
        error, bound = ((x.double() - exact).abs().max() for x in (ours, theirs))
        assert (
            error <= bound + torch.finfo(dtype).eps / 2 * exact.abs().max()
        )  # and the rounding of the result
    weights = scaled_dot_product_attention(*inputs, mask)[1]
    assert weights.dtype == dtype and (mask is None or weights[..., ~mask].eq(0).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[..., :5], k, v, None), r"share their last size d_k: got 5 and 11"),
        (lambda q, k, v: (q, k, v[..., :6, :], None), r"same length T_k: got 7 and 6"),
        (lambda q, k, v: (q[0, 0, 0], k, v, None), r"query needs at least 2 axes"),
        (lambda q, k, v: (q[:, :2], k, v, None), r"axes before length and size must agree"),
        (
            lambda q, k, v: (q.float(), k, v, None),
            r"one floating dtype: got torch.float32, torch.float64",
        ),
        (lambda q, k, v: (q.long(), k.long(), v.long(), None), r"floating dtype: got torch.int64"),
        (
            lambda q, k, v: (q, k, v, torch.ones(T_Q, T_K)),
            r"mask must be bool.*got torch.float32.*mask.bool\(\)",
        ),
        (
            lambda q, k, v: (q, k, v, causal_mask(T_Q, 6)),
            r"\(5, 6\) does not broadcast to scores of .*\(2, 3, 5, 7\)",
        ),
        (
            lambda q, k, v: (q, k, v, torch.ones(B, T_Q, T_K).bool()),
            r"head axis with mask.unsqueeze\(1\)",
        ),
        (
            lambda q, k, v: (q, k, v, torch.ones(T_K).bool()),
            r"2 axes \(T_q, T_k\) or 4 like the scores: got 1",
        ),
    ],
)
def test_errors_name_the_rule_and_both_numbers(change, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(*change(*qkv()))


@pytest.mark.parametrize("module", [self_attention, position_encodings, other_weights])
def test_docstring_examples(module):
    examples = doctest.testmod(module)
    assert examples.attempted > 0 and examples.failed == 0


def test_head_axis_and_masks_of_self_attention():
    x = torch.randn(B, T_Q, D_K)
    output, weights = SelfAttention(D_K, d_v=D_V)(x, padding_mask(torch.tensor([3, 5]), T_Q))
    assert output.shape == (B, T_Q, D_V) and weights.shape == (B, 1, T_Q, T_Q)  # C088
    assert weights[0, :, :, 3:].eq(0).all() and weights[1].gt(0).all()


# ---- the steps from a mean to attention


def test_each_step_is_its_sums_and_the_last_is_torchs():
    generator = torch.Generator().manual_seed(1)
    shapes = ((7, 5), (5, 3), (5, 3), (5, 2))
    x, w_q, w_k, w_v = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    near(from_a_mean.plain_mean(x), torch.stack([sum(x) / 7] * 7))
    alike, closeness = from_a_mean.similarity_mean(x)
    output, weights = from_a_mean.all_words_ask(x, w_q, w_k, w_v)
    near(
        output, F.scaled_dot_product_attention((x @ w_q)[None], (x @ w_k)[None], (x @ w_v)[None])[0]
    )
    for i in range(7):
        scores = torch.stack([x[i] @ word for word in x])
        near(closeness[i], scores.exp() / scores.exp().sum())
        near(alike[i], sum(closeness[i, j] * x[j] for j in range(7)))
        near(from_a_mean.one_word_asks(x, i, w_q, w_k, w_v), (output[i], weights[i]))


# ---- a hidden word followed number by number, and its pictures

SENTENCES = [
    "the cat sat on the mat",
    "those big dogs beside a barn slept in a bed",
    "these teachers",
    "cats",
]


@pytest.fixture(scope="module")
def trained():
    """Untrained, with larger words and queries, so that words and weights differ, and no guess is
    certain.
    """
    found = training.untrained(models.RECIPE, models.make_single_head)
    with torch.no_grad():
        found.model.embedding.weight.mul_(2)
        found.model.blocks[0].attention.w_q.weight.mul_(4)
    return found


def plain_pass(trained, words, i):
    """By a pass of the model and nothing of the code under test: probabilities (V,), row of weights
    (T,).
    """
    tokens = torch.tensor([encode(words)])
    tokens[0, i] = MASK_ID
    with torch.no_grad():
        logits, (weights,) = in_double(trained.model)(tokens)
    return F.softmax(logits[0, i], dim=-1), weights[0, 0, i]


def guessed(probabilities):
    return f"{VOCABULARY[int(probabilities.argmax())]} {probabilities.max():.2f}"


@pytest.mark.parametrize("text", SENTENCES)
@torch.no_grad()
def test_what_is_walked_and_drawn_is_what_a_plain_pass_computes(trained, text, capsys):
    words = text.split()
    i = models.choose_word(words)
    probabilities, weights = plain_pass(trained, words, i)
    walked = hidden_word.walk(in_double(trained.model), words, i)
    near((walked.probabilities, walked.weights), (probabilities, weights))
    near(hidden_word.compare(in_double(trained.model), words, i, walked), probabilities)
    printed = capsys.readouterr().out
    assert f"\n   {guessed(probabilities)}, " in printed
    assert " ".join(f"{weight:8.3f}" for weight in weights.tolist()) in printed
    differences = [float(number) for number in re.findall(r"differ by (\S+)", printed)]
    assert len(differences) == 2 and max(differences) < 1e-12
    flow = models.flow_of(trained, words)
    near(
        (flow.weights, flow.scores.softmax(dim=0), flow.output),
        (weights, weights, weights @ flow.values),
    )
    attention = in_double(trained.model).blocks[0].attention
    near((attention.w_q(flow.x)[i], attention.w_k(flow.x)), (flow.query, flow.keys))
    near(attention.w_v(flow.x), flow.values)
    word, probability = flow.guesses[0]
    assert f"{word} {probability:.2f}" == guessed(probabilities)


@torch.no_grad()
def test_the_last_line_tells_both_guesses_where_the_reader_has_changed_the_code(trained):
    """As after the lesson's first change, which takes the division away behind the walk."""
    words, i = SENTENCES[0].split(), 2
    model = in_double(trained.model)
    walked = hidden_word.walk(model, words, i)
    right = hidden_word.said(walked.probabilities)
    whole = hidden_word.compare(model, words, i, walked)
    expected = f'To guess a hidden "sat" the head asks "cat" most; the guess is {right}'
    assert hidden_word.answer("sat", '"cat" most', walked, whole) == expected

    model.blocks[0].attention.w_q.weight.mul_(8)  # as without the division by √64
    changed = hidden_word.compare(model, words, i, walked)
    now = f"{VOCABULARY[int(changed.argmax())]!r} ({changed.max():.2f})".replace("'", '"')
    assert now != right
    expected = (
        f"The model now guesses {now}; the walk above gives {right}: you changed one of the two"
    )
    assert hidden_word.answer("sat", '"cat" most', walked, changed) == expected


def test_many_hidden_words_at_once_are_as_one_by_one(trained):
    texts = [text.split() for text in SENTENCES]
    positions = [models.choose_word(words) for words in texts]
    assert positions == [2, 6, 1, 0], "the verb, or the last word"
    probabilities, rows = models.guess_hidden(in_double(trained.model), texts, positions)
    for words, i, probability, row in zip(texts, positions, probabilities, rows, strict=True):
        near((probability, row[: len(words)]), plain_pass(trained, words, i))
        assert row[len(words) :].eq(0).all()


def test_whom_it_asked():
    weights = torch.tensor([0.1, 0.3, 0.4, 0.15, 0.05])
    assert models.most_asked(weights, 2) == [1, 3] and models.most_asked(weights, 1) == [2, 3]
    assert models.most_asked(torch.ones(1), 0) == []


def test_what_else_could_stand_there(trained, capsys):
    others = {
        "cats": ["girls", "cars", "balls"],
        "bus": ["cat", "girl", "ball"],
        "on": ["in", "near"],
        "mat": [],
    }
    assert {word: hidden_word.others_like(word) for word in others} == others
    words = ["the", "cat", "sat", "on", "the", "mat"]
    hidden_word.ask_others(in_double(trained.model), words, 2, [0, 1])
    expected = [
        f'   "{noun}" for "cat": {guessed(plain_pass(trained, ["the", noun, *words[2:]], 2)[0])}'
        for noun in ("girl", "car", "ball")
    ]
    assert capsys.readouterr().out.splitlines()[2:] == expected


def test_the_heatmap_hides_the_word_and_frames_its_row(trained):
    words = SENTENCES[0].split()
    figure, _ = visualize.draw_heatmap(trained, words)
    ax = figure.axes[0]
    assert ax.get_yticklabels()[2].get_text() == "2 ?"
    row = ax.collections[0].get_array()[2].tolist()
    near(torch.tensor(row).double(), plain_pass(trained, words, 2)[1], share=1e-5)
    (framed,) = [patch for patch in ax.patches if not patch.get_fill()]
    assert (framed.get_xy(), framed.get_width(), framed.get_height()) == ((0, 2), 6, 1)
    plt.close("all")


def test_the_flow_writes_the_sizes_of_its_tensors_and_draws_their_numbers():
    shapes = {
        "x": (5, 11),
        "query": (3,),
        "keys": (5, 3),
        "values": (5, 7),
        "scores": (5,),
        "output": (7,),
    }
    tensors = {name: torch.randn(shape).double() for name, shape in shapes.items()}
    weights = torch.tensor([0.1, 0.3, 0.4, 0.15, 0.05]).double()
    words = ["a", "cat", "sat", "on", "mats"]
    flow = models.Flow(
        words=words, i=2, weights=weights, guesses=[("ran", 0.7), ("sat", 0.2)], **tensors
    )
    figure, axes = plt.subplot_mosaic(visualize.LAYOUT)
    visualize.draw_asking(axes, flow, ["k"] * 5)
    visualize.draw_mixing(axes, flow)
    visualize.draw_arrows(axes)
    expected = {
        "x": ('x of "?" (11)', flow.x[2:3]),
        "query": ("query (3): W_q (11 × 3)", flow.query[None]),
        "words": ("x of all (5, 11)", flow.x),
        "keys": ("keys (5, 3): W_k (11 × 3)", flow.keys),
        "values": ("values (5, 7): W_v (11 × 7)", flow.values),
        "weighted": (
            "weight × value (5, 7)",
            torch.stack([w * v for w, v in zip(weights, flow.values, strict=True)]),
        ),
        "output": ("output (7): their sum", flow.output[None]),
    }
    for panel, (text, numbers) in expected.items():
        assert text in [drawn.get_text() for drawn in axes[panel].texts], panel
        (image,) = axes[panel].images
        near(torch.tensor(image.get_array()), numbers)
    for panel, text, numbers in (
        ("scores", "scores (5): q · k / √3", flow.scores),
        ("weights", "weights (5): softmax", weights),
    ):
        assert text in [drawn.get_text() for drawn in axes[panel].texts]
        near(
            torch.tensor([bar.get_width() for bar in axes[panel].patches]).double(),
            numbers,
            share=1e-6,
        )
    plt.close(figure)
