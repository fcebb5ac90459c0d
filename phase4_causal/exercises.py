"""Exercises of phase 4: write what lets a model write itself, and hear what is wrong by its name.

    python phase4_causal/exercises.py --help      says how; answers.py has spoilers

B batch, T length, V words. Masks are bool, True = may attend; rows are queries, columns are keys.
Only attention_utils and the other files of this phase would take the fun out of it.
"""

from torch import Tensor

from phase4_causal.answers import AFTERWARDS, EXERCISES
from shared import cli
from shared.exercise_checker import command


def prefix_mask(prefix_length: int, query_length: int, key_length: int) -> Tensor:
    """Exercise 1: a question is read as a whole, its answer word by word. Who may see whom?
    Lesson: 1. What may a word see? · easy · 25 min

    prefix_length   how many words, the first ones, are the prefix, such as a question; 0 or more
    query_length    T_q, at most T_k
    key_length      T_k
    ->              (T_q, T_k)      bool, True = may attend

    A word of the prefix sees the whole prefix, also what comes later in it. A word after the prefix
    sees itself and all words before it. (Raffel et al. 2020; PaliGemma reads a picture in this way,
    and then writes about it.) Without a prefix this is the causal mask. The last query stands at
    the last key. So if there are fewer queries than keys, the queries are the last words, and the
    first keys come from a cache.
    """
    raise NotImplementedError


def combined_mask(lengths: Tensor, query_length: int, key_length: int) -> Tensor:
    """Exercise 2: and if the sequences of a batch end at different places, the rest being padding?
    Lesson: 1. What may a word see? · medium · 30 min

    lengths        (B,)             integers, the number of real words of each sequence
    query_length   T_q
    key_length     T_k
    ->             (B, 1, T_q, T_k) bool, True = may attend; the axis of size 1 is for the heads

    A key may be seen if the causal mask allows it (exercise 1 without a prefix), and if it is a
    real word, one of the first lengths[b]. Hide padded keys only. Padded queries still get an
    output, which the loss must leave out. (Here the padding is at the end, so the causal mask
    already hides it from real queries; it would not hide padding in front of the words.)
    """
    raise NotImplementedError


