"""Does a published decoder do on your text what the toy models do on theirs?

SmolLM2-135M reads stretches of the text's held-out part twice. It is one model, and nothing here is
drawn, so every seed gives the same. Whether four heads are better than one, or the division needed,
cannot be asked: it would have to be trained again.

    python phase4_causal/own_text/published.py --text FILE
"""

from phase3_visualization.pretrained.language_model import refuses
from phase4_causal.own_text.characters import add_text, is_reference, load_characters
from phase4_causal.own_text.decoder import answers_of_smollm2
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run


@refuses
def measure(run: Run) -> Numbers:
    """Returns mean weights of the best of 270 heads, and a share of the loss."""
    return answers_of_smollm2(load_characters(run.options.text))


main = Experiment(
    measure,
    answer="Its best head for the token before gives {n[weight on the token before, SmolLM2]:.2f} "
    "of its weight there, and its best head for what came next last time gives "
    "{n[weight on what came next, SmolLM2]:.2f}. When a stretch comes twice, "
    "{n[loss gone when it comes twice, SmolLM2]:.0%} of the loss is gone",
    options=add_text,
    about=is_reference,
)

if __name__ == "__main__":
    main.run()
