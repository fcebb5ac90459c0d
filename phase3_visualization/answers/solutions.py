"""SPOILERS: the reference solutions of the exercises of phase 3, and the inputs on which yours are tried.

Try exercises.py first, then compare. A solution is one way among many: yours is right if the checker says so. The
mistakes that the checker knows by name are in exercise_mistakes.py and exercise_layer_mistakes.py.
"""

import torch
from torch import Tensor

from phase1_single_head.answers.solutions import some_hidden
from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.answers.mistakes import named
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase3_visualization.answers.layer_mistakes import HINTS as LAYER_HINTS
from phase3_visualization.answers.layer_mistakes import REMOVED, ROLLOUT
from phase3_visualization.answers.mistakes import ENTROPY, HINTS, ROLE
from shared.attention_utils import causal_mask
from shared.exercise_checker import Case, Exercise, draw

# ---------------------------------------------------------------------------------------------------- the solutions


def head_entropy(weights: Tensor, mask: Tensor) -> Tensor:
    visible = mask.sum(dim=-1)  # (T_q, T_k) -> (T_q,)
    choice = visible >= 2
    entropy = torch.special.entr(weights).sum(dim=-1)  # (H, T_q, T_k) -> (H, T_q); entr(w) = -w ln w, and entr(0) = 0
    return (entropy[:, choice] / visible[choice].log()).mean(dim=-1)  # (H, rows with a choice) -> (H,)


def role_score(weights: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    length = weights.size(-1)
    own = torch.eye(length, dtype=torch.bool)
    attended = weights.masked_fill(own, -1).argmax(dim=-1)  # (N, H, T, T) -> (N, H, T)
    right = gold[:, None].expand_as(weights).gather(-1, attended[..., None])[..., 0]  # (N, H, T, T) -> (N, H, T)
    asked = gold.any(dim=-1)  # (N, T, T) -> (N, T)
    accuracy = right.transpose(1, 2)[asked].double().mean(dim=0)  # (N, T, H) -> (asked, H) -> (H,)
    hits = [gold.diagonal(k, dim1=1, dim2=2).sum() for k in range(1 - length, length) if k != 0]
    return accuracy, torch.stack(hits).max() / asked.sum()


def attention_rollout(weights: Tensor) -> Tensor:
    identity = torch.eye(weights.size(-1), dtype=weights.dtype)
    rollout = identity
    for layer in weights.mean(dim=1):  # (L, H, T, T) -> (L, T, T)
        rollout = (layer + identity) / 2 @ rollout
    return rollout


def without_head(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, b_o: Tensor, num_heads: int, removed: int
) -> Tensor:
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
    """N = 4 sentences, H = 3, T = 7. Own positions get much weight; gold keys lie at several distances."""
    weights = (3 * draw((4, 3, 7, 7))[0] + 1.5 * torch.eye(7)).softmax(dim=-1)
    gold = torch.zeros(4, 7, 7, dtype=torch.bool)
    pairs = ((0, 1, 4), (0, 5, 2), (0, 6, 3), (1, 2, 5), (2, 3, 6), (2, 0, 2), (3, 5, 2), (3, 1, 3), (3, 6, 4))
    for n, i, j in pairs:
        gold[n, i, j] = True
    several = gold.clone()
    several[0, 1, 6] = several[3, 5, 3] = True
    return [Case("", (weights, gold)), Case("two gold keys for some queries", (weights, several))]


def rollout_cases() -> list[Case]:
    """L = 3, H = 2, T = 5; then as many layers, heads and words as in no other case."""
    return [
        Case(f"{layers} layers, {heads} heads", ((3 * draw((layers, heads, length, length))[0]).softmax(dim=-1),))
        for layers, heads, length in ((3, 2, 5), (2, 3, 7), (1, 5, 3))
    ]


def removed_cases() -> list[Case]:
    """B = 2, T = 5, H = 3, d_k = 7; at last a single head, whose removal leaves the bias."""
    x, *matrices, bias = draw((2, 5, 21), *4 * [(21, 21)], (21,))
    return [
        Case(f"head {removed} of {heads}", (x, *matrices, bias, heads, removed))
        for heads, removed in ((3, 1), (3, 0), (3, 2), (1, 0))
    ]


EXERCISES = (
    Exercise(head_entropy, ("entropy",), entropy_cases, named(ENTROPY, HINTS)),
    Exercise(role_score, ("accuracy", "baseline"), role_cases, named(ROLE, HINTS)),
    Exercise(attention_rollout, ("rollout",), rollout_cases, named(ROLLOUT, LAYER_HINTS)),
    Exercise(without_head, ("output",), removed_cases, named(REMOVED, LAYER_HINTS)),
)
