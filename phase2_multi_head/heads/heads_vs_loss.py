"""What do more heads gain, measured against the best that any model could do?

One layer with 1, 2, 4 or 8 heads and d_model = 64: with the number of heads only the cut changes, so that with the same
seed all four start from the same numbers and see the same batches. Then one word of a held-out sentence is hidden. What
the guesses of a model cost, less the entropy of what the grammar allows there, is its excess loss: 0 is perfect
(shared/grammar/entropy.py). One and four heads are also trained a third of the time: a gap may be a matter of time.

    python phase2_multi_head/heads/heads_vs_loss.py --seeds 5
    python phase2_multi_head/heads/heads_vs_loss.py --steps 2700    # much longer: does the gap stay?

Second question: do more heads look at more different things? The distance between two heads is the Jensen-Shannon
divergence of their rows (Clark et al. 2019), and heads with random weights are the control.

Translation: 24.9 BLEU with one head, 25.8 with 8 and 16, 25.4 with 32, d_model = 512 (Vaswani et al. 2017, table 3).
Writes heads_vs_loss.png to visualizations/plots/phase2/.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from statistics import fmean as mean

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from phase2_multi_head.models import ONE_LAYER_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import cli, training
from shared.attention_utils import attention_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Measured, measures
from shared.grammar.entropy import excess_loss, floor, questions
from shared.toy_language import Sentence, encode
from shared.toy_model import ToyTransformer
from shared.training import Recipe
from shared.visualization_utils import BLUE, GREY, QUIET, headline, save_plot

HEADS = (1, 2, 4, 8)
SHORT_HEADS = (1, 4)  # trained a third of the steps, too
STEPS, BATCH, RATE = 900, 32, 0.03  # so few steps leave no time for decay
NUM_SENTENCES, QUICK_SENTENCES = 150, 20  # of the held-out sentences, each word of which is hidden once


def recipe(num_heads: int, seed: int, steps: int) -> Recipe:
    return Recipe(f"heads_{num_heads}", "masked word", num_heads, 1, steps, batch_size=BATCH, seed=seed)


@cache
def sentences_by_length() -> list[Tensor]:
    """All training sentences, one tensor (n, T) for each length."""
    rows = defaultdict(list)
    for sentence in training.corpus()[0]:
        rows[len(sentence.words)].append(encode(sentence.words))
    return [torch.tensor(rows[length]) for length in sorted(rows)]


def batches(steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches (B, T) of sentences of one length, which need no padding; a length comes as often as it has sentences."""
    groups = sentences_by_length()
    sizes = torch.tensor([float(len(group)) for group in groups])
    for _ in range(steps):
        group = groups[int(torch.multinomial(sizes, 1, generator=generator))]
        yield group[torch.randint(len(group), (BATCH,), generator=generator)]


def train(num_heads: int, seed: int, steps: int) -> ToyTransformer:
    """Train one model on masked words. With one seed, the first weights and the batches are the same for any H."""
    model = training.new_model(recipe(num_heads, seed, steps), MultiHeadAttention)
    generator = torch.Generator().manual_seed(seed)
    drawn = batches(steps, generator)

    def loss_of_step(_: int) -> Tensor:
        tokens = next(drawn)
        lengths = torch.full((len(tokens),), tokens.size(1))
        return training.masked_word_loss(model, tokens, lengths, generator)

    training.fit(model, loss_of_step, steps, rate=RATE, matrix_decay=0.0)
    return model


def head_distance(model: ToyTransformer, sentences: list[Sentence]) -> float:
    """Mean Jensen-Shannon divergence between two heads of the layer, in nats: 0 if all are alike, ln 2 = 0.69 at most.

    For each pair of heads and each real query: entropy of the mean row less the mean entropy of the two rows.
    """
    (weights,), mask = training.attention_on(model, sentences, "masked word")
    first, second = torch.triu_indices(weights.size(1), weights.size(1), offset=1)
    a, b = weights[:, first], weights[:, second]  # (N, H, T, T) -> (N, pairs, T, T)
    divergence = attention_entropy((a + b) / 2) - (attention_entropy(a) + attention_entropy(b)) / 2
    real = mask.any(dim=-1).expand(divergence.shape)  # (N, 1, T, T) -> (N, pairs, T)
    return divergence[real].mean().item()


