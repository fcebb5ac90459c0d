"""What do the trained models do with a sentence of yours?

The answer is a page in which they run: type a sentence, pull a lever, and every weight is computed again. It is one
file without a server and without the network. In it lie the weights of two toy models, the one of phase 2 that sees
both sides and the causal one of phase 4, and the forward pass written a second time, by hand, in JavaScript:
explorer/page/model/attention.js has the names and the steps of the Python and is worth reading beside it. Writes
explorer.html to visualizations/.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
import numpy as np
import seaborn as sns
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex

from phase2_multi_head.models import load_causal_model, load_multi_head_model
from phase3_visualization.explorer import growing, wagers
from phase3_visualization.explorer.models import record
from shared import cli, paths, training
from shared.grammar.entropy import KINDS
from shared.grammar.scores import with_relations
from shared.toy_language import MAX_LENGTH, PLACES, SPECIAL, SUBJECTS, TOY_SENTENCE, VERBS, VOCABULARY, Sentence
from shared.training import Trained
from shared.visualization_utils import WEIGHT_MAP, role_color

FOLDER = Path(__file__).parent / "page"
# In the order in which they are best read; page.js comes last, because it starts the page.
SCRIPTS = (
    *(f"model/{name}.js" for name in ("attention", "statistics", "levers")),
    "view.js",
    *(f"look/{name}.js" for name in ("lines", "maps", "words", "effects", "steps", "writing", "tour", "look")),
    *(f"break/{name}.js" for name in ("stage", "two_models", "one_model", "break")),
    *(f"grow/{name}.js" for name in ("matmul", "pieces", "network", "training", "roles", "engine", "growth", "grow")),
    "page.js",
)
STYLES = ("page.css", "views.css")
# Name -> title, and the part of the data without which it is left out.
VIEWS = {"look": ("Look", "models"), "break": ("Break it", "wagers"), "grow": ("Grow a head", "grow")}
RULE = "phase3_visualization/README.md#2-a-name-by-rule"
NUM_SENTENCES = 40
MAP_STEPS = 33  # colours of the weight map that the page gets; it blends between them
DARK_GROUND = "#12171c"  # as --field in page.css
DARK_WEIGHT_MAP = LinearSegmentedColormap.from_list(
    "dark weights", [DARK_GROUND, *sns.color_palette("mako", 256)[60::15]]
)


def page_sentences() -> list[Sentence]:
    """The toy sentence, then sentences that no model was trained on."""
    return [with_relations(TOY_SENTENCE.split()), *training.corpus()[1][:NUM_SENTENCES]]


def page_data(models: dict[str, Trained], **more: dict) -> dict:
    """All that the page knows: words, sentences with their gold relations, colours, and the models by their names.

    more: what a view needs beside that, by its name.
    """
    records = [record(name, trained) for name, trained in models.items()]
    heads = [head for model in records for layer in model["heads"] or [] for head in layer]
    return {
        "vocabulary": list(VOCABULARY),
        "special": {word.strip("<>"): token for token, word in enumerate(SPECIAL)},
        "max_length": MAX_LENGTH,
        "word_groups": word_groups(),
        "verbs": VERBS,
        "rule": wagers.lesson_link(RULE),
        "meanings": json.loads(wagers.TEXTS.read_text(encoding="utf-8"))["meanings"],
        "sentences": [{"words": s.words, "relations": s.relations} for s in page_sentences()],
        "weight_map": {"light": ramp(WEIGHT_MAP), "dark": ramp(DARK_WEIGHT_MAP)},
        "role_colors": {head["role"]: role_color(head["role"]) for head in heads if head["role"]},
        "models": records,
        **more,
    }


def ramp(colors: Colormap) -> list[str]:
    """The colours of weights from 0 to 1."""
    return [to_hex(colors(share)) for share in np.linspace(0, 1, MAP_STEPS)]


def word_groups() -> dict[str, Sequence[str]]:
    """All words by what they are in the grammar."""
    nouns = {name: [form for pair in pairs for form in pair] for name, pairs in (SUBJECTS | PLACES).items()}
    return {
        "determiner": KINDS["d"],
        "adjective": KINDS["j"],
        **nouns,
        "verb": KINDS["v"],
        "adverb": KINDS["a"],
        "preposition": sorted(KINDS["p"] + KINDS["b"]),
    }


def as_script_text(data: dict) -> str:
    """JSON that can stand inside a <script>: without "<" no word can end the script and begin something else."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def render(data: dict) -> str:
    """The whole page: template, style, scripts and data in one text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.jinja").render(
        css="\n".join((FOLDER / name).read_text(encoding="utf-8") for name in STYLES),
        scripts=[{"name": name, "text": (FOLDER / name).read_text(encoding="utf-8")} for name in SCRIPTS],
        data=as_script_text(data),
        views={name: title for name, (title, needed) in VIEWS.items() if needed in data},
    )


def write(models: dict[str, Trained], output_dir: Path, **more: dict) -> Path:
    """Write the page with these models under output_dir; returns its path."""
    path = output_dir / paths.EXPLORER
    page = render(page_data(models, **more))
    with paths.whole_file(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return path


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    models = {"both sides": load_multi_head_model(options), "causal": load_causal_model(options)}
    bets = wagers.data(models["both sides"], models["causal"], options)
    path = write(models, options.output_dir, wagers=bets, grow=growing.page_part())
    print(f"explorer: {paths.shown(path)}, {path.stat().st_size / 1e6:.2f} MB  (open it in a browser)")
    for name, trained in models.items():
        print(f"   {name}: layers {trained.recipe.num_layers}, heads {trained.recipe.num_heads}, {trained.label}")
    return f"{len(models)} models run in one file of {path.stat().st_size / 1e6:.2f} MB, without a network"


if __name__ == "__main__":
    cli.run(main)
