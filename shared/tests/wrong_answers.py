"""Wrong answers as readers write them, short and in their own way; none is an edit of a solution.

WRONG: exercise -> the name by which the mistake should be known ("" if it has none), function.
RIGHT: exercise -> a right answer that looks different from the solution.
"""

import math

import torch
import torch.nn.functional as F

INF = math.inf


def past(q, k=None):
    """Written out, as all here: a change of the course's files must not reach what is compared."""
    k = q if k is None else k
    return torch.ones(q, k).tril(k - q).bool()


def prefixed(prefix, mask):
    mask = mask.bool()
    mask[:, :prefix] = True
    return mask


def attend(q, k, v, mask=None):
    """A reader's attention: hide with -inf, softmax, rows of NaN to 0."""
    s = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
    w = (s if mask is None else s.masked_fill(~mask, -INF)).softmax(-1).nan_to_num(0)
    return w @ v, w


def cross(x, c, q, k, v, o, mask):
    found, w = attend(x @ q, c @ k, c @ v, mask)
    return found @ o, w


def share(e):
    """What e makes of scores and mask, divided by its sum."""
    return lambda s, m: e(s, m) / e(s, m).sum(1, True)


def soft(s, m):
    return torch.softmax(torch.where(m, s, -INF), -1).nan_to_num(0)


def heads_of(x, w, h):
    return (x @ w).view(len(x), x.shape[1], h, -1).permute(0, 2, 1, 3)


def multi(x, wq, wk, wv, wo, h, mask, *, axes=lambda m: m[:, None, None]):
    q, k, v = heads_of(x, wq, h), heads_of(x, wk, h), heads_of(x, wv, h)
    o, w = attend(q, k, v, None if mask is None else axes(mask))
    return o.transpose(1, 2).reshape(x.shape) @ wo, w


def unchanged(v):
    return v


def block(
    x,
    f,
    w1,
    w2,
    causal,
    drop,
    training,
    *,
    norm=lambda v: F.layer_norm(v, v.shape[-1:]),
    mask=past,
    act=F.relu,
):
    drop = drop if training else unchanged
    found, w = f(norm(x), mask(len(x)) if causal else None)
    x = x + drop(found)
    return x + drop(act(norm(x) @ w1) @ w2), w


def by_std(v, eps):
    return (v - v.mean(-1, keepdim=True)) / (v.std(-1, keepdim=True, correction=0) + eps)


def additive(q, m, wq, wk, v, f=torch.tanh):
    w = (f((q @ wq).unsqueeze(1) + (m @ wk).unsqueeze(0)) @ v).softmax(1)
    return w @ m, w


