"""Findings: a sentence about attention, what was measured, the rule that decides, the verdict.

The rule is written before looking and has a margin, so that another machine's rounding does not flip it. A script ends
by recording what it found; its findings go to data/processed/findings/ and to the terminal. Then

    python shared/evidence/findings.py

gathers all of them into data/processed/findings.json and builds visualizations/index.html, one page with every picture
and every finding, which report.js lets a reader filter. Links to code, lessons and the explorer are there when the file
is: a page written to another folder stands alone.
"""

import json
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path

import jinja2
from PIL import Image

from shared import cli, paths

HOLDS, FAILS, ONLY_IF = "holds", "does not hold", "holds only if"
VERDICTS = (HOLDS, FAILS, ONLY_IF)
MARKS = {HOLDS: "+", FAILS: "x", ONLY_IF: "~"}

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


@dataclass(frozen=True)
class Finding:
    """One claim and what became of it.

    measured: name -> number, or list of numbers with one for each seed. condition: for "holds only if", under which.
    """

    id: str
    claim: str
    source: str
    measured: dict[str, float | int | list[float]]
    unit: str
    rule: str
    verdict: str
    control: str = ""
    condition: str = ""
    seeds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"unknown verdict {self.verdict!r}: choose from {', '.join(VERDICTS)}")
        if (self.verdict == ONLY_IF) != bool(self.condition):
            raise ValueError(f"{self.id}: a condition belongs to the verdict {ONLY_IF!r} and only to it")
        if not self.measured:
            raise ValueError(f"{self.id}: a finding needs at least one measured number")


def verdict(holds: bool) -> str:
    """The verdict of a rule that is simply met or not."""
    return HOLDS if holds else FAILS


def conditional(always: bool, under_condition: bool, condition: str) -> dict[str, str]:
    """Verdict and condition of a rule that was tried in general and under a condition; pass them on with **."""
    if always or not under_condition:
        return {"verdict": verdict(always)}
    return {"verdict": ONLY_IF, "condition": condition}


def number(value: float | int | list[float]) -> str:
    """A measured value as a reader wants it: 1,050,624; 0.97; 3.1e-07; a list with its values side by side."""
    if isinstance(value, list):
        return ", ".join(number(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def measured_text(finding: Finding | dict) -> str:
    """One line: "best head: 0.97; best fixed offset: 0.50 (share of held-out pairs)"."""
    record = finding if isinstance(finding, dict) else asdict(finding)
    values = "; ".join(f"{name}: {number(value)}" for name, value in record["measured"].items())
    return f"{values} ({record['unit']})"


def record(script: str, findings: list[Finding], output_dir: Path) -> None:
    """Print the findings of a script (its path in the repository) and save them, in place of its earlier ones."""
    content = [asdict(finding) | {"script": script} for finding in findings]
    path = output_dir / paths.PROCESSED / "findings" / (script.removesuffix(".py").replace("/", ".") + ".json")
    with paths.whole_file(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print("\nfindings:")
    for finding in findings:
        head = f"  {MARKS[finding.verdict]} {finding.verdict}: "
        print(textwrap.fill(f'"{finding.claim}"', 118, initial_indent=head, subsequent_indent="      "))
        tail = f"{measured_text(finding)}" + (f"; only if {finding.condition}" if finding.condition else "")
        print(textwrap.fill(tail, 118, initial_indent="      ", subsequent_indent="      "))


def gather(output_dir: Path) -> list[dict]:
    """All recorded findings, by script and then as the script recorded them; also written to findings.json."""
    files = sorted((output_dir / paths.PROCESSED / "findings").glob("*.json"))
    findings = [finding for file in files for finding in json.loads(file.read_text(encoding="utf-8"))]
    with paths.whole_file(output_dir / paths.PROCESSED / "findings.json") as unfinished:
        unfinished.write_text(json.dumps(findings, indent=1), encoding="utf-8")
    return findings


def _caption(path: Path) -> str:
    """What save_figure and save_animation kept inside the file."""
    with Image.open(path) as image:
        caption = image.info.get("Description") or image.info.get("comment") or path.stem
    return caption.decode() if isinstance(caption, bytes) else caption


def pictures(output_dir: Path) -> list[dict[str, str]]:
    """Every PNG and GIF below visualizations/: phase, name, caption and address as seen from the report page."""
    found = []
    for folder in (paths.PLOTS, paths.ANIMATIONS):
        for path in sorted((output_dir / folder).rglob("*.[pg][ni][gf]")):
            where = path.relative_to(output_dir / folder).parent.name
            found.append(
                {
                    "phase": where or POSTER,
                    "name": path.name,
                    "caption": _caption(path),
                    "address": path.relative_to((output_dir / paths.PAGE).parent).as_posix(),
                }
            )
    return found


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
    environment.filters |= {"measured": measured_text, "linked": linked, "slug": lambda text: text.replace(" ", "-")}
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
