"""How does a trained model write, and how many of its sentences are right?

It says how likely each next word is, a rule picks one (sampling.py), and it reads on from there. The sentences for your
prompt come first, then a film of one that is drawn. Each page is one step. Left: every head of every layer is a row,
every word so far a column; the row of weights is that of the newest word, the only one whose query is computed. Right:
the likeliest next words; the one that was taken is marked and opens the next page.

Then quality is counted, since the grammar can say of every sentence whether it could have made it, and how likely it is
(shared/grammar/entropy.py). A high temperature makes mistakes. Top-p cuts off the many words that are unlikely one by
one and not unlikely together (Holtzman et al. 2020), and temperature then does less harm. The likeliest word each time
need not lead to a likely sentence.

    python phase4_causal/writing/generate.py
    python phase4_causal/writing/generate.py --prompt "these dogs" --temperature 1.5 --top-p 0.9

Writes generation_temperature.png to visualizations/plots/phase4/, generation.gif to visualizations/animations/phase4/.
"""

import argparse
import copy
import math
import random
import statistics

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from phase4_causal.causal_attention import load_causal_model
from phase4_causal.writing.sampling import Sampling, Written, write
from shared import cli, paths
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.grammar.entropy import sentence_log_probability
from shared.toy_language import END_ID, MAX_LENGTH, START_ID, VOCABULARY, decode, encode, sample_sentence, tokenize
from shared.toy_model import ToyTransformer
from shared.training import Trained, corpus
from shared.visualization_utils import (
    HIDDEN,
    INK,
    QUIET,
    WEIGHT_MAP,
    head_color,
    headline,
    save_animation,
    save_plot,
)

SHOWN, SECONDS, HELD = 6, 1.2, 3  # of the film: words of the right panel, for each page, pages that the last one stays
TEMPERATURES = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
RULES = {"all words": None, "top-p 0.9": 0.9, "top-p 0.5": 0.5}
NUM_SENTENCES, QUICK_SENTENCES = 200, 20
NUM_PROMPTS, QUICK_PROMPTS, PROMPT_WORDS, DRAWS = 50, 5, 2, 10
LIMIT = 18  # words; the grammar never needs more


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
    """One step of the film: the weights of the newest word, and the likeliest next words."""
    tokens = decode(written.tokens[0].tolist())
    weights = torch.cat([layer[0] for layer in written.attended[step]]).cpu()  # L x (H, n) -> (L * H, n)
    rows, so_far = weights.shape
    heads = rows // len(written.attended[step])
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.2), dpi=80, width_ratios=(2.6, 1))
    fig.subplots_adjust(left=0.11, right=0.97, top=0.74, bottom=0.2, wspace=0.28)
    left.set_facecolor(HIDDEN)  # what is not written yet
    left.pcolormesh(weights.numpy(), vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors="white", linewidth=0.8)
    left.set(xlim=(0, len(tokens) - 1), ylim=(rows, 0))
    left.xaxis.tick_top()
    left.set_xticks([i + 0.5 for i in range(so_far)], tokens[:so_far], rotation=45, ha="left", fontsize=9)
    left.get_xticklabels()[-1].set_fontweight("bold")
    left.set_yticks([i + 0.5 for i in range(rows)], [f"layer {i // heads} head {i % heads}" for i in range(rows)])
    left.tick_params(length=0, labelsize=8.5)
    left.spines[:].set_visible(False)
    chances, words = written.logits[0, step].softmax(dim=-1).cpu().topk(SHOWN)
    taken = int(written.tokens[0, so_far])
    if taken not in words:  # a rarer word was drawn: it takes the last place
        words[-1], chances[-1] = taken, written.logits[0, step].softmax(dim=-1)[taken]
    colors = [head_color(1) if word == taken else QUIET for word in words.tolist()]
    right.barh(range(SHOWN), chances.tolist(), color=colors, height=0.7)
    right.set_yticks(range(SHOWN), [VOCABULARY[word] for word in words.tolist()])
    right.set(xlim=(0, 1), ylim=(SHOWN - 0.5, -0.5), xlabel="probability by the model")
    right.tick_params(length=0)
    right.set_title("next word", color=INK)
    fig.text(0.02, 0.94, f'"{tokens[so_far - 1]}" attends, and the next word is "{tokens[so_far]}"', fontsize=12)
    fig.text(0.5, 0.02, note, ha="center", fontsize=8.5, color=QUIET)
    return fig


def pixels(fig: Figure) -> np.ndarray:
    """The figure as an image (height, width, 3) of few colours; closes it."""
    fig.canvas.draw()
    few = Image.fromarray(np.asarray(fig.canvas.buffer_rgba())[..., :3]).quantize(64, method=Image.Quantize.MAXCOVERAGE)
    plt.close(fig)
    return np.asarray(few.convert("RGB"))


