"""A weight says how much of a value is taken. It does not say how large the value is, or whether it had to be so.

Three experiments on the trained heads of phase 2. reading_weights.py of phase 1 explains the ideas on a single head.

1. Norm-weighted attention (Kobayashi et al. 2020). What word j adds to word i through head h is a vector, and its
   length is a_ij ||(x_j W_V^h + b_V^h) W_O^h||. A large weight on a short value adds little: the head looks, and takes
   almost nothing. How often is the heaviest word not the one that adds most?
2. A planted zero. Where a word has 0.9 of the weight, set its value to zero. No weight moves.
3. Other weights (Brunner et al. 2020). The values of a head have d_v = 16 numbers. In a text of 18 words or more every
   row can be exchanged for another one with the same output. Here all rows of all heads of the model are exchanged
   (other_weights.py).

    python phase3_visualization/explanation/not_an_explanation.py

Writes not_an_explanation.png to visualizations/plots/phase3/: the row in which the weight misleads most.
"""

import argparse
from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.parts.soft_lookup import NUM_READ, Reading
from phase1_single_head.reading.reading_weights import contributions, largest_agrees
from phase2_multi_head.multi_head_attention import load_multi_head_model, split_heads
from phase2_multi_head.pruning.head_importance import Head
from phase3_visualization.explanation.other_weights import added_by_words, exchange_all, in_float64, joined
from shared import cli, paths, training
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import MAX_LENGTH, encode
from shared.training import Trained
from shared.visualization_utils import QUIET, head_color, model_note, save_figure, token_labels

CLEAR = 0.5  # a weight above this is more than all others together
PLANTED_WEIGHT = 0.9


@torch.no_grad()
def read_heads(trained: Trained, sentences: list[list[str]]) -> dict[Head, list[Reading]]:
    """What each head computes on each sentence, in float64; value (T, d_model) is what added_by_words says."""
    model = in_float64(trained)
    readings: dict[Head, list[Reading]] = {}
    for words in sentences:
        x = model.embed(torch.tensor([encode(words)]))
        for layer, block in enumerate(model.blocks):
            attention, normed = block.attention, block.attention_norm(x)
            query, key = (split_heads(w(normed), attention.num_heads)[0] for w in (attention.w_q, attention.w_k))
            added = added_by_words(attention, normed)
            x, weights = block(x)
            for head in range(attention.num_heads):
                reading = Reading(words, query[head], key[head], added[head], weights[0, head])
                readings.setdefault((layer, head), []).append(reading)
    return readings


# ------------------------------------------------------------------------------------------ 1. norm-weighted attention


@dataclass(frozen=True)
class Row:
    """One row of one head: the query i and, for each word j, its weight and its share of the contributions."""

    head: Head
    words: list[str]
    i: int
    weights: Tensor
    shares: Tensor

    @property
    def heaviest(self) -> int:
        return int(self.weights.argmax())

    @property
    def gap(self) -> float:
        """How much more weight the heaviest word has than its share of what is added."""
        return (self.weights - self.shares)[self.heaviest].item()


def shares_added(reading: Reading) -> Tensor:
    """Norm-weighted attention, each row divided by its sum -> (T, T). Lengths are summed; vectors may cancel."""
    added = contributions(reading.weights, reading.value)
    return added / added.sum(dim=-1, keepdim=True)


def rows_of(readings: dict[Head, list[Reading]]) -> list[Row]:
    return [
        Row(head, reading.words, i, weights, shares)
        for head, of_head in readings.items()
        for reading in of_head
        for i, (weights, shares) in enumerate(zip(reading.weights, shares_added(reading), strict=True))
    ]


def disagreement(readings: dict[Head, list[Reading]], above: float = 0.0) -> dict[Head, float]:
    """For each head: the share of rows in which the heaviest word is not the one that adds most.

    above: only rows in which the heaviest word has more than this weight; 0 for a head that has none.
    """
    shares = {}
    for head, of_head in readings.items():
        asked = torch.cat([reading.weights.amax(dim=-1) > above for reading in of_head])
        differs = ~torch.cat([largest_agrees(reading) for reading in of_head])
        shares[head] = ((asked & differs).sum() / asked.sum().clamp(min=1)).item()
    return shares


