"""The core beside the table of oracles, the steps that lead to it, and a hidden word's way."""

import doctest
import math
import tempfile

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import configuration, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from phase1_single_head import from_a_mean, hidden_word, models, self_attention, visualize
from phase1_single_head.order import position_encodings
from phase1_single_head.reading import other_weights
from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.attention_checks import known_to_hold
from shared.tests.helpers import T_K, T_Q, B, H, as_printed, near, qkv, some_mask
from shared.toy_language import MASK_ID, VOCABULARY, encode
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_enough_for_inputs_and_outputs_and_not_for_the_sums(dtype):
    """As near to float64 as torch's own kernel, whose sums are in float32."""
    query, key, value = qkv(t_q=97, t_k=97, d_k=64, d_v=8)
    inputs = [x.to(dtype) for x in (100 * query, 100 * key, value)]
    exact = F.scaled_dot_product_attention(*[x.double() for x in inputs])
    by_torch = F.scaled_dot_product_attention(*inputs)
    output, weights = scaled_dot_product_attention(*inputs)
    assert output.dtype == weights.dtype == dtype and output.isfinite().all()
    rounding = torch.finfo(dtype).eps / 2 * exact.abs().max()  # of the result
    bound = (by_torch.double() - exact).abs().max() + rounding
    assert (output.double() - exact).abs().max() <= bound


@pytest.mark.parametrize("module", [self_attention, position_encodings, other_weights])
def test_docstring_examples(module):
    examples = doctest.testmod(module)
    assert examples.attempted > 0 and examples.failed == 0


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
    untrained = untrained_model(models.SINGLE_HEAD_RECIPE, models.make_single_head)
    with torch.no_grad():
        untrained.model.embedding.weight.mul_(2)
        untrained.model.blocks[0].attention.w_q.weight.mul_(4)
    return untrained


@torch.no_grad()
def plain_pass(trained, words, i):
    """By a pass of the model and nothing else: probabilities (V,), row of weights (T,)."""
    tokens = torch.tensor([encode(words)])
    tokens[0, i] = MASK_ID
    logits, (weights,) = trained.model(tokens)
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
    attention = trained.model.blocks[0].attention
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
    attended = hidden_word.most_attended_words(flow)
    expected = f'To guess a hidden "sat" the head asks {attended}; the guess is {right}'
    assert hidden_word.answer(flow, by_model) == expected
    changed = by_model.roll(1)
    expected = f"The model now guesses {guessed(changed)}; the steps above give {right}: "
    assert hidden_word.answer(flow, changed) == f"{expected}you changed one of the two"


def test_many_hidden_words_at_once_are_as_one_by_one(trained):
    texts = [text.split() for text in SENTENCES]
    positions = [models.choose_word(words) for words in texts]
    assert positions == [2, 6, 1, 0], "the verb, or the last word"
    probabilities, rows = models.guess_hidden(trained.model, texts, positions)
    for words, i, probability, row in zip(texts, positions, probabilities, rows, strict=True):
        near((probability, row[: len(words)]), plain_pass(trained, words, i))
        assert row[len(words) :].eq(0).all()


def test_what_else_could_stand_there():
    others = {"cats": ["girls", "cars", "balls"], "on": ["in", "near"], "mat": []}
    assert {word: hidden_word.others_like(word) for word in others} == others


def test_pictures_draw_the_numbers_of_the_hidden_word(trained):
    flow = models.flow_of(trained, CAT)
    heatmap, caption = visualize.draw_heatmap(trained, flow)
    near(heatmap.axes[0].collections[0].get_array()[2].astype(float), flow.weights, share=1e-5)
    assert all(f'"{CAT[j]}"' in caption for j in flow.most_attended)
    _, axes = plt.subplot_mosaic(visualize.LAYOUT)
    visualize.draw_panels(axes, flow)
    weighted = flow.weights[:, None] * flow.values
    for panel, numbers in {"keys": flow.keys, "mixed": weighted}.items():
        near(axes[panel].collections[0].get_array(), numbers[:, :8], share=1e-5)
    near([bar.get_width() for bar in axes["weights"].patches], flow.weights, share=1e-5)
    plt.close("all")


# ---- random and hostile inputs: shapes, dtypes, masks, sizes
# The oracle is torch's own function in float64, or a plain loop. The examples are the same at every
# run, and no files of earlier ones are kept.

LARGEST = {  # scores stay finite
    torch.float64: 1e150,
    torch.float32: 1e17,
    torch.bfloat16: 1e17,
    torch.float16: 6e4,
}
lengths, sizes, seeds = st.integers(0, 9), st.integers(1, 7), st.integers(0, 2**32)
leadings = st.lists(st.integers(0, 3), max_size=2).map(tuple)
# It keeps some files even without a database; they are gone at the end.
NOTES = tempfile.TemporaryDirectory(prefix="hypothesis-")
configuration.set_hypothesis_home_dir(NOTES.name)


