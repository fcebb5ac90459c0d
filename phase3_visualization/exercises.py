"""Exercises of phase 3: write the numbers that describe heads, and hear what is wrong.

    python phase3_visualization/exercises.py --help      says how; answers.py has spoilers

B batch, N sentences, L layers, H heads, T length. Rows of weights are queries and sum to 1, columns
are keys. Do not import attention_utils, grammar/scores and patching: the answers are there.
"""

from torch import Tensor

from phase3_visualization.answers import AFTERWARDS, EXERCISES
from shared import cli
from shared.exercise_checker import command


def head_entropy(weights: Tensor, mask: Tensor) -> Tensor:
    """Exercise 1: how evenly does a head spread its weights, from 0 (one key) to 1 (all)?
    Lesson: roles/README.md · medium · 45 min

    weights   (H, T_q, T_k)         float64, 0 where the mask is False
    mask      (T_q, T_k)            bool, True = may attend
    ->        (H,)                  normalised entropy, the mean over rows

    The entropy of a row is the sum of -w ln(w) over its weights w. Divide it by the largest that it
    could be: that of equal weights on all keys that the row may see. Then take the mean over the
    rows of a head. A row that may see one key has no choice and does not count. A visible key may
    have a weight of exactly 0; its term is 0, the limit.
    """
    raise NotImplementedError


def role_score(weights: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """Exercise 2: does a head follow a relation, more than a fixed offset (Clark et al. 2019)?
    Lesson: 2. A name by rule · hard · 75 min

    weights   (N, H, T, T)          float64, of N sentences
    gold      (N, T, T)             bool, True where the query (row) has its gold key; most queries
                                    have none
    ->        accuracy (H,), baseline (), a single number

    Asked are the queries that have a gold key, those of all sentences together. A query attends to
    the key with its largest weight, never to the word itself. accuracy: the share of queries asked
    that attend to a gold key. baseline: the same share for a rule that knows no words and always
    goes k words to the right (k below 0: to the left), where there is a word. Take the best k,
    which is one number for all sentences; k = 0 is the word itself and does not count.
    """
    raise NotImplementedError


def attention_rollout(weights: Tensor) -> Tensor:
    """Exercise 3: how much of each word is where after all layers (Abnar & Zuidema 2020)?
    Lesson: 5. The word that mattered · medium · 40 min

    weights   (L, H, T, T)          float64, of L layers, the first one first
    ->        (T, T)                rows sum to 1

    In each layer, position i keeps half of what it was (the residual connection) and takes the
    other half from all positions, as the mean of the heads weighs them. Row i of the result: how
    much of each input word is in position i when all layers have done so, one after the other.
    """
    raise NotImplementedError


def patch_head(
    clean: Tensor, corrupted: Tensor, w_o: Tensor, direction: Tensor, num_heads: int, patched: int
) -> tuple[Tensor, Tensor]:
    """Exercise 4: does a head carry the answer? Put in what it gave elsewhere (Vig et al. 2020).
    Lesson: circuits/README.md · medium · 45 min

    clean       (B, T, d_model)       what all heads hand to w_o, side by side, for texts with the
                                      right word
    corrupted   (B, T, d_model)       the same for texts with another word in its place
    w_o         (d_model, d_model)    used as x @ w_o; all float64
    direction   (d_model,)            lead of the right answer: the output at the last position ·
                                      direction
    patched     the head, counted from 0; head h has the columns h · d_v to (h + 1) · d_v, with d_v
                = d_model / H
    ->          output (B, T, d_model), restored (), a single number

    output: of the corrupted texts, but with what this head gave for the clean ones, at all
    positions. restored: how much of the right answer is back, (lead - corrupted lead) / (clean lead
    - corrupted lead), of leads that are means over the texts. 1: the head carries all that the
    answer needs. 0: it carries nothing of it.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> None:
    command.run_exercises(__file__, EXERCISES, AFTERWARDS, argv)


if __name__ == "__main__":
    cli.run(main)
