"""Every way to compute attention against its reference, in outputs and gradients of float64.

The references are torch's own function, with the mask written once more as a predicate on
positions, i of the query and j of the key (the last query stands at the last key), and
nn.MultiheadAttention with the weights of ours. A name begins with the file that it is about:
faults.py asks these first when it plants a fault there.
"""

import copy
import itertools
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from phase1_single_head.before.additive import AdditiveAttention, LuongAttention
from phase1_single_head.order.position_encodings import RotarySelfAttention, alibi, rotary
from phase1_single_head.parts.cross_attention import CrossAttention
from phase1_single_head.self_attention import (
    SelfAttention,
    attention_by_loops,
    scaled_dot_product_attention,
)
from phase2_multi_head.alibi_attention import AlibiAttention
from phase2_multi_head.block.gated_attention import GatedAttention
from phase2_multi_head.block.qk_norm import EPSILON, QKNormAttention, rms_norm
from phase2_multi_head.block.sink_logits import SinkAttention, attention_with_sinks
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pooling.attention_pooling import AttentionPooling, last_pooling, mean_pooling
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.long_texts.delta_rule import delta_rule, delta_rule_recurrent
from phase4_causal.long_texts.flash_attention import flash_attention, flash_by_loops
from phase4_causal.long_texts.gated_delta import gated_delta, gated_delta_recurrent
from phase4_causal.long_texts.linear_attention import (
    linear_attention,
    linear_attention_recurrent,
)
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.long_texts.state_space import (
    state_space,
    state_space_attention,
    state_space_recurrent,
)
from phase4_causal.long_texts.topk_attention import (
    Indexer,
    block_scores,
    blocks_by_loops,
    top_blocks,
    top_keys,
)
from phase4_causal.rotary_attention import RotaryHeads, frequencies
from phase4_causal.serving.flash_decoding import flash_decoding
from phase4_causal.serving.latent_attention import LatentAttention
from phase4_causal.serving.paged_cache import PagedCache, Text, packed, paged_attention
from phase4_causal.writing.sampling import Sampling
from shared import head_statistics
from shared.attention_utils import (
    attention_distance,
    attention_entropy,
    attention_rollout,
    causal_mask,
    local_mask,
    normalized_entropy,
    padding_mask,
    strided_mask,
)
from shared.tests.helpers import D_K, B, H, near, qkv, some_mask
from shared.toy_language import VOCABULARY
from shared.toy_model import ToyTransformer

# Lengths: queries, keys. With (7, 3) some queries see no key under a mask.
ANY = ((70, 70), (5, 131), (1, 7), (7, 3), (3, 0), (0, 5))
SOME = ANY[:4]  # some of both
FEW = ANY[2:4]  # a loop over pairs is quick
LAST = ANY[:3]  # the queries are the last of the words
ALIKE = ((70, 70), (131, 131), (1, 1))  # the queries are all words
SHORT = ((7, 7), (1, 1))  # sentences
WORDS = SHORT[:1]  # where a word has a choice
HEADS, GROUPS, D_MODEL = 6, 2, 66  # of the modules


def positions(t_q, t_k):
    """Of queries (T_q, 1) and keys (1, T_k)."""
    return torch.arange(t_q)[:, None] + t_k - t_q, torch.arange(t_k)[None]


def past(i, j):
    return j <= i


def near_by(i, j):
    return (i - j).abs() <= 3


def random(i, j):
    return some_mask(torch.Generator().manual_seed(1), (B, 1, len(i), j.size(1)))


def real(i, j):
    """All words of the first text, and two of the second."""
    whole = torch.tensor([True, False])[:, None, None, None]  # (B, 1, 1, 1)
    return ((j < 2) | whole).expand(-1, -1, len(i), -1)


def masked(sees=None):
    """torch's function under a mask."""

    def reference(q, k, v):
        mask = None if sees is None else sees(*positions(q.size(-2), k.size(-2)))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return reference


def core(mask):
    """Ours, under a mask that mask(T_q, T_k) makes."""
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, mask(q.size(-2), k.size(-2)))[0]


def padding(length):
    return padding_mask(torch.tensor([length, 2]), length)


def each(loops):
    """A specification for (T, d), one head after the other."""

    def way(*inputs):
        all_heads = [x.flatten(0, 1) for x in inputs]  # (B, H, T, d) -> (B H, T, d)
        heads = [loops(*head) for head in zip(*all_heads, strict=True)]
        return torch.stack(heads).unflatten(0, (B, H))

    return way


def loops(q, k, v):
    return attention_by_loops(q.detach(), k.detach(), v.detach())[0]


def kernel(features, sees):
    """Linear attention with all its weights."""

    def reference(q, k, v):
        weights = features(q) @ features(k).mT * sees(*positions(q.size(-2), k.size(-2)))
        total = weights.sum(dim=-1, keepdim=True)
        return weights @ v / total.where(total != 0, 1.0)

    return reference


def elu(x):
    return F.elu(x) + 1


