"""SPOILERS: the usual mistakes with sums that are carried along, each one a function that makes it, with name and hint.

A list for each of exercises 5 and 6: the sums of the online softmax and the state of linear attention. Most entries are
the right way with one part exchanged, and a name may occur several times.
"""

import math

import torch
import torch.nn.functional as F

# -------------------------------------------------------------------------------------- exercise 5: the online softmax


def shrink(own, largest):
    """exp(own - largest), and 0 where both are -inf."""
    return (own - largest.masked_fill(largest == -math.inf, 0)).exp()


def unchanged(own, largest):
    return torch.ones_like(own)


def divided(weighted, total):
    return weighted / total.masked_fill(total == 0, 1)[:, None]


def in_merge(
    choose=torch.maximum,
    rescale_a=shrink,
    rescale_b=shrink,
    join=torch.add,
    weigh=lambda part, total, factor: part,
    divide=divided,
):
    """Merging two tiles with one part exchanged. part = total * factor, the total of a tile after rescaling."""

    def wrong(largest_a, total_a, mean_a, largest_b, total_b, mean_b):
        largest = choose(largest_a, largest_b)
        factor_a, factor_b = rescale_a(largest_a, largest), rescale_b(largest_b, largest)
        part_a, part_b = total_a * factor_a, total_b * factor_b
        weight_a, weight_b = weigh(part_a, total_a, factor_a), weigh(part_b, total_b, factor_b)
        total = join(part_a, part_b)
        return largest, total, divide(weight_a[:, None] * mean_a + weight_b[:, None] * mean_b, total)

    return wrong


def other_mean(mean):
    """Largest and total are right, the mean is another one."""

    def wrong(*tiles):
        largest, total, _ = in_merge()(*tiles)
        return largest, total, mean(*tiles)

    return wrong


def inverse(own, largest):
    return (largest - own).exp()


def half(largest_a, total_a, mean_a, largest_b, total_b, mean_b):
    return (mean_a + mean_b) / 2


def by_totals(largest_a, total_a, mean_a, largest_b, total_b, mean_b):
    return divided(total_a[:, None] * mean_a + total_b[:, None] * mean_b, total_a + total_b)


def with_exp_of_scores(*tiles):
    """Weights total * exp(largest), with nothing taken off: infinite over infinite for large scores."""
    largest_a, total_a, mean_a, largest_b, total_b, mean_b = tiles
    part_a, part_b = total_a * largest_a.exp(), total_b * largest_b.exp()
    largest = torch.maximum(largest_a, largest_b)
    weighted = part_a[:, None] * mean_a + part_b[:, None] * mean_b
    return largest, (part_a + part_b) / largest.exp(), weighted / (part_a + part_b)[:, None]


def plain_exp(own, largest):
    return (own - largest).exp()


def plain_division(weighted, total):
    return weighted / total[:, None]


MERGE = (
    ("not rescaled", in_merge(rescale_a=unchanged)),
    ("not rescaled", in_merge(rescale_b=unchanged)),
    ("not rescaled", in_merge(rescale_a=unchanged, rescale_b=unchanged)),
    ("rescaled the wrong way", in_merge(rescale_a=inverse, rescale_b=inverse)),
    ("rescaled by the other tile", lambda *t: in_merge()(t[3], t[1], t[2], t[0], t[4], t[5])),
    ("divided twice", in_merge(divide=lambda weighted, total: divided(divided(weighted, total), total))),
    ("not divided by the new total", in_merge(divide=lambda weighted, total: weighted)),
    ("a mean taken for a sum", in_merge(weigh=lambda part, total, factor: factor)),
    ("total not rescaled in the mean", in_merge(weigh=lambda part, total, factor: total)),
    ("total not rescaled in the mean", other_mean(by_totals)),
    ("mean of the two means", other_mean(half)),
    ("larger of the totals", in_merge(join=torch.maximum)),
    ("smaller of the maxima", in_merge(choose=torch.minimum)),
    ("exp of scores, nothing taken off", with_exp_of_scores),
    ("NaN where no key is seen", in_merge(rescale_a=plain_exp, rescale_b=plain_exp, divide=plain_division)),
    ("NaN where no key is seen", in_merge(rescale_a=plain_exp, rescale_b=plain_exp)),
    ("NaN where no key is seen", in_merge(divide=plain_division)),
)

# --------------------------------------------------------------------------------------- exercise 6: linear attention


def elu_plus_1(x):
    return F.elu(x) + 1


def recur(query, key, value):
    """Features go in -> weighted sums (T, d_v), sums of the weights (T,), state and total after each word."""
    states = (key[:, :, None] * value[:, None, :]).cumsum(dim=0)  # (T, d_k, 1) * (T, 1, d_v) -> (T, d_k, d_v)
    totals = key.cumsum(dim=0)
    return states, totals


def read(query, states, totals, norm=lambda query, totals: (query * totals).sum(dim=-1)):
    return (query[:, :, None] * states).sum(dim=1) / norm(query, totals)[:, None]  # (T, d_k, d_v) -> (T, d_v)


