"""Ring attention against torch's own function on the whole text: three threads that pass messages, and processes."""

import queue
import sys
import threading

import pytest
import torch
import torch.nn.functional as F

from phase4_causal.long_texts import ring_attention
from shared.tests.helpers import near

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
    assert len(differences) == 2 and max(differences) < 1e-12
