"""Experiment: five ways to score a key, the same task. Why did the dot product win?

Each rule learns the lookup task of cross_attention.py twice: once a question is answered by the fact with its own noun,
once by the fact with another noun, so that what a word looks for and what it is found by must differ. Beside the
answers stand the parameters, the time of a forward pass (as a ratio, since times differ from machine to machine) and
the memory that it keeps for the backward pass, as the sequence grows.

    python phase1_single_head/before/scoring_rules.py

Writes scoring_rules.png to visualizations/plots/phase1/.
"""

import argparse
import statistics
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.before.scoring import AdditiveAttention, LuongAttention
from phase1_single_head.parts.cross_attention import STEPS, CrossAttention, train_lookup
from shared import cli, paths, training
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.measure import median_ratio, paired_times
from shared.visualization_utils import HEAD_COLORS, QUIET, model_note, save_figure

SCALED = "scaled dot"
RULES = {
    "dot": LuongAttention,
    SCALED: CrossAttention,  # with its four projections: the transformer's attention
    "general": lambda d_model: LuongAttention(d_model, "general"),
    "concat": lambda d_model: LuongAttention(d_model, "concat"),
    "additive": AdditiveAttention,
}
TASKS = {"the fact with its own noun": 0, "the fact with another noun": 1}  # name -> shift of draw_facts
LENGTHS, LONG, D_MODEL, ROUNDS = (16, 32, 64, 128, 256), (64, 128, 256), 64, 5


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def kept_bytes(module: nn.Module, length: int) -> int:
    """Bytes that one forward pass over `length` positions keeps for the backward pass, without weights and input."""
    x = torch.randn(1, length, D_MODEL, requires_grad=True)
    given = {tensor.untyped_storage().data_ptr() for tensor in (x, *module.parameters())}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output, _ = module(x, x)  # alive until the count: a freed tensor's address would be used again
    assert output.requires_grad
    return sum(size for address, size in kept.items() if address not in given)


@torch.no_grad()
def time_ratios(modules: dict[str, nn.Module], length: int) -> dict[str, float]:
    """Time of one forward pass over that of scaled dot-product attention: median of interleaved pairs."""
    x = torch.randn(1, length, D_MODEL)
    times = paired_times({name: partial(module, x, x) for name, module in modules.items()}, rounds=ROUNDS)
    return {name: median_ratio(times, name, SCALED) for name in modules}


def draw(right: dict[str, dict[str, list[float]]], kept: dict[str, list[int]], steps: int) -> tuple[Figure, str]:
    """Left: right answers of each rule on both tasks. Right: memory kept for the backward pass against length."""
    fig, (left, right_ax) = plt.subplots(1, 2, figsize=(10.6, 4.4), layout="constrained")
    for t, (task, shade) in enumerate(zip(TASKS, (1.0, 0.45), strict=True)):
        for r, rule in enumerate(RULES):
            value = statistics.mean(right[task][rule])
            left.bar(r + 0.4 * t - 0.2, value, 0.37, color=HEAD_COLORS[r], alpha=shade)
            left.text(r + 0.4 * t - 0.2, value + 0.015, f"{value:.2f}", ha="center", fontsize=8)
    left.set_xticks(range(len(RULES)), RULES)
    left.set(ylim=(0, 1.15), yticks=(0, 0.5, 1), ylabel="answers right")
    left.set_title("full: looks for its own noun · pale: for another", color=QUIET, fontsize=10)
    for r, rule in enumerate(RULES):
        right_ax.plot(LENGTHS, [size / 2**20 for size in kept[rule]], color=HEAD_COLORS[r], marker="o", markersize=4)
        va = {"dot": "top", SCALED: "bottom"}.get(rule, "center")  # their ends lie close together
        right_ax.text(LENGTHS[-1] * 1.1, kept[rule][-1] / 2**20, rule, color=HEAD_COLORS[r], va=va, fontsize=9)
    right_ax.set_xscale("log", base=2)
    right_ax.set_yscale("log")
    right_ax.set_xticks(LENGTHS, LENGTHS)
    right_ax.set_yticks((0.001, 0.01, 0.1, 1, 10), ("0.001", "0.01", "0.1", "1", "10"))
    right_ax.set(xlim=(14, 700), xlabel="length T (queries and keys)", ylabel="MiB kept for the backward pass")
    right_ax.set_title(f"memory, d_model = {D_MODEL}", color=QUIET, fontsize=10)
    for ax in (left, right_ax):
        ax.tick_params(length=0)
    times = kept["additive"][-1] / kept[SCALED][-1]
    title = f"Additive attention answers no better than scaled dot-product and keeps {times:.0f} times the memory"
    if statistics.mean(right[list(TASKS)[1]][SCALED]) < statistics.mean(right[list(TASKS)[1]]["additive"]) - 0.02:
        title = f"{steps} steps are too few: the rules do not answer alike yet"
    fig.suptitle(title, fontsize=12.5)
    model_note(fig, f"trained {steps} steps on the lookup task, 500 lists not trained on; memory: untrained")
    return fig, f"{title}: five scoring rules on the same task, and what each keeps in memory."


