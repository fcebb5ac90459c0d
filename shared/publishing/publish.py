"""For maintainers: the pictures of README and lessons, from the last run into the gallery.

    ./run_all.sh all && ./run_all.sh publish

What a run makes is not in git, so that a run leaves no trace. visualizations/gallery/ is, and only
this command writes it: exactly the pictures that a README links to. Some it draws itself, from the
record: those of the front door (seven.py), and two for which a run has too few seeds. The film of
the live page (live_page.py) needs the browser extra and Chromium. The SVG files of the gallery are
drawn by hand, so this command leaves them alone.
SITE_URL=https://owner.github.io/name ./run_all.sh publish also links README to the published pages.
"""

import argparse
import importlib
import os
import re
import shutil
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from shared import cli, paths
from shared.evidence import record
from shared.experiment import Results
from shared.publishing import live_page, record_links, seven

MORE_SEEDS = ("phase2_multi_head.heads.how_many_heads",)
SHOWN = re.compile(r"visualizations/gallery/([\w/]+\.(?:png|gif|svg))")
LIVE = re.compile(r"(?<=<!--live-->).*(?=<!--/live-->)")  # in README: how to get to the live pages


def linked_pictures() -> list[str]:
    """Returns the pictures that a README shows, as paths below the gallery."""
    names = set()
    for page in record_links.pages():
        names.update(SHOWN.findall(page.read_text(encoding="utf-8")))
    return sorted(names)


def draw_without_a_run(options: argparse.Namespace) -> None:
    """Draws the pictures that show the ten seeds of the record."""
    seven.draw_small_pictures(options.output_dir)
    for module in MORE_SEEDS:
        results = Results(record.runs(module), options, {})
        importlib.import_module(module).main.draw(results, as_published=True)


def publish_picture(drawn: Path, published: Path) -> None:
    """Copies a picture; a PNG is packed a tenth smaller, which a run does not take the time for."""
    published.parent.mkdir(parents=True, exist_ok=True)
    if drawn.suffix != ".png":
        shutil.copyfile(drawn, published)
        return
    with Image.open(drawn) as image:
        info = PngInfo()
        info.add_text("Description", image.info["Description"])
        image.save(published, pnginfo=info, optimize=True)


def fill_gallery(output_dir: Path) -> int:
    """Makes the gallery anew from what a run drew; returns how many pictures it has.

    Raises ValueError, before anything is changed, if the run did not draw one of them.
    """
    names = [name for name in linked_pictures() if not name.endswith(".svg")]
    drawn = {}
    for name in names:
        folder = paths.ANIMATIONS if name.endswith(".gif") else paths.PLOTS
        drawn[name] = output_dir / folder / name
        if not drawn[name].is_file():
            raise ValueError(f"{name} is not drawn yet: run ./run_all.sh all first")
    gallery = paths.ROOT / paths.GALLERY
    for old in paths.whole_files(gallery, "**/*"):
        if old.suffix != ".svg":
            old.unlink()
    for name in names:
        publish_picture(drawn[name], gallery / name)
    return len(names)


def with_live_link(text: str, site_url: str) -> str:
    """Returns README with a link to the published pages, if somebody says where they are."""
    if not site_url:
        return text
    explorer = f"[open the explorer]({site_url}/explorer.html), nothing to install"
    return LIVE.sub(f"{explorer}, or [all findings]({site_url}/index.html).", text)


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    options = cli.parse(parser, argv)
    draw_without_a_run(options)
    try:
        live_page.film(options.output_dir)
        count = fill_gallery(options.output_dir)
    except (ImportError, ValueError) as error:
        parser.error(str(error))
    readme = paths.ROOT / "README.md"
    site_url = os.environ.get("SITE_URL", "").rstrip("/")
    text = with_live_link(readme.read_text(encoding="utf-8"), site_url)
    readme.write_text(text, encoding="utf-8")
    return f"{count} pictures in {paths.GALLERY}"


if __name__ == "__main__":
    cli.run(main)
