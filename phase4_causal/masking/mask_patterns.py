"""What the causal mask does to attention patterns: which numbers it moves by itself, which roles of heads survive it.

Numbers first. In row i a causal head chooses among i + 1 keys, none of them to the right. So entropy and distance are
smaller before anything is learned. Even weights on six words:

                       no mask    causal mask
    entropy, nats       1.792        1.097        ln 6, and (ln 1 + ln 2 + ... + ln 6) / 6
    distance            1.944        1.250        (6² - 1) / 18, and (6 - 1) / 4
    weight on word 0    0.167        0.408        1/6, and (1 + 1/2 + ... + 1/6) / 6; the last word: 0.028

Whoever compares a causal head with another one must divide by these, row by row (masked_heads.py). The fair comparison
then is one model with itself, its future cut off and nothing else changed.

Roles second. A role that looks ahead, such as the next word or determiner -> noun, has weight exactly 0 under the mask:
no training can make it. Its mirror image, noun -> determiner, is allowed, and a causal model can carry the same
information that way: the later word looks back.

The last row third. Nothing is hidden from it, and in the first layer the mask does not change it. In deeper layers it
does: the words that it reads there were themselves computed with a view of the future, or without. It cannot cheat
either way, since all that those words can have seen lies in its own past.

    python phase4_causal/masking/mask_patterns.py

Prints the roles, and writes mask_patterns.png to visualizations/plots/phase4/.
"""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phase2_multi_head.multi_head_attention import load_multi_head_model
from phase4_causal.causal_attention import load_causal_model
from phase4_causal.masking.mask_verdicts import position_findings, role_findings, spread_findings
from phase4_causal.masking.masked_heads import BOTH, CAUSAL, CUT, KINDS, SPREADS, Measured, measure
from shared import cli, paths, training
from shared.evidence import findings
from shared.visualization_utils import QUIET, head_color, model_note, save_figure

NUM_SENTENCES, QUICK_SENTENCES = 200, 40
LABELS = ("both\nsides", "same,\nmask", "trained,\nmask")
TITLES = ("entropy, nats", "entropy, share of ln n", "distance, positions", "distance, share of even")
MARKERS = "osD"
CANNOT = "#a6261d"


def draw_spread(ax: Axes, found: Measured, name: str, label: str) -> None:
    """One number of the three kinds of patterns, and beside it that of even weights in the same rows."""
    for place, kind in enumerate(KINDS):
        value, chance = found.spread[kind][name], found.even[kind][name]
        ax.bar(place, value, width=0.62, color=head_color(place))
        ax.plot([place - 0.38, place + 0.38], [chance, chance], color=QUIET, linestyle="--", linewidth=1.4)
        ax.text(place, value, f"{value:.2f}", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(range(len(KINDS)), LABELS, fontsize=8)
    ax.set_ylim(0, 1.15 * max(found.even[kind][name] for kind in KINDS))
    ax.tick_params(length=0)
    ax.set_title(label, fontsize=10)


def draw_roles(ax: Axes, found: Measured) -> None:
    """The best head of each role, without and with the mask; a cross where the mask forbids the role."""
    names = list(found.possible)
    for row, name in enumerate(names):
        can = [kind for kind in KINDS if kind == BOTH or found.possible[name]]
        for kind in can:  # each on a line of its own, so that no mark hides another
            place = KINDS.index(kind)
            y, color = row + 0.22 * (place - 1), head_color(place)
            ax.plot(found.best(kind, name), y, MARKERS[place], color=color, markersize=6.5)
            if kind in found.base:
                ax.plot([found.base[kind][name]] * 2, [y - 0.15, y + 0.15], color=color, linewidth=1.8)
        if not found.possible[name]:
            ax.plot(0, row, "x", color=CANNOT, markersize=7, markeredgewidth=2)
            ax.text(0.19, row, "cannot: exactly 0", color=CANNOT, va="center", fontsize=8)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlim=(-0.03, 1.03), ylim=(len(names) - 0.5, -0.5), xlabel="share of rows whose largest weight lies there")
    ax.tick_params(axis="y", length=0)
    ax.hlines([row + 0.5 for row in range(len(names) - 1)], -0.03, 1.03, color="#e6e8eb", linewidth=0.8)
    ax.set_title("best head of each role", fontsize=10)
    marks = [
        plt.Line2D([], [], marker=marker, linestyle="", color=head_color(place), markersize=7, label=kind)
        for place, (kind, marker) in enumerate(zip(KINDS, MARKERS, strict=True))
    ]
    upright = {"marker": "|", "linestyle": "", "markersize": 11, "markeredgewidth": 1.8}
    marks.append(plt.Line2D([], [], color=QUIET, label="without training, or a fixed offset", **upright))
    ax.legend(handles=marks, loc="upper center", bbox_to_anchor=(0.4, -0.1), ncols=2, frameon=False, fontsize=8.5)


def draw(found: Measured, note: str) -> tuple[Figure, str]:
    """Left the four numbers, raw and as a share of even weights; right the roles."""
    layout = [["entropy", "normalised entropy", "roles"], ["distance", "normalised distance", "roles"]]
    fig, axes = plt.subplot_mosaic(layout, figsize=(11.4, 6.4), width_ratios=(1, 1, 2), layout="constrained")
    for name, label in zip(SPREADS, TITLES, strict=True):
        draw_spread(axes[name], found, name, label)
    draw_roles(axes["roles"], found)
    (raw, cut), (share, cut_share) = (
        [found.spread[kind][name] for kind in (BOTH, CUT)] for name in ("entropy", "normalised entropy")
    )
    gone = list(found.possible.values()).count(False)
    title = (
        f"Cutting a trained model's weights to the past takes entropy from {raw:.2f} to {cut:.2f} nats, but from "
        f"{share:.2f} to {cut_share:.2f} of ln n\n{gone} of {len(found.possible)} roles cannot exist under the mask"
    )
    fig.suptitle(title, fontsize=12.5)
    model_note(fig, note)
    return fig, title.replace("\n", "; ") + ". Dashed: even weights on the keys that each row may see."


def show(found: Measured) -> None:
    """Print the best head of each role."""
    head = "".join(f"{text:>12}" for text in ("both sides", "mask added", "trained so"))
    print(f"\n{'best head, by largest weight':35}{head}   untrained or offset")
    for name, can in found.possible.items():
        scores = "".join(f"{found.best(kind, name):12.2f}" for kind in KINDS)
        chance = f"{found.base[BOTH][name]:.2f}, masked {found.base[CAUSAL][name]:.2f}"
        print(f"   {name:32}{scores}   {chance}{'' if can else '   cannot exist under the mask'}")


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    models = [(load_multi_head_model(options, seed), load_causal_model(options, seed)) for seed in cli.seeds(options)]
    sentences = training.corpus()[1][: QUICK_SENTENCES if options.quick else NUM_SENTENCES]
    every = [measure(*pair, sentences, untrained=1 if options.quick else 2) for pair in models]
    show(every[0])
    note = f"both sides: {models[0][0].label}, hidden words · with the mask: {models[0][1].label}, next words"
    figure, caption = draw(every[0], f"{note} · {len(sentences)} held-out sentences · dashed: even weights")
    path = options.output_dir / paths.PLOTS / "phase4" / f"mask_patterns.{options.format}"
    save_figure(figure, path, caption=caption)
    seeds = list(cli.seeds(options))
    found = spread_findings(every, seeds) + role_findings(every, seeds) + position_findings(every, *models[0], seeds)
    findings.record("phase4_causal/masking/mask_patterns.py", found, options.output_dir)


if __name__ == "__main__":
    cli.run(main)
