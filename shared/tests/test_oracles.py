"""Every way to compute attention against its reference, in outputs and gradients: float64, 12 digits.

The references are torch's own functions, with the mask written once more as a predicate on positions (i of the query,
j of the key; the last query stands at the last key), and torch's multi-head attention with the weights of ours.
A name begins with the file that it is about: faults.py asks these ways first when it plants a fault there.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.before.scoring import AdditiveAttention, LuongAttention
from phase1_single_head.order.position_encodings import RotarySelfAttention, rotary
from phase1_single_head.parts.cross_attention import CrossAttention
from phase1_single_head.self_attention import SelfAttention, attention_by_loops, scaled_dot_product_attention
from phase2_multi_head.alibi_attention import AlibiAttention
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pooling.attention_pooling import AttentionPooling, last_pooling, mean_pooling
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.long_texts.delta_rule import delta_rule, delta_rule_recurrent
from phase4_causal.long_texts.flash_attention import flash_attention, flash_by_loops
from phase4_causal.long_texts.linear_attention import linear_attention, linear_attention_recurrent, linear_by_loops
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.long_texts.sparse_attention import strided_attention
from phase4_causal.serving.latent_attention import LatentAttention
from phase4_causal.serving.paged_cache import PagedCache, paged_attention
from phase4_causal.serving.rolling_cache import RollingCache
from shared.attention_utils import causal_mask, local_mask, padding_mask, streaming_mask, strided_mask
from shared.tests.helpers import D_K, B, H, near, qkv, some_mask

ANY = ((70, 70), (5, 131), (1, 7), (7, 3), (3, 0), (0, 5))  # queries, keys. (7, 3): under a mask some see no key
SOME, FEW = ANY[:4], ANY[2:4]  # where there are some of both; where a loop over pairs is quick
FROM_START, AS_MANY = ANY[:3], ((70, 70), (131, 131), (1, 1))  # queries are the last of the words, or all of them
HEADS, GROUPS, D_MODEL = 6, 2, 66  # of the modules

# ---- masks, written once more: which queries, at positions i (T_q, 1), see which keys, at j (1, T_k)


def positions(t_q, t_k):
    return torch.arange(t_q)[:, None] + t_k - t_q, torch.arange(t_k)[None]


def everything(i, j):
    return torch.ones(len(i), j.size(1), dtype=torch.bool)


def past(i, j):
    return j <= i


def near_by(i, j):
    return (i - j).abs() <= 3


def every_fourth(i, j):
    return (i - j) % 4 == 0


def first_and_last(i, j):
    return (j <= i) & ((j > i - 5) | (j < 2))


def real_words(i, j):
    """All words of the first text, and two of the second."""
    return torch.stack([everything(i, j), (j < 2).expand(len(i), -1)])[:, None]


def some(i, j):
    return some_mask(torch.Generator().manual_seed(1), (B, 1, len(i), j.size(1)))


def both(one, other):
    return lambda i, j: one(i, j) & other(i, j)


# ---- ways and references


def masked(sees):
    """torch's function under a mask."""
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=sees(*positions(q.size(-2), k.size(-2))))


def core(mask):
    """Ours, under a mask that mask(T_q, T_k) makes."""
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, mask(q.size(-2), k.size(-2)))[0]


def each(loops):
    """A specification for (T, d), one head after the other."""

    def way(*inputs):
        heads = [loops(*head) for head in zip(*(x.flatten(0, 1) for x in inputs), strict=True)]
        return torch.stack(heads).unflatten(0, (B, H))

    return way


def kernel(sees, features):
    """Linear attention with all its weights."""

    def reference(q, k, v):
        weights = features(q) @ features(k).mT * sees(*positions(q.size(-2), k.size(-2)))
        total = weights.sum(dim=-1, keepdim=True)
        return weights @ v / total.where(total != 0, 1.0)

    return reference


def elu_and_one(x):
    return F.elu(x) + 1


def written(way):
    """A delta rule: keys of length 1, and how much of a word is written depends on its key."""
    return lambda q, k, v: way(q, F.normalize(k, dim=-1), v, k.mean(dim=-1).sigmoid())


def corrections(q, k, v, beta):
    """All that is written, u_t = beta_t (v_t - k_t S), as one system of equations."""
    earlier = (beta[..., None] * (k @ k.mT)).tril(-1)
    u = torch.linalg.solve(torch.eye(k.size(-2)) + earlier, beta[..., None] * v)
    return (q @ k.mT).tril() @ u


def turned(x, places):
    """Rotary positions: each pair of features is a complex number that is turned."""
    angle = places[:, None] * 10000.0 ** (-torch.arange(0, x.size(-1), 2).double() / x.size(-1))
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def with_places(turn):
    """Queries and keys turned by their positions, ten features of them."""

    def way(q, k, v):
        i, j = positions(q.size(-2), k.size(-2))
        return F.scaled_dot_product_attention(turn(q[..., :10], i[:, 0]), turn(k[..., :10], j[0]), v)

    return way


