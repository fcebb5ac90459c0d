"""Measuring on a machine that also does other things: times as ratios of neighbours, memory to the
byte.

Times. Two calls timed one after the other share what the machine was doing meanwhile, calls timed
minutes apart do not. So each round runs every call once, in a new order, and what counts is the
median over rounds of the ratio within a round. A duration in ms says something about one machine on
one day; a ratio is what carries over.

Memory. On a CPU every allocation that a call makes through PyTorch is followed, the scratch memory
of its kernels included (but not what the library of matrix products takes for itself), so the
answer is the same in every run.
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

MIN_ROUNDS = 3

Times = dict[str, list[float]]  # of each call, by its name: seconds in each round


def synchronize(device: str) -> None:
    """Wait for the device: a call on a GPU returns before its work is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()


def paired_times(
    calls: dict[str, Callable[[], Any]],
    *,
    seconds: float = 1.0,
    rounds: int | None = None,
    warm_up: bool = True,
    device: str = "cpu",
) -> Times:
    """Seconds that each call took in each round.

    Every call runs once before, unless warm_up=False says that it just did. Then there are exactly
    `rounds` rounds or, without it, as many as fit into `seconds`, three at least. Raises ValueError
    for no calls or no rounds.
    """
    if not calls or (rounds is not None and rounds < 1):
        raise ValueError(
            f"calls and rounds must be 1 or more: got {len(calls)} calls, rounds={rounds}"
        )
    for call in calls.values() if warm_up else ():
        call()
    synchronize(device)
    order, shuffle = (
        list(calls),
        random.Random(0).shuffle,
    )  # of its own: the models' random numbers stay as they are
    times: Times = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    done = 0
    while done < (MIN_ROUNDS if rounds is None else rounds) or (
        rounds is None and time.perf_counter() < end
    ):
        shuffle(
            order
        )  # so that no call always follows the same one, whose data are still in the cache
        for name in order:
            start = time.perf_counter()
            calls[name]()
            synchronize(device)
            times[name].append(time.perf_counter() - start)
        done += 1
    return times


def ratio_quartiles(times: Times, name: str, base: str) -> list[float]:
    """The three quartiles over the rounds of how many times as long as `base` a call took."""
    ratios = [own / other for own, other in zip(times[name], times[base], strict=True)]
    return np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()


def matmul_rate(device: str = "cpu", size: int | None = None) -> float:
    """Operations a second of this machine in a (size, size) matrix product, with the threads that
    are set: its best.

    The roof over every computation that consists of matrix products. An addition and a
    multiplication count as two.
    """
    size = size or (1024 if device == "cpu" else 8192)
    a, b = torch.randn(2, size, size, device=device)
    times = paired_times({"product": lambda: a @ b}, rounds=10, device=device)
    return 2 * size**3 / min(times["product"])


def memory_rate(device: str = "cpu", size: int = 2**27) -> float:
    """Bytes a second that this machine reads, with the threads that are set: its best.

    A matrix of `size` bytes, more than the fast memory beside a processor holds, times a vector:
    each number is read for one multiplication and one addition, which take less time than reading
    it.
    """
    matrix, vector = (
        torch.ones(size // 2**12, 2**10, device=device),
        torch.ones(2**10, device=device),
    )
    times = paired_times({"product": lambda: matrix @ vector}, rounds=10, device=device)
    return matrix.nbytes / min(times["product"])


def count_operations(call: Callable[..., Any], *inputs: Any) -> int:
    """Additions and multiplications of the matrix products in a call, as torch counts them.

    Tensors on the device "meta" have a shape and no numbers: with them any size is counted in no
    time.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call(*inputs)
    return counter.get_total_flops()


def peak_memory(call: Callable[[], Any], device: str = "cpu") -> int:
    """Bytes: the most that was allocated at one time during the call, above what was there before
    it.

    What the call returns is counted, too. On a CPU nothing is subtracted for memory from before
    that the call gives back, so measure forward and backward in one call. Raises ValueError for a
    device that does not tell (mps).
    """
    if device.startswith("cuda"):
        synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device != "cpu":
        raise ValueError(
            f"peak memory can be measured on cpu and cuda: got {device}; run with --device cpu"
        )
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # else the profiler prints a line at each start and stop
    with profile(profile_memory=True) as profiler:
        call()
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()  # negative where memory is given back
        peak = max(peak, allocated)
    return peak


def in_bytes(size: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


# ---- where the seconds of a run go, ./run_all.sh --time
#
# CPU seconds, user and system, of all processes, since those of a clock depend on what else a
# machine does. In each process a thread wakes up fifty times a second and gives what was spent
# since to what the main thread is doing. Seconds differ from machine to machine, too: a unit is
# what a fixed small training takes on this one.

EVERY = 0.02  # seconds
PLACES = {  # kind -> the files whose code it is; all else is measuring
    "training": ("optimization.py",),
    "drawing": ("matplotlib", "PIL", "seaborn", "visualization_utils.py", "charts.py"),
}
KINDS = (*PLACES, "measuring", "imports")


def kind_of(files: list[str]) -> str:
    """What somebody is doing whose calls, the innermost first, are in these files."""
    if any(file.startswith("<frozen importlib") for file in files):
        return "imports"
    kinds = (
        kind
        for file in files
        for kind, places in PLACES.items()
        if any(place in file for place in places)
    )
    return next(kinds, "measuring")


def _look(spent: Counter[str], thread: int) -> None:
    while True:
        frame, files = sys._current_frames().get(thread), []
        while frame:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        spent[kind_of(files)] += time.process_time() - spent.total()
        time.sleep(EVERY)


def watch(spent: Counter[str]) -> None:
    """From now on CPU seconds of this process are counted, by kind; what it has spent so far were
    imports.
    """
    spent.clear()
    spent["imports"] = time.process_time()
    threading.Thread(target=_look, args=[spent, threading.get_ident()], daemon=True).start()


def cpu_unit() -> float:
    """CPU seconds of 300 steps of a small network by PyTorch alone."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model, words = (
        nn.Sequential(nn.Embedding(97, 64), encoder, nn.Linear(64, 97)),
        torch.randint(97, (64, 14)),
    )
    optimizer, starts = torch.optim.SGD(model.parameters(), 0.01), []
    for _ in range(320):
        starts.append(time.process_time())
        optimizer.zero_grad()
        F.cross_entropy(model(words).mT, words).backward()
        optimizer.step()
    return time.process_time() - starts[20]  # the first are slower


def seconds_by_script(scripts: Mapping[str, Mapping[str, float]]) -> str:
    """A line for each script, the most expensive first; what was spent outside of them; and the sum
    in units.
    """
    frame = pd.DataFrame.from_dict(scripts, orient="index", columns=KINDS).fillna(0.0)
    frame["all"], total = (
        frame.sum(axis=1),
        sum(os.times()[:4]),
    )  # of this process, and of those that have ended
    frame = frame.sort_values("all", ascending=False)
    frame.loc["all scripts"] = frame.sum()
    frame.loc["starting processes, pages", "all"] = total - frame.loc["all scripts", "all"]
    frame["units"] = frame["all"] / cpu_unit()
    lines = frame.to_string(float_format="{:.1f}".format, na_rep="")
    return (
        f"CPU seconds, and units of {frame['all'].iloc[0] / frame['units'].iloc[0]:.2f} s\n{lines}"
    )
