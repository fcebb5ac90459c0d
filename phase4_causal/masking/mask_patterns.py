"""What does the causal mask do to attention patterns by itself?

Numbers first. In row i a causal head chooses among i + 1 keys, none of them to the right. So entropy and distance are
smaller before anything is learned. Even weights on six words:

                       no mask    causal mask
    entropy, nats       1.792        1.097        ln 6, and (ln 1 + ln 2 + ... + ln 6) / 6
    distance            1.944        1.250        (6² - 1) / 18, and (6 - 1) / 4
    weight on word 0    0.167        0.408        1/6, and (1 + 1/2 + ... + 1/6) / 6

To compare a causal head with another one, divide by what even weights, 1/n on each visible key, give in the same row:

    entropy     / ln(n)                          1: does not choose, 0: one key          (shared/attention_utils.py)
    distance    / mean |i - j| of the n keys     1: as far as even weights, 0: looks at itself

The fair comparison then is one model with itself, its future cut off and nothing else changed.

Sinks second. Row 0 can only look at itself, and early rows have few other keys: so a mean over rows shows much weight
on the first token where nobody chose it. The fair question takes the last row, from which nothing is hidden, and an
even share of it: does a head give the first token more? A head that does rests there, an attention sink (Xiao et al.
2023). Under the mask each row is the last one of the words so far, so we ask it after each kind of word.

    python phase4_causal/masking/mask_patterns.py

Writes mask_patterns.png and attention_sinks.png to visualizations/plots/phase4/.
"""

from dataclasses import dataclass, replace
from statistics import fmean

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.models import load_causal_model
from shared import cli, training
from shared.attention_utils import attention_distance, causal_mask, padding_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, measures
from shared.grammar.entropy import KIND
from shared.head_statistics import even_weights, head_statistics
from shared.toy_language import START, Sentence
from shared.training import Trained
from shared.visualization_utils import BLUE, GREY, INK, PURPLE, QUIET, headline, label_ends, save_plot

NUM_SENTENCES, QUICK_SENTENCES = 200, 40
BOTH, CUT, CAUSAL = KINDS = ("both sides", "the same, mask added", "trained with the mask")
SPREADS = ("entropy", "normalised entropy", "distance", "normalised distance")
MARGIN = 0.05  # of a normalised number, which is 1 where nothing is chosen
RESTS = 0.2  # above an even share
NAMES = {"d": "determiner", "j": "adjective", "n": "noun", "a": "adverb", "v": "verb", "p": "preposition"}


@dataclass(frozen=True)
class Patterns:
    """All weights of a model on some sentences.

    layers: one (N, H, T, T) for each layer. mask: bool (N, 1, T, T), real tokens, and the query may see the key.
    """

    layers: list[Tensor]
    mask: Tensor


@torch.no_grad()
def read(trained: Trained, sentences: list[Sentence]) -> Patterns:
    """The patterns of a model on the sentences; one that was trained on next words is taken for causal.

    A next-word model reads <start> first, and never <end>: it only predicts it.
    """
    causal, device = trained.recipe.objective == "next word", trained.model.positions.device
    tokens, lengths = training.to_batch(sentences, trained.recipe.objective)
    if causal:
        tokens, lengths = tokens[:, :-1], lengths - 1
    keys = padding_mask(lengths, tokens.size(1))  # (N, 1, 1, T)
    _, layers = trained.model(tokens.to(device), mask=keys.to(device))
    real = keys & keys.mT  # (N, 1, 1, T) -> (N, 1, T, T)
    return Patterns([w.cpu() for w in layers], real & causal_mask(tokens.size(1)) if causal else real)


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
    return Patterns(layers, mask)


def even(patterns: Patterns) -> Patterns:
    """The head that does not choose, under the same mask."""
    return replace(patterns, layers=[even_weights(patterns.mask)])