def square(way):
    """For caches: values have the size of keys, and nothing has gradients."""
    return lambda q, k, v: way(q.detach(), k.detach(), v[..., :D_K].detach())


def paged(q, k, v):
    """Two texts in blocks of four places; the queries are those of the last words, packed text by text."""
    cache, old = PagedCache(80, H, 4, D_K, dtype=q.dtype), k.size(-2) - q.size(-2)
    texts = [cache.start() for _ in range(B)]
    for part in filter(range(k.size(-2)).__getitem__, (slice(0, old), slice(old, None))):
        new = dict.fromkeys(texts, len(range(k.size(-2))[part]))
        key, value = (x[:, :, part].transpose(1, 2).flatten(0, 1) for x in (k, v))  # (B, H, T, d) -> (B T, H, d)
        cache.append(key, value, new)
    found = paged_attention(q.transpose(1, 2).flatten(0, 1), cache, new)
    return found.unflatten(0, (B, -1)).transpose(1, 2)


def rolling(q, k, v):
    """Word by word, with room for the first two and the last five."""
    cache = RollingCache(KeyValueCache(B, H, 7, D_K, dtype=q.dtype), sinks=2)
    words = zip(*(x.split(1, dim=2) for x in (q, k, v)), strict=True)
    return torch.cat([scaled_dot_product_attention(word, *cache.append(*new))[0] for word, *new in words], dim=2)


def pooled_by(pooling):
    """Of words of which the second text has two."""
    return lambda q, k, v: pooling(v[:, 0], padding_mask(torch.tensor([v.size(2), 2]), v.size(2)))[0]


ALL, PAST = masked(everything), masked(past)
WAYS = {  # of queries, keys and values: the way, its reference, for which lengths
    "self_attention": (core(lambda *lengths: None), ALL, ANY),
    "self_attention, masked": (core(lambda *lengths: some(*positions(*lengths))), masked(some), SOME),
    "self_attention, loops": (each(lambda *qkv: attention_by_loops(*(x.detach() for x in qkv))[0]), ALL, FEW),
    "attention_utils, causal": (core(causal_mask), PAST, SOME),
    "attention_utils, local": (core(partial(local_mask, window=3)), masked(near_by), SOME),
    "attention_utils, strided": (core(partial(strided_mask, stride=4)), masked(every_fourth), SOME),
    "attention_utils, padding": (core(lambda _, t: padding_mask(torch.tensor([t, 2]), t)), masked(real_words), SOME),
    "attention_utils, sinks": (core(lambda t, _: streaming_mask(t, 5, 2)), masked(first_and_last), AS_MANY),
    "position_encodings, rotary": (with_places(rotary), with_places(turned), SOME),
    "flash_attention": (partial(flash_attention, block_size=4), ALL, ANY),
    "flash_attention, causal": (partial(flash_attention, causal=True, block_size=(3, 5)), PAST, ANY),
    "flash_attention, loops": (each(partial(flash_by_loops, causal=True)), PAST, FEW),
    "local_attention": (partial(local_attention, window=3), masked(near_by), ANY),
    "local_attention, causal": (partial(local_attention, window=3, causal=True), masked(both(near_by, past)), ANY),
    "sparse_attention": (partial(strided_attention, stride=4), masked(every_fourth), ANY),
    "sparse_attention, causal": (
        partial(strided_attention, stride=4, causal=True),
        masked(both(every_fourth, past)),
        SOME,
    ),
    "linear_attention": (linear_attention, kernel(everything, elu_and_one), ANY),
    "linear_attention, relu": (partial(linear_attention, feature_map="relu"), kernel(everything, F.relu), ANY),
    "linear_attention, causal": (partial(linear_attention, causal=True), kernel(past, elu_and_one), ANY),
    "linear_attention, recurrent": (
        lambda *qkv: linear_attention_recurrent(*qkv)[0],
        kernel(past, elu_and_one),
        AS_MANY,
    ),
    "linear_attention, loops": (each(partial(linear_by_loops, causal=True)), kernel(past, elu_and_one), FEW),
    "delta_rule": (written(lambda *all: delta_rule(*all)[0]), written(corrections), AS_MANY),
    "delta_rule, recurrent": (written(lambda *all: delta_rule_recurrent(*all)[0]), written(corrections), AS_MANY),
    "attention_pooling, mean": (
        pooled_by(mean_pooling),
        lambda q, k, v: torch.stack([v[0, 0].mean(dim=0), v[1, 0, :2].mean(dim=0)]),
        SOME,
    ),
    "attention_pooling, last": (
        pooled_by(last_pooling),
        lambda q, k, v: torch.stack([v[0, 0, -1], v[1, 0, 1]]),
        SOME,
    ),
    "paged_cache": (square(paged), square(PAST), FROM_START),
    "rolling_cache": (square(rolling), square(masked(first_and_last)), AS_MANY),
}


