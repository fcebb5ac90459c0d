"""What does the causal mask do to attention patterns by itself?

Numbers first. In row i a causal head chooses among i + 1 keys, none of them to the right. So entropy and distance are
smaller before anything is learned. Even weights on six words:

                       no mask    causal mask
    entropy, nats       1.792        1.097        ln 6, and (ln 1 + ln 2 + ... + ln 6) / 6
    distance            1.944        1.250        (6² - 1) / 18, and (6 - 1) / 4
    weight on word 0    0.167        0.408        1/6, and (1 + 1/2 + ... + 1/6) / 6; the last word: 0.028

To compare a causal head with another one, divide by what even weights, 1/n on each visible key, give in the same row:

    entropy     / ln(n)                          1: does not choose, 0: one key          (shared/attention_utils.py)
    distance    / mean |i - j| of the n keys     1: as far as even weights, 0: looks at itself

The fair comparison then is one model with itself, its future cut off and nothing else changed.

Roles second. A role that looks ahead, such as the next word or determiner -> noun, has weight exactly 0 under the mask:
no training can make it. Its mirror image, noun -> determiner, is allowed, and a causal model can carry the same
information that way: the later word looks back.

The last row third. Nothing is hidden from it, and in the first layer the mask does not change it. In deeper layers it
does: the words that it reads there were themselves computed with a view of the future, or without. It cannot cheat
either way, since all that those words can have seen lies in its own past.

    python phase4_causal/masking/mask_patterns.py

Writes mask_patterns.png to visualizations/plots/phase4/.
"""

from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase4_causal.causal_attention import load_causal_model, with_attention
from phase4_causal.masking.breaking_causality import ATTENTION, WITH, WITHOUT
from shared import cli, training
from shared.attention_utils import attention_distance, causal_mask, padding_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, Claim, measures
from shared.grammar.scores import DIRECTIONS, best_fixed_offset, gold_matrices, relation_name, score_heads
from shared.head_statistics import (
    SINK_THRESHOLD,
    even_weights,
    first_share,
    head_statistics,
    offset_share,
    offset_weight,
)
from shared.toy_language import RELATIONS, START, TOY_SENTENCE, Sentence
from shared.toy_model import ToyTransformer, weights_of
from shared.training import Trained
from shared.visualization_utils import QUIET, head_color, headline, save_plot

NUM_SENTENCES, QUICK_SENTENCES = 200, 40
LAST_ROWS = 60  # sentences whose last row is looked at
OFFSETS = {"itself": 0, "previous word": -1, "next word": 1}
FIRST, DETERMINER, NOUN = "first token", "determiner → noun", "noun → determiner"
BOTH, CUT, CAUSAL = KINDS = ("both sides", "the same, mask added", "trained with the mask")
SPREADS = ("entropy", "normalised entropy", "distance", "normalised distance")
MARGIN = 0.10  # above what needs no training (Voita et al. 2019)
EQUAL, SEEN = 1e-12, 0.01  # equal in float64; weight that is not nothing
CANNOT = "#a6261d"


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
    both = {r: zip(DIRECTIONS, (gold, gold.mT), strict=True) for r, gold in forward.items()}
    return {relation_name(r, direction): gold for r, pairs in both.items() for direction, gold in pairs}


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
        fresh = training.untrained(replace(trained.recipe, seed=trained.recipe.seed + i), ATTENTION[mode])
        patterns = read(fresh, sentences)
        for name, score in roles(patterns, sentences).items():
            best[name] = max(best.get(name, 0.0), score.max().item())
    can = possible(patterns, sentences)
    for name, gold in gold_of(patterns, sentences).items():
        best[name] = max(best[name], best_fixed_offset(gold)[1] if can[name] else 0.0)
    return best


@dataclass(frozen=True)
class Measured:
    """All numbers of one seed. Outer keys are BOTH, CUT and CAUSAL, of `base` the two trained models."""

    kinds: dict[str, Patterns]
    spread: dict[str, dict[str, float]]
    even: dict[str, dict[str, float]]
    roles: dict[str, dict[str, Tensor]]  # kind -> role -> (L, H)
    possible: dict[str, bool]  # role -> under the causal mask
    base: dict[str, dict[str, float]]

    def best(self, kind: str, role: str) -> float:
        """Score of the head that plays a role best."""
        return self.roles[kind][role].max().item()

    def survives(self, role: str) -> bool:
        """Is some head of the causal model at least MARGIN above what needs no training?"""
        return self.best(CAUSAL, role) >= self.base[CAUSAL][role] + MARGIN


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
    )


