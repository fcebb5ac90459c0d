"""What ring_attention.py measures in every process of a ring: that it is right, what it sends, holds and computes.

The function to measure comes as an argument, and the measuring is done from outside: messages are counted where they
leave, memory where it is allocated (shared/measure.py), matrix products by torch's own counter.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase4_causal.long_texts.ring_blocks import own_slice, ring_in_one_process
from shared.attention_utils import causal_mask
from shared.measure import peak_memory

SIZE = 32  # d_k and d_v of the sequence that costs are measured on
WAYS = {"all keys": {}, "causal": {"causal": True}, "causal, striped": {"causal": True, "striped": True}}
Attention = Callable[..., Tensor]


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


def largest_differences(attention: Attention, length: int, group: dist.ProcessGroup, device: str) -> dict[str, float]:
    """Way -> largest difference of output and gradients, over all processes, from the plain function; float64.

    Also that of the output from ring_in_one_process. Every process draws the same whole sequence, to compare with.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    draw = torch.Generator().manual_seed(length)
    *whole, upstream = torch.randn(4, 2, length, 16, dtype=torch.float64, generator=draw).to(device)
    whole = [x.requires_grad_() for x in whole]
    worst = {}
    for name, way in WAYS.items():
        cut = [[own_slice(x, r, size, striped="striped" in way) for r in range(size)] for x in (*whole, upstream)]
        mine = [slices[rank].detach().requires_grad_() for slices in cut[:3]]
        output = attention(*mine, **way, group=group)
        slopes = torch.autograd.grad(output, mine, cut[3][rank])
        plain = scaled_dot_product_attention(*whole, causal_mask(length, device=device) if "causal" in way else None)[0]
        expected = (plain, *torch.autograd.grad(plain, whole, upstream))
        expected = [own_slice(x, rank, size, striped="striped" in way) for x in expected]
        pairs = [*zip((output, *slopes), expected, strict=True), (output, ring_in_one_process(*cut[:3], **way)[rank])]
        nothing = upstream.new_zeros(1)  # a slice may be empty, and the largest of no numbers is an error
        difference = torch.cat([nothing, *((a - b).abs().flatten() for a, b in pairs)]).max().nan_to_num(nan=math.inf)
        dist.all_reduce(difference, dist.ReduceOp.MAX, group=group)
        worst[name] = difference.item()
    return worst


def costs(attention: Attention, length: int, group: dist.ProcessGroup, device: str) -> dict[str, list[int]]:
    """What each process needs, forward and backward, causal: bytes at the peak, numbers sent, pairs computed.

    The peak is what comes on top of the process's slices. It is right to a few hundred bytes: the shapes that processes
    tell each other at the start are given back at no fixed moment.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = [own_slice(x, rank, size).to(device).requires_grad_() for x in torch.randn(3, 1, length, SIZE)]
    pairs = []
    for way in (WAYS["causal"], WAYS["causal, striped"]):
        with FlopCounterMode(display=False) as counter, torch.no_grad(), sent_messages() as forward:
            attention(*mine, **way, group=group)
        pairs.append(counter.get_total_flops() // (4 * SIZE))  # 2 d_k operations for a score, 2 d_v for its value
    with sent_messages() as both:
        peak = peak_memory(lambda: attention(*mine, causal=True, group=group).sum().backward(), device)
    numbers = {"peak": peak, "messages": len(forward), "sent": sum(forward), "sent in both": sum(both)}
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, numbers | {"pairs": pairs[0], "striped pairs": pairs[1]}, group=group)
    return {name: [own[name] for own in everyone] for name in everyone[0]}