def compare(found, expected, inputs):
    """Outputs, and the gradients of all inputs where the way has some."""
    near(found, expected)
    if found.requires_grad:
        upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(7), dtype=expected.dtype)
        near(slopes(found, inputs, upstream), slopes(expected, inputs, upstream))


def slopes(output, inputs, upstream):
    """Together, since that of the keys' bias is 0: it adds the same to all scores of a query."""
    found = torch.autograd.grad(output, inputs, upstream, materialize_grads=True)
    return torch.cat([slope.flatten() for slope in found])


# ---- modules


def heads_of(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)  # (B, T, H d) -> (B, H, T, d)


def together(x):
    return x.transpose(1, 2).flatten(2)  # (B, H, T, d) -> (B, T, H d)


def by_torch(m, x, context, mask=None):
    """nn.MultiheadAttention with the weights of ours; its masks say what is hidden."""
    groups = HEADS // (m.w_k.out_features // (D_MODEL // HEADS))  # query heads that share a key
    w_k, b_k, w_v, b_v = (
        p.unflatten(0, (HEADS // groups, -1)).repeat_interleave(groups, dim=0).flatten(0, 1)
        for p in (*m.w_k.parameters(), *m.w_v.parameters())
    )
    output, _ = F.multi_head_attention_forward(
        *(tensor.transpose(0, 1) for tensor in (x, context, context)),
        embed_dim_to_check=D_MODEL,
        num_heads=HEADS,
        in_proj_weight=None,
        in_proj_bias=torch.cat([m.w_q.bias, b_k, b_v]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=m.w_o.weight,
        out_proj_bias=m.w_o.bias,
        attn_mask=None if mask is None else ~mask,
        use_separate_proj_weight=True,
        q_proj_weight=m.w_q.weight,
        k_proj_weight=w_k,
        v_proj_weight=w_v,
    )
    return output.transpose(0, 1)


def causal_by_torch(m, x, context):
    return by_torch(m, x, context, past(*positions(x.size(1), context.size(1))))


def one_head(m, x, context):
    return m.w_o(F.scaled_dot_product_attention(m.w_q(x), m.w_k(context), m.w_v(context)))


def with_turned(m, x, _):
    place = torch.arange(x.size(1))
    return m.w_o(F.scaled_dot_product_attention(turned(m.w_q(x), place), turned(m.w_k(x), place), m.w_v(x)))


def with_distance(m, x, _):
    """ALiBi: the first of two heads takes 2^-4 off for each word between, the other 2^-8."""
    query, key, value = (heads_of(part, 2) for part in m.w_qkv(x).split(D_MODEL, dim=-1))
    i, j = positions(x.size(1), x.size(1))
    bias = torch.stack([-(i - j).abs() / 16, -(i - j).abs() / 256]).double()
    return m.w_o(together(F.scaled_dot_product_attention(query, key, value, attn_mask=bias)))


def by_scores(score):
    """The memory, weighted by softmax of score(m, query, one word of the memory)."""

    def reference(m, x, context):
        scores = [score(m, x, context[:, j : j + 1]) for j in range(context.size(1))]
        return torch.stack(scores, dim=-1).softmax(dim=-1) @ context

    return reference


def additive(m, x, word):
    return (torch.tanh(m.w_q(x) + m.w_k(word)) * m.v.weight[0]).sum(dim=-1)


def general(m, x, word):
    return (x @ m.w.weight * word).sum(dim=-1)


def concat(m, x, word):
    return (torch.tanh(m.w(torch.cat([x, word.expand_as(x)], dim=-1))) * m.v.weight[0]).sum(dim=-1)


def latent(m, x, _):
    """Keys and values of each head from what is kept, and a key for the place that all heads share."""
    place = torch.arange(x.size(1))
    kept = m.w_down(x)
    query = torch.cat([heads_of(m.w_q(x), HEADS), turned(heads_of(m.w_q_rotary(x), HEADS), place)], dim=-1)
    shared = turned(m.w_k_rotary(x), place)[:, None].expand(-1, HEADS, -1, -1)
    key = torch.cat([heads_of(m.w_uk(kept), HEADS), shared], dim=-1)
    heads = F.scaled_dot_product_attention(query, key, heads_of(m.w_uv(kept), HEADS), is_causal=True)
    return m.w_o(together(heads))


def pieces(x):
    """A long one, and then word by word."""
    return [x[:, :-3], *x[:, -3:].split(1, dim=1)] if x.size(1) > 3 else [x]


def with_cache(m, x, _):
    cache = KeyValueCache(B, HEADS, x.size(1), D_MODEL // HEADS, dtype=x.dtype)
    with torch.no_grad():
        return torch.cat([m(piece, cache=cache)[0] for piece in pieces(x)], dim=1)


def absorbed(m, x, _):
    kept, outputs = x.new_empty(B, 0, sum(m.sizes)), []
    for piece in pieces(x):
        output, kept = m.decode(piece, kept)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def cross(m, x, context):
    return m(x, context)[0]


def alone(m, x, _):
    return m(x)[0]


def itself(reference):
    """Of one sequence, which is its own context."""
    return lambda m, x, _: reference(m, x, x)


def pooled(m, x, _):
    """The words of the first text, and two of the second, as the learned query weighs them."""
    rows = [F.scaled_dot_product_attention(m.query[None], words, words)[0] for words in (x[0], x[1, :2])]
    return torch.stack(rows)


MULTI = partial(MultiHeadAttention, D_MODEL, HEADS)
LATENT = partial(LatentAttention, D_MODEL, HEADS, d_latent=17, d_rotary=10)
MODULES = {  # of x and a context: what makes the module, how it is called, its reference, for which lengths
    "multi_head_attention": (MULTI, cross, by_torch, ANY),
    "multi_head_attention, masked": (
        MULTI,
        lambda m, x, context: m(x, context, mask=near_by(*positions(x.size(1), context.size(1))))[0],
        lambda m, x, context: by_torch(m, x, context, near_by(*positions(x.size(1), context.size(1)))),
        ANY[:3],
    ),
    "multi_head_attention, alone": (MULTI, alone, itself(by_torch), AS_MANY),
    "fused_attention": (partial(FusedMultiHeadAttention, D_MODEL, HEADS), cross, by_torch, ANY),
    "fused_attention, causal": (
        partial(FusedMultiHeadAttention, D_MODEL, HEADS, causal=True),
        cross,
        causal_by_torch,
        FROM_START,
    ),
    "grouped_query_attention": (partial(GroupedQueryAttention, D_MODEL, HEADS, GROUPS), cross, by_torch, ANY),
    "alibi_attention": (partial(AlibiAttention, D_MODEL, 2), alone, with_distance, AS_MANY),
    "self_attention, a head": (
        partial(SelfAttention, D_MODEL, 11, 13),
        alone,
        itself(one_head),
        AS_MANY,
    ),
    "cross_attention": (partial(CrossAttention, D_MODEL, 11, 13), cross, one_head, ANY),
    "position_encodings, a head": (partial(RotarySelfAttention, D_MODEL, 10, 13), alone, with_turned, AS_MANY),
    "additive": (partial(AdditiveAttention, D_MODEL, 11), cross, by_scores(additive), SOME),
    "additive, dot": (
        partial(LuongAttention, D_MODEL),
        cross,
        by_scores(lambda m, x, word: (x * word).sum(dim=-1)),
        SOME,
    ),
    "additive, general": (partial(LuongAttention, D_MODEL, "general"), cross, by_scores(general), SOME),
    "additive, concat": (partial(LuongAttention, D_MODEL, "concat"), cross, by_scores(concat), SOME),
    "causal_attention": (partial(CausalSelfAttention, D_MODEL, HEADS), alone, itself(causal_by_torch), AS_MANY),
    "key_value_cache": (partial(CausalSelfAttention, D_MODEL, HEADS), with_cache, itself(causal_by_torch), AS_MANY),
    "latent_attention": (LATENT, alone, latent, AS_MANY),
    "latent_attention, absorbed": (LATENT, absorbed, latent, AS_MANY),
    "attention_pooling": (
        partial(AttentionPooling, D_MODEL),
        lambda m, x, _: m(x, padding_mask(torch.tensor([x.size(1), 2]), x.size(1)))[0],
        pooled,
        AS_MANY[:2],
    ),
}


CASES = [(name, *pair) for name, (*_, lengths) in (WAYS | MODULES).items() for pair in lengths]


@pytest.mark.parametrize(("name", "t_q", "t_k"), CASES)
def test_a_way_is_its_reference(name, t_q, t_k):
    check(name, t_q, t_k)


def check(name, t_q, t_k):
    """Fails unless the way is its reference, for so many queries and keys."""
    if name in WAYS:
        way, reference, _ = WAYS[name]
        inputs = [x.requires_grad_() for x in qkv(t_q=t_q, t_k=t_k)]
        return compare(way(*inputs), reference(*inputs), inputs)
    make, way, reference, _ = MODULES[name]
    module, draw = make().double(), torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=draw)
    inputs = [torch.randn(B, t, D_MODEL, generator=draw, dtype=torch.float64).requires_grad_() for t in (t_q, t_k)]
    return compare(way(module, *inputs), reference(module, *inputs), [*inputs, *module.parameters()])
