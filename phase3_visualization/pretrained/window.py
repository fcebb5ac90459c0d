"""Does a published decoder need the first tokens of a text once they are far back?

A window keeps the keys and values of the last tokens only, so that memory does not grow. With room
for 128 of them: the last 128, or the last 124 and the first 4 for ever (StreamingLLM, Xiao et al.
2023), beside a model that keeps all. The window is a mask, so SmolLM2-135M reads the text in one
pass through our own attention; tokens keep the positions that they have in the text, where
StreamingLLM counts them anew in the window. The text is data/raw/claims.json from a place that the
seed draws: it stays as it is, so that the numbers do.
"""

import json

import torch
import torch.nn.functional as F
from torch import Tensor

from phase3_visualization.pretrained.families import our_attention
from phase3_visualization.pretrained.language_model import (
    SMOLLM2,
    LanguageModel,
    load_language_model,
    refuses,
)
from shared import paths
from shared.attention_utils import streaming_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Run

LENGTH, ROOM, KEPT = 768, 128, 4


def excerpt(language_model: LanguageModel, generator: torch.Generator) -> Tensor:
    """LENGTH + 1 tokens of what is said about attention, from a random place -> (1, LENGTH + 1)."""
    said = json.loads((paths.ROOT / "data/raw/claims.json").read_text(encoding="utf-8"))
    text = "\n".join(f"{each['claim']} ({each['said']})" for each in said)
    tokens = torch.tensor(language_model.tokenizer(text)["input_ids"])
    start = int(torch.randint(len(tokens) - LENGTH, (), generator=generator))
    return tokens[None, start : start + LENGTH + 1]


@torch.no_grad()
def next_token_losses(language_model: LanguageModel, tokens: Tensor, mask: Tensor) -> Tensor:
    """Loss in nats of every next token, with this mask in every layer.

    tokens (1, T + 1), mask bool (T, T) -> (T,).
    """
    model = language_model.model
    with our_attention(language_model, mask):
        states = model(tokens[:, :-1]).last_hidden_state[0]  # (1, T + 1) -> (T, d_model)
    logits = states @ model.get_input_embeddings().weight.T  # its words are the output, too: (T, V)
    return F.cross_entropy(logits, tokens[0, 1:], reduction="none")


@refuses
def measure(run: Run) -> Numbers:
    """Mean loss in nats beyond the window, tokens 256 to 768, and how much more with less room."""
    language_model = load_language_model(SMOLLM2)
    tokens = excerpt(language_model, torch.Generator().manual_seed(run.seed))

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
    text="SmolLM2-135M in a window of 128 tokens does far worse once the first tokens have left "
    "it; four of them, kept, make up for most of this",
    source="Xiao et al. 2023, section 3.1, whose windows are 1,024 tokens and more",
    rule="beyond the window's length the window alone costs 0.5 nats or more against all tokens; "
    "with the first 4 kept, in the same room, half of this or less",
    effect=lambda n: n["window, more nats"],
    at_least=0.5,
    also=lambda n: n["window and sinks, more nats"] <= n["window, more nats"] / 2,
    oracle={"window, more nats": 3.0, "window and sinks, more nats": 0.2},
    null={"*": 1.0},
)

main = Experiment(
    measure,
    [CLAIM],
    answer="Beyond the window, in nats: everything {n[everything, loss]:.2f}, "
    "window {n[window, more nats]:.2f} more, "
    "window and sinks {n[window and sinks, more nats]:.2f} more",
)

if __name__ == "__main__":
    main.run()
