"""How does a word decide where to look, and what does it take from there?

Self-attention with one head: every word asks all words a question and takes a weighted mean of their answers.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V                                  (Vaswani et al. 2017, equation 1)

Run it to follow the word "sat" through the five steps in a trained model. Every number is computed twice, word by word
and as one matrix product, and the two must agree:

    python phase1_single_head/self_attention.py
    python phase1_single_head/self_attention.py --sentence "those dogs slept in a soft bed"
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared import cli
from shared.toy_language import VERBS, encode
from shared.toy_model import ToyTransformer, in_double
from shared.training import LITTLE_DECAY, Recipe, Trained

RECIPE = Recipe("single_head_model", "masked word", num_heads=1, num_layers=1, steps=800, matrix_decay=LITTLE_DECAY)


def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Raise ValueError, with the rule and both numbers, for inputs that attention is not defined on."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            raise ValueError(f"{name} needs at least 2 axes (length, size): got shape {tuple(tensor.shape)}")
    if query.size(-1) != key.size(-1):
        raise ValueError(f"query and key must share their last size d_k: got {query.size(-1)} and {key.size(-1)}")
    if key.size(-2) != value.size(-2):
        raise ValueError(f"key and value must have the same length T_k: got {key.size(-2)} and {value.size(-2)}")
    try:
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    except RuntimeError:
        shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
        raise ValueError(f"the axes before length and size must agree: got query, key, value {shapes}") from None
    if mask is not None:
        check_mask(mask, (*leading, query.size(-2), key.size(-2)))


def check_mask(mask: Tensor, scores_shape: tuple[int, ...]) -> None:
    """Raise ValueError for a mask that is not bool or could mean more than one thing on scores of this shape."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, True = may attend: got {mask.dtype}; convert a 1/0 mask with mask.bool()")
    if mask.dim() not in (2, len(scores_shape)):
        advice = "; give it its head axis with mask.unsqueeze(1)" if (mask.dim(), len(scores_shape)) == (3, 4) else ""
        raise ValueError(
            f"mask must have 2 axes (T_q, T_k) or {len(scores_shape)} like the scores: got {mask.dim()}{advice}"
        )
    if any(m not in (1, s) for m, s in zip(reversed(mask.shape), reversed(scores_shape), strict=False)):
        raise ValueError(f"mask of shape {tuple(mask.shape)} does not broadcast to scores of shape {scores_shape}")


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scores (..., T_q, T_k) -> weights of the same shape: each row sums to 1, and hidden keys get exactly 0.

    mask: bool, True = may attend. A query that may see no key gets a row of zeros, where plain softmax gives NaN.
    """
    if mask is None:
        return torch.softmax(scores, dim=-1)
    blind = ~mask.any(dim=-1, keepdim=True)  # queries that may see no key: (..., T_q, T_k) -> (..., T_q, 1)
    scores = scores.masked_fill(~mask & ~blind, -math.inf)  # before softmax: visible keys share all of 1
    return torch.softmax(scores, dim=-1).masked_fill(blind, 0.0)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, dropout: nn.Dropout | None = None
) -> tuple[Tensor, Tensor]:
    """For each query, a mean of the values, weighted by how well the query matches each key.

    query   (..., T_q, d_k)        what each position looks for
    key     (..., T_k, d_k)        what each position offers to be found by
    value   (..., T_k, d_v)        what each position passes on
    mask    bool, True = may attend: (T_q, T_k), or one axis for each of the scores, of its size or 1
    ->      output (..., T_q, d_v), weights (..., T_q, T_k) before dropout

    Same result as F.scaled_dot_product_attention, which keeps the weights to itself. Hidden keys get weight exactly 0,
    and a query that may see no key gets weights and output of 0. Raises ValueError for sizes or masks that do not fit.

    >>> same_keys, values = torch.ones(2, 4), torch.tensor([[1.0], [3.0]])
    >>> scaled_dot_product_attention(torch.ones(1, 4), same_keys, values)  # equal keys: the plain mean of the values
    (tensor([[2.]]), tensor([[0.5000, 0.5000]]))
    """
    check_attention_inputs(query, key, value, mask)
    query = query / math.sqrt(query.size(-1))  # else the variance of the scores grows with d_k
    scores = query @ key.transpose(-2, -1)  # (..., T_q, d_k) @ (..., d_k, T_k) -> (..., T_q, T_k)
    weights = masked_softmax(scores, mask)  # hidden keys get 0, each row sums to 1
    kept = weights if dropout is None else dropout(weights)  # in training some are dropped
    output = kept @ value  # weighted sums: (..., T_q, T_k) @ (..., T_k, d_v) -> (..., T_q, d_v)
    return output, weights


def attention_by_loops(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The specification, one query and one key at a time: (T_q, d_k), (T_k, d_k), (T_k, d_v), mask (T_q, T_k)."""
    weights = query.new_zeros(query.size(0), key.size(0))
    output = query.new_zeros(query.size(0), value.size(1))
    for i in range(query.size(0)):
        visible = [j for j in range(key.size(0)) if mask is None or mask[i, j]]
        scores = [torch.dot(query[i], key[j]) / math.sqrt(key.size(1)) for j in visible]
        largest = max(scores, default=0.0)  # taken off all scores: exp cannot overflow and the ratios stay the same
        total = sum(torch.exp(score - largest) for score in scores)
        for j, score in zip(visible, scores, strict=True):
            weights[i, j] = torch.exp(score - largest) / total
            output[i] += weights[i, j] * value[j]
    return output, weights


