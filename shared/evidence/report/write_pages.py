"""The pages of a run: visualizations/index.html with every finding and picture, and the lessons beside it.

    python shared/evidence/report/write_pages.py

The report page begins with the seven surprises; their pictures come from the record. Then it has each question that a
script asks, with what it measured (data/processed/findings/) and drew. report.js filters. The lessons are rendered from
their Markdown. All of it is read from the disk, without a server and without the network.
"""

import contextlib
import io
from collections import Counter
from pathlib import Path

import jinja2

from shared import cli, paths
from shared.evidence import seven
from shared.evidence.claims import FAILS, HOLDS, MEASURED, ONLY_IF, UNDECIDED
from shared.evidence.findings import gather
from shared.evidence.report.lessons import menu, write_lessons
from shared.evidence.report.links import NAME, Site, environment, write_page
from shared.evidence.report.questions import sections
from shared.evidence.report.rendering import place, unbroken
from shared.evidence.report.surprises import surprises

PROMISE = "Build attention from tensors, train small transformers in seconds, and see which sayings about it hold."


PLURAL = {HOLDS: "hold", FAILS: "do not hold", ONLY_IF: "hold only under a condition", UNDECIDED: "are undecided here"}
PLURAL |= {MEASURED: "have numbers alone"}


def counted(findings: list[dict]) -> str:
    """ "46 hold, 15 do not hold"."""
    counts = Counter(finding["verdict"] for finding in findings)
    return ", ".join(f"{counts[verdict]} {said}" for verdict, said in PLURAL.items() if counts[verdict])


def chapter(script: str) -> Path:
    """The page that tells of a script: of its room, or of the phase whose root it stands in."""
    return place(Path(script).parent / "README.md")


def template(site: Site) -> jinja2.Template:
    """The report page's, with what it asks of the site."""
    templates = environment()
    templates.filters |= {
        "counted": counted,
        "file": lambda name: site.file(paths.PAGE, name),
        "link": lambda path: site.link(paths.PAGE, path),
        "chapter": chapter,
        "slug": lambda text: text.replace(" ", "-"),
    }
    return templates.get_template("report.html.jinja")


def write_report(site: Site) -> Path:
    """Write the report page from the pictures and findings below the site's folder; returns its path."""
    parts = sections(gather(site.output_dir), site.output_dir)
    html = template(site).render(
        head=site.head(paths.PAGE, NAME, PROMISE),
        menu=menu(paths.PAGE, site),
        here=paths.PAGE.name,
        surprises=surprises(site),
        sections=parts,
        findings=[finding for section in parts for finding in section.findings],
        verdicts=PLURAL,
        explorer=paths.EXPLORER if (site.output_dir / paths.EXPLORER).is_file() else None,
        lesson=place,
    )
    return write_page(site, paths.PAGE, unbroken(html))


def write_pages(output_dir: Path) -> Path:
    """Draw what only the pages show, write all of them; returns the path of the report page."""
    site = Site.at(output_dir)
    with contextlib.redirect_stdout(io.StringIO()):  # these belong to the pages, nobody opens them one by one
        seven.main(["--output-dir", str(output_dir)])
    write_lessons(site)
    return write_report(site)


@cli.script
def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    path = write_pages(options.output_dir)
    print(f"report page: {paths.shown(path)}  (open it in a browser)")


if __name__ == "__main__":
    cli.run(main)