def smaller(n: dict, name: str, factor: float, margin: float) -> bool:
    """Is a number smaller under the mask, added or trained with, than without it, for every seed?"""
    pairs = [zip(n[f"{name}, {kind}"], n[f"{name}, {BOTH}"], strict=True) for kind in (CUT, CAUSAL)]
    return all(masked <= factor * full - margin for pair in pairs for masked, full in pair)


def raw_smaller(n: dict) -> bool:
    return smaller(n, "entropy", 0.9, 0) and smaller(n, "distance", 0.9, 0)


def all_spreads(full: float, masked: float, share: float) -> dict[str, list[float]]:
    """The numbers of C107 as they would be: raw ones without and with the mask, normalised ones with it (1 without)."""
    under = {"": masked, "normalised ": share}
    values = {f"{norm}{name}": x for norm, x in under.items() for name in ("entropy", "distance")}
    without = {f"{name}, {BOTH}": [1.0 if "normalised" in name else full] for name in SPREADS}
    return without | {f"{name}, {kind}": [values[name]] for name in SPREADS for kind in (CUT, CAUSAL)}


@measures(
    Claim(
        id="C107",
        text="A causal mask makes attention more local and more focused",
        kind=EXPERIMENT,
        rule="entropy and distance a tenth smaller, and normalised still 0.05 smaller, both when the mask is added to "
        "a trained model's weights and in a model trained with it",
        holds=lambda n: (
            raw_smaller(n) and smaller(n, "normalised entropy", 1, 0.05) and smaller(n, "normalised distance", 1, 0.05)
        ),
        only_if=raw_smaller,
        condition="raw numbers are counted; as a share of what each row may see not all of them are smaller by 0.05",
        oracle=all_spreads(2.0, 1.0, 0.5),
        null=all_spreads(2.0, 2.0, 1.0),
        unit="mean over rows and heads: nats, positions; normalised: of even weights in the same row",
        control="even weights under each mask. The model trained with the mask also has another task",
    )
)
def spreads(every: list[Measured]) -> dict[str, float | list[float]]:
    """How widely heads look, by kind, and what even weights on six words give."""
    six = {"no mask": torch.ones(1, 1, 6, 6, dtype=torch.bool), "mask": causal_mask(6)[None, None]}
    toy = {name: head_statistics(even_weights(mask), mask) for name, mask in six.items()}
    of_six = {f"even, 6 words, {n}, {key}": toy[n][key].item() for key in ("entropy", "distance") for n in six}
    pairs = [(name, kind) for name in SPREADS for kind in KINDS]
    return of_six | {f"{name}, {kind}": [found.spread[kind][name] for found in every] for name, kind in pairs}


def first_token_heads(n: dict) -> list[tuple[list[float], float]]:
    """For each seed what its heads give to the first token, and what even weights do on the same sentences."""
    heads = [values for name, values in n.items() if name.startswith("heads")]
    return list(zip(heads, n["even, same sentences"], strict=True))


@measures(
    Claim(
        id="C110",
        text="A causal head that gives much of its weight to the first token has chosen it",
        kind=EXPERIMENT,
        source="course notes; threshold 0.3 of Gu et al. 2024",
        rule="even weights on six words stay below 0.3, and every trained head with 0.3 has 0.1 more than even weights",
        holds=lambda n: (
            n["even, 6 words, first to last"][0] < SINK_THRESHOLD
            and all(h >= e + MARGIN for heads, e in first_token_heads(n) for h in heads if h >= SINK_THRESHOLD)
        ),
        only_if=lambda n: all(max(heads) >= e + MARGIN for heads, e in first_token_heads(n)),
        condition="it has 0.1 more than even weights under the same mask, which choose nothing",
        unit="share of all weight that the first token gets (even, 6 words: that each word gets)",
        control="even weights on the keys that each row may see",
    )
)
def first_token(every: list[Measured], seeds: range) -> dict[str, list[float]]:
    """What the first token gets: from even weights, and from each head of the causal models."""
    six = causal_mask(6)[None, None]
    masked = [found.kinds[CAUSAL] for found in every]
    heads = [torch.cat([received(w, p.mask)[:, 0] for w in p.layers]).tolist() for p in masked]  # L * H each
    return {
        "even, 6 words, first to last": received(even_weights(six), six)[0].tolist(),
        **{f"heads, seed {seed}": values for seed, values in zip(seeds, heads, strict=True)},
        "even, same sentences": [received(even_weights(p.mask), p.mask)[0, 0].item() for p in masked],
    }


