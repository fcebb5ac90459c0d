"""How does a trained model write, and how many of its sentences are right?

It says how likely each next word is, a rule picks one (sampling.py), and it reads on from there. The sentences for your
prompt come first, then a film of one that is drawn. Each page is one step. Above stands the sentence so far, with the
word that is drawn now in red. Left: what the newest word attends to in each head of the last layer; it is the only word
whose query is computed. Right: the likeliest next words, and the one that is drawn.

Then quality is counted, since the grammar can say of every sentence whether it could have made it, and how likely it is
(shared/grammar/entropy.py). A high temperature makes mistakes. Top-p cuts off the many words that are unlikely one by
one and not unlikely together (Holtzman et al. 2020), and temperature then does less harm. It has a price: the entropy
of a sentence, in nats, says how varied the sentences are, and the grammar's own says how varied they should be. Drawn
against each other, mistakes and variety lie on nearly one curve, whichever rule is used. And the likeliest word each
time need not lead to a likely sentence.

    python phase4_causal/writing/generate.py
    python phase4_causal/writing/generate.py --prompt "these dogs" --temperature 1.5 --top-p 0.9

Writes generation_temperature.png to visualizations/plots/phase4/, generation.gif to visualizations/animations/phase4/.
"""

import argparse
import itertools
import math
import random
import statistics
import textwrap
from functools import cache
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from PIL import Image
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.models import load_causal_model
from phase4_causal.writing.sampling import Sampling, Written, write
from shared import cli, paths
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Measured, Numbers, measures
from shared.grammar.entropy import sentence_log_probability
from shared.toy_language import END_ID, MAX_LENGTH, START_ID, VOCABULARY, decode, encode, sample_sentence, tokenize
from shared.toy_model import ToyTransformer
from shared.training import Trained, corpus, untrained
from shared.visualization_utils import (
    BLUE,
    GREY,
    HIDDEN,
    INK,
    QUIET,
    RED,
    WEIGHT_MAP,
    hatch_cell,
    headline,
    readable,
    save_animation,
    save_plot,
)

SHOWN, SECONDS, HELD = 6, 1.2, 3  # of the film: words of the right panel, for each page, pages that the last one stays
WRAP, SENTENCE, LINE = 54, 0.8, 0.085  # of its sentence: letters in a line, height of the first, from line to line
TEMPERATURES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
DRAWN_AT = ", ".join(f"{temperature:g}" for temperature in TEMPERATURES)
RULES = {"all words": None, "top-p 0.95": 0.95, "top-p 0.9": 0.9}
DRAWN = {"all words": GREY, "top-p 0.9": BLUE}
NUM_SENTENCES, QUICK_SENTENCES = 500, 20
NUM_PROMPTS, QUICK_PROMPTS, PROMPT_WORDS, DRAWS = 100, 5, 2, 20
LIMIT = 18  # words; the grammar never needs more
LIKELIER = "greedy likelier than the median drawn"


def checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[list[str], Sampling]:
    """The prompt's words and the sampling rule; ends the program with one line if they make no sense."""
    try:
        prompt = tokenize(options.prompt)
        sampling = Sampling(options.temperature, options.top_k, options.top_p)
    except ValueError as error:
        parser.error(str(error))
    if not len(prompt) < options.limit <= MAX_LENGTH:
        parser.error(f"--limit must lie between {len(prompt) + 1} and {MAX_LENGTH} words: got {options.limit}")
    return prompt, sampling


def show_sentences(model: ToyTransformer, prompt: list[str], sampling: Sampling, options: argparse.Namespace) -> None:
    """The greedy sentence and three drawn ones, each with what the grammar says about it."""
    tokens = torch.tensor([[START_ID, *encode(prompt)]], device=model.positions.device)
    generator = torch.Generator().manual_seed(options.seed)
    drawn = write(model, tokens.expand(3, -1), sampling, limit=options.limit, generator=generator).sentences()
    greedy = write(model, tokens, limit=options.limit).sentences()
    for name, sentences in (("the likeliest word each time", greedy), (f"drawn, {sampling.label}", drawn)):
        print(f"   {name}")
        for words in sentences:
            log_probability = sentence_log_probability(words)
            verdict = "not in the grammar" if log_probability == -math.inf else f"ln P = {log_probability:.1f}"
            print(f"      {' '.join(prompt)} | {' '.join(words[len(prompt) :])}   ({verdict})")


