"""SPOILERS: the answers to the exercises of phase 4. A solution is one way among many: yours is
right if it passes.

Its docstring has the three hints and the usual mistakes, edits of its text: see
shared/exercise_checker/exercise.py. The solutions use no file that lessons tell you to change: see
phase1_single_head/answers.py."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.answers import SCORE_MISTAKES, attend
from shared.exercise_checker.exercise import Case, draw, exercise

Three = tuple[Tensor, Tensor, Tensor]

PAST = """
    first query at the first key: the last query stands at the last key: add T_k - T_q
        + key_length - query_length =>
    own position hidden: a word may attend to itself: <=, not <; else the first one sees nothing
        key_position <= query_position => key_position < query_position
    one word of the future visible: one too far to the right: the model could copy its next word
        key_position <= query_position => key_position <= query_position + 1
    the future instead of the past: rows are queries: the ones are on the diagonal and below it
        key_position <= query_position => key_position >= query_position
    True = hidden: here True means may attend; nn.MultiheadAttention differs
        key_position <= query_position => key_position > query_position
    rows for all keys: there are query_length queries, so as many rows
        up_to_itself(query_length, key_length) => up_to_itself(key_length, key_length)
"""


def up_to_itself(query_length: int, key_length: int) -> Tensor:
    """Which keys stand where the query does or before it? bool (T_q, T_k)"""
    query_position = torch.arange(query_length)[:, None] + key_length - query_length  # (T_q, 1)
    key_position = torch.arange(key_length)
    return key_position <= query_position  # (T_k,) and (T_q, 1) -> (T_q, T_k)


def prefix_cases() -> list[Case]:
    cases = []
    for prefix, t_q, t_k in ((3, 5, 5), (4, 3, 7), (2, 1, 5), (6, 2, 7), (0, 5, 5)):
        name = f"a prefix of {prefix}, {t_q} queries, {t_k} keys"
        cases.append(Case(name, (prefix, t_q, t_k)))
    return cases


@exercise("mask", prefix_cases, PAST)
def prefix_mask(prefix_length: int, query_length: int, key_length: int) -> Tensor:
    """
    A key has two reasons to be visible: it is in the prefix, or it is not after the query. One is
    enough.

    (T_q, 1)     the positions of the queries: 0, 1, 2, ... plus T_k - T_q, as a column
    (T_k,)       the positions of the keys: 0, 1, 2, ...
    past         is the key's position at most the query's?   (T_q, T_k)
    prefix       is the key's position below prefix_length?   (T_k,)
    result       past | prefix: no query stands before the prefix, so each may see all of it

    for i in range(T_q):
        position = i + T_k - T_q  # the last query stands at the last key
        for j in range(T_k):
            mask[i, j] = j <= position or j < prefix_length

    mask inverted: True means may attend, here as in F.scaled_dot_product_attention; yours is True
    where it hides
        return past | (torch.arange(key_length) < prefix_length) => return ~(past |
        (torch.arange(key_length) < prefix_length))
    prefix read word by word: a word of the prefix sees all of it, also what comes later in it
        | (torch.arange(key_length) < prefix_length) =>
    only the prefix visible: two reasons to be visible are joined by |, not by &
        | (torch.arange => & (torch.arange
    one word too many in the prefix: it is the keys 0 to prefix_length - 1: <, not <=
        < prefix_length => <= prefix_length
    the answer visible from the prefix: columns are keys: a word of the prefix may not see what is
    behind it
        | (torch.arange(key_length) < prefix_length) => | (torch.arange(query_length) + key_length -
        query_length < prefix_length)[:, None]
    one word too few in the prefix: it is the keys 0 to prefix_length - 1: j < prefix_length
        < prefix_length => < prefix_length - 1
    rows and columns exchanged: a row belongs to a query, a column to a key
        return past | (torch.arange(key_length) < prefix_length) => return (past |
        (torch.arange(key_length) < prefix_length)).mT
    nothing hidden: a word may not see what comes after it, if that is not in the prefix
        past | => True | past |
    the past left out: a word also sees itself and all words before it, not only the prefix
        past | => past & False |
    prefix at the end: it is the first words of the text, the keys 0 to prefix_length - 1
        (torch.arange(key_length) < prefix_length) => (torch.arange(key_length) >= key_length -
        prefix_length)
    prefix hidden from the words after it: they see all words before them, and the prefix comes
    before
        return past | (torch.arange(key_length) < prefix_length) => return (past |
        (torch.arange(key_length) < prefix_length)) & ((torch.arange(query_length) + key_length -
        query_length < prefix_length)[:, None] == (torch.arange(key_length) < prefix_length))
    """
    past = up_to_itself(query_length, key_length)
    return past | (torch.arange(key_length) < prefix_length)  # (T_q, T_k) and (T_k,)


def combined_cases() -> list[Case]:
    """B = 3 or 2; in the first batch no sequence is as long as there is room."""
    return [
        Case("as many queries as keys", (torch.tensor([4, 2, 3]), 5, 5)),
        Case("3 queries, 7 keys", (torch.tensor([5, 7]), 3, 7)),
    ]


@exercise("mask", combined_cases, PAST)
def combined_mask(lengths: Tensor, query_length: int, key_length: int) -> Tensor:
    """
    Two questions: is the key in the past of the query, is it a real word of this sequence? Both
    must be True.

    past     exercise 1, without a prefix                      (T_q, T_k)
    real     is the key's position below lengths[b]?           (T_k,) and (B, 1) -> (B, T_k)
    result   past & real, real with axes for heads, queries    (T_q, T_k) & (B, 1, 1, T_k) -> (B, 1,
             T_q, T_k)

    for b in range(B):
        for i in range(T_q):
            for j in range(T_k):
                mask[b, 0, i, j] = j <= i + T_k - T_q and j < lengths[b]

    mask inverted: True means may attend, here as in F.scaled_dot_product_attention; yours is True
    where it hides
        return past & real[:, None, None, :] => return ~(past & real[:, None, None, :])
        return past & real[:, None, None, :] => return ~past & ~real[:, None, None, :]
    padding inverted: True means may attend, so a key must be below lengths[b]
        torch.arange(key_length) < lengths => torch.arange(key_length) >= lengths
    | for &: a key must be in the past and be a real word; with | one of the two is enough
        past & real => past | real
    padded queries hidden: hide padded keys only: a query that sees nothing has no softmax, and NaN
    reaches every weight
        real[:, None, None, :] => real[:, None, key_length - query_length:, None]
    one padded key visible: keys 0 to lengths[b] - 1 are real: <, not <=
        < lengths => <= lengths
    head axis missing: weights are (B, H, T_q, T_k): without an axis for the heads the batch is
    broadcast to them
        real[:, None, None, :] => real[:, None, :]
    padding left out: keys from lengths[b] on are padding: hide them
        & real[:, None, None, :] => & (real[:, None, None, :] | True)
    causal part left out: real words of the future must be hidden as well
        past & real[:, None, None, :] => real[:, None, None, :].repeat(1, 1, query_length, 1)
    head axis in another place: (B, 1, T_q, T_k), behind the batch: [:, None]
        return past & real[:, None, None, :] => return (past & real[:, None, :])[None]
        return past & real[:, None, None, :] => return (past & real[:, None, :])[..., None]
    one length for all: each sequence has a length of its own, lengths[b]
        < lengths[:, None] => < lengths[:1, None].expand(len(lengths), 1)
    padding in front: here the real words come first, and the padding at the end
        < lengths[:, None] => >= key_length - lengths[:, None]
    """
    real = torch.arange(key_length) < lengths[:, None]  # (T_k,), (B, 1) -> (B, T_k)
    past = up_to_itself(query_length, key_length)
    return past & real[:, None, None, :]  # (T_q, T_k) & (B, 1, 1, T_k) -> (B, 1, T_q, T_k)


def loss_cases() -> list[Case]:
    """B = 3, T = 5, V = 7; the second text ends early, the third has no next word."""
    (logits,) = draw((3, 5, 7))
    tokens = torch.arange(15).view(3, 5) % 3
    return [Case("5, 2 and 1 words", (4 * logits, tokens, torch.tensor([5, 2, 1])))]


@exercise("loss", loss_cases)
def next_word_loss(logits: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """
    What is said at a position is about the word after it, so the first T - 1 logits meet the last
    T - 1 words.

    said     logits[:, :-1]                                        (B, T - 1, V)
    wanted   tokens[:, 1:]                                         (B, T - 1)
    losses   F.cross_entropy wants (B, V, T - 1) and (B, T - 1): said.mT; with reduction="none" it
             gives a number for each guess                         (B, T - 1)
    real     is the position of the wanted word, 1 to T - 1, below lengths[b]?   (B, T - 1)
    result   the mean of losses[real]

    total = count = 0
    for b in range(B):
        for t in range(lengths[b] - 1):
            shares = exp(logits[b, t]) / exp(logits[b, t]).sum()    # softmax over the V words
            total -= log(shares[tokens[b, t + 1]])
            count += 1
    loss = total / count

    not shifted: the word at a position is the one just read, so the model would learn to copy it:
    logits[:, :-1] are about tokens[:, 1:]
        said, wanted = (logits[:, :-1], tokens[:, 1:]) => said, wanted = (logits, tokens)
        and torch.arange(1, => torch.arange(0,
        said, wanted = (logits[:, :-1], tokens[:, 1:]) => said, wanted = (logits[:, 1:], tokens[:,
        1:])
        said, wanted = (logits[:, :-1], tokens[:, 1:]) => said, wanted = (logits[:, :-1], tokens[:,
        :-1])
        said, wanted = (logits[:, :-1], tokens[:, 1:]) => said, wanted = (logits[:, :-1], tokens[:,
        :-1])
        and torch.arange(1, tokens.size(1)) => torch.arange(tokens.size(1) - 1)
    neither shifted nor without padding: logits[:, :-1] are about tokens[:, 1:], and where that word
    is padding there is nothing to guess
        said, wanted = (logits[:, :-1], tokens[:, 1:]) => said, wanted = (logits, tokens)
        and losses[real] => losses
    shifted twice: position t is to say word t + 1, and this asks it for word t + 2: shift once
        said, wanted = (logits[:, :-1], tokens[:, 1:]) => said, wanted = (logits[:, :-2], tokens[:,
        2:])
        and torch.arange(1, => torch.arange(2,
    shifted the wrong way: the words are taken from 1 on, the logits up to the last but one; this
    asks for the word before
        said, wanted = (logits[:, :-1], tokens[:, 1:]) => said, wanted = (logits[:, 1:], tokens[:,
        :-1])
        said, wanted = (logits[:, :-1], tokens[:, 1:]) => said, wanted = (logits[:, 1:], tokens[:,
        :-1])
        and torch.arange(1, tokens.size(1)) => torch.arange(tokens.size(1) - 1)
    rolled: roll puts the first word behind the last, which nobody should guess: cut instead
        said, wanted = (logits[:, :-1], tokens[:, 1:]) => said, wanted = (logits, tokens.roll(-1,
        1))
        and torch.arange(1, tokens.size(1)) => torch.arange(tokens.size(1))
    padding counted: leave out guesses whose right word is padding, then take the mean
        losses[real] => losses
    padding counted as a loss of 0: divide by the number of real guesses, not by that of all
        losses[real].mean() => (losses * real).mean()
    one padded word guessed: the last real word of a text says nothing that is asked; its right word
    would be padding
        < lengths => <= lengths
    last guess left out: a text of n words has n - 1 guesses, the last of them about its last word
        < lengths[:, None] => < lengths[:, None] - 1
    divided by the number of words: a text of n words has n - 1 guesses, so there are fewer
        losses[real].mean() => losses[real].sum() / lengths.sum()
    a mean of means: each guess counts the same, so a long text counts more than a short one
        losses[real].mean() => ((losses * real).sum(1) / real.sum(1).clamp(min=1)).mean()
        losses[real].mean() => ((losses * real).sum(1) / real.sum(1)).nanmean()
    sum for mean: divide by the number of guesses
        losses[real].mean() => losses[real].sum()
        losses[real].mean() => (losses * real).sum() / len(losses)
    softmax twice: F.cross_entropy takes logits, and the softmax itself
        said.mT => said.softmax(-1).mT
    softmax over the wrong axis: each position shares out 1 over the words, the last axis
        F.cross_entropy(said.mT, wanted, reduction='none') => -said.softmax(1).log().gather(-1,
        wanted[..., None])[..., 0]
    logits taken for logarithms: softmax comes first; log_softmax takes both steps
        F.cross_entropy(said.mT, wanted, reduction='none') => -said.gather(-1, wanted[..., None])[
        ..., 0]
    logarithm missing: the loss is minus the logarithm of the probability
        F.cross_entropy(said.mT, wanted, reduction='none') => -said.softmax(-1).gather(-1,
        wanted[..., None])[..., 0]
        F.cross_entropy(said.mT, wanted, reduction='none') => 1 - said.softmax(-1).gather(-1,
        wanted[..., None])[..., 0]
        F.cross_entropy(said.mT, wanted, reduction='none') => said.softmax(-1).gather(-1,
        wanted[..., None])[..., 0]
    sign: the logarithm of a probability is negative, and a loss is to be positive
        losses[real].mean() => -losses[real].mean()
    logarithm of the mean: take the logarithm of each probability first, then the mean
        losses[real].mean() => -(-losses[real]).exp().mean().log()
    in bits: nats come from the natural logarithm, log, and log2 gives bits
        losses[real].mean() => losses[real].mean() / math.log(2)
    perplexity: that is e to the loss; the loss itself is asked
        losses[real].mean() => losses[real].mean().exp()
    padding told by its number: 0 is a word like any other here; lengths say where a text ends
        losses[real].mean() => losses[wanted != 0].mean()
        losses[real].mean() => losses[real & (wanted != 0)].mean()
    no mean taken: return one number, the mean over all guesses
        losses[real].mean() => losses
        losses[real].mean() => losses[real]
    """
    said, wanted = logits[:, :-1], tokens[:, 1:]
    losses = F.cross_entropy(said.mT, wanted, reduction="none")  # (B, V, T - 1) -> (B, T - 1)
    real = torch.arange(1, tokens.size(1)) < lengths[:, None]  # (T - 1,), (B, 1) -> (B, T - 1)
    return losses[real].mean()


def next_word_cases() -> list[Case]:
    """B = 2, T = 3, V = 7. Ties: four equal logits at the border, of which two may stay."""
    logits = 4 * draw((2, 3, 7))[0]
    ties = logits.clone()
    ties[0, -1] = torch.tensor([0.5, 2.0, 0.5, 0.5, -1.0, 3.0, 0.5])
    return [
        Case("temperature 2, top-k 4", (logits, 2.0, 4)),
        Case("temperature 0.5, top-k 7: all words", (logits, 0.5, 7)),
        Case("temperature 1, top-k 1", (logits, 1.0, 1)),
        Case("equal logits", (ties, 1.5, 4)),
    ]


@exercise("probabilities", next_word_cases)
def next_word_probabilities(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """
    A word that may not be drawn gets a logit of -inf: then softmax gives it 0, and the others share
    the whole 1.

    scaled   the logits of the last position / temperature                (B, V)
    order   the words from the largest logit to the smallest   (B, V): argsort of scaled with
             dim=-1, descending=True, stable=True, all three by name: x.argsort(-1, stable=True)
             raises a TypeError
    kept     scaled, with -inf for all but the first top_k of the order   (B, V): scatter or a loop
    result   softmax of kept over the words                               (B, V)

    for b in range(B):
        scaled = [logits[b, T - 1, v] / temperature for v in range(V)]
        ranked = sorted(range(V), key=lambda v: -scaled[v])     # of equal words the smaller v first
        kept = ranked[:top_k]
        total = sum(exp(scaled[v]) for v in kept)
        for v in kept:
            probabilities[b, v] = exp(scaled[v]) / total

    multiplied by the temperature: divide: a high temperature makes the words more alike
        / temperature => * temperature
    not renormalised after top-k: the kept words must sum to 1 again: hide the others before softmax
        scaled.masked_fill(hidden, -math.inf).softmax(dim=-1) =>
        scaled.softmax(dim=-1).masked_fill(hidden, 0)
    more than k words kept at a tie: a threshold keeps all words that equal the k-th: choose by rank
    instead
        masked_fill(hidden => masked_fill(scaled < scaled.topk(top_k).values[:, -1:]
    other positions than the last: only the last one predicts the word that comes next: logits[:,
    -1]
        logits[:, -1] => logits[:, 0]
        logits[:, -1] => logits.mean(dim=1)
        logits[:, -1] => logits
        and [:, :top_k] => [..., :top_k]
        logits[:, -1] => logits[:, -2]
    temperature without effect: the logits are divided by it; subtracted from logits, or dividing
    probabilities, it changes nothing
        logits[:, -1] / temperature => logits[:, -1]
    hidden words with a logit of 0: e⁰ = 1 is a chance like any other; only e to -inf is 0
        -math.inf => 0.0
    one word too few: exactly top_k words stay, the k-th among them: >= the k-th largest, not > (at
    a tie, choose by rank)
        order[:, :top_k] => order[:, :top_k - 1]
    one word too many: the ranks 0 to top_k - 1 stay: <, not <=
        order[:, :top_k] => order[:, :top_k + 1]
    the smallest kept: descending=True puts the largest logit first
        descending=True => descending=False
    order taken for rank: argsort says which word comes first, not which place a word has; scatter,
    or argsort once more
        torch.ones_like(scaled, dtype=torch.bool).scatter(-1, order[:, :top_k], value=False) =>
        order >= top_k
    the kept words hidden: hide all but the first top_k
        torch.ones_like => torch.zeros_like
        and value=False => value=True
    softmax over the wrong axis: each text shares out 1 over the words, the last axis
        softmax(dim=-1) => softmax(dim=0)
        softmax(dim=-1) => softmax(dim=0).nan_to_num(0)
    softmax missing: these are logits; a probability is e to its logit, divided by the sum of these
        .softmax(dim=-1) =>
    logarithms: softmax gives probabilities, log_softmax their logarithms
        softmax(dim=-1) => log_softmax(dim=-1)
    top-k not applied: all words but top_k get a probability of exactly 0; masked_fill makes a new
    tensor
        scaled.masked_fill(hidden, -math.inf) => scaled
    only the largest word: top_k words may be drawn; that with the largest logit is the greedy
    choice
        order[:, :top_k] => order[:, :1]
    of equal words the later kept: the words with the smaller numbers stay, as with stable=True;
    flip turns that round
        scaled.argsort(dim=-1, descending=True, stable=True) => scaled.argsort(dim=-1,
        stable=True).flip(-1)
    in the order of their size: column v belongs to word v, so put the probabilities back where
    their words stand
        scaled.masked_fill(hidden, -math.inf) => scaled.topk(top_k).values
        scaled.masked_fill(hidden, -math.inf) => scaled.masked_fill(hidden, -math.inf).sort(dim=-1,
        descending=True).values
    """
    scaled = logits[:, -1] / temperature  # (B, T, V) -> (B, V)
    order = scaled.argsort(dim=-1, descending=True, stable=True)
    hidden = torch.ones_like(scaled, dtype=torch.bool).scatter(-1, order[:, :top_k], value=False)
    return scaled.masked_fill(hidden, -math.inf).softmax(dim=-1)


def cache_cases() -> list[Case]:
    """B = 2, T = 5, d_model = 11, d_k = 6, d_v = 7, room for 13 words; then an empty cache."""
    shapes = ((2, 11), (13, 11), (11, 6), (11, 6), (11, 7), (2, 5, 6), (2, 5, 7))
    *inputs, keys, values = (2 * drawn for drawn in draw(*shapes))
    return [
        Case(f"{t} words in the cache", (*inputs, keys[:, :t], values[:, :t])) for t in (5, 1, 0)
    ]


@exercise("output, keys, values", cache_cases, SCORE_MISTAKES)
def cached_step(
    word: Tensor,
    positions: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
) -> Three:
    """
    The new word brings a query, a key and a value. Key and value join those before, and the query
    meets them all.

    x                   word + positions[T]; T is past_keys.size(1)      (B, d_model)
    query, key, value   x times w_q, w_k, w_v   (B, d_k), (B, d_k), (B, d_v)
    keys, values   old ones, then key[:, None]: torch.cat, axis 1   (B, T + 1, d_k), (B, T + 1, d_v)
    weights   softmax of query · keys / √d_k   (B, 1, d_k) @ (B, d_k, T + 1)
    output   weights times values, without the axis of 1   (B, 1, T + 1) @ (B, T + 1, d_v)

    for b in range(B):
        x = word[b] + positions[T]                              # (d_model,)
        for t in range(T):
            keys[b, t], values[b, t] = past_keys[b, t], past_values[b, t]
        keys[b, T], values[b, T] = x @ w_k, x @ w_v
        # one query, scores divided by √d_k, no mask
        output[b] = attention(x @ w_q, keys[b], values[b])

    appended at the front: new keys and values go behind the old ones, for the next step counts on
    their order
        [past_keys, key] => [key, past_keys]
        and [past_values, value] => [value, past_values]
    new word does not see itself: its own key and value belong to what it attends to: append first,
    then attend
        (query, keys, values) => (query, past_keys, past_values)
    positions left out: add the row of the new word's position to its embedding, before all else
        + positions[past_keys.size(1)] =>
    more than one position: one row, T, is added, and to all words of the batch alike
        positions[past_keys.size(1)] => positions[:past_keys.size(1) + 1].sum(0)
        positions[past_keys.size(1)] => positions.mean(0)
        positions[past_keys.size(1)] => positions[:len(word)]
    another position than T: the cache holds positions 0 to T - 1, so the new word stands at T
        positions[past_keys.size(1)] => positions[0]
        positions[past_keys.size(1)] => positions[max(past_keys.size(1) - 1, 0)]
        positions[past_keys.size(1)] => positions[past_keys.size(1) + 1]
        positions[past_keys.size(1)] => positions[-1]
    position missing in a part: query, key and value are all made of x, the word with its position
    added
        x @ w_q, x @ w_k, x @ w_v => x @ w_q, x @ w_k, word[:, None] @ w_v
        x @ w_q, x @ w_k, x @ w_v => x @ w_q, word[:, None] @ w_k, x @ w_v
        x @ w_q, x @ w_k, x @ w_v => word[:, None] @ w_q, x @ w_k, x @ w_v
        x @ w_q, x @ w_k, x @ w_v => x @ w_q, word[:, None] @ w_k, word[:, None] @ w_v
        x @ w_q, x @ w_k, x @ w_v => word[:, None] @ w_q, x @ w_k, word[:, None] @ w_v
        x @ w_q, x @ w_k, x @ w_v => word[:, None] @ w_q, word[:, None] @ w_k, x @ w_v
    multiplied by the position: it is added to the embedding
        word + positions => word * positions
    positions added to the cache again: the cached keys were made of words that had their positions
    already
        [past_keys, key] => [past_keys + positions[:past_keys.size(1)] @ w_k, key]
    w_q and w_k exchanged: the query is x @ w_q, the key x @ w_k
        x @ w_q, x @ w_k, x @ w_v => x @ w_k, x @ w_q, x @ w_v
    divided by √d_v: a dot product of query and key has d_k terms, whatever the size of a value
        math.sqrt(query.size(-1)) => math.sqrt(value.size(-1))
    softmax over the batch: each query shares out 1 over its own keys
        masked_softmax(scores, mask) => torch.softmax(scores, dim=0)
    axis of size 1 left: the query had an axis for its position; take it off the output: output[:,
    0]
        output[:, 0] => output
    oldest word dropped: the cache grows by one; it loses nothing here
        [past_keys, key] => [past_keys[:, 1:], key]
        and [past_values, value] => [past_values[:, 1:], value]
    cache not grown: the new key and value go behind the cached ones, before the query asks
        [past_keys, key], dim=1) => [past_keys, key], dim=1)[:, :-1]
        and [past_values, value], dim=1) => [past_values, value], dim=1)[:, :-1]
    only the first key seen: with one query is_causal=True lets it see key 0 alone; the new word may
    see all keys
        attend(query, keys, values) => attend(query, keys[:, :1], values[:, :1])
    only the new key and value returned: the next step needs all of them
        (output[:, 0], keys, values) => (output[:, 0], key, value)
    """
    x = (word + positions[past_keys.size(1)])[:, None]  # (B, d_model) -> (B, 1, d_model)
    query, key, value = x @ w_q, x @ w_k, x @ w_v
    keys = torch.cat([past_keys, key], dim=1)  # (B, T, d_k) -> (B, T + 1, d_k)
    values = torch.cat([past_values, value], dim=1)  # (B, T, d_v) -> (B, T + 1, d_v)
    output, _ = attend(query, keys, values)  # (B, 1, d_v)
    return output[:, 0], keys, values


def tile_cases() -> list[Case]:
    """T_q = 5, d_v = 3. The sum of a tile is 1 or more: the largest key itself has exp(0)."""
    largest, total, mean = draw((2, 5), (2, 5), (2, 5, 3))
    unseen_by_tiles = {
        "": ([], []),
        "scores of 1000 in one tile": ([], []),
        "some queries see no key of one tile": ([0], [1, 3]),
        "a query that sees no key in both": ([1], [1, 3]),
    }
    cases = []
    for name, by_tile in unseen_by_tiles.items():
        parts = []
        for tile, unseen in enumerate(by_tile):
            seen = torch.ones(5, dtype=torch.bool)
            seen[unseen] = False
            high = 2 * largest[tile] + (1000 if "1000" in name and tile == 0 else 0)
            parts += [high.masked_fill(~seen, -math.inf), (1 + 4 * total[tile].abs()) * seen]
            parts += [mean[tile] * seen[:, None]]
        cases.append(Case(name, tuple(parts)))
    return cases


@exercise("largest, total, mean", tile_cases)
def merge_tiles(
    largest_a: Tensor,
    total_a: Tensor,
    mean_a: Tensor,
    largest_b: Tensor,
    total_b: Tensor,
    mean_b: Tensor,
) -> Three:
    """
    Each total counts in a unit of its own, e to the largest score of its tile. Bring both to one
    unit before you add them.

    largest          the larger of the two                                           (T_q,)
    part_a, part_b   each total times exp(own largest - new largest)                 (T_q,)
    total            part_a + part_b                                                 (T_q,)
    mean             (part_a · mean_a + part_b · mean_b) / total    (T_q, 1) with (T_q, d_v)
    no key at all    there -inf - -inf and 0 / 0 come up: before exp put 0 in place of the new
                     largest, and 1 in place of the total

    for i in range(T_q):
        largest[i] = max(largest_a[i], largest_b[i])
        if largest[i] > float("-inf"):                          # otherwise total and mean stay 0
            part_a = total_a[i] * exp(largest_a[i] - largest[i])
            part_b = total_b[i] * exp(largest_b[i] - largest[i])
            total[i] = part_a + part_b
            mean[i] = (part_a * mean_a[i] + part_b * mean_b[i]) / total[i]      # d_v numbers

    not rescaled: both totals were taken relative to their own maximum: multiply each by exp(own -
    new) first
        (largest_a - finite).exp() => 1
        and (largest_b - finite).exp() => 1
        (largest_b - finite).exp() => 1
        return (largest, total, => return (largest, total_a + total_b,
    not divided by the new total: a weighted sum is no mean yet: divide it by the new total
        weighted / total.masked_fill(total == 0, 1)[:, None] => weighted
    total not rescaled in the mean: the weights of the means are the rescaled totals, as in the new
    total
        part_a[:, None] * mean_a + part_b[:, None] => total_a[:, None] * mean_a + total_b[:, None]
    NaN where no key is seen: -inf - -inf and 0 / 0 are NaN: put a finite number in their place,
    twice
        largest.masked_fill(largest == -math.inf, 0) => largest
        total.masked_fill(total == 0, 1) => total
        largest.masked_fill(largest == -math.inf, 0) => largest
        and total.masked_fill(total == 0, 1) => total
    exponent the wrong way round: multiply by exp(own largest - new largest), which is at most 1
        (largest_a - finite).exp() => (finite - largest_a).exp()
        and (largest_b - finite).exp() => (finite - largest_b).exp()
    tiles exchanged: each total is rescaled by the largest score of its own tile
        part_a = total_a * (largest_a - finite).exp() => part_a = total_a * (largest_b -
        finite).exp()
        and part_b = total_b * (largest_b - finite).exp() => part_b = total_b * (largest_a -
        finite).exp()
    new largest not subtracted: a total is relative to a largest score; the new one to the new
    largest
        (largest_a - finite).exp() => largest_a.exp()
        and (largest_b - finite).exp() => largest_b.exp()
    exp left out: a total is multiplied by exp(own - new), not by own - new
        .exp() =>
    powers of 2: the scores here are powers of e, so use exp and not exp2
        (largest_a - finite).exp() => (largest_a - finite).exp2()
        and (largest_b - finite).exp() => (largest_b - finite).exp2()
    exp overflows: e^1000 is inf, and inf / inf NaN; take exp of own - new, which is at most 0
        (largest_a - finite).exp() => largest_a.exp() / finite.exp()
        and (largest_b - finite).exp() => largest_b.exp() / finite.exp()
    totals left out of the mean: a tile with a larger total has more weight in the mean
        part_a[:, None] * mean_a + part_b[:, None] => (part_a / total_a)[:, None] * mean_a + (part_b
        / total_b)[:, None]
    means taken alike: weigh each by its rescaled total, add up, and divide by the sum of the totals
        weighted / total.masked_fill(total == 0, 1)[:, None] => mean_a + mean_b
        weighted / total.masked_fill(total == 0, 1)[:, None] => (mean_a + mean_b) / 2
    largest 0 where no key is seen: return -inf there, as the tiles do; 0 is only a help before exp
        return (largest, => return (finite,
    another largest: for each query the larger of the two
        torch.maximum(largest_a, largest_b) => torch.minimum(largest_a, largest_b)
        torch.maximum(largest_a, largest_b) => largest_a + largest_b
        torch.maximum(largest_a, largest_b) => torch.maximum(largest_a.max(),
        largest_b.max()).expand_as(largest_a)
    the larger total: the totals are added, once both are rescaled
        return (largest, total, => return (largest, torch.maximum(total_a, total_b),
    """
    largest = torch.maximum(largest_a, largest_b)
    finite = largest.masked_fill(largest == -math.inf, 0)  # -inf - -inf would be NaN
    part_a = total_a * (largest_a - finite).exp()
    part_b = total_b * (largest_b - finite).exp()
    total = part_a + part_b
    # (T_q, 1) * (T_q, d_v) -> (T_q, d_v).
    weighted = part_a[:, None] * mean_a + part_b[:, None] * mean_b
    return largest, total, weighted / total.masked_fill(total == 0, 1)[:, None]


def linear_cases() -> list[Case]:
    """T = 5, d_k = 3, d_v = 7; then a single word."""
    query, key, value = (2 * drawn for drawn in draw((5, 3), (5, 3), (5, 7)))
    return [Case("", (query, key, value)), Case("one word", (query[:1], key[:1], value[:1]))]


@exercise("output, state, total", linear_cases)
def causal_linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Three:
    """
    You can take phi(q) out of the sum of (phi(q) · phi(k)) v. What is left depends on phi(k) and v
    alone, so it can be kept from word to word.

    phi_q, phi_k   phi of all queries and keys                          (T, d_k)
    state, total   zeros at first, of the dtype of value                (d_k, d_v), (d_k,)
    word by word   add outer(phi_k[t], value[t]) to state, phi_k[t] to total; only then read:
    output[t]      phi_q[t] @ state / (phi_q[t] @ total)                (d_v,)

    for t in range(T):
        for a in range(d_k):
            total[a] += phi(key[t, a])                          # at first 0
            state[a] += phi(key[t, a]) * value[t]               # at first 0; d_v numbers
        norm = sum(phi(query[t, a]) * total[a] for a in range(d_k))
        output[t] = sum(phi(query[t, a]) * state[a] for a in range(d_k)) / norm

    norm missing: divide by the sum of the weights, phi(query)·total: the weights must sum to 1
        / (q @ total) =>
    state read before it is updated: a word sees itself: update state and total first, then read
        q @ state / (q @ total) => q @ (state - torch.outer(k, v)) / (q @ (total - k))
        q @ state / (q @ total) => (q @ (state - torch.outer(k, v)) / (q @ (total -
        k))).nan_to_num(0)
    whole text read, not the past: read at once after each update: later words must not be in the
    state
        torch.stack(outputs) => phi_q @ state / (phi_q @ total)[:, None]
    phi left out: phi of both, query and key: without it weights can be negative and the norm 0
        F.elu(query) + 1 => query
        and F.elu(key) + 1 => key
        F.elu(query) + 1 => query
        F.elu(key) + 1 => key
    elu without + 1: elu goes down to -1: add 1, and every weight is positive
        F.elu(query) + 1 => F.elu(query)
        and F.elu(key) + 1 => F.elu(key)
    another function for phi: it is elu(x) + 1 here: x + 1 above 0, exp(x) below
        F.elu(query) + 1 => F.relu(query)
        and F.elu(key) + 1 => F.relu(key)
        F.elu(query) + 1 => F.relu(query) + 1
        and F.elu(key) + 1 => F.relu(key) + 1
        F.elu(query) + 1 => query.exp()
        and F.elu(key) + 1 => key.exp()
    divided by the number of words: divide by the sum of the weights, phi(query) · total
        / (q @ total) => / (len(outputs) + 1)
    query left out of the norm: the sum of the weights is phi(query) · total, not the sum of total
        / (q @ total) => / total.sum()
    divided by √d_k: nothing is divided by that here, see the task
        q @ state / => q @ state / math.sqrt(len(q)) /
    softmax over the weights: phi has made them positive; divide each by the sum of its row
        torch.stack(outputs) => (phi_q @ phi_k.T).masked_fill(~up_to_itself(len(key), len(key)),
        -math.inf).softmax(dim=-1) @ value
    softmax attention: the weight is phi(query) · phi(key), with no softmax
        torch.stack(outputs) => attend(query, key, value, up_to_itself(len(key), len(key)))[0]
    later words instead of earlier ones: word t may use the words up to t
        torch.stack(outputs) => (w := (phi_q @ phi_k.T).triu()) / w.sum(dim=-1, keepdim=True) @
        value
    divided down the columns: the weights of a query are a row, and they sum to 1
        torch.stack(outputs) => (w := (phi_q @ phi_k.T).tril()) / w.sum(dim=0) @ value
    state transposed: it is (d_k, d_v): keys down, values across
        outputs), state, total => outputs), state.T, total
    state overwritten: add to what was there, since a query needs the sum over all words so far
        state = state + torch.outer(k, v) => state = torch.outer(k, v)
        state = state + torch.outer(k, v) => state = torch.outer(k, v)
        and total = total + k => total = k
    state divided: return the two sums as they are; only the output is divided
        outputs), state, total => outputs), state / total[:, None], total
    total counts the words: it is the sum of phi(key)
        total = total + k => total = total + 1
    """
    phi_q, phi_k = F.elu(query) + 1, F.elu(key) + 1
    state = value.new_zeros(key.size(1), value.size(1))
    total = value.new_zeros(key.size(1))
    outputs = []
    for q, k, v in zip(phi_q, phi_k, value, strict=True):
        state = state + torch.outer(k, v)  # (d_k,), (d_v,) -> (d_k, d_v)
        total = total + k
        outputs.append(q @ state / (q @ total))  # (d_k,) @ (d_k, d_v) -> (d_v,)
    return torch.stack(outputs), state, total


def memory_cases() -> list[Case]:
    """H = 2, d_k = 3, d_v = 5."""
    state, *word, fading, writing = draw((2, 3, 5), (2, 3), (2, 3), (2, 5), (2,), (2,))
    alpha, beta = fading.sigmoid(), writing.sigmoid()
    return [
        Case("", (state, *word, alpha, beta)),
        Case("an empty memory", (0 * state, *word, alpha, beta)),
    ]


@exercise("output, new_state", memory_cases)
def gated_memory_step(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """
    Do not write the value, but what the memory lacks of it. So ask the memory first, once it has
    faded.

    query, key   each divided by its length                             (H, d_k)
    faded        alpha, with two axes of size 1 behind, times state     (H, d_k, d_v)
    found        key[:, None] @ faded, without the axis of size 1       (H, d_v)
    difference   beta times (value - found)                             (H, d_v)
    new_state    faded + the outer product of key and difference        (H, d_k, d_v)
    output       query[:, None] @ new_state, without the axis of size 1     (H, d_v)

    for h in range(H):
        k = key[h] / sqrt(key[h] @ key[h])
        q = query[h] / sqrt(query[h] @ query[h])
        faded = alpha[h] * state[h]
        found = sum(k[a] * faded[a] for a in range(d_k))                        # d_v numbers
        for a in range(d_k):
            new_state[h, a] = faded[a] + k[a] * beta[h] * (value[h] - found)
        output[h] = sum(q[a] * new_state[h, a] for a in range(d_k))

    found before it faded: what is left in the faded memory must be taken off, no more than that
        key[:, None] @ faded => key[:, None] @ state
    nothing taken off: that is linear attention with decay: take off what the key finds already
        value - found => value
    nothing fades: the old memory is multiplied by alpha, before all else
        alpha[:, None, None] * state => state
    the new word fades, too: only what was there before is multiplied by alpha
        faded + key[:, :, None] => faded + alpha[:, None, None] * key[:, :, None]
    beta on the value alone: beta is for the whole difference: what is taken off must be as much as
    what is put in
        beta[:, None] * (value - found) => beta[:, None] * value - found
    beta left out: only a part of the difference is written: beta times it
        beta[:, None] * (value - found) => value - found
    read before it is written: the word finds itself, too: write first, then read
        query[:, None] @ new_state => query[:, None] @ faded
        query[:, None] @ new_state => query[:, None] @ state
    lengths left in: a key of length 2 would write twice as much: bring query and key to length 1
    first
        F.normalize(query, dim=-1) => query
        and F.normalize(key, dim=-1) => key
        F.normalize(query, dim=-1) => query
        F.normalize(key, dim=-1) => key
    found by the query: the key asks what the memory has for it; the query reads at the end
        key[:, None] @ faded => query[:, None] @ faded
    read by the key: at the end the query reads the new memory
        query[:, None] @ new_state => key[:, None] @ new_state
    added, not taken off: subtract what the memory has from the value
        value - found => value + found
    sign: what is written is value - found, not found - value
        value - found => found - value
    1 - alpha in place of alpha: alpha is how much stays
        alpha[:, None, None] * state => (1 - alpha[:, None, None]) * state
    beta on what was found alone: it is for the whole difference
        beta[:, None] * (value - found) => value - beta[:, None] * found
    the new memory fades: only what was there before does, and before the new word is written
        faded = alpha[:, None, None] * state => faded = state
        and new_state = faded + key[:, :, None] * difference[:, None] => new_state = alpha[:, None,
        None] * (faded + key[:, :, None] * difference[:, None])
    alpha and beta exchanged: alpha is how much stays, beta how much is written
        alpha[:, None, None] * state => beta[:, None, None] * state
        and beta[:, None] * (value - found) => alpha[:, None] * (value - found)
    1 - beta in place of beta: beta is how much is written
        beta[:, None] * (value - found) => (1 - beta[:, None]) * (value - found)
    memory replaced: the outer product is added to the faded memory
        faded + key => key
    divided by √d_k: nothing is divided by that here, see the task
        (query[:, None] @ new_state)[:, 0] => (query[:, None] @ new_state)[:, 0] /
        math.sqrt(query.size(1))
    length over the wrong axis: each head has a query and a key of its own; divide each by its own
    length
        F.normalize(query, dim=-1) => F.normalize(query, dim=0)
        and F.normalize(key, dim=-1) => F.normalize(key, dim=0)
        F.normalize(query, dim=-1) => query / query.norm()
        and F.normalize(key, dim=-1) => key / key.norm()
    another length: it is the root of the sum of the squares
        F.normalize(query, dim=-1) => query / query.square().sum(-1, True)
        and F.normalize(key, dim=-1) => key / key.square().sum(-1, True)
        F.normalize(query, dim=-1) => query.softmax(-1)
        and F.normalize(key, dim=-1) => key.softmax(-1)
        F.normalize(query, dim=-1) => query / query.sum(-1, True)
        and F.normalize(key, dim=-1) => key / key.sum(-1, True)
        F.normalize(query, dim=-1) => F.normalize(query, p=1, dim=-1)
        and F.normalize(key, dim=-1) => F.normalize(key, p=1, dim=-1)
    """
    query = F.normalize(query, dim=-1)
    key = F.normalize(key, dim=-1)
    faded = alpha[:, None, None] * state
    found = (key[:, None] @ faded)[:, 0]  # (H, 1, d_k) @ (H, d_k, d_v) -> (H, d_v)
    difference = beta[:, None] * (value - found)
    # (H, d_k, 1) * (H, 1, d_v) -> (H, d_k, d_v).
    new_state = faded + key[:, :, None] * difference[:, None]
    return (query[:, None] @ new_state)[:, 0], new_state


def induction_cases() -> list[Case]:
    """N = 2, H = 3, T = 13: a block of 4 words and one of 3, repeated, and a word that is new; then
    no word but two."""
    (scores,) = draw((2, 3, 13, 13))
    hidden = ~up_to_itself(13, 13)
    weights = (3 * scores).masked_fill(hidden, -math.inf).softmax(dim=-1)
    blocks = torch.stack([torch.arange(13) % 4, torch.arange(13) % 3])
    blocks[:, -1] = 9
    return [
        Case("two blocks, repeated", (weights, blocks)),
        Case("words 0 and 1", (weights, blocks % 2)),
    ]


@exercise("score", induction_cases)
def induction_score(weights: Tensor, tokens: Tensor) -> Tensor:
    """
    Where the same word stood before, the key to look at is one place further on: first make a table
    of these places.

    same      is the word at i the word at j?                   (N, T, 1) and (N, 1, T) -> (N, T, T)
    earlier   same, and j before i                              tril(-1)
    gold      earlier, moved one place to the right             gold[n, i, j + 1] = earlier[n, i, j]
    weight    the weights on gold places, summed over a row     (N, H, T)
    score     their mean over the rows that have a gold place   (H,)

    for h in range(H):
        rows = []
        for n in range(N):
            for i in range(T):
                places = [j + 1 for j in range(i) if tokens[n, j] == tokens[n, i]]
                if places:
                    rows.append(sum(weights[n, h, i, j] for j in places))
        score[h] = sum(rows) / len(rows)

    the earlier word itself: a head that looks there finds the same word; the answer stands one
    place further on
        F.pad(earlier, (1, 0))[..., :-1] => earlier
    the word before: that is what a previous-token head needs; the answer stands after the earlier
    occurrence
        F.pad(earlier, (1, 0))[..., :-1] => F.pad(earlier, (0, 1))[..., 1:]
        F.pad(earlier, (1, 0))[..., :-1] => earlier.roll(-1, -1)
    two words on: the answer is the word that came directly after the earlier occurrence
        F.pad(earlier, (1, 0))[..., :-1] => F.pad(earlier, (2, 0))[..., :-2]
    own or later positions counted as earlier: an earlier occurrence lies below the diagonal, so use
    tril(-1)
        tril(diagonal=-1) => tril()
        same.tril(diagonal=-1) => same & ~torch.eye(tokens.size(1), dtype=torch.bool)
    rows without an earlier occurrence counted: they were not asked: leave them out of the mean
        gold.any(dim=-1) => torch.ones_like(tokens)
    mean of the places, not their sum: a perfect head scores 1 however often the block is repeated:
    sum each row
        .sum(dim=-1) => .sum(dim=-1) / gold.sum(-1).clamp(min=1)[:, None]
    only one earlier occurrence: add up the weights after all earlier occurrences, not only after
    the last, or the first
        same.tril(diagonal=-1) => same.tril(diagonal=-1) &
        (same.tril(diagonal=-1).flip(-1).cumsum(-1).flip(-1) == 1)
        same.tril(diagonal=-1) => same.tril(diagonal=-1) & (same.tril(diagonal=-1).cumsum(-1) == 1)
    mean of the texts' means: all words of all texts together: add up, then divide once
        on_gold.sum(dim=(0, 2)) / asked.sum() => (on_gold.sum(dim=2) / asked.sum(dim=1,
        keepdim=True)).mean(dim=0)
    the largest weight, not the sum: add up the weights on all the places
        (weights * gold[:, None]).sum(dim=-1) => (weights * gold[:, None]).amax(dim=-1)
    hits counted, not weights: the score is weight on the places, whether it is the largest or not
        (weights * gold[:, None]).sum(dim=-1) => gold[:, None].expand_as(weights).gather(-1,
        weights.argmax(dim=-1, keepdim=True))[..., 0].double()
    the sum over the words, not their mean: divide by how many words were asked
        / asked.sum() =>
    divided by the places: a word with two places is asked once: divide by how many words have one
        asked.sum() => gold.sum()
    a place that wraps round: roll takes the last mark of a row to the first key
        F.pad(earlier, (1, 0))[..., :-1] => same.roll(1, -1).tril()
    the query moved, not the key: the word that asks stays; it looks one place behind the earlier
    one
        F.pad(earlier, (1, 0))[..., :-1] => F.pad(earlier, (0, 0, 1, 0))[:, :-1]
    rows and columns exchanged: the word that asks is the row, the place that it looks at the column
        F.pad(earlier, (1, 0))[..., :-1] => F.pad(earlier, (1, 0))[..., :-1].mT
    """
    same = tokens[:, :, None] == tokens[:, None, :]  # (N, T, 1) and (N, 1, T) -> (N, T, T)
    earlier = same.tril(diagonal=-1)
    gold = F.pad(earlier, (1, 0))[..., :-1]  # every mark one key to the right
    # (N, H, T, T) -> (N, H, T), 0 where nothing is asked.
    on_gold = (weights * gold[:, None]).sum(dim=-1)
    asked = gold.any(dim=-1)  # (N, T, T) -> (N, T)
    return on_gold.sum(dim=(0, 2)) / asked.sum()  # (N, H, T) -> (H,)


def latent_cases() -> list[Case]:
    """H = 3, d_k = 5, d_r = 2, d_c = 11, d_v = 7, T = 8.

    In the second case a key or a value, once made, is infinite. Even weights of latents that
    cancel give 0, and so does a query of 0.
    """
    drawn = draw((3, 5), (3, 2), (8, 11), (8, 2), (3, 11, 5), (3, 11, 7))
    huge = 2.0**600
    sizes = (0, 0, huge, 0, huge, huge)
    long = [torch.full_like(tensor, size) for tensor, size in zip(drawn, sizes, strict=True)]
    long[2][::2] *= -1  # of two latents each, one is the negative of the other
    return [
        Case("", tuple(2 * tensor for tensor in drawn)),
        Case("long latents, for which keys and values would be infinite", tuple(long)),
    ]


@exercise("absorbed, weights, output", latent_cases)
def absorbed_attention(
    query: Tensor, turned: Tensor, latents: Tensor, places: Tensor, w_uk: Tensor, w_uv: Tensor
) -> Three:
    """
    A score is a product of three: query, matrix, latent. You may begin at either end, so multiply
    query and matrix once, and then the result with each latent.

    absorbed   w_uk times the query        (H, d_c, d_k) @ (H, d_k, 1) -> (H, d_c)
    scores     absorbed with latents, plus turned with places: each time the second one transposed
    weights    softmax of scores / √(d_k + d_r), over the words                  (H, T)
    found      weights times latents       (H, T) @ (T, d_c) -> (H, d_c)
    output     found times w_uv            (H, 1, d_c) @ (H, d_c, d_v) -> (H, d_v)

    for h in range(H):
        absorbed[h] = w_uk[h] @ query[h]                                # once, for all words
        for t in range(T):
            scores[t] = (absorbed[h] @ latents[t] + turned[h] @ places[t]) / sqrt(d_k + d_r)
        for t in range(T):
            weights[h, t] = exp(scores[t]) / sum(exp(scores[s]) for s in range(T))
        output[h] = sum(weights[h, t] * latents[t] for t in range(T)) @ w_uv[h]

    divided by the size of the absorbed query: it is longer than the query, but its scores are the
    same: √(d_k + d_r)
        query.size(1) + turned.size(1) => latents.size(1) + turned.size(1)
        query.size(1) + turned.size(1) => latents.size(1)
    place not counted in the division: a whole query has d_k + d_r numbers
        query.size(1) + turned.size(1) => query.size(1)
    not divided by √(d_k + d_r): the dot products are too large by that factor
        scores / math.sqrt(size) => scores
    places left out: without turned · place a head does not know where a word stands
        + turned @ places.T =>
    softmax over the wrong axis: each head shares out 1 over the words
        dim=-1 => dim=0
    one matrix for all heads: head h has a matrix of its own, w_uk[h] and w_uv[h]
        w_uk @ query => w_uk[:1] @ query
        @ w_uv => @ w_uv[:1]
        w_uk @ query => w_uk[:1] @ query
        and @ w_uv => @ w_uv[:1]
    keys or values made: in each head that takes T · d_c · d_k multiplications; compare absorbed
    with the latents, and multiply by w_uv once, behind the sum
        absorbed @ latents.T => (query[:, None] @ (latents @ w_uk).mT)[:, 0]
        (found[:, None] @ w_uv)[:, 0] => (weights[:, None] @ (latents @ w_uv))[:, 0]
        absorbed @ latents.T => (query[:, None] @ (latents @ w_uk).mT)[:, 0]
        and (found[:, None] @ w_uv)[:, 0] => (weights[:, None] @ (latents @ w_uv))[:, 0]
    divided by d_k + d_r: divide each score by the root of that
        math.sqrt(size) => size
    root of each, not of the sum: a whole query has d_k + d_r numbers: √(d_k + d_r)
        math.sqrt(size) => (math.sqrt(query.size(1)) + math.sqrt(turned.size(1)))
        absorbed @ latents.T + turned @ places.T => absorbed @ latents.T / math.sqrt(query.size(1))
        + turned @ places.T / math.sqrt(turned.size(1))
        and scores / math.sqrt(size) => scores
    only one part divided: divide the sum of both parts once
        turned @ places.T => turned @ places.T * math.sqrt(query.size(1) + turned.size(1))
        absorbed @ latents.T => absorbed @ latents.T * math.sqrt(query.size(1) + turned.size(1))
    softmax missing: these are scores; a weight is e to its score, divided by the sum of these over
    the words
        (absorbed, weights, output) => (absorbed, scores / math.sqrt(size), output)
    one part of the query for all heads: head h has turned[h] of its own
        turned @ places.T => turned[:1] @ places.T
    values without w_uv: a head makes its values as latents @ w_uv[h], so its output, too, goes
    through w_uv[h]
        (absorbed, weights, output) => (absorbed, weights, found)
    averaged, not added: the weights sum to 1 already, so add up the weighed latents
        weights @ latents => weights @ latents / len(latents)
    """
    absorbed = (w_uk @ query[:, :, None])[..., 0]  # (H, d_c, d_k) @ (H, d_k, 1) -> (H, d_c)
    scores = absorbed @ latents.T + turned @ places.T  # -> (H, T)
    size = query.size(1) + turned.size(1)
    weights = torch.softmax(scores / math.sqrt(size), dim=-1)
    found = weights @ latents  # (H, T) @ (T, d_c) -> (H, d_c)
    output = (found[:, None] @ w_uv)[:, 0]  # (H, 1, d_c) @ (H, d_c, d_v) -> (H, d_v)
    return absorbed, weights, output


def draft_cases() -> list[Case]:
    """n = 6, V = 7: drafts of which 0, 1, 2 ... and all 6 words stay."""
    cases = []
    for kept, seed in enumerate((79, 56, 80, 12, 100, 172, 6)):
        drafted, judged, scores, luck = draw((6, 7), (7, 7), (6, 7), (6,), seed=seed)
        q, p = (2 * drafted).softmax(-1), (2 * judged).softmax(-1)
        cases.append(Case(f"{kept} of 6 stay", (scores.argmax(-1), q, p, (4 * luck).sigmoid())))
    return cases


@exercise("kept, probabilities", draft_cases)
def judge_draft(words: Tensor, q: Tensor, p: Tensor, luck: Tensor) -> tuple[Tensor, Tensor]:
    """
    Each word should come with its probability p, and the draft already brings min(p, q) of it. What
    is missing must come from the words that are drawn anew.

    ratios          p / q of each drafted word: p[i, words[i]] / q[i, words[i]]         (n,)
    kept            how many come before the first whose luck is not below its ratio
    missing         p - q at that place, 0 where it is negative                         (V,)
    probabilities   missing divided by its sum; if all stay, the last row of p          (V,)

    kept = 0
    while kept < n and luck[kept] < p[kept, words[kept]] / q[kept, words[kept]]:
        kept += 1
    for v in range(V):
        probabilities[v] = max(p[kept, v] - q[kept, v], 0) if kept < n else p[n, v]
    probabilities /= sum(probabilities)

    ratio the wrong way round: what the draft says too often, q above p, must be kept less often: p
    / q
        p[places, words] / q[places, words] => q[places, words] / p[places, words]
    words behind a refused one kept: they were drafted to follow a word that is not there any more
        stays.cumprod(dim=0).sum() => stays.sum()
    drawn from another row of p: what is missing is the positive part of p - q, in row kept
        (p[kept] - q[kept]).clamp(min=0) => p[kept + 1]
        (p[kept] - q[kept]).clamp(min=0) => p[-1]
    drawn again from p: the words that stay already bring min(p, q) of p: draw only what is missing
        (p[kept] - q[kept]).clamp(min=0) => p[kept]
    not renormalised: what is missing sums to the chance of a refusal: divide by it
        missing / missing.sum() => missing
        missing / missing.sum() => missing.softmax(dim=-1)
        missing / missing.sum() => missing / missing.max()
    luck ignored: p >= q keeps the same words each time; word i stays with the chance p / q, if
    luck[i] is below it
        luck < p[places, words] / q[places, words] => p[places, words] >= q[places, words]
    no word stays: word i stays if luck[i] is below p / q
        luck < p[places, words] / q[places, words] => luck < 0
    luck the wrong way round: the word stays if luck[i] is below the ratio
        luck < p => luck > p
    p alone: a word that was drafted with the chance q stays with p / q
        p[places, words] / q[places, words] => p[places, words]
        luck < p[places, words] / q[places, words] => luck > p[places, words]
    another word judged: word i is words[i], so its probabilities are p[i, words[i]] and q[i,
    words[i]]
        p[places, words] / q[places, words] => p[places, words[0]] / q[places, words[0]]
    q alone: a word that was drafted with the chance q stays with p / q
        p[places, words] / q[places, words] => q[places, words]
    luck of another word: word i stays if luck[i], its own number, is below p / q
        luck < p => luck.mean() < p
        luck < p => luck.flip(0) < p
        luck < p => luck.roll(-1) < p
        luck < p => luck[0] < p
    ratios multiplied: each word is judged by its own p / q
        p[places, words] / q[places, words] => (p[places, words] / q[places, words]).cumprod(0)
        p[places, words] / q[places, words] => (p[places, words] / q[places,
        words]).clamp(max=1).cumprod(0)
    p of the next place: row i of p judges word i; row n is for the word behind all
        p[places, words] / q[places, words] => p[places + 1, words] / q[places, words]
    1 - p / q: the word stays if luck[i] is below p / q
        luck < p[places, words] / q[places, words] => luck < 1 - p[places, words] / q[places, words]
        luck < p[places, words] / q[places, words] => luck > 1 - p[places, words] / q[places, words]
    a difference for the ratio: word i stays if luck[i] is below p / q
        p[places, words] / q[places, words] => p[places, words] - q[places, words]
    another formula than p / q: word i stays if luck[i] is below p / q
        p[places, words] / q[places, words] => p[places, words] * q[places, words]
        p[places, words] / q[places, words] => p[places, words] / (p[places, words] + q[places,
        words])
        p[places, words] / q[places, words] => (p[places, words] / q[places, words]).log()
        p[places, words] / q[places, words] => (1 - q[places, words] + p[places, words])
        p[places, words] / q[places, words] => p[places].amax(-1) / q[places].amax(-1)
    no word refused: word i stays only if luck[i] is below p / q
        luck < p[places, words] / q[places, words] => luck < 1
    the largest word compared: a drafted word stays by chance, p / q, and not because it is the
    largest of p
        luck < p[places, words] / q[places, words] => p[places].argmax(dim=-1) == words
    drawn again from q: what is missing is the positive part of p - q
        (p[kept] - q[kept]).clamp(min=0) => q[kept]
    p - q with its negative part: set what is below 0 to 0, then divide by the sum
        (p[kept] - q[kept]).clamp(min=0) => (p[kept] - q[kept])
    softmax of p - q: the positive part, divided by its sum, is a probability already
        missing / missing.sum() => (p[kept] - q[kept]).softmax(-1)
    largest or smallest of p and q: what is missing is the positive part of p - q
        (p[kept] - q[kept]).clamp(min=0) => torch.maximum(p[kept], q[kept])
        (p[kept] - q[kept]).clamp(min=0) => torch.minimum(p[kept], q[kept])
    |p - q|: only where p is above q is something missing: the positive part of p - q
        (p[kept] - q[kept]).clamp(min=0) => (p[kept] - q[kept]).abs()
    q - p: the large model's word is missing where p is above q
        (p[kept] - q[kept]).clamp(min=0) => (q[kept] - p[kept]).clamp(min=0)
    only the refused word taken out: other words may be above p in the draft as well: the positive
    part of p - q
        (p[kept] - q[kept]).clamp(min=0) => p[kept].index_fill(0, words[kept], 0)
    refused word counted: kept is how many stay, without it
        return (kept, missing / => return (kept + 1, missing /
        return (kept, missing / => return (kept + 1, missing /
        and return (kept, p[-1]) => return (kept + 1, p[-1])
    another place than that of the refused word: it is drawn anew there, from p[kept] - q[kept]
        p[kept] - q[kept] => p[kept + 1] - q[kept]
        p[kept] - q[kept] => p[kept + 1] - q[(kept + 1).clamp(max=len(q) - 1)]
        p[kept] - q[kept] => p[0] - q[0]
        p[kept] - q[kept] => p[kept - 1] - q[kept - 1]
        p[kept] - q[kept] => p[-2] - q[-1]
    the last refused word, not the first: the first one ends the draft, so break there
        stays.cumprod(dim=0).sum() => (~stays).nonzero()[-1, 0] if not stays.all() else
        torch.tensor(len(words))
    another row than the last of p: if all words stay, the next one is drawn by p[n], the row behind
    them
        return (kept, p[-1]) => return (kept, p[-2])
        return (kept, p[-1]) => return (kept, p[0])
        return (kept, p[-1]) => return (kept, q[-1])
        return (kept, p[-1]) => return (kept, (p[-2] - q[-1]).clamp(min=0) / (p[-2] -
        q[-1]).clamp(min=0).sum())
    all stay, unnoticed: argmin and argmax give 0 where no word is refused; ask for that first
        stays.cumprod(dim=0).sum() => stays.long().argmin()
    """
    places = torch.arange(len(words))
    stays = luck < p[places, words] / q[places, words]  # (n, V) -> (n,)
    kept = stays.cumprod(dim=0).sum()  # up to the first False
    if kept == len(words):
        return kept, p[-1]
    missing = (p[kept] - q[kept]).clamp(min=0)
    return kept, missing / missing.sum()


EXERCISES = (
    prefix_mask,
    combined_mask,
    next_word_loss,
    next_word_probabilities,
    cached_step,
    merge_tiles,
    causal_linear_attention,
    gated_memory_step,
    induction_score,
    absorbed_attention,
    judge_draft,
)
AFTERWARDS = """\
You can now mask, sample, cache, merge tiles, run attention as a recurrence and read a compressed
cache. These were the last exercises. Next is an attention of your own: ToyTransformer in
shared/toy_model.py takes it as an argument."""
