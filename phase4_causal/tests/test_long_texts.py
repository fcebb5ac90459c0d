"""Long texts: extremes, 16 bits, memory, loops and states; test_oracles.py compares for all lengths."""

import itertools
import math
import queue
import re
import sys
import threading
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from phase4_causal.long_texts import overwriting, ring_attention, sparse_reach
from phase4_causal.long_texts.delta_rule import delta_by_loops, delta_rule, delta_rule_recurrent
from phase4_causal.long_texts.flash_attention import LOG2_E, finish, flash_attention, flash_by_loops, merge, nothing
from phase4_causal.long_texts.linear_attention import (
    CHUNK,
    FEATURE_MAPS,
    linear_attention,
    linear_attention_recurrent,
    linear_by_loops,
)
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.long_texts.strided_attention import strided_attention
from shared import paths
from shared.attention_utils import causal_mask, local_mask, strided_mask
from shared.measure import count_operations, peak_memory
from shared.tests.helpers import near, qkv


def inputs_of(t_q, t_k, *, leading=(2, 3), dtype=torch.float64):
    inputs = qkv(t_q * 1000 + t_k, t_q=t_q, t_k=t_k, leading=leading, d_k=5, d_v=7, dtype=dtype)
    return [x.requires_grad_() for x in inputs]