def recurrent(q, k, v):
    return linear_attention_recurrent(q, k, v)[0]


def written(way):
    """A delta rule: keys of length 1, and how much of a word is written depends on its key."""
    return lambda q, k, v: way(q, F.normalize(k, dim=-1), v, k.mean(dim=-1).sigmoid())


def corrections(q, k, v, beta):
    """All that is written, u_t = beta_t (v_t - k_t S), as one system of equations."""
    earlier = (beta[..., None] * (k @ k.mT)).tril(-1)
    u = torch.linalg.solve(torch.eye(k.size(-2)) + earlier, beta[..., None] * v)
    return (q @ k.mT).tril() @ u, k.mT @ u


def fading(way):
    """A state space: how much of the state stays depends on the key that comes."""
    return lambda q, k, v: way(q, k, v, k.mean(dim=-1).sigmoid())


def state_space_at_once(q, k, v, alpha):
    """Logarithms added up from word to word ("segsum" of Dao & Gu 2024)."""
    so_far = alpha.log().cumsum(dim=-1)
    faded = (so_far[..., :, None] - so_far[..., None, :]).tril().exp().tril()
    return (q @ k.mT * faded) @ v


def gated(way):
    """A gated delta rule: keys of length 1, and both factors depend on the key."""

    def of_words(q, k, v):
        beta, alpha = k.mean(dim=-1).sigmoid(), k.sum(dim=-1).sigmoid()
        return way(q, F.normalize(k, dim=-1), v, beta, alpha)

    return of_words


def gated_by_states(q, k, v, beta, alpha):
    """As the plain form of flash-linear-attention defines it, at scale 1: a state h, decays e^g."""
    h, outputs = q.new_zeros(*k.shape[:-2], k.size(-1), v.size(-1)), []
    g = alpha.log()
    for t in range(k.size(-2)):
        h = h * g[..., t, None, None].exp()
        key = k[..., t, :, None]
        missing = v[..., t, :] - (h * key).sum(dim=-2)
        h = h + key * (missing * beta[..., t, None])[..., None, :]
        outputs.append((h * q[..., t, :, None]).sum(dim=-2))
    return torch.stack(outputs, dim=-2), h


def turned(x, places, turns=None):
    """Rotary positions: each pair of features is a complex number that is turned."""
    if turns is None:
        turns = 10000.0 ** (-torch.arange(0, x.size(-1), 2).double() / x.size(-1))
    angle = places[:, None] * turns
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def by_position(turn):
    """Ten features of the keys, turned by their positions."""
    return lambda q, k, v: turn(k[..., :10], torch.arange(k.size(-2)))


def slopes_of(q):
    return q[0, :, 0, 0]  # (B, H, T, d_k) -> (H,)


def by_distance(q, k, v):
    i, j = positions(q.size(-2), q.size(-2))
    return slopes_of(q)[:, None, None] * -(i - j).abs()


def sampled(*rule):
    """The chances by which a word is drawn; the numbers of a key are the logits of eleven words."""
    return lambda q, k, v: Sampling(*rule).probabilities(k).detach()


def sampled_by_loops(temperature, top_k=None, top_p=math.inf):
    """Temperature, top-k and top-p, one text and one word at a time."""

    def reference(q, k, v):
        chances = torch.zeros_like(k).detach()
        for logits, row in zip(k.flatten(0, -2).tolist(), chances.flatten(0, -2), strict=True):
            weights = [math.exp(logit / temperature) for logit in logits]
            ranked = sorted(range(len(weights)), key=lambda i: -weights[i])[:top_k]
            total = sum(weights[i] for i in ranked)
            reached = 0.0
            for i in ranked:
                if reached < top_p:
                    row[i] = weights[i]
                reached += weights[i] / total
            row /= row.sum()
        return chances

    return reference


def for_caches(way):
    """Values have the size of keys, and nothing has gradients."""
    return lambda q, k, v: way(q.detach(), k.detach(), v[..., :D_K].detach())


def one_row(x):
    """Two texts one behind the other: (B, H, T, d) -> (B T, H, d)."""
    return x.transpose(1, 2).flatten(0, 1)


def paged(q, k, v):
    """Two texts in blocks of four places; the queries are those of the last words."""
    cache = PagedCache(1, 2048, H, 4, D_K, like=q, share=False)
    texts = [Text([]) for _ in range(B)]
    old_and_new = [k.size(-2) - q.size(-2), q.size(-2)]
    for key, value in zip(k.split(old_and_new, dim=2), v.split(old_and_new, dim=2), strict=True):
        for text in texts:
            text.stored = len(text.tokens)
            text.tokens += [0] * key.size(2)
            assert cache.allocate(text)
        words = packed(texts, cache)
        cache.store(0, one_row(key), one_row(value), words)
    found = paged_attention(one_row(q), cache, 0, words)
    return found.unflatten(0, (B, -1)).transpose(1, 2)


