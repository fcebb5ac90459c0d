"""Which learning rates does a model bear, with QK-norm or with a gate?

Two layers of four heads guess next words. Each kind of model is trained anew at four learning
rates, by AdamW, at one rate from the first step to the last: with plain attention, with QK-norm,
and with a gate. Plain attention gets a second chance, with a rate that rises over the first third
of the steps (warm-up). All kinds have equally many weights, see the same batches, and start with
scores of equal size and with heads that add equally much.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import nn

from phase2_multi_head.block.gated_attention import GatedAttention
from phase2_multi_head.block.qk_norm import QKNormAttention
from phase2_multi_head.models import next_word_model, train_in_order
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts, training
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.optimization import constant
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE

STEPS = 150
RATES = (0.003, 0.01, 0.03, 0.1)
HIGH = 0.1
COLORS = {"plain": ORANGE, "plain, warm-up": GREY, "QK-norm": BLUE, "gate": GREEN}
IN_THE_PICTURE = {
    "plain": "plain",
    "plain, warm-up": "plain, warm-up",
    "QK-norm": "normalised\n(QK-norm)",
    "gate": "gated output",
}


def normalized(d_model: int, num_heads: int) -> QKNormAttention:
    """QK-norm whose scores are at first as large as those of plain attention.

    A query of plain attention has features of mean square 1/3, because nn.Linear starts so.
    """
    attention = QKNormAttention(d_model, num_heads)
    for projection in (attention.w_q, attention.w_k):
        nn.init.constant_(projection.size, 3**-0.5)
    return attention


@torch.no_grad()
def gated(d_model: int, num_heads: int) -> GatedAttention:
    """Gated heads that at first add as much as others: the gate is about 1/2, so w_o is doubled."""
    attention = GatedAttention(d_model, num_heads)
    attention.w_o.weight.mul_(2)
    return attention


SIDES = {
    "plain": MultiHeadAttention,
    "plain, warm-up": MultiHeadAttention,
    "QK-norm": normalized,
    "gate": gated,
}


def warm_up(step: int) -> float:
    """The share of the rate at a step: it rises over the first third of them."""
    return min(1.0, 3 * (step + 1) / STEPS)


def measure(run: Run) -> Numbers:
    """Loss on held-out sentences after training at each rate, in nats a word."""
    losses = {}
    for name, make_attention in SIDES.items():
        share = warm_up if name == "plain, warm-up" else constant
        for rate in RATES:
            row = f"{name}, {rate}"
            trained = next_word_model(make_attention, run.seed)
            steps = run.steps(STEPS)
            train_in_order(trained, steps, row, matrix_rate=None, rate=rate, share=share)
            losses[row] = training.held_out_loss(trained)
    return losses


def best(n: Numbers, name: str) -> float:
    """The loss of a kind of model at the rate that suits it best."""
    return min(n[f"{name}, {rate}"] for rate in RATES)


def lost_at_high_rate(n: Numbers, name: str) -> float:
    return n[f"{name}, {HIGH}"] - best(n, name)


CLAIMS = [
    Claim(
        id="qk-norm-bears",
        text="With normalised queries and keys a model of two layers of four heads bears a "
        "learning rate at which the same model with plain attention is clearly worse",
        source="Dehghani et al. 2023, section 2.1, of 22 billion weights; Wortsman et al. 2023, of "
        "small models; both with warm-up",
        rule="at a constant rate of 0.1, without warm-up, plain attention loses at least 0.3 nats "
        "more of its own best than QK-norm does of its own",
        effect=lambda n: lost_at_high_rate(n, "plain") - lost_at_high_rate(n, "QK-norm"),
        at_least=0.3,
        oracle={"plain*, 0.1": 3.5, "*": 2.3},
        null={"*, 0.1": 3.5, "*": 2.3},
        explored=10,
    ),
    Claim(
        id="gate-bears",
        text="With a gate on the output of its heads a model of two layers of four heads bears a "
        "learning rate at which a plain one with as many weights is clearly worse",
        source="Qiu et al. 2025, of 1.7 billion weights, with warm-up",
        rule="at a constant rate of 0.1, without warm-up, plain attention loses at least 0.3 nats "
        "more of its own best than gated attention does of its own",
        effect=lambda n: lost_at_high_rate(n, "plain") - lost_at_high_rate(n, "gate"),
        at_least=0.3,
        oracle={"plain*, 0.1": 3.5, "*": 2.3},
        null={"*, 0.1": 3.5, "*": 2.3},
        explored=10,
    ),
    Claim(
        id="qk-norm-gains-nothing",
        text="At the rate that suits each best, a model of two layers of four heads guesses no "
        "better with normalised queries and keys than without",
        source="our question: is a wider range of rates all that QK-norm gives?",
        rule="of four rates the best loses at most 0.05 nats more without QK-norm than with it",
        effect=lambda n: best(n, "plain") - best(n, "QK-norm"),
        at_most=0.05,
        oracle={"*": 2.3},
        null={"QK-norm, *": 2.1, "*": 2.3},
        explored=10,
    ),
]


def picture(found: Results) -> Figure:
    """The loss of each kind against the rate."""
    fig, ax = plt.subplots(figsize=(8.2, 4.8), layout="constrained")
    rows, colors = {}, {}
    for name, label in IN_THE_PICTURE.items():
        rows[label], colors[label] = found.row(name, RATES), COLORS[name]
    charts.lines(ax, RATES, rows, colors)
    ax.set(xlabel="learning rate", ylabel="loss on new sentences, in nats a word")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="With normalised queries and keys a high learning rate does little harm",
    note=f"two layers of four heads, {STEPS} steps of AdamW at a constant rate; with warm-up it "
    "rises over the first third\nequally many weights",
    answer="At a rate of 0.1 plain attention loses {n[plain, 0.1]:.2f} nats a word, "
    "{n[plain, warm-up, 0.1]:.2f} with warm-up, {n[QK-norm, 0.1]:.2f} with normalised queries and "
    "keys, and {n[gate, 0.1]:.2f} with a gate",
)

if __name__ == "__main__":
    main.run()
