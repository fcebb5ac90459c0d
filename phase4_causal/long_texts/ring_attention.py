"""Is attention over a ring of processes the same, and what does each need?

For sequences that outgrow one device: the tiles of flash_attention.py on several processes. Each of P processes holds
a slice of the sequence: its queries, keys and values. The queries stay. The keys and values go round the ring (Liu,
Zaharia & Abbeel 2023): a process folds the slice at hand into its online softmax while it passes that slice on to the
next process and receives another one from the process before. After P - 1 messages it has seen all keys and has never
held more than two slices of them.

The backward pass goes round once more. The weights are computed again from logsumexp; the gradients of keys and values
travel with the slice they belong to, every process adds its part, and after P messages they are home.

With a causal mask the first process needs one block of the P and the last all P: most of the ring waits. Striped
positions (Brandon et al. 2023), process r holding r, r + P, r + 2P, ..., give every process half of every block;
zigzag slices (r and 2P - 1 - r of 2P) are the other known remedy.

What is measured is measured from outside: messages where they leave, memory where it is allocated, matrix products by
torch's own counter.

    python phase4_causal/long_texts/ring_attention.py                               starts 3 processes itself
    torchrun --nproc-per-node 2 phase4_causal/long_texts/ring_attention.py          runs in those that torchrun started
"""

import argparse
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.fast_tiles import add_gradients
from phase4_causal.long_texts.flash_attention import OnlineSoftmax
from phase4_causal.long_texts.ring_blocks import (
    BLOCK_SIZE,
    check_slices,
    computed_pairs,
    own_slice,
    slice_positions,
)
from shared import cli
from shared.attention_checks import at_least_float32
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.claims import PROBE, Claim, measures
from shared.measure import count_operations, peak_memory

SIZE = 32  # d_k and d_v of the sequence that costs are measured on
WAYS = {"all keys": {}, "causal": {"causal": True}, "causal, striped": {"causal": True, "striped": True}}
STRIPED = "striped pairs"
MOST_PROCESSES = 16  # on one machine; each loads PyTorch anew
Differences = dict[int, dict[str, float]]  # processes in the ring -> way to compute -> largest difference
Needs = dict[int, dict[str, list[int]]]  # processes in the ring -> what is needed -> one number for each of them


class Ring:
    """This process's place in the ring, and where the tokens of every process stand."""

    def __init__(self, group: dist.ProcessGroup | None, positions: list[range]) -> None:
        self.group, self.positions = group, positions
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def owner(self, step: int) -> int:
        """Whose keys are here after `step` messages."""
        return (self.rank - step) % self.size

    def where(self, step: int) -> tuple[range, range]:
        """Positions of the queries, which stay, and of the keys that are here after `step` messages."""
        return self.positions[self.rank], self.positions[self.owner(step)]

    def pass_on(self, slice_at_hand: Tensor, step: int) -> Callable[[], Tensor]:
        """Start to send the slice to the next process and to receive the one before; call the result to wait for it.

        Sending and receiving are started together: if everyone first waited to send, no one would ever receive.
        """
        if self.size == 1:
            return lambda: slice_at_hand
        length = len(self.positions[self.owner(step + 1)])
        arriving = slice_at_hand.new_empty(slice_at_hand.size(0), length, slice_at_hand.size(2))
        there, back = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        sending = dist.P2POp(dist.isend, slice_at_hand, group=self.group, group_peer=there)
        receiving = dist.P2POp(dist.irecv, arriving, group=self.group, group_peer=back)
        requests = dist.batch_isend_irecv([sending, receiving])

        def wait() -> Tensor:
            for request in requests:
                request.wait()
            return arriving

        return wait


