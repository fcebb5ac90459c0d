"""What do the trained models do with a sentence of yours?

The answer is a page in which they run, one file without a server and without the network: every
weight is computed again whenever a lever is pulled. In it lie the numbers of toy models, above all
of the one of phase 2 at several stops of its training, and the forward pass a second time, by hand,
in JavaScript: explorer/page/model/network.js has the names and the steps of the Python and is worth
reading beside it. Writes explorer.html to visualizations/.
"""

import argparse
import itertools
import json
import os
from pathlib import Path

import jinja2
import numpy as np
import seaborn as sns
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex

from phase2_multi_head.models import AGAIN, load_multi_head_model
from phase3_visualization.explorer import examples, models, wagers
from shared import cli, paths
from shared.grammar import roles
from shared.grammar.best_reader import KINDS
from shared.grammar.scores import DIRECTIONS, relation_name
from shared.toy_language import MAX_LENGTH, PLACES, RELATIONS, SPECIAL, SUBJECTS, VERBS, VOCABULARY
from shared.training.recipes import Trained
from shared.visualization_utils import WEIGHT_MAP, role_color

FOLDER = Path(__file__).parent / "page"
DARK_GROUND = "#12171c"  # as --field in page.css
DARK_WEIGHT_MAP = LinearSegmentedColormap.from_list(
    "dark weights", [DARK_GROUND, *sns.color_palette("mako", 256)[60::15]]
)


def page_data(both_sides: Trained, again: Trained, options: argparse.Namespace) -> dict:
    """Returns all that the page knows. again: the same model, trained with another seed."""
    shown = models.as_packed(both_sides, "float16")
    runs = models.two_trainings(both_sides, again)
    recipe = both_sides.recipe
    return json.loads(page_file("texts.json")) | {
        "vocabulary": list(VOCABULARY),
        "special": {word.strip("<>"): token for token, word in enumerate(SPECIAL)},
        "max_length": MAX_LENGTH,
        "word_groups": word_groups(),
        "verbs": VERBS,
        "rule": wagers.lesson_link("phase3_visualization/README.md#2-a-name-by-rule"),
        "weight_map": {"light": ramp(WEIGHT_MAP), "dark": ramp(DARK_WEIGHT_MAP)},
        "role_colors": role_colors(),
        "model": {
            "d_model": recipe.d_model,
            "num_heads": recipe.num_heads,
            "num_layers": recipe.num_layers,
            "max_length": len(both_sides.model.positions),
        },
        "landings": examples.landings(shown),
        "layout": models.layout(both_sides.model.state_dict()),
        "runs": runs,
        "wagers": wagers.data(shown, options),
    }


def role_colors() -> dict[str, str]:
    """Returns each name that a head can have by rule -> its colour."""
    names = [*roles.NAMES.values(), *roles.COLUMN_RULES]
    for relation, direction in itertools.product(RELATIONS, DIRECTIONS):
        names.append(relation_name(relation, direction))
    return {name: role_color(name) for name in names}


def ramp(colors: Colormap) -> list[str]:
    """Returns some colours of weights from 0 to 1. The page blends between them."""
    return [to_hex(colors(share)) for share in np.linspace(0, 1, 33)]


def word_groups() -> dict[str, list[str]]:
    """Returns all words by what they are in the grammar."""
    groups = {
        "determiner": KINDS["d"],
        "adjective": KINDS["j"],
        "verb": KINDS["v"],
        "adverb": KINDS["a"],
        "preposition": sorted(KINDS["p"] + KINDS["b"]),
    }
    for name, pairs in (SUBJECTS | PLACES).items():
        groups[name] = list(itertools.chain(*pairs))  # singular and plural
    return groups


def page_file(name: str) -> str:
    """Returns the text of a file of the page."""
    return (FOLDER / name).read_text(encoding="utf-8")


def as_script_text(data: dict) -> str:
    """Returns JSON that can stand inside a <script>: without "<" no word can end the script."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def render(data: dict) -> str:
    """Returns the whole page. The template names the styles and scripts that it reads.

    A published page says where it lies, PAGE_URL of the environment, and its code, CODE_URL.
    """
    template = jinja2.Template(page_file("page.html.jinja"), undefined=jinja2.StrictUndefined)
    return template.render(page_file=page_file, data=as_script_text(data), environ=os.environ)


USES = "--seed --quick --device --retrain --d-model --heads --layers --output-dir"


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__, USES), argv)
    again = load_multi_head_model(options, options.seed + AGAIN)
    data = page_data(load_multi_head_model(options), again, options)
    path = options.output_dir / paths.EXPLORER
    with paths.whole_file(path) as unfinished:
        unfinished.write_text(render(data), encoding="utf-8")
    size = f"{path.stat().st_size / 1e6:.2f} MB"
    print(f"live page: {paths.shown(path)}, {size}  (open it in a browser)")
    stops = len(data["runs"][0]["stops"])
    return f"a model at {stops} stops of its training in one file of {size}, without a network"


if __name__ == "__main__":
    cli.run(main)