def normalized_distance(weights: Tensor, mask: Tensor) -> Tensor:
    """Mean |i - j| of each row over that of even weights on the keys it may see -> (..., T).

    weights (..., T, T), mask bool, broadcastable to it. NaN for a row with fewer than two keys, which has no choice.
    """
    distance = attention_distance(even_weights(mask))  # (..., T, T) -> (..., T)
    return (attention_distance(weights) / distance).masked_fill(mask.sum(dim=-1) < 2, torch.nan)


def spread(patterns: Patterns) -> dict[str, float]:
    """Each of SPREADS, mean over rows, heads and layers: raw entropy in nats, raw distance in positions."""
    found = []
    for weights in patterns.layers:
        statistics = head_statistics(weights, patterns.mask)
        statistics["normalised distance"] = normalized_distance(weights, patterns.mask).double().nanmean(dim=(0, 2))
        found.append(torch.stack([statistics[name] for name in SPREADS]))  # (4, H)
    return dict(zip(SPREADS, torch.cat(found, dim=-1).mean(dim=-1).tolist(), strict=True))


def least_fall(n: dict[str, float]) -> float:
    """By how much normalised entropy and distance are smaller under the mask, added or trained with: the least."""
    names = SPREADS[1::2]
    return min(n[f"{name}, {BOTH}"] - n[f"{name}, {kind}"] for name in names for kind in (CUT, CAUSAL))


def made_up(share: float) -> dict[str, float]:
    """The numbers of C107 if the mask halved the raw ones and took the normalised ones from 0.7 to this share."""
    without = dict(zip(SPREADS, (1.6, 0.7, 2.0, 0.7), strict=True))
    masked = {name: share if "normalised" in name else value / 2 for name, value in without.items()}
    return {f"{name}, {kind}": (without if kind == BOTH else masked)[name] for name in SPREADS for kind in KINDS}


@measures(
    Claim(
        id="C107",
        text="A causal mask makes attention more local and more focused, beyond what it hides",
        kind=EXPERIMENT,
        source="course notes, experiments with the causal mask (asked there)",
        rule="normalised entropy and normalised distance are both smaller by more than 0.05, when the mask is added to "
        "a trained model's weights and in a model trained with it",
        holds=Above(least_fall, MARGIN),
        oracle=made_up(0.4),
        null=made_up(0.7),
        unit="mean over rows and heads: nats, positions; normalised: of even weights in the same row",
        control="even weights under each mask: their raw numbers fall as well. The model trained with the mask also "
        "learned another task, the next word",
        headline=True,
    )
)
def spreads(kinds: dict[str, Patterns]) -> dict[str, float]:
    """How widely heads look, by kind of patterns, and beside it even weights under the same mask (raw numbers)."""
    found = {kind: spread(patterns) for kind, patterns in kinds.items()}
    chance = {kind: spread(even(patterns)) for kind, patterns in kinds.items()}
    numbers = {f"{name}, {kind}": found[kind][name] for name in SPREADS for kind in kinds}
    return numbers | {f"{name}, {kind}, even weights": chance[kind][name] for name in SPREADS[::2] for kind in kinds}


OnFirst = dict[str, tuple[Tensor, float]]  # kind of word read last -> weight of each head (L * H,), even share


def on_first(patterns: Patterns, sentences: list[Sentence]) -> OnFirst:
    """Mean weight on <start> in the last row of all beginnings of sentences of two words or more, by the last word."""
    weights = torch.cat([each[..., 0] for each in patterns.layers], dim=1).double()  # (N, H, T) each -> (N, L * H, T)
    rows: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES.values()}
    for n, sentence in enumerate(sentences):
        for row, word in enumerate(sentence.words[1:], start=2):  # <start> is row 0, the first word row 1
            rows[NAMES["p" if KIND[word] == "b" else KIND[word]]].append((n, row))
    return {
        name: (torch.stack([weights[n, :, row] for n, row in found]).mean(dim=0), fmean(1 / (i + 1) for _, i in found))
        for name, found in rows.items()
        if found
    }


