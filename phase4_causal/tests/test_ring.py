"""Ring attention, compared with torch's own function on the whole sequence, and with planted mistakes.

Three real processes are started once for all tests; each runs RING_WORKER and leaves what it found in a file.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from phase4_causal.long_texts import ring_attention, ring_blocks
from shared import paths

RING_LENGTHS = {"even": (67, 67, 67), "uneven": (5, 131, 17), "short": (1, 0, 1), "striped": (67, 67, 66)}


RING_MISTAKES = [  # object, right, wrong
    ("OnlineSoftmax", "weighted.mul_(shrink)", "weighted"),
    ("OnlineSoftmax", "total.mul_(shrink)", "total"),
    ("hidden_keys", "keys > queries[:, None]", "keys > queries[:, None] + 1"),
    ("slice_positions", "range(sum(lengths[:rank]), sum(", "range(sum(lengths[:rank]) - rank, -rank + sum("),
    ("gradients_of_heads", ".sub_(row_sums)", ""),
    ("hide_future", "// key_at.step)", "// key_at.step + 1)"),
    ("Ring", "(self.rank - step) %", "(self.rank + step) %"),
    (
        "RingAttention",
        "grads = ring.pass_on(grads, step)()",
        "grads = ring.pass_on(grads, step)() if arrives else grads",
    ),
]


# What each of three processes runs. It needs little more than torch, so that it starts quickly.
RING_WORKER = """
import inspect, sys
import torch
import torch.distributed as dist
from phase4_causal.long_texts import fast_tiles, flash_attention, ring_attention, ring_blocks

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=3)

def ring(tensors, **way):
    slices = [x.clone().requires_grad_() for x in tensors[:3]]
    output = ring_attention.ring_attention(*slices, **way)
    return [output.detach(), *torch.autograd.grad(output, slices, tensors[3])]

def refused(*tensors, **way):
    try:
        ring_attention.ring_attention(*tensors, **way)
    except ValueError as error:
        return str(error)

def with_mistake(name, right, wrong):
    modules = [module for module in (ring_attention, ring_blocks, flash_attention, fast_tiles) if hasattr(module, name)]
    home = modules[-1]  # the others import it from there
    source = inspect.getsource(getattr(home, name))
    assert source.count(right) == 1, right
    kept = getattr(home, name)
    exec(source.replace(right, wrong), vars(home))
    for module in modules:
        setattr(module, name, getattr(home, name))
    try:
        return ring(inputs["even"][rank], causal=True)
    finally:
        for module in modules:
            setattr(module, name, kept)

inputs, mistakes = torch.load(f"{folder}/inputs.pt")
results = {
    (name, causal): ring(slices[rank], causal=causal, striped=name == "striped")
    for name, slices in inputs.items() for causal in (False, True)
}
later_two = dist.new_group([1, 2])
if rank:
    results["group"] = ring(inputs["uneven"][rank], causal=True, group=later_two)
