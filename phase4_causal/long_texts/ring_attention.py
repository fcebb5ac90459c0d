"""Is attention over a ring of processes the same as on the whole text?

For texts that outgrow one device (Liu, Zaharia & Abbeel 2023). Each process holds a slice: its
queries, keys and values. The queries stay, keys and values go round, and what comes by is merged as
two tiles are. The backward pass goes round once more; the gradients of keys and values travel with
the slice that they belong to, and are home at the end. Run as a script it starts three processes,
or runs in those that torchrun started, on one machine or on several.
"""

import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.flash_attention import (
    LOG2_E,
    Kept,
    attend_in_tiles,
    finish,
    gradients,
    merge,
    nothing,
)
from shared import cli
from shared.attention_checks import at_least_float32
from shared.attention_utils import causal_mask

TILE = 256  # queries and keys of a tile
PROCESSES, LENGTH = 3, 157  # of the comparison, where slices have unequal lengths


class Ring:
    """This process's place in the ring, and how long the slices of all processes are."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def pass_on(self, x: Tensor, step: int) -> Callable[[], Tensor]:
        """Start to send x (..., T_r, d) to the next process, and to receive from the one before.

        Returns a function that waits for what arrives. Both are started together: if everyone first
        waited to send, no one would ever receive.
        """
        if self.size == 1:
            return lambda: x
        length = self.lengths[(self.rank - step - 1) % self.size]
        arriving = x.new_empty(*x.shape[:-2], length, x.size(-1))
        sending = dist.P2POp(dist.isend, x, (self.rank + 1) % self.size)
        receiving = dist.P2POp(dist.irecv, arriving, (self.rank - 1) % self.size)
        requests = dist.batch_isend_irecv([sending, receiving])

        def wait() -> Tensor:
            for request in requests:
                request.wait()
            return arriving

        return wait

    def visits(self, key: Tensor, value: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yields whose slice it is, its keys and its values, for all slices, the own one first.

        The next slice comes while we compute.
        """
        at_hand = torch.cat((key, value), dim=-1)  # one message: (..., T_r, d_k + d_v)
        for step in range(self.size):
            last = step == self.size - 1
            arrives = None if last else self.pass_on(at_hand, step)
            k, v = at_hand.split((key.size(-1), value.size(-1)), dim=-1)
            yield (self.rank - step) % self.size, k, v
            if arrives:
                at_hand = arrives()


class RingAttention(torch.autograd.Function):
    """Both passes round the ring; the queries come scaled, as for FlashAttention."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, ring: Ring
    ) -> Tensor:
        kept = nothing(query, value.size(-1))
        for owner, k, v in ring.visits(key, value):
            if owner <= ring.rank or not causal:  # else these keys come after all our queries
                own = causal and owner == ring.rank
                output, log2_total = attend_in_tiles(query, k, v, own, TILE)
                # A slice counts as one key: its output, with its log2_total as score.
                slice_kept = Kept(log2_total, torch.ones_like(log2_total), output)
                kept = merge(kept, slice_kept)
        output, log2_total = finish(kept)
        ctx.save_for_backward(query, key, value, output, log2_total)
        ctx.causal = causal
        ctx.ring = ring
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("a ring cannot be differentiated twice")
        query, key, value, *results = ctx.saved_tensors
        causal, ring = ctx.causal, ctx.ring
        d_output = d_output.contiguous()
        d_query = torch.zeros_like(query)
        travelling = torch.zeros_like(torch.cat((key, value), dim=-1))  # gradients of a slice
        for step, (owner, k, v) in enumerate(ring.visits(key, value)):
            if owner <= ring.rank or not causal:
                own = causal and owner == ring.rank
                of_query, *of_slice = gradients((query, k, v, *results), d_output, own, TILE)
                d_query += of_query
                travelling += torch.cat(of_slice, dim=-1)
            # On it goes, with our part in it; after the last message it is home.
            travelling = ring.pass_on(travelling, step)()
        d_key, d_value = travelling.split((key.size(-1), value.size(-1)), dim=-1)
        return d_query, d_key, d_value, None, None


def own_slice(x: Tensor, rank: int, processes: int) -> Tensor:
    """What process `rank` holds of a whole text x (..., T, d)."""
    return x.tensor_split(processes, dim=-2)[rank]


def ring_attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """Scaled dot-product attention over a text of which each process, by rank, holds a slice.

    query (..., T_r, d_k), key (..., T_r, d_k), value (..., T_r, d_v): this process's slices, see
    own_slice; the lengths T_r may differ -> output (..., T_r, d_v) for its queries. Every process
    must call it, and backward on its output, in the same order. Raises ValueError, on all
    processes, for slices that do not fit.
    """
    if not dist.is_initialized():
        way_out = "call init_process_group first"
        raise ValueError(f"ring_attention needs a process group: there is none; {way_out}")
    own = (tuple(query.shape), tuple(key.shape), tuple(value.shape), query.dtype, causal)
    held: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(held, own)
    fit, kinds = True, set()
    for query_shape, key_shape, value_shape, *options in held:
        alike = query_shape == key_shape and key_shape[:-1] == value_shape[:-1]
        fit = fit and alike and len(key_shape) >= 2
        kinds.add((key_shape[:-2], key_shape[-1:], value_shape[-1:], *options))
    if not fit or len(kinds) > 1:
        raise ValueError(
            "processes must hold query, key (..., T_r, d_k) and value (..., T_r, d_v), and agree "
            f"in all but T_r: got {held} as shapes, dtype, causal by process; "
            "cut them with own_slice"
        )
    q, k, v = at_least_float32(query, key, value)
    ring = Ring([shape[-2] for shape, *_ in held])
    output = RingAttention.apply(q * LOG2_E / math.sqrt(q.size(-1)), k, v, causal, ring)
    return output.to(query.dtype)


def compare_with_whole(rank: int, processes: int, address: str) -> None:
    """In each process: its slices of a random text against attention on the whole."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=processes)
    own = partial(own_slice, rank=rank, processes=processes)
    for causal in (False, True):
        draw = torch.Generator().manual_seed(0)  # the same text in every process
        *whole, d_output = torch.randn(4, 2, LENGTH, 16, dtype=torch.float64, generator=draw)
        mine = [own(x).clone().requires_grad_() for x in whole]
        whole = [x.requires_grad_() for x in whole]
        plain, _ = scaled_dot_product_attention(*whole, causal_mask(LENGTH) if causal else None)
        ring = ring_attention(*mine, causal=causal)
        expected = plain, *torch.autograd.grad(plain, whole, d_output)
        found = ring, *torch.autograd.grad(ring, mine, own(d_output))
        apart = [(a - own(b)).abs().max() for a, b in zip(found, expected, strict=True)]
        difference = torch.stack(apart).max()
        dist.all_reduce(difference, dist.ReduceOp.MAX)
        if rank == 0:
            where = f"on {processes} processes"
            print(f"causal={causal}: output and gradients {where} differ by {difference:.0e}")
    dist.destroy_process_group()


def main() -> None:
    if dist.is_torchelastic_launched():  # by torchrun
        compare_with_whole(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
        return
    with tempfile.TemporaryDirectory() as folder:  # the processes find each other by a file
        meeting = f"file://{folder}/meeting"
        # They do not hear Ctrl-C: this process ends them.
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
        others = torch.multiprocessing.spawn(
            compare_with_whole, (PROCESSES, meeting), PROCESSES, join=False
        )
        signal.signal(signal.SIGINT, heard)
        try:
            while not others.join():
                pass
        finally:
            for process in others.processes:
                process.kill()
                process.join()


if __name__ == "__main__":
    cli.run(main)