def in_linear(of_query=elu_plus_1, of_key=elu_plus_1, read=read, carry=recur):
    """Causal linear attention with one part exchanged."""

    def wrong(query, key, value):
        query, key = of_query(query), of_key(key)
        states, totals = carry(query, key, value)
        return read(query, states, totals), states[-1], totals[-1]

    return wrong


def plain(x):
    return x


def before(sums):
    """What there was before each word."""
    return torch.cat([torch.zeros_like(sums[:1]), sums[:-1]])


def read_all(query, states, totals):
    return read(query, states[-1:].expand_as(states), totals[-1:].expand_as(totals))


def word_only(query, key, value):
    return key[:, :, None] * value[:, None, :], key


def with_softmax(query, key, value):
    """The right state, and the output of causal softmax attention."""
    output = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return output, *in_linear()(query, key, value)[1:]


def over_root(x):
    return elu_plus_1(x / math.sqrt(x.size(-1)))


def transposed_state(query, key, value):
    output, state, total = in_linear()(query, key, value)
    return output, state.T, total


def sums_before(query, states, totals):
    """Strictly the past; where there is none, 0 instead of 0 / 0."""
    return read(query, before(states), before(totals)).nan_to_num(0)


def count(query):
    return torch.arange(1, len(query) + 1)


LINEAR = (
    ("norm missing", in_linear(read=lambda q, s, t: read(q, s, t, lambda q, t: torch.ones(len(q))))),
    ("divided by the number of words", in_linear(read=lambda q, s, t: read(q, s, t, lambda q, t: count(q)))),
    ("query missing in the norm", in_linear(read=lambda q, s, t: read(q, s, t, lambda q, t: t.sum(dim=-1)))),
    ("norm before the word itself", in_linear(read=lambda q, s, t: read(q, s, before(t)))),
    ("state read before it is updated", in_linear(read=lambda q, s, t: read(q, before(s), before(t)))),
    ("state read before it is updated", in_linear(read=sums_before)),
    ("whole text read, not the past", in_linear(read=read_all)),
    ("state replaced, not added to", in_linear(carry=word_only)),
    ("phi left out", in_linear(plain, plain)),
    ("phi left out", in_linear(of_query=plain)),
    ("phi left out", in_linear(of_key=plain)),
    ("elu without + 1", in_linear(F.elu, F.elu)),
    ("another phi", in_linear(F.relu, F.relu)),
    ("another phi", in_linear(torch.exp, torch.exp)),
    ("divided by √d_k", in_linear(over_root, over_root)),
    ("divided by √d_k", in_linear(of_query=over_root)),
    ("softmax attention", with_softmax),
    ("state transposed", transposed_state),
)

HINTS = {
    "not rescaled": "both totals were taken relative to their own maximum: multiply each by exp(own - new) first",
    "rescaled the wrong way": "exp(own maximum - new maximum): at most 1, so that sums shrink and cannot overflow",
    "rescaled by the other tile": "each total goes with the maximum of its own tile",
    "divided twice": "part_a · mean_a is a sum already: divide once, by the new total",
    "not divided by the new total": "a weighted sum is no mean yet: divide it by the new total",
    "a mean taken for a sum": "a mean was divided by its total: multiply by it again before adding",
    "total not rescaled in the mean": "the weights of the means are the rescaled totals, as in the new total",
    "mean of the two means": "the tile with more weight counts more: weigh the means by the rescaled totals",
    "larger of the totals": "totals add up; only the maximum is the larger of two",
    "smaller of the maxima": "take the larger one, or exp may overflow",
    "exp of scores, nothing taken off": "exp(1000) is infinite: always take the new maximum off before exp",
    "NaN where no key is seen": "-inf - -inf and 0 / 0 are NaN: put a finite number in their place before exp and "
    "before the division",
    "norm missing": "divide by the sum of the weights, phi(query)·total: the weights must sum to 1",
    "divided by the number of words": "divide by the sum of the weights, phi(query)·total: weights differ",
    "query missing in the norm": "the weight of a key depends on the query: phi(query)·total, not the sum of total",
    "norm before the word itself": "state and total must hold the same words: update both, then read",
    "state read before it is updated": "a word sees itself: update state and total first, then read, or the first word "
    "sees nothing",
    "whole text read, not the past": "read at once after each update: later words must not be in the state",
    "state replaced, not added to": "the state is a sum over all words so far: +=",
    "phi left out": "phi of both, query and key: without it weights can be negative and the norm 0",
    "elu without + 1": "elu goes down to -1: add 1, and every weight is positive",
    "another phi": "phi(x) = elu(x) + 1 is asked; another one is another function",
    "divided by √d_k": "nothing is divided by √d_k here: after phi it cancels in the norm, before phi it does not",
    "softmax attention": "weights are products of phi, not exp of scores: that is what lets the sums be kept",
    "state transposed": "rows are features of keys, columns are values: (d_k, d_v)",
}