def examples(count):
    return settings(max_examples=count, derandomize=True, database=None, deadline=None)


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_mask(seed, shape):
    """From nearly nothing to nearly all visible."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) < torch.rand((), generator=generator)


@st.composite
def attention_inputs(draw):
    """query, key, value of any dtype, size and number of axes, and an accepted mask, or none."""
    dtype, leading, seed = draw(st.sampled_from(list(LARGEST))), draw(leadings), draw(seeds)
    t_q, t_k, d_k, d_v = draw(lengths), draw(lengths), draw(sizes), draw(sizes)
    most = math.log10(LARGEST[dtype])
    inputs = []
    for i, shape in enumerate(((t_q, d_k), (t_k, d_k), (t_k, d_v))):
        size = 10 ** draw(st.one_of(st.just(0.0), st.floats(-most, most)))
        inputs.append((size / 8 * normal(seed + i, *leading, *shape)).to(dtype))
    shapes = [None, (t_q, t_k)]
    if leading:
        shapes.append(tuple(draw(st.sampled_from((1, n))) for n in (*leading, t_q, t_k)))
    shape = draw(st.sampled_from(shapes))
    return inputs, None if shape is None else random_mask(seed, shape)


def by_torch(query, key, value, mask):
    """In float64, with 0 where a query sees no key."""
    sees = mask.any(dim=-1, keepdim=True)
    inputs = query.double(), key.double(), value.double()
    output = F.scaled_dot_product_attention(*inputs, attn_mask=mask | ~sees)
    return output.masked_fill(~sees, 0.0)


def room_for_rounding(query, key, value):
    """How far a mean of values may be off: the scores by rounding, and the result by its own."""
    given = torch.finfo(query.dtype)
    work = min(given.eps, torch.finfo(torch.float32).eps)
    scores = query.double().abs() @ key.double().abs().mT
    largest = scores.amax() if scores.numel() else 0.0
    share = 4 * given.eps + 32 * work * (1 + largest)
    return share * value.double().abs().max() + given.eps * given.tiny


@examples(700)
@given(attention_inputs())
def test_core_is_torchs_function_and_its_output_a_mean_of_what_is_seen(drawn):
    inputs, mask = drawn
    query, key, value = [x.requires_grad_() for x in inputs]
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert output.dtype == weights.dtype == query.dtype
    full = torch.ones(weights.shape, dtype=torch.bool) & (True if mask is None else mask)
    assert not weights[~full].any(), "a hidden key has a weight"
    tolerance = 20 * key.size(-2) * torch.finfo(query.dtype).eps
    near(weights.double().sum(dim=-1), full.any(dim=-1).double(), share=max(tolerance, 1e-15))
    if value.numel():
        error = (output.double() - by_torch(query, key, value, full)).abs()
        assert (error <= room_for_rounding(query, key, value)).all()
    slopes = torch.autograd.grad(output.double().sum(), inputs)
    if math.prod(x.double().abs().sum() for x in inputs) < 1e4:
        assert all(slope.isfinite().all() for slope in slopes)


anything = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@examples(650)
@given(
    st.tuples(anything, anything, anything),
    st.one_of(st.none(), anything),
    st.sampled_from((*LARGEST, torch.int64)),
)
def test_any_shapes_give_what_torch_gives_or_an_error_of_ours(shapes, mask_shape, dtype):
    """Nothing else: no error from inside torch, no result where torch has another one or none."""
    query, key, value = inputs = [torch.ones(shape, dtype=dtype) for shape in shapes]
    mask = None if mask_shape is None else torch.ones(mask_shape, dtype=torch.bool)
    try:
        output, weights = scaled_dot_product_attention(query, key, value, mask)
    except ValueError as error:
        said = str(error)
        assert "got" in said or "does not broadcast" in said or "must agree" in said
        # Of masks and vectors we take fewer kinds, so that none has two meanings. Products say what
        # torch's function does not look at: it takes values that are more than the keys.
        if "mask" not in said and all(x.dim() >= 2 and x.numel() for x in inputs):
            with pytest.raises(RuntimeError):
                (query @ key.mT).softmax(dim=-1) @ value
        return
    leading = torch.broadcast_shapes(*[shape[:-2] for shape in shapes])
    assert weights.shape[-2:] == (query.size(-2), key.size(-2))
    assert output.shape[-1] == value.size(-1)
    same = [x.expand(*leading, *x.shape[-2:]).double() for x in inputs]
    near(output.double(), F.scaled_dot_product_attention(*same, attn_mask=mask))


# ---- numbers that other projects print of the same mechanisms; each names its source


def test_llms_from_scratch_attention_without_weights():
    """rasbt/LLMs-from-scratch, section 3.3: words are queries, keys, values; nothing by √3."""
    first = [0.43, 0.15, 0.89, 0.55, 0.87, 0.66, 0.57, 0.85, 0.64]
    last = [0.22, 0.58, 0.33, 0.77, 0.25, 0.10, 0.05, 0.80, 0.55]
    x = torch.tensor([*first, *last]).view(6, 3)
    output, weights = scaled_dot_product_attention(math.sqrt(3) * x, x, x)
    as_printed(weights[1], [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581], digits=4)
    as_printed(output[1], [0.4419, 0.6515, 0.5683], digits=4)
