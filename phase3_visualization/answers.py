"""SPOILERS: the answers to the exercises of phase 3.

A solution is one way among many: yours is right if it passes. Its docstring has the three hints and
the usual mistakes, edits of its text: see shared/exercise_checker/exercise.py. The solutions use no
file that lessons tell you to change: see phase1_single_head/answers.py.
"""

import math

import torch
from torch import Tensor

from phase1_single_head.answers import masked_softmax, some_hidden
from shared.exercise_checker.exercise import Case, draw, exercise


def entropy_cases() -> list[Case]:
    """H = 3, T_q = 5, T_k = 7; then a square one, whose first row sees a single key."""
    scores, square = draw((3, 5, 7), (3, 5, 5))
    all_visible = torch.ones(5, 7, dtype=torch.bool)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    with_zeros = scores.clone()
    queries = torch.arange(5)
    with_zeros[:, queries, 2 * queries % 7] = -1000  # so low that the weight is exactly 0
    with_zeros[:, 2, 1:] = -1000  # all of the weight on one key
    kinds = (
        ("every key visible", scores, all_visible),
        ("some keys hidden", scores, some_hidden(5, 7)),
        ("weights of 0 on visible keys", with_zeros, all_visible),
        ("causal: the first row sees one key", square, causal),
    )
    return [Case(name, (masked_softmax(3 * each, mask), mask)) for name, each, mask in kinds]


@exercise("entropy", entropy_cases)
def head_entropy(weights: Tensor, mask: Tensor) -> Tensor:
    """
    Entropy is 0 if all weight is on one key, and ln n if n keys share it evenly. So divide by ln n.

    visible   how many keys each row may see                      (T_q,)
    choice    which rows see two or more; the others are left out (T_q,)
    entropy   the sum of -w ln w over the keys   (H, T_q); torch.special.entr: 0 ln 0 = 0
    shares    entropy / ln visible, of the rows with a choice     (H, rows)
    result    their mean over the rows                            (H,)

    for h in range(H):
        rows = []
        for i in range(T_q):
            visible = [j for j in range(T_k) if mask[i, j]]
            if len(visible) >= 2:  # with one key there is no choice
                shares = [weights[h, i, j] for j in visible if weights[h, i, j] > 0]
                terms = [-share * log(share) for share in shares]
                rows.append(sum(terms) / log(len(visible)))                 # natural logarithms
        entropy[h] = sum(rows) / len(rows)

    NaN from 0 · ln 0: the limit is 0: torch.special.entr and torch.xlogy know that
        torch.special.entr(weights) => -(weights * weights.log())
    not normalised: divide each row by the largest entropy it can have, ln of the keys it may see
        / visible[choice].log() =>
    divided by ln T: a row can spread over those keys alone that it may see: divide by their ln
        visible[choice].log() => torch.tensor(weights.size(-1)).log()
    divided by another number than ln n: a row that may see n keys has an entropy of at most ln n
        visible[choice].log() => visible[choice]
        visible[choice].log() => weights.size(-1)
        visible[choice].log() => torch.tensor(len(mask)).log()
        visible[choice].log() => torch.tensor(len(weights)).log()
        visible[choice].log() => entropy[:, choice].max()
        visible[choice].log() => entropy[:, choice].max(dim=-1, keepdim=True).values
    logarithms of two kinds: take the same above and below, ln or base 2: their ratio is the same
        visible[choice].log() => visible[choice].log2()
        torch.special.entr(weights) => (torch.special.entr(weights) / torch.tensor(2).log())
    division by ln 1: a row that may see one key has a limit of ln 1 = 0: leave it out
        >= 2 => >= 1
    a row without a choice counted: a row that may see one key is always sharp: leave it out
        shares.mean(dim=-1) => shares.sum(dim=-1) / len(mask)
        shares.mean(dim=-1) => (shares.sum(dim=-1) + (~choice).sum()) / len(mask)
    a number added inside the logarithm: ln(w + 0.001) is not ln(w); only the term of w = 0 needs
    care, and it is 0
        torch.special.entr(weights) => -(weights * (weights + 0.01).log())
        torch.special.entr(weights) => -(weights * (weights + 0.001).log())
        torch.special.entr(weights) => -(weights * (weights + 0.0001).log())
        torch.special.entr(weights) => -(weights * (weights + 1e-05).log())
        torch.special.entr(weights) => -(weights * weights.clamp(min=0.01).log())
        torch.special.entr(weights) => -(weights * weights.clamp(min=0.001).log())
    sign: ln of a weight below 1 is negative, so the entropy is the sum of -w ln w
        torch.special.entr(weights) => -torch.special.entr(weights)
    a row with all weight on one key left out: it counts, with 0, if its query may see two keys
        shares.mean(dim=-1) => shares.sum(dim=-1) / (shares > 0).sum(dim=-1)
    n down the columns: a row of the mask says what one query may see, so count along the last axis
        return shares.mean(dim=-1) => return (entropy / mask.sum(0).log()[:len(mask)])[:,
        choice].mean(dim=-1)
    1 less the entropy: 0 is for one key, 1 for all alike
        shares.mean(dim=-1) => 1 - shares.mean(dim=-1)
    weights of 0 taken as hidden: a visible key may have a weight of 0; count the keys in the mask
        shares = entropy[:, choice] / visible[choice].log() => shares = entropy[:, choice] /
        (weights > 0).sum(dim=-1)[:, choice].log()
        return shares.mean(dim=-1) => n = (weights > 0).sum(dim=-1); return (entropy / n.clamp(
        min=2).log()).sum(dim=-1) / (n > 1).sum(dim=-1)
        return shares.mean(dim=-1) => n = (weights > 0).sum(dim=-1)[:, choice].clamp(min=2); return
        (entropy[:, choice] / n.log()).mean(dim=-1)
    ratio of sums: divide each row by its own ln n, then take the mean over the rows
        shares.mean(dim=-1) => entropy[:, choice].sum(dim=-1) / visible[choice].log().sum()
    the sum over the rows, not their mean: a longer text would have a larger number
        shares.mean(dim=-1) => shares.sum(dim=-1)
    the mean over the keys, not their sum: the entropy of a row is the sum of -w ln w
        (weights).sum(dim=-1) => (weights).mean(dim=-1)
    mean over another axis: one number for each head, the mean over its rows
        shares.mean(dim=-1) => shares.mean()
        shares.mean(dim=-1) => shares.mean(dim=0)
        shares.mean(dim=-1) => shares
    the largest row, not the mean: the task asks for the mean over the rows
        shares.mean(dim=-1) => shares.amax(dim=-1)
    mean of the rows first: sharp rows that look at different keys have an even mean; take the
    entropy of each
        torch.special.entr(weights) => torch.special.entr(weights.mean(dim=1,
        keepdim=True).expand_as(weights))
    """
    visible = mask.sum(dim=-1)  # (T_q, T_k) -> (T_q,)
    choice = visible >= 2
    # entr(w) is -w ln w, and entr(0) is 0.
    entropy = torch.special.entr(weights).sum(dim=-1)  # (H, T_q, T_k) -> (H, T_q)
    shares = entropy[:, choice] / visible[choice].log()  # (H, rows with a choice)
    return shares.mean(dim=-1)  # -> (H,)


