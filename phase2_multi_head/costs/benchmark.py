"""How fast are nine ways to compute attention, and are they the same?

Equality first: a table of times does not say whether its rows compute the same thing. So every variant of variants.py
is first compared with MultiHeadAttention in float64: outputs, gradients and weights, with the causal mask and without.
One that differs by more than 1e-5 is refused and has no row of times. The inverted mask is refused, and then timed on
its own beside the right one, to show what a table of times would have said.

Times are compared as ratios within rounds (shared/measure.py). "training" is forward and backward, with the gradients
of the input and of all weights. Run it alone: two threads wait for each other, so a program beside it that takes one of
the cores slows both.

    python phase2_multi_head/costs/benchmark.py
    python phase2_multi_head/costs/benchmark.py --shapes 8x64,8x256,2x1024 --seconds 0.5 --causal

It prints tables and draws nothing: times differ from run to run, and no verdict hangs on one.
"""

import argparse
import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.costs.variants import (
    FUSED,
    FUSED_MASK,
    INVERTED,
    TOLERANCE,
    TORCH,
    TORCH_NO_WEIGHTS,
    Variant,
    check_agreement,
    load_variants,
)
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.claims import PROBE, Claim, measures
from shared.measure import machine, median_ratio, paired_times, ratio_quartiles

SHAPES, QUICK_SHAPES = ((8, 64), (1, 512)), ((2, 64),)  # sequences, length
D_MODEL, NUM_HEADS = 512, 8
LENGTHS, QUICK_LENGTHS = (256, 1024, 2048), (64,)  # for the core functions alone
SECONDS = 0.2  # to time all variants at one shape; at least three rounds
COMPARED = 64  # tokens of two sequences on which variants must agree; more takes long in float64
MODES = ("forward", "training")
Times = dict[str, list[float]]  # name -> seconds in each round


@dataclass
class Result:
    """What was measured at one shape."""

    shape: str
    differences: dict[str, float]  # of all variants; those refused are in none of the following
    times: dict[str, Times]  # by mode
    wrong: Times  # the inverted mask and the right one, forward

    def ratio(self, mode: str, name: str, base: str = TORCH) -> float:
        """NaN if one of them was refused."""
        return median_ratio(self.times[mode], name, base) if {name, base} <= self.times[mode].keys() else math.nan


def parse_shapes(text: str) -> list[tuple[int, int]]:
    """ "8x64,2x1024" -> [(8, 64), (2, 1024)]."""
    shapes = []
    for part in text.split(","):
        batch, _, length = part.strip().partition("x")
        if not (batch.isdecimal() and length.isdecimal() and int(batch) and int(length)):
            raise argparse.ArgumentTypeError(f"{part!r} is not sequences x length, as in 8x64,2x1024")
        shapes.append((int(batch), int(length)))
    return shapes


def forward_pass(variant: Callable[[Tensor], object], x: Tensor) -> None:
    with torch.no_grad():
        variant(x)


def training_pass(variant: Variant, x: Tensor, upstream: Tensor) -> None:
    x = x.detach().requires_grad_()
    torch.autograd.grad(variant(x)[0], [x, *variant.module.parameters()], upstream)


