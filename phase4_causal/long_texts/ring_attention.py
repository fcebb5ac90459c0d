"""Ring attention: sequences that outgrow one device, with the tiles of flash_attention.py on several processes.

Each of P processes holds a slice of the sequence: its queries, keys and values. The queries stay. The keys and values
go round the ring (Liu, Zaharia & Abbeel 2023): a process folds the slice at hand into its online softmax while it
passes that slice on to the next process and receives another one from the process before. After P - 1 messages it has
seen all keys and has never held more than two slices of them.

The backward pass goes round once more. The weights are computed again from logsumexp; the gradients of keys and values
travel with the slice they belong to, every process adds its part, and after P messages they are home.

With a causal mask the first process needs one block of the P and the last all P: most of the ring waits. Striped
positions (Brandon et al. 2023), process r holding r, r + P, r + 2P, ..., give every process half of every block;
zigzag slices (r and 2P - 1 - r of 2P) are the other known remedy.

    python phase4_causal/long_texts/ring_attention.py                               starts 3 processes itself
    torchrun --nproc-per-node 2 phase4_causal/long_texts/ring_attention.py          runs in those that torchrun started
"""

import argparse
import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from phase4_causal.long_texts.ring_blocks import (
    TILE,
    OnlineSoftmax,
    add_block_gradients,
    check_slices,
    computed_pairs,
    own_slice,
    ring_in_one_process,
    slice_positions,
)
from phase4_causal.long_texts.ring_measure import SIZE, costs, largest_differences
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding

__all__ = ["own_slice", "ring_attention", "ring_in_one_process"]

TOLERANCE = 1e-10


class Ring:
    """This process's place in the ring, and where the tokens of every process stand."""

    def __init__(self, group: dist.ProcessGroup | None, positions: list[range]) -> None:
        self.group, self.positions = group, positions
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def owner(self, step: int) -> int:
        """Whose keys are here after `step` messages."""
        return (self.rank - step) % self.size

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
            softmax.fold(keys, values, ring.positions[ring.rank], ring.positions[ring.owner(step)], causal)
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
            where = ring.positions[ring.rank], ring.positions[ring.owner(step)]
            grad_of = (grad_query, *grads.split(sizes, dim=-1))  # views: adding to them adds to grads
            add_block_gradients(saved, *at_hand.split(sizes, dim=-1), grad_of, where, ctx.causal)
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
    flat = [x.reshape(leading, *x.shape[-2:]) for x in (query, key, value)]  # (..., T_r, d) -> (N, T_r, d)
    output = RingAttention.apply(*flat, causal, ring)
    return output.view(*query.shape[:-1], value.size(-1))  # (N, T_r, d_v) -> (..., T_r, d_v)


def show(equal: dict[int, dict[str, float]], needs: dict[int, dict[str, list[int]]], length: int) -> None:
    processes = max(needs)
    for striped in (False, True):
        shape = "every P-th position" if striped else "neighbouring positions"
        print(f"\nCausal, {shape}: whose keys each process has at each step, and how much of that block it computes")
        own = length // processes
        for rank, row in enumerate(computed_pairs([own] * processes, causal=True, striped=striped)):
            cells = [f"{(rank - step) % processes}: {n / own**2:4.0%}" for step, n in enumerate(row)]
            print(f"   process {rank}    " + "    ".join(cells))
    print(f"   (a diagonal block is computed in tiles of {TILE} queries, so a little more than half of it)")
    print("\nLargest difference of outputs and gradients from the plain function and the ring in one process, float64")
    for size, worst in equal.items():
        print(f"   processes: {size}    " + "    ".join(f"{name}: {value:.1e}" for name, value in worst.items()))
    print(f"\nWhat one process needs beyond its own slices: causal, T = {length}, d = {SIZE}, float32")
    print(
        "   Memory forward and backward, messages forward. An all-gather would send as many numbers and hold all keys."
    )
    print(f"   {'P':>3}{'kB at the peak':>17}{'messages':>11}{'numbers sent':>15}{'keys held':>12}{'all-gather':>13}")
    for size, need in needs.items():
        peak, sent, messages = (max(need[name]) for name in ("peak", "sent", "messages"))
        held = min(2, size) * math.ceil(length / size)  # the slice at hand and the one that arrives
        print(f"   {size:3}{peak / 1000:17,.0f}{messages:11}{sent:15,}{held:12,}{length:13,}")