class RingAttention(torch.autograd.Function):
    """Forward and backward round the ring on slices (N, T_r, d), N being all axes before the length as one."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, ring: Ring) -> Tensor:
        softmax = OnlineSoftmax(query, value.size(-1))
        at_hand = torch.cat((key, value), dim=-1)  # one message: (N, T_r, d_k), (N, T_r, d_v) -> (N, T_r, d_k + d_v)
        for step in range(ring.size):
            arrives = ring.pass_on(at_hand, step) if step < ring.size - 1 else None  # on its way while we compute
            keys, values = at_hand.split((key.size(-1), value.size(-1)), dim=-1)
            softmax.fold(keys, values, ring.where(step), causal, BLOCK_SIZE)
            if arrives:
                at_hand = arrives()
        output, logsumexp = softmax.finish()
        ctx.save_for_backward(query, key, value, output, logsumexp)
        ctx.causal, ctx.ring = causal, ring
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, output, logsumexp = ctx.saved_tensors
        ring, sizes = ctx.ring, (key.size(-1), value.size(-1))
        row_sums = (grad_output * output).sum(dim=-1, keepdim=True)  # (N, T_r, d_v) -> (N, T_r, 1)
        saved = (query * query.size(-1) ** -0.5, logsumexp, grad_output, row_sums)
        grad_query, at_hand = torch.zeros_like(query), torch.cat((key, value), dim=-1)
        grads = torch.zeros_like(at_hand)  # of the keys and values at hand, whoever they belong to
        for step in range(ring.size):
            arrives = ring.pass_on(at_hand, step) if step < ring.size - 1 else None
            grad_of = (grad_query, *grads.split(sizes, dim=-1))  # views: adding to them adds to grads
            tiling = ring.where(step), ctx.causal, BLOCK_SIZE
            add_gradients(saved, *at_hand.split(sizes, dim=-1), grad_of, tiling)
            if arrives:
                at_hand = arrives()
            grads = ring.pass_on(grads, step)()  # only now: this process had to add its part; the last message is home
        return grad_query, *grads.split(sizes, dim=-1), None, None


def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    striped: bool = False,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Scaled dot-product attention over a sequence of which every process of the group holds a slice.

    query (..., T_r, d_k), key (..., T_r, d_k), value (..., T_r, d_v): this process's slices, see own_slice; the lengths
    T_r may differ -> output (..., T_r, d_v) for its queries. striped: process r holds positions r, r + P, r + 2P, ...
    group: default all processes. Every process of the group must call it, and backward on its output, in the same
    order. Cannot be differentiated twice. Raises ValueError, on all processes, for slices that do not fit.
    """
    if not dist.is_initialized():
        raise ValueError(
            "ring_attention needs a process group: there is none; start with torchrun and init_process_group first"
        )
    shapes = [tuple(x.shape) for x in (query, key, value)]
    held: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(held, (*shapes, query.dtype, causal, striped), group=group)
    check_slices(held)
    ring = Ring(group, slice_positions([shape[0][-2] for shape in held], striped))
    leading = math.prod(query.shape[:-2])
    inputs = at_least_float32(query, key, value)
    flat = [x.reshape(leading, *x.shape[-2:]) for x in inputs]  # (..., T_r, d) -> (N, T_r, d)
    output = RingAttention.apply(*flat, causal, ring)
    return output.view(*query.shape[:-1], value.size(-1)).to(query.dtype)  # (N, T_r, d_v) -> (..., T_r, d_v)


@contextmanager
def sent_messages() -> Iterator[list[int]]:
    """Yields a list that fills with how many numbers each message holds that this process sends in the block."""
    sent, send = [], dist.batch_isend_irecv

    def counting(operations: list[dist.P2POp]) -> list[dist.Work]:
        sent.extend(operation.tensor.numel() for operation in operations if operation.op is dist.isend)
        return send(operations)

    dist.batch_isend_irecv = counting
    try:
        yield sent
    finally:
        dist.batch_isend_irecv = send


def largest_differences(length: int, group: dist.ProcessGroup, device: str) -> dict[str, float]:
    """Way -> largest difference of output and gradients, over all processes, from the plain function; float64.

    Every process draws the same whole sequence, takes its slice, and compares with the same slice of what is expected.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    draw = torch.Generator().manual_seed(length)
    *whole, upstream = torch.randn(4, 2, length, 16, dtype=torch.float64, generator=draw).to(device)
    whole = [x.requires_grad_() for x in whole]
    worst = {}
    for name, way in WAYS.items():
        cut = partial(own_slice, rank=rank, processes=size, striped="striped" in way)
        mine = [cut(x).detach().requires_grad_() for x in whole]
        output = ring_attention(*mine, **way, group=group)
        found = (output, *torch.autograd.grad(output, mine, cut(upstream)))
        plain = scaled_dot_product_attention(*whole, causal_mask(length, device=device) if "causal" in way else None)[0]
        expected = (plain, *torch.autograd.grad(plain, whole, upstream))
        nothing = upstream.new_zeros(1)  # a slice may be empty, and the largest of no numbers is an error
        differences = [(a - cut(b)).abs().flatten() for a, b in zip(found, expected, strict=True)]
        difference = torch.cat([nothing, *differences]).max().nan_to_num(nan=math.inf)
        dist.all_reduce(difference, dist.ReduceOp.MAX, group=group)
        worst[name] = difference.item()
    return worst


def costs(length: int, group: dist.ProcessGroup, device: str) -> dict[str, list[int]]:
    """What each process needs, forward and backward, causal: bytes at the peak, numbers sent, pairs computed.

    The peak is what comes on top of the process's slices. It is right to a few hundred bytes: the shapes that processes
    tell each other at the start are given back at no fixed moment.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = [own_slice(x, rank, size).to(device).requires_grad_() for x in torch.randn(3, 1, length, SIZE)]
    pairs = []
    for way in (WAYS["causal"], WAYS["causal, striped"]):
        with sent_messages() as forward:
            operations = count_operations(lambda way=way: ring_attention(*mine, **way, group=group))
        pairs.append(operations // (4 * SIZE))  # 2 d_k operations for a score, 2 d_v for its value
    with sent_messages() as both:
        peak = peak_memory(lambda: ring_attention(*mine, causal=True, group=group).sum().backward(), device)
    numbers = {"peak": peak, "messages": len(forward), "sent": sum(forward), "sent in both": sum(both)}
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, numbers | {"pairs": pairs[0], STRIPED: pairs[1]}, group=group)
    return {name: [own[name] for own in everyone] for name in everyone[0]}


