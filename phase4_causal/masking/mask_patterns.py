"""Does a causal mask make heads more focused and more local, beyond what it hides?

In row i a causal head chooses among i + 1 keys, none of them to the right: so its entropy and its
distance are smaller before anything is learned. Here both are divided by what even weights give in
the same row, 1/n on each visible key. The heads of a model that sees both sides are compared with
the same weights, their future cut off and nothing else changed. Beside them stands a model that was
trained with the mask: it guesses next words, the other one hidden ones, so what it does differently
need not come from the mask. heads_under_a_mask.py looks at its heads.

    python phase4_causal/masking/mask_patterns.py
"""

from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase4_causal.models import load_causal_model, patterns_of
from shared.attention_utils import causal_mask
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Run
from shared.head_statistics import layer_statistics
from shared.training.objectives import corpus

NUM_SENTENCES = 200
FALLS = 0.05  # a normalised number that is smaller by less than this has not fallen


def cut(layers: list[Tensor], mask: Tensor) -> tuple[list[Tensor], Tensor]:
    """Returns the same weights with the future taken away and the rows scaled back to 1.

    layers: (N, H, T, T) each. mask: what queries may see, bool (N, 1, T, T); it is returned without
    the future, too. In the first layer this is exactly what the model computes under the mask;
    deeper ones would read something new.
    """
    mask = mask & causal_mask(mask.size(-1))
    past = []
    for weights in layers:
        past_weights = weights.double().masked_fill(~mask, 0)
        total = past_weights.sum(dim=-1, keepdim=True)  # (N, H, T, T) -> (N, H, T, 1)
        past.append(past_weights / total.where(total > 0, 1))
    return past, mask


def measure(run: Run) -> Numbers:
    """Returns means over rows and heads, in nats and positions; normalised, even weights have 1."""
    sentences = corpus()[1][: 40 if run.options.quick else NUM_SENTENCES]
    both_sides = patterns_of(load_multi_head_model(run.options, run.seed), sentences)
    kinds = {
        "both sides": both_sides,
        "the same, cut": cut(*both_sides),
        "trained with the mask": patterns_of(load_causal_model(run.options, run.seed), sentences),
    }
    numbers = {}
    for kind, patterns in kinds.items():
        for statistic, heads in layer_statistics(*patterns).items():
            numbers[f"{kind}, {statistic}"] = heads.mean().item()
    both_fall = min(fall(numbers, "entropy"), fall(numbers, "distance")) >= FALLS
    run.shown["yes_or_no"] = "Yes" if both_fall else "No"
    return numbers


def fall(n: Numbers, name: str) -> float:
    """Returns by how much a normalised number is smaller after the cut."""
    return n[f"both sides, normalised {name}"] - n[f"the same, cut, normalised {name}"]


CLAIM = Claim(
    id="C107",
    text="A causal mask makes attention more focused and more local, beyond what a smaller choice "
    "of words already does. We added it to the weights of a model of two layers of four heads "
    "that was trained on hidden words.",
    source="course notes, which ask this in their experiments with the causal mask",
    rule=f"normalised entropy falls by {FALLS} or more, and normalised distance does, too",
    effect=lambda n: fall(n, "entropy"),
    at_least=0.05,
    also=lambda n: fall(n, "distance") >= 0.05,
    explored=0,
    oracle={"both sides, normalised*": 0.7, "*": 0.4},
    null={"*": 0.7},
    revised="at first the rule was about raw numbers, and later it asked the same of a model "
    "trained with the mask, too",
)

main = Experiment(
    measure,
    [CLAIM],
    answer="{shown[yes_or_no]}: when the future is hidden, entropy falls from "
    "{n[both sides, entropy]:.2f} to {n[the same, cut, entropy]:.2f} nats, but as a share of what "
    "each row can have it goes from {n[both sides, normalised entropy]:.2f} to "
    "{n[the same, cut, normalised entropy]:.2f}",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
