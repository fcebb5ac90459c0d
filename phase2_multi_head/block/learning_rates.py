"""Which learning rates does a model bear, with QK-norm or with a gate?

Two layers of four heads guess next words, with plain attention, with normalised queries and keys
(QK-norm), or with a gate on the output. AdamW trains each kind of model at four learning rates, and
each rate stays the same from the first step to the last. Plain attention gets a second chance, with
a rate that rises over the first third of the steps (warm-up). All kinds have equally many weights
and see the same batches. They start with scores of equal size, and with heads that add equally
much.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import nn

from phase2_multi_head.block.gated_attention import GatedAttention
from phase2_multi_head.block.qk_norm import QKNormAttention
from phase2_multi_head.models import next_word_model, train_in_order
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.training.loop import constant
from shared.training.recipes import held_out_loss
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE, WIDE

STEPS = 150
RATES = (0.003, 0.01, 0.03, 0.1)
HIGH = 0.1
STABLE = 0.3  # nats: at a stable rate a model loses no more than that beside its best one
COLORS = {"plain": ORANGE, "plain, warm-up": GREY, "QK-norm": BLUE, "gate": GREEN}


def qk_norm_like_plain(d_model: int, num_heads: int) -> QKNormAttention:
    """Returns QK-norm whose scores are at first as large as those of plain attention.

    A query of plain attention has features of mean square 1/3, because nn.Linear starts so.
    """
    attention = QKNormAttention(d_model, num_heads)
    for projection in (attention.w_q, attention.w_k):
        nn.init.constant_(projection.norm_weight, 3**-0.5)
    return attention


@torch.no_grad()
def gate_like_plain(d_model: int, num_heads: int) -> GatedAttention:
    """Returns gated heads that add as much as others at first: w_o doubled, the gate about 1/2."""
    attention = GatedAttention(d_model, num_heads)
    attention.w_o.weight.mul_(2)
    return attention


SIDES = {
    "plain": MultiHeadAttention,
    "plain, warm-up": MultiHeadAttention,
    "QK-norm": qk_norm_like_plain,
    "gate": gate_like_plain,
}


def warm_up(step: int) -> float:
    """Returns the share of the rate at a step: it rises over the first third of the steps."""
    return min(1.0, 3 * (step + 1) / STEPS)


def measure(run: Run) -> Numbers:
    """Returns the loss on held-out sentences after training at each rate, in nats a word."""
    losses = {}
    for name, make_attention in SIDES.items():
        schedule = warm_up if name == "plain, warm-up" else constant
        for rate in RATES:
            row = f"{name}, {rate}"
            trained = next_word_model(make_attention, run.seed)
            steps = run.steps(STEPS)
            rates = {"matrix_rate": None, "rate": rate, "schedule": schedule}
            train_in_order(trained, steps, row, **rates)
            losses[row] = held_out_loss(trained)
    return losses


def best(n: Numbers, name: str) -> float:
    """Returns the loss of a kind of model at the rate that suits it best."""
    return min(n[f"{name}, {rate}"] for rate in RATES)


def lost_at_high_rate(n: Numbers, name: str) -> float:
    """Returns how far a kind of model is above its own best loss at the highest rate."""
    return n[f"{name}, {HIGH}"] - best(n, name)


CLAIMS = [
    Claim(
        id="qk-norm-bears",
        text="With normalised queries and keys (QK-norm) a model bears a learning rate at which "
        "the same model with plain attention is clearly worse. We asked it of two layers of four "
        "heads.",
        source="Dehghani et al. 2023, section 2.1, on a model of 22 billion weights, and Wortsman "
        "et al. 2023, on small models; both train with warm-up",
        rule="at a constant learning rate of 0.1, without warm-up, plain attention is at least 0.3 "
        "nats further above its own best loss than QK-norm is above its own",
        effect=lambda n: lost_at_high_rate(n, "plain") - lost_at_high_rate(n, "QK-norm"),
        at_least=0.3,
        oracle={"plain*, 0.1": 3.5, "*": 2.3},
        null={"*, 0.1": 3.5, "*": 2.3},
        explored=10,
    ),
    Claim(
        id="gate-bears",
        text="With a gate on the output of its heads a model bears a learning rate at which a "
        "plain model is clearly worse. We asked it of two layers of four heads, and of a plain "
        "model with as many weights.",
        source="Qiu et al. 2025, on a model of 1.7 billion weights, with warm-up",
        rule="at a constant learning rate of 0.1, without warm-up, plain attention is at least 0.3 "
        "nats further above its own best loss than gated attention is above its own",
        effect=lambda n: lost_at_high_rate(n, "plain") - lost_at_high_rate(n, "gate"),
        at_least=0.3,
        oracle={"plain*, 0.1": 3.5, "*": 2.3},
        null={"*, 0.1": 3.5, "*": 2.3},
        explored=10,
    ),
    Claim(
        id="qk-norm-gains-nothing",
        text="At the learning rate that suits each best, a model guesses no better with normalised "
        "queries and keys than without. We asked it of two layers of four heads.",
        source="our question whether a wider range of learning rates is all that QK-norm gives",
        rule="each at the best of four learning rates, the model loses at most 0.05 nats more "
        "without QK-norm than with it",
        effect=lambda n: best(n, "plain") - best(n, "QK-norm"),
        at_most=0.05,
        oracle={"*": 2.3},
        null={"QK-norm, *": 2.1, "*": 2.3},
        explored=10,
    ),
]


def stable_up_to(n: Numbers, name: str) -> float:
    """Returns the highest rate at which a kind of model loses little more than at its best."""
    return max(rate for rate in RATES if n[f"{name}, {rate}"] <= best(n, name) + STABLE)


def answer(n: Numbers) -> str:
    """Returns the answer, with the highest stable one of the four rates for each kind."""
    return (
        f"With QK-norm it is stable up to a rate of {stable_up_to(n, 'QK-norm')}, with a gate up "
        f"to {stable_up_to(n, 'gate')}, and with plain attention up to {stable_up_to(n, 'plain')}. "
        f"Stable means that it loses at most {STABLE} nats a word more than at the best rate."
    )


def picture(results: Results) -> Figure:
    """Draws the loss of each kind against the rate."""
    fig, ax = plt.subplots(figsize=(WIDE, 4), layout="constrained")
    charts.lines(ax, RATES, {name: results.row(name, RATES) for name in COLORS}, COLORS)
    ax.set(xlabel="learning rate", title="loss on new sentences, in nats a word")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="A high learning rate harms plain attention; QK-norm, a gate or warm-up prevents "
    "most of it",
    note=f"two layers of four heads, trained {STEPS} steps\nwarm-up: the rate rises over the first "
    "third of them",
    answer=answer,
    # Rates that are too high, as here on purpose: what a processor rounds grows until it shows.
    machine_dependent=("plain, 0.01", "plain*, 0.03", "plain*, 0.1", "gate, 0.03", "gate, 0.1"),
)

if __name__ == "__main__":
    main.run()
