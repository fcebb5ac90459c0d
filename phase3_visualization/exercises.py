"""Exercises of phase 3: write the numbers that describe heads yourself, and hear what is wrong by its name.

The first run makes my_exercises.py beside this file. Write there: replace each `raise NotImplementedError` by your own
code, then run this file, as often as you like:

    python phase3_visualization/exercises.py              all exercises, and what is left to do
    python phase3_visualization/exercises.py 3            one of them, by number or name
    python phase3_visualization/exercises.py 3 --hint     its idea; --hint 2: its steps; --hint 3: all of it, as loops
    python phase3_visualization/exercises.py --help

Each names the section of README.md to which it belongs, or the page of a room; how hard it is (easy: one idea, medium:
two at once, hard: several, with special cases); and how many minutes it may take you, unhurried: an estimate.

Loops are fine, whole tensors are shorter. You may import what you like; scaled_dot_product_attention, split_heads and
merge_heads of phases 1 and 2 are here already. Only attention_utils, grammar/scores and head_importance would take the
fun out of it. Inputs are float64, so make new tensors with the dtype of an input: torch.eye(5, dtype=weights.dtype).
Spoilers are in answers/. Exit code 0: all done, 1: not yet.

B batch, N sentences, L layers, H heads, T length. Rows of weights are queries and sum to 1, columns are keys.
"""

import torch

from phase1_single_head.self_attention import scaled_dot_product_attention  # noqa: F401 (yours to use)
from phase2_multi_head.multi_head_attention import merge_heads, split_heads  # noqa: F401
from phase3_visualization.answers.solutions import AFTERWARDS, EXERCISES
from shared import cli, exercise_checker

Tensor = torch.Tensor


def head_entropy(weights: Tensor, mask: Tensor) -> Tensor:
    """Exercise 1: how evenly does a head spread its weights? 0: on one key, 1: on all that it may see.

    Lesson: roles/README.md · medium · 45 min

    weights   (H, T_q, T_k)         float64, 0 where the mask is False
    mask      (T_q, T_k)            bool, True = may attend
    ->        (H,)                  normalised entropy, the mean over rows

    The entropy of a row is the sum of -w ln(w) over its weights w. Divide it by the largest that it could be: that of
    equal weights on all keys that the row may see. Then take the mean over the rows of a head.

    A row that may see one key has no choice and does not count. A visible key may have a weight of exactly 0; its term
    is 0, the limit of -w ln(w).
    """
    raise NotImplementedError


def role_score(weights: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """Exercise 2: does a head follow a relation (Clark et al. 2019), and better than a fixed offset would?

    Lesson: 2. A name by rule · hard · 75 min

    weights   (N, H, T, T)          float64, of N sentences
    gold      (N, T, T)             bool, True where the query (row) has its gold key; most queries have none
    ->        accuracy (H,), baseline (), a single number

    Asked are the queries that have a gold key, those of all sentences together. A query attends to the key with its
    largest weight, never to the word itself. accuracy: the share of queries asked that attend to a gold key.

    baseline: the same share for a rule that knows no words and always goes k words to the right (k below 0: to the
    left), where there is a word. Take the best k, one for all sentences; k = 0 is the word itself and does not count.
    """
    raise NotImplementedError


def attention_rollout(weights: Tensor) -> Tensor:
    """Exercise 3: how much of each input word is in each position after all layers (Abnar & Zuidema 2020)?

    Lesson: 5. The word that mattered · medium · 40 min

    weights   (L, H, T, T)          float64, of L layers, the first one first
    ->        (T, T)                rows sum to 1

    In each layer, position i keeps half of what it was (the residual connection) and takes the other half from all
    positions, as the mean of the heads weighs them. Row i of the result: how much of each input word is in position i
    when all layers have done so, one after the other.
    """
    raise NotImplementedError


def without_head(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, b_o: Tensor, num_heads: int, removed: int
) -> Tensor:
    """Exercise 4: what is left of multi-head attention without one of its heads (Michel et al. 2019)?

    Lesson: 7. A mechanism, explained · easy · 30 min

    x                    (B, T, d_model)        float64, as all that follow
    w_q, w_k, w_v, w_o   (d_model, d_model)     used as x @ w
    b_o                  (d_model,)             the bias of the output projection
    removed              the head, counted from 0
    ->                   (B, T, d_model)

    Head h has the columns h · d_k to (h + 1) · d_k of queries, keys and values, with d_k = d_model / H. It attends as
    in phase 1, without a mask. The removed head hands on zeros. Then all heads are put side by side and go through the
    output projection, which has w_o and b_o.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> None:
    exercise_checker.run(__file__, EXERCISES, AFTERWARDS, argv)


if __name__ == "__main__":
    cli.run(main)
