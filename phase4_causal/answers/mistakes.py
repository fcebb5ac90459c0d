"""SPOILERS: the usual mistakes with masks and with the next word, each one a function that makes it.

A list for each of exercises 1 to 3; those of 4 are in exercise_cache_mistakes.py, those of 5 and 6 in
exercise_sum_mistakes.py. Most entries are the right way with one part exchanged, and a name may occur several times,
for there may be several ways to make a mistake.
"""

import math

import torch

# ------------------------------------------------------------------------------------------------- exercises 1 and 2


def past(query_length, key_length, shift=0):
    """The causal mask; shift: how many words of the future are visible, -1 hides the word itself."""
    return torch.ones(query_length, key_length, dtype=torch.bool).tril(key_length - query_length + shift)


def first_at_first(query_length, key_length):
    return torch.ones(query_length, key_length, dtype=torch.bool).tril()


def additive(mask, low=-math.inf):
    return torch.zeros(mask.shape).masked_fill(~mask, low)


def own_hidden(query_length, key_length):
    return past(query_length, key_length, -1)


def one_ahead(query_length, key_length):
    return past(query_length, key_length, 1)


def the_future(query_length, key_length):
    return ~own_hidden(query_length, key_length)


WRONG_PAST = (
    ("first query at the first key", first_at_first),
    ("own position hidden", own_hidden),
    ("one word of the future visible", one_ahead),
    ("the future instead of the past", the_future),
)
CODES = (
    ("True = hidden", lambda mask: ~mask),
    ("numbers to add instead of bool", additive),
    ("numbers to add instead of bool", lambda mask: additive(mask, -1e9)),
    ("numbers to add instead of bool", lambda mask: additive(mask, -1e4)),
    ("0 and 1 instead of bool", lambda mask: mask.double()),
)


def in_code(make, code):
    return lambda *inputs: code(make(*inputs))


CAUSAL = (
    *WRONG_PAST,
    ("queries and keys exchanged", lambda query_length, key_length: past(key_length, query_length)),
    *((name, in_code(past, code)) for name, code in CODES),
)


def real_keys(lengths, query_length, key_length):
    return (torch.arange(key_length) < lengths[:, None])[:, None, None, :]  # (B, 1, 1, T_k)


def real_queries(lengths, query_length, key_length):
    return real_keys(lengths, query_length, key_length)[..., key_length - query_length :].mT  # (B, 1, T_q, 1)


def one_too_many(lengths, query_length, key_length):
    return real_keys(lengths + 1, query_length, key_length)


def at_the_front(lengths, query_length, key_length):
    return real_keys(lengths, query_length, key_length).flip(-1)


def in_combined(causal=past, padding=real_keys, join=torch.logical_and, finish=lambda mask: mask):
    """The combined mask with one of its parts exchanged."""

    def wrong(lengths, query_length, key_length):
        visible = join(causal(query_length, key_length), padding(lengths, query_length, key_length))
        return finish(visible)

    return wrong


COMBINED = (
    *((name, in_combined(causal=causal)) for name, causal in WRONG_PAST),
    ("padded queries hidden", in_combined(padding=real_queries)),
    ("one padded key visible", in_combined(padding=one_too_many)),
    ("padding at the front", in_combined(padding=at_the_front)),
    ("or instead of and", in_combined(join=torch.logical_or)),
    ("head axis missing", in_combined(finish=lambda mask: mask[:, 0])),
    ("head axis in the wrong place", in_combined(finish=lambda mask: mask.transpose(0, 1))),  # (1, B, T_q, T_k)
    ("head axis in the wrong place", in_combined(finish=lambda mask: mask.transpose(1, 2))),  # (B, T_q, 1, T_k)
    ("head axis in the wrong place", in_combined(finish=lambda mask: mask[:, 0, ..., None])),  # (B, T_q, T_k, 1)
    ("padding left out", lambda lengths, t_q, t_k: past(t_q, t_k)),
    ("padding left out", lambda lengths, t_q, t_k: past(t_q, t_k).expand(len(lengths), 1, -1, -1)),
    ("causal part left out", real_keys),
    ("causal part left out", lambda lengths, t_q, t_k: real_keys(lengths, t_q, t_k).expand(-1, 1, t_q, -1)),
    *((name, in_combined(finish=code)) for name, code in CODES),
)

# ------------------------------------------------------------------------------------------ exercise 3: the next word


def by_rank(scaled, top_k):
    """Hide all but the first top_k of a stable order."""
    return hide_behind(scaled.argsort(dim=-1, descending=True, stable=True), scaled, top_k)


def hide_behind(order, scaled, top_k, by=-math.inf):
    hidden = torch.ones_like(scaled, dtype=torch.bool).scatter(-1, order[:, :top_k], value=False)
    return scaled.masked_fill(hidden, by)


def by_threshold(scaled, top_k):
    return scaled.masked_fill(scaled < scaled.topk(top_k).values[:, -1:], -math.inf)


def below_threshold(scaled, top_k):
    """The k-th itself is hidden, too, but never the likeliest word."""
    return by_rank(scaled, max(top_k - 1, 1))


def larger_id_first(scaled, top_k):
    return by_rank(scaled.flip(-1), top_k).flip(-1)


def unlikeliest(scaled, top_k):
    return hide_behind(scaled.argsort(dim=-1, stable=True), scaled, top_k)


def hidden_as_zero(scaled, top_k):
    order = scaled.argsort(dim=-1, descending=True, stable=True)
    return hide_behind(order, scaled, top_k, by=0.0)


def softmax(scaled):
    return scaled.softmax(dim=-1)


