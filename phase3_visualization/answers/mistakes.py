"""SPOILERS: the usual mistakes when heads are measured, each one a function that makes it, with a name and a hint.

A list for each of exercises 1 and 2; those of 3 and 4 are in exercise_layer_mistakes.py. Most entries are the right way
with one part exchanged, and a name may occur several times, for there may be several ways to make a mistake.
"""

import math

import torch

# ------------------------------------------------------------------------------------------------ exercise 1: entropy


def plain_entropy(weights):
    return torch.special.entr(weights).sum(dim=-1)


def ln_visible(weights, mask):
    return mask.sum(dim=-1).log()


def in_entropy(
    entropy=plain_entropy,
    limit=ln_visible,
    prepare=lambda weights: weights,
    rows=lambda mask: mask.sum(dim=-1) >= 2,
    divide=lambda entropy, limit: (entropy / limit).mean(dim=-1),
):
    """Normalised entropy with one of its parts exchanged."""

    def wrong(weights, mask):
        limits = limit(weights, mask).expand(weights.shape[:-1]).double()  # (H, T_q)
        counted = rows(mask)
        return divide(entropy(prepare(weights))[:, counted], limits[:, counted])

    return wrong


def mean_over_heads(weights):
    return weights.mean(dim=0, keepdim=True).expand_as(weights)


def over_columns(weights, mask):
    """Entropy of each key's column, divided by the ln of the queries that see it."""
    return in_entropy()(weights.transpose(-2, -1), mask.T)


def all_rows(mask):
    return torch.ones(len(mask), dtype=torch.bool)


def zero_without_choice(entropy, limit):
    return torch.where(limit > 0, entropy / limit, 0).mean(dim=-1)


ENTROPY = (
    ("NaN from 0 · ln 0", in_entropy(lambda weights: -(weights * weights.log()).sum(dim=-1))),
    ("NaN from 0 · ln 0", in_entropy(lambda weights: -(weights * weights.log2()).sum(dim=-1) * math.log(2))),
    ("log2 over ln", in_entropy(lambda weights: plain_entropy(weights) / math.log(2))),
    ("minus sign missing", in_entropy(lambda weights: -plain_entropy(weights))),
    ("mean over the heads before the entropy", in_entropy(prepare=mean_over_heads)),
    ("mean over the heads before the entropy", lambda w, mask: in_entropy()(w.mean(dim=0, keepdim=True), mask)[0]),
    ("mean over the heads", lambda weights, mask: in_entropy()(weights, mask).mean()),
    ("mean over the rows before the entropy", lambda w, mask: plain_entropy(w.mean(dim=1)) / math.log(w.size(-1))),
    ("columns instead of rows", over_columns),
    ("not normalised", in_entropy(limit=lambda weights, mask: torch.ones(1))),
    ("divided by ln T", in_entropy(limit=lambda weights, mask: torch.tensor(weights.size(-1)).log())),
    ("divided by the number of keys", in_entropy(limit=lambda weights, mask: mask.sum(dim=-1))),
    ("keys with weight counted, not visible ones", in_entropy(limit=lambda w, mask: (w > 0).sum(dim=-1).log())),
    ("mean before the division", in_entropy(divide=lambda entropy, limit: entropy.mean(-1) / limit.mean(-1))),
    ("division by ln 1", in_entropy(rows=all_rows)),
    ("a row without a choice counted", in_entropy(rows=all_rows, divide=zero_without_choice)),
)

# --------------------------------------------------------------------------------------------- exercise 2: role score


def without_own(weights):
    return weights.masked_fill(torch.eye(weights.size(-1), dtype=torch.bool), -1)


def hits(weights, gold):
    """Whether the attended key is a gold one -> (N, H, T)."""
    attended = weights.argmax(dim=-1, keepdim=True)
    return gold[:, None].expand_as(weights).gather(-1, attended)[..., 0].double()


def over_asked(right, gold):
    return right.transpose(1, 2)[gold.any(dim=-1)].mean(dim=0)  # (N, H, T) -> (asked, H) -> (H,)


def over_sentences(right, gold):
    asked = gold.any(dim=-1)[:, None]  # (N, 1, T)
    return ((right * asked).sum(dim=-1) / asked.sum(dim=-1)).mean(dim=0)


def offsets(length):
    return [k for k in range(1 - length, length) if k != 0]


def on_offsets(gold, tried=offsets):
    """For each offset and sentence the number of gold pairs -> (offsets, N)."""
    return torch.stack([gold.diagonal(k, dim1=1, dim2=2).sum(dim=-1) for k in tried(gold.size(-1))])


def best_offset(gold, tried=offsets):
    return on_offsets(gold, tried).sum(dim=-1).max() / gold.any(dim=-1).sum()


