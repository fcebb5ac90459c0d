"""SPOILERS: the usual mistakes with the key-value cache, exercise 4, each one a function that makes it.

Most entries are the right step with one part exchanged. A name may occur several times, for there may be several ways
to make a mistake.
"""

import math

import torch


def behind(past, new):
    return torch.cat([past, new], dim=1)  # (B, T, d), (B, 1, d) -> (B, T + 1, d)


def in_front(past, new):
    return torch.cat([new, past], dim=1)


def oldest_dropped(past, new):
    return behind(past[:, 1:], new)


def newest_replaced(past, new):
    return behind(past[:, :-1], new)


def attend(query, keys, values, scale=math.sqrt):
    return (query @ keys.mT / scale(keys.size(-1))).softmax(dim=-1) @ values


def own_query(x, w_q, keys, new_key):
    return x @ w_q


def in_cache(
    at=lambda length: length,
    add=lambda word, position: word + position,
    put=behind,
    query=own_query,
    attend=attend,
    seen=lambda past, joined, new: joined,
    kept=lambda past, joined, new: joined,
):
    """One step with the cache, with one part exchanged. seen: what is attended to, kept: what is returned."""

    def wrong(word, positions, w_q, w_k, w_v, past_keys, past_values):
        x = add(word, positions[at(past_keys.size(1))])[:, None]  # (B, d_model) -> (B, 1, d_model)
        keys, values = (past_keys, put(past_keys, x @ w_k), x @ w_k), (past_values, put(past_values, x @ w_v), x @ w_v)
        output = attend(query(x, w_q, keys[1], keys[2]), seen(*keys), seen(*values))
        return output[:, 0], kept(*keys), kept(*values)

    return wrong


def by_root_of(size):
    return lambda query, keys, values: attend(query, keys, values, lambda d_k: math.sqrt(size))


CACHE = (
    ("appended at the front", in_cache(put=in_front)),
    ("an old entry lost", in_cache(put=oldest_dropped)),
    ("an old entry lost", in_cache(put=newest_replaced)),
    ("old cache returned", in_cache(kept=lambda past, joined, new: past)),
    ("only what is new returned", in_cache(kept=lambda past, joined, new: new)),
    ("new word does not see itself", in_cache(seen=lambda past, joined, new: past)),
    ("cache not attended to", in_cache(seen=lambda past, joined, new: new)),
    ("mask of the first query", in_cache(seen=lambda past, joined, new: joined[:, :1])),
    ("no position", in_cache(add=lambda word, position: word)),
    ("position 0", in_cache(at=lambda length: 0)),
    ("position one too low", in_cache(at=lambda length: max(length - 1, 0))),
    ("position one too high", in_cache(at=lambda length: length + 1)),
    ("an old key as the query", in_cache(query=lambda x, w_q, keys, new_key: keys[:, -2:-1])),
    ("the new key as the query", in_cache(query=lambda x, w_q, keys, new_key: new_key)),
    ("not divided by √d_k", in_cache(attend=lambda q, k, v: attend(q, k, v, lambda d_k: 1))),
    ("divided by d_k", in_cache(attend=lambda q, k, v: attend(q, k, v, lambda d_k: d_k))),
    ("divided by √d_model", lambda *inputs: in_cache(attend=by_root_of(inputs[0].size(-1)))(*inputs)),
)

HINTS = {
    "appended at the front": "new keys and values go behind the old ones, for the next step counts on their order",
    "an old entry lost": "the cache grows by one word, and all old ones stay: T + 1",
    "old cache returned": "return the cache with the new key and value in it, or the next word will not see this one",
    "only what is new returned": "return old and new together: (B, T + 1, d)",
    "new word does not see itself": "its own key and value belong to what it attends to: append first, then attend",
    "cache not attended to": "attend to old and new keys together; one key alone has a weight of 1",
    "mask of the first query": "no mask, or one whose last query stands at the last key: the new word sees everything; "
    "is_causal=True would show it the first key only",
    "no position": "add positions[T] to the embedding: a model without it cannot tell the order",
    "position 0": "the new word is alone in the input, not in the text: T words are before it, so it stands at T",
    "position one too low": "the cache holds positions 0 to T - 1, so the new word stands at T",
    "position one too high": "the cache holds positions 0 to T - 1, so the new word stands at T",
    "an old key as the query": "the query is made of the new word: x @ w_q; old queries are done and were not kept",
    "the new key as the query": "the query has its own matrix: x @ w_q",
    "not divided by √d_k": "divide the scores by the square root of d_k, the size of a key",
    "divided by d_k": "divide by the square root of d_k",
    "divided by √d_model": "d_k is the size of a key, not of x",
}
