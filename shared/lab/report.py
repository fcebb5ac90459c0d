"""What did a run find? Its pages: visualizations/index.html, and the lessons beside it.

    python shared/lab/report.py

The report page begins with a dot for each finding, in how far the run agrees with the record, and
how the surprises begin that README and data/surprises.md tell. Then it has each question that a
script asks, with what it measured (data/processed/findings/) and drew. The picture of an experiment
is called after its file; any other script says in its docstring what it draws.
"""

import importlib
import itertools
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from mdit_py_plugins.anchors.index import slugify
from PIL import Image

from shared import cli, paths
from shared.claims import PLURAL, all_claims
from shared.lab import record
from shared.lab.findings import gather
from shared.lab.lessons import address, link, rendered, sources
from shared.lab.plan import PLANS, SECTIONS, path_of, question_of
from shared.paths import place

README = Path("README.md")
SURPRISES = Path("data", "surprises.md")
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "page"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
)

# Small picture -> a view of the explorer, and what to do there
TRY = {
    "scaling": ("divisor=1", "pull the division out of a trained model"),
    "lookers": (
        "words=often+every+kite+fell+in+the+red+dark+ponds&hide=3&query=3&head=1.2",
        "two heads look at the kite; cut head 1.2, then head 1.0",
    ),
}
STORY = re.compile(  # a heading, its first paragraph, and further below a small picture
    r"^##+ (?P<title>.+)\n\n(?P<begins>[^#\n].*)\n(?:(?!#).*\n)*?"
    r'<p><img src="\S+/seven/(?P<name>\w+)\.png" alt="(?P<alt>.*?)"',
    re.MULTILINE,
)


def facts_of(output_dir: Path, path: Path) -> dict[str, Any]:
    """Returns where a PNG or GIF lies, its pixels, the caption inside the file, and its title."""
    with Image.open(output_dir / path) as image:
        caption = image.info.get("Description") or image.info.get("comment") or path.stem
        width, height = image.size
    if isinstance(caption, bytes):
        caption = caption.decode()
    first_sentence = re.split(r"(?<=[.?!])\s", caption)[0]
    title = first_sentence.removesuffix(".")
    return {
        "address": link(paths.PAGE, path),
        "title": title,
        "caption": caption,
        "width": width,
        "height": height,
    }


def promised(module: str) -> set[str]:
    """Returns the names of a script's pictures: its Experiment's, or those in its docstring."""
    script = importlib.import_module(module)
    if hasattr(script.main, "pictures"):
        return script.main.pictures
    return {Path(name).name for name in re.findall(r"[\w/]+\.(?:png|gif|html)\b", script.__doc__)}


def drawn_by(module: str, phase: str, output_dir: Path) -> list[dict]:
    """Returns the pictures of a script that a run drew.

    They lie in their phase's folders; the poster, which belongs to all phases, lies in none.
    """
    found = []
    for folder in (paths.ANIMATIONS / phase, paths.PLOTS / phase, paths.PLOTS):
        for name in sorted(promised(module)):
            if (output_dir / folder / name).is_file():
                found.append(facts_of(output_dir, folder / name))
    return found


def asked_and_found(output_dir: Path) -> dict[str, list[Mapping]]:
    """Returns phase -> its questions: everything that a run measured and drew, each once."""
    saved = {content["experiment"]: content for content in gather(output_dir)}
    nothing = {"answer": None, "findings": [], "runs": [], "otherwise": []}
    found = {}
    for phase, plan in PLANS.items():
        found[phase] = []
        for module in plan.all:
            script, pictures = path_of(module), drawn_by(module, phase, output_dir)
            measured = saved.get(module, nothing)
            if not (measured["findings"] or pictures):
                continue
            more = {
                "module": module,
                "script": script,
                "page": Path(script).parent / "README.md",
                "text": question_of(module),
                "pictures": pictures,
            }
            found[phase].append(measured | more)
    return found


