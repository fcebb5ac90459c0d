"""The seven surprises as README tells them, each with its small picture and a way to try it in the explorer.

README is where they are written, and a test compares its numbers with the record: here they are only read.
"""

import re
from dataclasses import dataclass

from markupsafe import Markup

from shared import paths
from shared.evidence.report.links import Site
from shared.evidence.report.rendering import inline

# Small picture -> the view of the explorer that comes nearest, and what to do there. None has the model that writes
# without attention.
TRY = {
    "scaling": ("view=break&wager=1", "take √d_k out of training"),
    "heads": ("view=grow", "train four heads"),
    "seed": ("view=grow", "train with another seed"),
    "faithfulness": ("view=break&wager=5", "believe a line, or leave the word out"),
    "coreference": ("view=break&wager=5", "believe a line, or leave the word out"),
    "induction": ("view=break&wager=3", "take out a head"),
}
ROW = re.compile(r"^\| !\[(.*?)\]\(visualizations/gallery/seven/(\w+)\.png\) \| (.*) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Surprise:
    """alt: what the picture shows. said: README's sentences, with links that work from the report page."""

    alt: str
    picture: str
    said: Markup
    view: str
    trial: str


def surprise(alt: str, name: str, said: str, site: Site) -> Surprise:
    picture = site.link(paths.PAGE, paths.PLOTS / "seven" / f"{name}.png")
    return Surprise(alt, picture, inline(said, site), *TRY.get(name, ("", "")))


def surprises(site: Site) -> list[Surprise]:
    """In README's order."""
    readme = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    return [surprise(*row, site) for row in ROW.findall(readme)]