class SelfAttention(nn.Module):
    """One head: queries, keys and values are three learned views of the same sequence.

    d_k is the size of queries and keys, d_v of values; both are d_model unless given. Without the output projection the
    output has size d_v and the module 3 d_model² weights; with it the size is d_model again, the weights 4 d_model².
    """

    def __init__(
        self, d_model: int, d_k: int | None = None, d_v: int | None = None, *, output_projection: bool = False
    ) -> None:
        super().__init__()
        d_k = d_model if d_k is None else d_k
        d_v = d_model if d_v is None else d_v
        self.w_q = nn.Linear(d_model, d_k, bias=False)
        self.w_k = nn.Linear(d_model, d_k, bias=False)
        self.w_v = nn.Linear(d_model, d_v, bias=False)
        self.w_o = nn.Linear(d_v, d_model, bias=False) if output_projection else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_v or d_model), weights (B, 1, T, T).

        The axis of 1 is the head axis: masks, statistics and pictures are the same as with many heads.
        mask: (T, T), (B, 1, T, T) or (B, 1, 1, T), bool, True = may attend.
        """
        query, key, value = (w(x).unsqueeze(-3) for w in (self.w_q, self.w_k, self.w_v))  # (B, T, d) -> (B, 1, T, d)
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        return self.w_o(output.squeeze(-3)), weights  # (B, 1, T, d_v) -> (B, T, d_v)


def make_single_head(d_model: int, num_heads: int) -> SelfAttention:
    """SelfAttention as the toy transformer wants it."""
    if num_heads != 1:
        raise ValueError(f"phase 1 has one head: got num_heads={num_heads}")
    return SelfAttention(d_model, output_projection=True)


def load_single_head_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """The phase-1 model, one layer with one head, trained on masked words."""
    return cli.trained_model(RECIPE, make_single_head, options, seed)


def choose_word(words: list[str]) -> int:
    """The word whose attention is followed: the verb, or the last word of a text without one."""
    return next((i for i, word in enumerate(words) if word in VERBS), len(words) - 1)


def attention_input(model: ToyTransformer, words: list[str]) -> Tensor:
    """What the attention of the first layer reads, (T, d_model): embedding plus position, normalised."""
    tokens = torch.tensor([encode(words)], device=model.positions.device)
    return model.blocks[0].attention_norm(model.embed(tokens))[0]  # (1, T, d_model) -> (T, d_model)


def show(name: str, values: Tensor, limit: int = 6) -> None:
    """Print a vector, its shape and at most `limit` of its numbers."""
    numbers = " ".join(f"{value:7.3f}" for value in values[:limit].tolist())
    print(f"   {name:22} {tuple(values.shape)!s:8} {numbers}{' ...' if len(values) > limit else ''}")


def differences(query: Tensor, key: Tensor, value: Tensor) -> dict[str, float]:
    """Between the specification, the matrix form and torch, on (T, d_k), (T, d_k), (T, d_v)."""
    by_loops, loop_weights = attention_by_loops(query, key, value)
    by_matrix, weights = scaled_dot_product_attention(query, key, value)
    by_torch = F.scaled_dot_product_attention(query[None], key[None], value[None])[0]
    return {
        "loops against matrix form": (by_loops - by_matrix).abs().max().item(),
        "their weights": (loop_weights - weights).abs().max().item(),
        "matrix form against F.scaled_dot_product_attention": (by_matrix - by_torch).abs().max().item(),
    }


@torch.no_grad()
def main(argv: list[str] | None = None) -> str | None:
    options = cli.parse(cli.parser(__doc__, trains=True), argv)
    trained = load_single_head_model(options)
    if options.train_only:
        return None
    model = in_double(trained.model)
    attention: SelfAttention = model.blocks[0].attention
    words = options.words
    x = attention_input(model, words)
    i = choose_word(words)
    d_k = attention.w_k.out_features
    print(f'\nOne head, {trained.label}: the word "{words[i]}" (position {i}) in "{" ".join(words)}"\n')

    print("1. Project: three views of each word, W x")
    query, key, value = x @ attention.w_q.weight.T, x @ attention.w_k.weight.T, x @ attention.w_v.weight.T
    show(f'x of "{words[i]}"', x[i])
    show("query: looks for", query[i])
    show("key: is found by", key[i])
    show("value: passes on", value[i])
    by_hand = torch.stack([torch.dot(row, x[i]) for row in attention.w_q.weight])
    torch.testing.assert_close(by_hand, query[i])

    print(f'\n2. Score: the query of "{words[i]}" times every key, one dot product each')
    scores = query[i] @ key.T  # (d_k,) @ (d_k, T) -> (T,)
    by_hand = torch.stack([sum(query[i, c] * key[j, c] for c in range(d_k)) for j in range(len(words))])
    torch.testing.assert_close(by_hand, scores)
    show("q · k", scores, limit=32)

    print(f"\n3. Scale: divide by √d_k = √{d_k} = {math.sqrt(d_k):g}")
    scores = scores / math.sqrt(d_k)
    show("q · k / √d_k", scores, limit=32)

    print("\n4. Softmax: positive numbers that sum to 1")
    weights = torch.softmax(scores, dim=-1)
    torch.testing.assert_close(torch.stack([math.e**s / sum(math.e**t for t in scores) for s in scores]), weights)
    show("weights", weights, limit=32)
    print("   " + ", ".join(f"{word} {weight:.2f}" for word, weight in zip(words, weights.tolist(), strict=True)))

    print("\n5. Weighted sum of the values")
    output = weights @ value  # (T,) @ (T, d_v) -> (d_v,)
    torch.testing.assert_close(sum(weights[j] * value[j] for j in range(len(words))), output)
    show("output", output)

    print("\nAll words at once: as loops, as a matrix product, and by torch's own function")
    agreement = differences(query, key, value)
    by_matrix, matrix_weights = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(output, by_matrix[i])
    for name, difference in agreement.items():
        print(f"   {name:50} differ by {difference:.0e}")
    least, most = matrix_weights.sum(dim=0).aminmax()
    print(f"   each row of weights sums to 1; the columns to {least.item():.2f} at least, {most.item():.2f} at most")
    j = int(weights.argmax())
    return (
        f'"{words[i]}" gives {weights[j]:.2f} of its weight to "{words[j]}"; '
        f"loops, matrix form and torch agree to {max(agreement.values()):.0e}"
    )


if __name__ == "__main__":
    cli.run(main)