def capped_by(cap, with_sinks):
    """A cap on the scores, and sink logits that depend on the keys, under a mask."""

    def way(q, k, v):
        sinks = k.mean(dim=(0, 2, 3)) if with_sinks else None
        mask = past(*positions(q.size(-2), k.size(-2)))
        return attention_with_sinks(q, k, v, mask, cap=cap, sinks=sinks)[0]

    return way


def capped_by_loops(cap, with_sinks):
    """One query and one key at a time; a sink is one more chance, whose value is 0."""

    def reference(q, k, v):
        mask = past(*positions(q.size(-2), k.size(-2)))
        output = torch.zeros(B, H, q.size(-2), v.size(-1), dtype=q.dtype)
        for b, h, i in itertools.product(range(B), range(H), range(q.size(-2))):
            chances, total = {}, 0.0
            for j in mask[i].nonzero().flatten().tolist():
                score = torch.dot(q[b, h, i], k[b, h, j]) / q.size(-1) ** 0.5
                if cap is not None:
                    score = cap * torch.tanh(score / cap)
                chances[j] = score.exp()
                total = total + chances[j]
            if with_sinks:
                total = total + k.mean(dim=(0, 2, 3))[h].exp()
            for j, chance in chances.items():
                output[b, h, i] += chance / total * v[b, h, j]
        return output

    return reference


def pooled_by(pooling):
    """A mean or the last of the words, v (B, H, T, d), of which the second text has two."""
    return lambda q, k, v: pooling(v[:, 0], padding(v.size(2)))[0]


def of_real_words(pick):
    return lambda q, k, v: torch.stack([pick(v[0, 0]), pick(v[1, 0, :2])])


def chosen(choose):
    """Ours, under a mask that queries and keys decide."""
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, choose(q, k))[0]


def four_best(q, k):
    """A key is kept if fewer than four visible ones come before it: higher ones, or first."""
    i, j = positions(q.size(-2), k.size(-2))
    scores = (q @ k.mT).masked_fill(~past(i, j), -torch.inf)
    this, other = scores[..., :, None], scores[..., None, :]
    first = torch.ones(k.size(-2), k.size(-2), dtype=torch.bool).tril(-1)
    before = (other > this) | ((other == this) & first)
    return past(i, j) & (before.sum(dim=-1) < 4)


def in_three_blocks(q, k):
    """Of five words each."""
    return top_blocks(block_scores(q, k, 5), k.size(-2), 3, 5)


def blocks_in_loops(q, k):
    heads = zip(q.flatten(0, 1), k.flatten(0, 1), strict=True)
    masks = [blocks_by_loops(query.detach(), key.detach(), 3, 5) for query, key in heads]
    return torch.stack(masks).unflatten(0, (B, H))


FOURTH = masked(lambda i, j: (i - j) % 4 == 0)
BEFORE = masked(lambda i, j: (j <= i) & (i - j <= 3))


def of_two_texts(q, k, v):
    """Weights of causal heads that read texts of all words and of two, and who sees whom."""
    words = padding(q.size(-2))
    mask = words & words.mT & causal_mask(q.size(-2))
    return scaled_dot_product_attention(q, k, v, mask)[1].detach(), mask


def statistic(of_weights):
    return lambda q, k, v: of_weights(*of_two_texts(q, k, v))


def by_rows(of_row):
    """The mean over rows of real words, head by head; rows for which of_row is None do not count.

    of_row gets the weights of the keys that a row sees, 0 to i, and i.
    """

    def reference(q, k, v):
        weights, mask = of_two_texts(q, k, v)
        means = []
        for head in range(H):
            values = []
            for n, i in mask[:, 0].any(dim=-1).nonzero().tolist():
                value = of_row(weights[n, head, i, : i + 1], i)
                if value is not None:
                    values.append(value)
            means.append(torch.stack(values).double().mean())
        return torch.stack(means)

    return reference


def entropy(row, i):
    return -(row * row.log()).sum()


def distance(row, i):
    return (row * (torch.arange(len(row)) - i).abs()).sum()


def beside_even(of_row):
    """What an even row of as many keys has is 1; a row of one key has no choice."""

    def share(row, i):
        return of_row(row, i) / of_row(torch.full_like(row, 1 / len(row)), i)

    return lambda row, i: share(row, i) if len(row) > 1 else None


def every_third(row, i):
    """The weight of keys 2, 5, ..., which a row of two keys has not."""
    return row[2::3].sum() if len(row) > 2 else None


def on_every_third(weights, mask):
    gold = mask[:, 0] & (torch.arange(mask.size(-1)) % 3 == 2)
    return head_statistics.relation_weight(weights, gold)


def spread(name):
    return lambda weights, mask: head_statistics.head_statistics(weights, mask)[name]


def largest_before(weights, mask):
    return head_statistics.offset_shares(weights, mask, [-1])[-1]