@measures(
    Claim(
        id="C108",
        text="Autoregressive prediction uses a next-token head, one that attends to position i + 1",
        kind=IDENTITY,
        rule=f"a head of the causal model gives the next token more than {SEEN} on average",
        holds=lambda n: min(n[f"{CAUSAL}, best head"]) > SEEN,
        unit="mean weight on the next token",
        control="the model that sees both sides; its next-token head guesses hidden words, not next ones",
    )
)
def next_token(every: list[Measured]) -> dict[str, list[float]]:
    """The most that any head gives to the next token, without the mask and with it."""

    def best(patterns: Patterns) -> float:
        return max(offset_weight(weights, patterns.real, 1).max().item() for weights in patterns.layers)

    return {f"{kind}, best head": [best(found.kinds[kind]) for found in every] for kind in (BOTH, CAUSAL)}


def found_by(n: dict, *kinds: str) -> bool:
    """Is determiner -> noun found MARGIN above chance by the best heads of these models?"""
    pairs = [zip(n[f"{DETERMINER}, {kind}"], n[f"untrained or fixed offset, {kind}"], strict=True) for kind in kinds]
    return all(best >= chance + MARGIN for pair in pairs for best, chance in pair)


@measures(
    Claim(
        id="C109",
        text="A head links a determiner to the noun after it",
        kind=EXPERIMENT,
        rule="the best head is 0.10 above the best untrained head and the best fixed offset, in the model that sees "
        "both sides and in the causal one",
        holds=lambda n: found_by(n, BOTH, CAUSAL),
        only_if=lambda n: found_by(n, BOTH),
        condition="the model sees both sides; under the mask only the noun can look back at its determiner",
        unit="share of gold pairs by largest weight, best head",
        control="the opposite direction, noun to determiner",
    )
)
def determiners(every: list[Measured]) -> dict[str, float | list[float]]:
    """How often the best head finds the noun of a determiner, and the other way round; how many roles survive."""
    numbers: dict[str, float | list[float]] = {}
    for kind in (BOTH, CAUSAL):
        for role in (DETERMINER, NOUN):
            numbers[f"{role}, {kind}"] = [found.best(kind, role) for found in every]
        numbers[f"untrained or fixed offset, {kind}"] = [found.base[kind][DETERMINER] for found in every]
    back, ahead = ([r for r, can in every[0].possible.items() if "→" in r and can == way] for way in (True, False))
    numbers[f"of {len(back)} directions that look back, survive"] = [sum(map(f.survives, back)) for f in every]
    best_ahead = [max(found.best(CAUSAL, role) for role in ahead) for found in every]
    return numbers | {f"of {len(ahead)} that look ahead, best score, {CAUSAL}": best_ahead}


@measures(
    Claim(
        id="C111",
        text="The band of a previous-token head lies just below the diagonal",
        kind=IDENTITY,
        rule="0.3 more below than above, whether rows are queries or keys",
        holds=lambda n: all(below >= above + 0.3 for below, above in n.values()),
        only_if=lambda n: n["rows are queries"][0] >= n["rows are queries"][1] + 0.3,
        condition="rows are queries and columns are keys, as in all pictures here; transposed, it lies just above",
        unit="mean weight just below and just above the diagonal",
    )
)
def bands() -> dict[str, list[float]]:
    """Mean weight just below and just above the diagonal, of a head made by hand."""
    made = torch.eye(6).roll(-1, dims=1)[None, None]  # each word looks at the one before, the first at the last
    mask = torch.ones_like(made, dtype=torch.bool)
    matrices = {"rows are queries": made, "rows are keys": made.mT}
    return {rows: [offset_weight(w, mask, offset).item() for offset in (-1, 1)] for rows, w in matrices.items()}