def gold_at(chances: dict[int, float]) -> Tensor:
    """Gold keys k words to the right of their query, with these chances -> bool (17, 7, 7)."""
    table = torch.zeros(7, 7)
    for k, chance in chances.items():
        table += torch.full((7, 7), chance).triu(k).tril(k)
    return torch.rand(17, 7, 7, generator=torch.Generator().manual_seed(1)) < table


def role_cases() -> list[Case]:
    """N = 17 sentences, H = 3, T = 7, another best offset in each; much weight on own positions."""
    weights = (3 * draw((17, 3, 7, 7))[0] + 1.5 * torch.eye(7)).softmax(dim=-1)
    at_the_first = torch.tensor([[1.0, 0], [1, 0]]).double().expand(1, 3, 2, 2)
    other_word = ~torch.eye(2, dtype=torch.bool)[None]
    return [
        Case("", (weights, gold_at({2: 0.3, -5: 0.4, -1: 0.1, 1: 0.1}))),
        Case("a relation to the left", (weights, gold_at({-6: 0.9, -4: 0.2, 5: 0.2, 1: 0.05}))),
        Case("the word after, or itself", (weights, gold_at({1: 0.2, 0: 0.4, 4: 0.2}))),
        Case("two words, each looking at the first", (at_the_first, other_word)),
    ]