WAYS = {  # of queries, keys and values: the way, its reference, for which lengths
    "self_attention": (core(lambda *_: None), masked(), ANY),
    "self_attention, a mask": (
        core(lambda *lengths: random(*positions(*lengths))),
        masked(random),
        SOME,
    ),
    "self_attention, loops": (each(loops), masked(), FEW),
    "attention_utils, causal": (core(causal_mask), masked(past), SOME),
    "attention_utils, local": (core(partial(local_mask, window=3)), masked(near_by), SOME),
    "attention_utils, strided": (core(partial(strided_mask, stride=4)), FOURTH, SOME),
    "attention_utils, padding": (core(lambda _, t: padding(t)), masked(real), SOME),
    "position_encodings, rotary": (by_position(rotary), by_position(turned), SOME),
    "position_encodings, alibi": (
        lambda q, k, v: alibi(q.size(-2), slopes_of(q)),
        by_distance,
        ALIKE,
    ),
    "sampling": (sampled(0.3), sampled_by_loops(0.3), FEW),
    "sampling, top-k": (sampled(1.7, 5), sampled_by_loops(1.7, 5), FEW),
    "sampling, top-p": (sampled(1.0, None, 0.6), sampled_by_loops(1.0, None, 0.6), FEW),
    "sampling, both": (sampled(1.7, 9, 0.95), sampled_by_loops(1.7, 9, 0.95), FEW),
    "flash_attention": (partial(flash_attention, block_size=4), masked(), ANY),
    "flash_attention, causal": (
        partial(flash_attention, causal=True, block_size=3),
        masked(past),
        ANY,
    ),
    "flash_attention, loops": (each(partial(flash_by_loops, causal=True)), masked(past), FEW),
    "flash_decoding": (partial(flash_decoding, num_splits=3), masked(), ANY),
    "flash_decoding, loops": (
        partial(flash_decoding, num_splits=7),
        each(lambda q, k, v: flash_by_loops(q.detach(), k.detach(), v.detach())),
        FEW,
    ),
    "local_attention": (partial(local_attention, window=3), masked(near_by), ANY),
    "local_attention, causal": (partial(local_attention, window=3, causal=True), BEFORE, ANY),
    "linear_attention": (linear_attention, kernel(elu, lambda i, j: 1), ANY),
    "linear_attention, relu": (
        partial(linear_attention, feature_map="relu"),
        kernel(F.relu, lambda i, j: 1),
        ANY,
    ),
    "linear_attention, causal": (partial(linear_attention, causal=True), kernel(elu, past), ANY),
    "linear_attention, recurrent": (recurrent, kernel(elu, past), ALIKE),
    "topk_attention": (chosen(partial(top_keys, count=4)), chosen(four_best), SOME),
    "topk_attention, blocks": (chosen(in_three_blocks), chosen(blocks_in_loops), SOME),
    "sink_logits, a cap": (capped_by(1.7, False), capped_by_loops(1.7, False), FEW),
    "sink_logits": (capped_by(None, True), capped_by_loops(None, True), FEW),
    "sink_logits, and a cap": (capped_by(1.7, True), capped_by_loops(1.7, True), FEW),
    "head_statistics, previous": (
        statistic(partial(head_statistics.offset_weight, offset=-1)),
        by_rows(lambda row, i: row[i - 1] if i else None),
        WORDS,
    ),
    "head_statistics, first": (
        statistic(head_statistics.first_weight),
        by_rows(lambda row, i: row[0] if i else None),
        WORDS,
    ),
    "head_statistics, largest": (
        statistic(largest_before),
        by_rows(lambda row, i: row.argmax() == i - 1 if i else None),
        WORDS,
    ),
    "head_statistics, gold": (statistic(on_every_third), by_rows(every_third), WORDS),
    "head_statistics, entropy": (
        statistic(spread("normalised entropy")),
        by_rows(beside_even(entropy)),
        WORDS,
    ),
    "head_statistics, distance": (
        statistic(spread("normalised distance")),
        by_rows(beside_even(distance)),
        WORDS,
    ),
    "delta_rule": (written(delta_rule), written(corrections), ALIKE),
    "delta_rule, recurrent": (written(delta_rule_recurrent), written(corrections), ALIKE),
    "gated_delta": (gated(gated_delta), gated(gated_by_states), ALIKE),
    "gated_delta, recurrent": (gated(gated_delta_recurrent), gated(gated_by_states), ALIKE),
    "state_space": (
        fading(lambda *words: state_space(*words)[0]),
        fading(state_space_at_once),
        ALIKE,
    ),
    "state_space, with a table": (
        fading(state_space_attention),
        fading(state_space_at_once),
        ALIKE,
    ),
    "state_space, recurrent": (
        fading(lambda *words: state_space_recurrent(*words)[0]),
        fading(state_space_at_once),
        ALIKE,
    ),
    "attention_pooling, mean": (
        pooled_by(mean_pooling),
        of_real_words(lambda x: x.mean(dim=0)),
        SOME,
    ),
    "attention_pooling, last": (pooled_by(last_pooling), of_real_words(lambda x: x[-1]), SOME),
    "qk_norm, the norm": (
        lambda q, k, _: rms_norm(q, k[0, 0, 0]),
        lambda q, k, _: F.rms_norm(q, [D_K], k[0, 0, 0], EPSILON),
        FEW,
    ),
    "paged_cache": (for_caches(paged), for_caches(masked(past)), LAST),
}

