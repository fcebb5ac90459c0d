"""What do the heads of a model do with a stretch of text that comes twice?

    first copy     the cat sat on a mat    a previous-token head looks at the token before
    second copy    the cat sat ...         an induction head looks at "on", behind the first "sat"

In the first copy everything is new. In the second the next token is certain for whoever remembers.
The same three numbers are asked of any model that gives logits and the weights of its layers.

    python phase4_causal/own_text/repeated_text.py
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.head_statistics import relation_weight

# tokens (N, T) -> logits (N, T, V), and the weights of each layer, (N, H, T, T)
Reader = Callable[[Tensor], tuple[Tensor, list[Tensor]]]


def one_before(length: int) -> Tensor:
    """For each query of the first copy the key before it, bool (2 length, 2 length)."""
    gold = torch.zeros(2 * length, 2 * length, dtype=torch.bool)
    query = torch.arange(1, length)
    gold[query, query - 1] = True
    return gold


def came_next(length: int) -> Tensor:
    """For each query of the second copy the key behind its own first copy, as one_before."""
    gold = torch.zeros(2 * length, 2 * length, dtype=torch.bool)
    query = torch.arange(length, 2 * length - 1)
    gold[query, query - length + 1] = True
    return gold


def best_head_weight(layers: list[Tensor], gold: Tensor) -> float:
    """The mean weight that the best of all heads gives to its gold key.

    layers: (N, H, T, T) each; gold: bool (T, T). The head is chosen on the first half of the N
    texts, and its weight is that on the second half.
    """
    choosing, scoring = [], []
    half = len(layers[0]) // 2
    for weights in layers:
        of_texts = gold.expand(len(weights), -1, -1)  # (T, T) -> (N, T, T)
        choosing.append(relation_weight(weights[:half], of_texts[:half]))  # -> (H,)
        scoring.append(relation_weight(weights[half:], of_texts[half:]))
    best = torch.cat(choosing).argmax()  # of the heads of all layers
    return torch.cat(scoring)[best].item()


def second_copy_loss(logits: Tensor, tokens: Tensor) -> float:
    """Mean loss of the tokens behind the first one of the second half, in nats.

    logits (N, T, V), tokens (N, T).
    """
    half = tokens.size(1) // 2
    predictions = logits[:, half:-1].flatten(0, 1)  # (N, T, V) -> (N * (T / 2 - 1), V)
    return F.cross_entropy(predictions, tokens[:, half + 1 :].flatten()).item()


@torch.no_grad()
def read_twice(read: Reader, stretches: Tensor, column: str) -> dict[str, float]:
    """Three numbers of a model, named "what is asked, column"; stretches (N, T).

    How much the best heads look at the token before, and at what came next; and which share of the
    loss on a stretch is gone if it stood there before, instead of the stretch of another text.
    """
    twice = torch.cat([stretches, stretches], dim=1)  # (N, T) -> (N, 2 T)
    logits, layers = read(twice)
    loss = second_copy_loss(logits, twice)
    after_other_text = torch.cat([stretches.roll(1, dims=0), stretches], dim=1)
    logits, _ = read(after_other_text)
    loss_of_other = second_copy_loss(logits, after_other_text)
    length = stretches.size(1)
    return {
        f"weight on the token before, {column}": best_head_weight(layers, one_before(length)),
        f"weight on what came next, {column}": best_head_weight(layers, came_next(length)),
        f"loss gone when it comes twice, {column}": 1 - loss / loss_of_other,
    }


def main() -> None:
    weights = came_next(3).expand(2, 1, -1, -1).float()  # of two texts
    print('Two texts as "the cat sat the cat sat", a head planted that looks at what came next:')
    before = best_head_weight([weights], one_before(3))
    next_to_it = best_head_weight([weights], came_next(3))
    print(f"   weight on the token before: {before:.1f}")
    print(f"   weight on what came next:   {next_to_it:.1f}")


if __name__ == "__main__":
    main()
