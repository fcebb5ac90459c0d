"""With a quarter of the cache, does attention lose anything?

A model that writes keeps numbers of every word it has seen. With H = 4 heads of d_k = 16 these are,
for each layer:

    multi-head     2 H d_k      every head has keys and values of its own
    grouped        2 G d_k      G = 2 sets, two heads share one (Ainslie et al. 2023)
    multi-query    2 d_k        all share one (Shazeer 2019)
    latent         d_c + d_r    one vector, from which every head makes its own (DeepSeek-AI 2024)

All are trained alike on the next word of the toy language, and on cards of which four must be found
at once (shared/tasks.py).

    python phase4_causal/serving/shared_keys.py
"""

from functools import partial
from statistics import median

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase4_causal.serving.latent_attention import LatentAttention
from shared import training
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Results, Run
from shared.tasks import train_card_reader
from shared.toy_model import MakeAttention
from shared.training import LITTLE_DECAY, Recipe
from shared.visualization_utils import BLUE, GREY, INK, QUIET

WAYS: dict[str, MakeAttention] = {
    "multi-head": partial(GroupedQueryAttention, num_kv_heads=4, bias=False),
    "grouped": partial(GroupedQueryAttention, num_kv_heads=2, bias=False),
    "multi-query": partial(GroupedQueryAttention, num_kv_heads=1, bias=False),
    "latent": partial(LatentAttention, d_latent=28, d_rotary=4),
}
NUMBERS_KEPT = {"multi-head": 128, "grouped": 64, "multi-query": 32, "latent": 32}  # of a word
QUARTER = ("multi-query", "latent")
DRAWN = (*QUARTER, "grouped")
TASKS = {  # name -> what the picture calls it
    "toy language": "next word",
    "four look-ups": "look-ups, 300 steps",
    "look-ups after 900 steps": "look-ups, 900 steps",
}


def language_loss(make_attention: MakeAttention, seed: int, steps: int) -> float:
    """Returns held-out loss in nats of one layer that was trained on next words."""
    recipe = Recipe(
        "shared_keys", "next word", 4, 1, steps, batch_size=32, seed=seed, matrix_decay=LITTLE_DECAY
    )
    return training.held_out_loss(training.train(recipe, make_attention))


def measure(run: Run) -> Numbers:
    """Returns the nats by which each way is behind multi-head attention, which trains no longer."""
    language, look_ups = {}, {}
    for way, make_attention in WAYS.items():
        language[way] = language_loss(make_attention, run.seed, run.steps(150))
        of_four = partial(make_attention, num_heads=4)
        look_ups[way] = train_card_reader(of_four, run.seed, run.steps(300))
    numbers = {"four look-ups, all of multi-head": look_ups["multi-head"]}
    for way in ("grouped", *QUARTER):
        numbers[f"toy language, {way}"] = language[way] - language["multi-head"]
        numbers[f"four look-ups, {way}"] = look_ups[way] - look_ups["multi-head"]
    for way in QUARTER:
        of_four = partial(WAYS[way], num_heads=4)
        longer = train_card_reader(of_four, run.seed, run.steps(900))
        numbers[f"look-ups after 900 steps, {way}"] = longer - look_ups["multi-head"]
    return numbers


def picture(results: Results) -> Figure:
    """Draws what each way costs against multi-head attention: a bar at the median, dots for runs.

    A panel for each task, one below the other, on the same scale.
    """
    fig, axes = plt.subplots(len(TASKS), 1, figsize=(8.6, 5.2), sharex=True, layout="constrained")
    drawn = []
    for name in results.mean:
        if name.rpartition(", ")[2] in DRAWN:  # the loss of multi-head itself is no difference
            drawn += results.each(name)
    lowest, highest = min(0.0, *drawn), max(0.1, *drawn)
    for ax, (task, title) in zip(axes, TASKS.items(), strict=True):
        ax.set_title(title, loc="left", weight="bold")
        ax.axvline(0, color=INK, linewidth=1)
        beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        for place, way in enumerate(DRAWN):
            if f"{task}, {way}" not in results.mean:
                ax.annotate("not run", (0, place), color=QUIET, **beside)
                continue
            seeds = results.each(f"{task}, {way}")
            middle = median(seeds)
            ax.barh(place, middle, 0.62, color=BLUE if way in QUARTER else GREY)
            if len(seeds) > 1:
                ax.plot(seeds, [place] * len(seeds), "o", color=INK, markersize=4, alpha=0.6)
            text = f"{middle:+z.2f}".replace("-", "−")
            ax.annotate(text, (max(0.0, *seeds), place), **beside)
        labels = [f"{way}, {NUMBERS_KEPT[way]} numbers" for way in DRAWN]
        ax.set_yticks(range(len(DRAWN)), labels)
        ax.tick_params(length=0)
        ax.set(ylim=(len(DRAWN) - 0.5, -0.5), xticks=[])
        ax.spines[:].set_visible(False)
    axes[0].set_xlim(lowest - 0.01, 1.15 * highest)
    axes[-1].set_xlabel("loss above that of multi-head attention, in nats", fontsize=11, labelpad=8)
    return fig


main = Experiment(
    measure,
    picture=picture,
    title="With a quarter of the cache, look-ups often take more steps to learn",
    note="Numbers: what the cache keeps of each word; multi-head attention keeps "
    f"{NUMBERS_KEPT['multi-head']}. Blue: a quarter of that, grey: half\n"
    "look-ups: four cards are found at once · one layer of 4 heads, d = 64, trained · bar: median",
    answer="In look-ups it is {n[four look-ups, multi-query]:.2f} nats behind with multi-query "
    "heads after the same steps, and {n[four look-ups, latent]:.2f} with latent ones. After three "
    "times the steps these are {n[look-ups after 900 steps, multi-query]:.2f} and "
    "{n[look-ups after 900 steps, latent]:.2f} behind what multi-head attention had",
)

if __name__ == "__main__":
    main.run()
