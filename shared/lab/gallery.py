"""For maintainers: the pictures of README and lessons, from the last run into the gallery.

    ./run_all.sh all && ./run_all.sh publish

What a run makes is not in git, so that a run leaves no trace. visualizations/gallery/ is, and only
this command writes it: exactly the pictures that a README links to. Some it draws itself, from the
record: those of the front door (front_page.py), and two for which a run has too few seeds. The SVG
files of the gallery are drawn by hand, and the film of the live page is recorded by hand, so this
command leaves them alone (.github/CONTRIBUTING.md).
"""

import argparse
import importlib
import shutil
from pathlib import Path

from shared import cli, paths
from shared.lab import front_page, pages, record

MORE_SEEDS = ("phase2_multi_head.heads.how_many_heads",)
FILM = "phase3/live_page.gif"  # recorded by hand


def is_made_by_hand(name: str) -> bool:
    """Returns whether a picture of the gallery is one that no run draws."""
    return name.endswith(".svg") or name == FILM


def draw_without_a_run(options: argparse.Namespace) -> None:
    """Draws the pictures that show the ten seeds of the record."""
    front_page.draw_small_pictures(options.output_dir)
    for module in MORE_SEEDS:
        importlib.import_module(module).main.draw_runs(record.runs(module), options)


def fill_gallery(output_dir: Path) -> int:
    """Makes the gallery anew from what a run drew; returns how many pictures it has.

    Raises ValueError, before anything is changed, if the run did not draw one of them.
    """
    names = [name for name in pages.linked_pictures() if not is_made_by_hand(name)]
    drawn = {}
    for name in names:
        folder = paths.ANIMATIONS if name.endswith(".gif") else paths.PLOTS
        drawn[name] = output_dir / folder / name
        if not drawn[name].is_file():
            raise ValueError(f"{name} is not drawn yet: run ./run_all.sh all first")
    gallery = paths.ROOT / paths.GALLERY
    for old in gallery.rglob("*.*"):
        if not is_made_by_hand(old.relative_to(gallery).as_posix()):
            old.unlink()
    for name in names:
        (gallery / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(drawn[name], gallery / name)
    return len(names)


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    options = cli.parse(parser, argv)
    draw_without_a_run(options)
    try:
        count = fill_gallery(options.output_dir)
    except ValueError as error:
        parser.error(str(error))
    return f"{count} pictures in {paths.GALLERY}"


if __name__ == "__main__":
    cli.run(main)
