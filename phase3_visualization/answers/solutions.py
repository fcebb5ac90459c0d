"""SPOILERS: the reference solutions of the exercises of phase 3, and the inputs on which yours are tried.

A solution is one way among many: yours is right if the checker says so. Its docstring is the task in plain
loops, which `--hint 3` prints; hints 1 and 2 stand in EXERCISES. The mistakes that the checker knows by name are text
edits of this file, in mistakes.py.
"""

import torch
from torch import Tensor

from phase1_single_head.answers.solutions import some_hidden
from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase3_visualization.answers.mistakes import MISTAKES
from shared.attention_utils import causal_mask
from shared.exercise_checker import Case, Exercise, draw

# ---------------------------------------------------------------------------------------------------- the solutions


def head_entropy(weights: Tensor, mask: Tensor) -> Tensor:
    """
    for h in range(H):
        rows = []
        for i in range(T_q):
            visible = [j for j in range(T_k) if mask[i, j]]
            if len(visible) >= 2:                                           # with one key there is no choice
                terms = [-weights[h, i, j] * log(weights[h, i, j]) for j in visible if weights[h, i, j] > 0]
                rows.append(sum(terms) / log(len(visible)))                 # natural logarithms
        entropy[h] = sum(rows) / len(rows)
    """
    visible = mask.sum(dim=-1)  # (T_q, T_k) -> (T_q,)
    choice = visible >= 2
    entropy = torch.special.entr(weights).sum(dim=-1)  # (H, T_q, T_k) -> (H, T_q); entr(w) = -w ln w, and entr(0) = 0
    shares = entropy[:, choice] / visible[choice].log()  # (H, rows with a choice)
    return shares.mean(dim=-1)  # -> (H,)