def show_norms(readings: dict[Head, list[Reading]]) -> Row:
    """Print where weight and contribution differ; return the row in which they differ most."""
    print("\n1. Rows in which the heaviest word is not the one that adds most")
    print(f"                    of all rows   of those with a weight above {CLEAR}   lengths of values")
    clear = disagreement(readings, CLEAR)
    for (layer, head), share in disagreement(readings).items():
        norms = torch.cat([reading.value.norm(dim=-1) for reading in readings[layer, head]])
        lengths = f"{norms.min():.2f} to {norms.max():.2f}"
        print(f"   layer {layer} head {head}   {share:11.1%} {clear[layer, head]:30.1%} {lengths:>21}")
    row = max(rows_of(readings), key=lambda row: row.gap)
    layer, head = row.head
    print(f'\n   The widest gap: layer {layer} head {head}, "{row.words[row.i]}" in "{" ".join(row.words)}"')
    for word, weight, share in zip(token_labels(row.words), row.weights, row.shares, strict=True):
        print(f"   {word:13} weight {weight:.2f}   share of what is added {share:.2f}")
    return row


def draw(trained: Trained, row: Row) -> tuple[Figure, str]:
    """Weight beside contribution for each word of one row."""
    layer, head = row.head
    weight, share = row.weights[row.heaviest], row.shares[row.heaviest]
    word = row.words[row.heaviest]
    title = f'"{word}" gets {weight:.2f} of the weight and adds {share:.2f} of what is added'
    fig, ax = plt.subplots(figsize=(max(6.4, 0.62 * len(row.words) + 1), 4.2), layout="constrained")
    styles = ((row.weights, -0.21, head_color(head), "weight"), (row.shares, 0.21, QUIET, "share of what is added"))
    for heights, shift, color, label in styles:
        ax.bar([j + shift for j in range(len(row.words))], heights.tolist(), 0.4, color=color, label=label)
    ax.set_xticks(range(len(row.words)), token_labels(row.words), rotation=45, ha="right", rotation_mode="anchor")
    ax.set(ylim=(0, 1.25 * max(row.weights.max().item(), row.shares.max().item())))
    ax.set_title(f'layer {layer} head {head}, where "{row.i} {row.words[row.i]}" looks', color=QUIET)
    ax.tick_params(length=0)
    ax.legend(frameon=False, fontsize=9, loc="upper right", borderaxespad=0)
    fig.suptitle(title, fontsize=12.5)
    model_note(fig, f"{trained.label} · share: weight × length of the value after W_O, over the sum of the row")
    return fig, f"{title}: layer {layer} head {head}, the row of all held-out sentences in which the two differ most."


# ------------------------------------------------------------------------------------------------- 2. a planted zero


def plant_zero(reading: Reading, j: int) -> Reading:
    """The same reading with the value of word j set to zero."""
    value = reading.value.clone()
    value[j] = 0
    return replace(reading, value=value)


def show_planted(readings: dict[Head, list[Reading]]) -> dict[str, float]:
    """Set a value under the weight nearest to 0.9 to zero: what moves and what does not."""
    everywhere = [reading for of_head in readings.values() for reading in of_head]
    reading = min(everywhere, key=lambda reading: (reading.weights - PLANTED_WEIGHT).abs().min())
    i, j = divmod(int((reading.weights - PLANTED_WEIGHT).abs().argmin()), len(reading.words))
    before, after = shares_added(reading)[i, j].item(), shares_added(plant_zero(reading, j))[i, j].item()
    weight = reading.weights[i, j].item()
    word, query = reading.words[j], reading.words[i]
    print(f'\n2. The value of "{word}" set to zero, on which "{query}" puts a weight of {weight:.2f}')
    print(f"   weight {weight:.2f}, as before; its share of what is added: {before:.2f} before, {after:.2f} after")
    return {"weight": weight, "share before": before, "share after": after}


