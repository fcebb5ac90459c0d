"""Which methods name the head that matters, whichever weights compute the same?

In a model set by hand (planted.py) the previous-token head matters; the decoy has as sharp a
pattern, and nobody reads what it writes. A method names the planted head if it puts it above the
decoy by a tenth of the largest number that it gives to any head. Its answer moves if other weights
of the same function change it: by what share of that number, at most, over three draws? Rollout
gives no number to a head: it averages them.
"""

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor

from phase3_visualization.circuits import planted
from phase3_visualization.circuits.patching import Pairs
from phase3_visualization.circuits.planted import PlantedHead, PlantedModel, run_planted
from shared.claims import Numbers
from shared.experiment import Experiment, Run
from shared.head_statistics import composed

TEXTS, DRAWS = 32, 3
# A method names the planted head if it gives it so much more than the decoy, as a share of its
# largest number for any head.
NEEDED_MORE = 0.1
THE_OUTPUT = "the output"  # stands beside the methods: it must stay as it is


def key_composition(writer: PlantedHead, reader: PlantedHead) -> float:
    """Returns |W_QK W_OV^T| / |W_QK| |W_OV|: do the reader's keys read what is written?

    Elhage et al. 2021.
    """
    return composed(reader.query @ reader.key.T, (writer.value @ writer.output).T)


def certain_loss(model: PlantedModel, tokens: Tensor, **patches: Tensor) -> Tensor:
    """Returns nats in the second copy, where the next word is certain."""
    logits, _ = run_planted(model, tokens, **patches)
    second_copy = planted.PERIOD + 1  # it begins behind <start> and the first copy
    guesses = logits[:, second_copy:-1]  # every word but the last guesses the next one
    return F.cross_entropy(guesses.mT, tokens[:, second_copy + 1 :])


def largest_product(weights: Tensor, vectors: Tensor) -> Tensor:
    """Returns each row's largest weight times length of the key's vector, in the mean over rows."""
    lengths = vectors.norm(dim=-1)[:, None]  # (B, T, d) -> (B, 1, T)
    return (weights * lengths).amax(dim=-1).mean()


def scores_of_head(model: PlantedModel, pairs: Pairs, name: str) -> dict[str, Tensor | float]:
    """Returns what each method says of one head."""
    heads = model.layers[0] | model.layers[1]
    head = heads[name]
    _, passes = run_planted(model, pairs.clean)
    weights, values, added = passes[name].weights, passes[name].values, passes[name].added
    restored, _ = planted.restored_by_head(model, pairs, name)

    def loss_with(other: Tensor) -> Tensor:
        """Returns the loss if the head adds this (B, T, d_model)."""
        return certain_loss(model, pairs.clean, **{name: other})

    gate = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss_with(gate * added).backward()
    return {
        "largest weight": weights.amax(dim=-1).mean(),
        "weight × |v|": largest_product(weights, values),
        "weight × |v W_O|": largest_product(weights, values @ head.output),
        "K-composition": key_composition(head, heads["induction"]),
        "direct logit attribution": pairs.logit_difference(added @ model.guess),
        "gradient at a gate": gate.grad.abs(),
        "zero ablation": loss_with(0 * added) - loss_with(added),
        "mean ablation": loss_with(added.mean(dim=0)) - loss_with(added),
        "activation patching": restored,
    }


def scores_of_methods(model: PlantedModel, pairs: Pairs) -> dict[str, Tensor]:
    """Returns what each method says of previous, decoy, induction; and the model's output."""
    by_method = defaultdict(list)
    for name in ("previous", "decoy", "induction"):
        for method, score in scores_of_head(model, pairs, name).items():
            by_method[method].append(float(score))
    output, _ = run_planted(model, pairs.clean)
    scores = {THE_OUTPUT: output}
    for method, of_heads in by_method.items():
        scores[method] = torch.tensor(of_heads, dtype=torch.float64)
    return scores


def measure(run: Run) -> Numbers:
    """Returns shares of a method's largest number for any head; of the output, its logits."""
    draw = torch.Generator().manual_seed(run.seed)
    model = planted.planted_model()
    pairs = planted.planted_pairs(TEXTS, draw)
    scores = scores_of_methods(model, pairs)
    numbers = {}
    for method, of_heads in scores.items():
        if method == THE_OUTPUT:
            continue
        head, decoy, _ = (of_heads / of_heads.max()).tolist()
        numbers[f"{method}, planted head"] = head
        numbers[f"{method}, decoy"] = decoy
        numbers[f"{method}, names it"] = int(head - decoy >= NEEDED_MORE)
    for change in planted.CHANGES:
        for _ in range(DRAWS):
            rewritten = scores_of_methods(planted.other_weights(model, change, draw), pairs)
            for method, before in scores.items():
                move = (rewritten[method] - before).abs().max() / before.abs().max()
                name = f"{method}, {change}"
                numbers[name] = max(numbers.get(name, 0.0), move.item())
    return numbers


main = Experiment(
    measure,
    answer="Ablation and patching. K-composition names this head, too, but its answer moves by "
    "{n[K-composition, stream sheared]:.0%} when only the weights are rewritten and the output "
    "stays",
    uses="--seed --seeds",
)

if __name__ == "__main__":
    main.run()
