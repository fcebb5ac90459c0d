"""Long texts: extremes, 16 bits, memory, loops and states; test_oracles.py compares for all
lengths.
"""

import itertools
import math
import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.long_texts import long_context, overwriting, ring_attention, sparse_masks
from phase4_causal.long_texts.delta_rule import delta_by_loops, delta_rule, delta_rule_recurrent
from phase4_causal.long_texts.flash_attention import LOG2_E, finish, flash_attention, merge, nothing
from phase4_causal.long_texts.linear_attention import (
    CHUNK,
    FEATURE_MAPS,
    linear_attention,
    linear_attention_recurrent,
)
from phase4_causal.long_texts.local_attention import local_attention
from shared import training
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.tests.helpers import near, qkv
from shared.toy_language import END_ID, START_ID, encode
from shared.training import Recipe


def inputs_of(t_q, t_k, *, leading=(2, 3), dtype=torch.float64):
    inputs = qkv(t_q * 1000 + t_k, t_q=t_q, t_k=t_k, leading=leading, d_k=5, d_v=7, dtype=dtype)
    return [x.requires_grad_() for x in inputs]


def words_of(length, *, leading=(2, 3)):
    """Queries, keys of length 1, values, and how much of each word is written."""
    query, key, value = (x.detach() for x in inputs_of(length, length, leading=leading))
    beta = torch.rand(
        *leading, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length)
    )
    return [x.requires_grad_() for x in (query, F.normalize(key, dim=-1), value, beta)]