def page(written: Written, step: int, note: str) -> Figure:
    """One step of the film: the sentence, the weights of the newest word, and the likeliest next words."""
    tokens = decode(written.tokens[0].tolist())
    weights = written.attended[step][-1][0].cpu()  # of the last layer: (1, H, n) -> (H, n)
    fig = plt.figure(figsize=(9, 4.6), dpi=100)
    fig.text(0.5, 0.93, "One word at a time: each is drawn, and then read", ha="center", fontsize=13)
    below = SENTENCE - LINE * len(textwrap.wrap(" ".join(tokens[1:]), WRAP))  # room for the whole sentence
    write_sentence(fig, tokens[1 : weights.size(1)], tokens[weights.size(1)])
    layer = len(written.attended[step]) - 1
    draw_look(fig.add_axes((0.09, 0.14, 0.56, below - 0.24)), weights, tokens, layer)
    chances = written.logits[0, step].softmax(dim=-1).cpu()
    draw_chances(fig.add_axes((0.8, 0.14, 0.14, below - 0.19)), chances, int(written.tokens[0, weights.size(1)]))
    fig.text(0.5, 0.025, note, ha="center", fontsize=9, color=QUIET)
    return fig


def write_sentence(fig: Figure, words: list[str], new: str) -> None:
    """The words so far in large type, in lines of WRAP letters, and after them the new one in red."""
    *full, last = textwrap.wrap(" ".join([*words, new]), WRAP)
    for row, text in enumerate([*full, last.removesuffix(new)]):
        height = SENTENCE - LINE * row
        line = fig.text(0.03, height, text, fontsize=18)
    end = line.get_window_extent(fig.canvas.get_renderer()).x1 / fig.bbox.width if text else 0.03
    fig.text(end, height, new, fontsize=18, color=RED, fontweight="bold")


def draw_look(ax: Axes, weights: Tensor, tokens: list[str], layer: int) -> None:
    """What the newest word attends to (H, n), a row for each head; words that are not yet written are hatched."""
    heads, so_far = weights.shape
    ax.pcolormesh(weights.numpy(), vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors=HIDDEN, linewidth=0.8)
    for column, row in itertools.product(range(so_far, len(tokens) - 1), range(heads)):
        hatch_cell(ax, column, row)
    ax.set(xlim=(0, len(tokens) - 1), ylim=(heads, 0))
    ax.xaxis.tick_top()
    angle, middle = (45, "baseline") if len(tokens) <= 20 else (90, "center")
    turned = {"rotation": angle, "ha": "left", "va": middle, "rotation_mode": "anchor"}
    ax.set_xticks([i + 0.5 for i in range(so_far)], tokens[:so_far], **turned)
    ax.get_xticklabels()[-1].set_fontweight("bold")
    ax.set_yticks([i + 0.5 for i in range(heads)], [f"head {head}" for head in range(heads)])
    ax.set_xlabel(f'what "{tokens[so_far - 1]}" looks at, in layer {layer}', fontsize=11)
    ax.tick_params(length=0, labelsize=10)
    ax.spines[:].set_visible(False)


def draw_chances(ax: Axes, chances: Tensor, taken: int) -> None:
    """The likeliest next words of all (V,), and the one that was taken."""
    likeliest, words = chances.topk(SHOWN)
    if taken not in words:  # a rarer word was drawn: it takes the last place
        words[-1], likeliest[-1] = taken, chances[taken]
    bars = ax.barh(
        range(SHOWN), likeliest.tolist(), color=[RED if word == taken else GREY for word in words], height=0.7
    )
    ax.bar_label(bars, [f"{chance:.0%}" for chance in likeliest], padding=4, fontsize=10)
    ax.set_yticks(range(SHOWN), [VOCABULARY[word] for word in words], fontsize=11)
    ax.get_yticklabels()[words.tolist().index(taken)].set(fontweight="bold", color=RED)
    ax.set(xlim=(0, 1), ylim=(SHOWN - 0.5, -0.5), xticks=())
    ax.set_xlabel("the next word", fontsize=11)
    ax.tick_params(length=0)
    ax.spines["bottom"].set_visible(False)


