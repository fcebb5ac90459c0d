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
on the first token where nobody chose it. The last row hides nothing, and an even share is small there. A head that
looks at the first token in it has chosen to: an attention sink, a place to rest (Xiao et al. 2023). Whether a model
grows one depends on how it is trained. So we look at the causal model of this course, whose matrices Muon moves, and at
one that AdamW trains alone, as large language models are.

    python phase4_causal/masking/mask_patterns.py

Writes mask_patterns.png and attention_sinks.png to visualizations/plots/phase4/.
"""

from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase4_causal.causal_attention import RECIPE, CausalSelfAttention, load_causal_model
from phase4_causal.masking.breaking_causality import BATCH, WITH, train
from shared import cli, training
from shared.attention_utils import attention_distance, causal_mask, padding_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, measures
from shared.head_statistics import even_weights, head_statistics
from shared.toy_language import START, Sentence
from shared.toy_model import weights_of
from shared.training import Trained
from shared.visualization_utils import QUIET, WEIGHT_MAP, head_color, headline, save_plot, token_labels

NUM_SENTENCES, QUICK_SENTENCES = 200, 40
BOTH, CUT, CAUSAL = KINDS = ("both sides", "the same, mask added", "trained with the mask")
SPREADS = ("entropy", "normalised entropy", "distance", "normalised distance")
MARGIN = 0.05  # of a normalised number, which is 1 where nothing is chosen
RESTS = 0.2  # above an even share of about 0.1: together the 0.3 from which Gu et al. 2024 call a head a sink
MUON, ADAMW = "Muon", "AdamW"
ADAMW_STEPS, ADAMW_RATE = 300, 4e-3


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
        changed="was 'holds only if raw numbers are counted', which only redefines the word",
        headline=True,
    )
)
def spreads(kinds: dict[str, Patterns]) -> dict[str, float]:
    """How widely heads look, by kind of patterns, and beside it even weights under the same mask (raw numbers)."""
    found = {kind: spread(patterns) for kind, patterns in kinds.items()}
    chance = {kind: spread(even(patterns)) for kind, patterns in kinds.items()}
    numbers = {f"{name}, {kind}": found[kind][name] for name in SPREADS for kind in kinds}
    return numbers | {f"{name}, {kind}, even weights": chance[kind][name] for name in SPREADS[::2] for kind in kinds}


def on_first(patterns: Patterns) -> Tensor:
    """Weight on the first token in the last row of each sentence -> (N, L * H)."""
    last = patterns.mask[:, 0].any(dim=-1).sum(dim=-1) - 1  # (N, T, T) -> (N,): sentences differ in length
    each = torch.arange(len(last))
    return torch.cat([weights[each, :, last, 0] for weights in patterns.layers], dim=-1).double()


def chosen(patterns: Patterns) -> tuple[int, float]:
    """The head with most weight on the first token in half of the last rows, and its mean weight in the other half."""
    weights = on_first(patterns)
    head = int(weights[::2].mean(dim=0).argmax())
    return head, weights[1::2, head].mean().item()


EVEN, UNTRAINED = "even share", "chosen head, untrained"


def resting(n: dict[str, list[float]]) -> list[float]:
    """For each seed: by how much the chosen head of AdamW exceeds an even share and the untrained head."""
    return [head - max(rest) for head, *rest in zip(n[f"chosen head, {ADAMW}"], n[EVEN], n[UNTRAINED], strict=True)]


def made_up_sinks(chosen: float) -> dict[str, list[float]]:
    """The numbers of C110 with this weight on <start> on one seed of three, and an even share on the others."""
    return {f"chosen head, {ADAMW}": [0.1, chosen, 0.1], EVEN: [0.1] * 3, UNTRAINED: [0.12] * 3}


@measures(
    Claim(
        id="C110",
        text="A head may attend to the first token, as an attention sink",
        kind=EXPERIMENT,
        source="course notes, why multiple heads; Xiao et al. 2023",
        rule="on one seed at least, in the last row, where nothing is hidden, a head of the causal model that AdamW "
        "trained gives <start> more than 0.2 above an even share, and above the head chosen alike before training",
        holds=lambda n: max(resting(n)) > RESTS,
        over_seeds=True,
        oracle=made_up_sinks(0.9),
        null=made_up_sinks(0.12),
        unit="mean weight on <start> in last rows; the head is chosen on half of the held-out sentences, scored on the "
        "others",
        control=f"even weights; the model before training; the course's own model (Muon, more steps: {RECIPE.steps}, "
        f"not {ADAMW_STEPS}, of {RECIPE.batch_size} sentences, not {BATCH})",
        changed="was a mean over all rows of one model: it counted row 0, where the weight must be 1, and one training",
    )
)
def sinks(models: dict[str, Trained], sentences: list[Sentence]) -> dict[str, float | list[float]]:
    """What <start> gets in last rows: from the head that is chosen for it, from even weights, from each head."""
    patterns = {name: read(trained, sentences) for name, trained in models.items()}
    fresh = training.untrained(models[ADAMW].recipe, CausalSelfAttention)
    return {
        **{f"chosen head, {name}": chosen(each)[1] for name, each in patterns.items()},
        EVEN: on_first(even(patterns[ADAMW]))[1::2].mean().item(),
        UNTRAINED: chosen(read(fresh, sentences))[1],
        **{f"each head, {name}": on_first(each).mean(dim=0).tolist() for name, each in patterns.items()},
    }


def draw_spread(ax: Axes, numbers: dict[str, float], name: str, label: str) -> None:
    """One number of the three kinds of patterns, and a dashed line at that of even weights in the same rows."""
    for place, kind in enumerate(KINDS):
        value, chance = numbers[f"{name}, {kind}"], numbers.get(f"{name}, {kind}, even weights", 1.0)
        ax.bar(place, value, width=0.62, color=head_color(place))
        ax.plot([place - 0.38, place + 0.38], [chance, chance], color=QUIET, linestyle="--", linewidth=1.4)
        ax.text(place, value, f"{value:.2f}", ha="center", va="bottom", fontsize=10)
    ax.set_xticks(range(len(KINDS)), ("both\nsides", "same,\nmask", "trained,\nmask"))
    ax.set_ylim(0, 1.15 * max(1.0, numbers.get(f"{name}, {BOTH}, even weights", 0.0)))
    ax.tick_params(length=0)
    ax.set_title(label, fontsize=11)


def draw_spreads(numbers: dict[str, float], note: str) -> tuple[Figure, str]:
    """The four numbers: raw, and as a share of even weights."""
    fig, axes = plt.subplots(1, 4, figsize=(11.4, 3.9), layout="constrained")
    labels = ("entropy, nats", "entropy, share of ln n", "distance, positions", "distance, share of even")
    for ax, name, label in zip(axes, SPREADS, labels, strict=True):
        draw_spread(ax, numbers, name, label)
    entropy, share = ([numbers[f"{name}, {kind}"] for kind in (BOTH, CUT)] for name in SPREADS[:2])
    title = "Cut to the past, entropy goes from {:.2f} to {:.2f} nats, but from {:.2f} to {:.2f} of ln n"
    title = title.format(*entropy, *share)
    headline(fig, title, note, 12.5)
    return fig, f"{title}. Dashed: even weights on the keys that each row may see."


def draw_sinks(models: dict[str, Trained], words: list[str], numbers: dict, note: str) -> tuple[Figure, str]:
    """The last row of every head for one sentence; right, what <start> gets there from each head over all sentences."""
    seen, (layers, heads) = [START, *words], (models[ADAMW].recipe.num_layers, models[ADAMW].recipe.num_heads)
    names = [f"{layer}.{head}" for layer in range(layers) for head in range(heads)]
    middle = [place + 0.5 for place in range(len(names))]
    fig, axes = plt.subplots(1, 3, figsize=(11.4, 4.4), layout="constrained")
    for place, (ax, (name, trained)) in enumerate(zip(axes, models.items(), strict=False)):
        rows = weights_of(trained.model, seen)[:, :, -1].flatten(0, 1)  # (L, H, T, T) -> (L * H, T)
        ax.pcolormesh(rows.numpy(), cmap=WEIGHT_MAP, vmin=0, vmax=1, edgecolors="white")
        ax.set_xticks([j + 0.5 for j in range(len(seen))], token_labels(seen), rotation=45, ha="right", fontsize=8)
        ax.set_yticks(middle, names)
        ax.set(ylim=(len(names), 0), ylabel="" if place else "head")
        ax.tick_params(length=0)
        ax.set_title(f'{name}: the row of "{words[-1]}"', fontsize=11)
        values = numbers[f"each head, {name}"]
        bars = [y + 0.38 * (place - 0.5) for y in middle]
        axes[2].barh(bars, values, height=0.36, color=head_color(place), label=name)
    axes[2].axvline(numbers[EVEN], color=QUIET, linestyle="--", linewidth=1.4, label="even share")
    axes[2].set_yticks(middle, names)
    axes[2].set(xlim=(0, 1), ylim=(len(names), 0))
    axes[2].set_title(f"weight on {START}, all last rows", fontsize=11)
    axes[2].legend(frameon=False, loc="center right")
    most = {name: numbers[f"chosen head, {name}"] for name in models}
    title = (
        f"Of their last rows the heads give {START} {most[ADAMW]:.2f} at most after AdamW, {most[MUON]:.2f} after Muon"
    )
    headline(fig, f"{title} (an even share: {numbers[EVEN]:.2f})", note, 12.5)
    return fig, f"{title}; an even share is {numbers[EVEN]:.2f}. The heads are chosen on other sentences."


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    train_sentences, held_out = training.corpus()
    sentences = held_out[: QUICK_SENTENCES if options.quick else NUM_SENTENCES]
    steps = training.QUICK_STEPS if options.quick else ADAMW_STEPS
    wide, rests = [], []
    for seed in cli.seeds(options):
        full, causal = load_multi_head_model(options, seed), load_causal_model(options, seed)
        adamw = train(WITH, 2, train_sentences, steps, seed, matrix_rate=None, rate=ADAMW_RATE)
        both, models = read(full, sentences), {ADAMW: adamw, MUON: causal}
        wide.append(spreads({BOTH: both, CUT: cut(both), CAUSAL: read(causal, sentences)}))
        rests.append(sinks(models, sentences))
        if seed == options.seed:
            tested = f"{len(sentences)} held-out sentences"
            note = f"both sides: {full.label}, hidden words · with the mask: {causal.label}, next words · {tested}"
            save_plot(options, "phase4/mask_patterns", *draw_spreads(wide[0], note))
            batches = f"in batches of {BATCH}", f"of {RECIPE.batch_size}"
            note = f"{ADAMW}: {adamw.label} {batches[0]} · {MUON}: {causal.label} {batches[1]} · {tested}"
            save_plot(options, "phase4/attention_sinks", *draw_sinks(models, options.words, rests[0], note))
    findings.record(options, *wide, *rests)
    entropy, share = ([wide[0][f"{name}, {kind}"] for kind in (BOTH, CUT)] for name in SPREADS[:2])
    return "Cut to the past: entropy {:.2f} to {:.2f} nats, but {:.2f} to {:.2f} of ln n".format(*entropy, *share)


if __name__ == "__main__":
    cli.run(main)