Models = dict[int, ToyTransformer]  # by the number of heads


def of_heads(excess: tuple[float, ...], short: tuple[float, ...] = (2.0, 1.6)) -> dict[str, float]:
    """For oracles: what the models with 1, 2, 4 and 8 heads lose, and what is gained by that."""
    return gains(dict(zip(HEADS, excess, strict=True)), dict(zip(SHORT_HEADS, short, strict=True)))


def gains(excess: dict[int, float], short: dict[int, float]) -> dict[str, float]:
    """How much lower the loss is with more heads, in nats; excess, short: by the number of heads."""
    return {
        FIRST: excess[1] - excess[4],
        LAST: excess[4] - excess[8],
        SHORT: short[1] - short[4],
    }


def distances(*values: float) -> dict[str, float]:
    """For oracles: how far apart 2, 4 and 8 heads are."""
    return {f"distance, H={heads}": value for heads, value in zip(HEADS[1:], values, strict=True)}


FIRST, LAST, SHORT = "gain, 4 heads for 1", "gain, 8 heads for 4", "gain, 4 heads for 1, a third of the steps"
UNIT = "nats per hidden word above the grammar's entropy"
SAME = "the same layer, first weights, batches, parameters and steps, d_model = 64; only the heads' size differs"


@measures(
    Claim(
        id="C081",
        text="More heads bring more, with diminishing returns",
        source="course notes, 'Hyperparameter Choices': beyond 16, in wider models; in translation 32 heads are worse "
        "than 16 (Vaswani et al. 2017, table 3)",
        kind=EXPERIMENT,
        rule="8 heads gain something over 4, and less than half of what 4 gain over 1",
        holds=Above(lambda n: min(n[LAST], n[FIRST] / 2 - n[LAST]), 0),
        oracle=of_heads((0.6, 0.4, 0.3, 0.25)),
        null=of_heads((0.6, 0.5, 0.4, 0.2)),
        unit=UNIT,
        control=SAME,
        headline=True,
        shows=("excess, *", "the grammar's entropy", "gain, 4 heads for 1", "gain, 8 heads for 4"),
    ),
    Claim(
        id="heads-training-length",
        text="What several heads gain over one shrinks as training goes on",
        source="our question: may one head only be slower?",
        kind=EXPERIMENT,
        rule="4 heads gain less over 1 than after a third of the steps",
        holds=Above(lambda n: n[SHORT] - n[FIRST], 0),
        oracle=of_heads((0.6, 0.5, 0.4, 0.4), short=(1.0, 0.6)),
        null=of_heads((0.6, 0.4, 0.2, 0.2), short=(1.0, 0.7)),
        unit=UNIT,
        control=SAME,
        shows=(FIRST, SHORT),
    ),
    Claim(
        id="C083",
        text="More heads mean more diverse patterns",
        source="course notes, 'Hyperparameter Choices'",
        kind=EXPERIMENT,
        rule="4 heads are at least 1.1 times as far apart as 2, and 8 heads as 4",
        holds=Above(lambda n: min(n[f"distance, H={h}"] - 1.1 * n[f"distance, H={h // 2}"] for h in (4, 8)), 0),
        oracle=distances(0.1, 0.2, 0.3),
        null=distances(0.1, 0.1, 0.1),
        unit="mean Jensen-Shannon divergence between two heads, nats (Clark et al. 2019)",
        control="the same models before training",
        shows=("distance, *", "untrained distance, *"),
    ),
)
def what_heads_gain(models: Models, short: Models, sentences: list[Sentence], seed: int) -> dict[str, float]:
    """Excess loss and distance between heads, by the number of heads; short: trained a third of the steps."""
    asked = questions(sentences)
    excess, after_a_third = (
        {heads: excess_loss(model, asked) for heads, model in each.items()} for each in (models, short)
    )
    numbers = {"the grammar's entropy": floor(asked)}
    numbers |= {f"excess, H={heads}": value for heads, value in excess.items()}
    numbers |= gains(excess, after_a_third)
    for heads in HEADS[1:]:
        untrained = training.new_model(recipe(heads, seed, 0), MultiHeadAttention)
        numbers[f"distance, H={heads}"] = head_distance(models[heads], sentences)
        numbers[f"untrained distance, H={heads}"] = head_distance(untrained, sentences)
    return numbers