def words_of(length, *, leading=(2, 3)):
    """Queries, keys of length 1, values, and how much of each word is written."""
    query, key, value = (x.detach() for x in inputs_of(length, length, leading=leading))
    beta = torch.rand(*leading, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    return [x.requires_grad_() for x in (query, F.normalize(key, dim=-1), value, beta)]


def assert_same(mine, theirs, inputs, share=1e-12):
    """Outputs and gradients; rounding is relative to the largest number."""
    near(mine, theirs, share)
    upstream = torch.randn(mine.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slopes = (torch.autograd.grad(output, inputs, upstream) for output in (mine, theirs))
    near(*(torch.cat([x.flatten() for x in gradients]) for gradients in slopes), share)


# ---- tiles


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("far", [-1e4, 0.0, 1e4])
def test_scores_far_from_0(far, causal):
    """All scores near it, and one key that takes all or nothing, first or last: exp would overflow or vanish."""
    for order in ([], [-2]):
        query, key, value = (x.detach() for x in inputs_of(11, 11))
        query[..., 0], key[..., 0], key[..., 0, 1] = math.sqrt(5), far, 300.0
        inputs = [x.requires_grad_() for x in (query, key.flip(order), value)]
        found = flash_attention(*inputs, causal=causal, block_size=3)
        assert_same(found, F.scaled_dot_product_attention(*inputs, is_causal=causal), inputs, share=1e-9)


@pytest.mark.parametrize(("t_q", "t_k", "size"), [(12, 12, 3), (11, 5, 4), (5, 11, 4)])
@pytest.mark.parametrize("intruder", [math.nan, math.inf, -math.inf, 1e30])
def test_a_later_key_moves_no_earlier_bit(t_q, t_k, size, intruder):
    """Neither of a tile that is left out nor of one that the diagonal crosses; some queries see nothing of a tile."""
    query, key, value = (x.detach() for x in inputs_of(t_q, t_k))
    before = flash_attention(query, key, value, causal=True, block_size=size)
    for at in range(t_k):
        later = key.clone()
        later[..., at:, :] = intruder
        after = flash_attention(query, later, value, causal=True, block_size=size)
        sees = torch.arange(t_q) + t_k - t_q >= at
        assert torch.equal(after[..., ~sees, :], before[..., ~sees, :]) and not torch.equal(after, before)


def test_tiles_cannot_be_differentiated_twice_and_say_so():
    inputs = inputs_of(5, 7)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(flash_attention(*inputs).sum(), inputs, create_graph=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_summed_in_float32_however_small_the_tiles(dtype, causal):
    """About as near to float64 as torch's kernel, also where 16 bits cannot hold the products of queries and keys."""
    fused = partial(F.scaled_dot_product_attention, is_causal=causal)
    ours, small = (partial(flash_attention, causal=causal, block_size=size) for size in (256, 32))
    for size in (1.0, 100.0):
        inputs = [x.to(dtype) for x in qkv(3, t_q=512, t_k=512, leading=(2,), d_k=64, d_v=16)]
        inputs[:2] = [size * x for x in inputs[:2]]
        outcomes = []
        for attention, kind in ((fused, torch.float64), (fused, dtype), (ours, dtype), (small, dtype)):
            mine = [x.to(kind).requires_grad_() for x in inputs]
            output = attention(*mine)
            outcomes.append([output, *torch.autograd.grad(output.sum(), mine)])
        for exact, theirs, *found in zip(*outcomes, strict=True):
            bound = 5 * (theirs.double() - exact).abs().max() + torch.finfo(dtype).eps / 2 * exact.abs().max()
            assert all(x.dtype == dtype and (x.double() - exact).abs().max() <= bound for x in found)


def kept(scores, values):
    """What is kept of some keys, (T_q, n) and (n, d_v)."""
    largest = scores.max(dim=-1, keepdim=True).values
    numerators = torch.exp2(scores - largest)
    return largest, numerators.sum(dim=-1, keepdim=True), numerators @ values


def test_nothing_merged_with_nothing_is_nothing():
    none = nothing(torch.zeros(2, 5), d_v=3)
    output, logsumexp = finish(*merge(none, none))
    assert not output.any() and logsumexp.isfinite().all()


def test_merged_in_any_order_parts_of_the_keys_are_all_keys():
    query, key, value = (x.detach() for x in inputs_of(5, 11, leading=()))
    scores = query @ key.mT * 9  # sharp: the largest one differs from part to part
    parts = [kept(scores[:, part] * LOG2_E, value[part]) for part in (slice(4), slice(4, 5), slice(5, 11))]
    for a, b, c in itertools.permutations(parts):
        for one, other in ((merge(a, b), c), (a, merge(b, c))):
            largest, total, weighted = merge(one, other)
            near(largest, scores.max(dim=-1, keepdim=True).values * LOG2_E)
            near(weighted / total, scores.softmax(dim=-1) @ value)


def test_two_tiles_by_hand_are_what_a_calculator_says():
    """The arithmetic of the lesson, with the numbers as they stand there; at the end it is that of merge."""
    lesson = (paths.ROOT / "phase4_causal" / "README.md").read_text(encoding="utf-8")
    lines = [
        line
        for line in lesson.split("## 6.")[1].splitlines()
        if re.match("tile|merged|correction|output|softmax", line)
    ]
    sums = [part.split(" = ") for line in lines for part in re.split(" {2,}", line) if " = " in part]
    assert len(sums) == 9
    for terms, result in sums:
        value = eval(terms.replace("·", "*").replace("e^", "math.e**"))
        assert f"{value:.{len(result.split('.')[1])}f}" == result, terms
    scores, values = (torch.tensor(x, dtype=torch.float64) for x in ([[1, 2, 4, 0]], [[3], [1], [5], [2]]))
    tiles = [kept(scores[:, part] * LOG2_E, values[part]) for part in (slice(2), slice(2, 4))]
    largest, total, weighted = (x.item() for x in merge(*tiles))
    assert (f"{largest / LOG2_E:g}", f"{total:.3f}", f"{weighted:.3f}") == ("4", "1.203", "5.321")
    assert [line.split()[-1] for line in lines[-2:]] == [f"{weighted / total:.2f}"] * 2


# ---- every way


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("fast", "by_loops", "settings"),
    [
        (flash_attention, flash_by_loops, {}),
        *((linear_attention, linear_by_loops, {"feature_map": x}) for x in FEATURE_MAPS),
    ],
)
def test_fast_is_its_loops(fast, by_loops, settings, causal):
    for t_q, t_k in ((7, 7), (3, 8), (8, 3), (3, 0), (0, 3)):
        inputs = [x.detach() for x in inputs_of(t_q, t_k, leading=())]
        near(fast(*inputs, causal=causal, **settings), by_loops(*inputs, causal=causal, **settings))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", [partial(flash_attention, block_size=2), partial(strided_attention, stride=4)])
def test_keys_that_heads_share(attention, causal):
    """One key for both: its gradient is a sum. Keys without the axes of queries and values broadcast, too."""
    query, key, value = inputs_of(5, 6, leading=(2,))
    shared = key[:1].detach().requires_grad_()
    expanded = attention(query, shared.expand_as(key), value, causal=causal)
    assert_same(attention(query, shared, value, causal=causal), expanded, (query, shared, value))
    near(attention(query, shared[0], value, causal=causal), expanded)


@pytest.mark.parametrize(
    "attention",
    [flash_attention, partial(local_attention, window=2), partial(strided_attention, stride=2), linear_attention],
)
def test_no_batch(attention):
    inputs = inputs_of(5, 7, leading=(0, 3))
    output = attention(*inputs, causal=True)
    assert output.shape == (0, 3, 5, 7) and not any(x.any() for x in torch.autograd.grad(output.sum(), inputs))


@pytest.mark.parametrize(
    ("attention", "share", "growth"),
    [
        (partial(flash_attention, block_size=64), 1 / 5, 2.2),
        (partial(local_attention, window=32), 1 / 2, 2.2),
        (partial(linear_attention, causal=True), 1 / 2, 2.2),
        (partial(strided_attention, stride=32), 1 / 4, 4.1),
    ],
)
def test_memory_is_far_below_one_matrix_and_linear(attention, share, growth):
    """Forward and backward: as a share of T x T scores, and from one length to twice as much."""

    def peak(length):
        inputs = torch.randn(3, 4, length, 16, requires_grad=True)
        return peak_memory(lambda: torch.autograd.grad(attention(*inputs).sum(), inputs))

    assert peak(1024) < share * 4 * 1024 * 1024 * 4
    assert peak(1024) <= growth * peak(512), "plain attention takes 4 times"


STATE = {"state": torch.zeros(3, 3)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(linear_attention, feature_map="exp"), "unknown feature_map 'exp': choose from elu, relu"),
        (lambda q, k, v: linear_attention_recurrent(q[:3], k, v), "as many queries as keys: got T_q=3, T_k=6"),
        (partial(linear_attention_recurrent, **STATE), r"shape \(3, 4\) of .*: got \(3, 3\)"),
        (partial(delta_rule, beta=torch.zeros(5)), r"beta has one number for each key, \(6,\) in .*: got \(5,\)"),
        (partial(delta_rule, beta=torch.zeros(6), state=torch.zeros(3, 4)), r"shape \(3, 3\) of .*: got \(3, 4\)"),
        (
            partial(delta_rule, beta=torch.zeros(6), state=torch.zeros(3, 3).double()),
            "torch.float32: got .*torch.float64",
        ),
        *(
            (lambda q, k, v, way=way: way(q, k, v[:5]), "same length T_k: got 6 and 5")
            for way in (
                flash_attention,
                linear_attention,
                partial(local_attention, window=1),
                partial(strided_attention, stride=2),
                partial(delta_rule, beta=torch.zeros(6)),
            )
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    x = torch.randn(6, 3)
    with pytest.raises(ValueError, match=message):
        call(x, x, x)


# ---- another kernel, and the delta rule


@pytest.mark.parametrize("feature_map", ["elu", "relu"])
@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, 131])
def test_linear_in_parallel_is_recurrent(length, feature_map):
    inputs = inputs_of(length, length)
    recurrent, state = linear_attention_recurrent(*inputs, feature_map=feature_map)
    assert_same(linear_attention(*inputs, causal=True, feature_map=feature_map), recurrent, inputs)
    assert state.shape == (2, 3, 5, 8), "the state must not depend on the length"


@pytest.mark.parametrize("way", [delta_rule_recurrent, delta_rule])
@pytest.mark.parametrize("length", [1, 2, CHUNK + 1])
def test_delta_rule_is_its_loop(way, length):
    inputs = words_of(length, leading=(2,))
    output, state = way(*inputs)
    assert_same(output, torch.stack([delta_by_loops(*(x[text] for x in inputs)) for text in (0, 1)]), inputs)
    assert state.shape == (2, 5, 7), "the state must not depend on the length"


@pytest.mark.parametrize(
    ("way", "whole", "words"),
    [
        (linear_attention_recurrent, partial(linear_attention, causal=True), inputs_of(CHUNK + 9, CHUNK + 9)),
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
    """Keys near -8, too: there elu(x) + 1 has no digit left in bfloat16, and φ(k) is what the weights are made of."""
    query, key, value = (x.detach() for x in inputs_of(5, 7))
    rounded = [x.bfloat16() for x in (query, key - 8, value)]
    # why: one rounding to bfloat16, the last step, is 2**-9 of a number and the same everywhere
    near(linear_attention(*rounded).double(), linear_attention(*(x.double() for x in rounded)), share=2**-6)
    rounded = [x.detach().bfloat16() for x in words_of(200)]
    # why: as above
    near(delta_rule(*rounded)[0].double(), delta_rule_recurrent(*(x.double() for x in rounded))[0], share=2**-7)


def test_linear_by_hand():
    """φ(0) = 1, φ(1) = 2: weights 1 and 2 for a query of one feature, so (1 · 3 + 2 · 9) / 3 = 7."""
    q, k, v = torch.zeros(1, 1), torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [9.0]])
    assert linear_attention(q, k, v).item() == pytest.approx(7)
    blind = linear_attention(-torch.ones(1, 1), k, v, feature_map="relu")
    assert blind.item() == 0, "relu of a negative query gives no key any weight: the output is 0, not NaN"


def test_linear_takes_fewer_operations_from_d_tokens_on():
    """4 T d (d + 1) operations against the 4 T² d of softmax; twice as many for twice the tokens."""
    for length in (16, 64, 65, 512):
        assert count_operations(linear_attention, *torch.empty(3, length, 64, device="meta")) == 4 * length * 64 * 65


@pytest.mark.parametrize("way", [delta_rule_recurrent, delta_rule])
def test_a_key_gives_what_was_written_last(way):
    """With beta 1, however full the memory is; orthogonal keys leave each other alone; beta 0 writes nothing."""
    query, key, value, beta = (x.detach() for x in words_of(11))
    _, state = way(key, key, value, torch.ones_like(beta))
    near(key[..., -1:, :] @ state, value[..., -1:, :])
    twice = torch.eye(5, dtype=torch.float64).repeat(2, 1)  # five keys, each written twice
    _, state = way(twice, twice, value[0, 0, :10], torch.ones(10, dtype=torch.float64))
    near(state, value[0, 0, 5:10])
    assert not way(query, key, value, torch.zeros_like(beta))[0].any()


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
        assert sorted(order) == list(range(22)) and sorted(n % 11 for n in order[:11]) == list(range(11))
        assert {n % 11: n for n in order} == dict(enumerate(last)), "a dictionary keeps what comes last"
    assert 0 < (newest < 11).double().mean() < 1, "whichever value is the newest, it is so by chance"


# ---- reach


def test_reach_by_hand():
    """A window of 1 over 4 positions: 1 step a layer, 3 layers; stride 2 keeps odd and even apart."""
    near_by, far = local_mask(4, 4, 1), strided_mask(4, 4, 2)
    after = [seen.int().tolist() for seen in itertools.islice(sparse_reach.reach([near_by]), 2)]
    assert after[0] == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert after[1] == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]]
    past, nothing_new = causal_mask(4), torch.eye(4, dtype=torch.bool)
    all_pairs = past | ~past
    needed = {3: [near_by], math.inf: [far], 2: [near_by, far], 1: [all_pairs]}
    for layers, masks in needed.items():
        assert sparse_reach.layers_needed(masks, all_pairs) == layers
    assert sparse_reach.layers_needed([near_by & past], past) == 3
    assert sparse_reach.layers_needed([past], all_pairs) == math.inf, "nobody hears of the future"
    assert sparse_reach.layers_needed([nothing_new, all_pairs], all_pairs) == 2, "one idle layer is not the end"