def film(trained: Trained, prompt: list[str], sampling: Sampling, options: argparse.Namespace) -> None:
    """Write one sentence and save the film of it."""
    tokens = torch.tensor([[START_ID, *encode(prompt)]], device=trained.model.positions.device)
    limit = min(options.limit, len(prompt) + 5) if options.quick else options.limit
    generator = torch.Generator().manual_seed(options.seed)
    written = write(trained.model, tokens, sampling, limit=limit, generator=generator)
    note = f"{trained.label}, seed {options.seed} · {sampling.label} · weights from 0 (light) to 1 (dark)"
    images = [pixels(page(written, step, f"{note}; grey: not yet")) for step in range(len(written.attended))]
    path = options.output_dir / paths.ANIMATIONS / "phase4" / "generation.gif"
    sentence = " ".join(written.sentences()[0])
    caption = f'"{sentence}" while it is written: what each new word attended to in every head, and the next words.'
    save_animation(images + images[-1:] * HELD, path, caption=caption, seconds_per_frame=SECONDS)


def judge(sentences: list[list[str]]) -> tuple[float, float, float]:
    """Share that the grammar accepts, share of different ones, mean ln P of those accepted (nats; NaN if none is).

    Raises ValueError without any sentence.
    """
    if not sentences:
        raise ValueError("there must be 1 sentence or more to judge: got 0")
    logs = [sentence_log_probability(words) for words in sentences]
    good = [log for log in logs if log > -math.inf]
    different = len({tuple(words) for words in sentences}) / len(sentences)
    return len(good) / len(logs), different, sum(good) / len(good) if good else math.nan


def at(temperature: float, values: list[float]) -> float:
    return values[TEMPERATURES.index(temperature)]


def falls(n: dict) -> bool:
    cool, plain, hot = (at(temperature, n["accepted, all words"]) for temperature in (0.5, 1.0, 2.0))
    return cool - 0.1 >= plain >= hot + 0.1


def gains(n: dict, what: str) -> float:
    """How much top-p 0.9 changes a share at temperature 1."""
    return at(1.0, n[f"{what}, top-p 0.9"]) - at(1.0, n[f"{what}, all words"])


OF_ALL = f"share of the sentences drawn at temperature {', '.join(f'{t:g}' for t in TEMPERATURES)}"
MADE_UP = {f"{what}, {rule}": [0.8] * len(TEMPERATURES) for what in ("accepted", "different") for rule in RULES}


@measures(
    Claim(
        id="temperature-quality",
        text="The higher the temperature, the fewer of the sentences are correct",
        kind=EXPERIMENT,
        rule="the share that the grammar accepts falls by 0.1 or more from temperature 0.5 to 1, and again from 1 to 2",
        holds=falls,
        oracle={"accepted, all words": [1.0, 0.95, 0.9, 0.8, 0.5, 0.3, 0.05]},
        null=MADE_UP,
        unit=OF_ALL,
        shows=("accepted, all words",),
    ),
    Claim(
        id="top-p-quality",
        text="Top-p 0.9 avoids mistakes and costs little variety",
        kind=EXPERIMENT,
        source="after Holtzman et al. 2020",
        rule="at temperature 1 the accepted share rises by 0.05 or more, and different ones fall by 0.05 or less",
        holds=lambda n: gains(n, "accepted") >= 0.05 and gains(n, "different") >= -0.05,
        oracle=MADE_UP | {"accepted, top-p 0.9": [1.0] * len(TEMPERATURES)},
        null=MADE_UP,
        unit=OF_ALL,
        shows=("accepted*", "different*"),
    ),
)
def qualities(model: ToyTransformer, count: int, seed: int) -> dict[str, list[float]]:
    """Write `count` sentences from nothing in each way, and judge them -> a list with one for each temperature."""
    start = torch.full((count, 1), START_ID, device=model.positions.device)
    found: dict[str, list[float]] = {}
    for rule, top_p in RULES.items():
        for temperature in TEMPERATURES:
            generator = torch.Generator().manual_seed(seed)
            written = write(model, start, Sampling(temperature, top_p=top_p), limit=LIMIT, generator=generator)
            for what, value in zip(("accepted", "different", "ln P"), judge(written.sentences()), strict=True):
                found.setdefault(f"{what}, {rule}", []).append(value)
    return found


