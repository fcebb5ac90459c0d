"""Does a published decoder need the first tokens of a text once they are far back?

A window keeps the keys and values of the last tokens only, so that memory does not grow. With room
for 128 of them: the last 128, or the last 124 and the first 4 for ever (StreamingLLM, Xiao et al.
2023), beside a model that keeps all. The window is a mask, so SmolLM2-135M reads the text in one
pass through our own attention; tokens keep the positions that they have in the text, where
StreamingLLM counts them anew in the window. The text is data/raw/claims.json from a place that the
seed draws: it stays as it is, so that the numbers do.
"""

import torch

from phase3_visualization.pretrained.language_model import SMOLLM2, load_language_model, refuses
from phase3_visualization.pretrained.next_tokens import excerpt, next_token_losses
from shared.attention_utils import streaming_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Run

LENGTH, ROOM, KEPT = 768, 128, 4


@refuses
def measure(run: Run) -> Numbers:
    """Returns the mean loss beyond the window, tokens 256 to 768, and what less room costs."""
    language_model = load_language_model(SMOLLM2)
    tokens = excerpt(language_model, LENGTH, torch.Generator().manual_seed(run.seed))

    def loss_beyond(*room: int | None) -> float:
        losses = next_token_losses(language_model, tokens, streaming_mask(LENGTH, *room))
        return losses[2 * ROOM :].mean().item()

    everything = loss_beyond(None)
    return {
        "everything, loss": everything,
        "window, more nats": loss_beyond(ROOM) - everything,
        "window and sinks, more nats": loss_beyond(ROOM - KEPT, KEPT) - everything,
    }


CLAIM = Claim(
    id="decoder-window",
    text="A published decoder that keeps only a window of tokens does far worse once the first "
    "tokens have left it, and keeping four of them makes up for most of this. We asked it of "
    "SmolLM2-135M in a window of 128 tokens.",
    source="Xiao et al. 2023, section 3.1, who used windows of 1,024 tokens and more",
    rule="beyond the window's length, the window alone costs 0.5 nats or more against keeping all "
    "tokens, and with the first 4 kept, in the same room, it costs half of this or less",
    effect=lambda n: n["window, more nats"],
    at_least=0.5,
    also=lambda n: n["window and sinks, more nats"] <= n["window, more nats"] / 2,
    explored=10,
    draws=True,
    oracle={"window, more nats": 3.0, "window and sinks, more nats": 0.2},
    null={"*": 1.0},
)

main = Experiment(
    measure,
    [CLAIM],
    answer="A window that has left the first tokens behind costs {n[window, more nats]:.2f} nats "
    "a token against keeping everything, so it does need them. With the first four kept it costs "
    "{n[window and sinks, more nats]:.2f}",
)

if __name__ == "__main__":
    main.run()
