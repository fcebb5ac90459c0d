"""The pages of a run: visualizations/index.html with every finding and picture, and the lessons
beside it.

    python shared/publishing/report/write_pages.py

The report page begins with a dot for each finding and the seven surprises as README tells them.
Then it has each question that a script asks, with what it measured (data/processed/findings/) and
drew. The picture of an experiment is called after its file; a script that draws several says so in
its docstring. report.js filters.
"""

import importlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from PIL import Image

from shared import cli, paths
from shared.evidence.claims import PLURAL
from shared.evidence.findings import gather
from shared.paths import place
from shared.plan import PLANS, SECTIONS, path_of, question_of
from shared.publishing.report.lessons import (
    CONTENTS,
    NOTES,
    Site,
    add_previews,
    link,
    rendered,
    write_lessons,
)

# Small picture -> a view of the explorer, and what to do there
TRY = {
    "scaling": ("divisor=1", "pull the division out of a trained model"),
    "lookers": ("", "knock out a head, and see what the guess loses"),
}
CELL = re.compile(r"^!\[(.*)\]\(visualizations/gallery/seven/(\w+)\.png\)\n\n(.*)$", re.MULTILINE)


def picture(output_dir: Path, path: Path) -> dict[str, Any]:
    """A PNG or GIF: where it lies, its pixels, the caption kept inside the file, and its title, the
    first sentence.
    """
    with Image.open(output_dir / path) as image:
        caption = image.info.get("Description") or image.info.get("comment") or path.stem
        width, height = image.size
    caption = caption.decode() if isinstance(caption, bytes) else caption
    title = re.split(r"(?<=[.?!])\s", caption)[0].removesuffix(".")
    return {"path": path, "title": title, "caption": caption, "width": width, "height": height}


def promised(module: str) -> set[str]:
    """The pictures of a script: those of its Experiment, or those that its docstring says it
    writes.
    """
    script = importlib.import_module(module)
    names = re.findall(r"[\w/]+\.(?:png|gif|html)\b", script.__doc__ or "")
    return getattr(script.main, "pictures", None) or {name.rpartition("/")[2] for name in names}


def drawn_by(module: str, phase: str, output_dir: Path) -> list[dict]:
    """The pictures of a script that a run drew; the poster, which belongs to all phases, lies in no
    phase's folder.
    """
    folders = (paths.ANIMATIONS / phase, paths.PLOTS / phase, paths.PLOTS)
    found = [folder / name for folder in folders for name in sorted(promised(module))]
    return [picture(output_dir, path) for path in found if (output_dir / path).is_file()]


def question(module: str, phase: str, saved: Mapping, output_dir: Path) -> dict[str, Any]:
    """A script: what it asks, found and drew in this run; page: its room's, or its phase's, which
    tells of it.
    """
    script, pictures = path_of(module), drawn_by(module, phase, output_dir)
    measured = saved.get(script, {"script": script, "answer": None, "findings": []})
    page = place(Path(script).parent / "README.md")
    return {**measured, "page": page, "text": question_of(module), "pictures": pictures}


def answered(measured: Iterable[Mapping], output_dir: Path) -> dict[str, list[Mapping]]:
    """Phase -> its questions: everything that a run measured and drew, each once."""
    saved, found = {content["script"]: content for content in measured}, {}
    for phase, plan in PLANS.items():
        asked = [question(name, phase, saved, output_dir) for name in plan.all]
        found[phase] = [
            question for question in asked if question["findings"] or question["pictures"]
        ]
    return found


def surprises(site: Site) -> list[dict]:
    """The cells of README's table: small picture, what it shows, README's sentences, what to try in
    the explorer.
    """
    found = []
    for shows, name, text in CELL.findall((paths.ROOT / CONTENTS).read_text(encoding="utf-8")):
        said = (
            rendered(text, CONTENTS, paths.PAGE, site)
            .strip()
            .removeprefix("<p>")
            .removesuffix("</p>")
        )
        view, trial = TRY.get(name, ("", ""))
        picture = link(paths.PAGE, paths.GALLERY / "seven" / f"{name}.png")
        found.append(
            {"picture": picture, "alt": shows, "said": Markup(said), "view": view, "trial": trial}
        )
    return found


def write_report(site: Site) -> Path:
    """Write the report page from the pictures and findings below the site's folder; returns its
    path.
    """
    phases = answered(gather(site.output_dir), site.output_dir)
    findings = [
        finding
        for questions in phases.values()
        for question in questions
        for finding in question["findings"]
    ]
    return site.write(
        paths.PAGE,
        "report.html.jinja",
        title="Attention, built from scratch and measured",
        surprises=surprises(site),
        phases=phases,
        names=SECTIONS,
        findings=findings,
        verdicts=PLURAL,
        counts=Counter(finding["kind"] for finding in findings),
        notes=link(paths.PAGE, place(NOTES)),
        site=site,
    )


def write_pages(output_dir: Path) -> Path:
    """Write all pages; returns the path of the report page."""
    site = Site(output_dir, os.environ.get("CODE_URL", ""))
    write_lessons(site)
    report = write_report(site)
    if site_url := os.environ.get("SITE_URL", "").rstrip("/"):
        add_previews(output_dir, site_url)
    return report


@cli.script
def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    path = write_pages(options.output_dir)
    print(f"report page: {paths.shown(path)}  (open it in a browser)")


if __name__ == "__main__":
    cli.run(main)