# ------------------------------------------------------------------------------------------------- 3. other weights


def show_exchange(trained: Trained, sentences: list[list[str]], quick: bool) -> tuple[dict, dict]:
    """Exchange all rows of a few long texts, and as a control of sentences cut to d_v + 1 words.

    Two empty dicts if heads are so wide that no text of the toy language is long enough.
    """
    d_v = trained.recipe.d_model // trained.recipe.num_heads
    number = 1 if quick else 2
    texts = joined(sentences, d_v + 2)[:number]
    print(f"\n3. Every row of every head exchanged for another one with the same output; d_v = {d_v}")
    if not texts:
        print(f"   no two sentences together have {d_v + 2} to {MAX_LENGTH} words")
        return {}, {}
    model = in_float64(trained)
    long = exchange_all(model, texts)
    short = exchange_all(model, [words[: d_v + 1] for words in sentences[:number]])
    for name, found in ((f"two sentences in a row, {d_v + 2} words or more", long), (f"{d_v + 1} at most", short)):
        print(f"   {name}:")
        for what, value in found.items():
            print(f"      {what:42} {findings.number(value)}")
    return long, short


def exchange_finding(long: dict[str, float], short: dict[str, float], seed: int) -> Finding:
    in_long, in_short = (found["rows with another"] == found["rows"] for found in (long, short))
    same_answer = long["largest change of a logit"] < 1e-9
    return Finding(
        "exchanged-weights",
        "A model can give the same answer with other attention weights",
        "Brunner et al. 2020",
        long,
        "all rows of all heads exchanged at once; float64",
        "each of the rows has another one with the same output, and no logit changes by 1e-9 when all are exchanged",
        **findings.conditional(
            in_long and in_short and same_answer,
            in_long and same_answer,
            "the text has more than d_v + 1 words",
        ),
        control=f"texts of at most d_v + 1 words: {short['rows with another']} of {short['rows']} rows have another",
        seeds=[seed],
    )


def record_findings(
    readings: dict[Head, list[Reading]],
    row: Row,
    planted: dict[str, float],
    long: dict[str, float],
    short: dict[str, float],
    options: argparse.Namespace,
) -> None:
    wrong, clear = disagreement(readings), disagreement(readings, CLEAR)
    weight, share = row.weights[row.heaviest].item(), row.shares[row.heaviest].item()
    findings.record(
        "phase3_visualization/explanation/not_an_explanation.py",
        [
            Finding(
                "norm-weights",
                "The word that a head looks at most is the word that adds most to its output",
                "course notes",
                {f"layer {layer} head {head}": value for (layer, head), value in wrong.items()}
                | {f"most of any head, weight above {CLEAR}": max(clear.values())}
                | {"widest gap, weight": weight, "widest gap, share of what is added": share},
                "share of held-out rows in which another word adds more, by weight × length of its value after W_O",
                "in every head at most 0.1 of the rows",
                **findings.conditional(
                    max(wrong.values()) <= 0.1,
                    max(clear.values()) <= 0.1,
                    "the word has more than half of the weight",
                ),
                control=f"a value set to zero: weight {planted['weight']:.2f} stays, its share of what is added falls "
                f"from {planted['share before']:.2f} to {planted['share after']:.2f}",
                seeds=[options.seed],
            ),
            *([exchange_finding(long, short, options.seed)] if long else []),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    sentences = [list(sentence.words) for sentence in training.corpus()[1][: 20 if options.quick else NUM_READ]]
    readings = read_heads(trained, sentences)
    row = show_norms(readings)
    figure, caption = draw(trained, row)
    path = options.output_dir / paths.PLOTS / "phase3" / f"not_an_explanation.{options.format}"
    save_figure(figure, path, caption=caption)
    planted = show_planted(readings)
    long, short = show_exchange(trained, sentences, options.quick)
    record_findings(readings, row, planted, long, short, options)


if __name__ == "__main__":
    cli.run(main)
