"""Experiment: from which d_k on does a model need the division by √d_k to learn?

The task: each symbol is given by the ones 1 and 3 places before, y_t = table[x_(t-1), x_(t-3)], so that one head must
look at two places at once. The same small model learns it with and without the division, with d_k from 8 to 512 and
everything else alike; and once more without the division but with W_q started smaller by √d_k, as T5 does it.

    python phase1_single_head/parts/scaling_training.py
    python phase1_single_head/parts/scaling_training.py --seeds 3

Writes scaling_training.png to visualizations/plots/phase1/.
"""

import argparse
import math
import statistics

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from phase1_single_head.self_attention import SelfAttention, load_single_head_model, scaled_dot_product_attention
from shared import cli, paths, training
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_model import Block
from shared.visualization_utils import head_color, model_note, save_figure

SYMBOLS, LENGTH, D_MODEL, BATCH, STEPS, LEARNING_RATE = 8, 12, 64, 16, 600, 2e-3
SIZES = (8, 16, 32, 64, 128, 512)  # of d_k
FOLDED_SIZE = 64  # of d_k, for the third variant
FIRST = 3  # the first place that has a symbol three places before it


class UnscaledSelfAttention(SelfAttention):
    """SelfAttention without the division: the query is multiplied by √d_k first, which undoes it."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, 1, T, T)."""
        query, key, value = (w(x).unsqueeze(-3) for w in (self.w_q, self.w_k, self.w_v))
        output, weights = scaled_dot_product_attention(query * math.sqrt(query.size(-1)), key, value, mask)
        return self.w_o(output.squeeze(-3)), weights


class FoldedSelfAttention(UnscaledSelfAttention):
    """Without the division, but W_q starts smaller by √d_k, as in T5 (Raffel et al. 2020)."""

    def __init__(self, d_model: int, d_k: int, *, output_projection: bool) -> None:
        super().__init__(d_model, d_k, output_projection=output_projection)
        with torch.no_grad():
            self.w_q.weight /= math.sqrt(d_k)


class TwoPlaces(nn.Module):
    """One block over symbols and learned positions that predicts table[x_(t-1), x_(t-3)] at each t."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, D_MODEL)
        self.positions = nn.Parameter(torch.randn(LENGTH, D_MODEL))
        self.block = Block(D_MODEL, attention)
        self.to_logits = nn.Linear(D_MODEL, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols (B, T) -> logits (B, T, SYMBOLS)."""
        x, _ = self.block(self.embedding(symbols) + self.positions, causal_mask(LENGTH))
        return self.to_logits(x)


def labels(symbols: Tensor, table: Tensor) -> Tensor:
    """What is to be said at the places 3 to T - 1: symbols (B, T), table (S, S) -> (B, T - 3)."""
    return table[symbols[:, FIRST - 1 : -1], symbols[:, :-FIRST]]