results["costs"] = ring_attention.costs(384, None, "cpu")
x = torch.zeros(2, 5, 4)
results["refused"] = [
    refused(x, x, torch.zeros(2, 6, 4) if rank == 1 else x),
    refused(torch.zeros(4) if rank == 2 else x, x, x),
    refused(*[torch.zeros(3, 5, 4) if rank == 1 else x] * 3),
    refused(x, x, x, causal=rank == 0),
    refused(*[torch.zeros(2, 3 + rank, 4)] * 3, striped=True),
]
results["mistakes"] = [with_mistake(*mistake) for mistake in mistakes]
results["right again"] = ring(inputs["even"][rank], causal=True)
torch.save(results, f"{folder}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


def ring_inputs(lengths: tuple[int, ...]) -> list[list[Tensor]]:
    """By process: query, key, value and what comes back to the output; as slices of a sequence cut anyhow."""
    sizes, draw = (7, 7, 5, 5), torch.Generator().manual_seed(sum(lengths))
    return [[torch.randn(2, 3, t, d, dtype=torch.float64, generator=draw) * 3 for d in sizes] for t in lengths]


def ring_join(slices: list[Tensor], striped: bool) -> Tensor:
    """Slices (..., T_r, d) -> the whole sequence (..., T, d)."""
    if not striped:
        return torch.cat(slices, dim=-2)
    whole = slices[0].new_empty(*slices[0].shape[:-2], sum(x.size(-2) for x in slices), slices[0].size(-1))
    for rank, x in enumerate(slices):
        whole[..., rank :: len(slices), :] = x
    return whole


def ring_expected(inputs: list[list[Tensor]], causal: bool, striped: bool = False) -> list[Tensor]:
    """Output and gradients of query, key, value by torch's own function on the whole sequence."""
    *whole, upstream = (ring_join(list(slices), striped) for slices in zip(*inputs, strict=True))
    whole = [x.requires_grad_() for x in whole]
    output = F.scaled_dot_product_attention(*whole, is_causal=causal)
    return [output.detach(), *torch.autograd.grad(output, whole, upstream)]


def ring_difference(results: list[list[Tensor]], expected: list[Tensor], striped: bool = False) -> float:
    joined = [ring_join(list(slices), striped) for slices in zip(*results, strict=True)]
    differences = [(a - b).abs().max() for a, b in zip(joined, expected, strict=True)]
    return torch.stack(differences).max().nan_to_num(nan=1e9).item()


IN_ONE_RING = pytest.mark.xdist_group("ring")


@pytest.fixture(scope="module")
def ring_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[list[Tensor]]], list[dict]]:
    """Inputs by name, and what each of the three processes found; started once for all tests."""
    folder = tmp_path_factory.mktemp("ring")
    inputs = {name: ring_inputs(lengths) for name, lengths in RING_LENGTHS.items()}
    torch.save((inputs, RING_MISTAKES), folder / "inputs.pt")
    (folder / "worker.py").write_text(RING_WORKER, encoding="utf-8")
    command = [sys.executable, str(folder / "worker.py")]
    workers = [
        subprocess.Popen([*command, str(rank), str(folder)], stderr=subprocess.PIPE, encoding="utf-8", cwd=paths.ROOT)
        for rank in range(3)
    ]
    try:
        errors = [worker.communicate(timeout=120)[1] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0, 0], "\n".join(errors)
    finally:
        for worker in workers:
            worker.kill()
    return inputs, [torch.load(folder / f"{rank}.pt") for rank in range(3)]


@IN_ONE_RING
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", RING_LENGTHS)
def test_ring_of_three_equals_one(ring_run, name, causal):
    inputs, found = ring_run
    striped = name == "striped"
    expected = ring_expected(inputs[name], causal, striped)
    assert ring_difference([own[name, causal] for own in found], expected, striped) < 1e-10


@IN_ONE_RING
def test_ring_in_a_group_of_two(ring_run):
    inputs, found = ring_run  # processes 1 and 2 are 0 and 1 of the group
    expected = ring_expected(inputs["uneven"][1:], True)
    assert ring_difference([own["group"] for own in found[1:]], expected) < 1e-10


@IN_ONE_RING
@pytest.mark.parametrize("which", range(len(RING_MISTAKES)))
def test_ring_mistakes_are_noticed(ring_run, which):
    inputs, found = ring_run
    expected = ring_expected(inputs["even"], True)
    assert ring_difference([own["mistakes"][which] for own in found], expected) > 1e-3
    assert ring_difference([own["right again"] for own in found], expected) < 1e-10


@IN_ONE_RING
def test_ring_refuses_on_every_process(ring_run):
    _, found = ring_run
    assert found[0]["refused"] == found[1]["refused"] == found[2]["refused"]
    parts = [
        ("one T", "process 1 holds (2, 5, 4), (2, 5, 4), (2, 6, 4)", "own_slice"),
        ("process 2 holds (4,)", "own_slice"),
        ("agree in all but the length", "on process 0", "(3, 5, 4)", "on process 1"),
        ("causal", "True", "False", "call it alike"),
        ("[4, 4, 4]", "got [3, 4, 5]", "striped=True"),
    ]
    for message, expected in zip(found[0]["refused"], parts, strict=True):
        assert all(part in message for part in expected), message