def pixels(fig: Figure) -> np.ndarray:
    """The figure as an image (height, width, 3); closes it."""
    fig.canvas.draw()
    image = np.asarray(fig.canvas.buffer_rgba())[..., :3].copy()
    plt.close(fig)
    return image


def in_one_palette(images: list[np.ndarray]) -> list[np.ndarray]:
    """The images in the same 256 colours, so that a shade stays what it is from page to page."""
    few = Image.fromarray(np.concatenate(images)).quantize(256, method=Image.Quantize.MAXCOVERAGE)
    return np.split(np.asarray(few.convert("RGB")), len(images))


def film(trained: Trained, prompt: list[str], sampling: Sampling, options: argparse.Namespace) -> None:
    """Write one sentence and save the film of it."""
    tokens = torch.tensor([[START_ID, *encode(prompt)]], device=trained.model.positions.device)
    limit = min(options.limit, len(prompt) + 5) if options.quick else options.limit
    generator = torch.Generator().manual_seed(options.seed)
    written = write(trained.model, tokens, sampling, limit=limit, generator=generator)
    note = f"{trained.label}, seed {options.seed} · {sampling.label}"
    note += " · weights from 0 (white) to 1 (dark) · hatched: not yet written"
    images = in_one_palette([pixels(page(written, step, note)) for step in range(len(written.attended))])
    path = options.output_dir / paths.ANIMATIONS / "phase4" / "generation.gif"
    sentence = " ".join(written.sentences()[0])
    caption = f'"{sentence}" while it is written: what each new word attended to in the last layer, and the next words.'
    save_animation(images + images[-1:] * HELD, path, caption=caption, seconds_per_frame=SECONDS)


def accepted(sentences: list[list[str]]) -> float:
    """Share of the sentences that the grammar can make. Raises ValueError without any sentence."""
    if not sentences:
        raise ValueError("there must be 1 sentence or more to judge: got 0")
    return sum(sentence_log_probability(words) > -math.inf for words in sentences) / len(sentences)


@cache
def grammar_entropy() -> float:
    """Entropy of the sentences of the grammar in nats, the mean of -ln P over 4,000 that it draws itself."""
    rng = random.Random(0)
    return -statistics.mean(sentence_log_probability(sample_sentence(rng).words) for _ in range(4000))


def at(temperature: float, values: list[float]) -> float:
    return values[TEMPERATURES.index(temperature)]


def smallest_fall(n: Numbers) -> float:
    """Of the accepted share, from one to the next of four temperatures."""
    shares = [at(temperature, n["accepted, all words"]) for temperature in (0.5, 1.0, 1.5, 2.0)]
    return min(before - after for before, after in pairwise(shares))


def smaller_margin(n: Numbers) -> float:
    """Of top-p 0.9 at temperature 1: how far accepted share and entropy lie above what is asked of them."""
    plain, nucleus = (at(1.0, n[f"accepted, {rule}"]) for rule in ("all words", "top-p 0.9"))
    lost = n["entropy, grammar"] - at(1.0, n["entropy, top-p 0.9"])
    return min(nucleus - plain - 0.05, math.log(2) - lost)


def made_up(share: float, entropy: float) -> dict[str, float | list[float]]:
    """Numbers as they would be if top-p 0.9 came to this share and this entropy, at every temperature."""
    few = len(TEMPERATURES)
    return {
        "accepted, all words": [0.8] * few,
        "accepted, top-p 0.9": [share] * few,
        "entropy, top-p 0.9": [entropy] * few,
        "entropy, grammar": 19.3,
    }


