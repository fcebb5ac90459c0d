"""The page of what course notes say wrongly, data/notes.md. shared/publishing/table.py writes it.

Five course notes were read sentence by sentence. Each saying is a row of data/raw/claims.json:

    id, claim, said    its number, what is said, in our words, and where
    kind, verdict      what decides it; "right", "wrong", "in part" (on a condition), or "open"
    theme, says        of a row that the page lists: its section; the saying in plainer words
    answer             what is true, and why
    where              the file that decides it, most often a test, in which its id stands
    finding            the experiment that decides it, by the id of its claim
    by                 what else decides it: a paper, or the notes themselves
    read               the page of the course that explains it

claim and said stay as they are: phase3_visualization/pretrained/window.py has a model read them.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared import paths
from shared.evidence import record
from shared.evidence.claims import Claim

PAGE = paths.ROOT / "data" / "notes.md"
SAYINGS = paths.ROOT / "data" / "raw" / "claims.json"
LISTED = {"wrong": "Wrong.", "in part": "In part."}
THEMES = {
    "scores": "Scores, softmax and the division by √d_k",
    "before": "Recurrent networks, convolutions and the first attention",
    "costs": "What attention costs",
    "heads": "Many heads",
    "masks": "Masks, and models that write",
    "order": "The order of words",
    "trouble": "NaN, number formats and times",
    "reading": "Reading weights and their pictures",
    "words": "Names, history and examples",
}
INTRODUCTION = """\
# What course notes say about attention

This course began with five course notes that went from hand to hand: a project description, two
notebooks, a chapter and a short text about the formula. We read them sentence by sentence and
wrote down {all} sayings, in our own words. {right} of them are right, and {open} are matters of
opinion or cannot be checked here. The others are listed below: {wrong} are wrong, and {in part}
are true in part, mostly because they leave a condition out.

The left column has what they say, and the middle column what is true, and why. The right column
says where it is shown. A page of the course explains it, or a file decides it: search that file
for the number of the saying, such as `C029`. Where an experiment decides, the link leads to its
row in the [table of findings](claims.md), and says in how many of ten runs its rule held. Such a
rule can be narrower than the saying, because it names a size and a task. Where a paper decides, or
the notes themselves, they are named.

In the formulas T is the number of words, H the number of heads, d the size of a word's vector
(d_model) and d_k that of a head's queries and keys. All {all} sayings, with those that are right,
are in [claims.json](raw/claims.json).
"""
HEAD = ["| they say | what is true | where it is shown |", "|---|---|---|"]


def cell(text: str) -> str:
    """Text for a cell of a Markdown table: a bar would end it, and "<start>" be taken for HTML."""
    return re.sub(r"(?<!\\)([|<])", r"\\\1", text)


def rows() -> list[dict[str, str]]:
    """Every saying, in the order of their numbers."""
    return json.loads(SAYINGS.read_text(encoding="utf-8"))


def listed(row: Mapping[str, str]) -> bool:
    """Whether the page lists a saying: it does if somebody who believes it is misled."""
    return row["verdict"] in LISTED


def link(text: str, path: str) -> str:
    """A link from the page to a file of the repository."""
    return f"[{text}](../{path})"


def name_of(path: str) -> str:
    """How the course calls a file: "lesson 2", "costs" for a room's page, "test_costs.py"."""
    file = Path(path.partition("#")[0])
    if file.name != "README.md":
        return file.name
    lessons, folder = list(paths.PHASES.values()), file.parent.name
    return f"lesson {lessons.index(folder) + 1}" if folder in lessons else folder


def runs_of(claim: Claim) -> str:
    """In how many runs the rule of a claim held: on record, or on seeds 0 to 9 if it is newer."""
    if verdict := record.verdict(claim):
        return f"{verdict.held} of {verdict.seeds} runs"
    if claim.explored is None:
        return "not run yet"
    return f"{claim.explored} of 10 runs, not on record yet"


def where(row: Mapping[str, str], claims: Mapping[str, Claim]) -> str:
    """Where a saying is shown: the page that explains it, what decides it, and its number."""
    places = []
    if "read" in row:
        places.append(link(name_of(row["read"]), row["read"]))
    if "finding" in row:
        claim = claims[row["finding"]]
        places.append(f"[{runs_of(claim)}](claims.md#{claim.id})")
    if "where" in row:
        places.append(link(name_of(row["where"]), row["where"]))
    if "by" in row:
        places.append(row["by"])
    return f"{', '.join(places)} `{row['id']}`"


def line(row: Mapping[str, str], claims: Mapping[str, Claim]) -> str:
    """A row of the page's tables."""
    says, answer = row.get("says", row["claim"]), f"**{LISTED[row['verdict']]}** {row['answer']}"
    return f"| {cell(says)} | {cell(answer)} | {cell(where(row, claims))} |"


def page(claims: Sequence[Claim]) -> str:
    """The whole page as Markdown."""
    sayings, known = rows(), {claim.id: claim for claim in claims}
    counts = Counter(row["verdict"] for row in sayings)
    lines = [INTRODUCTION.format_map({"all": len(sayings), **counts})]
    for theme, heading in THEMES.items():
        own = [line(row, known) for row in sayings if row.get("theme") == theme]
        lines += [f"## {heading}", "", *HEAD, *own, ""]
    return "\n".join(lines).rstrip() + "\n"