def last_row_change(trained: Trained, sentences: list[Sentence]) -> dict[str, list[float]]:
    """Same model, same sentences, mask on and off: by how much do weights differ? In float64, one number a layer.

    "last row": largest difference in the last row of any sentence; "earlier rows": in any before it, as a control.
    """
    tokens, lengths = tokens_of(sentences, trained.recipe.objective)
    on, off = (weights_on(with_attention(trained, make).double(), tokens, lengths) for make in ATTENTION.values())
    position = torch.arange(tokens.size(1))
    rows = {"last row": position == lengths[:, None] - 1, "earlier rows": position < lengths[:, None] - 1}  # (N, T)
    differences = [(a - b).abs().amax(dim=(1, 3)) for a, b in zip(on, off, strict=True)]  # (N, H, T, T) -> (N, T)
    return {name: [d[chosen].max().item() for d in differences] for name, chosen in rows.items()}


def last_row(n: dict, layer: str = "") -> float:
    return max(max(changes) for name, changes in n.items() if name.startswith("last row") and layer in name)


@measures(
    Claim(
        id="C104",
        text="The last position has no future, so the mask changes nothing there",
        kind=IDENTITY,
        rule="no weight of the last row differs by more than 1e-12, in any layer of both models",
        holds=lambda n: last_row(n) <= EQUAL,
        only_if=lambda n: last_row(n, "layer 0") <= EQUAL,
        condition="the layer is the first; what deeper ones read was computed with a view of the future or without",
        unit="largest difference of a weight with the mask on and off, float64",
        control="the rows before the last one, which the mask does change",
    )
)
def last_rows(models: list[tuple[Trained, Trained]], sentences: list[Sentence]) -> dict[str, list[float]]:
    """What the mask changes in the last row of each layer and in the rows before, for both models of each seed."""
    found: dict[str, list[float]] = {}
    for pair in models:
        for kind, trained in zip((BOTH, CAUSAL), pair, strict=True):
            for rows, layers in last_row_change(trained, sentences).items():
                for layer, change in enumerate(layers):
                    found.setdefault(f"{rows}, {kind}, layer {layer}", []).append(change)
    return found


@measures(
    Claim(
        id="C106",
        text='In "the cat sat on the mat" the mask keeps position 3, "on", from seeing position 4, "the"',
        kind=IDENTITY,
        rule=f"without the mask some head has more than {SEEN} there, with it all have exactly 0; and the mask hides "
        "something from position 3 also when only the words so far are fed",
        holds=lambda n: n["without the mask"] > SEEN and n["with it"] == 0 and min(n["keys hidden"]) > 0,
        only_if=lambda n: n["without the mask"] > SEEN and n["with it"] == 0 and n["keys hidden"][0] > 0,
        condition="all words are fed at once, as in training; fed word by word, there is no position 4 to hide",
        unit="largest weight from 3 to 4 of any head; keys hidden from 3, all words fed, and words 0 to 3",
    )
)
def one_cell(bidirectional: Trained, causal: Trained) -> dict[str, float | list[int]]:
    """The largest weight of any head on one cell, without the mask and with it, and how much the mask hides there."""
    words = TOY_SENTENCE.split()
    on = words.index("on")
    return {
        "without the mask": weights_of(bidirectional.model, words)[..., on, on + 1].max().item(),
        "with it": weights_of(causal.model, [START, *words])[..., on + 1, on + 2].max().item(),
        "keys hidden": [int((~causal_mask(fed))[on].sum()) for fed in (len(words), on + 1)],
    }


