"""What do the trained models do with a sentence of yours?

The answer is a page in which they run, one file without a server and without the network: every
weight is computed again whenever a lever is pulled. In it lie the numbers of toy models, above all
of the one of phase 2 at several stops of its training, and the forward pass a second time, by hand,
in JavaScript: explorer/page/model/network.js has the names and the steps of the Python and is worth
reading beside it. Writes explorer.html to visualizations/.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
import numpy as np
import seaborn as sns
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex

from phase2_multi_head.models import AGAIN, load_multi_head_model
from phase3_visualization.explorer import examples, growing, models, wagers
from shared import cli, paths
from shared.grammar.best_reader import KINDS
from shared.toy_language import MAX_LENGTH, PLACES, SPECIAL, SUBJECTS, VERBS, VOCABULARY
from shared.training import Trained
from shared.visualization_utils import WEIGHT_MAP, role_color

FOLDER = Path(__file__).parent / "page"
# In the order in which they are best read; page.js comes last, because it starts the page.
SCRIPTS = (
    *(
        f"model/{name}.js"
        for name in ("packed", "matmul", "pieces", "network", "training", "roles", "engine")
    ),
    *(f"model/{name}.js" for name in ("runs", "levers")),
    "view.js",
    *(
        f"look/{name}.js"
        for name in ("arcs", "maps", "words", "time", "steps", "grow", "story", "look")
    ),
    *(f"break/{name}.js" for name in ("stage", "live", "break")),
    "page.js",
)
STYLES = ("page.css", "break.css")
VIEWS = {"look": "The sentence", "break": "Six wagers"}
RULE = "phase3_visualization/README.md#2-a-name-by-rule"
MAP_STEPS = 33  # colours of the weight map that the page gets; it blends between them
DARK_GROUND = "#12171c"  # as --field in page.css
DARK_WEIGHT_MAP = LinearSegmentedColormap.from_list(
    "dark weights", [DARK_GROUND, *sns.color_palette("mako", 256)[60::15]]
)


def page_data(both_sides: Trained, again: Trained, options: argparse.Namespace) -> dict:
    """All that the page knows. again: the same model, trained with another seed."""
    shown = models.as_packed(both_sides, "float16")
    texts = json.loads(wagers.TEXTS.read_text(encoding="utf-8"))
    runs, grow = models.runs(both_sides, again), growing.page_part()
    names = [[head["role"] for head in layer] for layer in runs[0]["stops"][-1]["heads"]]
    return {
        "vocabulary": list(VOCABULARY),
        "special": {word.strip("<>"): token for token, word in enumerate(SPECIAL)},
        "max_length": MAX_LENGTH,
        "word_groups": word_groups(),
        "verbs": VERBS,
        "rule": wagers.lesson_link(RULE),
        "meanings": texts["meanings"],
        "story": texts["story"],
        "weight_map": {"light": ramp(WEIGHT_MAP), "dark": ramp(DARK_WEIGHT_MAP)},
        "role_colors": {
            rule["name"]: role_color(rule["name"])
            for kind in grow["rules"][0].values()
            for rule in kind
        },
        "model": {
            "d_model": both_sides.recipe.d_model,
            "num_heads": both_sides.recipe.num_heads,
            "num_layers": both_sides.recipe.num_layers,
            "num_words": len(VOCABULARY),
            "max_length": len(both_sides.model.positions),
            "label": f"{both_sides.label}, seed {both_sides.recipe.seed}",
        },
        "landings": examples.landings(shown, names),
        "layout": models.layout(both_sides.model.state_dict()),
        "runs": runs,
        "floor": round(models.floor(), 4),
        "wagers": wagers.data(shown, options),
        "grow": grow,
    }


def ramp(colors: Colormap) -> list[str]:
    """The colours of weights from 0 to 1."""
    return [to_hex(colors(share)) for share in np.linspace(0, 1, MAP_STEPS)]


def word_groups() -> dict[str, Sequence[str]]:
    """All words by what they are in the grammar."""
    nouns = {
        name: [form for pair in pairs for form in pair]
        for name, pairs in (SUBJECTS | PLACES).items()
    }
    return {
        "determiner": KINDS["d"],
        "adjective": KINDS["j"],
        **nouns,
        "verb": KINDS["v"],
        "adverb": KINDS["a"],
        "preposition": sorted(KINDS["p"] + KINDS["b"]),
    }


def as_script_text(data: dict) -> str:
    """JSON that can stand inside a <script>: without "<" no word can end the script and begin
    something else.
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def render(data: dict) -> str:
    """The whole page: template, style, scripts and data in one text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.jinja").render(
        css="\n".join((FOLDER / name).read_text(encoding="utf-8") for name in STYLES),
        scripts=[
            {"name": name, "text": (FOLDER / name).read_text(encoding="utf-8")} for name in SCRIPTS
        ],
        data=as_script_text(data),
        views=VIEWS,
    )


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    again = load_multi_head_model(options, options.seed + AGAIN)
    data = page_data(load_multi_head_model(options), again, options)
    path = options.output_dir / paths.EXPLORER
    with paths.whole_file(path) as unfinished:
        unfinished.write_text(render(data), encoding="utf-8")
    size = f"{path.stat().st_size / 1e6:.2f} MB"
    print(f"explorer: {paths.shown(path)}, {size}  (open it in a browser)")
    return f"a model at {len(data['runs'][0]['stops'])} stops of its training in one file of {size}, without a network"


if __name__ == "__main__":
    cli.run(main)