def role_score(weights: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """
    share = {}
    for h in range(H):
        right = asked = 0
        for n in range(N):
            for i in range(T):
                if gold[n, i].any():
                    others = [j for j in range(T) if j != i]                # never the word itself
                    attended = max(others, key=lambda j: weights[n, h, i, j])
                    right += gold[n, i, attended]
                    asked += 1
        accuracy[h] = right / asked
    for k in [*range(1 - T, 0), *range(1, T)]:                              # "always k words to the right"
        hits = sum(gold[n, i, i + k] for n in range(N) for i in range(T) if 0 <= i + k < T)
        share[k] = hits / asked
    baseline = max(share.values())
    """
    # The repository has both numbers in shared/grammar/scores.py.
    length = weights.size(-1)
    own = torch.eye(length, dtype=torch.bool)
    attended = weights.masked_fill(own, -1).argmax(dim=-1)  # (N, H, T, T) -> (N, H, T)
    right = gold[:, None].expand_as(weights).gather(-1, attended[..., None])[..., 0]  # (N, H, T, T) -> (N, H, T)
    asked = gold.any(dim=-1)  # (N, T, T) -> (N, T)
    accuracy = right.transpose(1, 2)[asked].double().mean(dim=0)  # (N, T, H) -> (asked, H) -> (H,)
    offsets = [*range(1 - length, 0), *range(1, length)]
    hits = torch.stack([gold.diagonal(k, dim1=1, dim2=2).sum() for k in offsets])
    return accuracy, hits.max() / asked.sum()


def attention_rollout(weights: Tensor) -> Tensor:
    """
    for i in range(T):
        rollout[i, i] = 1                                                # before the first layer; 0 elsewhere
    for l in range(L):
        for i in range(T):
            for j in range(T):
                step[i, j] = 0.5 * sum(weights[l, h, i, j] for h in range(H)) / H + 0.5 * (i == j)
        before = rollout.clone()
        for i in range(T):
            for j in range(T):
                rollout[i, j] = sum(step[i, k] * before[k, j] for k in range(T))
    """
    # The repository has it in shared/attention_utils.py.
    identity = torch.eye(weights.size(-1), dtype=weights.dtype)
    rollout = identity
    for layer in weights.mean(dim=1):  # (L, H, T, T) -> (L, T, T)
        step = (layer + identity) / 2
        rollout = step @ rollout
    return rollout


def without_head(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, b_o: Tensor, num_heads: int, removed: int
) -> Tensor:
    """
    d_k = d_model // H
    for b in range(B):
        heads = []
        for h in range(H):
            columns = slice(h * d_k, (h + 1) * d_k)
            query, key, value = x[b] @ w_q[:, columns], x[b] @ w_k[:, columns], x[b] @ w_v[:, columns]
            found = attention(query, key, value)                            # (T, d_k), as in phase 1, no mask
            heads.append(0 * found if h == removed else found)
        output[b] = concatenate(heads, dim=1) @ w_o + b_o                  # (T, d_model) @ (d_model, d_model)
    """
    query, key, value = (split_heads(x @ w, num_heads) for w in (w_q, w_k, w_v))  # (B, T, d_model) -> (B, H, T, d_k)
    heads, _ = scaled_dot_product_attention(query, key, value)
    heads[:, removed] = 0
    return merge_heads(heads) @ w_o + b_o  # (B, H, T, d_k) -> (B, T, d_model)


# -------------------------------------------------------------------------------------------------------- the cases


def entropy_cases() -> list[Case]:
    """H = 3, T_q = 5, T_k = 7; then a square one, whose first row sees a single key."""
    all_visible = torch.ones(5, 7, dtype=torch.bool)
    scores, square = draw((3, 5, 7), (3, 5, 5))
    zero_weights = scores.clone()
    zero_weights[:, torch.arange(5), 2 * torch.arange(5) % 7] = -1000  # so low that the weight is exactly 0

    def weights_of(scores: Tensor, mask: Tensor) -> Tensor:
        return masked_softmax(3 * scores, mask)  # 3 times: sharper, so that heads differ

    return [
        Case(name, (weights_of(scores, mask), mask))
        for name, scores, mask in (
            ("every key visible", scores, all_visible),
            ("some keys hidden", scores, some_hidden(5, 7)),
            ("weights of 0 on visible keys", zero_weights, all_visible),
            ("causal: the first row sees one key", square, causal_mask(5)),
        )
    ]


def role_cases() -> list[Case]:
    """N = 17 sentences, H = 3, T = 7. Own positions get much weight.

    In each case another offset is the best, and no two are right equally often: so no side, no narrow range and no
    single offset is right in all, and each gives a baseline of its own.
    """
    weights = (3 * draw((17, 3, 7, 7))[0] + 1.5 * torch.eye(7)).softmax(dim=-1)
    golds = {
        "": gold_at({2: 13, -5: 10, -1: 3, 1: 4, -2: 6, 3: 7, -3: 5}),
        "a relation to the left": gold_at({-6: 13, -4: 10, 5: 9, -1: 4, 1: 3, 2: 6, -2: 7}),
        "two gold keys for some queries": gold_at({6: 13, 4: 11, -5: 9, 2: 4}) | gold_at({3: 8, -2: 7, -1: 5, 1: 3}),
        "the word before": gold_at({-1: 13, 1: 8, 4: 5, -4: 6}),
        "the word after, or itself": gold_at({1: 13, -1: 8, 0: 17, 4: 5, -3: 6}),
    }
    return [Case(name, (weights, gold)) for name, gold in golds.items()]


def gold_at(hits: dict[int, int]) -> Tensor:
    """Gold keys k words to the right of their query in hits[k] places, one for each query -> bool (17, 7, 7)."""
    gold = torch.zeros(17, 7, 7, dtype=torch.bool)
    for k, count in sorted(hits.items(), key=lambda item: -abs(item[0])):  # far ones first: they have the fewest places
        places = [(n, i) for i in range(max(0, -k), min(7, 7 - k)) for n in range(17)]
        free = [(n, i) for n, i in places if not gold[n, i].any()]
        for n, i in free[:: len(free) // count][:count]:
            gold[n, i, i + k] = True
    return gold


def rollout_cases() -> list[Case]:
    """L = 2, H = 3, T = 5; then as many layers, heads and words as in no other case."""
    return [
        Case(f"{layers} layers, {heads} heads", ((3 * draw((layers, heads, length, length))[0]).softmax(dim=-1),))
        for layers, heads, length in ((2, 3, 5), (3, 2, 7), (1, 5, 3))
    ]


def removed_cases() -> list[Case]:
    """B = 2, T = 5, H = 3, d_k = 7; at last a single head, whose removal leaves the bias."""
    x, *matrices, bias = draw((2, 5, 21), *4 * [(21, 21)], (21,))
    return [
        Case(f"head {removed} of {heads}", (x, *matrices, bias, heads, removed))
        for heads, removed in ((3, 1), (3, 0), (3, 2), (1, 0))
    ]


# --------------------------------------------------------------------------------------- the exercises and their hints

# fmt: off

EXERCISES = (
    Exercise(
        head_entropy, ("entropy",), entropy_cases, MISTAKES["head_entropy"],
        section="roles/README.md", level="medium", minutes=45,
        idea="""
        Entropy is 0 if all weight is on one key, and ln n if n keys share it evenly. So divided by ln n it lies between
        0 and 1, whatever the number n of keys that a row may see.
        """,
        steps="""
        visible   how many keys each row may see                      (T_q,)
        choice    which rows see two or more; the others are left out (T_q,)
        entropy   the sum of -w ln w over the keys                    (H, T_q); torch.special.entr: 0 ln 0 = 0
        shares    entropy / ln visible, of the rows with a choice     (H, rows)
        result    their mean over the rows                            (H,)
        """,
    ),
    Exercise(
        role_score, ("accuracy", "baseline"), role_cases, MISTAKES["role_score"],
        section="2. A name by rule", level="hard", minutes=75,
        idea="""
        Two shares of the same queries: how often the key that a head attends to is a gold key, and how often the word k
        places on is one, for the best k. The first knows words, the second only places.
        """,
        steps="""
        asked      which queries have a gold key                               (N, T)
        attended   the key with the largest weight, the diagonal hidden first  (N, H, T)
        right      is that key gold for this query?                            (N, H, T)
        accuracy   the mean of right over all that were asked                  (H,)
        hits       for each k but 0: how many True on diagonal k of gold       gold.diagonal(k, dim1=1, dim2=2)
        baseline   the largest of these / how many were asked                  ()
        """,
    ),
    Exercise(
        attention_rollout, ("rollout",), rollout_cases, MISTAKES["attention_rollout"],
        section="5. The word that mattered", level="medium", minutes=40,
        idea="""
        A layer is one matrix: half of what was there, half of what the heads bring. Layers one after the other are a
        product of such matrices.
        """,
        steps="""
        layers    the mean of the heads                                 (L, H, T, T) -> (L, T, T)
        step      for one layer: half of it plus half of the identity   (T, T), rows sum to 1
        rollout   the identity at first; then, layer by layer, step @ rollout, the later layer on the left
        """,
    ),
    Exercise(
        without_head, ("output",), removed_cases, MISTAKES["without_head"],
        section="7. A mechanism, explained", level="easy", minutes=30,
        idea="""
        Before w_o the numbers of a head stand by themselves; after it they are mixed with those of the others. So the
        zeros belong before w_o.
        """,
        steps="""
        query, key, value   x @ w_q, x @ w_k, x @ w_v, each cut by split_heads      3 x (B, H, T, d_k)
        heads               scaled_dot_product_attention gives (output, weights)    (B, H, T, d_k)
        heads               the same, with 0 for the removed head                   (B, H, T, d_k)
        output              merge_heads of it, times w_o, plus b_o                  (B, T, d_model)
        """,
    ),
)
# fmt: on

AFTERWARDS = """\
You can now say in numbers what a picture of a head only suggests: how sharp it is, whether it follows a relation more
often than a rule that knows no words, how much of each input word rollout finds in each position, and what is left when
a head is taken out. Next is phase4_causal/README.md, about models that write."""
