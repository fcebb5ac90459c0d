"""How many words does a large model write in one pass, if a small one drafts?

With drafts that are kept or replaced as in drafts.py, the large model writes what it would have written alone: the
tests add up all branches. What differs is how often it is asked. The more alike the two models, the more of a draft is
kept: a word is kept with a chance of 1 minus half the sum of |p - q|, on average over what the draft may say.

The large model is the causal model of this phase. The small one has one layer of half the width and is trained for a
quarter of the time. Temperature changes both, so it changes how alike they are. Passes are counted, not seconds: models
as small as these spend their time elsewhere.

    python phase4_causal/serving/speculative.py

Writes speculative.png to visualizations/plots/phase4/.
"""

import argparse
from statistics import mean

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.models import load_causal_model
from phase4_causal.serving.drafts import DRAFTED, drawn_by, speculate
from phase4_causal.writing.sampling import Sampling
from shared import checkpoints, cli
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Numbers, measures
from shared.toy_language import START_ID, encode
from shared.toy_model import ToyTransformer
from shared.training import LITTLE_DECAY, Recipe, Trained, corpus
from shared.visualization_utils import BLUE, GREY, QUIET, headline, label_ends, save_plot

DRAFT_RECIPE = Recipe(
    "draft_model", "next word", num_heads=4, num_layers=1, steps=200, d_model=32, matrix_decay=LITTLE_DECAY
)
TEMPERATURES, PROMPTS, PROMPT_WORDS = (0, 0.1, 0.25, 0.5, 1, 2), 20, 2
PER_PASS, KEPT, EXPECTED = "words a pass", "share of judged words kept", "the same by p and q: sum of min(p, q)"


def load_draft_model(options: argparse.Namespace, seed: int) -> Trained:
    """It keeps its size, whatever that of the large one is."""
    own = argparse.Namespace(**vars(options) | {"d_model": None, "heads": None})
    return checkpoints.trained_model(DRAFT_RECIPE, CausalSelfAttention, own, seed)


def name_of(temperature: float, what: str) -> str:
    return f"{what}, temperature {temperature:g}"


def colder(n: Numbers) -> float:
    """How much more of the draft is kept at temperature 0 than at 1."""
    return n[name_of(0, KEPT)] - n[name_of(1, KEPT)]


@measures(
    Claim(
        id="speculative-passes",
        text="With the drafts of a much smaller model, the large one needs less than half a pass for each word",
        kind=EXPERIMENT,
        source="Leviathan et al. 2023, section 3.1 and table 2: 2 to 3 times as fast at temperatures 0 and 1",
        rule=f"more than 2 words for each pass, at temperature 0 and at 1, with {DRAFTED} words drafted at a time",
        holds=lambda n: min(n[name_of(temperature, PER_PASS)] for temperature in (0, 1)) > 2,
        only_if=lambda n: n[name_of(1, PER_PASS)] > 2,
        condition="words are drawn at temperature 1; at 0 the likeliest of many equally likely words is taken",
        oracle={name_of(0, PER_PASS): 3.5, name_of(1, PER_PASS): 3.0},
        null={name_of(0, PER_PASS): 1.0, name_of(1, PER_PASS): 1.0},
        unit=f"words written for each pass of the large model, {PROMPTS} sentences",
        control="one pass for each word, without drafts",
        shows=(f"{PER_PASS}*",),
    ),
    Claim(
        id="speculative-sharper",
        text="The sharper the distributions are, the more of the draft is kept: most where the likeliest word is taken",
        kind=EXPERIMENT,
        source="Leviathan et al. 2023, section 4.2: the sharper the adjusted distribution, the higher the share",
        rule="a larger share is kept at temperature 0 than at 1",
        holds=Above(colder, 0.0),
        oracle={name_of(0, KEPT): 0.75, name_of(1, KEPT): 0.62},
        null={name_of(0, KEPT): 0.62, name_of(1, KEPT): 0.62},
        unit="share of the drafted words that were judged",
        shows=(f"{KEPT}*",),
    ),
)
def speculated(large: ToyTransformer, small: ToyTransformer, count: int, seed: int) -> dict[str, float]:
    """`count` sentences at each temperature, from the first words of held-out ones."""
    prompts = [[START_ID, *encode(sentence.words[:PROMPT_WORDS])] for sentence in corpus()[1][:count]]
    found = {}
    for temperature in TEMPERATURES:
        choose = drawn_by(torch.Generator().manual_seed(seed))
        written = [speculate(large, small, prompt, Sampling(temperature), choose) for prompt in prompts]
        new = sum(map(len, (each.tokens for each in written))) - sum(map(len, prompts))
        expected = [chance for each in written for chance in each.expected]
        found[name_of(temperature, PER_PASS)] = new / sum(each.passes for each in written)
        found[name_of(temperature, KEPT)] = sum(each.kept for each in written) / len(expected)
        found[name_of(temperature, EXPECTED)] = mean(expected)
    return found


def show(found: Numbers) -> None:
    print(f"\n{'temperature':45}" + "".join(f"{temperature:8g}" for temperature in TEMPERATURES))
    for what in (PER_PASS, KEPT, EXPECTED):
        print(f"   {what:42}" + "".join(f"{found[name_of(temperature, what)]:8.2f}" for temperature in TEMPERATURES))


def draw(found: Numbers, note: str) -> tuple[Figure, str]:
    """Words for each pass of the large model against temperature."""
    fig, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
    ours = [found[name_of(temperature, PER_PASS)] for temperature in TEMPERATURES]
    ends = {}
    for name, values, color, line in (
        (f"all {DRAFTED} drafted words\nkept, and 1 more", [DRAFTED + 1] * len(ours), GREY, "--"),
        ("with drafts", ours, BLUE, "o-"),
        ("one at a time", [1] * len(ours), GREY, "--"),
    ):
        ax.plot(TEMPERATURES, values, line, color=color, linewidth=2.5, ms=7)
        ends[name] = (TEMPERATURES[-1], values[-1], color)
    ax.set(ylim=(0, DRAFTED + 1.3), xlabel="temperature", ylabel="words for each pass\nof the large model")
    arrow = {"textcoords": "offset points", "va": "center", "arrowprops": {"arrowstyle": "->", "color": QUIET}}
    ax.annotate("always the likeliest word", (TEMPERATURES[0], ours[0]), (60, -8), color=QUIET, fontsize=11, **arrow)
    title = f"With drafts, the large model writes {min(ours):.1f} to {max(ours):.1f} words in each pass"
    headline(fig, title, note)
    label_ends(ax, ends, size=11)
    return fig, f"{title}. Words for each pass of the large model against temperature."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    count, measured = PROMPTS // 3 if options.quick else PROMPTS, []
    for seed in cli.seeds(options):
        large, small = load_causal_model(options, seed), load_draft_model(options, seed)
        measured.append(speculated(large.model, small.model, count, seed))
    show(measured[0])
    sizes = [sum(weights.numel() for weights in each.model.parameters()) for each in (large, small)]
    note = f"large: {sizes[0]:,} weights, {large.label}; small: {sizes[1]:,}, {small.label}; seed {options.seed}"
    save_plot(options, "phase4/speculative", *draw(measured[0], note))
    findings.record(options, *measured, show_numbers=False)
    return "{:.1f} words for each pass at temperature 1, {:.1f} at 0; what is written is distributed as before".format(
        *(measured[0][name_of(temperature, PER_PASS)] for temperature in (1, 0))
    )


if __name__ == "__main__":
    cli.run(main)