def surprises(output_dir: Path) -> list[dict]:
    """Returns the surprises of README and of the page of its own that has the others.

    Each has a small picture, how its story begins and where it goes on, and what to try in the
    explorer.
    """
    found = []
    for source in (README, SURPRISES):
        for story in STORY.finditer((paths.ROOT / source).read_text(encoding="utf-8")):
            name, title = story["name"], story["title"]
            goes_on = f"[Read on]({source.name}#{slugify(title)})"
            text = f"**{title}.** {story['begins']} {goes_on}"
            html = rendered(text, source, paths.PAGE, output_dir).strip()
            view, trial = TRY.get(name, ("", ""))
            surprise = {
                "picture": paths.GALLERY / "seven" / f"{name}.png",
                "alt": story["alt"],
                "said": html.removeprefix("<p>").removesuffix("</p>"),
                "view": view,
                "trial": trial,
            }
            found.append(surprise)
    return found


def inside_record(questions: Iterable[Mapping]) -> list[bool]:
    """Returns whether each number of a run lies where the record expects it.

    Nothing is compared of a run whose options train otherwise than the record did, such as --quick.
    """
    found = []
    for question in questions:
        if not question["otherwise"]:
            found += record.inside(question["module"], question["runs"][:1])
    return found


def write_page(output_dir: Path, page: Path, template: str, **parts: Any) -> Path:
    """Writes a page whole, in the frame that all pages have; returns its path on the disk.

    parts has the title, and what else the template needs.
    """
    menu = {"Results": paths.PAGE}
    if (output_dir / paths.EXPLORER).is_file():
        menu["Explorer"] = paths.EXPLORER
    menu["Start"] = place(README)
    for phase, folder in paths.PHASES.items():
        menu[SECTIONS[phase]] = place(Path(folder, "README.md"))
    frame = {"menu": menu, "page": page, "address": partial(address, output_dir, page)}
    html = TEMPLATES.get_template(template).render(**frame, **parts)
    with paths.whole_file(output_dir / page) as unfinished:
        unfinished.write_text(html, encoding="utf-8")
    return output_dir / page


def write_lessons(output_dir: Path) -> None:
    """Writes a page for each Markdown file."""
    shutil.rmtree(output_dir / paths.LESSONS, ignore_errors=True)  # what has no source any more
    for source in sources():
        page = place(source)
        text = (paths.ROOT / source).read_text(encoding="utf-8")
        html = rendered(text, source, page, output_dir)
        title = text.splitlines()[0].removeprefix("# ")
        sections = re.findall(r'<h2 id="(.*?)">(.*?)</h2>', html)
        parts = {"title": title, "text": html, "sections": sections}
        write_page(output_dir, page, "page.html.jinja", **parts)


def write_report(output_dir: Path) -> Path:
    """Writes the report page of what lies below an output folder; returns its path."""
    phases = asked_and_found(output_dir)
    questions = list(itertools.chain(*phases.values()))
    findings = []
    for question in questions:
        findings += question["findings"]
    return write_page(
        output_dir,
        paths.PAGE,
        "report.html.jinja",
        title="Attention, built from scratch and measured",
        whose="the run behind this page" if os.environ.get("CODE_URL") else "your run",
        measured=[question for question in questions if question["runs"]],
        inside=inside_record(questions),
        surprises=surprises(output_dir),
        phases=phases,
        names=SECTIONS,
        findings=findings,
        total=len([claim for claim in all_claims() if record.verdict(claim)]),
        here=len([finding for finding in findings if finding["on record"]]),
        verdicts=PLURAL,
        counts=Counter(finding["kind"] for finding in findings),
    )


def write_pages(output_dir: Path) -> Path:
    """Writes all pages; returns the path of the report page."""
    write_lessons(output_dir)
    return write_report(output_dir)


@cli.script
def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    path = write_pages(options.output_dir)
    print(f"report page: {paths.shown(path)}  (open it in a browser)")


if __name__ == "__main__":
    cli.run(main)
