"""The report page, visualizations/index.html: every picture and every finding of a run, to filter and search.

    python shared/evidence/report.py

Findings come from data/processed/findings/, pictures and captions from visualizations/. report.js filters. Links to
code, lessons and the explorer are there when the file is: a page written to another folder stands alone.
"""

from pathlib import Path

import jinja2
from PIL import Image

from shared import cli, paths
from shared.evidence.claims import VERDICTS
from shared.evidence.findings import gather, measured_text

# The parts of the report page: key, which is how a phase's folders and scripts begin, and name.
POSTER, SHARED, EXPLORER = "summary", "shared", "explorer.html"
LESSONS = {
    "phase1": "phase1_single_head/README.md",
    "phase2": "phase2_multi_head/README.md",
    "phase3": "phase3_visualization/README.md",
    "phase4": "phase4_causal/README.md",
}
SECTIONS = {
    POSTER: "Poster",
    "phase1": "1 · One head",
    "phase2": "2 · Many heads",
    "phase3": "3 · What they do",
    "phase4": "4 · Without a future",
    SHARED: "All phases",  # what belongs to no phase
}


def caption_of(path: Path) -> str:
    """What save_figure and save_animation kept inside the file."""
    with Image.open(path) as image:
        caption = image.info.get("Description") or image.info.get("comment") or path.stem
    return caption.decode() if isinstance(caption, bytes) else caption


def pictures(output_dir: Path) -> list[dict[str, str]]:
    """Every PNG and GIF below visualizations/: phase, name, caption and address as seen from the report page."""
    found = []
    for folder in (paths.PLOTS, paths.ANIMATIONS):
        drawn = (path for path in (output_dir / folder).rglob("*") if path.suffix in (".png", ".gif"))
        for path in sorted(drawn):
            where = path.relative_to(output_dir / folder).parent.name
            found.append(
                {
                    "phase": where or POSTER,
                    "name": path.name,
                    "caption": caption_of(path),
                    "address": path.relative_to((output_dir / paths.PAGE).parent).as_posix(),
                }
            )
    return found


def plural(verdict: str) -> str:
    """A verdict as it is said of several findings: "hold"."""
    return verdict.replace("holds", "hold").replace("does not", "do not").replace("undecided", "are undecided")


def sections(pictures: list[dict[str, str]], findings: list[dict]) -> list[dict]:
    """The parts of the report page in reading order, each with its pictures and findings; none is left out.

    The poster comes first, then a part for each phase, then what belongs to no phase, if there is any.
    """
    names = {
        **SECTIONS,
        **{picture["phase"]: picture["phase"] for picture in pictures if picture["phase"] not in SECTIONS},
    }
    of_finding = [next((key for key in LESSONS if finding["script"].startswith(key)), SHARED) for finding in findings]
    parts = [
        {
            "key": key,
            "name": name,
            "lesson": LESSONS.get(key),
            "pictures": [picture for picture in pictures if picture["phase"] == key],
            "findings": [finding for finding, own in zip(findings, of_finding, strict=True) if own == key],
        }
        for key, name in names.items()
    ]
    return [part for part in parts if part["key"] in LESSONS or part["pictures"] or part["findings"]]


def write_page(output_dir: Path) -> Path:
    """Build the report page from the pictures and findings under output_dir; returns its path."""
    path = output_dir / paths.PAGE

    def linked(file: str) -> str | None:
        """Address of a file of the repository as seen from the page, or None where the page lies elsewhere."""
        return f"../{file}" if (output_dir / file).is_file() else None

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "plural": plural,
        "measured": measured_text,
        "linked": linked,
        "slug": lambda text: text.replace(" ", "-"),
    }
    findings = gather(output_dir)
    page = environment.get_template("report.html.jinja").render(
        sections=sections(pictures(output_dir), findings),
        findings=findings,
        verdicts=VERDICTS,
        explorer=EXPLORER if (path.parent / EXPLORER).is_file() else None,
    )
    with paths.whole_file(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return path


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    path = write_page(options.output_dir)
    print(f"report page: {paths.shown(path)}  (open it in a browser)")


if __name__ == "__main__":
    cli.run(main)
