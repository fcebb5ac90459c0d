"""The pages of a run: visualizations/index.html with every finding and picture, and the lessons beside it.

    python shared/evidence/report/write_pages.py

The report page begins with the seven surprises as README tells them. Then it has each question that a script asks, with
what it measured (data/processed/findings/) and drew. report.js filters. The lessons are rendered from their Markdown.
All is read from the disk, without a server and without the network.
"""

import os
import re
from collections import Counter
from functools import partial
from pathlib import Path

from markupsafe import Markup

from shared import cli, paths
from shared.evidence.claims import DIFFER, FAILS, HOLDS
from shared.evidence.findings import gather
from shared.evidence.report.lessons import CONTENTS, Site, link, rendered, write_lessons
from shared.evidence.report.questions import answered
from shared.plan import SECTIONS

PLURAL = {HOLDS: "hold in all ten seeds", FAILS: "in none", DIFFER: "in some"}

# Small picture -> a view of the explorer, and what to do there
TRY = {
    "scaling": ("divisor=1", "pull the division out of a trained model"),
    "heads": ("view=grow", "watch heads learn"),
    "faithfulness": ("view=look", "hide one word more, and see what the guess loses"),
}
ROW = re.compile(r"^\| !\[(.*?)\]\(visualizations/gallery/seven/(\w+)\.png\) \| (.*) \|$", re.MULTILINE)


def counted(findings: list[dict]) -> str:
    """ "26 hold in all ten seeds, 9 in none"."""
    counts = Counter(finding["kind"] for finding in findings)
    return ", ".join(f"{counts[verdict]} {said}" for verdict, said in PLURAL.items() if counts[verdict])


def surprises(site: Site) -> list[dict]:
    """The rows of README's table: the small picture, what it shows, README's sentences, what to try in the explorer."""
    found = []
    for shows, name, text in ROW.findall((paths.ROOT / CONTENTS).read_text(encoding="utf-8")):
        said = rendered(text, CONTENTS, paths.PAGE, site).strip().removeprefix("<p>").removesuffix("</p>")
        view, trial = TRY.get(name, ("", ""))
        picture = link(paths.PAGE, paths.GALLERY / "seven" / f"{name}.png")
        found.append({"picture": picture, "alt": shows, "said": Markup(said), "view": view, "trial": trial})
    return found


def write_report(site: Site) -> Path:
    """Write the report page from the pictures and findings below the site's folder; returns its path."""
    phases = answered(gather(site.output_dir), site.output_dir)
    questions = [question for of_phase in phases.values() for question in of_phase]
    return site.write(
        paths.PAGE,
        "report.html.jinja",
        title="Attention, built from scratch and measured",
        surprises=surprises(site),
        phases=phases,
        names=SECTIONS,
        findings=[finding for question in questions for finding in question["findings"]],
        verdicts=PLURAL,
        counted=counted,
        link=partial(link, paths.PAGE),
        file=partial(site.file, paths.PAGE),
    )


def write_pages(output_dir: Path) -> Path:
    """Write all pages; returns the path of the report page."""
    site = Site(output_dir, os.environ.get("CODE_URL", ""))
    write_lessons(site)
    return write_report(site)


@cli.script
def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    path = write_pages(options.output_dir)
    print(f"report page: {paths.shown(path)}  (open it in a browser)")


if __name__ == "__main__":
    cli.run(main)