def assert_same(mine, theirs, inputs, share=1e-12):
    """Outputs and gradients; rounding is relative to the largest number."""
    near(mine, theirs, share)
    upstream = torch.randn(
        mine.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    slopes = (torch.autograd.grad(output, inputs, upstream) for output in (mine, theirs))
    near(*(torch.cat([x.flatten() for x in gradients]) for gradients in slopes), share)


# ---- tiles


@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_scores_far_from_0(far):
    """All scores near it, and one key that takes all or nothing, first or last: exp would overflow
    or vanish.
    """
    for order in ([], [-2]):
        query, key, value = (x.detach() for x in inputs_of(11, 11))
        query[..., 0], key[..., 0], key[..., 0, 1] = math.sqrt(5), far, 300.0
        inputs = [x.requires_grad_() for x in (query, key.flip(order), value)]
        found = flash_attention(*inputs, causal=True, block_size=3)
        assert_same(
            found, F.scaled_dot_product_attention(*inputs, is_causal=True), inputs, share=1e-9
        )


@pytest.mark.parametrize(("t_q", "t_k", "size"), [(12, 12, 3), (11, 5, 4), (5, 11, 4)])
@pytest.mark.parametrize("intruder", [math.nan, -math.inf])
def test_a_later_key_that_is_no_number_moves_no_earlier_bit(t_q, t_k, size, intruder):
    query, key, value = (x.detach() for x in inputs_of(t_q, t_k))
    before = flash_attention(query, key, value, causal=True, block_size=size)
    for at in range(t_k):
        later = key.index_fill(-2, torch.arange(at, t_k), intruder)
        after = flash_attention(query, later, value, causal=True, block_size=size)
        sees = torch.arange(t_q) + t_k - t_q >= at
        assert torch.equal(after[..., ~sees, :], before[..., ~sees, :]) and not torch.equal(
            after, before
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_summed_in_float32_however_small_the_tiles(dtype, causal):
    """About as near to float64 as torch's kernel, also where 16 bits cannot hold the products of
    queries and keys.
    """
    fused = partial(F.scaled_dot_product_attention, is_causal=causal)
    ours, small = (partial(flash_attention, causal=causal, block_size=size) for size in (256, 32))
    for size in (1.0, 100.0):
        inputs = [x.to(dtype) for x in qkv(3, t_q=512, t_k=512, leading=(2,), d_k=64, d_v=16)]
        inputs[:2] = [size * x for x in inputs[:2]]
        outcomes = []
        for attention, kind in (
            (fused, torch.float64),
            (fused, dtype),
            (ours, dtype),
            (small, dtype),
        ):
            mine = [x.to(kind).requires_grad_() for x in inputs]
            output = attention(*mine)
            outcomes.append([output, *torch.autograd.grad(output.sum(), mine)])
        for exact, theirs, *found in zip(*outcomes, strict=True):
            bound = (
                5 * (theirs.double() - exact).abs().max()
                + torch.finfo(dtype).eps / 2 * exact.abs().max()
            )
            assert all(
                x.dtype == dtype and (x.double() - exact).abs().max() <= bound for x in found
            )


def kept(scores, values):
    """What is kept of some keys, (T_q, n) and (n, d_v)."""
    largest = scores.max(dim=-1, keepdim=True).values
    numerators = torch.exp2(scores - largest)
    return largest, numerators.sum(dim=-1, keepdim=True), numerators @ values


def test_merged_in_any_order_parts_of_the_keys_are_all_keys():
    query, key, value = (x.detach() for x in inputs_of(5, 11, leading=()))
    scores = query @ key.mT * 9  # sharp: the largest one differs from part to part
    parts = [
        kept(scores[:, part] * LOG2_E, value[part])
        for part in (slice(4), slice(4, 5), slice(5, 11))
    ]
    for a, b, c in itertools.permutations(parts):
        for one, other in ((merge(a, b), c), (a, merge(b, c))):
            largest, total, weighted = merge(one, other)
            near(largest, scores.max(dim=-1, keepdim=True).values * LOG2_E)
            near(weighted / total, scores.softmax(dim=-1) @ value)
    none = nothing(torch.zeros(2, 5), d_v=3)
    assert not finish(*merge(none, none))[0].any(), "nothing and nothing is nothing"


def test_two_tiles_by_hand_are_what_a_calculator_says():
    """The arithmetic of the lesson: scores 1 and 2 with values 3 and 1, then 4 and 0 with 5 and 2."""
    tiles = [([1, 2], [3, 1]), ([4, 0], [5, 2])]
    parts = [
        kept(torch.tensor([scores]).double() * LOG2_E, torch.tensor([values]).double().T)
        for scores, values in tiles
    ]
    largest, total, weighted = (x.item() for x in merge(*parts))
    assert (f"{largest / LOG2_E:g}", f"{total:.3f}", f"{weighted:.3f}") == ("4", "1.203", "5.321")
    assert f"{weighted / total:.2f}" == "4.42"


# ---- every way

STATE, BETA = torch.zeros(3, 3), torch.zeros(6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            partial(linear_attention, feature_map="exp"),
            "unknown feature_map 'exp': choose from elu, relu",
        ),
        (
            lambda q, k, v: linear_attention_recurrent(q[:3], k, v),
            "as many queries as keys: got T_q=3, T_k=6",
        ),
        (partial(linear_attention_recurrent, state=STATE), r"shape \(3, 4\) of .*: got \(3, 3\)"),
        (
            partial(delta_rule, beta=BETA[:5]),
            r"beta has one number for each key, \(6,\) in .*: got \(5,\)",
        ),
        (
            partial(delta_rule, beta=BETA, state=STATE.double()),
            "torch.float32: got .*torch.float64",
        ),
        *(
            (lambda q, k, v, way=way: way(q, k, v[:5]), "same length T_k: got 6 and 5")
            for way in (flash_attention, linear_attention, partial(local_attention, window=1))
        ),
        (ring_attention.ring_attention, "needs a process group: there is none"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    x = torch.randn(6, 3)
    with pytest.raises(ValueError, match=message):
        call(x, x, x)


# ---- another kernel, and the delta rule


def test_linear_attention_is_hardly_nearer_to_softmax_than_a_plain_average():
    inputs = qkv(0, t_q=100, t_k=100, leading=(), d_k=64, d_v=64)
    outputs = [linear_attention(*inputs, feature_map=name) for name in FEATURE_MAPS]
    target = F.scaled_dot_product_attention(*inputs)
    average, *apart = ((output - target).norm() for output in (inputs[2].mean(dim=0), *outputs))
    assert min(apart) > 0.85 * average  # C055


def test_the_delta_rule_puts_a_value_in_place_of_the_old_one_and_sums_give_both():
    key, value = torch.eye(5).repeat(1, 2, 1), torch.randn(1, 10, 5)
    found = overwriting.answers(key[:, :5], key, value)
    near(found["delta rule"], value[:, 5:])
    near(found["sums"], value[:, :5] + value[:, 5:])


@pytest.mark.parametrize("length", [1, CHUNK + 1])
def test_the_delta_rule_is_its_loop(length):
    inputs = words_of(length, leading=(2,))
    output, state = delta_rule(*inputs)
    assert_same(
        output, torch.stack([delta_by_loops(*(x[text] for x in inputs)) for text in (0, 1)]), inputs
    )
    assert state.shape == (2, 5, 7), "the state must not depend on the length"


@pytest.mark.parametrize(
    ("way", "whole", "words"),
    [
        (
            linear_attention_recurrent,
            partial(linear_attention, causal=True),
            inputs_of(CHUNK + 9, CHUNK + 9),
        ),
        *(
            (way, lambda *x: delta_rule_recurrent(*x)[0], words_of(CHUNK + 9))
            for way in (delta_rule_recurrent, delta_rule)
        ),
    ],
)
def test_a_text_read_in_pieces_is_the_whole_text(way, whole, words):
    """The state is handed on, and gradients go through it; of no words nothing comes."""
    outputs, state = [], None
    for piece in (slice(0), slice(7), slice(7, 8), slice(8, CHUNK + 9)):
        output, state = way(*(x[:, :, piece] for x in words), state=state)
        outputs.append(output)
    assert outputs[0].shape == (2, 3, 0, 7)
    assert_same(torch.cat(outputs, dim=-2), whole(*words), words)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_is_positive_as_long_as_exp_is(dtype):
    """elu(x) + 1, written so, is 0 from -17 on in float32: exp(x) - 1 rounds to -1."""
    least = math.log(torch.finfo(dtype).tiny)
    x = torch.cat([torch.linspace(math.ceil(least), 3, 101), torch.tensor([0.0, 1e4])])
    x = x.to(dtype).requires_grad_()
    features = FEATURE_MAPS["elu"](x)
    expected = [value + 1 if value > 0 else math.exp(value) for value in x.tolist()]
    near(features, torch.tensor(expected, dtype=dtype), share=4 * torch.finfo(dtype).eps)
    (slope,) = torch.autograd.grad(features.sum(), x)
    assert features.gt(0).all() and slope.isfinite().all() and slope.gt(0).all()


def test_16_bits_of_linear_attention_and_of_the_delta_rule_are_summed_in_float32():
    """Keys near -8, too: there elu(x) + 1 has no digit left in bfloat16, and φ(k) is what the
    weights are made of.
    """
    query, key, value = (x.detach() for x in inputs_of(5, 7))
    rounded = [x.bfloat16() for x in (query, key - 8, value)]
    # why: one rounding to bfloat16, the last step, is 2**-9 of a number and the same everywhere
    near(
        linear_attention(*rounded).double(),
        linear_attention(*(x.double() for x in rounded)),
        share=2**-6,
    )
    rounded = [x.detach().bfloat16() for x in words_of(200)]
    # why: as above
    near(
        delta_rule(*rounded)[0].double(),
        delta_rule_recurrent(*(x.double() for x in rounded))[0],
        share=2**-7,
    )


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_nan_reaches_no_earlier_word_of_the_recurrence(which):
    inputs = [x.detach() for x in words_of(11, leading=())]
    before, _ = delta_rule_recurrent(*inputs)
    inputs[which][7] = math.nan
    after, _ = delta_rule_recurrent(*inputs)
    assert torch.equal(after[:7], before[:7]) and after[7].isnan().all()


def test_texts_write_every_key_twice_and_its_newest_value_last():
    keys, values, newest, text = overwriting.written_twice(11, torch.Generator().manual_seed(0))
    near(torch.cat([keys, values], dim=1).norm(dim=-1), torch.ones(overwriting.TEXTS, 33))
    for order, last in zip(text.tolist(), newest.tolist(), strict=True):
        assert sorted(order) == list(range(22)) and sorted(n % 11 for n in order[:11]) == list(
            range(11)
        )
        assert {n % 11: n for n in order} == dict(enumerate(last)), (
            "a dictionary keeps what comes last"
        )
    assert 0 < (newest < 11).double().mean() < 1, (
        "whichever value is the newest, it is so by chance"
    )


# ---- reach


def test_the_traffic_of_tiles_is_what_a_loop_counts():
    rows = [
        min(16, 37 - top) for top in range(0, 37, 16)
    ]  # 16 KiB: four tiles of 16 rows of 64 numbers of 4 bytes
    floats = sum(
        2 * 64 * (own + 37) for own in rows
    )  # own queries and outputs, all keys and values
    near(long_context.moved(37, 16), 4 * floats / 2**20)
    near(
        long_context.moved(3), 4 * (4 * 3 * 64 + 4 * 9) / 2**20
    )  # query, key, value, output; 9 scores and 9 weights


def test_reach_by_hand():
    """A window of 1 over 4 positions: 1 step a layer, 3 layers; stride 2 keeps odd and even apart."""
    near_by, far = local_mask(4, 4, 1), strided_mask(4, 4, 2)
    after = [seen.int().tolist() for seen in itertools.islice(sparse_masks.reach([near_by]), 2)]
    assert after[0] == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert after[1] == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]]
    past = causal_mask(4)
    all_pairs = past | ~past
    for layers, masks in {3: [near_by], math.inf: [far], 2: [near_by, far], 1: [all_pairs]}.items():
        assert sparse_masks.layers_needed(masks, all_pairs) == layers
    assert sparse_masks.layers_needed([past], all_pairs) == math.inf, "nobody hears of the future"
    idle = torch.eye(4, dtype=torch.bool)
    assert sparse_masks.layers_needed([idle, all_pairs], all_pairs) == 2, (
        "one idle layer is not the end"
    )
    assert sparse_masks.layers_needed([~idle], all_pairs) == 1, (
        "nobody looks at itself, and nobody forgets itself"
    )


def test_masks_of_the_trained_model_are_what_their_names_say():
    masks = sparse_masks.masks_of(11)
    for (name, mask), (i, j) in itertools.product(
        masks.items(), itertools.product(range(11), repeat=2)
    ):
        size = int(name.removeprefix("window ")) if name.startswith("window") else 0
        near_by, far = abs(i - j) <= size, (i - j) % 4 == 0
        expected = {
            sparse_masks.FULL: True,
            sparse_masks.FAR: far,
            sparse_masks.BOTH: far or abs(i - j) <= 1,
        }
        assert mask[i, j] == expected.get(name, near_by), (name, i, j)


@pytest.mark.parametrize("name", sparse_masks.masks_of(1))
def test_answers_through_a_mask_are_those_of_a_loop_over_words(name):
    """Each sentence alone, in a model that is told with every pair of words whether it may see;
    nothing is padded.
    """
    sentences = training.corpus()[1][:7]
    masked = training.untrained(
        Recipe("t", "next word", 3, 2, 0, d_model=33), MultiHeadAttention
    ).model.double()
    model = training.untrained(
        Recipe("t", "next word", 3, 2, 0, d_model=33), CausalSelfAttention
    ).model.double()
    for each in (masked, model):
        torch.nn.init.constant_(
            each.output_bias[END_ID], 9.0
        )  # it says <end> everywhere, and is right once a sentence
    longest = max(len(sentence.words) for sentence in sentences)
    found = sparse_masks.answers_through(model, sentences, sparse_masks.masks_of(longest + 1)[name])
    losses, right = [], []
    for sentence in sentences:
        tokens = [START_ID, *encode(sentence.words), END_ID]
        own = sparse_masks.masks_of(len(tokens) - 1)[name]
        allowed = torch.tensor(
            [[bool(own[i, j]) and j <= i for j in range(len(own))] for i in range(len(own))]
        )
        with torch.no_grad():
            logits, _ = masked(torch.tensor([tokens[:-1]]), mask=allowed)
        for i, word in enumerate(tokens[1:]):
            losses.append(-logits[0, i].log_softmax(dim=-1)[word].item())
            right.append(logits[0, i].argmax().item() == word)
    near(found, (sum(losses) / len(losses), sum(right) / len(right)))


# ---- ring attention, on several processes

LENGTHS = {
    "even": (67, 67, 67),
    "uneven": (5, 131, 17),
    "short": (1, 0, 1),
    "two": (3, 4),
    "alone": (11,),
}


def in_threads(work, size, monkeypatch):
    """work(rank) in each of `size` threads -> what each gave, or its error; what is planted here is
    planted in all.

    They have what ring_attention.py needs of torch.distributed: what is sent waits in a box, and
    nobody waits to send.
    """
    here, board, meeting = threading.local(), [None] * size, threading.Barrier(size, timeout=20)
    boxes = {pair: queue.Queue() for pair in itertools.product(range(size), repeat=2)}  # from, to

    def gather(held, own):
        board[here.rank] = own
        meeting.wait()
        held[:] = board
        meeting.wait()

    def exchange(operations):
        for kind, tensor, peer in operations:
            assert peer != here.rank, "nobody sends to himself"
            if kind == "send":
                boxes[here.rank, peer].put(tensor.clone())
            else:
                arrived = boxes[peer, here.rank].get(timeout=20)
                assert arrived.shape == tensor.shape
                tensor.copy_(arrived)
        return []  # all has arrived

    process = {
        "is_initialized": lambda: True,
        "get_rank": lambda: here.rank,
        "get_world_size": lambda: size,
    }
    message = {
        "P2POp": lambda *parts: parts,
        "isend": "send",
        "irecv": "receive",
        "batch_isend_irecv": exchange,
    }
    monkeypatch.setattr(
        ring_attention, "dist", SimpleNamespace(**process, **message, all_gather_object=gather)
    )

    def run(rank):
        here.rank = rank
        try:
            return work(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_ring_is_attention_on_the_whole(lengths, causal, monkeypatch):
    """Output and gradients; some slices are empty, and one process is a ring, too."""
    monkeypatch.setattr(ring_attention, "TILE", 7)
    draw = torch.Generator().manual_seed(sum(lengths))
    whole = [
        torch.randn(2, 3, sum(lengths), d, dtype=torch.float64, generator=draw) * 3
        for d in (7, 7, 5, 5)
    ]
    slices = list(zip(*(x.split(lengths, dim=-2) for x in whole), strict=True))

    def work(rank):
        *mine, upstream = (x.clone() for x in slices[rank])
        mine = [x.requires_grad_() for x in mine]
        output = ring_attention.ring_attention(*mine, causal=causal)
        return [output.detach(), *torch.autograd.grad(output, mine, upstream)]

    found = in_threads(work, len(lengths), monkeypatch)
    assert not (errors := [x for x in found if isinstance(x, Exception)]), errors
    *inputs, upstream = whole
    inputs = [x.requires_grad_() for x in inputs]
    expected = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    for mine, theirs in zip(
        zip(*found, strict=True),
        (expected, *torch.autograd.grad(expected, inputs, upstream)),
        strict=True,
    ):
        near(torch.cat(mine, dim=-2), theirs)


def test_what_does_not_fit_is_refused_on_every_process(monkeypatch):
    x, longer = torch.zeros(2, 5, 4), torch.zeros(2, 6, 4)
    for odd, causal in (((x, x, longer), False), ((x[..., :3],) * 3, False), ((x, x, x), True)):

        def work(rank, odd=odd, causal=causal):
            mine, hidden = (odd, causal) if rank == 1 else ((x, x, x), False)
            return ring_attention.ring_attention(*mine, causal=hidden)

        found = in_threads(work, 3, monkeypatch)
        assert (
            all(isinstance(error, ValueError) for error in found) and len(set(map(str, found))) == 1
        ), found
        assert "agree in all but T_r" in str(found[0]) and "own_slice" in str(found[0])


@pytest.mark.skipif(
    sys.platform != "linux", reason="one process loads the library, and the others are its copies"
)
def test_processes_agree_with_the_whole(capfd, monkeypatch):
    """The real thing: processes of gloo."""
    processes = torch.multiprocessing
    processes.set_forkserver_preload([ring_attention.__name__])
    monkeypatch.setattr(
        processes, "spawn", partial(processes.start_processes, start_method="forkserver")
    )
    monkeypatch.setattr(ring_attention, "PROCESSES", 2)
    ring_attention.main()
    differences = [float(line.split()[-1]) for line in capfd.readouterr().out.splitlines()]
    assert len(differences) == 2 and max(differences) == pytest.approx(0, abs=1e-12)
