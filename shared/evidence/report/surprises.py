"""The seven surprises as README tells them, each with its small picture and a way to try it in the explorer.

README is where they are written, and a test compares its numbers with the record: here they are only read.
"""

import re
from dataclasses import dataclass

from markupsafe import Markup

from shared import paths
from shared.evidence.report.links import Site
from shared.evidence.report.rendering import inline

# Small picture -> a view of the explorer, and what to do there. None asks for a bet on what has just been read. Three
# have no view: the page has no model that writes without attention, that was published, or that looks up and copies.
TRY = {
    "scaling": ("divisor=1", "pull the division out of a trained model"),
    "heads": ("view=grow", "watch heads learn"),
    "seed": ("view=grow", "train with another seed"),
    "faithfulness": ("view=look", "hide one word more, and see what the guess loses"),
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