def next_word_loss(logits: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Exercise 3: how badly did the model guess the next words? The loss of every language model.
    Lesson: 3. What looks best in training? · easy · 20 min

    logits    (B, T, V)         float64, what the model says, having read all T words
    tokens    (B, T)            integers from 0 to V - 1: the words that it has read
    lengths   (B,)              how many words of each text are real; the rest is padding
    ->        loss (a number)   in nats

    The model reads word t and says which word comes next, which is word t + 1. So the logits and
    the words must be shifted by one, and the last logits of a text are not asked. The loss of one
    guess is minus the logarithm of the probability that softmax gives to the right word. Return its
    mean over all guesses whose right word is real, of all texts together. You may use
    F.cross_entropy, which takes the softmax itself. The number 0 is a word like any other here, so
    only lengths tell the padding.
    """
    raise NotImplementedError


def next_word_probabilities(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """Exercise 4: from what a model says to the probabilities by which its next word is drawn.
    Lesson: 4. How does a model write? · medium · 45 min

    logits        (B, T, V)         float64, of a text of T words; position t predicts word t + 1
    temperature   above 0
    top_k         from 1 to V       how many words may be drawn
    ->            (B, V)            0 for all but top_k words; rows sum to 1

    Only the last position says which word comes next. Divide its logits by the temperature, keep
    the top_k largest, and take the softmax of these alone. Keep exactly top_k words, even if
    several have the same logit: then the words with the smaller numbers stay.
    sort(dim=-1, descending=True, stable=True) puts equal logits in that order, and topk does not
    promise to.
    """
    raise NotImplementedError


def cached_step(
    word: Tensor,
    positions: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Exercise 5: attention for one new word, keys and values of the T words before it being kept.
    Lesson: 5. The cache · medium · 50 min

    word          (B, d_model)      float64, as all that follow: the embedding of the new word
    positions     (max_length, d_model)     added to embeddings, row t for the word at position t,
                                            counted from 0
    w_q, w_k      (d_model, d_k)    used as x @ w
    w_v           (d_model, d_v)
    past_keys     (B, T, d_k)       of positions 0 to T - 1; T may be 0
    past_values   (B, T, d_v)
    ->            output (B, d_v), keys (B, T + 1, d_k), values (B, T + 1, d_v)

    The new word stands at position T, so x is its embedding plus row T of positions. Query, key and
    value are made from x. Put the key and the value behind those of the past. Then the query
    attends to all keys as in phase 1, with scores divided by √d_k. There is no mask, because the
    new word may see itself and all words before it, and there are no others.
    """
    raise NotImplementedError


def merge_tiles(
    largest_a: Tensor,
    total_a: Tensor,
    mean_a: Tensor,
    largest_b: Tensor,
    total_b: Tensor,
    mean_b: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Exercise 6: attention over keys a and over keys b is known; what is it over all of them?
    Lesson: 6. Long texts · hard · 75 min

    Of each tile there are, in float64, for scores s[i, j] and values v[j] of its own keys,

        largest   (T_q,)            max over j of s[i, j]
        total     (T_q,)            sum over j of exp(s[i, j] - largest[i])
        mean      (T_q, d_v)        sum over j of exp(s[i, j] - largest[i]) v[j], divided by
                                    total[i]
    ->            largest (T_q,), total (T_q,), mean (T_q, d_v) of both tiles together

    Each total was taken relative to the largest score of its own tile, so first rescale both to the
    new largest score. The mean of the whole is that of all values, with the weights exp(s[i, j]).

    If a query sees no key of a tile, largest is -inf, and total and mean are 0 there. If it sees no
    key of either tile, return the same for the whole, and never NaN. Scores can be in the
    thousands, and exp(1000) is infinite.
    """
    raise NotImplementedError


def causal_linear_attention(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Exercise 7: attention as a recurrent network (Katharopoulos et al. 2020).
    Lesson: 6. Long texts · hard · 60 min

    query   (T, d_k)        float64, as key and value
    key     (T, d_k)
    value   (T, d_v)
    ->      output (T, d_v), and what the next word would need: state (d_k, d_v), total (d_k,)

    The weight of key j for query t is the dot product phi(query[t]) · phi(key[j]), for the word
    itself and all words before it. output[t] is the sum of the values, each times its weight,
    divided by the sum of the weights. Nothing is divided by √d_k.

    It is recurrent because a query needs only two sums over the words so far. state[a, c] is the
    sum of phi(key[j, a]) · value[j, c], and total is the sum of phi(key[j]).

    phi(x) = elu(x) + 1, which is x + 1 above 0 and exp(x) below. It is always positive, as weights
    must be.
    """
    raise NotImplementedError


def gated_memory_step(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Exercise 8: a memory fades, then a word corrects what it finds there (Yang et al. 2025).
    Lesson: long_texts/README.md · medium · 50 min

    state      (H, d_k, d_v)    float64, as all here: the memory of each head
    query      (H, d_k)         of one new word
    key        (H, d_k)
    value      (H, d_v)
    alpha      (H,)             how much of the memory stays, from 0 to 1
    beta       (H,)             how much of the difference is written, from 0 to 1
    ->         output (H, d_v), new_state (H, d_k, d_v)

    This is one step of a gated delta layer, as in Qwen3-Next. First bring query and key to length
    1, in each head. Then the memory fades, which means that it is multiplied by alpha. Read it with
    the key: key @ memory is what the memory still has for this key. Subtract that from the value,
    multiply the difference by beta, and add the outer product of key and result to the memory. At
    the end the query reads the new memory. Nothing is divided by √d_k.
    """
    raise NotImplementedError


def induction_score(weights: Tensor, tokens: Tensor) -> Tensor:
    """Exercise 9: does a head look up what came after the same word last time (Olsson et al. 2022)?
    Lesson: induction/README.md · medium · 40 min

    weights   (N, H, T, T)      float64, causal, of N texts
    tokens    (N, T)            integers, the words
    ->        (H,)              induction score of each head

    In "cat red on cat" the last word should look at "red", the word after the earlier "cat". For
    each word, find all positions right after earlier occurrences of the same word, and add up its
    weights on them. The score is the mean of these sums over all words, of all texts together, that
    have such a position. A perfect induction head scores 1.
    """
    raise NotImplementedError


def absorbed_attention(
    query: Tensor, turned: Tensor, latents: Tensor, places: Tensor, w_uk: Tensor, w_uv: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Exercise 10: latent attention for one new word, without making any key (DeepSeek-AI 2024).
    Lesson: serving/README.md · medium · 50 min

    query     (H, d_k)          float64, as all here: of the new word, to be compared with keys
    turned    (H, d_r)          the part of the query that asks for places, already turned
    latents   (T, d_c)          what the cache has of each word, the new one included
    places    (T, d_r)          the small key of each word's place, one for all heads
    w_uk      (H, d_c, d_k)     head h would make its keys as latents @ w_uk[h]
    w_uv      (H, d_c, d_v)     and its values as latents @ w_uv[h]
    ->        absorbed (H, d_c), weights (H, T), output (H, d_v)

    A score is the dot product of query and key, plus that of turned and place. Divide each score by
    the root of d_k + d_r, because a whole query has that many numbers. Then comes softmax, and the
    output is the sum of the values, each times its weight. There is no mask. absorbed is a query
    that is compared with the latents themselves: its dot product with a latent must be that of the
    query with the key made from this latent. Make no keys and no values, because in each head that
    would take T · d_c · d_k multiplications.
    """
    raise NotImplementedError


def judge_draft(words: Tensor, q: Tensor, p: Tensor, luck: Tensor) -> tuple[Tensor, Tensor]:
    """Exercise 11: how many drafted words stay, and what is drawn next (Leviathan et al. 2023)?
    Lesson: serving/README.md · medium · 45 min

    words   (n,)        integers: drafted by a small model
    q       (n, V)      float64, as all that follow: the probabilities by which they were drawn
    p       (n + 1, V)  what a large model says at the same places, and at the one behind the last
                        of them
    luck    (n,)        random numbers between 0 and 1, all equally likely
    ->      kept (a number, 0 to n), probabilities (V,) of the word that comes after those

    Word i stays if luck[i] is below p / q, the two probabilities of this word at its place. The
    first word that does not stay ends the draft, and a different word is drawn there. Its
    probabilities are the positive part of p - q, divided by its sum. If all words stay, the next
    word is drawn by the last row of p.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> None:
    command.run_exercises(__file__, EXERCISES, AFTERWARDS, argv)


if __name__ == "__main__":
    cli.run(main)
