"""What courses promise about running them: the time, the memory, the training, the display, the end of a sentence.

Such sentences are about attention as little as a recipe is about taste, but readers plan by them, and each can be
checked: add up the table, count the bytes, compare a trained with an untrained model, take the display away, take the
end token away.

    python phase4_causal/writing/promises.py
"""

import argparse
import copy
import math
import os
import subprocess
import sys

import matplotlib
import torch

from phase2_multi_head.multi_head_attention import RECIPE, MultiHeadAttention, load_multi_head_model
from phase4_causal.causal_attention import load_causal_model
from phase4_causal.writing.generate import Sampling, write
from shared import cli, training
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.grammar.scores import best_heads, score_heads
from shared.measure import peak_memory
from shared.toy_language import END_ID, START_ID
from shared.toy_model import ToyTransformer

PROMISED_MINUTES = {"Apple GPU": 5, "CPU": 10}  # at least, for everything
PROMISED_SECONDS = {  # for each part, in the same table: tests, then code and pictures of phases 1 to 4
    "Apple GPU": (20, 5, 10, 10, 15, 10, 15, 10, 10),
    "CPU": (40, 10, 15, 20, 25, 20, 30, 15, 20),
}
ROOM = 2**30  # bytes: every machine that runs PyTorch has this to spare
NUM_SENTENCES, QUICK_SENTENCES, LIMIT = 200, 20, 18  # words: the grammar never needs more than 18
CHOOSE, IMPORT, FIGURE = "import matplotlib; matplotlib.use('Agg')", "import matplotlib.pyplot as plt", "plt.figure()"
DRAW = {  # when Agg is chosen -> the lines of a program that makes a figure
    "never": (IMPORT, FIGURE),
    "before pyplot is imported": (CHOOSE, IMPORT, FIGURE),
    "after pyplot is imported": (IMPORT, CHOOSE, FIGURE),
}


def step_memory(model: ToyTransformer, batch_size: int) -> int:
    """Peak bytes of one training step, forward and backward, on a batch of held-out sentences."""
    tokens, lengths = training.to_batch(training.corpus()[1][:batch_size], "masked word")
    generator = torch.Generator().manual_seed(0)
    return peak_memory(lambda: training.masked_word_loss(model, tokens, lengths, generator).backward())


def role_scores(model: ToyTransformer) -> dict[str, float]:
    """Relation -> share of held-out pairs that the best head gets right."""
    held_out = training.corpus()[1]
    weights, _ = training.attention_on(model, held_out, "masked word")
    return {name: best.accuracy for name, best in best_heads(score_heads(weights, held_out)).items()}


def draws_without_display(lines: tuple[str, ...]) -> bool:
    """Whether a program that asks for windows (backend TkAgg) gets its picture where there is no display."""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"MPLBACKEND": "TkAgg"}
    return (
        subprocess.run([sys.executable, "-c", "\n".join(lines)], env=environment, capture_output=True).returncode == 0
    )


def ended_share(model: ToyTransformer, count: int) -> float:
    """Share of the sentences drawn at temperature 1 that the model ends by itself."""
    start = torch.full((count, 1), START_ID, device=model.positions.device)
    tokens = write(model, start, Sampling(), limit=LIMIT, generator=torch.Generator().manual_seed(0)).tokens
    return (tokens == END_ID).any(dim=-1).double().mean().item()


def without_end(model: ToyTransformer) -> ToyTransformer:
    """The same model in a language without <end>: the word is never drawn."""
    silent = copy.deepcopy(model)
    with torch.no_grad():
        silent.output_bias[END_ID] = -math.inf
    return silent


def measure(options: argparse.Namespace) -> list[Finding]:
    trained, causal = load_multi_head_model(options), load_causal_model(options)
    fresh = training.untrained(trained.recipe, MultiHeadAttention, options.device)
    sums = {device: sum(seconds) for device, seconds in PROMISED_SECONDS.items()}
    memory = {
        "weights": sum(p.numel() * p.element_size() for p in fresh.model.parameters()),
        "peak of a training step": step_memory(fresh.model.cpu(), RECIPE.batch_size),
    }
    before, after = role_scores(fresh.model), role_scores(trained.model)
    drawn = {f"Agg chosen {order}": int(draws_without_display(lines)) for order, lines in DRAW.items()}
    count = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    ended = {
        "with <end>": ended_share(causal.model, count),
        "<end> taken away": ended_share(without_end(causal.model), count),
    }
    return [
        Finding(
            "C124",
            "All phases together take 5 to 7 minutes on an Apple GPU and 10 to 15 on a CPU",
            "course notes",
            {f"{device}, parts added up": seconds for device, seconds in sums.items()},
            "seconds",
            "the parts of the notes' own table add up to the lower end of the promise, less a quarter, or more",
            findings.verdict(all(sums[d] >= 0.75 * 60 * minutes for d, minutes in PROMISED_MINUTES.items())),
        ),
        Finding(
            "C126",
            "The models are so small that memory cannot run out",
            "course notes",
            memory,
            f"bytes; two layers of four heads, batch of {RECIPE.batch_size}",
            "below a quarter of 1 GiB, at most 4 bytes a number",
            findings.verdict(max(memory.values()) < ROOM / 4),
        ),
        Finding(
            "C127",
            "No training is required: the models can be shown as they are",
            "course notes",
            {
                f"{name}, {when}": scores[name]
                for name in after
                for when, scores in (("untrained", before), ("trained", after))
            },
            "share of held-out pairs that the best head gets right",
            "without training the best head reaches, for each relation, the share of the trained one less 0.1",
            findings.verdict(all(before[name] >= after[name] - 0.1 for name in after)),
            seeds=[trained.recipe.seed],
        ),
        Finding(
            "C129",
            "Where there is no display, matplotlib.use('Agg') helps, as long as it stands before the import of pyplot",
            "course notes",
            drawn,
            f"1: made, 0: an error; a figure in matplotlib {matplotlib.__version__}, no display, windows asked for",
            "an error without it, none with it before the import, and an error with it after",
            findings.verdict(list(drawn.values()) == [0, 1, 0]),
        ),
        Finding(
            "C181",
            "A model writes until it comes to the end token",
            "course notes",
            ended,
            f"share of {count} sentences that end before {LIMIT} words",
            "at least 0.9 with and without such a token in the language; or else with it only",
            seeds=[causal.recipe.seed],
            **findings.conditional(
                min(ended.values()) >= 0.9,
                ended["with <end>"] >= 0.9,
                "it was trained on sentences that end in one; else only a limit stops it",
            ),
        ),
    ]


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    findings.record("phase4_causal/writing/promises.py", measure(options), options.output_dir)


if __name__ == "__main__":
    cli.run(main)
