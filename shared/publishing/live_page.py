"""How does the live page look, for who has not opened it? A film of six seconds for README.

It opens the page that the last run wrote, in Chromium, and does what a reader does first: it
guesses the missing word, goes on, and cuts the arc.
"""

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from shared import paths
from shared.visualization_utils import save_animation

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAME = Path("phase3", "live_page.gif")
SIZE = {"width": 900, "height": 660}  # pixels, a little more than README's column
SECONDS_PER_FRAME = 0.1
COLORS = 128  # of the whole film
CAPTION = (
    "The live page: a word is missing, a reader guesses it, and then cuts the arc through which a "
    "head of the model had looked at the verb. The bars show how the model's guess falls."
)
SCENES = (  # what is pressed, and how many tenths of a second are shown after that
    (None, 16),
    ("#more .choices button >> nth=1", 14),
    ("#next", 10),
    ("#more .choices button >> nth=1", 24),
)
MOVING = 6  # tenths of a second after a press in which bars still move
SLOWLY = ".track i { transition: width 1.8s linear !important; }"  # so that each is caught
SHOT = 300  # milliseconds from one picture to the next, of movements that are three times as slow


def frames_of(tab: "Page") -> list[Image.Image]:
    """Returns what is seen in a tab with the live page, one image for each tenth of a second."""
    images = []
    tab.add_style_tag(content=SLOWLY)
    for pressed, tenths in SCENES:
        moving = 1
        if pressed:
            tab.click(pressed)
            tab.mouse.move(0, 0)
            moving = MOVING
        for _ in range(moving):
            images.append(Image.open(io.BytesIO(tab.screenshot())).convert("RGB"))
            tab.wait_for_timeout(SHOT)
        images += [images[-1]] * (tenths - moving)
    return images


def chromium_path() -> str | None:
    """Returns where Chromium is installed, under any of its names; None if it is not."""
    names = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    return next(filter(None, names), None)


@contextmanager
def open_tab(address: str) -> Iterator["Page"]:
    """Within the block the page is open in a browser.

    Raises ImportError, with the command that mends it, if playwright or a Chromium is missing.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ImportError('the film needs: pip install -e ".[browser]"') from error
    chromium = chromium_path()
    if chromium is None:
        raise ImportError("the film needs Chromium (Debian, Ubuntu: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE, color_scheme="light")
        tab.goto(address)
        yield tab
        browser.close()


def in_the_same_colors(images: list[Image.Image]) -> list[np.ndarray]:
    """Returns images (height, width, 3) in the colours of the last one and the first one."""
    both = Image.new("RGB", (SIZE["width"], 2 * SIZE["height"]))
    both.paste(images[0], (0, 0))
    both.paste(images[-1], (0, SIZE["height"]))
    palette = both.quantize(COLORS, method=Image.Quantize.MEDIANCUT)
    few = {}
    for image in images:
        if id(image) not in few:
            flat = image.quantize(palette=palette, dither=Image.Dither.NONE)
            few[id(image)] = np.asarray(flat.convert("RGB"))
    return [few[id(image)] for image in images]


def film(output_dir: Path) -> None:
    """Writes the film of the page that lies below the output folder."""
    page = output_dir / paths.EXPLORER
    with open_tab(page.resolve().as_uri()) as tab:
        images = in_the_same_colors(frames_of(tab))
    path = output_dir / paths.ANIMATIONS / NAME
    save_animation(images, path, caption=CAPTION, seconds_per_frame=SECONDS_PER_FRAME)
