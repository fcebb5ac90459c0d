"""What each head does, measured so that a head under a causal mask and one without can be compared; no script.

A mask changes the question: row i of a causal head may see i + 1 keys, not all T. So everything here takes the mask of
what each row may see, and a number is divided by what even weights, 1/n on each visible key, give in the same row:

    entropy     / ln(n)                          1: does not choose, 0: one key          (shared/attention_utils.py)
    distance    / mean |i - j| of the n keys     1: as far as even weights, 0: looks at itself

Used by phase4_causal/masking/mask_patterns.py, which shows what comes out:

    python phase4_causal/masking/mask_patterns.py
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase3_visualization.roles.head_roles import MARGIN
from phase4_causal.masking.mask_training import ATTENTION, WITH, WITHOUT, under
from shared import training
from shared.attention_utils import attention_distance, causal_mask, padding_mask
from shared.grammar.scores import DIRECTIONS, best_fixed_offset, gold_matrices, relation_name, score_heads
from shared.head_statistics import even_weights, first_share, head_statistics, offset_share
from shared.toy_language import RELATIONS, Sentence
from shared.toy_model import ToyTransformer
from shared.training import Trained

OFFSETS = {"itself": 0, "previous word": -1, "next word": 1}
FIRST = "first token"
BOTH, CUT, CAUSAL = "both sides", "the same, mask added", "trained with the mask"
KINDS = (BOTH, CUT, CAUSAL)
LAST_ROWS = 60  # sentences whose last row is looked at
SPREADS = ("entropy", "normalised entropy", "distance", "normalised distance")


@dataclass(frozen=True)
class Patterns:
    """All weights of a model on some sentences.

    layers: one (N, H, T, T) for each layer. real: bool (N, 1, T, T), query and key are real tokens. mask: the same, and
    this query may see this key. shift: tokens before the first word, 1 for <start>.
    """

    layers: list[Tensor]
    real: Tensor
    mask: Tensor
    shift: int


def tokens_of(sentences: list[Sentence], objective: str) -> tuple[Tensor, Tensor]:
    """What a model reads: tokens (N, T), lengths (N,). A next-word model never reads <end>, it only predicts it."""
    tokens, lengths = training.to_batch(sentences, objective)
    return (tokens[:, :-1], lengths - 1) if objective == "next word" else (tokens, lengths)


@torch.no_grad()
def weights_on(model: ToyTransformer, tokens: Tensor, lengths: Tensor) -> list[Tensor]:
    """Weights of each layer (N, H, T, T), padding hidden."""
    device = model.positions.device
    _, layers = model(tokens.to(device), mask=padding_mask(lengths, tokens.size(1)).to(device))
    return [weights.cpu() for weights in layers]


def read(trained: Trained, sentences: list[Sentence]) -> Patterns:
    """The patterns of a model on the sentences; one that was trained on next words is taken for causal."""
    causal = trained.recipe.objective == "next word"
    tokens, lengths = tokens_of(sentences, trained.recipe.objective)
    keys = padding_mask(lengths, tokens.size(1))  # (N, 1, 1, T)
    real = keys & keys.mT  # (N, 1, 1, T) -> (N, 1, T, T)
    layers = weights_on(trained.model, tokens, lengths)
    return Patterns(layers, real, real & causal_mask(tokens.size(1)) if causal else real, shift=int(causal))


def cut(patterns: Patterns) -> Patterns:
    """The same weights with the future taken away and the rows scaled back to 1: the mask alone, nothing else changed.

    In the first layer this is exactly what the model computes under the mask; in deeper layers the model would compute
    something new, since what it reads there has changed. Raises ValueError for a row with no weight on its past.
    """
    mask = patterns.mask & causal_mask(patterns.mask.size(-1))
    layers = []
    for weights in patterns.layers:
        past = weights.double().masked_fill(~mask, 0)
        total = past.sum(dim=-1, keepdim=True)  # (N, H, T, T) -> (N, H, T, 1)
        if (total.eq(0) & mask.any(dim=-1, keepdim=True)).any():
            raise ValueError("a row has no weight on its past, so that nothing is left to scale: use float64 weights")
        layers.append(past / total.masked_fill(total == 0, 1))  # rows of padding stay 0
    return replace(patterns, layers=layers, mask=mask)


def normalized_distance(weights: Tensor, mask: Tensor) -> Tensor:
    """Mean |i - j| of each row over that of even weights on the keys it may see -> (..., T).

    weights (..., T, T), mask bool, broadcastable to it. NaN for a row with fewer than two keys, which has no choice.
    """
    even = attention_distance(even_weights(mask))  # (..., T, T) -> (..., T)
    return (attention_distance(weights) / even).masked_fill(mask.sum(dim=-1) < 2, torch.nan)


def spread(patterns: Patterns) -> dict[str, float]:
    """Each of SPREADS, mean over rows, heads and layers: raw entropy in nats, raw distance in positions."""
    found = []
    for weights in patterns.layers:
        statistics = head_statistics(weights, patterns.mask)
        statistics["normalised distance"] = normalized_distance(weights, patterns.mask).double().nanmean(dim=(0, 2))
        found.append(torch.stack([statistics[name] for name in SPREADS]))  # (4, H)
    return dict(zip(SPREADS, torch.cat(found, dim=-1).mean(dim=-1).tolist(), strict=True))


def even(patterns: Patterns) -> Patterns:
    """The head that does not choose, under the same mask."""
    return replace(patterns, layers=[even_weights(patterns.mask)])


def received(weights: Tensor, mask: Tensor) -> Tensor:
    """Share of all weight that each key gets, mean over rows and then sentences: (N, H, T, T) -> (H, T)."""
    rows = mask.any(dim=-1)  # (N, 1, T, T) -> (N, 1, T)
    total = weights.double().masked_fill(~rows[..., None], 0).sum(dim=-2)  # (N, H, T, T) -> (N, H, T)
    return (total / rows.sum(dim=-1, keepdim=True)).mean(dim=0)


def roles(patterns: Patterns, sentences: list[Sentence]) -> dict[str, Tensor]:
    """Role -> score of every head, (L, H).

    Positions: share of the rows whose largest weight lies there. Relations, in both directions: share of the rows with
    a gold word whose largest weight, the word itself aside, lies on it (Clark et al. 2019).
    """
    layers, real = patterns.layers, patterns.real
    scores = {name: torch.stack([offset_share(w, real, offset) for w in layers]) for name, offset in OFFSETS.items()}
    scores[FIRST] = torch.stack([first_share(weights, real) for weights in layers])
    # A row that sees only itself has no other largest weight: hidden keys must not stand at 0, where they would tie.
    visible = [weights.masked_fill(~patterns.mask, -1) for weights in layers]
    accuracy = score_heads(visible, sentences, patterns.shift)
    return scores | {relation_name(r, d): accuracy[r][..., i] for r in RELATIONS for i, d in enumerate(DIRECTIONS)}


def gold_of(patterns: Patterns, sentences: list[Sentence]) -> dict[str, Tensor]:
    """ "determiner → noun" and so on, both directions of every relation -> gold bool (N, T, T)."""
    forward = gold_matrices(sentences, patterns.real.size(-1), patterns.shift)
    return {
        relation_name(r, d): gold
        for r in RELATIONS
        for d, gold in zip(DIRECTIONS, (forward[r], forward[r].mT), strict=True)
    }


def possible(patterns: Patterns, sentences: list[Sentence]) -> dict[str, bool]:
    """Role -> does the mask let any row see what the role looks at? From the mask alone, no weight is looked at."""
    places = {name: bool(patterns.mask.diagonal(offset, dim1=-2, dim2=-1).any()) for name, offset in OFFSETS.items()}
    first = {FIRST: bool(patterns.mask[..., 1:, 0].any())}
    gold = {name: bool((gold[:, None] & patterns.mask).any()) for name, gold in gold_of(patterns, sentences).items()}
    return places | first | gold


def baselines(trained: Trained, sentences: list[Sentence], count: int) -> dict[str, float]:
    """Role -> the best score without training: the best head of `count` untrained models or the best fixed offset.

    The fixed offset counts where the mask lets the role exist.
    """
    mode = WITH if trained.recipe.objective == "next word" else WITHOUT
    best: dict[str, float] = {}
    for i in range(count):
        twin = training.untrained(replace(trained.recipe, seed=trained.recipe.seed + i), ATTENTION[mode])
        patterns = read(twin, sentences)
        for name, score in roles(patterns, sentences).items():
            best[name] = max(best.get(name, 0.0), score.max().item())
    can = possible(patterns, sentences)
    for name, gold in gold_of(patterns, sentences).items():
        best[name] = max(best[name], best_fixed_offset(gold)[1] if can[name] else 0.0)
    return best


def last_row_change(trained: Trained, sentences: list[Sentence]) -> dict[str, list[float]]:
    """Same model, same sentences, mask on and off: by how much do weights differ? In float64, one number a layer.

    "last": largest difference in the last row of any sentence; "earlier": in any row before it, as a control.
    """
    tokens, lengths = tokens_of(sentences, trained.recipe.objective)
    on, off = (weights_on(under(trained, mode).double(), tokens, lengths) for mode in (WITH, WITHOUT))
    position = torch.arange(tokens.size(1))
    last, earlier = (position == lengths[:, None] - 1), (position < lengths[:, None] - 1)  # (N, T)
    differences = [(a - b).abs().amax(dim=(1, 3)) for a, b in zip(on, off, strict=True)]  # (N, H, T, T) -> (N, T)
    return {name: [d[rows].max().item() for d in differences] for name, rows in (("last", last), ("earlier", earlier))}


@dataclass(frozen=True)
class Measured:
    """All numbers of one seed. Outer keys are BOTH, CUT and CAUSAL, of `base` and `change` the two trained models."""

    kinds: dict[str, Patterns]
    spread: dict[str, dict[str, float]]
    even: dict[str, dict[str, float]]
    roles: dict[str, dict[str, Tensor]]  # kind -> role -> (L, H)
    possible: dict[str, bool]  # role -> under the causal mask
    base: dict[str, dict[str, float]]
    change: dict[str, dict[str, list[float]]]

    def best(self, kind: str, role: str) -> float:
        """Score of the head that plays a role best."""
        return self.roles[kind][role].max().item()

    def survives(self, role: str, kind: str = CAUSAL) -> bool:
        """Is some head at least MARGIN above what needs no training?"""
        return self.best(kind, role) >= self.base[kind][role] + MARGIN


def measure(bidirectional: Trained, causal: Trained, sentences: list[Sentence], untrained: int) -> Measured:
    """All numbers of one pair of models; `untrained` models of each kind are the control."""
    full, masked = read(bidirectional, sentences), read(causal, sentences)
    kinds = {BOTH: full, CUT: cut(full), CAUSAL: masked}
    models = {BOTH: bidirectional, CAUSAL: causal}
    return Measured(
        kinds,
        {kind: spread(patterns) for kind, patterns in kinds.items()},
        {kind: spread(even(patterns)) for kind, patterns in kinds.items()},
        {kind: roles(patterns, sentences) for kind, patterns in kinds.items()},
        possible(masked, sentences),
        {kind: baselines(trained, sentences, untrained) for kind, trained in models.items()},
        {kind: last_row_change(trained, sentences[:LAST_ROWS]) for kind, trained in models.items()},
    )


def previous_token_head(length: int, sharpness: float = 20.0) -> Tensor:
    """A head made by hand: each query asks for the position before its own, each key answers with its own -> (T, T).

    The first query asks for itself, it has nothing before it.
    """
    key = torch.eye(length, dtype=torch.float64)
    wanted = (torch.arange(length) - 1).clamp(min=0)
    _, weights = scaled_dot_product_attention(sharpness * key[wanted], key, key)
    return weights
