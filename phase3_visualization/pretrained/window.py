"""Does a published decoder need the first tokens of a text once they are far back?

A window keeps the keys and values of the last tokens only, so that memory does not grow. Each way has room for 128 of
them; all the rest of the text is there for one of three models:

    everything             all tokens so far
    window                 the last 128
    window and sinks       the last 124, and the first 4 for ever    (StreamingLLM, Xiao et al. 2023)

A window as a mask is the rolling cache in one pass: a token's keys and values were made when it was read, within its
own window. Positions are those in the text; the paper counts within the cache, which matters beyond the length of
training, 8,192 here. The text is data/raw/claims.json, what is said about attention and where, from a place that
the seed draws: it stays as it is, so that the numbers do.

    python phase3_visualization/pretrained/window.py

Writes decoder_window.png to visualizations/plots/phase3/. Three passes of SmolLM2-135M through our own attention.
"""

import json

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase3_visualization.pretrained.decoders import our_attention
from phase3_visualization.pretrained.language_model import (
    SMOLLM2,
    LanguageModel,
    add_model,
    load,
    or_exit,
    record,
)
from shared import cli, paths
from shared.attention_utils import streaming_mask
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.visualization_utils import BLUE, GREY, RED, headline, label_ends, save_plot

LENGTH, ROOM, KEPT, PART = 768, 128, 4, 64
ALL, WINDOW, SINKS = "everything", "window", "window and sinks"
MASKS = {ALL: (None, 0), WINDOW: (ROOM, 0), SINKS: (ROOM - KEPT, KEPT)}
COLORS = {ALL: GREY, WINDOW: RED, SINKS: BLUE}


def excerpt(language_model: LanguageModel, generator: torch.Generator) -> Tensor:
    """LENGTH + 1 tokens of what is said about attention, from a random place -> (1, LENGTH + 1)."""
    said = json.loads((paths.ROOT / "data" / "raw" / "claims.json").read_text(encoding="utf-8"))
    text = "\n".join(f"{each['claim']} ({each['said']})" for each in said)
    tokens = torch.tensor(language_model.tokenizer(text)["input_ids"])
    start = int(torch.randint(len(tokens) - LENGTH, (), generator=generator))
    return tokens[None, start : start + LENGTH + 1]


@torch.no_grad()
def losses(language_model: LanguageModel, tokens: Tensor, mask: Tensor) -> Tensor:
    """Loss in nats of every next token, with this mask in every layer: (1, T + 1), bool (T, T) -> (T,).

    Raises ValueError for a model whose output is another matrix than its embedding, or is capped.
    """
    config = language_model.model.config
    if not config.tie_word_embeddings or getattr(config, "final_logit_softcapping", None) is not None:
        rule = "an output that is the embedding, without a cap, is needed"
        raise ValueError(f"{rule}: {language_model.name} has another; try --model {SMOLLM2}")
    with our_attention(language_model, mask):
        states = language_model.model(tokens[:, :-1]).last_hidden_state[0]  # (1, T + 1) -> (T, d_model)
    logits = states @ language_model.model.get_input_embeddings().weight.T  # the words are the output, too: (T, V)
    return F.cross_entropy(logits, tokens[0, 1:], reduction="none")


@measures(
    Claim(
        id="decoder-window",
        text="A decoder in a window does far worse once the first tokens have left it; four of them, kept, make up for "
        "most of this",
        kind=EXPERIMENT,
        source="Xiao et al. 2023, section 3.1, whose windows are 1,024 tokens and more",
        rule="beyond the window's length the window alone costs 0.5 nats or more against all tokens; with the first 4 "
        "kept, in the same room, half of this or less",
        holds=lambda n: n[WINDOW] >= n[ALL] + 0.5 and n[SINKS] - n[ALL] <= (n[WINDOW] - n[ALL]) / 2,
        oracle={ALL: 3.0, WINDOW: 6.0, SINKS: 3.2},
        null={ALL: 3.0, WINDOW: 4.0, SINKS: 4.0},
        unit=f"mean loss in nats from token {2 * ROOM} to {LENGTH}, room for {ROOM}, SmolLM2-135M",
        control="the same model with all tokens",
        shows=(ALL, WINDOW, SINKS),
    )
)
def window_losses(language_model: LanguageModel, generator: torch.Generator) -> Numbers:
    """Mean loss beyond the window of each way; and of every PART tokens, for the picture."""
    tokens = excerpt(language_model, generator)
    found = {way: losses(language_model, tokens, streaming_mask(LENGTH, *mask)) for way, mask in MASKS.items()}
    means = {way: loss[2 * ROOM :].mean().item() for way, loss in found.items()}
    return means | {f"{way}, parts": loss.view(-1, PART).mean(dim=1).tolist() for way, loss in found.items()}


def draw(name: str, numbers: Numbers) -> tuple[Figure, str]:
    """The loss of each way along the text."""
    fig, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
    places = [PART * (i + 0.5) for i in range(LENGTH // PART)]
    for way, color in COLORS.items():
        ax.plot(places, numbers[f"{way}, parts"], "o-", color=color, linewidth=2.5)
    ax.axvline(ROOM, color=GREY, linestyle="--", linewidth=1)
    ax.set(xlabel=f"token of the text (dashed: the window of {ROOM} is full)", ylabel="loss (nats)", ylim=(0, None))
    costs = {way: numbers[way] - numbers[ALL] for way in (WINDOW, SINKS)}
    title = "What a window costs, with the first tokens and without"
    if costs[SINKS] <= costs[WINDOW] / 2:
        title = f"A window costs far less if it keeps the first {KEPT} tokens"
    headline(fig, title, f"{name} (pretrained), sentences about attention · means of {PART} tokens")
    label_ends(ax, {way: (places[-1], numbers[f"{way}, parts"][-1], color) for way, color in COLORS.items()}, size=10)
    return fig, f"{title}. Loss along a text with all tokens, a window, and a window that keeps the first {KEPT}."


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = add_model(cli.parser(__doc__), SMOLLM2)
    options = cli.parse(parser, argv)
    language_model = or_exit(parser, load, options.model or SMOLLM2)
    generators = [torch.Generator().manual_seed(seed) for seed in cli.seeds(options)]
    measured = [or_exit(parser, window_losses, language_model, generator) for generator in generators]
    save_plot(options, "phase3/decoder_window", *draw(language_model.name, measured[0]))
    record(options, *measured)
    values = ", ".join(f"{way} {measured[0][way]:.2f}" for way in MASKS)
    return f"Loss beyond the window in nats: {values}"


if __name__ == "__main__":
    cli.run(main)