def draw_spread(ax: Axes, found: Measured, name: str, label: str) -> None:
    """One number of the three kinds of patterns, and beside it that of even weights in the same rows."""
    for place, kind in enumerate(KINDS):
        value, chance = found.spread[kind][name], found.even[kind][name]
        ax.bar(place, value, width=0.62, color=head_color(place))
        ax.plot([place - 0.38, place + 0.38], [chance, chance], color=QUIET, linestyle="--", linewidth=1.4)
        ax.text(place, value, f"{value:.2f}", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(range(len(KINDS)), ("both\nsides", "same,\nmask", "trained,\nmask"), fontsize=8)
    ax.set_ylim(0, 1.15 * max(found.even[kind][name] for kind in KINDS))
    ax.tick_params(length=0)
    ax.set_title(label, fontsize=10)


def draw_roles(ax: Axes, found: Measured) -> None:
    """The best head of each role, without and with the mask; a cross where the mask forbids the role."""
    names = list(found.possible)
    for row, name in enumerate(names):
        for place, (kind, marker) in enumerate(zip(KINDS, "osD", strict=True)):  # on lines of their own: none is hidden
            if kind != BOTH and not found.possible[name]:
                continue
            y, color = row + 0.22 * (place - 1), head_color(place)
            label = None if row else kind
            ax.plot(found.best(kind, name), y, marker, color=color, markersize=6.5, label=label)
            if kind in found.base:
                ax.plot([found.base[kind][name]] * 2, [y - 0.15, y + 0.15], color=color, linewidth=1.8)
        if not found.possible[name]:
            ax.plot(0, row, "x", color=CANNOT, markersize=7, markeredgewidth=2)
            ax.text(0.19, row, "cannot: exactly 0", color=CANNOT, va="center", fontsize=8)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlim=(-0.03, 1.03), ylim=(len(names) - 0.5, -0.5), xlabel="share of rows whose largest weight lies there")
    ax.tick_params(axis="y", length=0)
    ax.hlines([row + 0.5 for row in range(len(names) - 1)], -0.03, 1.03, color="#e6e8eb", linewidth=0.8)
    ax.set_title("best head of each role", fontsize=10)
    ax.plot([], [], "|", color=QUIET, markersize=11, markeredgewidth=1.8, label="without training, or a fixed offset")
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.1), ncols=2, frameon=False, fontsize=8.5)


def draw(found: Measured, note: str) -> tuple[Figure, str]:
    """Left the four numbers, raw and as a share of even weights; right the roles."""
    layout = [["entropy", "normalised entropy", "roles"], ["distance", "normalised distance", "roles"]]
    fig, axes = plt.subplot_mosaic(layout, figsize=(11.4, 6.4), width_ratios=(1, 1, 2), layout="constrained")
    labels = ("entropy, nats", "entropy, share of ln n", "distance, positions", "distance, share of even")
    for name, label in zip(SPREADS, labels, strict=True):
        draw_spread(axes[name], found, name, label)
    draw_roles(axes["roles"], found)
    (raw, cut), (share, cut_share) = ([found.spread[kind][name] for kind in (BOTH, CUT)] for name in SPREADS[:2])
    gone = list(found.possible.values()).count(False)
    title = (
        f"Cutting a trained model's weights to the past takes entropy from {raw:.2f} to {cut:.2f} nats, but from "
        f"{share:.2f} to {cut_share:.2f} of ln n\n{gone} of {len(found.possible)} roles cannot exist under the mask"
    )
    headline(fig, title, note, 12.5)
    return fig, title.replace("\n", "; ") + ". Dashed: even weights on the keys that each row may see."


def show(found: Measured) -> None:
    """Print the best head of each role."""
    head = "".join(f"{text:>12}" for text in ("both sides", "mask added", "trained so"))
    print(f"\n{'best head, by largest weight':35}{head}   untrained or offset")
    for name, can in found.possible.items():
        scores = "".join(f"{found.best(kind, name):12.2f}" for kind in KINDS)
        chance = f"{found.base[BOTH][name]:.2f}, masked {found.base[CAUSAL][name]:.2f}"
        print(f"   {name:32}{scores}   {chance}{'' if can else '   cannot exist under the mask'}")


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    models = [(load_multi_head_model(options, seed), load_causal_model(options, seed)) for seed in cli.seeds(options)]
    sentences = training.corpus()[1][: QUICK_SENTENCES if options.quick else NUM_SENTENCES]
    every = [measure(*pair, sentences, untrained=1 if options.quick else 2) for pair in models]
    show(every[0])
    note = f"both sides: {models[0][0].label}, hidden words · with the mask: {models[0][1].label}, next words"
    note += f" · {len(sentences)} held-out sentences · dashed: even weights"
    save_plot(options, "phase4/mask_patterns", *draw(every[0], note))
    findings.record(
        options,
        spreads(every),
        first_token(every, cli.seeds(options)),
        next_token(every),
        determiners(every),
        bands(),
        last_rows(models, sentences[:LAST_ROWS]),
        one_cell(*models[0]),
    )
    entropy, share = ([every[0].spread[kind][name] for kind in (BOTH, CUT)] for name in SPREADS[:2])
    return "Cut to the past: entropy {:.2f} to {:.2f} nats, but {:.2f} to {:.2f} of ln n".format(*entropy, *share)


if __name__ == "__main__":
    cli.run(main)