def in_next_word(
    last=lambda logits: logits[:, -1],
    scale=torch.div,
    keep=by_rank,
    normalise=softmax,
    finish=lambda probabilities, top_k: probabilities,
):
    """The probabilities of the next word with one of the parts exchanged."""

    def wrong(logits, temperature, top_k):
        return finish(normalise(keep(scale(last(logits), temperature), top_k)), top_k)

    return wrong


def cut_after(logits, temperature, top_k):
    """Softmax over all words, then all but top_k to 0."""
    probabilities = softmax(logits[:, -1] / temperature)
    return probabilities * (by_rank(probabilities, top_k) > 0)


def softmax_of_probabilities(scaled):
    """Of the kept words only: softmax over probabilities where logits belong."""
    return softmax(softmax(scaled).masked_fill(scaled == -math.inf, -math.inf))


def ranked(probabilities, top_k):
    return probabilities.sort(dim=-1, descending=True).values


NEXT_WORD = (
    ("multiplied by the temperature", in_next_word(scale=torch.mul)),
    ("temperature left out", in_next_word(scale=lambda logits, temperature: logits)),
    ("temperature on probabilities", lambda logits, t, k: in_next_word()(softmax(logits), t, k)),
    ("temperature on probabilities", lambda logits, t, k: cut_after(logits, 1, k) / t),
    ("temperature on probabilities", lambda logits, t, k: in_next_word()(logits, 1, k) / t),
    ("not renormalised after top-k", cut_after),
    ("top-k left out", in_next_word(keep=lambda scaled, top_k: scaled)),
    ("the unlikeliest words kept", in_next_word(keep=unlikeliest)),
    ("logits of hidden words set to 0", in_next_word(keep=hidden_as_zero)),
    ("one word too few kept", in_next_word(keep=below_threshold)),
    ("one word too many kept", in_next_word(keep=lambda scaled, top_k: by_rank(scaled, top_k + 1))),
    ("more than k words kept at a tie", in_next_word(keep=by_threshold)),
    ("another of the equal words kept", in_next_word(keep=larger_id_first)),
    ("softmax twice", in_next_word(normalise=softmax_of_probabilities)),
    ("softmax twice", in_next_word(normalise=lambda scaled: softmax(softmax(scaled)))),
    ("in the order of rank, not of words", in_next_word(finish=ranked)),
    ("in the order of rank, not of words", in_next_word(finish=lambda p, top_k: ranked(p, top_k)[:, :top_k])),
    ("first position instead of the last", in_next_word(last=lambda logits: logits[:, 0])),
    ("mean over the positions", in_next_word(last=lambda logits: logits.mean(dim=1))),
    (
        "all positions, not the last one",
        lambda logits, t, k: in_next_word(last=lambda x: x)(logits.flatten(0, 1), t, k).view_as(logits),
    ),
)

HINTS = {
    "first query at the first key": "the last query stands at the last key: move the diagonal by T_k - T_q, or new "
    "words cannot see what is in the cache",
    "own position hidden": "a word may attend to itself: <=, not <; else the first one sees nothing",
    "one word of the future visible": "the diagonal is one too far to the right: the model could copy its next word",
    "the future instead of the past": "rows are queries, columns are keys: the ones are on the diagonal and below it",
    "queries and keys exchanged": "a row for each query, a column for each key: (T_q, T_k)",
    "True = hidden": "here True means may attend, as in F.scaled_dot_product_attention; nn.MultiheadAttention means "
    "the opposite",
    "numbers to add instead of bool": "the mask is bool; 0 and -inf are what it does to scores, and masked_fill does "
    "that",
    "0 and 1 instead of bool": "make it bool: a float mask is added to the scores by F.scaled_dot_product_attention",
    "padded queries hidden": "hide padded keys only: a query that sees nothing has no softmax, and one NaN in a batch "
    "reaches every weight",
    "one padded key visible": "keys 0 to lengths[b] - 1 are real: <, not <=",
    "padding at the front": "the padding is at the end: the first lengths[b] keys are real",
    "or instead of and": "a key must be allowed by both masks: &",
    "head axis missing": "weights are (B, H, T_q, T_k): without an axis for the heads, that of the batch would be "
    "broadcast to them",
    "head axis in the wrong place": "the axes of weights are (B, H, T_q, T_k): the size 1 belongs second",
    "padding left out": "keys from lengths[b] on are padding: hide them",
    "causal part left out": "real words of the future must be hidden as well",
    "multiplied by the temperature": "divide: a high temperature makes the words more alike",
    "temperature left out": "divide the logits by the temperature before softmax",
    "temperature on probabilities": "divide the logits, before softmax: dividing probabilities by a number does not "
    "change what they are to each other",
    "not renormalised after top-k": "the kept words must sum to 1 again: hide the others before softmax, or divide by "
    "the sum",
    "top-k left out": "only top_k words may be drawn: the others get -inf before softmax",
    "the unlikeliest words kept": "sort downwards: the largest logits stay",
    "logits of hidden words set to 0": "exp(0) = 1: a hidden word needs a logit of -inf",
    "one word too few kept": "the k-th word is kept, too: hide what is below it, not what equals it",
    "one word too many kept": "ranks are counted from 0: ranked[:top_k]",
    "more than k words kept at a tie": "a threshold keeps all words that equal the k-th: choose by rank instead",
    "another of the equal words kept": "of equal logits the smaller word goes first: argsort with descending=True and "
    "stable=True",
    "softmax twice": "softmax takes logits: of probabilities it makes something close to even",
    "in the order of rank, not of words": "put each probability back at the place of its word: scatter",
    "first position instead of the last": "the last position predicts the word that comes next: logits[:, -1]",
    "mean over the positions": "only the last position predicts the word that comes next: logits[:, -1]",
    "all positions, not the last one": "only the last position predicts a new word; the others predict what is there",
}
