"""How does a trained model write, and how many of its sentences are right?

It says how likely each next word is, a rule picks one (sampling.py), and it reads on from there; a
film shows it. The grammar can say of every sentence whether it could have made it. A high
temperature makes mistakes; top-p cuts off the many words that are unlikely one by one and not
unlikely together (Holtzman et al. 2020). Its price is variety: the entropy of a sentence, in nats,
beside that of the grammar. e to the power of the nats of a word is what is called perplexity.
"""

import argparse
import math
import random
import statistics
from functools import cache

import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.models import load_causal_model
from phase4_causal.writing.sampling import GREEDY, Sampling, Written, write_sentences
from shared import charts
from shared.claims import Numbers
from shared.experiment import Experiment, Film, Results, Run
from shared.grammar.best_reader import sentence_log_probability
from shared.toy_language import (
    MAX_LENGTH,
    PAD_ID,
    START_ID,
    VOCABULARY,
    decode,
    encode,
    sample_sentence,
    tokenize,
)
from shared.toy_model import ToyTransformer
from shared.visualization_utils import (
    BLUE,
    GREY,
    HIDDEN,
    QUIET,
    WEIGHT_MAP,
    WIDE,
    in_few_colors,
    picture_of,
)

RULES = {
    "all words, 0.5": Sampling(0.5),
    "all words, 1": Sampling(),
    "top-p 0.95, 1": Sampling(top_p=0.95),
}
YOURS = "as you said"  # the rule of somebody who gives options
NUM_SENTENCES = 500
LIMIT = 18  # words; the grammar never needs more
SHOWN = 4  # next words on a page of the film
SECONDS, HELD = 1.2, 3  # of a page; how many pages long the last one stays


def show_sentences(model: ToyTransformer, prompt: Tensor, sampling: Sampling, run: Run) -> None:
    """Prints the greedy sentence and three drawn ones, with what the grammar says.

    The first drawn one is filmed.
    """
    for name, rule, count in (("the likeliest word each time", GREEDY, 1), ("drawn", sampling, 3)):
        generator = torch.Generator().manual_seed(run.seed)
        tokens = prompt.expand(count, -1)
        written = write_sentences(model, tokens, rule, limit=MAX_LENGTH + 1, generator=generator)
        print(f"   {name}")
        for words in written.sentences():
            likelihood = sentence_log_probability(words)
            known = likelihood > -math.inf
            verdict = f"ln P = {likelihood:.1f}" if known else "not in the grammar"
            print(f"      {' '.join(words)}   ({verdict})")
    run.shown["written"] = written


def accepted(sentences: list[list[str]]) -> float:
    """Returns the share of the sentences that the grammar can make."""
    return statistics.mean(sentence_log_probability(words) > -math.inf for words in sentences)


@cache
def grammar_entropy() -> float:
    """Returns the entropy of a sentence of the grammar in nats, from 4,000 that it draws."""
    rng = random.Random(0)
    sentences = [sample_sentence(rng) for _ in range(4000)]
    return -statistics.mean(sentence_log_probability(sentence.words) for sentence in sentences)


def measure(run: Run) -> Numbers:
    """Returns the share of accepted sentences, and the entropy of a sentence, for each rule.

    A rule is called by the words that may be drawn and the temperature. Who has asked for another
    rule gets the numbers of that one.
    """
    options = run.options
    try:
        prompt = torch.tensor([[START_ID, *encode(tokenize(options.prompt))]])
        sampling = Sampling(options.temperature, options.top_k, options.top_p)
    except ValueError as error:
        run.refuse(str(error))
    trained = load_causal_model(options, run.seed)
    model = trained.model.cpu()
    run.shown["label"] = trained.label
    if run.seed == options.seed:
        show_sentences(model, prompt, sampling, run)
    start = torch.full((20 if options.quick else NUM_SENTENCES, 1), START_ID)
    numbers: Numbers = {}
    rules = RULES if sampling == Sampling() else {YOURS: sampling}
    for name, rule in rules.items():
        generator = torch.Generator().manual_seed(run.seed)
        written = write_sentences(model, start, rule, limit=LIMIT, generator=generator)
        numbers[f"accepted, {name}"] = accepted(written.sentences())
        numbers[f"entropy, {name}"] = written.entropy(rule).mean().item()
    numbers["entropy of the grammar"] = grammar_entropy()
    if rules is RULES:
        lost = numbers["entropy of the grammar"] - numbers["entropy, top-p 0.95, 1"]
        numbers["variety lost"] = lost
    return numbers