def learning_curve(attention_class: type[SelfAttention], d_k: int, seed: int, steps: int) -> list[float]:
    """Share of right predictions on each new batch, before the model learns from it."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(SYMBOLS, (SYMBOLS, SYMBOLS), generator=generator)
    model = TwoPlaces(attention_class(D_MODEL, d_k, output_projection=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    right = []
    for _ in range(steps):
        symbols = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator)
        logits, target = model(symbols)[:, FIRST:], labels(symbols, table)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right.append((logits.argmax(dim=-1) == target).float().mean().item())
    return right


def final(curve: list[float]) -> float:
    """Mean of the last tenth."""
    return statistics.mean(curve[-max(1, len(curve) // 10) :])


VARIANTS = {"divided": SelfAttention, "not divided": UnscaledSelfAttention, "folded into W_q": FoldedSelfAttention}
Curves = dict[tuple[str, int], list[list[float]]]  # (variant, d_k) -> one curve for each seed


def initial_scores(options: argparse.Namespace) -> dict[str, float]:
    """Standard deviation of q · k / √d_k, d_k = 64, for queries and keys that come from somewhere."""
    generator = torch.Generator().manual_seed(options.seed)
    x, other = torch.randn(500, 64, generator=generator), torch.randn(500, 64, generator=generator)
    torch.manual_seed(options.seed)
    new = SelfAttention(64)
    model = load_single_head_model(options).model.cpu()
    trained = model.blocks[0].attention
    with torch.no_grad():
        words = model.blocks[0].attention_norm(model.embedding.weight)
        d_k = trained.w_k.out_features
        return {
            "independent, variance 1": (x @ other.T / 8).std().item(),
            "through new nn.Linear projections": (new.w_q(x) @ new.w_k(other).T / 8).std().item(),
            "all words, trained phase-1 model": (trained.w_q(words) @ trained.w_k(words).T / math.sqrt(d_k))
            .std()
            .item(),
        }


def learned(curves: Curves, variant: str, d_k: int) -> bool:
    """At least 0.9 right at the end, with every seed."""
    return min(map(final, curves[variant, d_k])) >= 0.9


def named(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes)) or "no size"


def draw(curves: Curves, steps: int) -> tuple[Figure, str]:
    """A panel for each variant, a line for each d_k, mean over seeds."""
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), sharey=True, layout="constrained")
    window = max(1, steps // 30)
    for ax, variant in zip(axes, VARIANTS, strict=False):
        for index, d_k in enumerate(SIZES):
            run = torch.tensor(curves[variant, d_k]).mean(dim=0)  # (seeds, steps) -> (steps,)
            smooth = run.unfold(0, window, window).mean(dim=1)  # (steps,) -> (windows, window) -> (windows,)
            ax.plot(
                [window * (i + 0.5) for i in range(len(smooth))],
                smooth.tolist(),
                color=head_color(index),
                label=f"d_k = {d_k}",
            )
        ax.axhline(1 / SYMBOLS, color="black", linewidth=0.8, linestyle=":")
        ax.set(xlim=(0, steps), ylim=(0, 1.03), yticks=(0, 0.5, 1), xlabel="training step", title=variant)
    axes[0].set_ylabel("predictions right")
    axes[0].legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.13))
    axes[1].text(steps, 1 / SYMBOLS + 0.01, "by chance", fontsize=8.5, ha="right", va="bottom")
    works = [d_k for d_k in SIZES if learned(curves, "not divided", d_k)]
    fails = [d_k for d_k in SIZES if d_k not in works]
    title = f"Without the division {steps} steps are enough at d_k = {named(works)}, not at {named(fails)}"
    if not any(learned(curves, "divided", d_k) for d_k in SIZES):
        title = f"{steps} steps are too few: the task is not learned with the division either"
    fig.suptitle(title, fontsize=13)
    seeds = len(curves["divided", SIZES[0]])
    model_note(fig, f"trained {steps} steps, seeds: {seeds}; each batch is scored before it is learned from")
    return fig, title + ". Share of right predictions during training, with the division and without."


def record_findings(curves: Curves, options: argparse.Namespace) -> None:
    initial = initial_scores(options)
    ends = {f"{variant}, {d_k}": [final(curve) for curve in runs] for (variant, d_k), runs in curves.items()}
    unit, seeds = "share of right predictions in the last tenth of training", list(cli.seeds(options))
    large = (128, 512)
    findings.record(
        "phase1_single_head/parts/scaling_training.py",
        [
            Finding(
                "C007",
                "Dividing by √d_k brings the scores to variance 1",
                "course notes",
                initial,
                "standard deviation of q · k / √d_k, d_k = 64",
                "between 0.9 and 1.1",
                **findings.conditional(
                    all(0.9 < value < 1.1 for value in initial.values()),
                    0.9 < initial["independent, variance 1"] < 1.1,
                    "queries and keys are independent with variance 1: projections and training change it",
                ),
                seeds=[options.seed],
            ),
            Finding(
                "C010",
                "Training is stable with the division and fails without it",
                "course notes",
                ends,
                unit,
                "with the division at least 0.9 at every d_k; without it at most 0.5 at every d_k",
                **findings.conditional(
                    all(learned(curves, "divided", d) for d in SIZES)
                    and max(max(ends[f"not divided, {d}"]) for d in SIZES) <= 0.5,
                    all(learned(curves, "divided", d) for d in SIZES)
                    and max(max(ends[f"not divided, {d}"]) for d in large) <= 0.5,
                    "d_k is large, 128 or more; at 8 the model learns without",
                ),
                control="the same model, data, seed and steps",
                seeds=seeds,
            ),
            Finding(
                "C011",
                "The division is critical at the size of the toy model, d_k = 16",
                "course notes",
                {name: value for name, value in ends.items() if name.endswith(", 16")},
                unit,
                "without the division below 0.9",
                findings.verdict(not learned(curves, "not divided", 16)),
                seeds=seeds,
            ),
            Finding(
                "C012",
                "The division is critical: models do not learn without it",
                "course notes; against it T5, which does without (Raffel et al. 2020)",
                {name: ends[name] for name in ("not divided, 16", "not divided, 64", "folded into W_q, 64")},
                unit,
                "without the division at most 0.5, whatever d_k and the initial weights",
                **findings.conditional(
                    max(ends["not divided, 16"] + ends["not divided, 64"] + ends["folded into W_q, 64"]) <= 0.5,
                    max(ends["not divided, 64"]) <= 0.5,
                    "d_k is large and nothing else keeps the scores small, as T5's initial weights and optimizer do",
                ),
                control="folded into W_q: W_q starts smaller by √d_k; with this optimizer that alone may not be enough",
                seeds=seeds,
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    runs = [
        (variant, d_k) for d_k in SIZES for variant in VARIANTS if variant != "folded into W_q" or d_k == FOLDED_SIZE
    ]
    curves = {
        (variant, d_k): [learning_curve(VARIANTS[variant], d_k, seed, steps) for seed in cli.seeds(options)]
        for variant, d_k in tqdm(runs, desc="training with and without the division", leave=False)
    }
    print(f"\nPredictions right after {steps} steps, by chance {1 / SYMBOLS:.2f}")
    for variant, d_k in runs:
        print(f"   d_k = {d_k:<4} {variant:16} {' '.join(f'{final(curve):.2f}' for curve in curves[variant, d_k])}")
    figure, caption = draw(curves, steps)
    path = options.output_dir / paths.PLOTS / "phase1" / f"scaling_training.{options.format}"
    save_figure(figure, path, caption=caption)
    record_findings(curves, options)


if __name__ == "__main__":
    cli.run(main)
