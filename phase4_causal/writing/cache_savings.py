"""What does a key-value cache save, and does the model still write the same?

Without a cache token T costs a pass over all T tokens; with it, one over one token that attends to
T keys. In L layers, where projections and feed-forward network take 8 d² each:

    without   L (16 T d² + 4 T² d) + 2 T d V     projections and network, attention, words
    with      L (16 d² + 4 T d) + 2 d V          exactly one T-th

PyTorch counts operations on tensors without numbers. Read word by word, the logits must be those of
one pass.
"""

import math

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.costs.measure import count_operations
from phase4_causal.models import load_causal_model, long_model
from phase4_causal.writing.sampling import new_caches
from shared.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.toy_language import START_ID, VOCABULARY, encode
from shared.toy_model import ToyTransformer
from shared.visualization_utils import BLUE, GREY, INK, WIDE, label_ends

D_MODEL, NUM_LAYERS = 128, 4  # of the model whose work is counted
LENGTHS = (1, 5, 20, 50, 100, 500)
COLORS = {"with the cache": BLUE, "without": GREY}


@torch.no_grad()
def largest_difference(model: ToyTransformer, tokens: Tensor) -> float:
    """Returns how far logits differ at most: tokens (1, T) through a cache, and in one pass."""
    caches = new_caches(model, tokens.size(1))
    one_by_one = [model(word, caches=caches)[0] for word in tokens.split(1, dim=1)]
    at_once, _ = model(tokens)
    return (torch.cat(one_by_one, dim=1) - at_once).abs().max().item()


@torch.no_grad()
def next_logits(model: ToyTransformer, length: int, cached: bool) -> Tensor:
    """Returns the logits after `length` tokens; with a cache, the others were read before."""
    caches = new_caches(model, length) if cached else []
    for cache in caches:
        cache.length = length - 1  # their numbers do not matter for the costs
    tokens = torch.ones(1, 1 if cached else length, dtype=torch.long, device=model.positions.device)
    logits, _ = model(tokens, caches=caches)
    return logits


def on_paper(length: int, way: str) -> int:
    """Returns the formulas of the top; a cached step is one T-th of a pass over T tokens."""
    layer = 16 * length * D_MODEL**2 + 4 * length**2 * D_MODEL
    whole = NUM_LAYERS * layer + 2 * length * D_MODEL * len(VOCABULARY)
    return whole // length if way == "with the cache" else whole


def measure(run: Run) -> Numbers:
    """Returns operations of one more word, and by how much a cache changes a logit at most.

    An addition and a multiplication are two operations.
    """
    last = LENGTHS[-1]
    model = long_model(last, "meta", D_MODEL, NUM_LAYERS)
    numbers: Numbers = {}
    for way in COLORS:
        for length in LENGTHS:
            counted = count_operations(next_logits, model, length, way == "with the cache")
            numbers[f"{way}, {length}"] = counted
    trained = load_causal_model(run.options, run.seed)
    tokens = torch.tensor([[START_ID, *encode(run.options.words)]])
    difference = largest_difference(trained.model.cpu(), tokens)
    numbers["largest difference of a logit"] = difference
    return numbers


def picture(results: Results) -> Figure:
    """Draws operations for each word against length: points counted, lines by the formulas."""
    fig, ax = plt.subplots(figsize=(WIDE, 3.8), layout="constrained")
    last = LENGTHS[-1]
    ends = {}
    for way, color in COLORS.items():
        paper = [on_paper(length, way) for length in range(1, last + 1)]
        ax.plot(range(1, last + 1), paper, color=color, linewidth=2)
        ax.plot(LENGTHS, results.row(way, LENGTHS), "o", ms=6, color=color)
        ends[way] = (last, paper[-1], color)
    ax.set(xscale="log", yscale="log", xlabel="words so far", ylabel="operations for the next word")
    ax.set_xticks((1, 10, 100, last), (1, 10, 100, last))
    ax.set_yticks((1e6, 1e7, 1e8, 1e9), ("10⁶", "10⁷", "10⁸", "10⁹"))
    ax.minorticks_off()
    least, most = on_paper(last, "with the cache"), on_paper(last, "without")
    ax.annotate("", (last, most), (last, least), arrowprops={"arrowstyle": "<->", "color": INK})
    style = {"ha": "right", "va": "center", "fontsize": 14}
    ax.text(0.9 * last, math.sqrt(most * least), f"÷ {most / least:,.0f}", **style)
    label_ends(ax, ends, size=10)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="With a key-value cache word 500 takes 1/500 of the work",
    note=f"untrained, {NUM_LAYERS} layers, d = {D_MODEL} · dots: counted, lines: formulas",
    answer="With a cache word 500 takes {n[with the cache, 500]:,.0f} operations instead of "
    "{n[without, 500]:,.0f}. With the cache and without it, no logit differs by more than "
    "{n[largest difference of a logit]:.0e}",
    uses="--sentence --sentences --seed --seeds --quick "
    "--device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
