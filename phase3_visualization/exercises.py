"""Exercises of phase 3: write the numbers that describe heads, and hear what is wrong.

    python phase3_visualization/exercises.py --help      says how; answers.py has spoilers

B batch, N sentences, L layers, H heads, T length. Rows of weights are queries and sum to 1, columns
are keys. Do not import attention_utils, grammar/scores, patching and logit_lens: the answers
are there.
"""

from torch import Tensor

from phase3_visualization.answers import AFTERWARDS, EXERCISES
from shared import cli
from shared.exercise_checker import command


def head_entropy(weights: Tensor, mask: Tensor) -> Tensor:
    """Exercise 1: how evenly does a head spread its weights, from 0 (one key) to 1 (all)?
    Lesson: 1. Which weights deserve an arrow? · medium · 45 min

    weights   (H, T_q, T_k)         float64, 0 where the mask is False
    mask      (T_q, T_k)            bool, True = may attend
    ->        (H,)                  normalised entropy, the mean over rows

    The entropy of a row is the sum of -w ln(w) over its weights w. Divide it by the largest entropy
    that the row could have, which is that of equal weights on all keys that it may see. Then take
    the mean over the rows of a head. Leave out a row that may see only one key, because it has no
    choice. A visible key may have a weight of exactly 0; then its term is 0, which is the limit.
    """
    raise NotImplementedError


def role_score(weights: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """Exercise 2: does a head follow a relation, more than a fixed offset (Clark et al. 2019)?
    Lesson: 2. A name by rule · hard · 75 min

    weights   (N, H, T, T)          float64, of N sentences
    gold      (N, T, T)             bool, True where the query (row) has its gold key; most queries
                                    have none
    ->        accuracy (H,), baseline (), a single number

    We ask only the queries that have a gold key, those of all sentences together. A query attends
    to the key with its largest weight, where the word itself does not count. accuracy is the share
    of these queries that attend to a gold key. baseline is the same share for a rule that knows no
    words: it always goes k words to the right (to the left, if k is below 0), and misses if there
    is no word. Take the best k, one for all sentences; k = 0 would be the word itself and does not
    count.
    """
    raise NotImplementedError


def measured_rollout(weights: Tensor, by_head: Tensor, own_share: Tensor) -> Tensor:
    """Exercise 3: rollout again, but heads and the words themselves count as much as was measured.
    Lesson: 5. The word that mattered · medium · 45 min

    weights   (L, H, T, T)          float64, of L layers, the first one first
    by_head   (L, H)                how much of what a layer takes in comes through each head; 1 in
                                    all
    own_share (L, T)                how much each position keeps of what it was, from 0 to 1
    ->        (T, T)                rows sum to 1

    In the rollout of the lesson all heads count alike, and every position keeps half of what it
    was. In BERT a position keeps far more, as one sees when lengths are measured (Kobayashi et al.
    2021). So here position i keeps the share own_share[l, i] in layer l. It takes the rest from all
    positions, by the weights of the heads, of which head h counts by_head[l, h]. The layers follow
    one another. Row i of the result says how much of each input word is then in position i.
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
    direction   (d_model,)            logit difference, right less wrong: the output at the last
                                      position · direction
    patched     the head, counted from 0; head h has the columns h · d_v to (h + 1) · d_v, with d_v
                = d_model / H
    ->          output (B, T, d_model), restored (), a single number

    output is that of the corrupted texts, except that this head gives what it gave for the clean
    ones, at all positions. restored says how much of the right answer is back: (patched -
    corrupted) / (clean - corrupted), of logit differences, each the mean over the texts. At 1 the
    head carries all that the answer needs, at 0 nothing of it.
    """
    raise NotImplementedError


def direct_logit_attribution(
    heads: Tensor, w_o: Tensor, stream: Tensor, unembedding: Tensor, right: Tensor
) -> Tensor:
    """Exercise 5: what does each head add to the logit of the right word (Elhage et al. 2021)?
    Lesson: circuits/README.md · hard · 60 min

    heads         (H, T, d_v)       what a layer's heads gave at T positions: weights times values
    w_o           (H · d_v, d_model)    used as x @ w_o: the rows of head 0 first, and so on
    stream        (T, d_model)      the finished vectors, which the last norm reads
    unembedding   (d_model, V)      makes a logit of each word, as x @ unembedding; all float64
    right         (T,)              integers: the right word at each position
    ->            (H,)              the share of each head, a mean over positions

    At the end of the model, the last norm subtracts from every vector its mean, and divides by its
    standard deviation, the root of the mean of the squared differences. Nothing in it is learned.
    Then unembedding makes the logits. Do the same with what each head alone adds to the stream, but
    divide by the deviation of the whole stream, because that is what the model divided by. The
    share of a head is the logit of the right word, minus the mean of the logits of all words.
    """
    raise NotImplementedError


def composed_scores(
    x: Tensor, weights: Tensor, w_v: Tensor, w_o: Tensor, w_q: Tensor, w_k: Tensor
) -> tuple[Tensor, Tensor]:
    """Exercise 6: one head reads what another wrote, for its keys or its queries: which scores?
    Lesson: circuits/README.md · hard · 60 min

    x          (T, d_model)     the stream that the lower head reads, float64, as all here
    weights    (T, T)           of the lower head
    w_v, w_o   (d_model, d_v) and (d_v, d_model), of the lower head, used as x @ w
    w_q, w_k   (d_model, d_k)   of a head in the layer above
    ->         by_keys (T, T), by_queries (T, T)

    The lower head writes the sum of its values, each times its weight, times w_o, and this is added
    to x. The upper head makes queries and keys from that sum, so its scores have four parts (Elhage
    et al. 2021). Compute two of them. In by_keys (K-composition) the queries are made from x alone,
    and the keys from what was written alone. This is how a head can look for the position that says
    "after B". by_queries (Q-composition) is the other way round. Scores are divided by √d_k. There
    are no norms and no mask.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> None:
    command.run_exercises(__file__, EXERCISES, AFTERWARDS, argv)


if __name__ == "__main__":
    cli.run(main)