@dataclass(frozen=True)
class Sink:
    """The head and the kind of word after which it exceeds an even share most, on half of the sentences.

    weight, even: what it gives <start> on the other half, and an even share of the same rows.
    """

    kind: str
    head: int
    weight: float
    even: float


def find_sink(patterns: Patterns, sentences: list[Sentence]) -> Sink:
    half = len(sentences) // 2
    choose, score = (
        on_first(Patterns([w[part] for w in patterns.layers], patterns.mask[part]), sentences[part])
        for part in (slice(half), slice(half, None))
    )
    kind = max(choose, key=lambda name: (choose[name][0] - choose[name][1]).max().item())
    head = int(choose[kind][0].argmax())
    return Sink(kind, head, score[kind][0][head].item(), score[kind][1])


CHOSEN, EVEN = "chosen head", "even share of the same rows"
FRESH, FRESH_EVEN = "before training, chosen head", "before training, even share"


def excess(n: dict[str, float]) -> float:
    """By how much the chosen head is further above an even share than the head that is chosen before training."""
    return n[CHOSEN] - n[EVEN] - max(0.0, n[FRESH] - n[FRESH_EVEN])


@measures(
    Claim(
        id="C110",
        text="Some causal head attends to the first token, as an attention sink",
        kind=EXPERIMENT,
        source="course notes, why multiple heads; Xiao et al. 2023",
        rule="after one kind of word its last row gives <start> more than 0.2 above an even share, and above what the "
        "head has that is chosen in the same way before training",
        holds=Above(excess, RESTS),
        oracle={CHOSEN: 0.9, EVEN: 0.15, FRESH: 0.2, FRESH_EVEN: 0.15},
        null={CHOSEN: 0.4, EVEN: 0.4, FRESH: 0.2, FRESH_EVEN: 0.15},
        unit="mean weight on <start> in last rows; head and kind of word are chosen on half of the held-out sentences, "
        "and scored on the others",
        control="even weights in the same rows; the model before training; the last word of whole sentences, after "
        "which no head may do it",
        shows=(CHOSEN, EVEN, FRESH, FRESH_EVEN, "whole sentences*"),
    )
)
def sinks(found: Sink, fresh: Sink, causal: Patterns, sentences: list[Sentence]) -> dict[str, float | list[float]]:
    """What <start> gets in last rows: from the head that is chosen for it, and at the end of sentences from each."""
    last = torch.tensor([len(sentence.words) for sentence in sentences])
    each = torch.cat([w[torch.arange(len(last)), :, last, 0] for w in causal.layers], dim=-1)  # (N, L * H)
    return {
        CHOSEN: found.weight,
        EVEN: found.even,
        FRESH: fresh.weight,
        FRESH_EVEN: fresh.even,
        "whole sentences, each head": each.mean(dim=0).tolist(),
        "whole sentences, even share": (1 / (last + 1)).mean().item(),
    }


def draw_spreads(numbers: dict[str, float], note: str) -> tuple[Figure, str]:
    """Entropy without and with the mask (filled), as a part of that of even weights in the same rows (outlined)."""
    fig, ax = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    for place, kind in enumerate((BOTH, CUT)):
        value, most = numbers[f"entropy, {kind}"], numbers[f"entropy, {kind}, even weights"]
        ax.bar(place, most, width=0.5, facecolor="white", edgecolor=GREY, linewidth=1.5)
        ax.bar(place, value, width=0.5, color=BLUE)
        share = numbers[f"normalised entropy, {kind}"]
        style = {"ha": "center", "va": "center", "fontsize": 18, "color": "white", "fontweight": "bold"}
        ax.text(place, value / 2, f"{share:.0%}\nof it", **style)
        most_is = "even weights: the most it can be"
        ax.annotate(most_is, (place, most), (0, 6), textcoords="offset points", ha="center", color=QUIET)
        ax.annotate("the heads", (place + 0.25, value), (6, 0), textcoords="offset points", va="center")
    ax.set_xticks([0, 1], ("no mask", "the same weights, their future cut off"))
    ax.set(ylabel="entropy of a row, nats", xlim=(-0.5, 1.5))
    ax.tick_params(axis="x", length=0, labelsize=11)
    title = "The mask leaves fewer words to choose from;\nheads choose no more sharply among them"
    headline(fig, title, note)
    return fig, f"{title.replace(chr(10), ' ')}. Entropy of heads within that of even weights, with and without it."


