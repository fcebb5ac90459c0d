"""Exercises of phase 4: write what lets a model write itself, and hear what is wrong by its name.

Replace each `raise NotImplementedError` by your own code, then run this file, as often as you like:

    python phase4_causal/exercises.py            all exercises
    python phase4_causal/exercises.py 3          one of them, by number or name
    python phase4_causal/exercises.py --help

The text of each exercise says what to compute, one number at a time. Loops are fine, whole tensors are shorter. You may
import what you like. Only attention_utils and the other files of this phase would take the fun out of it. Spoilers are
in exercise_solutions.py. Exit code 0: all done, 1: not yet.

B batch, T length, V words. Masks are bool, True = may attend; rows are queries, columns are keys.
"""

import torch

from phase4_causal.answers.solutions import EXERCISES
from shared import cli, exercise_checker

Tensor = torch.Tensor


def causal_mask(query_length: int, key_length: int) -> Tensor:
    """Exercise 1: which keys may each query see, if nothing may see the future?

    query_length   T_q
    key_length     T_k
    ->             (T_q, T_k)       bool, True = may attend

        for i in range(T_q):
            position = i + T_k - T_q                                # the last query stands at the last key
            for j in range(T_k):
                mask[i, j] = j <= position

    With fewer queries than keys the first keys come from a cache: all queries stand behind them.
    """
    raise NotImplementedError


def combined_mask(lengths: Tensor, query_length: int, key_length: int) -> Tensor:
    """Exercise 2: and if the sequences of a batch end at different places, the rest being padding?

    lengths        (B,)             integers, the number of real words of each sequence
    query_length   T_q
    key_length     T_k
    ->             (B, 1, T_q, T_k) bool, True = may attend; the axis of size 1 is for the heads

        for b in range(B):
            for i in range(T_q):
                for j in range(T_k):
                    mask[b, 0, i, j] = j <= i + T_k - T_q and j < lengths[b]

    Only keys are hidden as padding, and padded queries still get something, which the loss must leave out. Padding at
    the end is hidden from real queries by the causal mask already; padding in front of the words would not be.
    """
    raise NotImplementedError


def next_word_probabilities(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """Exercise 3: from what a model says to the probabilities by which its next word is drawn.

    logits        (B, T, V)         of a text of T words; position t predicts word t + 1
    temperature   above 0
    top_k         from 1 to V       how many words may be drawn
    ->            (B, V)            0 for all but top_k words; rows sum to 1

        for b in range(B):
            scaled = [logits[b, T - 1, v] / temperature for v in range(V)]
            ranked = sorted(range(V), key=lambda v: -scaled[v])     # of equal words the smaller v first
            kept = ranked[:top_k]
            total = sum(exp(scaled[v]) for v in kept)
            for v in kept:
                probabilities[b, v] = exp(scaled[v]) / total

    Exactly top_k words are kept, also where several have the same logit: a stable sort does it, topk need not.
    """
    raise NotImplementedError


def cached_step(
    word: Tensor, positions: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, past_keys: Tensor, past_values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Exercise 4: attention for one new word, keys and values of the T words before it being kept.

    word          (B, d_model)      the embedding of the new word
    positions     (max_length, d_model)     added to embeddings, row t for the word at position t, counted from 0
    w_q, w_k      (d_model, d_k)    used as x @ w
    w_v           (d_model, d_v)
    past_keys     (B, T, d_k)       of positions 0 to T - 1; T may be 0
    past_values   (B, T, d_v)
    ->            output (B, d_v), keys (B, T + 1, d_k), values (B, T + 1, d_v)

        for b in range(B):
            x = word[b] + positions[T]                              # (d_model,)
            keys[b] = [past_keys[b, 0], past_keys[b, 1], ..., past_keys[b, T - 1], x @ w_k]
            values[b] = [past_values[b, 0], past_values[b, 1], ..., past_values[b, T - 1], x @ w_v]
            output[b] = attention(x @ w_q, keys[b], values[b])      # one query, scores divided by √d_k, no mask

    The new word may see itself and all before it, which is everything there is.
    """
    raise NotImplementedError


def merge_tiles(
    largest_a: Tensor, total_a: Tensor, mean_a: Tensor, largest_b: Tensor, total_b: Tensor, mean_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Exercise 5: attention over keys a and over keys b was computed apart; what is it over all of them?

    Of each tile there are, for scores s[i, j] and values v[j] of its own keys,

        largest   (T_q,)            max over j of s[i, j]
        total     (T_q,)            sum over j of exp(s[i, j] - largest[i])
        mean      (T_q, d_v)        sum over j of exp(s[i, j] - largest[i]) v[j], divided by total[i]
    ->            largest (T_q,), total (T_q,), mean (T_q, d_v) of both tiles together

        for i in range(T_q):
            largest[i] = max(largest_a[i], largest_b[i])
            part_a = total_a[i] * exp(largest_a[i] - largest[i])
            part_b = total_b[i] * exp(largest_b[i] - largest[i])
            total[i] = part_a + part_b
            for c in range(d_v):
                mean[i, c] = (part_a * mean_a[i, c] + part_b * mean_b[i, c]) / total[i]

    A query that sees no key of a tile has largest -inf, total 0 and mean 0 there. If it sees none in both, the same is
    asked of the whole, where the loops divide by 0. Scores can be in the thousands, and exp(1000) is infinite.
    """
    raise NotImplementedError


def causal_linear_attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Exercise 6: attention as a recurrent network, which forgets the keys (Katharopoulos et al. 2020).

    query   (T, d_k)
    key     (T, d_k)
    value   (T, d_v)
    ->      output (T, d_v), and what the next word would need: state (d_k, d_v), total (d_k,)

        for t in range(T):
            for a in range(d_k):
                total[a] += phi(key[t, a])                          # at first 0
                for c in range(d_v):
                    state[a, c] += phi(key[t, a]) * value[t, c]     # at first 0
            norm = sum(phi(query[t, a]) * total[a] for a in range(d_k))
            for c in range(d_v):
                output[t, c] = sum(phi(query[t, a]) * state[a, c] for a in range(d_k)) / norm

    phi(x) = elu(x) + 1: x + 1 above 0, exp(x) below. It is always positive, as weights must be.
    """
    raise NotImplementedError


YOURS = (
    causal_mask,
    combined_mask,
    next_word_probabilities,
    cached_step,
    merge_tiles,
    causal_linear_attention,
)


def main(argv: list[str] | None = None) -> None:
    exercise_checker.main(__doc__, EXERCISES, YOURS, argv)


if __name__ == "__main__":
    cli.run(main)
