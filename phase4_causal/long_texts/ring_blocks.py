"""The slices of ring attention: who holds which positions, and what is computed where; for ring_attention.py.

Where a token stands is a range: range(20, 40) for a contiguous slice, range(1, 40, 2) for a striped one. The causal
mask is a predicate on these positions, key position <= query position, and the same predicate says what to leave out.
"""

import sys
from collections.abc import Sequence

from torch import Tensor

from phase4_causal.long_texts.fast_tiles import tiles

BLOCK_SIZE = (64, sys.maxsize)  # of a tile: so many queries with all keys of a slice that they may see


def own_slice(x: Tensor, rank: int, processes: int, *, striped: bool = False) -> Tensor:
    """What process `rank` holds of x (..., T, d): neighbouring positions, or (striped) every processes-th one."""
    return x[..., rank::processes, :] if striped else x.tensor_split(processes, dim=-2)[rank]


def slice_positions(lengths: Sequence[int], striped: bool = False) -> list[range]:
    """Where the tokens of each process stand in the whole sequence, from the lengths of the slices."""
    total, processes = sum(lengths), len(lengths)
    if not striped:
        return [range(sum(lengths[:rank]), sum(lengths[: rank + 1])) for rank in range(processes)]
    positions = [range(rank, total, processes) for rank in range(processes)]
    if [len(x) for x in positions] != list(lengths):
        raise ValueError(
            f"striped slices of {total} positions must have the lengths {[len(x) for x in positions]}: "
            f"got {list(lengths)}; cut them with own_slice(x, rank, processes, striped=True)"
        )
    return positions


def check_slices(held: list[tuple]) -> None:
    """Raise ValueError, on every process alike, for slices that do not fit; held: shapes and options by process."""
    for rank, (query, key, value, *_) in enumerate(held):
        if min(len(query), len(key), len(value)) < 2 or not query == key or not key[:-1] == value[:-1]:
            raise ValueError(
                "a process must hold (..., T, d_k), (..., T, d_k), (..., T, d_v) as query, key, value, with one T and "
                f"the same axes before it: process {rank} holds {query}, {key}, {value}; cut all three with own_slice"
            )
    alike = [[(*shape[:-2], shape[-1]) for shape in shapes[:3]] + list(shapes[3:]) for shapes in held]
    for rank, other in enumerate(alike):
        if other != alike[0]:
            raise ValueError(
                "processes must agree in all but the length of their slices: query, key, value, dtype, causal, striped "
                f"are {held[0]} on process 0 and {held[rank]} on process {rank}; call it alike everywhere"
            )


def computed_pairs(lengths: Sequence[int], *, causal: bool, striped: bool = False) -> list[list[int]]:
    """[rank][step] -> how many pairs of query and key process `rank` computes in that step; 0 if it only waits."""
    positions = slice_positions(lengths, striped)
    return [
        [
            sum(
                (rows.stop - rows.start) * (columns.stop - columns.start)
                for rows, columns in tiles(query_at, positions[rank - step], causal, BLOCK_SIZE)
            )
            for step in range(len(lengths))  # rank - step below 0 counts from the end: the ring closes
        ]
        for rank, query_at in enumerate(positions)
    ]
