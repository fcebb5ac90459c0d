"""Is attention over a ring of processes the same as on the whole text?

For texts that outgrow one device (Liu, Zaharia & Abbeel 2023). Each process holds a slice: its
queries, keys and values. The queries stay, keys and values go round, and what comes by is merged as
two tiles are (flash_attention.py). This is the forward pass; with the backward pass, on GPUs, it is
`context_parallel` in torch.distributed.tensor.experimental. The script starts three processes.

    python phase4_causal/long_texts/ring_attention.py
"""

import math
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.flash_attention import (
    LOG2_E,
    finish,
    keep,
    merge,
    nothing,
    tile_scores,
)
from shared import cli
from shared.attention_checks import check_attention_inputs
from shared.attention_utils import causal_mask

PROCESSES, LENGTH = 3, 157  # of the comparison, where slices have unequal lengths


def passed_on(x: Tensor, length: int) -> Tensor:
    """Sends x (..., T_r, d) to the next process. Returns (..., length, d) of the one before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = x.new_empty(*x.shape[:-2], length, x.size(-1))
    sending = dist.P2POp(dist.isend, x.contiguous(), (rank + 1) % size)
    receiving = dist.P2POp(dist.irecv, arriving, (rank - 1) % size)
    # Both are started together: if everyone first waited to send, no one would ever receive.
    for request in dist.batch_isend_irecv([sending, receiving]):
        request.wait()
    return arriving


@torch.no_grad()
def ring_attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """Scaled dot-product attention over a text of which each process, by rank, holds a slice.

    query (..., T_r, d_k), key (..., T_r, d_k), value (..., T_r, d_v): this process's slices, whose
    lengths T_r may differ -> output (..., T_r, d_v) for its queries. Every process must call it.
    There are no gradients. Raises ValueError for wrong sizes, and without a process group.
    """
    if not dist.is_initialized():
        way_out = "call init_process_group first"
        raise ValueError(f"ring_attention needs a process group: there is none; {way_out}")
    check_attention_inputs(query, key, value, None)
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [0] * size
    dist.all_gather_object(lengths, key.size(-2))
    query = query * LOG2_E / math.sqrt(query.size(-1))
    kept = nothing(query, value.size(-1))
    for step in range(size):
        owner = (rank - step) % size  # the process to which these keys and values belong
        comes_later = causal and owner > rank
        if not comes_later and lengths[owner] > 0:
            # All scores of two slices at once; where memory is short,
            # tiles come in here, too.
            diagonal = 0 if causal and owner == rank else None
            kept = merge(kept, keep(tile_scores(query, key, diagonal), value))
        if step < size - 1:
            arriving = lengths[(owner - 1) % size]
            key, value = passed_on(key, arriving), passed_on(value, arriving)
    output, _ = finish(kept)
    return output


def compare_with_whole(rank: int, processes: int, meeting: str) -> None:
    """In each process: its slice of a random text against attention on the whole."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    draw = torch.Generator().manual_seed(0)  # the same text in every process
    whole = torch.randn(3, LENGTH, 16, dtype=torch.float64, generator=draw)
    own = whole.tensor_split(processes, dim=-2)[rank]
    for causal in (False, True):
        output = ring_attention(*own, causal=causal)
        plain, _ = scaled_dot_product_attention(*whole, causal_mask(LENGTH) if causal else None)
        difference = (output - plain.tensor_split(processes)[rank]).abs().max()
        dist.all_reduce(difference, dist.ReduceOp.MAX)
        if rank == 0:
            print(f"causal={causal}: {processes} processes and one differ by {difference:.0e}")
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:  # the processes find each other by a file
        arguments = (PROCESSES, f"file://{folder}/meeting")
        torch.multiprocessing.spawn(compare_with_whole, arguments, PROCESSES, daemon=True)


if __name__ == "__main__":
    cli.run(main)