def equality_finding(equal: dict[int, dict[str, float]]) -> Finding:
    worst = {size: max(by_way.values()) for size, by_way in equal.items()}
    return Finding(
        "ring-equals-one",
        "Attention round a ring of processes is the same function as in one process",
        "Liu, Zaharia & Abbeel 2023",
        {f"processes: {size}": float(f"{value:.0e}") for size, value in worst.items()},
        "largest difference of outputs and gradients, float64",
        f"all below {TOLERANCE:g}, with all keys, causal and causal with striped positions",
        findings.verdict(max(worst.values()) < TOLERANCE),
    )


def sharing_findings(needs: dict[int, dict[str, list[int]]], length: int) -> list[Finding]:
    """Of memory and work; needs a ring of two or more."""
    processes = max(needs)
    share = {size: max(need["peak"]) / max(needs[1]["peak"]) for size, need in needs.items() if size > 1}
    blocks = [sum(n > 0 for n in row) for row in computed_pairs([length // processes] * processes, causal=True)]
    plain, striped = (
        max(pairs) * processes / sum(pairs) for pairs in (needs[processes]["pairs"], needs[processes]["striped pairs"])
    )
    return [
        Finding(
            "ring-memory",
            "In a ring the memory that each process needs falls as one over the number of processes",
            "Liu, Zaharia & Abbeel 2023",
            {f"processes: {size}": round(value, 2) for size, value in share.items()},
            f"largest peak beyond the slices, forward and backward, as a share of that of one alone, {length:,} tokens",
            "at most 1.5 times 1 / P for every P (a ring of one needs no second slice for what arrives)",
            findings.verdict(all(value <= 1.5 / size for size, value in share.items())),
        ),
        Finding(
            "ring-imbalance",
            "With a causal mask the last process of a ring has the most work; striped positions share it evenly",
            "Brandon et al. 2023",
            {"blocks of the first": blocks[0], "blocks of the last": blocks[-1]}
            | {"busiest / mean": round(plain, 2), "busiest / mean, striped": round(striped, 2)},
            f"blocks of {processes}; pairs computed by the busiest process, as a multiple of the mean",
            "neighbouring positions: 1 block against P, busiest at least 1.25 times the mean; striped: at most 1.1",
            findings.verdict((blocks[0], blocks[-1]) == (1, processes) and plain >= 1.25 and striped <= 1.1),
        ),
    ]


def lesson(options: argparse.Namespace) -> None:
    """Runs in every process; rings of 1, 2, ... processes are made of the first ones. Only process 0 prints."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    groups = {size: dist.new_group(list(range(size))) for size in range(1, processes + 1)}  # all must take part in each
    rings = {size: group for size, group in groups.items() if rank < size}  # the rings that this process is in
    equal = {
        size: largest_differences(ring_attention, options.length, group, options.device)
        for size, group in rings.items()
    }
    cost_length = (512 if options.quick else 1024) // processes * processes
    needs = {size: costs(ring_attention, cost_length, group, options.device) for size, group in rings.items()}
    if rank == 0:
        show(equal, needs, cost_length)
        found = [equality_finding(equal)] + (sharing_findings(needs, cost_length) if processes > 1 else [])
        findings.record("phase4_causal/long_texts/ring_attention.py", found, options.output_dir)


def _in_process(rank: int, processes: int, address: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))  # one GPU for each process
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=processes)
    try:
        lesson(options)
        dist.barrier()  # nobody leaves while others still need an answer
    finally:
        dist.destroy_process_group()


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--length", type=int, default=157, help="of the sequence that is compared (default: 157)")
    parser.add_argument("--processes", type=int, help="in the ring (default: 3, --quick: 2; torchrun decides itself)")
    options = cli.parse(parser, argv)
    started = "RANK" in os.environ  # by torchrun
    processes = int(os.environ["WORLD_SIZE"]) if started else options.processes
    if processes is None:
        processes = 2 if options.quick else 3
    if processes < 1 or options.length < 1:
        parser.error(f"--processes and --length must be 1 or more: got {processes} and {options.length}")
    if options.device == "mps" or (options.device == "cuda" and torch.cuda.device_count() < processes):
        parser.error(f"--device {options.device} cannot hold {processes} processes: use --device cpu")
    if started:
        _in_process(int(os.environ["RANK"]), processes, "env://", options)
        return
    with tempfile.TemporaryDirectory() as folder:  # the processes find each other by a file
        address = f"file://{folder}/meeting"
        torch.multiprocessing.spawn(_in_process, (processes, address, options), nprocs=processes)


if __name__ == "__main__":
    cli.run(main)