@measures(
    Claim(
        id="greedy-sentence",
        text="Taking the likeliest word each time leads to a likely sentence",
        kind=EXPERIMENT,
        source="after Holtzman et al. 2020",
        rule="it is likelier than the median of the accepted sentences drawn for 0.75 of the prompts or more",
        holds=lambda n: n["greedy likelier than the median drawn"] >= 0.75,
        oracle={"greedy likelier than the median drawn": 1.0},
        null={"greedy likelier than the median drawn": 0.5},
        unit=f"share of prompts of {PROMPT_WORDS} words; {DRAWS} drawn for each, ln P by the grammar",
    )
)
def greedy_against_drawn(model: ToyTransformer, count: int, seed: int) -> dict[str, float]:
    """The greedy sentence against those drawn, for `count` prompts: the first words of held-out sentences.

    Of those drawn only sentences count that the grammar accepts. Where it accepts none of all, greedy is not likelier.
    """
    prompts = [[START_ID, *encode(sentence.words[:PROMPT_WORDS])] for sentence in corpus()[1][:count]]
    tokens = torch.tensor(prompts, device=model.positions.device)  # (count, 3)
    generator = torch.Generator().manual_seed(seed)
    drawn = write(model, tokens.repeat_interleave(DRAWS, dim=0), Sampling(), limit=LIMIT, generator=generator)
    greedy = [sentence_log_probability(words) for words in write(model, tokens, limit=LIMIT).sentences()]
    logs = [sentence_log_probability(words) for words in drawn.sentences()]  # DRAWS for each prompt
    likelier = 0
    for index, own in enumerate(greedy):
        accepted = [log for log in logs[index * DRAWS : (index + 1) * DRAWS] if log > -math.inf]
        likelier += own > (statistics.median(accepted) if accepted else -math.inf)
    return {
        "greedy accepted": sum(own > -math.inf for own in greedy) / count,
        "greedy likelier than the median drawn": likelier / count,
    }


def without_end(model: ToyTransformer) -> ToyTransformer:
    """The same model in a language without <end>: the word is never drawn."""
    silent = copy.deepcopy(model)
    with torch.no_grad():
        silent.output_bias[END_ID] = -math.inf
    return silent


@measures(
    Claim(
        id="C181",
        text="A model writes until it comes to the end token",
        kind=EXPERIMENT,
        rule="at least 0.9 with and without such a token in the language; or else with it only",
        holds=lambda n: min(n.values()) >= 0.9,
        only_if=lambda n: n["with <end>"] >= 0.9,
        condition="it was trained on sentences that end in one; else only a limit stops it",
        unit=f"share of the sentences that end before {LIMIT} words",
    )
)
def ended(model: ToyTransformer, count: int) -> dict[str, float]:
    """Share of the sentences drawn at temperature 1 that the model ends by itself, and without the word <end>."""
    start = torch.full((count, 1), START_ID, device=model.positions.device)
    shares = {}
    for name, writer in (("with <end>", model), ("<end> taken away", without_end(model))):
        tokens = write(writer, start, Sampling(), limit=LIMIT, generator=torch.Generator().manual_seed(0)).tokens
        shares[name] = (tokens == END_ID).any(dim=-1).double().mean().item()
    return shares


def grammar_mean() -> float:
    """Mean ln P of 1,000 sentences that the grammar itself draws, in nats."""
    rng = random.Random(0)
    return statistics.mean(sentence_log_probability(sample_sentence(rng).words) for _ in range(1000))


def draw(found: dict[str, list[float]], trained: Trained, count: int) -> tuple[Figure, str]:
    """Accepted sentences, and how likely those are, against temperature, a line for each rule."""
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained")
    for ax, what in zip(axes, ("accepted", "ln P"), strict=True):
        for color, rule in enumerate(RULES):
            ax.plot(TEMPERATURES, found[f"{what}, {rule}"], "o-", color=head_color(color), ms=4, label=rule)
        ax.set_xlabel("temperature")
        ax.grid(color=QUIET, alpha=0.15)
    axes[1].axhline(grammar_mean(), color=QUIET, linestyle=":", label="the grammar's own")
    axes[0].set(title="sentences that the grammar accepts", ylabel="share of all sentences", ylim=(-0.03, 1.03))
    axes[1].set(title="mean ln P of those accepted", ylabel="nats")
    axes[0].legend(*axes[1].get_legend_handles_labels(), frameon=False, title="drawn from", loc="lower center")
    shares = [
        ", ".join(f"{at(t, found[f'accepted, {rule}']):.0%}" for t in (0.5, 1.0, 2.0)) for rule in list(RULES)[:2]
    ]
    title = f"Accepted at temperature 0.5, 1, 2: {shares[0]}; with top-p 0.9: {shares[1]}"
    sentences = f"{count} sentences for each point, from <start> on; at temperature 0 all are the same"
    headline(fig, title, f"{trained.label}, seed {trained.recipe.seed} · {sentences}", 12)
    return fig, f"{title}. Share of accepted sentences and their mean log-probability against temperature."


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
    film(trained, prompt, sampling, options)
    count = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    found = qualities(trained.model, count, options.seed)
    save_plot(options, "phase4/generation_temperature", *draw(found, trained, count))
    greedy = greedy_against_drawn(trained.model, QUICK_PROMPTS if options.quick else NUM_PROMPTS, options.seed)
    findings.record(options, found, greedy, ended(trained.model, count))
    plain, nucleus = (at(1.0, found[f"accepted, {rule}"]) for rule in list(RULES)[:2])
    return f"The grammar accepts {plain:.0%} of the sentences, {nucleus:.0%} of those from the nucleus (top-p 0.9)"


if __name__ == "__main__":
    cli.run(main)
