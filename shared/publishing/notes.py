"""What do course notes say wrongly? The page data/notes.md, which table.py writes.

Five course notes were read sentence by sentence. Each saying is a row of data/raw/claims.json:

    id, claim, said    its number, what is said, in our words, and where
    kind, verdict      what decides it; "right", "wrong", "in part" (on a condition), or "open"
    theme, says        of a row that the page lists: its section; the saying in plainer words
    answer             what is true, and why
    where              the file that decides it: a test, in which its id stands, or what measures it
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

NOTES_PAGE = paths.ROOT / "data" / "notes.md"
SAYINGS = paths.ROOT / "data" / "raw" / "claims.json"
LISTED = {"wrong": "Wrong.", "in part": "In part."}  # who believes these is misled
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
says where it is shown. A page of the course explains it, or a file decides it: a script measures
it, or a test has the number of the saying in it, such as `C029`. Where an experiment decides, the
link leads to its row in the [table of findings](claims.md), and says in how many of ten runs its
rule held. Such a rule can be narrower than the saying, because it names a size and a task. Where a
paper decides, or
the notes themselves, they are named.

In the formulas T is the number of words, H the number of heads, d the size of a word's vector
(d_model) and d_k that of a head's queries and keys. All {all} sayings, with those that are right,
are in [claims.json](raw/claims.json).
"""
HEADING = """
## {}

| they say | what is true | where it is shown |
|---|---|---|
"""


def cell(text: str) -> str:
    """Returns text for a cell of a Markdown table: a bar would end it, "<start>" would be HTML."""
    return re.sub(r"(?<!\\)([|<])", r"\\\1", text)


def sayings() -> list[dict[str, str]]:
    """Returns every saying, in the order of their numbers."""
    return json.loads(SAYINGS.read_text(encoding="utf-8"))


def link_to(path: str) -> str:
    """Returns a link named as the course calls a file: "lesson 2", "costs", "test_costs.py"."""
    file = Path(path.partition("#")[0])
    name, lessons = file.name, list(paths.PHASES.values())
    if name == "README.md":
        name = file.parent.name
    if name in lessons:
        name = f"lesson {lessons.index(name) + 1}"
    return f"[{name}](../{path})"


def rate_of(claim: Claim) -> str:
    """Returns in how many runs the rule of a claim held."""
    found = record.known(claim)
    newer = "" if record.verdict(claim) else ", not on record yet"
    return f"{found.held} of {found.seeds} runs{newer}"


def where_shown(saying: Mapping[str, str], claims: Mapping[str, Claim]) -> str:
    """Returns the page that explains a saying, what decides it, and its number."""
    places = []
    if "read" in saying:
        places.append(link_to(saying["read"]))
    if "finding" in saying:
        claim = claims[saying["finding"]]
        places.append(f"[{rate_of(claim)}](claims.md#{claim.id})")
    if "where" in saying:
        places.append(link_to(saying["where"]))
    if "by" in saying:
        places.append(saying["by"])
    return f"{', '.join(places)} `{saying['id']}`"


def notes_page(claims: Sequence[Claim]) -> str:
    """Returns the whole page as Markdown."""
    known = {claim.id: claim for claim in claims}
    counts = Counter(saying["verdict"] for saying in sayings())
    text = INTRODUCTION.format_map({"all": counts.total(), **counts})
    for theme, heading in THEMES.items():
        text += HEADING.format(heading)
        for saying in sayings():
            if saying.get("theme") == theme:
                answer = f"**{LISTED[saying['verdict']]}** {saying['answer']}"
                cells = saying["says"], answer, where_shown(saying, known)
                text += f"| {' | '.join(map(cell, cells))} |\n"
    return text