def in_role(prepare=without_own, hits=hits, mean=over_asked, baseline=best_offset):
    """The role score with one of its parts exchanged."""
    return lambda weights, gold: (mean(hits(prepare(weights), gold), gold), baseline(gold))


def offset_of_each_sentence(gold):
    return (on_offsets(gold).max(dim=0).values / gold.any(dim=-1).sum(dim=-1)).mean()


def share_of_all_places(gold):
    return torch.stack([gold.diagonal(k, dim1=1, dim2=2).double().mean() for k in offsets(gold.size(-1))]).max()


def columns(weights):
    return without_own(weights).transpose(-2, -1)


ROLE = (
    ("own position counted", in_role(prepare=lambda weights: weights)),
    ("columns instead of rows", in_role(prepare=columns)),
    (
        "gold the wrong way around",
        in_role(hits=lambda w, gold: hits(w, gold.mT), mean=lambda r, g: over_asked(r, g.mT)),
    ),
    ("mean over the heads first", in_role(prepare=lambda w: without_own(w.mean(1, keepdim=True).expand_as(w)))),
    ("mean over the heads first", in_role(prepare=lambda w: without_own(w.mean(1, keepdim=True)))),
    ("weight on the gold key, not the largest weight", in_role(lambda w: w, lambda w, g: (w * g[:, None]).sum(dim=-1))),
    ("queries without a gold key counted", in_role(mean=lambda right, gold: right.mean(dim=(0, 2)))),
    ("mean of sentences, not of queries", in_role(mean=over_sentences)),
    ("a best offset for each sentence", in_role(baseline=offset_of_each_sentence)),
    ("baseline over all places", in_role(baseline=share_of_all_places)),
    ("baseline over all places", in_role(baseline=lambda gold: on_offsets(gold).sum(-1).max() / gold[..., 0].numel())),
    ("only neighbours tried as baseline", in_role(baseline=lambda gold: best_offset(gold, lambda length: (-1, 1)))),
    ("chance as baseline", in_role(baseline=lambda gold: torch.tensor(1 / gold.size(-1)))),
    ("chance as baseline", in_role(baseline=lambda gold: torch.tensor(1 / (gold.size(-1) - 1)))),
)

HINTS = {
    "NaN from 0 · ln 0": "0 times minus infinity is NaN; the limit is 0: torch.special.entr and torch.xlogy know that",
    "log2 over ln": "both logarithms must be the same, here natural ones; a ratio of two log2 would do as well",
    "minus sign missing": "the logarithm of a weight is negative, so the sum needs a minus",
    "mean over the heads before the entropy": "first the entropy of each head: the mean of four sharp heads is a "
    "blurred one",
    "mean over the heads": "one number for each head: heads differ, and that is what is asked",
    "mean over the rows before the entropy": "first the entropy of each row: sharp rows that look at different words "
    "have an even mean",
    "columns instead of rows": "row i, the last axis, is where word i looks; a column is who looks at a word",
    "not normalised": "divide each row by the ln of the number of keys it may see, the largest entropy it can have",
    "divided by ln T": "a row that may see few keys can spread over few; divide by the ln of the keys that it may see, "
    "or hidden keys make a head look sharp",
    "divided by the number of keys": "n equal weights have an entropy of ln n: divide by the ln",
    "keys with weight counted, not visible ones": "a visible key with a weight of 0 was a choice, too: count the mask",
    "mean before the division": "divide each row by its own limit, then take the mean",
    "division by ln 1": "a row that may see one key has an entropy of 0 and a limit of ln 1 = 0: leave it out",
    "a row without a choice counted": "a row that may see one key is sharp whatever the head does: leave it out of the "
    "mean, in its sum and in its count",
    "own position counted": "the word itself does not count (Clark et al. 2019): hide the diagonal before the argmax",
    "gold the wrong way around": "gold[n, i, j]: i is the query, j its gold key. (Whether a head follows the relation "
    "backwards is a question of its own.)",
    "mean over the heads first": "score each head; a mean of heads has an argmax that may belong to none of them",
    "weight on the gold key, not the largest weight": "asked is how often the largest weight is on the gold key; how "
    "much weight it gets is another measure",
    "queries without a gold key counted": "divide by the number of queries that have a gold key; the others were not "
    "asked",
    "mean of sentences, not of queries": "each query counts alike: sum over all sentences, then divide once",
    "a best offset for each sentence": "one offset for the whole relation; one for each sentence has seen the answers",
    "baseline over all places": "divide by the queries that were asked, as in the accuracy, or the baseline looks weak",
    "only neighbours tried as baseline": "try every offset but 0: a relation may span more than one word",
    "chance as baseline": "a head that is blind to words still knows positions: the best fixed offset beats chance",
}
