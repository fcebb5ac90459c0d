"""A sentence while it is written: page by page, what the newest word attended to and what came of it.

Each page is one step. Left: every head of every layer is a row, every word so far a column; the row of weights is that
of the newest word, the only one whose query is computed when past keys and values are cached. Right: the likeliest next
words; the one that was taken is marked and opens the next page.

    python phase4_causal/writing/generation_film.py
    python phase4_causal/writing/generation_film.py --prompt "these dogs"

Writes generation.gif to visualizations/animations/phase4/.
"""

import io

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from phase4_causal.causal_attention import load_causal_model
from phase4_causal.writing.generate import Written, add_options, checked, write
from shared import cli, paths
from shared.toy_language import START_ID, VOCABULARY, decode, encode
from shared.visualization_utils import HIDDEN, INK, QUIET, WEIGHT_MAP, head_color, save_animation

SHOWN, SECONDS, HELD = 6, 1.2, 3  # words of the right panel, for each page, pages that the last one stays


def newest_weights(written: Written, step: int) -> Tensor:
    """Weights of the newest word in this step, all heads of the first layer first -> (L * H, tokens so far)."""
    return torch.cat([weights[0] for weights in written.attended[step]]).cpu()  # L x (H, n) -> (L * H, n)


def page(written: Written, step: int, note: str) -> Figure:
    """One step: the weights of the newest word, and the likeliest next words."""
    tokens = decode(written.tokens[0].tolist())
    weights = newest_weights(written, step)
    rows, so_far = weights.shape
    heads = rows // len(written.attended[step])
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.2), gridspec_kw={"width_ratios": (2.6, 1)})
    fig.subplots_adjust(left=0.11, right=0.97, top=0.74, bottom=0.2, wspace=0.28)
    left.set_facecolor(HIDDEN)  # what is not written yet
    left.pcolormesh(weights.numpy(), vmin=0, vmax=1, cmap=WEIGHT_MAP, edgecolors="white", linewidth=0.8)
    left.set(xlim=(0, len(tokens) - 1), ylim=(rows, 0))
    left.xaxis.tick_top()
    left.set_xticks([i + 0.5 for i in range(so_far)], tokens[:so_far], rotation=45, ha="left", fontsize=9)
    left.get_xticklabels()[-1].set_fontweight("bold")
    left.set_yticks([i + 0.5 for i in range(rows)], [f"layer {i // heads} head {i % heads}" for i in range(rows)])
    left.tick_params(length=0, labelsize=8.5)
    left.spines[:].set_visible(False)
    chances, words = written.logits[0, step].softmax(dim=-1).cpu().topk(SHOWN)
    taken = int(written.tokens[0, so_far])
    if taken not in words:  # a rarer word was drawn: it takes the last place
        words[-1], chances[-1] = taken, written.logits[0, step].softmax(dim=-1)[taken]
    colors = [head_color(1) if word == taken else QUIET for word in words.tolist()]
    right.barh(range(SHOWN), chances.tolist(), color=colors, height=0.7)
    right.set_yticks(range(SHOWN), [VOCABULARY[word] for word in words.tolist()])
    right.set(xlim=(0, 1), ylim=(SHOWN - 0.5, -0.5), xlabel="probability by the model")
    right.tick_params(length=0)
    right.set_title("next word", color=INK)
    fig.text(0.02, 0.94, f'"{tokens[so_far - 1]}" attends, and the next word is "{tokens[so_far]}"', fontsize=12)
    fig.text(0.5, 0.02, note, ha="center", fontsize=8.5, color=QUIET)
    return fig


def pixels(fig: Figure) -> np.ndarray:
    """The figure as an image (height, width, 3) of few colours; closes it."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=80)
    plt.close(fig)
    few = Image.open(buffer).convert("RGB").quantize(64, method=Image.Quantize.MAXCOVERAGE)
    return np.asarray(few.convert("RGB"))


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    add_options(parser)
    options = cli.parse(parser, argv)
    prompt, sampling = checked(parser, options)
    trained = load_causal_model(options)
    tokens = torch.tensor([[START_ID, *encode(prompt)]], device=trained.model.positions.device)
    generator = torch.Generator().manual_seed(options.seed)
    limit = min(options.limit, len(prompt) + 5) if options.quick else options.limit
    written = write(trained.model, tokens, sampling, limit=limit, generator=generator)
    note = (
        f"{trained.label}, seed {options.seed} · {sampling.label} · weights from 0 (light) to 1 (dark); grey: not yet"
    )
    images = [pixels(page(written, step, note)) for step in range(len(written.attended))]
    images += images[-1:] * HELD
    path = options.output_dir / paths.ANIMATIONS / "phase4" / "generation.gif"
    sentence = " ".join(written.sentences()[0])
    caption = f'"{sentence}" while it is written: what each new word attended to in every head, and the next words.'
    save_animation(images, path, caption=caption, seconds_per_frame=SECONDS)


if __name__ == "__main__":
    cli.run(main)