def test_pairs_of_a_stride_grow_as_the_square_unless_the_stride_grows_too():
    pairs = {
        n: (strided_mask(n, n, 8).sum().item(), strided_mask(n, n, round(n**0.5)).sum().item()) for n in (256, 1024)
    }
    assert [long / short for short, long in zip(pairs[256], pairs[1024], strict=True)] == [16, 8]  # T²: 16, T √T: 8


# ---- ring attention, on several processes

LENGTHS = {"even": (67, 67, 67), "uneven": (5, 131, 17), "short": (1, 0, 1), "two": (3, 4), "alone": (11,)}


class Threads:
    """What ring_attention.py needs of torch.distributed, among threads: quick, with planted faults in all."""

    isend, irecv = "isend", "irecv"

    def __init__(self, size):
        self.size, self.here = size, threading.local()
        self.board, self.meeting = [None] * size, threading.Barrier(size, timeout=20)
        pairs = [(a, b) for a in range(size) for b in range(size)]
        self.boxes = {pair: [queue.Queue() for _ in range(99)] for pair in pairs}  # one for each message
        self.sent, self.asked = (dict.fromkeys(pairs, 0) for _ in range(2))

    def is_initialized(self):
        return True

    def get_rank(self):
        return self.here.rank

    def get_world_size(self):
        return self.size

    def all_gather_object(self, held, own):
        self.board[self.here.rank] = own
        self.meeting.wait()
        held[:] = self.board
        self.meeting.wait()

    def P2POp(self, kind, tensor, peer):  # noqa: N802  torch's name
        return kind, tensor, peer

    def batch_isend_irecv(self, operations):
        arrivals, rank = [], self.here.rank
        for kind, tensor, peer in operations:
            assert peer != rank, "nobody sends to himself"
            if kind == self.isend:
                self.boxes[rank, peer][self.sent[rank, peer]].put(tensor.clone())
                self.sent[rank, peer] += 1
            else:
                arrivals.append(Arrival(self.boxes[peer, rank][self.asked[peer, rank]], tensor))
                self.asked[peer, rank] += 1
        return arrivals