def draw_sinks(causal: Trained, by_kind: OnFirst, found: Sink, note: str) -> tuple[Figure, str]:
    """What each head gives <start> after each kind of word: the chosen head and kind first, the others as grey dots."""
    fig, ax = plt.subplots(figsize=(8.2, 4.6), layout="constrained")
    kinds = sorted(by_kind, key=lambda kind: kind != found.kind)
    places, weights = range(len(kinds)), torch.stack([by_kind[kind][0] for kind in kinds])  # (kinds, L * H)
    for head in range(weights.size(1)):
        if head != found.head:
            ax.plot(places, weights[:, head], "o", color=GREY, ms=5, alpha=0.6)
    ax.plot(places, weights[:, found.head], "o", color=PURPLE, ms=10)
    evens = [by_kind[kind][1] for kind in kinds]
    ax.hlines(evens, [x - 0.3 for x in places], [x + 0.3 for x in places], color=INK, linewidth=1.5)
    last = len(kinds) - 1
    ax.set_xticks(places, [f"after {'an' if kind[0] == 'a' else 'a'}\n{kind}" for kind in kinds])
    ax.set(ylabel=f"weight on {START} in the last row", ylim=(-0.03, 1.03), xlim=(-0.5, last + 0.5))
    ax.tick_params(axis="x", length=0)
    layer, head = divmod(found.head, causal.recipe.num_heads)
    rests = found.weight - found.even > RESTS
    title = f"In this model one head rests on {START} after {found.kind}s: an attention sink"
    if not rests:
        title = f"No head of this model rests on {START}: none gives it far more than an even share"
    headline(fig, title, f"{note} · grey: the other heads")
    label_ends(ax, {"an even share": (last + 0.3, evens[-1], INK)}, size=10)
    label_ends(ax, {f" layer {layer} head {head}": (0, weights[0, found.head].item(), PURPLE)}, size=11)
    return fig, f"{title}. Weight of each head on the first token, by the kind of the word read last."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    sentences = training.corpus()[1][: QUICK_SENTENCES if options.quick else NUM_SENTENCES]
    wide, rests = [], []
    for seed in cli.seeds(options):
        full, causal = load_multi_head_model(options, seed), load_causal_model(options, seed)
        both, masked = read(full, sentences), read(causal, sentences)
        fresh = read(training.untrained(causal.recipe, CausalSelfAttention, options.device), sentences)
        found, by_chance = (find_sink(patterns, sentences) for patterns in (masked, fresh))
        wide.append(spreads({BOTH: both, CUT: cut(both), CAUSAL: masked}))
        rests.append(sinks(found, by_chance, masked, sentences))
        if seed == options.seed:
            note = f"{len(sentences)} held-out sentences, mean over rows and heads"
            save_plot(options, "phase4/mask_patterns", *draw_spreads(wide[0], f"{full.label}, hidden words · {note}"))
            note = f"{causal.label}, next words · beginnings of {len(sentences)} held-out sentences"
            save_plot(options, "phase4/attention_sinks", *draw_sinks(causal, on_first(masked, sentences), found, note))
    findings.record(options, *wide, *rests)
    entropy, share = ([wide[0][f"{name}, {kind}"] for kind in (BOTH, CUT)] for name in SPREADS[:2])
    return "Cut to the past: entropy {:.2f} to {:.2f} nats, but {:.2f} to {:.2f} of ln n".format(*entropy, *share)


if __name__ == "__main__":
    cli.run(main)