@measures(
    Claim(
        id="temperature-quality",
        text="The higher the temperature, the fewer of the sentences are correct",
        kind=EXPERIMENT,
        source="Holtzman et al. 2020, section 3.3, after Caccia et al. 2018",
        rule="the share that the grammar accepts falls by more than 0.02 at each step from 0.5 to 1, 1.5 and 2",
        holds=Above(smallest_fall, 0.02),
        oracle={"accepted, all words": [0.95, 0.93, 0.85, 0.7, 0.5, 0.1]},
        null={"accepted, all words": [0.8] * len(TEMPERATURES)},
        unit=f"share of the sentences drawn at temperature {DRAWN_AT}",
        shows=("accepted, all words",),
    ),
    Claim(
        id="top-p-quality",
        text="Nucleus sampling (top-p 0.9) avoids mistakes and keeps the variety of the language",
        kind=EXPERIMENT,
        source="Holtzman et al. 2020, whose p is 0.95 (shown beside it)",
        rule="at temperature 1 the accepted share rises by more than 0.05, and the entropy of a sentence is less than "
        "ln 2 below that of the grammar: half as many sentences",
        holds=Above(smaller_margin, 0.0),
        oracle=made_up(1.0, 19.3),
        null=made_up(0.8, 19.3),
        unit=f"share, and nats in a sentence, drawn at temperature {DRAWN_AT}",
    ),
)
def qualities(model: ToyTransformer, count: int, seed: int) -> dict[str, float | list[float]]:
    """Write `count` sentences from nothing in each way -> a list with one number for each temperature."""
    start = torch.full((count, 1), START_ID, device=model.positions.device)
    found: dict[str, float | list[float]] = {"entropy, grammar": grammar_entropy()}
    for rule, top_p in RULES.items():
        ways = [Sampling(temperature, top_p=top_p) for temperature in TEMPERATURES]
        written = [write(model, start, way, limit=LIMIT, generator=torch.Generator().manual_seed(seed)) for way in ways]
        found[f"accepted, {rule}"] = [accepted(each.sentences()) for each in written]
        found[f"entropy, {rule}"] = [each.entropy(way).mean().item() for each, way in zip(written, ways, strict=True)]
    return found


@measures(
    Claim(
        id="greedy-sentence",
        text="Taking the likeliest word each time leads to a likely sentence, by the grammar's probability",
        kind=EXPERIMENT,
        source="the aim of greedy decoding; Holtzman et al. 2020 on decoding that maximises likelihood",
        rule="it is likelier than the median of the accepted sentences drawn for 0.75 of the prompts or more",
        holds=lambda n: n[f"{LIKELIER}, by the grammar"] >= 0.75,
        oracle={f"{LIKELIER}, by the grammar": 1.0},
        null={f"{LIKELIER}, by the grammar": 0.5},
        unit=f"share of prompts of {PROMPT_WORDS} words; {DRAWS} drawn for each",
        control="by the model's own probability, against all that were drawn",
    )
)
def greedy_against_drawn(model: ToyTransformer, count: int, seed: int) -> dict[str, float]:
    """The greedy sentence against those drawn, for `count` prompts: the first words of held-out sentences.

    By the grammar only those of the drawn sentences count that it accepts; if it accepts none, greedy is not likelier.
    """
    prompts = [[START_ID, *encode(sentence.words[:PROMPT_WORDS])] for sentence in corpus()[1][:count]]
    tokens = torch.tensor(prompts, device=model.positions.device)  # (count, 3)
    generator = torch.Generator().manual_seed(seed)
    drawn = write(model, tokens.repeat_interleave(DRAWS, dim=0), Sampling(), limit=LIMIT, generator=generator)
    greedy = write(model, tokens, limit=LIMIT)
    own, others = ([sentence_log_probability(words) for words in each.sentences()] for each in (greedy, drawn))
    likelier = 0
    for index, log in enumerate(own):
        made = [other for other in others[index * DRAWS : (index + 1) * DRAWS] if other > -math.inf]
        likelier += bool(made) and log > statistics.median(made)
    by_model = greedy.log_probability() > drawn.log_probability().view(count, DRAWS).median(dim=1).values
    return {
        "greedy accepted": sum(log > -math.inf for log in own) / count,
        f"{LIKELIER}, by the grammar": likelier / count,
        f"{LIKELIER}, by the model": by_model.double().mean().item(),
    }