# ---- modules


def by_torch(m, x, context, sees=None):
    """nn.MultiheadAttention with the weights of ours; its masks say what is hidden."""
    mask = None if sees is None else ~sees(*positions(x.size(1), context.size(1)))
    theirs = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
    w_k, b_k = map(for_each_head, m.w_k.parameters())
    w_v, b_v = map(for_each_head, m.w_v.parameters())
    weights = {
        "in_proj_weight": torch.cat([m.w_q.weight, w_k, w_v]),
        "in_proj_bias": torch.cat([m.w_q.bias, b_k, b_v]),
        "out_proj.weight": m.w_o.weight,
        "out_proj.bias": m.w_o.bias,
    }
    return functional_call(theirs, weights, (x, context, context), {"attn_mask": mask})[0]


def for_each_head(rows):
    """The rows of a key-value head once for each of the query heads that share it."""
    heads = rows.split(D_MODEL // HEADS)
    return torch.cat([heads[h * len(heads) // HEADS] for h in range(HEADS)])


def causal_by_torch(m, x, context):
    return by_torch(m, x, context, past)


def heads_of(x, count=HEADS):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)  # (B, T, H d) -> (B, H, T, d)


def one_head(m, x, context):
    return m.w_o(F.scaled_dot_product_attention(m.w_q(x), m.w_k(context), m.w_v(context)))


def with_turned(m, x, _):
    place = torch.arange(x.size(1))
    query, key = turned(m.w_q(x), place), turned(m.w_k(x), place)
    return m.w_o(F.scaled_dot_product_attention(query, key, m.w_v(x)))


def with_turned_heads(m, x, _):
    """Three heads, under the causal mask; what each pair turns is known in float32."""
    place, turns = torch.arange(x.size(1)), frequencies(D_MODEL // 3).double()
    query = turned(heads_of(m.w_q(x), 3), place, turns)
    key = turned(heads_of(m.w_k(x), 3), place, turns)
    heads = F.scaled_dot_product_attention(query, key, heads_of(m.w_v(x), 3), is_causal=True)
    return m.w_o(merged(heads))


def with_distance(m, x, _):
    """ALiBi: the first of two heads takes 2^-4 off for each word between, the other 2^-8."""
    i, j = positions(x.size(1), x.size(1))
    bias = torch.stack([-(i - j).abs() / 16, -(i - j).abs() / 256]).double()
    query, key, value = [heads_of(part, 2) for part in m.w_qkv(x).chunk(3, dim=-1)]
    heads = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    return m.w_o(heads.transpose(1, 2).flatten(2))


def projected_heads(m, x, context):
    """Queries, keys and values of each head, (B, H, T, d_k)."""
    return heads_of(m.w_q(x)), heads_of(m.w_k(context)), heads_of(m.w_v(context))


def merged(heads):
    return heads.transpose(1, 2).flatten(2)


def of_one_length(projection, x):
    """Queries or keys of each head, normalised by torch's own RMSNorm."""
    heads = heads_of(projection.projection(x))
    return F.rms_norm(heads, heads.shape[-1:], projection.norm_weight, EPSILON)


def with_qk_norm(m, x, context, sees=None):
    query, key = of_one_length(m.w_q, x), of_one_length(m.w_k, context)
    return m.w_o(merged(masked(sees)(query, key, heads_of(m.w_v(context)))))


def with_gate(m, x, _, sees=None):
    """A head's output times 1 / (1 + e^-z)."""
    heads = merged(masked(sees)(*projected_heads(m.heads, x, x)))
    return m.w_o(heads / (1 + torch.exp(-m.w_gate(x))))


def with_both(m, x, _):
    query, key = of_one_length(m.heads.w_q, x), of_one_length(m.heads.w_k, x)
    heads = masked(past)(query, key, heads_of(m.heads.w_v(x)))
    return m.w_o(merged(heads) / (1 + torch.exp(-m.w_gate(x))))


def with_sink(m, x, _):
    """What gpt-oss does: one more key, whose score is the sink, and whose weight is dropped."""
    query, key, value = projected_heads(m, x, x)
    scores = query @ key.mT / key.size(-1) ** 0.5
    sinks = m.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    return m.w_o(merged(weights @ value))


def causal(m, x, _):
    """Under the mask of training."""
    return m(x, mask=past(*positions(x.size(1), x.size(1))))[0]


def by_scores(score):
    """The memory, weighted by softmax of score(m, query, one word of the memory)."""

    def reference(m, x, context):
        scores = [score(m, x, context[:, j : j + 1]) for j in range(context.size(1))]
        return torch.stack(scores, dim=-1).softmax(dim=-1) @ context

    return reference


def dot(m, x, word):
    return (x * word).sum(dim=-1)


def general(m, x, word):
    return (x @ m.w.weight * word).sum(dim=-1)


def concat(m, x, word):
    return (torch.tanh(m.w(torch.cat([x, word.expand_as(x)], dim=-1))) * m.v.weight[0]).sum(dim=-1)


def additive(m, x, word):
    return (torch.tanh(m.w_q(x) + m.w_k(word)) * m.v.weight[0]).sum(dim=-1)


def latent(m, x, _):
    """Keys and values of each head from what is kept; a key for the place that all heads share."""
    place, kept = torch.arange(x.size(1)), m.w_down(x)
    shared = turned(m.w_k_rotary(x), place)[:, None].expand(-1, HEADS, -1, -1)
    query = torch.cat([heads_of(m.w_q(x)), turned(heads_of(m.w_q_rotary(x)), place)], dim=-1)
    key = torch.cat([heads_of(m.w_uk(kept)), shared], dim=-1)
    heads = F.scaled_dot_product_attention(query, key, heads_of(m.w_uv(kept)), is_causal=True)
    return m.w_o(heads.transpose(1, 2).flatten(2))


def indexed(m, x, _):
    """Scores of three heads, one pair of words after the other."""
    queries, key, share = m.w_q(x), m.w_k(x), m.w_head_weight(x)
    scores = 0.0
    for head, query in enumerate(queries.split(5, dim=-1)):
        matches = torch.einsum("bid,bjd->bij", query, key)
        scores = scores + share[..., head, None] * matches * (matches > 0)
    return scores


def pieces(x):
    """A long one, and the last three words one by one."""
    return [x[:, :-3], *x[:, -3:].split(1, dim=1)] if x.size(1) > 3 else [x]


def with_cache(m, x, _):
    cache = KeyValueCache(B, HEADS, x.size(1), D_MODEL // HEADS, dtype=x.dtype)
    with torch.no_grad():
        return torch.cat([m(piece, cache=cache)[0] for piece in pieces(x)], dim=1)


def absorbed(m, x, _):
    kept, outputs = x.new_empty(B, 0, m.d_latent + m.d_rotary), []
    for piece in pieces(x):
        output, kept = m.decode(piece, kept)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def by_query(m, x, _):
    """The words of the first text, and two of the second, as the learned query weighs them."""
    texts = (x[0], x[1, :2])
    pooled = [F.scaled_dot_product_attention(m.query[None], words, words) for words in texts]
    return torch.cat(pooled)


def tokens_of(x):
    return torch.arange(B * x.size(1)).view(B, -1) * 7 % len(VOCABULARY)


def transformer(m, x, _):
    return m(tokens_of(x))[0]


def transformer_with_caches(m, x, _):
    caches = [KeyValueCache(B, HEADS, x.size(1), D_MODEL // HEADS, dtype=x.dtype) for _ in m.blocks]
    with torch.no_grad():
        return torch.cat([m(piece, caches=caches)[0] for piece in pieces(tokens_of(x))], dim=1)


def transformer_by_torch(m, x, _, sees=None):
    """Pre-norm, as nn.TransformerEncoderLayer(norm_first=True) has it."""
    x = F.embedding(tokens_of(x), m.embedding.weight) + m.positions[: x.size(1)]
    for block in m.blocks:
        normed = F.layer_norm(x, [D_MODEL], *block.attention_norm.parameters())
        x = x + by_torch(block.attention, normed, normed, sees)
        w_1, b_1, w_2, b_2 = block.feed_forward.parameters()
        normed = F.layer_norm(x, [D_MODEL], *block.feed_forward_norm.parameters())
        x = x + F.linear(F.relu(F.linear(normed, w_1, b_1)), w_2, b_2)
    x = F.layer_norm(x, [D_MODEL], *m.output_norm.parameters())
    return F.linear(x, m.embedding.weight, m.output_bias)


def cross(m, x, context):
    return m(x, context)[0]


def alone(m, x, _):
    return m(x)[0]


def heads_added(m, x, _):
    """The output as a sum of what each head adds."""
    _, weights = m(x)
    return head_statistics.added_by_heads(m, weights @ heads_of(m.w_v(x))).sum(dim=1) + m.w_o.bias


def itself(reference):
    """Of one sequence, which is its own context."""
    return lambda m, x, _: reference(m, x, x)


def near_by_only(m, x, context):
    return m(x, context, mask=near_by(*positions(x.size(1), context.size(1))))[0]


def of(kind, *sizes, **more):
    return partial(kind, D_MODEL, *sizes, **more)


def toy(attention):
    return partial(ToyTransformer, D_MODEL, HEADS, 2, make_attention=attention)


MULTI, CAUSAL = of(MultiHeadAttention, HEADS), of(CausalSelfAttention, HEADS)
FUSED_CAUSAL = of(FusedMultiHeadAttention, HEADS, causal=True)
LATENT = of(LatentAttention, HEADS, d_latent=17, d_rotary=10)

MODULES = {  # of x and a context: what makes the module, the way, its reference, for which lengths
    "multi_head_attention": (MULTI, cross, by_torch, ANY),
    "multi_head_attention, alone": (MULTI, alone, itself(by_torch), ALIKE),
    "head_statistics": (MULTI, heads_added, itself(by_torch), ALIKE),
    "multi_head_attention, a mask": (MULTI, near_by_only, partial(by_torch, sees=near_by), LAST),
    "fused_attention": (of(FusedMultiHeadAttention, HEADS), cross, by_torch, ANY),
    "fused_attention, causal": (FUSED_CAUSAL, cross, causal_by_torch, LAST),
    "fused_attention, causal and a mask": (
        FUSED_CAUSAL,
        near_by_only,
        partial(by_torch, sees=lambda i, j: near_by(i, j) & past(i, j)),
        LAST,
    ),
    "grouped_query_attention": (of(GroupedQueryAttention, HEADS, GROUPS), cross, by_torch, ANY),
    "qk_norm": (of(QKNormAttention, HEADS), cross, with_qk_norm, ANY),
    "qk_norm, a mask": (
        of(QKNormAttention, HEADS),
        near_by_only,
        partial(with_qk_norm, sees=near_by),
        LAST,
    ),
    "gated_attention": (of(GatedAttention, HEADS), alone, with_gate, ALIKE),
    "gated_attention, causal": (
        of(GatedAttention, HEADS),
        causal,
        partial(with_gate, sees=past),
        ALIKE,
    ),
    "gated_attention, normalised": (
        of(GatedAttention, HEADS, make_attention=QKNormAttention),
        causal,
        with_both,
        ALIKE,
    ),
    "sink_logits, a module": (of(SinkAttention, HEADS), alone, with_sink, ALIKE),
    "alibi_attention": (of(AlibiAttention, 2), alone, with_distance, ALIKE),
    "self_attention, a head": (of(SelfAttention, 11, 13), alone, itself(one_head), ALIKE),
    "cross_attention": (of(CrossAttention, 11, 13), cross, one_head, ANY),
    "position_encodings, a head": (of(RotarySelfAttention, 10, 13), alone, with_turned, ALIKE),
    "additive": (of(AdditiveAttention, 11), cross, by_scores(additive), SOME),
    "additive, dot": (of(LuongAttention), cross, by_scores(dot), SOME),
    "additive, general": (of(LuongAttention, "general"), cross, by_scores(general), SOME),
    "additive, concat": (of(LuongAttention, "concat"), cross, by_scores(concat), SOME),
    "rotary_attention": (of(RotaryHeads, 3), alone, with_turned_heads, ALIKE),
    "causal_attention": (CAUSAL, alone, itself(causal_by_torch), ALIKE),
    "key_value_cache": (CAUSAL, with_cache, itself(causal_by_torch), ALIKE),
    "toy_model": (toy(MultiHeadAttention), transformer, transformer_by_torch, SHORT),
    "toy_model, caches": (
        toy(CausalSelfAttention),
        transformer_with_caches,
        partial(transformer_by_torch, sees=past),
        SHORT,
    ),
    "topk_attention, indexer": (of(Indexer, 3, 5), lambda m, x, _: m(x), indexed, ALIKE),
    "latent_attention": (LATENT, alone, latent, ALIKE),
    "latent_attention, absorbed": (LATENT, absorbed, latent, ALIKE),
    "attention_pooling": (
        of(AttentionPooling),
        lambda m, x, _: m(x, padding(x.size(1)))[0],
        by_query,
        ALIKE[:2],
    ),
}

# ---- each of them


# Ways that make no T x T table, so that in 16 bits they are asked for 4,096 queries.
NO_TABLE = ("local_attention", "linear_attention", "delta_rule", "gated_delta", "state_space")
NOT_IN_16_BITS = ("loops", "head_statistics")  # a specification; what describes weights
IN_FLOAT32 = ("sampling", ", alibi")  # what they return for inputs of 16 bits


def lengths_in_16_bits(name, lengths):
    """4,096 keys if a table of weights is not too large, else more than 256 (see rotary)."""
    if name.startswith(NO_TABLE) and not name.endswith(("with a table", "recurrent")):
        return 4096, 4096
    if lengths is ALIKE:
        return 300, 300
    return max(lengths) if max(lengths)[0] < 70 else (5, 4096)


CASES = []
for name, (*_, lengths) in (WAYS | MODULES).items():
    CASES += [(name, t_q, t_k, torch.float64) for t_q, t_k in lengths]
    if not any(word in name for word in NOT_IN_16_BITS):
        for dtype in (torch.bfloat16, torch.float16):
            CASES.append((name, *lengths_in_16_bits(name, lengths), dtype))
CASES += [(name, 21, 21, torch.float32) for name in MODULES]  # under autocast


@pytest.mark.parametrize(("name", "t_q", "t_k", "dtype"), CASES)
def test_a_way_is_its_reference_and_16_bits_are_off_by_their_rounding(name, t_q, t_k, dtype):
    check(name, t_q, t_k, dtype)


def check(name, t_q, t_k, dtype):
    """Raises AssertionError unless the way is its reference for so many queries and keys.

    In 16 bits, or in float32 under autocast, it is compared with itself in float64. The last of the
    queries in 16 bits are so long that their squares, and their scores, need more.
    """
    way, reference, _ = (WAYS | MODULES)[name][-3:]
    inputs = parameters = qkv(t_q=t_q, t_k=t_k, dtype=dtype)
    if name in MODULES:
        make, *_ = MODULES[name]
        size = 0.3 if dtype == torch.float64 else 0.1  # scores of 20 have no digit behind the point
        module, draw = make().double(), torch.Generator().manual_seed(3)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=size, generator=draw)
        x = torch.randn(B, t_q, D_MODEL, generator=draw, dtype=torch.float64)
        context = torch.randn(B, t_k, D_MODEL, generator=draw, dtype=torch.float64)
        inputs = [part.to(dtype) for part in (module, x, context)]
        parameters = [*inputs[1:], *module.parameters()]
    if dtype != torch.float64:
        if name in WAYS:
            inputs[0] *= torch.linspace(1, 300, t_q, dtype=dtype)[:, None]
        exact = way(*[copy.deepcopy(part).double() for part in inputs])
        autocast = dtype == torch.float32
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = way(*inputs)
        if isinstance(found, tuple):  # the state is in float32
            found, exact = found[0], exact[0]
        expected = torch.float32 if any(word in name for word in IN_FLOAT32) else dtype
        assert autocast or found.dtype == expected
        # A module rounds the words that it projects, too, and softmax enlarges that.
        rounding = 8 * torch.finfo(torch.bfloat16 if autocast else expected).eps
        near(found.double(), exact, share=rounding)  # why: 16 bits
        return
    for parameter in parameters:
        parameter.requires_grad_()
    found, expected = way(*inputs), reference(*inputs)
    if isinstance(found, tuple):  # an output and a state
        found, expected = flat(found), flat(expected)
    near(found, expected)
    if found.requires_grad:  # else it is for writing
        near(slopes(found, parameters), slopes(expected, parameters))


def slopes(output, parameters):
    """As one row, since the keys' bias has none: it adds the same to all scores of a query."""
    draw = torch.Generator().manual_seed(7)
    upstream = torch.randn(output.shape, generator=draw, dtype=output.dtype)
    return flat(torch.autograd.grad(output, parameters, upstream, materialize_grads=True))


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def test_scores_far_below_0_lose_no_digits():
    value = torch.tensor([[1e-25], [2e-25], [4e-25]])
    for score in (-40.0, -59.0, -200.0):
        found = flash_attention(torch.ones(2, 4), torch.full((3, 4), score / 2), value)
        near(found, value.mean().expand(2, 1))


# ---- masks and statistics whose values are known


def test_masks_look_as_the_docstrings_show_them():
    """As predicates: test_oracles.py; refused sizes: test_refusals.py."""
    assert causal_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    mask = padding_mask(torch.tensor([2, 0, 3]), 3)
    assert mask.shape == (3, 1, 1, 3)
    assert mask.flatten(1).int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert padding_mask(torch.empty(0, dtype=torch.long), 3).shape == (0, 1, 1, 3)
    with pytest.raises(ValueError, match=r"between 0 and T_k=3: got \[4\]"):
        padding_mask(torch.tensor([4]), 3)


@pytest.mark.parametrize("n", [2, 5, 13])
def test_statistics_on_patterns_whose_value_is_known(n):
    identity = torch.eye(n).double()
    uniform = torch.full((n, n), 1 / n, dtype=torch.float64)
    ones = torch.ones(n).double()
    mask = causal_mask(n)
    causal = mask.double() / mask.sum(dim=-1, keepdim=True)
    previous = identity.roll(-1, dims=-1)[1:]  # rows without the first: each its left neighbour
    near(attention_entropy(identity), 0 * ones)
    near(attention_entropy(uniform), math.log(n) * ones)
    near(attention_entropy(causal).exp(), torch.arange(1, n + 1).double())
    near(normalized_entropy(uniform), ones)
    near(normalized_entropy(causal, mask)[1:], ones[1:])
    assert normalized_entropy(causal, mask)[0].isnan()
    near(attention_distance(identity), 0 * ones)
    near(attention_distance(uniform).mean().item(), (n * n - 1) / (3 * n))
    near(attention_distance(causal).mean().item(), (n - 1) / 4)
    near(attention_distance(previous), ones[1:])


def test_rollout_by_hand():
    """Two layers of one head, 2 tokens: R = (A2 + I)/2 (A1 + I)/2."""
    first = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    second = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    near(attention_rollout([first, second]), torch.tensor([[0.5, 0.5], [0.375, 0.625]]))
    with pytest.raises(ValueError, match="at least one layer"):
        attention_rollout([])
