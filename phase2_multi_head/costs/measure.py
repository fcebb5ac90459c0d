"""How does one measure on a machine that also does other things?

Times are compared as ratios of neighbours. Two calls timed one after the other share what the
machine was doing meanwhile; calls timed minutes apart do not. So each round runs every call once,
in a new order, and what counts is the median over rounds of the ratio within a round.

Memory is counted to the byte. On a CPU every allocation that a call makes through PyTorch is
followed, with the scratch memory of its kernels (but not what the library of matrix products takes
for itself), so the answer is the same in every run.
"""

import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.autograd.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

Times = dict[str, list[float]]  # of each call, by its name: seconds in each round


def synchronize(device: str) -> None:
    """Wait for the device: a call on a GPU returns before its work is done."""
    if device != "cpu":
        torch.accelerator.synchronize()


def paired_times(calls: dict[str, Callable[[], Any]], *, rounds: int, device: str = "cpu") -> Times:
    """Returns the seconds that each call took in each round. Every call runs once before."""
    for call in calls.values():
        call()
    synchronize(device)
    order = list(calls)
    generator = random.Random(0)  # its own, so that the models' random numbers stay as they are
    times: Times = {name: [] for name in calls}
    for _ in range(rounds):
        # In a new order, since a call may find the data of the one before it still in the cache.
        generator.shuffle(order)
        for name in order:
            start = time.perf_counter()
            calls[name]()
            synchronize(device)
            times[name].append(time.perf_counter() - start)
    return times


def ratio_quartiles(times: Times, name: str, base: str) -> list[float]:
    """Returns the quartiles over the rounds of how many times as long as `base` a call took."""
    ratios = [own / other for own, other in zip(times[name], times[base], strict=True)]
    return np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()


def count_operations(call: Callable[..., Any], *inputs: Any) -> int:
    """Returns the additions and multiplications of the matrix products in a call.

    Tensors on the device "meta" have a shape and no numbers, so any size is counted in no time.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call(*inputs)
    return counter.get_total_flops()


def peak_memory(call: Callable[[], Any]) -> int:
    """Returns the most bytes that the call had allocated on the CPU at one time.

    What the call returns is counted, too. Nothing is subtracted for older memory that the call
    gives back, so measure forward and backward in one call.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print as it starts
    with profile(profile_memory=True) as profiler:
        call()
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()  # negative where memory is given back
        peak = max(peak, allocated)
    return peak


def in_bytes(size: float) -> str:
    """Returns a size as text: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
