"""How fast are four ways to compute the same attention, and are they the same?

Equality comes first: all ways have the weights of one MultiHeadAttention and the causal mask, and
each output is compared with that of this module. A fifth way is wrong on purpose: its mask has the
other meaning, True = hidden. A time is that of a forward pass over one text of 512 to 4,096 words,
divided by the time that our attention, which goes step by step, takes in the same round
(costs/measure.py). Times belong to a machine, so they get no verdict. Run this script alone.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from phase2_multi_head.costs.measure import paired_times, ratio_quartiles
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, StackOfHeads
from shared.attention_checks import torch_reference
from shared.attention_utils import causal_mask
from shared.claims import Numbers
from shared.experiment import Experiment, Run
from shared.toy_model import default_dtype

LENGTHS, QUICK_LENGTHS = (512, 1024, 2048, 4096), (64, 128)
D_MODEL, NUM_HEADS, ROUNDS = 512, 8, 5
OURS, TORCH, WRONG = "multi-head attention", "nn.MultiheadAttention", "wrong: inverted mask"
QUARTILES = ("lower quartile", "median", "upper quartile")


def ways(length: int, device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """Returns causal attention in four ways and a wrong one, all with the same weights.

    Each takes x (B, T, d_model) and gives the same shape.
    """
    mask = causal_mask(length, device=device)
    attention = MultiHeadAttention(D_MODEL, NUM_HEADS, bias=False).to(device)
    stack = StackOfHeads(D_MODEL, NUM_HEADS).to(device)
    stack.copy_weights(attention)
    reference = torch_reference(attention)
    fused = FusedMultiHeadAttention(D_MODEL, NUM_HEADS, bias=False).to(device)
    fused.load_state_dict(attention.state_dict())
    causal = FusedMultiHeadAttention(D_MODEL, NUM_HEADS, bias=False, causal=True).to(device)
    causal.load_state_dict(attention.state_dict())
    return {
        OURS: lambda x: attention(x, mask=mask)[0],
        "stack of heads": lambda x: stack(x, mask)[0],
        "fused": lambda x: causal(x)[0],
        TORCH: lambda x: reference(x, x, x, attn_mask=~mask, need_weights=False)[0],
        WRONG: lambda x: fused(x, mask=~mask)[0],
    }


@default_dtype(torch.float32)  # no large model has more bits
@torch.no_grad()
def measure(run: Run) -> Numbers:
    """Returns largest differences from ours, and quartiles of times over those of ours."""
    device, quick = run.options.device, run.options.quick
    torch.manual_seed(run.seed)
    numbers = {}
    lengths = QUICK_LENGTHS if quick else LENGTHS
    for length in lengths:
        x = torch.randn(1, length, D_MODEL, device=device)
        calls = {name: partial(way, x) for name, way in ways(length, device).items()}
        right = calls[OURS]()
        times = paired_times(calls, rounds=3 if quick else ROUNDS, device=device)
        for name, call in calls.items():
            numbers[f"{name}, {length} words, differs by"] = (call() - right).abs().max().item()
            ratios = ratio_quartiles(times, name, OURS)
            for quartile, ratio in zip(QUARTILES, ratios, strict=True):
                numbers[f"{name}, {length} words, {quartile}"] = ratio
    shortest, *_, longest = lengths
    run.shown["shortest"], run.shown["longest"] = shortest, longest
    run.shown["fused, shortest"] = numbers[f"fused, {shortest} words, median"]
    run.shown["fused, longest"] = numbers[f"fused, {longest} words, median"]
    right_ways = [name for name in calls if name != WRONG]
    differences = [numbers[f"{name}, {longest} words, differs by"] for name in right_ways]
    run.shown["differ"] = max(differences)
    run.shown["off"] = numbers[f"{WRONG}, {longest} words, differs by"]
    run.shown["wrong"] = numbers[f"{WRONG}, {longest} words, median"]
    return numbers


main = Experiment(
    measure,
    answer="The four differ by {shown[differ]:.0e} at most. Fused attention takes "
    "{shown[fused, shortest]:.2f} of the time of attention step by step for {shown[shortest]} "
    "words, and {shown[fused, longest]:.2f} of it for {shown[longest]}. The wrong mask takes "
    "{shown[wrong]:.2f} of it, and only its output, which is off by {shown[off]:.1f}, gives it "
    "away.",
    machine_dependent=("*",),  # all are times
    uses="--seed --seeds --quick --device",
)

if __name__ == "__main__":
    main.run()