def film_page(written: Written, step: int, note: str) -> Figure:
    """Draws one step: the sentence so far, what its newest word attends to, the likeliest words."""
    weights = written.attended[step][-1][0]  # of the last layer: (1, H, n) -> (H, n)
    heads, so_far = weights.shape
    tokens = decode(written.tokens[0].tolist())
    fig = Figure(figsize=(WIDE, 4.2))  # of a film: pyplot would keep every one
    taken = int(written.tokens[0, so_far])
    last, new = tokens[so_far - 1], VOCABULARY[taken]
    probabilities = written.logits[0, step].softmax(dim=-1)
    fig.text(
        0.03, 0.92, f'After "{last}" it picks "{new}": {probabilities[taken]:.0%}', fontsize=15
    )
    look = fig.add_axes((0.17, 0.5, 0.68, 0.22))
    style = {"edgecolors": HIDDEN, "linewidth": 0.8}
    look.pcolormesh(weights.numpy(), vmin=0, vmax=1, cmap=WEIGHT_MAP, **style)
    look.set(xlim=(0, len(tokens)), ylim=(heads, 0))
    look.set_xlabel(f'what "{last}" looks at')
    look.xaxis.tick_top()
    turned = {"rotation": 45, "ha": "left", "rotation_mode": "anchor", "fontsize": 12}
    look.set_xticks([i + 0.5 for i in range(so_far + 1)], tokens[: so_far + 1], **turned)
    look.get_xticklabels()[-1].set(color=BLUE, fontweight="bold")
    names = [f"head {len(written.attended[step]) - 1}.{head}" for head in range(heads)]
    look.set_yticks([head + 0.5 for head in range(heads)], names)
    fig.text(0.03, 0.03, note, color=QUIET)
    words = probabilities.topk(SHOWN).indices.tolist()
    if taken not in words:
        words[-1] = taken  # a rarer word was drawn: it takes the last place
    likely = {VOCABULARY[word]: [probabilities[word].item()] for word in words}
    colors = dict.fromkeys(likely, GREY) | {new: BLUE}
    chances = fig.add_axes((0.25, 0.12, 0.6, 0.27))
    charts.bars(chances, likely, colors, number=" {:.0%}")
    chances.set(xlim=(0, 1))
    for ax in (look, chances):
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    return fig


def sentence_film(results: Results) -> Film:
    """Returns a film of a sentence while it is written."""
    written = results.shown["written"]
    note = (
        f"{results.shown['label']} · temperature {results.options.temperature:g} · "
        "weights: 0 white, 1 dark"
    )
    new = written.tokens[0, -len(written.attended) :]
    pages = []
    for step in (new != PAD_ID).nonzero().flatten().tolist():
        pages.append(picture_of(film_page(written, step, note)))
    images = in_few_colors(pages)
    return images + images[-1:] * HELD, SECONDS


def answer(n: Numbers) -> str:
    """Returns how many sentences are right, by the course's rules or by the reader's own."""
    shares = (
        "{n[accepted, all words, 1]:.0%} of its sentences, and {n[accepted, top-p 0.95, 1]:.0%} "
        "if the unlikely words are cut off (top-p 0.95)"
    )
    if f"accepted, {YOURS}" in n:
        shares = f"{{n[accepted, {YOURS}]:.0%}} of its sentences, drawn {YOURS}"
    return (
        f"It draws one word after the other, and reads on from there. The grammar accepts {shares}"
    )


def writing_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompt", default="the cat", metavar="TEXT", help='what the model continues ("the cat")')
    add("--temperature", type=float, default=1.0, metavar="T", help="0: greedy; default: 1")
    add("--top-k", type=int, metavar="K", help="draw among the K likeliest words (default: all)")
    help_p = "draw among the words that together have probability P (default: all)"
    add("--top-p", type=float, metavar="P", help=help_p)


main = Experiment(
    measure,
    title="A sentence grows: each word is drawn, then looks at those before it",
    note="{shown[label]}",
    answer=answer,
    film=sentence_film,
    add_options=writing_options,
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