class Arrival:
    def __init__(self, box, tensor):
        self.box, self.tensor = box, tensor

    def wait(self):
        arrived = self.box.get(timeout=20)
        assert arrived.shape == self.tensor.shape
        self.tensor.copy_(arrived)


def in_threads(work, size, monkeypatch):
    """work(rank) in each of `size` threads -> what each gave, or the error of the first that failed."""
    threads = Threads(size)
    monkeypatch.setattr(ring_attention, "dist", threads)
    results = [None] * size

    def run(rank):
        threads.here.rank = rank
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    running = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in running:
            step(thread)
    return results


@pytest.mark.parametrize("tile", [256, 7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_ring_is_attention_on_the_whole(lengths, causal, tile, monkeypatch):
    """Output and gradients; some slices are empty, and one process is a ring, too."""
    monkeypatch.setattr(ring_attention, "TILE", tile)
    draw = torch.Generator().manual_seed(sum(lengths))
    whole = [torch.randn(2, 3, sum(lengths), d, dtype=torch.float64, generator=draw) * 3 for d in (7, 7, 5, 5)]
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
        zip(*found, strict=True), (expected, *torch.autograd.grad(expected, inputs, upstream)), strict=True
    ):
        near(torch.cat(mine, dim=-2), theirs)


def test_what_does_not_fit_is_refused_on_every_process(monkeypatch):
    x, longer, wider = torch.zeros(2, 5, 4), torch.zeros(2, 6, 4), torch.zeros(2, 5, 3)
    for odd, causal in (((x, x, longer), False), ((x[0, 0],) * 3, False), ((wider,) * 3, False), ((x, x, x), True)):
        found = in_threads(
            lambda rank, odd=odd, causal=causal: ring_attention.ring_attention(
                *(odd if rank == 1 else (x, x, x)), causal=causal and rank == 1
            ),
            3,
            monkeypatch,
        )
        assert all(isinstance(error, ValueError) for error in found) and len(set(map(str, found))) == 1, found
        assert "agree in all but T_r" in str(found[0]) and "own_slice" in str(found[0])


def test_a_ring_needs_a_process_group():
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="needs a process group: there is none"):
        ring_attention.ring_attention(x, x, x)


@pytest.mark.parametrize("processes", [1, 3, 7])
def test_own_slices_make_up_the_whole(processes):
    x = torch.randn(2, 5, 3)  # with 7 processes, two hold nothing
    assert torch.equal(
        torch.cat([ring_attention.own_slice(x, rank, processes) for rank in range(processes)], dim=-2), x
    )


@pytest.mark.skipif(sys.platform == "win32", reason="processes find each other by a file of another form there")
def test_processes_agree_with_the_whole(capfd, monkeypatch):
    """The real thing: processes of gloo."""
    monkeypatch.setattr(ring_attention, "PROCESSES", 2)
    ring_attention.main()
    differences = [float(line.split()[-1]) for line in capfd.readouterr().out.splitlines()]
    assert len(differences) == 2 and max(differences) == pytest.approx(0, abs=1e-12)