def waves(length, d, base=10000):
    out = torch.zeros(length, d)
    for row in range(length):
        for c in range(d):
            angle = row / base ** (c // 2 * 2 / d)
            out[row, c] = math.cos(angle) if c % 2 else math.sin(angle)
    return out


def paired(length, d):
    """As in many tutorials: as many cosines as sines, whatever d is."""
    out = torch.zeros(length, d)
    angle = torch.arange(length).unsqueeze(1) * 1e4 ** -(torch.arange(0, d, 2) / d)
    out[:, ::2], out[:, 1::2] = angle.sin(), angle.cos()
    return out


def grouped(q, k, v, mask=None, pick=lambda h, n: h // n):
    at = [pick(h, len(q) // len(k)) for h in range(len(q))]
    return attend(q, k[at], v[at], mask)


def pool(query, x, mask, scale=0.5):
    w = soft((x * query).sum(-1) / len(query) ** scale, mask)
    return (w[..., None] * x).sum(1), w


def entropy(w, mask, tiny=1e-300, keep=2):
    rows, n = -(w * (w + tiny).log()).sum(-1), mask.sum(-1)
    return (rows / n.double().log())[:, n >= keep].mean(-1)


def role(w, gold, fill=-INF, offsets=None):
    t = w.shape[-1]
    best = w.masked_fill(torch.eye(t).bool(), fill).argmax(-1)
    queries = gold.any(-1).nonzero().tolist()
    shares = []
    for h in range(w.shape[1]):
        right = [gold[n, i, best[n, h, i]].item() for n, i in queries]
        shares.append(sum(right) / len(queries))
    tried = offsets or [k for k in range(1 - t, t) if k]
    hits = [gold.diagonal(k, dim1=1, dim2=2).sum().item() for k in tried]
    return shares, max(hits) / len(queries)


def rollout(w, by_head, kept, heads=torch.mul):
    out = torch.eye(w.shape[-1]).double()
    for a, shares, own in zip(w, by_head, kept, strict=True):
        a = torch.diag(own) + torch.diag(1 - own) @ heads(a, shares.view(-1, 1, 1)).sum(0)
        out = a @ out
    return out


def attribute(heads, w_o, stream, u, right, top=lambda x, y: x - y):
    """The norm as one of PyTorch's, of each head put into a stream without any mean."""
    shares = []
    for head, rows in zip(heads, w_o.split(heads.shape[2]), strict=True):
        x = head @ rows
        x = (x - x.mean(1, True)) / stream.var(1, correction=0, keepdim=True).sqrt()
        said = (x @ u)[range(len(right)), right]
        shares.append(top(said, (x @ u).mean(1)).mean())
    return torch.stack(shares)


def compose(x, a, v, o, q, k, write=lambda x, a: a @ x, root=True):
    """Every score from the head's own two matrices, QK and OV."""
    qk = q @ k.T / (k.shape[1] ** 0.5 if root else 1)
    wrote = write(x, a) @ (v @ o)
    return x @ qk @ wrote.T, wrote @ qk @ x.T


def patch(c, x, w, d, h, n, mix=None, share=lambda a, b, c: (a - c) / (b - c)):
    n = slice(n * (c.shape[-1] // h), (n + 1) * (c.shape[-1] // h))
    mixed = x.clone()
    mixed[..., n] = c[..., n] if mix is None else mix(c, x)[..., n]
    return mixed @ w, share(*((y @ w)[:, -1].mean(0) @ d for y in (mixed, c, x)))


def ranks(x):
    return (-x).argsort(dim=-1, stable=True).argsort(dim=-1)


def next_word(x, t, k, pick=-1, hide=-INF, rank=ranks):
    x = x[:, pick] / t
    return torch.where(rank(x) < k, x, hide).softmax(-1)


def guess(x, y, n):
    real = torch.arange(y.shape[1]) < n[:, None] - 1
    return F.cross_entropy(x[real], y[real])


def ties(x):
    return (x[:, None] > x[..., None]).sum(-1)


def step(word, pos, wq, wk, wv, ks, vs, at=0, without=""):
    """without: "q", "k" and "v", of those that are made of the word without its position."""
    word = word.unsqueeze(1)
    x = word + pos[ks.shape[1] + at]
    q = (word if "q" in without else x) @ wq
    k = (word if "k" in without else x) @ wk
    v = (word if "v" in without else x) @ wv
    keys = torch.cat([ks, k], 1)
    values = torch.cat([vs, v], 1)
    w = (q @ keys.mT / keys.shape[2] ** 0.5).softmax(-1)
    return (w @ values).squeeze(1), keys, values


def tiles(ma, ta, oa, mb, tb, ob, safe=True):
    m = torch.max(ma, mb)
    ref = torch.where(m.isinf(), 0, m) if safe else m
    a, b = ta * torch.exp(ma - ref), tb * torch.exp(mb - ref)
    mean = (a[:, None] * oa + b[:, None] * ob) / (a + b)[:, None]
    return m, a + b, mean.nan_to_num(0) if safe else mean


def linear(q, k, v, phi=lambda x: F.elu(x) + 1, mask=True):
    w = phi(q) @ phi(k).T
    w = w.tril() if mask else w
    return w / w.sum(1, keepdim=True) @ v, phi(k).T @ v, phi(k).sum(0)


def induction(w, tokens, shift=1, all_rows=False):
    sums = []
    for n, row in enumerate(tokens.tolist()):
        for i in range(len(row)):
            same = [j + shift for j in range(i) if row[j] == row[i]]
            at = [j for j in same if 0 <= j < len(row)]
            if at or all_rows:
                sums.append(w[n, :, i, at].sum(-1))
    return torch.stack(sums).mean(0)


def memory(s, q, k, v, alpha, beta, unit=F.normalize, off=1.0):
    q, k = unit(q), unit(k)
    erase = torch.eye(k.shape[1]) - off * torch.einsum("h,hi,hj->hij", beta, k, k)
    new = erase @ (s * alpha[:, None, None]) + torch.einsum("h,hi,hj->hij", beta, k, v)
    return torch.einsum("hi,hij->hj", q, new), new


def by_latents(q, uk, c):
    return torch.einsum("hk,hck->hc", q, uk) @ c.T


def by_keys(q, uk, c):
    return torch.stack([c @ uk[h] @ q[h] for h in range(len(q))])


def latent(q, turned, c, places, uk, uv, size=None, place=1.0, compare=by_latents):
    absorbed = torch.einsum("hk,hck->hc", q, uk)
    s = compare(q, uk, c) + place * turned @ places.T
    w = (s / (size or q.shape[1] + turned.shape[1]) ** 0.5).softmax(1)
    return absorbed, w, torch.einsum("hc,hcv->hv", w @ c, uv)


def draft(words, q, p, luck, ratio=lambda p, q: p / q, rest=lambda p, q: F.relu(p - q)):
    for i, w in enumerate(words):
        if luck[i] >= ratio(p[i, w], q[i, w]):
            return i, rest(p[i], q[i]) / rest(p[i], q[i]).sum()
    return len(words), p[-1]


WRONG = {
    "score_by_hand": [
        ("no weight for the score 0", lambda: [0.27, 0.73, 0]),
        ("not divided by √d_k", lambda: [0.12, 0.87, 0.02]),
        ("", lambda: [0.5, 0.25, 0.25]),
    ],
    "masked_softmax": [
        ("mask not applied", lambda s, m: s.softmax(1)),
        ("NaN where something is hidden", lambda s, m: (s - INF * ~m).softmax(1)),
        ("scores clamped", share(lambda s, m: s.clamp(-30, 30).exp() * m)),
        ("exp overflows", share(lambda s, m: (s - (s * m).sum() / m.sum()).exp() * m)),
        ("hidden scores take part", share(lambda s, m: s.softmax(1) * m)),
        (
            "hidden scores set to a finite number",
            lambda s, m: (s + (m.double() - 1) * 1e6).softmax(1),
        ),
        ("NaN where a query sees nothing", lambda s, m: (s + m.log()).softmax(1)),
        (
            "weights where a query sees nothing",
            lambda s, m: s.masked_fill(~m, torch.finfo(s.dtype).min).softmax(1),
        ),
        ("", lambda s, m: soft(s, m).round(decimals=2)),
    ],
    "self_attention": [
        ("not divided by √d_k", lambda x, q, k, v, m: attend(x @ q * 6**0.5, x @ k, x @ v, m)),
        (
            "divided by another size than √d_k",
            lambda x, q, k, v, m: attend(x @ q * (6 / x.size(1)) ** 0.5, x @ k, x @ v, m),
        ),
    ],
    "additive_attention": [
        ("another function for tanh", lambda *a: additive(*a, f=F.relu)),
        ("scaled like a dot product", lambda *a: additive(*a[:4], a[4] / len(a[4]) ** 0.5)),
    ],
    "sinusoidal_positions": [
        ("another base than 10000", lambda n, d: waves(n, d, 1000)),
        (
            "sines and cosines side by side",
            lambda n, d: torch.cat([(w := waves(n, d))[:, ::2], w[:, 1::2]], 1),
        ),
        ("an odd d_model fails", paired),
    ],
    "cross_attention": [
        ("keys or values from x", lambda x, c, q, k, v, o, m: attend(x @ q, c @ k, x @ v @ o, m)),
    ],
    "split_heads": [
        ("split without transpose", lambda x, h: x.reshape(len(x), h, x.shape[1], x.shape[2] // h)),
        ("heads interleaved", lambda x, h: torch.stack([x[..., i::h] for i in range(h)], 1)),
        ("", lambda x, h: list(x.chunk(h, -1))),
    ],
    "merge_heads": [
        ("merged without transpose", lambda x: x.reshape(x.shape[0], x.shape[2], -1)),
        ("heads averaged or added up", lambda x: sum(x[:, i] for i in range(x.shape[1]))),
    ],
    "multi_head_attention": [
        (
            "mask on queries and keys",
            lambda *a: multi(*a, axes=lambda m: m[:, None, None] & m[:, None, :, None]),
        ),
        ("weights averaged over the heads", lambda *a: ((r := multi(*a))[0], r[1].mean(1))),
    ],
    "fused_projection": [("cut into heads first", lambda x, w, h: heads_of(x, w, h).chunk(3, 3))],
    "grouped_query_attention": [
        ("key-value heads tiled", lambda *a: grouped(*a, pick=lambda h, n: h % (6 // n))),
        ("one key-value head for all", lambda *a: grouped(*a, pick=lambda h, n: 0)),
    ],
    "transformer_block": [
        ("norm missing", lambda *a: block(*a, norm=unchanged)),
        ("causal mask missing", lambda *a: block(*a[:4], False, *a[5:])),
        ("no 1e-5 in the norm", lambda *a: block(*a, norm=lambda v: by_std(v, 0))),
        (
            "one word of the future visible",
            lambda *a: block(*a, mask=lambda n: torch.ones(n, n).tril(1) > 0),
        ),
        ("another function for ReLU", lambda *a: block(*a, act=torch.sigmoid)),
        ("dropout when the model is used", lambda *a: block(*a[:6], True)),
    ],
    "attention_pooling": [
        ("not divided by √d_model", lambda *a: pool(*a, scale=0)),
        ("a plain mean", lambda q, x, m: pool(0 * q, x, m)),
    ],
    "head_entropy": [
        ("a number added inside the logarithm", lambda w, m: entropy(w, m, tiny=1e-3)),
        ("NaN from 0 · ln 0", lambda w, m: entropy(w, m, tiny=0)),
        ("division by ln 1", lambda w, m: entropy(w, m, keep=1)),
    ],
    "role_score": [
        ("own position set to 0", lambda w, g: role(w, g, 0.0)),
        ("not all offsets tried", lambda w, g: role(w, g, offsets=[-1, 1])),
    ],
    "measured_rollout": [
        ("half kept everywhere", lambda w, b, k: rollout(w, b, 0 * k + 0.5)),
        ("all heads alike", lambda *a: rollout(*a, heads=lambda a, b: a / len(b))),
        ("own share and rest exchanged", lambda w, b, k: rollout(w, b, 1 - k)),
    ],
    "patch_head": [
        ("removed, not replaced", lambda *a: patch(*a, mix=lambda c, x: 0 * x)),
        ("share lost, not restored", lambda *a: patch(*a, share=lambda a, b, c: (b - a) / (b - c))),
    ],
    "direct_logit_attribution": [
        ("all words raised", lambda *a: attribute(*a, top=lambda x, y: x)),
        ("no division", lambda h, o, s, *a: attribute(h, o, by_std(s, 0), *a)),
        ("", lambda *a: attribute(*a, top=lambda x, y: x + y)),
    ],
    "composed_scores": [
        ("pattern left out", lambda *a: compose(*a, write=lambda x, a: x)),
        ("not divided by √d_k", lambda *a: compose(*a, root=False)),
    ],
    "prefix_mask": [
        ("mask inverted", lambda p, q, k: ~prefixed(p, past(q, k))),
        ("first query at the first key", lambda p, q, k: prefixed(p, torch.ones(q, k).tril())),
        ("prefix read word by word", lambda p, q, k: past(q, k)),
        ("", lambda p, q, k: torch.zeros(q, k).masked_fill(~prefixed(p, past(q, k)), -INF)),
        ("True = hidden", lambda p, q, k: ~past(q, k) | (torch.arange(k) < p)),
    ],
    "combined_mask": [
        ("| for &", lambda n, q, k: past(q, k) | (torch.arange(k) < n[:, None])[:, None, None]),
        ("head axis missing", lambda n, q, k: past(q, k) & (torch.arange(k) < n[:, None])[:, None]),
        (
            "one padded key visible",
            lambda n, q, k: past(q, k) & (torch.arange(k) <= n[:, None])[:, None, None],
        ),
    ],
    "next_word_loss": [
        ("not shifted", lambda x, y, n: guess(x, y, n + 1)),
        ("shifted twice", lambda x, y, n: guess(x[:, :-2], y[:, 2:], n - 1)),
        ("softmax twice", lambda x, y, n: guess(x[:, :-1].softmax(2), y[:, 1:], n)),
    ],
    "next_word_probabilities": [
        ("other positions than the last", lambda x, t, k: next_word(x, t, k, pick=-2)),
        ("multiplied by the temperature", lambda x, t, k: next_word(x, 1 / t, k)),
        ("more than k words kept at a tie", lambda x, t, k: next_word(x, t, k, rank=ties)),
        ("hidden words with a logit of 0", lambda x, t, k: next_word(x, t, k, hide=0.0)),
    ],
    "cached_step": [
        ("positions left out", lambda x, pos, *a: step(x, 0 * pos, *a)),
        ("another position than T", lambda *a: step(*a, at=-1)),
        ("position missing in a part", lambda *a: step(*a, without="qk")),
    ],
    "merge_tiles": [
        ("NaN where no key is seen", lambda *a: tiles(*a, safe=False)),
        (
            "not rescaled",
            lambda a, *b: (torch.max(a, b[2]), *tiles(0 * a, *b[:2], 0 * a, *b[3:])[1:]),
        ),
    ],
    "causal_linear_attention": [
        ("whole text read, not the past", lambda *a: linear(*a, mask=False)),
        ("elu without + 1", lambda *a: linear(*a, phi=F.elu)),
        ("another function for phi", lambda *a: linear(*a, phi=F.relu)),
    ],
    "induction_score": [
        ("the earlier word itself", lambda *a: induction(*a, shift=0)),
        ("rows without an earlier occurrence counted", lambda *a: induction(*a, all_rows=True)),
    ],
    "gated_memory_step": [
        ("lengths left in", lambda *a: memory(*a, unit=lambda x: x)),
        ("nothing taken off", lambda *a: memory(*a, off=0.0)),
    ],
    "absorbed_attention": [
        ("keys or values made", lambda *a: latent(*a, compare=by_keys)),
        ("divided by the size of the absorbed query", lambda *a: latent(*a, size=13)),
        ("", lambda *a: latent(*a, place=-1)),
    ],
    "judge_draft": [
        ("luck ignored", lambda w, q, p, luck: draft(w, q, p, 0 * luck + 1)),
        ("|p - q|", lambda *a: draft(*a, rest=lambda p, q: abs(p - q))),
        ("ratio the wrong way round", lambda *a: draft(*a, ratio=lambda p, q: q / p)),
        ("drawn again from p", lambda *a: draft(*a, rest=lambda p, q: p)),
        ("", lambda *a: draft(*a, rest=lambda p, q: (p - q) ** 2)),
    ],
}
RIGHT = {
    "score_by_hand": lambda: (0.25, 0.67, 0.09),
    "masked_softmax": lambda s, m: torch.where(
        m, (s - s.masked_fill(~m, -INF).logsumexp(1, True)).exp(), 0.0
    ),
    "self_attention": lambda x, q, k, v, m: attend(x @ q @ k.T, x * (11 / 6) ** 0.5, x @ v, m),
    "additive_attention": additive,
    "sinusoidal_positions": waves,
    "cross_attention": cross,
    "split_heads": lambda x, h: torch.einsum("bthc->bhtc", x.unflatten(2, (h, -1))).float(),
    "merge_heads": lambda x: torch.cat(x.unbind(1), -1),
    "multi_head_attention": multi,
    "fused_projection": lambda x, w, h: [heads_of(x, p, h) for p in w.chunk(3, 1)],
    "grouped_query_attention": grouped,
    "transformer_block": block,
    "attention_pooling": pool,
    "head_entropy": lambda w, m: entropy(w.masked_fill(w == 0, 1), m),
    "role_score": role,
    "measured_rollout": rollout,
    "patch_head": patch,
    "direct_logit_attribution": attribute,
    "composed_scores": compose,
    "prefix_mask": lambda p, q, k: prefixed(p, past(q, k)),
    "combined_mask": lambda n, q, k: (
        past(q, k)[None] & (torch.arange(k) < n.view(-1, 1, 1))
    ).unsqueeze(1),
    "next_word_loss": lambda x, y, n: guess(x[:, :-1], y[:, 1:], n),
    "next_word_probabilities": next_word,
    "cached_step": step,
    "merge_tiles": tiles,
    "causal_linear_attention": linear,
    "induction_score": induction,
    "gated_memory_step": memory,
    "absorbed_attention": latent,
    "judge_draft": draft,
}
