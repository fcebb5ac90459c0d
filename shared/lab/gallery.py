"""For maintainers: the pictures of README and lessons, from the last run into the gallery.

    ./run_all.sh all && ./run_all.sh publish

What a run makes is not in git, so that a run leaves no trace. visualizations/gallery/ is, and only
this command writes it: exactly the pictures that a README links to. It writes their titles into the
pages, as alt texts, and the numbers of the same run into the record, as those of seed 0. The dots
of the front door's seven findings it draws itself, from the ten seeds of the record. The SVG files
of the gallery are drawn by hand, and the film of the live page is recorded by hand, so this command
leaves them alone (.github/CONTRIBUTING.md).
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from shared import cli, paths
from shared.claims import Numbers, all_claims
from shared.lab import findings, pages, record, tables
from shared.visualization_utils import BLUE, INK, QUIET, RED, save_figure

# ---- a dot for each run on record: the seven findings of the front door
# A picture has a line for each quantity, with its ten values, and above it the lowest and highest.

WIDTH, HEADER, ROW = 3.82, 1.3, 0.62  # inches; README shows 420 pixels, a phone 358
TITLE_LINE = 0.2  # inches that a second line of a title needs
TYPE = 11


@dataclass(frozen=True)
class DotPicture:
    """What was found, what is counted, in which experiment, and for each line what it shows.

    The last line is the surprise. story is where a page tells of it. most is where the axis ends;
    written says how a value is written. chance: what guesses give, for each line. Where the claim
    fails, a run has a hollow dot. trial says what to do in a view of the live page.
    """

    title: str
    unit: str
    experiment: str
    story: str
    lines: Mapping[str, Callable[[Numbers], float]]
    most: float = 1
    dot: str = "a dot: one of ten runs"
    written: str = "{:z.0%}"  # z: never -0%
    chance: Sequence[float] = ()
    claim: str = ""
    view: str = ""
    trial: str = ""


SMALL_PICTURES = {
    "bottleneck": DotPicture(
        "What is written first is kept best",
        "how many more letters are right in the quarter\n"
        "written first than in the quarter written last",
        "phase1_single_head.before.bottleneck",
        "data/surprises.md#what-is-written-first-is-kept-best",
        {
            "forwards: the start leads": itemgetter("forwards, right letters, lead"),
            "backwards: the end leads": itemgetter("backwards, right letters, lead"),
        },
        most=0.5,
    ),
    "scaling": DotPicture(
        "A smaller start is slower than √d_k",
        "right answers after 300 steps, d_k = 64",
        "phase1_single_head.parts.scaling",
        "data/surprises.md#a-small-start-is-slower-than-a-division-by-d_k",
        {
            "divided by √d_k": itemgetter("divided, best rate"),
            "not divided": itemgetter("not divided, best rate"),
            "not divided, smaller start": itemgetter("smaller W_q, best rate"),
        },
        view="divisor=1",
        trial="pull the division out of a trained model",
    ),
    "long_path": DotPicture(
        "The first word can move an LSTM\nmore than attention",
        "how far the first of 512 words moves the\nlast output (1: as far as an average word)",
        "phase1_single_head.reading.long_path",
        "data/surprises.md#an-older-kind-of-network-can-react-more-to-the-first-word-than-attention-does",
        {
            "LSTM, usual gates": itemgetter("LSTM, bias 1, even shares of the first of 512"),
            "attention": itemgetter("attention, even shares of the first of 512"),
            "LSTM, gates wide open": itemgetter("LSTM, bias 5, even shares of the first of 512"),
        },
        most=10,
        written="{:.1f}",
    ),
    "lookers": DotPicture(
        "A head can look and still not matter",
        "how far one head moves the guess\nfrom one verb to the other",
        "phase3_visualization.circuits.pattern_used",
        "README.md#a-head-can-look-at-the-right-word-and-still-not-matter",
        {
            "the head that matters most": itemgetter("restored, most of all heads"),
            "a head that looks there, too": itemgetter("restored, least of the heads that look"),
        },
        dot="a dot: one of ten runs · hollow: where this fails",
        claim="patching-lookers",
        view="words=often+every+kite+fell+in+the+red+dark+ponds&hide=3&query=3&head=1.2",
        trial="two heads look at the kite; cut head 1.2, then head 1.0",
    ),
    "coreference": DotPicture(
        "For “it”, mostly the same noun",
        "pairs of sentences with “it”, of 40\n(black marks: what coin flips would give)",
        "phase3_visualization.pretrained.coreference",
        "README.md#a-head-for-it-a-little-meaning-much-habit",
        {
            "right in both": itemgetter("both right"),
            "wrong in both": itemgetter("both wrong"),
            "the same noun in both": itemgetter("the same noun in both"),
        },
        most=40,
        dot="a dot: one of ten halvings of the pairs",
        written="{:.0f}",
        chance=(10, 10, 20),
    ),
    "induction": DotPicture(
        "“Spare” heads carry the lead together",
        "losses of single heads, added up,\nas a share of the loss when all go",
        "phase4_causal.induction.induction",
        "data/surprises.md#heads-that-look-spare-carry-the-lead-together",
        {
            "of the right answer's lead": lambda n: (
                n["margin lost, each alone"] / n["margin lost, all together"]
            ),
            "of the right answers": lambda n: (
                n["answers lost, each alone"] / n["answers lost, all together"]
            ),
        },
    ),
    "real_text": DotPicture(
        "On a manual, no head looks things up",
        "weight on what came next the last time",
        "phase4_causal.own_text.four_questions",
        "data/surprises.md#on-one-real-text-a-small-model-did-not-learn-to-look-things-up",
        {
            "best head, made-up sequences": itemgetter("weight on what came next, toy"),
            "best head, a real text": itemgetter("weight on what came next, text"),
        },
    ),
}


def draw_dots(small: DotPicture) -> tuple[Figure, str]:
    """Returns the picture, and in words what it shows."""
    runs = record.runs(small.experiment)
    failing = set()  # positions of runs
    for claim in all_claims():
        if claim.id == small.claim:
            failing = {number for number, run in enumerate(runs) if not claim.holds(run)}
    height = HEADER + ROW * len(small.lines) + TITLE_LINE * small.title.count("\n")
    fig, ax = plt.subplots(figsize=(WIDTH, height), layout="constrained")
    fig.suptitle(small.title, fontsize=TYPE + 0.4, weight="bold", x=0.03, ha="left")
    ranges = []
    for row, (label, number) in enumerate(small.lines.items()):
        color = RED if row == len(small.lines) - 1 else BLUE
        values = [number(numbers) for numbers in runs]
        low, high = min(values), max(values)
        text = findings.between((low, high), small.written.format, "–").replace("%–", "–")
        ranges.append(f"{label} {text}")
        ax.hlines(row, 0, small.most, color="#d5dade", linewidth=1, zorder=0)
        for run, value in enumerate(values):
            face = "white" if run in failing else (color, 0.45)
            edge = color if run in failing else "none"
            ax.scatter(value, row, s=54, facecolor=face, edgecolor=edge, clip_on=False, zorder=2)
        above = row - 0.27
        ax.text(0, above, label, fontsize=TYPE, color=INK)
        ax.text(small.most, above, text, fontsize=TYPE, color=color, ha="right", weight="bold")
    for row, chance in enumerate(small.chance):
        ax.plot([chance] * 2, [row - 0.14, row + 0.14], color=INK, linewidth=2)
    ax.set(xlim=(0, small.most), ylim=(len(small.lines) - 0.6, -0.75), yticks=[])
    ax.tick_params(labelsize=TYPE - 1, color="#aab2bb")
    if "%" in small.written:
        ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.spines.left.set_visible(False)
    ax.set_xlabel(small.unit, fontsize=TYPE, color=QUIET)
    fig.supxlabel(small.dot, fontsize=TYPE - 2, color=QUIET)
    title = small.title.replace("\n", " ")
    return fig, f"{title}. {small.unit}: {', '.join(ranges)}"


def draw_small_pictures(output_dir: Path) -> None:
    """Writes all of them to visualizations/plots/seven/ below the output folder."""
    for name, small in SMALL_PICTURES.items():
        fig, caption = draw_dots(small)
        save_figure(fig, output_dir / paths.PLOTS / "seven" / f"{name}.png", caption=caption)


# ---- from a run into the gallery


def fill_gallery(output_dir: Path) -> int:
    """Makes the gallery anew from what a run drew; returns how many pictures it has.

    Raises ValueError, before anything is changed, if the run did not draw one of them.
    """
    names = [name for name in pages.linked_pictures() if not pages.is_made_by_hand(name)]
    drawn = {}
    for name in names:
        folder = paths.ANIMATIONS if name.endswith(".gif") else paths.PLOTS
        drawn[name] = output_dir / folder / name
        if not drawn[name].is_file():
            raise ValueError(f"{name} is not drawn yet: run ./run_all.sh all first")
    gallery = paths.ROOT / paths.GALLERY
    for old in gallery.rglob("*.*"):
        if not pages.is_made_by_hand(old.relative_to(gallery).as_posix()):
            old.unlink()
    for name in names:
        (gallery / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(drawn[name], gallery / name)
    return len(names)


def record_first_seed(output_dir: Path) -> None:
    """Writes what the last run measured into the record."""
    measured = {}
    for saved in findings.gather(output_dir):
        if not saved.otherwise:
            measured[saved.experiment] = {record.FIRST_SEED: saved.runs[0]}
    record.write(record.with_rows(record.read(), measured))
    tables.write()


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__, "--output-dir")
    options = cli.parse(parser, argv)
    draw_small_pictures(options.output_dir)
    record_first_seed(options.output_dir)
    try:
        count = fill_gallery(options.output_dir)
    except ValueError as error:
        parser.error(str(error))
    pages.write_titles()
    print("changed:", flush=True)
    subprocess.run(["git", "diff", "--stat"], cwd=paths.ROOT)
    return f"{count} pictures in {paths.GALLERY}"


if __name__ == "__main__":
    cli.run(main)