def record_findings(
    right: dict[str, dict[str, list[float]]],
    kept: dict[str, list[int]],
    ratios: dict[int, dict[str, float]],
    options: argparse.Namespace,
) -> None:
    own, another = (right[task] for task in TASKS)
    additive, projections = parameters(AdditiveAttention(512)), 2 * 512 * 512
    slower = sum(ratios[length]["additive"] >= 2 for length in LONG)
    heavier = sum(kept["additive"][LENGTHS.index(length)] >= 2 * kept[SCALED][LENGTHS.index(length)] for length in LONG)
    as_good = (
        min(map(min, (own[SCALED], another[SCALED]))) >= max(map(max, (own["additive"], another["additive"]))) - 0.02
    )
    seeds = list(cli.seeds(options))
    findings.record(
        "phase1_single_head/before/scoring_rules.py",
        [
            Finding(
                "C173",
                "Luong's simpler scores often do as well as Bahdanau's",
                "course notes",
                {f"{rule}, {task}": right[task][rule] for task in TASKS for rule in RULES},
                "share of right answers on unseen lists",
                "dot and general both within 0.02 of additive on both tasks",
                **findings.conditional(
                    all(
                        a >= b - 0.02
                        for task in right.values()
                        for rule in ("dot", "general")
                        for a, b in zip(task[rule], task["additive"], strict=True)
                    ),
                    all(
                        a >= b - 0.02
                        for task in right.values()
                        for a, b in zip(task["general"], task["additive"], strict=True)
                    ),
                    "there is a matrix in the score: without one a word is looked for and found by the same vector",
                ),
                seeds=seeds,
            ),
            Finding(
                "C063",
                "Additive attention has more parameters than dot-product attention",
                "course notes",
                {"additive": additive, "dot product with W_q and W_k": projections, "plain dot product": 0},
                "parameters of the score, d_model = 512",
                "at least 10 % more",
                **findings.conditional(
                    additive >= 1.1 * projections,
                    additive > 0,
                    "the dot product is meant without projections; with them the two differ by 2 d_model",
                ),
            ),
            Finding(
                "C062",
                "Additive attention is slower than dot-product attention",
                "course notes",
                {f"of {len(LONG)} lengths, at least twice as slow at": slower},
                f"forward pass at {', '.join(map(str, LONG))} positions, median of {ROUNDS} interleaved pairs",
                "at all of them, although the dot product has four projections and additive two",
                findings.verdict(slower == len(LONG)),
            ),
            Finding(
                "C171",
                "Dot-product attention won because it is faster and smaller, not because it is better",
                "Vaswani et al. 2017, section 3.2.1",
                {
                    "lengths at which additive is twice as slow": slower,
                    "lengths at which it keeps twice the memory": heavier,
                    "answers right, scaled dot": own[SCALED] + another[SCALED],
                    "answers right, additive": own["additive"] + another["additive"],
                },
                f"of the lengths {', '.join(map(str, LONG))}; both tasks",
                "slower and heavier at all of them, and answers within 0.02",
                findings.verdict(slower == heavier == len(LONG) and as_good),
                seeds=seeds,
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    right = {
        task: {
            rule: [train_lookup(make, seed, shift=shift, steps=steps).answered for seed in cli.seeds(options)]
            for rule, make in RULES.items()
        }
        for task, shift in TASKS.items()
    }
    torch.manual_seed(options.seed)
    modules = {rule: make(D_MODEL) for rule, make in RULES.items()}
    kept = {rule: [kept_bytes(module, length) for length in LENGTHS] for rule, module in modules.items()}
    ratios = {length: time_ratios(modules, length) for length in LENGTHS}

    print(f"\n{'':12}{'answers right':>20}{'parameters':>12}   time (scaled dot = 1) and KiB kept, by length")
    print(f"{'':12}{'own':>12}{'other':>8}{'':12}" + "".join(f"{length:>14}" for length in LENGTHS))
    for rule in RULES:
        own, another = (statistics.mean(right[task][rule]) for task in TASKS)
        cells = [f"{ratios[n][rule]:.1f} {size / 1024:,.0f}" for n, size in zip(LENGTHS, kept[rule], strict=True)]
        print(
            f"{rule:12}{own:>12.2f}{another:>8.2f}{parameters(modules[rule]):>12,}"
            + "".join(f"{cell:>14}" for cell in cells)
        )
    figure, caption = draw(right, kept, steps)
    path = options.output_dir / paths.PLOTS / "phase1" / f"scoring_rules.{options.format}"
    save_figure(figure, path, caption=caption)
    record_findings(right, kept, ratios, options)


if __name__ == "__main__":
    cli.run(main)