@measures(
    Claim(
        id="C181",
        text="A model writes word by word until it comes to the end token",
        kind=EXPERIMENT,
        source="course notes, Autoregressive Generation: until [EOS] or max length",
        rule=f"0.95 or more of the sentences end before {LIMIT} words",
        holds=lambda n: n["trained"] >= 0.95,
        oracle={"trained": 1.0},
        null={"trained": 0.5},
        unit=f"share of the sentences that end before {LIMIT} words, drawn at temperature 1",
        control="the same model before training",
    )
)
def ended(trained: Trained, count: int, seed: int) -> dict[str, float]:
    """Share of the sentences that the model ends by itself, before and after training."""
    models = {"trained": trained, "untrained": untrained(trained.recipe, CausalSelfAttention)}
    shares = {}
    for name, each in models.items():
        start = torch.full((count, 1), START_ID, device=each.model.positions.device)
        tokens = write(each.model, start, Sampling(), limit=LIMIT, generator=torch.Generator().manual_seed(seed)).tokens
        shares[name] = (tokens == END_ID).any(dim=-1).double().mean().item()
    return shares


def draw(found: dict, trained: Trained, count: int) -> tuple[Figure, str]:
    """Accepted sentences against how varied they are: a line for each rule, a point for each temperature."""
    fig, ax = plt.subplots(figsize=(8.2, 5), layout="constrained")
    for rule, color in DRAWN.items():
        variety, share = found[f"entropy, {rule}"], found[f"accepted, {rule}"]
        ax.plot(variety, share, "o-", color=color, ms=6, linewidth=2)
        ax.plot(at(1.0, variety), at(1.0, share), "o", color="white", mec=color, mew=2.5, ms=11, zorder=3)
        style = {"textcoords": "offset points", "fontsize": 11, "color": readable(color)}
        ax.annotate(rule, (variety[-1], share[-1]), (-4, -6), ha="right", va="top", **style)
    own = found["entropy, grammar"]
    ax.axvline(own, color=INK, linewidth=1, linestyle="--", zorder=0)
    ax.plot(own, 1, "*", color=INK, ms=14)
    beside = {"textcoords": "offset points", "va": "center"}
    ax.annotate("the grammar itself: its variety, and no mistake", (own, 1), (10, 0), **beside)
    ax.set(ylim=(0, 1.06), xlabel="variety: entropy of a sentence, nats", ylabel="correct: accepted by the grammar")
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.grid(axis="y", color=HIDDEN)
    title = "More variety than the grammar's own costs correctness, with top-p too"
    note = f"{trained.label}, seed {trained.recipe.seed} · {count} sentences a point"
    coldest, hottest = TEMPERATURES[0], TEMPERATURES[-1]
    headline(fig, title, f"{note} · from left to right: temperature {coldest:g} to {hottest:g}, rings at 1")
    return fig, f"{title}. The share of accepted sentences against the entropy of a sentence, a line for each rule."


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    add = parser.add_argument
    add("--prompt", default="the cat", metavar="TEXT", help='what the model continues (default: "the cat")')
    add("--temperature", type=float, default=1.0, metavar="T", help="0: greedy; default: 1")
    add("--top-k", type=int, metavar="K", help="draw among the K likeliest words (default: all)")
    add("--top-p", type=float, metavar="P", help="draw among the words that together have probability P (default: all)")
    add("--limit", type=int, default=MAX_LENGTH, metavar="N", help=f"words at most, prompt included ({MAX_LENGTH})")
    options = cli.parse(parser, argv)
    prompt, sampling = checked(parser, options)
    trained = load_causal_model(options)
    print(f"\nSentences, {trained.label}")
    show_sentences(trained.model, prompt, sampling, options)
    if options.pictures:
        film(trained, prompt, sampling, options)
    count, prompts = (QUICK_SENTENCES, QUICK_PROMPTS) if options.quick else (NUM_SENTENCES, NUM_PROMPTS)
    measured: list[Measured] = []
    for seed in cli.seeds(options):
        model = load_causal_model(options, seed)
        measured.append(qualities(model.model, count, seed))
        measured += [greedy_against_drawn(model.model, prompts, seed), ended(model, count, seed)]
    save_plot(options, "phase4/generation_temperature", *draw(measured[0], trained, count))
    findings.record(options, *measured)
    plain, nucleus = (at(1.0, measured[0][f"accepted, {rule}"]) for rule in ("all words", "top-p 0.9"))
    return f"The grammar accepts {plain:.0%} of the sentences, {nucleus:.0%} of those from the nucleus (top-p 0.9)"


if __name__ == "__main__":
    cli.run(main)
