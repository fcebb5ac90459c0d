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
    """Mean weights of the best of 270 heads, and a share of the loss."""
    return answers_of_smollm2(load_characters(run.options.text))


main = Experiment(
    measure,
    answer="The weight of its best heads on the token before is "
    "{n[weight on the token before, SmolLM2]:.2f}, and on what came next last time "
    "{n[weight on what came next, SmolLM2]:.2f}; of the loss "
    "{n[loss gone when it comes twice, SmolLM2]:.0%} is gone when a stretch comes twice",
    options=add_text,
    about=is_reference,
)

if __name__ == "__main__":
    main.run()