@measures(
    Claim(
        id="ring-memory",
        text="In a ring the memory that each process needs falls as one over the number of processes",
        kind=PROBE,
        source="Liu, Zaharia & Abbeel 2023",
        rule="at most 1.5 times 1 / P for every P (a ring of one needs no second slice for what arrives)",
        holds=lambda n: all(
            share <= 1.5 / size for size, share in zip(n["processes"], n["share of the memory of one"], strict=True)
        ),
        unit="largest peak of a process beyond its slices, forward and backward, float32; messages forward",
    )
)
def needs_of_a_process(needs: Needs) -> dict[str, list[float]]:
    """By the size of the ring: the most that a process needs. An all-gather would send as much and hold all keys."""
    most = {name: [max(need[name]) for need in needs.values()] for name in needs[1]}
    return {
        "processes": list(needs),
        "share of the memory of one": [peak / most["peak"][0] for peak in most["peak"]],
        "bytes": most["peak"],
        "messages": most["messages"],
        "numbers sent": most["sent"],
    }


def show_sharing(needs: Needs, length: int) -> None:
    """Print how much each process of the largest ring computes of the blocks that come by, and of all.

    The tiles have 64 queries, so it is a little more than half of a block that the diagonal crosses.
    """
    processes = max(needs)
    own = length // processes
    print("\nWith a causal mask, what each process computes of the blocks that come by")
    for rank, row in enumerate(computed_pairs([own] * processes, causal=True)):
        print(f"   process {rank}: " + ", ".join(f"{pairs / own**2:.2f}" for pairs in row))
    plain, striped = (max(pairs) * processes / sum(pairs) for pairs in map(needs[processes].get, ("pairs", STRIPED)))
    print(f"   the busiest computes {plain:.2f} times the mean, with striped positions {striped:.2f} times")


def measure(options: argparse.Namespace) -> tuple[Differences, Needs, int]:
    """Runs in every process; rings of 1, 2, ... processes are made of the first ones. Process 0 is in all of them."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    groups = {size: dist.new_group(list(range(size))) for size in range(1, processes + 1)}  # all must take part in each
    rings = {size: group for size, group in groups.items() if rank < size}  # the rings that this process is in
    equal = {size: largest_differences(options.length, group, options.device) for size, group in rings.items()}
    length = (512 if options.quick else 1024) // processes * processes
    return equal, {size: costs(length, group, options.device) for size, group in rings.items()}, length


def report(options: argparse.Namespace, equal: Differences, needs: Needs, length: int) -> str:
    processes, worst = max(needs), max(max(by_way.values()) for by_way in equal.values())
    answer = f"Rings of up to {processes}: the same to {worst:.0e}"
    if processes == 1:
        return answer
    show_sharing(needs, length)
    most = needs_of_a_process(needs)
    findings.record(options, most)
    return f"{answer}; with {processes} each needs {most['share of the memory of one'][-1]:.2f} of the memory"


def _in_process(rank: int, processes: int, address: str, options: argparse.Namespace, found: Any = None) -> tuple:
    """Join the others and measure; process 0 puts what it found into the queue `found`, if there is one."""
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))  # one GPU for each process
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=processes)
    try:
        measured = measure(options)
        if rank == 0 and found is not None:
            found.put(measured)
        dist.barrier()  # nobody leaves while others still need an answer
        return measured
    finally:
        dist.destroy_process_group()


@cli.script
def main(argv: list[str] | None = None) -> str | None:
    parser = cli.parser(__doc__)
    parser.add_argument("--length", type=int, default=157, help="of the sequence that is compared (default: 157)")
    parser.add_argument("--processes", type=int, help="in the ring (default: 3, --quick: 2; torchrun decides itself)")
    options = cli.parse(parser, argv)
    started = "RANK" in os.environ  # by torchrun
    processes = int(os.environ["WORLD_SIZE"]) if started else options.processes
    if processes is None:
        processes = 2 if options.quick else 3
    if options.length < 1:
        parser.error(f"--length must be 1 or more: got {options.length}")
    if not (started or 1 <= processes <= MOST_PROCESSES):
        parser.error(f"--processes must be between 1 and {MOST_PROCESSES}: got {processes}")
    if options.device == "mps" or (options.device == "cuda" and torch.cuda.device_count() < processes):
        parser.error(f"--device {options.device} cannot hold {processes} processes: use --device cpu")
    if started:
        rank = int(os.environ["RANK"])
        measured = _in_process(rank, processes, "env://", options)
        return report(options, *measured) if rank == 0 else None
    with tempfile.TemporaryDirectory() as folder:  # the processes find each other by a file
        found = torch.multiprocessing.get_context("spawn").SimpleQueue()
        arguments = (processes, f"file://{folder}/meeting", options, found)
        with cli.deaf_children():
            ring = torch.multiprocessing.spawn(_in_process, arguments, processes, join=False, daemon=True)
        while not ring.join():
            pass
        return report(options, *found.get())


if __name__ == "__main__":
    cli.run(main)
