"""Where does each head of my model look?

Any encoder or decoder of the Hugging Face library that lies in a folder or in its cache, and any
text. All heads are drawn, a row for each layer, or those that --layer and --head choose, as maps or
as arcs. No map is an average over heads. Needs the extra "pretrained":

    python phase3_visualization/pretrained/maps.py --model smollm2 --text "Time flies" --format pdf
"""

from torch import Tensor

from phase3_visualization.pretrained import language_model as published
from phase3_visualization.pretrained.attention_maps import (
    Measured,
    as_layers,
    draw_arcs,
    draw_heads,
    measured_in,
)
from phase3_visualization.pretrained.language_model import LanguageModel, read_texts
from shared import cli
from shared.visualization_utils import save_plot

MOST_TOKENS = 512  # of a text; the weights of all heads grow with the square
MOST_ARCS = 8  # heads that are drawn as arcs


def read_one(language_model: LanguageModel, text: str) -> tuple[list[str], Tensor]:
    """The tokens of a text, and the weights of all layers (L, H, T, T).

    Raises ValueError for a text that is too short or too long, and for a model without weights.
    """
    number = len(language_model.tokenizer(text)["input_ids"])
    if number > MOST_TOKENS:
        raise ValueError(f"a map has at most {MOST_TOKENS} tokens: got {number}; shorten the text")
    reading = read_texts(language_model, [text])
    tokens = reading.tokens[0]
    return tokens, as_layers(reading.weights[0], tokens)


def print_names(measured: Measured) -> None:
    """A line for each name: how many heads have it, and the first of them."""
    by_name = {}
    for layer, head in measured.heads:
        by_name.setdefault(measured.name(layer, head), []).append(f"{layer}.{head}")
    for name, heads in sorted(by_name.items(), key=lambda item: len(item[1]), reverse=True):
        more = " ..." if len(heads) > 8 else ""
        print(f"   {len(heads):4} {name:18} {' '.join(heads[:8])}{more}")


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    published.add_model(parser)
    help_text = f'the sentence to look at, any words (default: "{published.TEXT}")'
    parser.add_argument("--text", default=published.TEXT, help=help_text)
    parser.add_argument("--layer", type=int, help="only this layer, counted from 0 (default: all)")
    parser.add_argument("--head", type=int, help="only this head, counted from 0 (default: all)")
    parser.add_argument("--arcs", action="store_true", help="arcs over the text, and no map")
    options = cli.parse(parser, argv)
    try:
        language_model = published.load_language_model(options.model)
        config = language_model.model.config
        sizes = (config.num_hidden_layers, config.num_attention_heads)
        heads = cli.chosen_heads(parser, options, *sizes)
        if options.arcs and len(heads) > MOST_ARCS:
            parser.error(f"--arcs draws {MOST_ARCS} heads at most: choose with --layer and --head")
        tokens, layers = read_one(language_model, options.text)
    except ValueError as error:
        parser.error(str(error))
    measured = measured_in(layers, tokens)
    print_names(measured)
    draw = draw_arcs if options.arcs else draw_heads
    figure = draw(layers, tokens, heads=heads, model=language_model.name)
    caption = f"{measured.finding}: heads of {language_model.name}"
    save_plot(options, "phase3/maps", figure, caption)
    return f"{measured.finding}, in {language_model.name}"


if __name__ == "__main__":
    cli.run(main)
