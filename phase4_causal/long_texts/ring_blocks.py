"""One block of ring attention: the queries of one process, the keys and values of another. No process is started here.

ring_in_one_process is the specification: the whole ring in one process, over a list of slices. OnlineSoftmax.fold and
add_block_gradients do the same for one block, in tiles of queries, as every process does (ring_attention.py).

Where a token stands is a range: range(20, 40) for a contiguous slice, range(1, 40, 2) for a striped one. The causal
mask is a predicate on these positions, key position <= query position, and the same predicate says what to leave out.
"""

import bisect
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

TILE = 64  # queries whose scores exist together


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


def hidden_keys(query_position: range, key_position: range, device: torch.device) -> Tensor:
    """The future: bool (T_q, T_k), True where a key stands after the query."""
    query_at, key_at = (torch.arange(x.start, x.stop, x.step, device=device) for x in (query_position, key_position))
    return key_at > query_at[:, None]


def ring_in_one_process(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    *,
    causal: bool = False,
    striped: bool = False,
) -> list[Tensor]:
    """The specification: slices (..., T_r, d_k), (..., T_r, d_k), (..., T_r, d_v) -> outputs (..., T_r, d_v).

    Process `rank` starts with its own keys, so that every query has seen one key after the first step: itself.
    """
    processes = len(queries)
    positions = slice_positions([query.size(-2) for query in queries], striped)
    outputs = []
    for rank, query in enumerate(queries):
        largest, total, weighted = torch.tensor(-math.inf).to(query), 0.0, 0.0
        for step in range(processes):
            owner = (rank - step) % processes  # whose keys have arrived
            if not len(positions[owner]) or (causal and positions[owner][0] > max(positions[rank], default=-1)):
                continue  # nothing there, or all of it in the future
            scores = query @ keys[owner].mT / math.sqrt(query.size(-1))  # -> (..., T_rank, T_owner)
            if causal:
                scores = scores.masked_fill(hidden_keys(positions[rank], positions[owner], query.device), -math.inf)
            new_largest = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))  # -> (..., T_rank, 1)
            shrink = torch.exp(largest - new_largest)
            numerators = torch.exp(scores - new_largest)
            total = total * shrink + numerators.sum(dim=-1, keepdim=True)
            weighted = weighted * shrink + numerators @ values[owner]  # -> (..., T_rank, d_v)
            largest = new_largest
        outputs.append(weighted / total if len(positions[rank]) else torch.zeros_like(values[rank]))
    return outputs


def tiles(query_position: range, key_position: range, causal: bool) -> Iterator[tuple[slice, int]]:
    """Rows of queries, and how many keys, from the first on, any of them may see. Rows that see none are left out.

    So a block that lies in the future is skipped, and of one that the diagonal crosses about half is computed.
    """
    for start in range(0, len(query_position), TILE):
        rows = slice(start, start + TILE)
        last = query_position[rows][-1]
        visible = bisect.bisect_right(key_position, last) if causal else len(key_position)
        if visible:
            yield rows, visible


def computed_pairs(lengths: Sequence[int], *, causal: bool, striped: bool = False) -> list[list[int]]:
    """[rank][step] -> how many pairs of query and key process `rank` computes in that step; 0 if it only waits."""
    positions = slice_positions(lengths, striped)
    return [
        [
            sum(len(query_at[rows]) * visible for rows, visible in tiles(query_at, positions[rank - step], causal))
            for step in range(len(lengths))  # rank - step below 0 counts from the end: the ring closes
        ]
        for rank, query_at in enumerate(positions)
    ]


def _tile_scores(query: Tensor, key: Tensor, query_position: range, key_position: range, causal: bool) -> Tensor:
    """Scores of a tile (N, rows, keys), the future hidden with -inf; query is divided by √d_k already."""
    scores = query @ key.mT  # (N, rows, d_k) @ (N, d_k, keys) -> (N, rows, keys)
    if causal and key_position[-1] > query_position[0]:
        scores.masked_fill_(hidden_keys(query_position, key_position, query.device), -math.inf)
    return scores


class OnlineSoftmax:
    """What a process keeps for its queries while keys come by: largest score, sum of weights, weighted sum of values.

    The first block folded in must be the process's own, in which every query sees itself.
    """

    def __init__(self, query: Tensor, value_size: int) -> None:
        """query: (N, T_q, d_k)."""
        self.scaled = query / math.sqrt(query.size(-1))
        self.largest = query.new_full((*query.shape[:-1], 1), -math.inf)
        self.total = torch.zeros_like(self.largest)
        self.weighted = query.new_zeros(*query.shape[:-1], value_size)

    def fold(self, key: Tensor, value: Tensor, query_position: range, key_position: range, causal: bool) -> None:
        """Take in one block: key (N, T_k, d_k), value (N, T_k, d_v)."""
        for rows, visible in tiles(query_position, key_position, causal):
            scores = _tile_scores(
                self.scaled[:, rows], key[:, :visible], query_position[rows], key_position[:visible], causal
            )
            largest = torch.maximum(self.largest[:, rows], scores.amax(dim=-1, keepdim=True))
            shrink = torch.exp(self.largest[:, rows] - largest)
            numerators = scores.sub_(largest).exp_()
            self.total[:, rows] = self.total[:, rows] * shrink + numerators.sum(dim=-1, keepdim=True)
            self.weighted[:, rows] = self.weighted[:, rows] * shrink + numerators @ value[:, :visible]
            self.largest[:, rows] = largest

    def finish(self) -> tuple[Tensor, Tensor]:
        """output (N, T_q, d_v) and, for the backward pass, logsumexp (N, T_q, 1)."""
        return self.weighted / self.total, self.largest + self.total.log()


def add_block_gradients(
    saved: tuple[Tensor, Tensor, Tensor, Tensor],
    key: Tensor,
    value: Tensor,
    grads: tuple[Tensor, Tensor, Tensor],
    positions: tuple[range, range],
    causal: bool,
) -> None:
    """Add what one block gives to the gradients of query, key, value; as in FlashAttention.backward.

    saved: scaled query, logsumexp, grad_output, and the sums of grad_output ∘ output (N, T_q, 1). positions: of the
    queries, of the keys. The weights are computed again: exp(score - logsumexp).
    """
    scaled, logsumexp, grad_output, row_sums = saved
    grad_query, grad_key, grad_value = grads
    query_position, key_position = positions
    scale = 1 / math.sqrt(scaled.size(-1))
    for rows, visible in tiles(query_position, key_position, causal):
        seen = slice(visible)
        scores = _tile_scores(scaled[:, rows], key[:, seen], query_position[rows], key_position[seen], causal)
        weights = scores.sub_(logsumexp[:, rows]).exp_()
        grad_value[:, seen] += weights.mT @ grad_output[:, rows]  # -> (N, visible, d_v)
        grad_weights = grad_output[:, rows] @ value[:, seen].mT  # -> (N, rows, visible)
        grad_scores = grad_weights.sub_(row_sums[:, rows]).mul_(weights)
        grad_query[:, rows] += scale * (grad_scores @ key[:, seen])  # -> (N, rows, d_k)
        grad_key[:, seen] += grad_scores.mT @ scaled[:, rows]  # -> (N, visible, d_k)
