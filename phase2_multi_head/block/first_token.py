"""Do heads rest on the first token of a text, and does a gate stop them?

Two models of two layers of four heads guess next words, one with plain attention and one with a
gate on what the heads have found. Each text begins with <start>, which says nothing about the text,
and which all words may see. We measure how much weight it gets, and compare that with its share if
weights were even. Both models have equally many weights, and are trained with the same batches and
optimizers.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.block.gated_attention import GatedAttention
from phase2_multi_head.models import next_word_model, train_in_order
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts, training
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import even_weights
from shared.visualization_utils import GREEN, ORANGE

STEPS = 400
BEFORE = 3  # tokens that a word has before it, at least, to be asked: so the first is one of four
SIDES = {
    "plain": MultiHeadAttention,
    "gate": GatedAttention,
}
COLORS = {"plain": ORANGE, "gate": GREEN}


def on_first_token(weights: Tensor, mask: Tensor) -> float:
    """Returns the mean weight on the first token, of all heads and all words that are asked.

    weights (N, H, T, T); mask: bool (N, 1, T, T), what each word may see.
    """
    asked = mask[:, 0, BEFORE:].any(dim=-1)  # which words are real: (N, T - BEFORE)
    first = weights[:, :, BEFORE:, 0].mean(dim=1)  # -> (N, T - BEFORE)
    return first[asked].mean().item()


def measure(run: Run) -> Numbers:
    """Returns the weight on the first token, from 0 to 1, and the loss in nats a word."""
    numbers = {}
    for name, make_attention in SIDES.items():
        trained = next_word_model(make_attention, run.seed)
        train_in_order(trained, run.steps(STEPS), name)
        sentences = training.corpus()[1]
        layers, mask = training.attention_on(trained.model, sentences, "next word", end=False)
        all_heads = torch.cat(layers, dim=1)  # L x (N, H, T, T) -> (N, L H, T, T)
        numbers[f"{name}, weight"] = on_first_token(all_heads, mask)
        numbers[f"{name}, loss"] = training.held_out_loss(trained)
    numbers["even weights"] = on_first_token(even_weights(mask), mask)  # both read the same texts
    return numbers


CLAIMS = [
    Claim(
        id="toy-sinks",
        text="Heads of a small next-word model rest on the first token of a text. We asked it of "
        "two layers of four heads.",
        source="Xiao et al. 2023; Gu et al. 2024, on models of 14 million weights and more",
        rule="on average over heads and words, the first token gets at least 0.15 more weight than "
        "an even share",
        effect=lambda n: n["plain, weight"] - n["even weights"],
        at_least=0.15,
        oracle={"even weights": 0.15, "*": 0.5},
        null={"*": 0.15},
        explored=0,
    ),
]


def answer(n: Numbers) -> str:
    """Returns the answer; the claim's rule decides whether heads rest there."""
    said = "The first token gets {n[plain, weight]:.2f} of the weight, and {n[gate, weight]:.2f} "
    said += "with a gate, where an even share would be {n[even weights]:.2f}."
    if not CLAIMS[0].holds(n):
        return f"No, so a gate has nothing to stop. {said}"
    stopped = n["gate, weight"] - n["even weights"] < CLAIMS[0].at_least
    return f"Yes, and a gate {'stops' if stopped else 'does not stop'} them. {said}"


def picture(found: Results) -> Figure:
    """Draws the weight on the first token in each model."""
    fig, ax = plt.subplots(figsize=(7.6, 2.4), layout="constrained")
    weights = {name: found.each(f"{name}, weight") for name in SIDES}
    even = found.mean["even weights"]
    charts.bars(ax, weights, COLORS, guess=even, guess_name="even weights")
    ax.set_xlabel("weight on the first token")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="On average heads do not rest on the first token, with a gate or without",
    note=f"trained {STEPS} steps on next words · two layers of four heads · equally many weights",
    answer=answer,
)

if __name__ == "__main__":
    main.run()