@exercise("accuracy, baseline", role_cases)
def role_score(weights: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """
    Count twice: for how many queries does the head find a gold key, and for how many is the word k
    positions further on a gold key?

    has_gold   which queries have a gold key                               (N, T)
    attended   the key with the largest weight, the diagonal hidden first  (N, H, T)
    right      is that key gold for this query?                            (N, H, T)
    accuracy   the mean of right over these queries                        (H,)
    hits   for each k but 0: how many True on diagonal k of gold   gold.diagonal(k, dim1=1, dim2=2)
    baseline   the largest of these / the number of these queries          ()

    share = {}
    for h in range(H):
        right = queries = 0
        for n in range(N):
            for i in range(T):
                if gold[n, i].any():
                    others = [j for j in range(T) if j != i]                # never the word itself
                    attended = max(others, key=lambda j: weights[n, h, i, j])
                    right += gold[n, i, attended]
                    queries += 1
        accuracy[h] = right / queries
    for k in [*range(1 - T, 0), *range(1, T)]:  # "always k words to the right"
        hits = sum(gold[n, i, i + k] for n in range(N) for i in range(T) if 0 <= i + k < T)
        share[k] = hits / queries
    baseline = max(share.values())

    own position counted: a head often looks most at the word itself, so hide the diagonal before
    the argmax (Clark et al. 2019)
        .masked_fill(own, -1) =>
    own position set to 0: where all other weights are 0, too, the word itself may win: set it to -1
        .masked_fill(own, -1) => .masked_fill(own, 0)
    mean over the heads first: score each head: the argmax of their mean may belong to none of them
        attended = weights => attended = weights.mean(dim=1, keepdim=True).expand_as(weights)
    weight on the gold key, not the largest weight: asked is how often the largest weight lies there
        right.transpose => (weights * gold[:, None]).sum(dim=-1).transpose
    queries without a gold key counted: divide both results by the queries that have a gold key
        right.transpose(1, 2)[has_gold].double().mean(dim=0) => right.double().mean(dim=(0, 2))
        has_gold.sum() => has_gold.numel()
    divided by the gold pairs: a query with two gold keys is asked once
        has_gold.sum() => gold.sum()
        .double().mean(dim=0) => .sum(dim=0) / gold.sum()
    gold transposed: gold[n, i, j] says that key j is right for query i: rows are queries
        of_heads = gold => gold = gold.mT; of_heads = gold
    k = 0 among the offsets: the word itself does not count in the baseline either
        [*range(1 - length, 0), *range(1, length)] => range(1 - length, length)
    not all offsets tried: try all from 1 - T to T - 1 but 0: to the left and to the right
        [*range(1 - length, 0), *range(1, length)] => range(1, length)
        [*range(1 - length, 0), *range(1, length)] => range(1 - length, 0)
        [*range(1 - length, 0), *range(1, length)] => [-1, 1]
        [*range(1 - length, 0), *range(1, length)] => [-1]
        [*range(1 - length, 0), *range(1, length)] => [1]
    largest weight of a column: a query is a row, so the argmax is over the last axis, the keys
        argmax(dim=-1) => argmax(dim=-2)
    counts, not shares: divide by how many queries have a gold key
        .double().mean(dim=0) => .sum(dim=0)
    mean over the heads: accuracy has a number for each head
        .double().mean(dim=0) => .double().mean()
    mean over sentences: all queries of all sentences count alike, so do not take the mean of each
    sentence first
        right.transpose(1, 2)[has_gold].double().mean(dim=0) => (right.sum(dim=-1) /
        has_gold.sum(dim=-1, keepdim=True)).nanmean(dim=0)
    mean over sentences: all queries of all sentences count alike, so do not take the mean of each
    sentence first
        right.transpose(1, 2)[has_gold].double().mean(dim=0) => (right.sum(dim=-1) /
        has_gold.sum(dim=-1, keepdim=True)).nanmean(dim=0)
        and hits.max() / has_gold.sum() => torch.stack([(gold.diagonal(k, dim1=1, dim2=2).sum(-1) /
        has_gold.sum(-1)).nanmean() for k in offsets]).max()
    a k for each sentence: the rule knows no sentence; take the k that is best for all of them
    together
        torch.stack([gold.diagonal(k, dim1=1, dim2=2).sum() for k in offsets]) =>
        torch.stack([gold.diagonal(k, dim1=1, dim2=2).sum(-1) for k in offsets]).amax(0).sum()
    an offset that wraps round: roll takes the last word to the first; where there is no word k
    further on, the rule misses
        dim2=2).sum() => dim2=2).sum() + gold.diagonal(k - length, dim1=1, dim2=2).sum()
    left and right added up: the rule goes k words to the right, or to the left, and not both
        dim2=2).sum() => dim2=2).sum() + gold.diagonal(-k, dim1=1, dim2=2).sum()
    divided by the words that have a neighbour: a rule that runs out of the sentence misses; divide
    by all queries that have a gold key
        dim2=2).sum() => dim2=2).double().mean()
        and / has_gold.sum() =>
    """
    length = weights.size(-1)
    own = torch.eye(length, dtype=torch.bool)
    attended = weights.masked_fill(own, -1).argmax(dim=-1)  # (N, H, T, T) -> (N, H, T)
    of_heads = gold[:, None].expand_as(weights)  # (N, T, T) -> (N, H, T, T)
    right = of_heads.gather(-1, attended[..., None])[..., 0]  # (N, H, T, T) -> (N, H, T)
    has_gold = gold.any(dim=-1)  # (N, T, T) -> (N, T)
    accuracy = right.transpose(1, 2)[has_gold].double().mean(dim=0)  # (queries, H) -> (H,)
    offsets = [*range(1 - length, 0), *range(1, length)]
    hits = torch.stack([gold.diagonal(k, dim1=1, dim2=2).sum() for k in offsets])
    return accuracy, hits.max() / has_gold.sum()


def rollout_cases() -> list[Case]:
    """L, H and T differ in each."""
    cases = []
    for layers, heads, length in ((2, 3, 5), (3, 2, 7), (1, 5, 3)):
        scores, by_head, own = draw(
            (layers, heads, length, length), (layers, heads), (layers, length)
        )
        inputs = ((3 * scores).softmax(dim=-1), (3 * by_head).softmax(dim=-1), (2 * own).sigmoid())
        cases.append(Case(f"{layers} layers, {heads} heads", inputs))
    return cases


@exercise("rollout", rollout_cases)
def measured_rollout(weights: Tensor, by_head: Tensor, own_share: Tensor) -> Tensor:
    """
    A layer is one matrix: what each row keeps of itself, plus what the heads bring. Multiply all of
    them.

    heads     of one layer, each times its by_head, added up          (H, T, T) -> (T, T)
    own       own_share of one layer as a column: of the rows         (T,) -> (T, 1)
    step      own times the identity plus (1 - own) times heads       (T, T), rows sum to 1
    rollout   the identity at first; then, layer by layer, step @ rollout, the later layer on the
              left

    for i in range(T):
        rollout[i, i] = 1  # before the first layer; 0 elsewhere
    for l in range(L):
        for i in range(T):
            for j in range(T):
                heads = sum(by_head[l, h] * weights[l, h, i, j] for h in range(H))
                step[i, j] = (1 - own_share[l, i]) * heads + own_share[l, i] * (i == j)
        before = rollout.clone()
        for i in range(T):
            for j in range(T):
                rollout[i, j] = sum(step[i, k] * before[k, j] for k in range(T))

    residual missing: a position keeps a share of what it was; without it all rows soon look alike
        own * identity + (1 - own) * heads => heads
    half kept everywhere: how much a position keeps was measured: own_share[l, i], not one half
        own = own_of_layer[:, None] => own = torch.tensor(0.5)
    kept on the keys: what a position keeps belongs to its row, the query: own_share[l][:, None]
        own = own_of_layer[:, None] => own = own_of_layer
    rows not renormalised: a position that keeps some of itself takes only the rest, 1 - own_share
        (1 - own) * heads => heads
    product in the wrong order: the later layer stands on the left: step @ before
        step @ rollout => rollout @ step
    all heads alike: each head counts by_head[l, h], which need not be 1 / H
        (shares[:, None, None] * layer).sum(dim=0) => layer.mean(dim=0)
        (shares[:, None, None] * layer).sum(dim=0) => layer.sum(dim=0)
        (shares[:, None, None] * layer).sum(dim=0) => layer.amax(dim=0)
    by_head divided by H: it is 1 in all already, so add up the heads, each times its number
        (shares[:, None, None] * layer).sum(dim=0) => (shares[:, None, None] * layer).mean(dim=0)
    one head alone: each head counts by_head[l, h]; add up all of them
        (shares[:, None, None] * layer).sum(dim=0) => layer[shares.argmax()]
    own share and rest exchanged: own_share is what a position keeps, 1 - own_share what it takes
        own * identity + (1 - own) * heads => (1 - own) * identity + own * heads
    the whole kept: a position keeps own_share of what it was, not all of it
        own * identity + => identity +
    rows divided afterwards: take 1 - own_share of the heads, and no row needs to be divided
        own * identity + (1 - own) * heads => (own * identity + heads) / (1 + own)
        (1 - own) * heads => heads
        and return rollout => return rollout / rollout.sum(-1, True)
    pattern transposed: rows of weights are queries; row i says what position i takes
        * layer).sum(dim=0) => * layer).sum(dim=0).T
    result transposed: row i of the result says how much of each input word is in position i
        return rollout => return rollout.T
    multiplied place by place: layers follow one another as a matrix product, @
        step @ rollout => step * rollout
    layers added up: a layer mixes what the layer before has mixed: step @ rollout
        step @ rollout => step + rollout
        step @ rollout => step + rollout
        and return rollout => return (rollout - identity) / len(weights)
    only the last layer: begin with what the layers before have mixed: step @ rollout
        step @ rollout => step
    last layer left out: all L layers follow one another
        zip(weights, by_head, own_share, strict=True) => zip(weights[:-1], by_head, own_share)
    own share of the word, not of the row: a position keeps own_share of what the layer before left
    there: own * rollout
        step @ rollout => own * identity + (1 - own) * heads @ rollout
        step @ rollout => own * rollout + (1 - own) * heads
    begun with another matrix: before the first layer each position is its own word, the identity
        rollout = identity => rollout = 0 * identity
        rollout = identity => rollout = torch.ones_like(identity)
    """
    identity = torch.eye(weights.size(-1), dtype=weights.dtype)
    rollout = identity
    for layer, shares, own_of_layer in zip(weights, by_head, own_share, strict=True):
        heads = (shares[:, None, None] * layer).sum(dim=0)  # (H, T, T) -> (T, T)
        own = own_of_layer[:, None]  # (T,) -> (T, 1)
        step = own * identity + (1 - own) * heads
        rollout = step @ rollout
    return rollout


def patch_cases() -> list[Case]:
    """B = 2, T = 5, H = 3, d_v = 7; a share is below 0, one above 1; at last a single head."""
    clean, corrupted, w_o, direction = draw((2, 5, 21), (2, 5, 21), (21, 21), (21,))
    cases = []
    for num_heads, patched in ((3, 1), (3, 0), (3, 2), (1, 0)):
        inputs = (clean, corrupted, w_o, direction, num_heads, patched)
        cases.append(Case(f"head {patched} of {num_heads}", inputs))
    return cases


@exercise("output, restored", patch_cases)
def patch_head(
    clean: Tensor, corrupted: Tensor, w_o: Tensor, direction: Tensor, num_heads: int, patched: int
) -> tuple[Tensor, Tensor]:
    """
    Before w_o a head has columns of its own: take these from the clean text, all others from the
    corrupted one.

    columns    patched * d_v to (patched + 1) * d_v, with d_v = d_model / H
    output     the corrupted text with these columns of the clean one, times w_o    (B, T, d_model)
    difference of output, clean @ w_o and corrupted @ w_o: the last position times direction, mean
               over texts
    restored   (patched - corrupted) / (clean - corrupted), of these differences    ()

    d_v = d_model // H
    mixed = corrupted.clone()
    for c in range(patched * d_v, (patched + 1) * d_v):
        mixed[:, :, c] = clean[:, :, c]  # of all texts and positions
    output = mixed @ w_o
    difference = sum(output[b, T - 1] @ direction for b in range(B)) / B
    clean_difference = sum(clean[b, T - 1] @ w_o @ direction for b in range(B)) / B
    corrupted_difference = sum(corrupted[b, T - 1] @ w_o @ direction for b in range(B)) / B
    lost = clean_difference - corrupted_difference
    restored = (difference - corrupted_difference) / lost

    every H-th column patched: the d_v columns of a head stand together, from patched * d_v on
        torch.arange(len(w_o)) // d_v => torch.arange(len(w_o)) % num_heads
    clean and corrupted swapped: read the corrupted text, and put in one head from the clean one
        torch.where(columns, clean, corrupted) => torch.where(columns, corrupted, clean)
    output without w_o: the heads are put side by side, and then comes w_o
        return (output, => return (torch.where(columns, clean, corrupted),
    removed, not replaced: zeros are ablation: the head hands on what it gave for the clean text
        torch.where(columns, clean, corrupted) => torch.where(columns, 0.0, corrupted)
    added, not replaced: what the head gave for the corrupted text must go
        torch.where(columns, clean, corrupted) => torch.where(columns, clean + corrupted, corrupted)
    patched after w_o: w_o mixes the heads: put in the columns before it
        torch.where(columns, clean, corrupted) @ w_o => torch.where(columns, clean @ w_o, corrupted
        @ w_o)
    share of the clean difference: restored is 0 where nothing changed, so subtract the corrupted
    difference above and below
        (difference - corrupted_difference) / lost => difference / clean_difference
    divided by the clean difference alone: no more can come back than clean - corrupted, so divide
    by that
        / lost => / clean_difference
    share lost, not restored: what came back is patched - corrupted
        (difference - corrupted_difference) / => (clean_difference - difference) /
    another head: heads are counted from 0; head h has the columns h · d_v to (h + 1) · d_v
        == patched => == patched - 1
        == patched => == (patched + 1) % num_heads
    more than one head: the columns end before (h + 1) · d_v, and begin at h · d_v
        == patched => <= patched
    only the last position patched: earlier positions are patched as well, since the task says all
    of them
        torch.where(columns, clean, corrupted) => torch.where(columns & (torch.arange(clean.size(1))
        == clean.size(1) - 1)[:, None], clean, corrupted)
    not divided: restored is a share of what was lost, clean - corrupted
        / lost =>
    upside down: what came back, patched - corrupted, stands above; what was lost below
        (difference - corrupted_difference) / lost => lost / (difference - corrupted_difference)
    sign: what came back is patched - corrupted, not the other way round
        (difference - corrupted_difference) / => (corrupted_difference - difference) /
    divided by the corrupted difference: what can come back is clean - corrupted, so divide by that
        / lost => / corrupted_difference
    mean of the ratios: take the mean of each difference over the texts first, then divide
        .mean() =>
        and (difference - corrupted_difference) / lost => ((difference - corrupted_difference) /
        lost).mean()
    a number for each text: take the mean of each difference over the texts
        .mean() =>
    all positions measured: the logit difference is that of the last position
        [:, -1] =>
    another position than the last measured: the answer comes at the last one, [:, -1]
        [:, -1] => [:, 0]
    w_o transposed: it is used as x @ w_o here, and not as nn.Linear does
        corrupted) @ w_o => corrupted) @ w_o.T
        and clean @ w_o => clean @ w_o.T
        and corrupted @ w_o => corrupted @ w_o.T
    corrupted overwritten: mixed = corrupted is the same tensor by another name; corrupted.clone()
    is a copy
        ((corrupted @ w_o) => ((torch.where(columns, clean, corrupted) @ w_o)
    """
    d_v = len(w_o) // num_heads
    columns = torch.arange(len(w_o)) // d_v == patched  # (d_model,): those of the head
    output = torch.where(columns, clean, corrupted) @ w_o  # (B, T, d_model)
    difference = (output[:, -1] @ direction).mean()  # (B, d_model) @ (d_model,) -> (B,) -> ()
    clean_difference = ((clean @ w_o)[:, -1] @ direction).mean()
    corrupted_difference = ((corrupted @ w_o)[:, -1] @ direction).mean()
    lost = clean_difference - corrupted_difference
    return output, (difference - corrupted_difference) / lost


def attribution_cases() -> list[Case]:
    """H = 3, T = 5, d_v = 7, d_model = 11, V = 13; no mean is near 0."""
    heads, w_o, stream, unembedding = draw((3, 5, 7), (21, 11), (5, 11), (11, 13))
    right = torch.tensor([2, 0, 12, 7, 2])
    return [Case("", (heads, w_o + 0.3, 3 * stream + 1, unembedding + 0.2, right))]


@exercise("shares", attribution_cases)
def direct_logit_attribution(
    heads: Tensor, w_o: Tensor, stream: Tensor, unembedding: Tensor, right: Tensor
) -> Tensor:
    """
    What is added to a sum can be read alone, if what is done to the sum is done to each part of it.

    added     each head times its own rows of w_o    (H, T, d_v) @ (H, d_v, d_model)
    centred   added less its mean over d_model       (H, T, d_model)
    spread    the standard deviation of the stream   (T, 1)
    logits    centred / spread, times unembedding    (H, T, V)
    shares    the logit of the right word less the mean of all V, then the mean over positions  (H,)

    for h in range(H):
        shares[h] = 0
        for t in range(T):
            mean = sum(stream[t]) / d_model
            spread = sqrt(sum((number - mean) ** 2 for number in stream[t]) / d_model)
            added = heads[h, t] @ w_o[h * d_v : (h + 1) * d_v]                  # d_model numbers
            logits = (added - sum(added) / d_model) / spread @ unembedding      # V numbers
            shares[h] += (logits[right[t]] - sum(logits) / V) / T

    each head divided by its own deviation: in the model the whole stream was divided by one number,
    so a head that adds little counts little
        stream.std => added.std
        centred / spread => torch.nn.functional.layer_norm(added, added.shape[-1:])
    no division: the last norm divides by the deviation of the stream, at each position by its own
        centred / spread => centred
    mean of the head left in: the last norm takes the mean off the stream, so off each part of it
        centred / spread => added / spread
    another standard deviation: it is the root of the mean of the squared differences: divide by
    d_model, not by d_model - 1
        correction=0 => correction=1
    all words raised: a head that raises every logit says nothing: take the mean of the logits off
        - logits.mean(dim=-1) =>
    probabilities, not logits: shares of logits add up over the heads; what softmax makes of them
    does not
        logits[:, places, right] - logits.mean(dim=-1) => logits.softmax(dim=-1)[:, places, right]
        logits[:, places, right] - logits.mean(dim=-1) => logits.log_softmax(dim=-1)[:, places,
        right]
    every H-th row of w_o: the d_v rows of a head stand together, from h * d_v on
        w_o.unflatten(0, (len(heads), -1)) => w_o.unflatten(0, (-1, len(heads))).transpose(0, 1)
    no norm at all: what a head adds loses its mean and is divided by the deviation of the stream
        centred / spread => added
    mean of the stream taken off: take off the mean of what the head added; only the deviation is
    the stream's
        added - added.mean(dim=-1, keepdim=True) => added - stream.mean(dim=-1, keepdim=True)
    divided by the variance: the deviation is its root
        .std(dim=-1, correction=0) => .var(dim=-1, correction=0)
    norm over the wrong axis: each position has a mean and a deviation of its own, over d_model
        stream.std(dim=-1, correction=0)[..., None] => stream.std(correction=0)
        stream.std(dim=-1, correction=0)[..., None] => stream.std(dim=0, correction=0)
        and added.mean(dim=-1, keepdim=True) => added.mean(dim=1, keepdim=True)
    deviation without the mean: subtract the mean of the stream before you square
        stream.std(dim=-1, correction=0)[..., None] => stream.square().mean(dim=-1,
        keepdim=True).sqrt()
        stream.std(dim=-1, correction=0)[..., None] => stream.square().mean(dim=-1,
        keepdim=True).sqrt()
        and centred / spread => added / spread
    less the best other word: the task takes off the mean of the logits of all words
        - logits.mean(dim=-1) => - logits.scatter(-1, right.expand(len(heads), -1)[..., None],
        -math.inf).amax(dim=-1)
    mean of the other words: the mean is over all V words, the right one included
        - logits.mean(dim=-1) => - (logits.sum(dim=-1) - logits[:, places, right]) /
        (logits.size(-1) - 1)
    mean over the positions subtracted: the logit of the right word is compared with the mean over
    all words, at each position
        - logits.mean(dim=-1) => - logits.mean(dim=1)[:, right]
    the sum over the positions: the share of a head is a mean over them
        shares.mean(dim=-1) => shares.sum(dim=-1)
    only the last position: the share of a head is a mean over all positions
        shares.mean(dim=-1) => shares[:, -1]
    right words of all positions at each: logits[:, right] takes all of them; index the positions,
    too
        logits[:, places, right] => logits[:, :, right].mean(dim=-1)
    rows of head 0 for all: head h has the rows h * d_v to (h + 1) * d_v of w_o
        w_o.unflatten(0, (len(heads), -1)) => w_o[:heads.size(-1)]
    """
    added = heads @ w_o.unflatten(0, (len(heads), -1))  # (H, T, d_v) -> (H, T, d_model)
    centred = added - added.mean(dim=-1, keepdim=True)
    spread = stream.std(dim=-1, correction=0)[..., None]  # (T, d_model) -> (T, 1)
    logits = centred / spread @ unembedding  # (H, T, d_model) @ (d_model, V) -> (H, T, V)
    places = torch.arange(len(right))
    shares = logits[:, places, right] - logits.mean(dim=-1)  # -> (H, T)
    return shares.mean(dim=-1)


def composition_cases() -> list[Case]:
    """T = 5, d_model = 11, d_v = 3, d_k = 7."""
    scores, *matrices = draw((5, 5), (11, 3), (3, 11), (11, 7), (11, 7))
    (x,) = draw((5, 11), seed=1)
    return [Case("", (x, (3 * scores).softmax(dim=-1), *matrices))]


def scores_between(asks: Tensor, answers: Tensor, w_q: Tensor, w_k: Tensor) -> Tensor:
    """Two streams (T, d_model), of which queries and keys are made -> (T, T)."""
    return asks @ w_q @ (answers @ w_k).T / math.sqrt(w_k.size(-1))


@exercise("by_keys, by_queries", composition_cases)
def composed_scores(
    x: Tensor, weights: Tensor, w_v: Tensor, w_o: Tensor, w_q: Tensor, w_k: Tensor
) -> tuple[Tensor, Tensor]:
    """
    What the lower head wrote is a stream of vectors like x. Scores can be made of any two streams.

    written      the values of x, weighed, times w_o                            (T, d_model)
    by_keys      x times w_q; written times w_k, transposed; divided by √d_k    (T, T)
    by_queries   written times w_q; x times w_k, transposed; divided by √d_k    (T, T)

    for i in range(T):
        written[i] = sum(weights[i, j] * x[j] for j in range(T)) @ w_v @ w_o
    for i in range(T):
        for j in range(T):
            by_keys[i, j] = (x[i] @ w_q) @ (written[j] @ w_k) / sqrt(d_k)
            by_queries[i, j] = (written[i] @ w_q) @ (x[j] @ w_k) / sqrt(d_k)

    pattern left out: the lower head writes at a place what it found at others: weights @ values
        weights @ x @ w_v => x @ w_v
    pattern transposed: rows of weights are queries: place i gets the values weighed by row i
        weights @ x @ w_v => weights.T @ x @ w_v
    x counted as well: these parts ask only what was written, without the x to which it is added
        weights @ x @ w_v @ w_o => x + weights @ x @ w_v @ w_o
    written on both sides: that is the fourth part: the other side of each is made of x alone
        scores_between(x, written, w_q, w_k) => scores_between(written, written, w_q, w_k)
        scores_between(x, written, w_q, w_k), scores_between(written, x, w_q, w_k) =>
        scores_between(written, written, w_q, w_k), scores_between(written, written, w_q, w_k)
    not divided by √d_k: the dot products are too large by that factor
        / math.sqrt(w_k.size(-1)) =>
    K Qᵀ instead of Q Kᵀ: rows belong to queries, columns to keys
        asks @ w_q @ (answers @ w_k).T => answers @ w_k @ (asks @ w_q).T
    written on neither side: in by_keys the keys are made of what was written, in by_queries the
    queries
        scores_between(x, written, w_q, w_k), scores_between(written, x, w_q, w_k) =>
        scores_between(x, x, w_q, w_k), scores_between(x, x, w_q, w_k)
    written counted on both sides: one side is made of what was written alone, the other of x alone
        scores_between(x, written, w_q, w_k), scores_between(written, x, w_q, w_k) =>
        scores_between(x + written, written, w_q, w_k), scores_between(written, x + written, w_q,
        w_k)
    all four parts: of the sum x + written each takes one part: x on one side, what was written on
    the other
        scores_between(x, written, w_q, w_k), scores_between(written, x, w_q, w_k) =>
        scores_between(x + written, x + written, w_q, w_k), scores_between(x + written, x + written,
        w_q, w_k)
    divided by another size than √d_k: a score is a sum of d_k products; divide by the root of that
        math.sqrt(w_k.size(-1)) => w_k.size(-1)
        math.sqrt(w_k.size(-1)) => math.sqrt(w_k.size(0))
        math.sqrt(w_k.size(-1)) => math.sqrt(3)
    softmax of the scores: the task asks for the scores; parts of a score add up, parts of a softmax
    do not
        return asks => return (asks
        and math.sqrt(w_k.size(-1)) => math.sqrt(w_k.size(-1))).softmax(dim=-1)
    w_q and w_k exchanged: who asks goes through w_q, who answers through w_k
        asks @ w_q @ (answers @ w_k).T => asks @ w_k @ (answers @ w_q).T
    a mask: there is none here, so that no score is -inf
        return asks => return (asks
        and math.sqrt(w_k.size(-1)) => math.sqrt(w_k.size(-1))).masked_fill(torch.ones(len(asks),
        len(asks)).triu(1) > 0, -math.inf)
    by_keys transposed: by_queries has queries of its own, made by w_q from what was written
        scores_between(written, x, w_q, w_k) => scores_between(x, written, w_q, w_k).T
    weights applied twice: the lower head takes its weights once, of its values
        weights @ x @ w_v => weights @ weights @ x @ w_v
    a norm: there are no norms here
        scores_between(x, written, w_q, w_k), scores_between(written, x, w_q, w_k) =>
        scores_between(x, torch.nn.functional.layer_norm(written, written.shape[-1:]), w_q, w_k),
        scores_between(torch.nn.functional.layer_norm(written, written.shape[-1:]), x, w_q, w_k)
    """
    written = weights @ x @ w_v @ w_o  # (T, T) @ (T, d_model) -> (T, d_v) -> (T, d_model)
    return scores_between(x, written, w_q, w_k), scores_between(written, x, w_q, w_k)


EXERCISES = (
    head_entropy,
    role_score,
    measured_rollout,
    patch_head,
    direct_logit_attribution,
    composed_scores,
)
AFTERWARDS = """\
You can now say in numbers what a picture of a head only suggests: how sharp it is, what it follows,
what it carries, what it says, and who reads it. Next is phase4_causal/README.md, about models that
write."""
