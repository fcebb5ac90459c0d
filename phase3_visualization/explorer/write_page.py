"""What do the trained models do with a sentence of yours?

The answer is a page in which they run: type a sentence, pull a lever, and every weight is computed again. It is one
file without a server and without the network. In it lie the weights of two toy models, the one of phase 2 that sees
both sides and the causal one of phase 4, and the forward pass written a second time, by hand, in JavaScript:
explorer/page/model/attention.js has the names and the steps of the Python and is worth reading beside it. The tests
compare every logit and every weight of the two.

    python phase3_visualization/explorer/write_page.py                     writes visualizations/explorer.html
    python phase3_visualization/explorer/write_page.py --model FOLDER      with the models whose checkpoints lie there

A FOLDER holds .pt files as shared/training.py saves them, of any size, for hidden words or for next words. Their
attention must be the one of phase 1 or 2; it is the only one that attention.js knows. Writes explorer.html to
visualizations/.
"""

import json
from functools import partial
from pathlib import Path

import jinja2
import numpy as np
from matplotlib.colors import to_hex

from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model
from phase3_visualization.explorer.packing import pack
from phase3_visualization.roles.causal_model import BOTH_SIDES, CAUSAL, CausalAttention, load_causal_model
from shared import cli, paths, training
from shared.toy_language import END_ID, MASK_ID, MAX_LENGTH, PAD_ID, START_ID, TOY_SENTENCE, VOCABULARY, Sentence
from shared.training import Trained
from shared.visualization_utils import PALETTE, WEIGHT_MAP

FOLDER = Path(__file__).parent / "page"
# In the order in which they are best read; page.js comes last, because it starts the page.
SCRIPTS = (
    *(f"model/{name}.js" for name in ("attention", "statistics")),
    "view.js",
    *(f"look/{name}.js" for name in ("lines", "sentence", "steps")),
    "model/levers.js",
    "look/effects.js",
    "look/writing.js",
    "look/controls.js",
    "address.js",
    "page.js",
)
NUM_SENTENCES = 40
MAP_STEPS = 33  # colours of the weight map that the page gets; it blends between them
TOY_RELATIONS = {
    "determiner-noun": ((0, 1), (4, 5)),
    "verb-subject": ((2, 1),),
    "verb-place": ((2, 5),),
    "adjective-noun": (),
}


def model_record(name: str, trained: Trained) -> dict:
    """What the page is told about a model: its sizes, how it was trained, its loss in nats, its weights."""
    recipe = trained.recipe
    return {
        "name": name,
        "label": f"{trained.label}, seed {recipe.seed}",
        "objective": recipe.objective,
        "d_model": recipe.d_model,
        "num_heads": recipe.num_heads,
        "num_layers": recipe.num_layers,
        "max_length": len(trained.model.positions),
        "loss": round(training.held_out_loss(trained), 4),
        **pack(trained.model.state_dict()),
    }


def page_data(models: dict[str, Trained], sentences: list[Sentence]) -> dict:
    """All that the page knows: words, sentences with their gold relations, colours, and the models by their names."""
    return {
        "vocabulary": list(VOCABULARY),
        "special": {"pad": PAD_ID, "mask": MASK_ID, "start": START_ID, "end": END_ID},
        "max_length": MAX_LENGTH,
        "sentences": [{"words": s.words, "relations": s.relations} for s in sentences],
        "head_colors": PALETTE,
        "weight_map": [to_hex(WEIGHT_MAP(share)) for share in np.linspace(0, 1, MAP_STEPS)],
        "models": [model_record(name, trained) for name, trained in models.items()],
    }


def as_script_text(data: dict) -> str:
    """JSON that can stand inside a <script>: without "<" no word can end the script and begin something else."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def render(data: dict) -> str:
    """The whole page: template, style, scripts and data in one text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.jinja").render(
        css=(FOLDER / "page.css").read_text(encoding="utf-8"),
        scripts=[{"name": name, "text": (FOLDER / name).read_text(encoding="utf-8")} for name in SCRIPTS],
        data=as_script_text(data),
    )


def page_sentences() -> list[Sentence]:
    """The toy sentence, then sentences that no model was trained on."""
    toy = Sentence(tuple(TOY_SENTENCE.split()), TOY_RELATIONS)
    return [toy, *training.corpus()[1][:NUM_SENTENCES]]


def write(models: dict[str, Trained], output_dir: Path) -> Path:
    """Write the page with these models under output_dir; returns its path."""
    path = output_dir / paths.EXPLORER
    with paths.whole_file(path) as unfinished:
        unfinished.write_text(render(page_data(models, page_sentences())), encoding="utf-8")
    return path


def models_in(folder: Path, device: str = "cpu") -> dict[str, Trained]:
    """The models of all checkpoints in a folder, by the names of their files.

    Raises ValueError, naming the file, for a folder without checkpoints and for a file that cannot be read.
    """
    files = sorted(folder.glob("*.pt"), key=lambda file: file.stem)
    if not files:
        raise ValueError(f"--model {folder} holds no checkpoints (*.pt): name the folder of your models")
    models = {}
    for file in files:
        try:
            content = training.read_checkpoint(file, device)
            models[file.stem] = training.restore(content, attention_of(content), device)
        except ValueError as error:
            raise ValueError(f"{file} {error}: take it out of the folder or train it again") from None
    return models


def attention_of(content: dict) -> partial[MultiHeadAttention]:
    """The attention that the weights of a checkpoint fit: causal for next words; the one of phase 1 has no biases."""
    attention = CausalAttention if content["recipe"]["objective"] == "next word" else MultiHeadAttention
    return partial(attention, bias="blocks.0.attention.w_q.bias" in content["state_dict"])


def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="show the models whose checkpoints lie here")
    options = cli.parse(parser, argv)
    if options.model is None:
        models = {BOTH_SIDES: load_multi_head_model(options), CAUSAL: load_causal_model(options)}
    else:
        try:
            models = models_in(options.model, options.device)
        except ValueError as error:
            parser.error(str(error))
    path = write(models, options.output_dir)
    print(f"explorer: {paths.shown(path)}, {path.stat().st_size / 1e6:.2f} MB  (open it in a browser)")
    for name, trained in models.items():
        print(f"   {name}: layers {trained.recipe.num_layers}, heads {trained.recipe.num_heads}, {trained.label}")
    return f"{len(models)} models run in one file of {path.stat().st_size / 1e6:.2f} MB, without a network"


if __name__ == "__main__":
    cli.run(main)
