"""What does a small model learn from a text of your own, in about a minute?

Two layers of four heads, or as many as you say, read the characters of a file, or of Python's own
reference, and then write on. The loss in the held-out part stands beside that of counted pairs and
triples of characters, which know nothing else of the text. The reference differs from one version
of Python to the next, and the numbers with it.

    python phase4_causal/own_text/write.py --text FILE
"""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from phase3_visualization.pretrained.language_model import refuses
from phase4_causal.own_text.character_model import (
    STEPS,
    character_loss,
    continued,
    held_out_pieces,
    new_reader,
    train_on_text,
)
from phase4_causal.own_text.characters import (
    add_text_option,
    counted_loss,
    counted_table,
    is_reference,
    load_characters,
)
from shared import charts
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, GREY, QUIET, WIDE

CONTEXTS = {"counted pairs": 1, "counted triples": 2}  # characters that are looked back at
PROMPT, WRITTEN = 40, 360  # characters
LABELS = {  # name of a number -> how the picture says it
    "counted pairs": "pairs counted",
    "counted triples": "triples counted",
    "the model": "the small model",
}


@refuses
def measure(run: Run) -> Numbers:
    """Loss in nats a character, in the held-out part."""
    text = load_characters(run.options.text)
    size = len(text.alphabet)
    pieces = held_out_pieces(text)
    numbers = {}
    for name, context in CONTEXTS.items():
        numbers[name] = counted_loss(counted_table(text.training, size, context), pieces)
    layers, heads = run.options.layers or 2, run.options.heads or 4
    model = new_reader(text, run.seed, num_layers=layers, num_heads=heads)
    train_on_text(model, text, run.seed, run.steps(STEPS))
    numbers["the model"] = character_loss(model, text)
    written = text.decode(continued(model, text.held_out[:PROMPT], WRITTEN, run.seed))
    if run.seed == run.options.seed:
        print(
            f"\nThe first {PROMPT} characters are the text's, the others the model's:\n\n{written}"
        )
    run.shown.update(text=text.name, layers=layers, heads=heads)
    return numbers


def picture(results: Results) -> Figure:
    """Draws the losses."""
    fig, ax = plt.subplots(figsize=(WIDE, 2.8), layout="constrained")
    losses = {label: results.each(name) for name, label in LABELS.items()}
    colors = dict.fromkeys(losses, GREY) | {LABELS["the model"]: BLUE}
    charts.bars(ax, losses, colors)
    ax.tick_params(labelsize=11)
    ax.spines.bottom.set_visible(False)
    ax.set_title("nats lost a character: less is better", color=QUIET)
    return fig


def finding(n: Numbers) -> str:
    """Returns which of the two knows more, the model or the counts."""
    if n["the model"] < n["counted triples"]:
        return "A small model knows more of a text than counted pairs and triples of characters"
    return "Counted triples of characters know more of a text than a small model"


main = Experiment(
    measure,
    picture=picture,
    title=finding,
    note=f"trained {STEPS:,} steps on {{shown[text]}}",
    answer=lambda n: (
        f"{finding(n)}: the model loses {{n[the model]:.2f}} nats a character, "
        "and counting {n[counted triples]:.2f} ({shown[text]})"
    ),
    add_options=add_text_option,
    claims_apply=is_reference,
    machine_dependent=("*",),  # every version of Python has another reference
    uses="--seed --seeds --quick --heads --layers",
)

if __name__ == "__main__":
    main.run()
