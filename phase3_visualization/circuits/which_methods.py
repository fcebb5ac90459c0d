"""Which methods name the head that matters, whichever weights compute the same?

In a model set by hand (planted.py) the previous-token head matters; the decoy has as sharp a
pattern, and nobody reads what it writes. A method names the planted head if it puts it above the
decoy by a tenth of the largest number that it gives to any head. Its answer moves if other weights
of the same function change it: by what share of that number, at most, over three draws? Less than
1e-9 is rounding. Rollout gives no number to a head: it averages them.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase3_visualization.circuits import planted
from phase3_visualization.circuits.patching import Pairs
from phase3_visualization.circuits.planted import CHANGES, PERIOD, Head, Model, read
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import composed
from shared.visualization_utils import BLUE, plot_cells

TEXTS, DRAWS = 32, 3
NAMED, ROUNDING = 0.1, 1e-9
GIVEN = ("planted head", "decoy")


def key_composition(writer: Head, reader: Head) -> float:
    """|W_QK W_OV^T| / |W_QK| |W_OV|: do the reader's keys read what is written (Elhage et al.
    2021)?
    """
    return composed(reader.query @ reader.key.T, (writer.value @ writer.output).T)


def loss(model: Model, tokens: Tensor, **put_in: Tensor) -> Tensor:
    """Nats in the second copy, where the next word is certain."""
    logits, _ = read(model, tokens, **put_in)
    return F.cross_entropy(logits[:, PERIOD + 1 : -1].mT, tokens[:, PERIOD + 2 :])


def answers(model: Model, pairs: Pairs) -> dict[str, Tensor]:
    """Method -> a number for each head: previous, decoy, induction."""
    heads = {name: head for layer in model.layers for name, head in layer.items()}
    (logits, seen), whole = read(model, pairs.clean), loss(model, pairs.clean)
    corrupted_lead = pairs.lead(read(model, pairs.corrupted)[0])
    found: dict[str, list[float]] = {}
    for name, (weights, value, added) in seen.items():
        gate = torch.ones((), dtype=torch.float64, requires_grad=True)
        back = pairs.lead(read(model, pairs.corrupted, **{name: added})[0]) - corrupted_lead
        for method, number in {
            "largest weight": weights.amax(dim=-1).mean(),
            "weight × |v|": (weights * value.norm(dim=-1)[:, None]).amax(dim=-1).mean(),
            "weight × |v W_O|": (weights * (value @ heads[name].output).norm(dim=-1)[:, None])
            .amax(dim=-1)
            .mean(),
            "K-composition": key_composition(heads[name], heads["induction"]),
            "direct logit attribution": pairs.lead(added @ model.guess),
            "gradient at a gate": torch.autograd.grad(
                loss(model, pairs.clean, **{name: gate * added}), gate
            )[0].abs(),
            "zero ablation": loss(model, pairs.clean, **{name: 0 * added}) - whole,
            "mean ablation": loss(model, pairs.clean, **{name: added.mean(dim=0)}) - whole,
            "activation patching": back / (pairs.lead(logits) - corrupted_lead),
        }.items():
            found.setdefault(method, []).append(float(number))
    return {method: torch.tensor(numbers, dtype=torch.float64) for method, numbers in found.items()}


def measure(run: Run) -> Numbers:
    """Shares of the largest number that a method gives to a head; of the output, shares of its
    largest logit.
    """
    draw = torch.Generator().manual_seed(run.seed)
    model, pairs = planted.planted_model(), planted.draw_pairs(TEXTS, draw)
    before, found = answers(model, pairs), {}
    for method, numbers in before.items():
        head, decoy, _ = (numbers / numbers.max()).tolist()
        found |= {f"{method}, planted head": head, f"{method}, decoy": decoy}
        found[f"{method}, names it"] = int(head - decoy >= NAMED)
    before["the output"] = read(model, pairs.clean)[0]
    for change in CHANGES:
        for other in (planted.other_weights(model, change, draw) for _ in range(DRAWS)):
            after = answers(other, pairs) | {"the output": read(other, pairs.clean)[0]}
            for method, numbers in before.items():
                move = (after[method] - numbers).abs().max() / numbers.abs().max()
                found[f"{method}, {change}"] = max(
                    found.get(f"{method}, {change}", 0.0), move.item()
                )
    return found


def picture(results: Results) -> Figure:
    """A row for each method: what it gives to two heads, and how far its answer moves with each
    change.
    """
    methods = [name.removesuffix(", decoy") for name in results.mean if name.endswith(", decoy")]
    fig, axes = plt.subplots(
        1, 2, figsize=(9, 5), layout="constrained", width_ratios=(len(GIVEN), len(CHANGES))
    )
    for ax, columns, rows in zip(
        axes, (GIVEN, CHANGES), (methods, [""] * len(methods)), strict=True
    ):
        shares = torch.tensor(
            [results.row(method, columns) for method in methods], dtype=torch.float64
        ).clamp(max=1)
        texts = [
            ["0" if abs(share) < ROUNDING else f"{share:.2f}" for share in row]
            for row in shares.tolist()
        ]
        plot_cells(ax, shares, texts, rows, [column.replace(" ", "\n", 1) for column in columns])
    for row, method in enumerate(methods):
        if results.mean[f"{method}, names it"] == 1:
            axes[0].get_yticklabels()[row].set(color=BLUE, weight="bold")
    axes[0].set_title("what the method gives to", pad=12)
    axes[1].set_title("how far that moves with other weights of", pad=12)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="Only interventions name the planted head, however its function is written",
    note="weights set by hand, no norm · shares of the largest number that the method gives to a head\n"
    "blue: names the planted head · right: other weights of the same function; the output moves by {n[the output, "
    "stream sheared]:.0e}",
    answer="With a shear K-composition moves by {n[K-composition, stream sheared]:.2f} of itself, zero ablation by "
    "{n[zero ablation, stream sheared]:.0e}, the output by {n[the output, stream sheared]:.0e}",
)

if __name__ == "__main__":
    main.run()