@measures(
    Claim(
        id="C050",
        text="F.scaled_dot_product_attention is up to 10 times faster than attention in steps",
        source='course notes, "Using PyTorch\'s Optimized Attention", which time it on a GPU where there is one',
        kind=PROBE,
        rule="times: no verdict",
        holds=None,
        unit=f"time in steps over time fused, for each length; scores, softmax and mean alone, {NUM_HEADS} heads of "
        f"{D_MODEL // NUM_HEADS}, no mask; quartiles of rounds",
    )
)
@torch.no_grad()
def core_ratios(lengths: tuple[int, ...], seconds: float, device: str) -> dict[str, list[float]]:
    """How many times as long attention in steps takes as the fused function, without projections."""
    numbers: dict[str, list[float]] = {name: [] for name in ("lower quartile", "median", "upper quartile")}
    for length in lengths:
        q = torch.randn(1, NUM_HEADS, length, D_MODEL // NUM_HEADS, device=device)
        calls = {
            "in steps": partial(scaled_dot_product_attention, q, q, q),
            FUSED: partial(F.scaled_dot_product_attention, q, q, q),
        }
        times = paired_times(calls, seconds=seconds, device=device)
        for values, ratio in zip(numbers.values(), ratio_quartiles(times, "in steps", FUSED), strict=True):
            values.append(ratio)
    return {"T": list(lengths), **numbers}


def measure(batch: int, length: int, options: argparse.Namespace) -> Result:
    """Agreement, then times of what agrees, at one shape."""
    device, seconds = options.device, 0.02 if options.quick else options.seconds
    multi_head = MultiHeadAttention(D_MODEL, NUM_HEADS, bias=False).to(device)
    x, upstream = torch.randn(2, batch, length, D_MODEL, device=device)
    causal = causal_mask(length, device=device)
    masks = {False: torch.ones_like(causal), True: causal}
    variants = {key: load_variants(multi_head, mask) for key, mask in masks.items()}
    short = x[:2, :COMPARED]
    parts = [mask[:COMPARED, :COMPARED] for mask in masks.values()]
    plain, masked = (check_agreement(load_variants(multi_head, part), multi_head, short, part) for part in parts)
    differences = {name: torch.tensor([plain[name], masked[name]]).max().item() for name in plain}  # NaN stays NaN
    agreeing = {name: v for name, v in variants[options.causal].items() if differences[name] <= TOLERANCE}
    forward = {name: partial(forward_pass, v, x) for name, v in agreeing.items()}
    training = {name: partial(training_pass, v, x, upstream) for name, v in agreeing.items()}
    wrong = {name: partial(forward_pass, variants[True][name], x) for name in (FUSED_MASK, INVERTED)}
    time_calls = partial(paired_times, warm_up=False, device=device)  # the comparison ran them before
    return Result(
        f"{batch}x{length}",
        differences,
        times={"forward": time_calls(forward, seconds=seconds), "training": time_calls(training, seconds=seconds)},
        wrong=time_calls(wrong, seconds=seconds / 2),
    )


def show(result: Result) -> None:
    """The table of one shape."""
    print(f"\n{result.shape}{'':34}{'largest':>10}{'forward':>18}{'training':>18}")
    print(f"   {'':35}{'difference':>10}{'ms':>10}{'ratio':>8}{'ms':>10}{'ratio':>8}")
    for name, difference in result.differences.items():
        row = f"   {name:35}{difference:10.1e}"
        if name in result.times["forward"]:
            for mode in MODES:
                row += f"{statistics.median(result.times[mode][name]) * 1e3:10.2f}{result.ratio(mode, name):8.2f}"
        else:
            row += f"   refused: differs by {difference:.2g}, allowed is {TOLERANCE:g}"
        print(row)
    ratios = ", ".join(f"{mode} {result.ratio(mode, FUSED, TORCH_NO_WEIGHTS):.2f}" for mode in MODES)
    print(f'   "{FUSED}" over "{TORCH_NO_WEIGHTS}": {ratios}')
    wrong = median_ratio(result.wrong, INVERTED, FUSED_MASK)
    print(f'   the refused "{INVERTED}", timed all the same, over "{FUSED_MASK}": {wrong:.2f}')


@cli.script
def main(argv: list[str] | None = None) -> str:
    script = cli.parser(__doc__)
    add = script.add_argument
    add("--shapes", type=parse_shapes, metavar="BxT,...", help="sequences x length (default: 8x64,1x512)")
    add("--seconds", type=float, default=SECONDS, help=f"to time all variants at one shape (default: {SECONDS})")
    add("--causal", action="store_true", help="time with the causal mask (default: none)")
    add("--threads", type=int, metavar="N", help="of the CPU (default: 2, with --quick 1)")
    options = cli.parse(script, argv)
    if options.threads is None:
        options.threads = 1 if options.quick else min(2, os.cpu_count() or 1)
    if options.threads < 1:
        script.error(f"--threads must be 1 or more: got {options.threads}")
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    shapes = options.shapes or (QUICK_SHAPES if options.quick else SHAPES)
    try:
        print(f"\nd_model = {D_MODEL}, {NUM_HEADS} heads, {'causal' if options.causal else 'no'} mask", end="; ")
        print(f"{machine(options.device)}; ratio: time over {TORCH}")
        results = [measure(*shape, options) for shape in tqdm(shapes, desc="shapes", leave=False, disable=None)]
        for result in results:
            show(result)
        lengths, seconds = (QUICK_LENGTHS, 0.02) if options.quick else (LENGTHS, options.seconds)
        findings.record(options, core_ratios(lengths, seconds, options.device))
    finally:
        torch.set_num_threads(before)
    names = [name for name in results[0].differences if name != INVERTED]
    equal = sum(all(result.differences[name] <= TOLERANCE for result in results) for name in names)
    off, wrong = results[0].differences[INVERTED], median_ratio(results[0].wrong, INVERTED, FUSED_MASK)
    return f"{equal} of {len(names)} agree; a wrong mask, off by {off:.1f}, takes {wrong:.2f} of the right one's time"


if __name__ == "__main__":
    cli.run(main)