def train_all(seed: int, steps: int) -> tuple[Models, Models]:
    """Models with 1, 2, 4 and 8 heads, and some of them after a third of the steps, a training of its own."""
    models, short = (
        {heads: train(heads, seed, count) for heads in tqdm(sizes, f"heads, {count} steps", leave=False, disable=None)}
        for sizes, count in ((HEADS, steps), (SHORT_HEADS, max(1, steps // 3)))
    )
    return models, short


def excess_in_words(runs: list[Measured]) -> str:
    """ "1.30 with 1, ... heads", means over seeds."""
    return ", ".join(f"{mean(n[f'excess, H={heads}'] for n in runs):.2f} with {heads}" for heads in HEADS) + " heads"


def draw(runs: list[Measured], note: str) -> tuple[Figure, str]:
    """Excess loss against the number of heads: a dot for each seed, a line through the means."""
    places, rows = range(len(HEADS)), [[n[f"excess, H={heads}"] for n in runs] for heads in HEADS]
    fig, ax = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for place, values in zip(places, rows, strict=True):
        ax.plot([place] * len(values), values, "o", color=BLUE, markersize=5, alpha=0.5, markeredgewidth=0)
        ax.annotate(f"{mean(values):.2f}", (place, max(values)), (0, 9), textcoords="offset points", ha="center")
    ax.plot(places, [mean(values) for values in rows], "o-", color=BLUE, markersize=8)
    ax.axhline(0, color=GREY, linewidth=1.2, linestyle="--")
    said = "0: the grammar itself, no model can go below"
    ax.annotate(said, (1.5, 0), (0, 4), textcoords="offset points", color=QUIET, ha="center")
    ax.set_xticks(places, [f"{heads} head{'s' * (heads > 1)}" for heads in HEADS])
    ax.set(ylim=(-0.05 * max(rows[0]), 1.2 * max(rows[0])), xlim=(-0.4, 3.4), yticks=[])
    ax.set_ylabel("loss above the best possible, in nats")
    ax.tick_params(length=0)
    title = "Four heads gain much over one, eight hardly more than four"
    if not all(max(0, 2 * n[LAST]) < n[FIRST] for n in runs):
        title = "In this run four heads gain little over one"
    headline(fig, title, note)
    return fig, f"{title}. The loss on a hidden word above the grammar's entropy, with 1, 2, 4 and 8 heads."


@cli.script
def main(argv: list[str] | None = None) -> str:
    script = cli.parser(__doc__)
    script.add_argument("--steps", type=int, default=STEPS, help=f"training steps of each model (default: {STEPS})")
    options = cli.parse(script, argv)
    if options.steps < 1:
        script.error(f"--steps must be 1 or more: got {options.steps}")
    if options.quick:
        options.steps = min(options.steps, training.QUICK_STEPS)
    sentences = training.corpus()[1][: QUICK_SENTENCES if options.quick else NUM_SENTENCES]
    runs = []
    for seed in cli.seeds(options):
        models, short = train_all(seed, options.steps)
        runs.append(what_heads_gain(models, short, sentences, seed))
    sizes = f"batches of {BATCH} (the lesson's: {ONE_LAYER_RECIPE.batch_size})"
    note = f"one layer, d_model = 64 in all, trained {options.steps:,} steps; seeds: {len(runs)} · {sizes}"
    save_plot(options, "phase2/heads_vs_loss", *draw(runs, note))
    findings.record(options, *runs)
    return f"Nats above the best loss: {excess_in_words(runs)}"


if __name__ == "__main__":
    cli.run(main)
