"""Do heads rest on the first token, and do they stop when there is another way out?

Three models of two layers of four heads guess next words: with plain attention, with a gate on what
the heads have found, and with a key that is no word. Each text begins with <start>, which says
nothing about the text, and which all words may see. How much weight does it get?
All have equally many weights, and are trained with the same batches and optimizers.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.block.gated_attention import GatedAttention, NullKeyAttention
from phase2_multi_head.models import next_word_model, train_in_order
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts, training
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import even_weights
from shared.visualization_utils import BLUE, GREEN, ORANGE

STEPS = 800
BEFORE = 3  # tokens that a word has before it, at least, to be asked: so the first is one of four
SIDES = {
    "plain": MultiHeadAttention,
    "gate": GatedAttention,
    "null key": NullKeyAttention,
}
COLORS = {"plain": ORANGE, "gate": GREEN, "null key": BLUE}


def on_first_token(weights: Tensor, mask: Tensor) -> float:
    """Mean weight on the first token, of all heads and all words that are asked.

    weights (N, H, T, T); mask: bool (N, 1, T, T), what each word may see.
    """
    asked = mask[:, 0, BEFORE:].any(dim=-1)  # which words are real: (N, T - BEFORE)
    first = weights[:, :, BEFORE:, 0].mean(dim=1)  # -> (N, T - BEFORE)
    return first[asked].mean().item()


def measure(run: Run) -> Numbers:
    """Weight on the first token, from 0 to 1, and loss in nats a word."""
    numbers = {}
    for name, make_attention in SIDES.items():
        trained = next_word_model(make_attention, run.seed)
        train_in_order(trained, run.steps(STEPS), name)
        sentences = training.corpus()[1]
        layers, mask = training.attention_on(trained.model, sentences, "next word", end=False)
        all_heads = torch.cat(layers, dim=1)  # L x (N, H, T, T) -> (N, L H, T, T)
        numbers[f"{name}, weight"] = on_first_token(all_heads, mask)
        numbers[f"{name}, loss"] = training.held_out_loss(trained)
        numbers["even weights"] = on_first_token(even_weights(mask), mask)
    return numbers


CLAIMS = [
    Claim(
        id="toy-sinks",
        text="Heads of a small next-word model (two layers of four) rest on the first token of a "
        "text",
        source="Xiao et al. 2023; Gu et al. 2024, of models from 14 million weights on",
        rule="on average the first token gets 0.15 more weight than an even share",
        effect=lambda n: n["plain, weight"] - n["even weights"],
        at_least=0.15,
        oracle={"even weights": 0.15, "*": 0.5},
        null={"*": 0.15},
    ),
    Claim(
        id="gate-empties-sinks",
        text="With a gate on the output of the heads the first token gets at most half the weight "
        "that it gets without, in two layers of four heads",
        source="Qiu et al. 2025, section 4: 0.05 in place of 0.47, of 1.7 billion weights",
        rule="weight on the first token with a gate, as a share of that without, is at most 0.5",
        effect=lambda n: n["gate, weight"] / n["plain, weight"],
        at_most=0.5,
        oracle={"gate, *": 0.1, "*": 0.4},
        null={"*": 0.4},
    ),
    Claim(
        id="null-key-empties-sinks",
        text="With a key that is no word the first token gets at most half the weight that it "
        "gets without, in two layers of four heads",
        source="Xiao et al. 2023, section 3.3; Gu et al. 2024, section 6",
        rule="weight on the first token with the null key, as a share of that without, is at most "
        "0.5",
        effect=lambda n: n["null key, weight"] / n["plain, weight"],
        at_most=0.5,
        oracle={"null key, *": 0.1, "*": 0.4},
        null={"*": 0.4},
    ),
]


def picture(found: Results) -> Figure:
    """The weight on the first token in each model."""
    fig, ax = plt.subplots(figsize=(7.6, 2.4), layout="constrained")
    weights = {name: found.each(f"{name}, weight") for name in SIDES}
    even = found.mean["even weights"]
    charts.bars(ax, weights, COLORS, guess=even, guess_name="even weights")
    ax.set_xlabel("weight on the first token, mean over heads and words")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="",
    note=f"trained {STEPS} steps on next words · two layers of four heads · equally many weights",
    answer="The first token gets {n[plain, weight]:.2f} of the weight, with a gate "
    "{n[gate, weight]:.2f}, beside a null key {n[null key, weight]:.2f}; of even weights it would "
    "get {n[even weights]:.2f}",
)

if __name__ == "__main__":
    main.run()
