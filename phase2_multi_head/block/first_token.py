"""Do heads rest on the first token, and do they stop when there is another way out?

Three models of two layers of four heads guess next words: with plain attention, with a gate on what
the heads have found, and with a key that is no word. Each text begins with <start>, which says
nothing about the text, and which all words may see. How much weight does it get?
All have equally many weights, and are trained with the same batches and optimizers.
"""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.block.gated_attention import GatedAttention, NullKeyAttention
from phase2_multi_head.models import (
    HIDDEN_BESIDE_GATE,
    HIDDEN_WITHOUT_GATE,
    next_word_model,
    train_next_words,
)
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import charts, training
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import even_weights
from shared.training import Trained
from shared.visualization_utils import BLUE, GREEN, ORANGE

STEPS = 800
BEFORE = 3  # tokens that a word has before it, at least, to be asked: so the first is one of four
SIDES = {
    "plain": (MultiHeadAttention, HIDDEN_WITHOUT_GATE),
    "gate": (GatedAttention, HIDDEN_BESIDE_GATE),
    "null key": (NullKeyAttention, HIDDEN_WITHOUT_GATE),
}
COLORS = {"plain": ORANGE, "gate": GREEN, "null key": BLUE}


def on_first_token(weights: Tensor, mask: Tensor) -> float:
    """Mean weight on the first token, of all heads and all words that are asked.

    weights (N, H, T, T); mask: bool (N, 1, T, T), what each word may see.
    """
    asked = mask[:, 0, BEFORE:].any(dim=-1)  # which words are real: (N, T - BEFORE)
    first = weights[:, :, BEFORE:, 0].mean(dim=1)  # -> (N, T - BEFORE)
    return first[asked].mean().item()


def of_layers(trained: Trained) -> tuple[list[float], float]:
    """Weight on the first token in each layer, and that of even weights."""
    sentences, objective = training.corpus()[1], trained.recipe.objective
    layers, mask = training.attention_on(trained.model, sentences, objective, end=False)
    shares = [on_first_token(weights, mask) for weights in layers]
    return shares, on_first_token(even_weights(mask), mask)


def measure(run: Run) -> Numbers:
    """Weights from 0 to 1, means over heads; loss in nats a word."""
    numbers = {}
    for name, (make_attention, hidden) in SIDES.items():
        trained = next_word_model(make_attention, hidden, run.seed)
        train_next_words(trained, run.steps(STEPS), name)
        shares, even = of_layers(trained)
        numbers[f"{name}, first layer"] = shares[0]
        numbers[f"{name}, second layer"] = shares[1]
        numbers[f"{name}, loss"] = training.held_out_loss(trained)
        numbers["even share"] = even
    return numbers


def share(n: Numbers, name: str) -> float:
    """Mean over both layers."""
    return (n[f"{name}, first layer"] + n[f"{name}, second layer"]) / 2


CLAIMS = [
    Claim(
        id="toy-sinks",
        text="Heads of a small next-word model (two layers of four) rest on the first token of a "
        "text",
        source="Xiao et al. 2023; Gu et al. 2024, of models from 14 million weights on",
        rule="on average the first token gets 0.15 more weight than an even share",
        effect=lambda n: share(n, "plain") - n["even share"],
        at_least=0.15,
        oracle={"even share": 0.15, "*": 0.5},
        null={"*": 0.15},
    ),
    Claim(
        id="gate-empties-sinks",
        text="With a gate on the output of the heads the first token gets at most half the weight "
        "that it gets without, in two layers of four heads",
        source="Qiu et al. 2025, section 4: 0.05 in place of 0.47, of 1.7 billion weights",
        rule="weight on the first token with a gate, as a share of that without, is at most 0.5",
        effect=lambda n: share(n, "gate") / share(n, "plain"),
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
        effect=lambda n: share(n, "null key") / share(n, "plain"),
        at_most=0.5,
        oracle={"null key, *": 0.1, "*": 0.4},
        null={"*": 0.4},
    ),
]


def picture(found: Results) -> Figure:
    """The weight on the first token in each layer of each model."""
    fig, ax = plt.subplots(figsize=(7.6, 3.4), layout="constrained")
    weights = {}
    for layer in ("first layer", "second layer"):
        for name in SIDES:
            weights[f"{name}, {layer}"] = found.each(f"{name}, {layer}")
    colors = {name: COLORS[name.split(",")[0]] for name in weights}
    even = {"guess": found.mean["even share"], "guess_name": "an even share"}
    charts.bars(ax, weights, colors, **even)
    ax.set_xlabel("weight on the first token, mean over heads and words")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="",
    note=f"trained {STEPS} steps on next words · two layers of four heads · equally many weights",
    answer="The first token gets {n[plain, first layer]:.0%} and {n[plain, second layer]:.0%} of "
    "the weight in the two layers, an even share would be {n[even share]:.0%}; with a gate it gets "
    "{n[gate, first layer]:.0%} and {n[gate, second layer]:.0%}, beside a null key "
    "{n[null key, first layer]:.0%} and {n[null key, second layer]:.0%}",
)

if __name__ == "__main__":
    main.run()
