"""What does a small model learn from a text of your own, in about a minute?

Two layers of four heads read the characters of a file, or of Python's own reference, and then write
on. The loss in the held-out part stands beside that of counted pairs and triples of characters,
which know nothing else of the text. The reference differs from one version of Python to the next,
and the numbers with it.

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
from shared.visualization_utils import BLUE, GREY, QUIET

CONTEXTS = {"counted pairs": 1, "counted triples": 2}  # characters that are looked back at
COLORS = {"counted pairs": GREY, "counted triples": GREY, "the model": BLUE}
PROMPT, WRITTEN = 40, 360  # characters
DRAWN, LONGEST = 6, 74  # lines in the picture, and characters in one
LABELS = {  # name of a number -> how the picture says it
    "counted pairs": "counting which character\nfollows which",
    "counted triples": "counting which character\nfollows which two",
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
    model = new_reader(text, run.seed)
    train_on_text(model, text, run.seed, run.steps(STEPS))
    numbers["the model"] = character_loss(model, text)
    written = text.decode(continued(model, text.held_out[:PROMPT], WRITTEN, run.seed))
    if run.seed == run.options.seed:
        print(
            f"\nThe first {PROMPT} characters are the text's, the others the model's:\n\n{written}"
        )
    run.shown.update(text=text.name, written=written)
    return numbers


def picture(results: Results) -> Figure:
    """Draws the losses, and beneath them the first lines of what the model wrote."""
    fig, (above, below) = plt.subplots(
        2, 1, figsize=(8.6, 5.2), height_ratios=(1.3, 1), layout="constrained"
    )
    losses, colors = {}, {}
    for name, label in LABELS.items():
        losses[label] = results.each(name)
        colors[label] = COLORS[name]
    charts.bars(above, losses, colors)
    above.tick_params(labelsize=11)
    above.spines.bottom.set_visible(False)
    above.set_title("loss in the held-out part, nats a character: less is better", color=QUIET)
    written = [line[:LONGEST] for line in results.shown["written"].splitlines() if line.strip()]
    below.set_title("the model writes on from there", color=QUIET)
    style = {"family": "monospace", "fontsize": 10, "va": "top", "linespacing": 1.5}
    below.text(0.02, 0.94, "\n".join(written[:DRAWN]), transform=below.transAxes, **style)
    below.set(facecolor="#f4f5f7", xticks=[], yticks=[])
    below.spines[:].set_visible(False)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="A small model knows more of a text than counted pairs and triples of characters",
    note=f"two layers of four heads, trained {STEPS:,} steps on {{shown[text]}}\n"
    f"below: the first {PROMPT} characters are still the text's own",
    answer="It learns to guess the next character: it loses {n[the model]:.2f} nats a character, "
    "where counted triples of characters lose {n[counted triples]:.2f} ({shown[text]})",
    add_options=add_text_option,
    claims_apply=is_reference,
    machine_dependent=("*",),  # every version of Python has another reference
    without="--device",
)

if __name__ == "__main__":
    main.run()