@IN_ONE_RING
def test_ring_counts_are_those_planned(ring_run):
    costs = ring_run[1][0]["costs"]
    slice_numbers = 128 * 2 * 32  # keys and values of 384 / 3 tokens, 32 numbers each
    assert costs["messages"] == [2, 2, 2]
    assert costs["sent"] == [2 * slice_numbers] * 3
    assert costs["sent in both"] == [(2 + 2 + 3) * slice_numbers] * 3  # back: keys and values, and gradients to go home
    for name, striped in (("pairs", False), (ring_attention.STRIPED, True)):
        planned = ring_blocks.computed_pairs([128] * 3, causal=True, striped=striped)
        assert costs[name] == [sum(row) for row in planned]
    assert costs["pairs"] == [12288, 12288 + 128**2, 12288 + 2 * 128**2]  # 1, 2 and 3 blocks, the diagonal halved
    assert max(costs[ring_attention.STRIPED]) <= 1.1 * sum(costs[ring_attention.STRIPED]) / 3


def test_ring_blocks_by_hand():
    plain = ring_blocks.computed_pairs([64] * 3, causal=True)  # a slice is one tile
    assert plain == [[4096, 0, 0], [4096, 4096, 0], [4096, 4096, 4096]]
    assert ring_blocks.computed_pairs([2, 3], causal=False) == [[4, 6], [9, 6]]
    halves = ring_blocks.computed_pairs([128] * 2, causal=True)  # tiles of 64: 64 · 64 + 64 · 128 on the diagonal
    assert halves == [[12288, 0], [12288, 16384]]
    assert ring_blocks.slice_positions([3, 0, 2]) == [range(0, 3), range(3, 3), range(3, 5)]
    assert [list(x) for x in ring_blocks.slice_positions([3, 2], striped=True)] == [[0, 2, 4], [1, 3]]
    with pytest.raises(ValueError, match=r"must have the lengths \[3, 2\]: got \[2, 3\]; cut them with own_slice"):
        ring_blocks.slice_positions([2, 3], striped=True)


@pytest.mark.parametrize("striped", [False, True])
@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
def test_own_slices_make_up_the_whole(processes, striped):
    x = torch.randn(2, 5, 3)  # with 7 processes, two hold nothing
    slices = [ring_blocks.own_slice(x, rank, processes, striped=striped) for rank in range(processes)]
    assert torch.equal(ring_join(slices, striped), x)
    positions = ring_blocks.slice_positions([part.size(-2) for part in slices], striped)
    for part, where in zip(slices, positions, strict=True):
        assert torch.equal(part, x[:, list(where)])


def test_ring_needs_a_process_group():
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="needs a process group: there is none; start with torchrun"):
        ring_attention.ring_attention(x, x, x)


@pytest.mark.skipif(sys.platform == "win32", reason="PyTorch for Windows is built without libuv for torchrun")
def test_ring_under_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = ["phase4_causal/long_texts/ring_attention.py", "--quick", "--length", "17", "--output-dir", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [*command, *script], cwd=paths.ROOT, capture_output=True, encoding="utf-8", timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Rings of up to 2: the same") == 1  # only process 0 prints
    file = tmp_path / "data" / "processed" / "findings" / "phase4_causal.long_texts.ring_attention.json"
    found = {record["id"]: record for record in json.loads(file.read_text(encoding="utf-8"))}
    assert list(found) == ["ring-memory"] and found["ring-memory"]["measured"]["processes"] == [[1, 2]]
    assert "process 1: 0.62, 1.00" in done.stdout  # 4 tiles of 64: 1 + 2 + 3 + 4 of the 16 on the diagonal, and a block
