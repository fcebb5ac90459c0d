"""For maintainers: the pictures that README and lessons show, from the last run into
visualizations/gallery/.

    ./run_all.sh all && ./run_all.sh publish

What a run makes is not in git, so that a run leaves no trace. The gallery is, and only this command
writes it: exactly the pictures that a README links to. It draws some itself, from the record: those
of the front door's seven findings (seven.py), and two for which a run has too few seeds.
SITE_URL=https://owner.github.io/name ./run_all.sh publish also links README to the pages that are
published there.
"""

import importlib
import os
import re
import shutil
from pathlib import Path

from shared import cli, paths
from shared.evidence import record
from shared.experiment import Results
from shared.publishing import seven

# Scripts whose picture wants more seeds than a run has.
FROM_RECORD = ("phase2_multi_head.heads.how_many_heads", "phase4_causal.serving.shared_keys")
LINK = re.compile(r"visualizations/gallery/([\w/]+\.(?:png|gif))")
LIVE = re.compile(r"(?<=<!--live-->).*(?=<!--/live-->)")  # in README: how to get to the live pages


def linked_pictures(root: Path) -> list[str]:
    """The pictures that a README of the repository shows, as paths below the gallery."""
    pages = [root / "README.md", *root.glob("phase*/**/README.md")]
    return sorted(
        {name for page in pages for name in LINK.findall(page.read_text(encoding="utf-8"))}
    )


def publish(output_dir: Path, root: Path) -> int:
    """Copy every linked picture into the gallery of root and remove all others there; returns how
    many there are.

    Raises ValueError, before anything is changed, if the last run did not draw one of them.
    """
    names = linked_pictures(root)
    drawn = {
        name: output_dir / (paths.ANIMATIONS if name.endswith(".gif") else paths.PLOTS) / name
        for name in names
    }
    if missing := [name for name in names if not drawn[name].is_file()]:
        raise ValueError(f"not drawn yet: {', '.join(missing)}; run ./run_all.sh all first")
    shutil.rmtree(root / paths.GALLERY, ignore_errors=True)
    for name in names:
        copy = root / paths.GALLERY / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(drawn[name], copy)
    return len(names)


def with_live_link(text: str, site_url: str) -> str:
    """README with a link to the published pages; as it is where nobody says where they are."""
    link = f"[open the explorer]({site_url}/explorer.html), nothing to install, or [all findings]({site_url}/index.html)."
    return LIVE.sub(link, text) if site_url else text


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    options = cli.parse(parser, argv)
    seven.draw_all(options.output_dir)
    for experiment in (importlib.import_module(script).main for script in FROM_RECORD):
        experiment.draw(Results(record.runs(experiment.file.stem), options, {}), as_published=True)
    try:
        count = publish(options.output_dir, paths.ROOT)
    except ValueError as error:
        parser.error(str(error))
    readme = paths.ROOT / "README.md"
    text = with_live_link(
        readme.read_text(encoding="utf-8"), os.environ.get("SITE_URL", "").rstrip("/")
    )
    readme.write_text(text, encoding="utf-8")
    return f"{count} pictures in {paths.GALLERY}"


if __name__ == "__main__":
    cli.run(main)
