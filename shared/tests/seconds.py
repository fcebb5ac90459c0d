"""Where do the seconds of a run go?  ./run_all.sh --time

CPU seconds, user and system, of all processes, since those of a clock depend on what else a machine does. In each
process a thread wakes up fifty times a second and gives what was spent since to what the main thread is doing. Seconds
differ from machine to machine, too: a unit is what a fixed small training takes on this one.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

EVERY = 0.02  # seconds
PLACES = {  # kind -> the files whose code it is; all else is measuring
    "training": ("optimization.py",),
    "drawing": ("matplotlib", "PIL", "seaborn", "visualization_utils.py", "charts.py"),
}
KINDS = (*PLACES, "measuring", "imports")


def kind_of(files: list[str]) -> str:
    """What somebody is doing whose calls, the innermost first, are in these files."""
    if any(file.startswith("<frozen importlib") for file in files):
        return "imports"
    kinds = (kind for file in files for kind, places in PLACES.items() if any(place in file for place in places))
    return next(kinds, "measuring")


def _look(spent: Counter[str], thread: int) -> None:
    while True:
        frame, files = sys._current_frames().get(thread), []
        while frame:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        spent[kind_of(files)] += time.process_time() - spent.total()
        time.sleep(EVERY)


def watch(spent: Counter[str]) -> None:
    """From now on CPU seconds of this process are counted, by kind; what it has spent so far were imports."""
    spent.clear()
    spent["imports"] = time.process_time()
    threading.Thread(target=_look, args=[spent, threading.get_ident()], daemon=True).start()


def unit() -> float:
    """CPU seconds of 300 steps of a small network by PyTorch alone."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model, words = nn.Sequential(nn.Embedding(97, 64), encoder, nn.Linear(64, 97)), torch.randint(97, (64, 14))
    optimizer, starts = torch.optim.SGD(model.parameters(), 0.01), []
    for _ in range(320):
        starts.append(time.process_time())
        optimizer.zero_grad()
        F.cross_entropy(model(words).mT, words).backward()
        optimizer.step()
    return time.process_time() - starts[20]  # the first are slower


def table(scripts: Mapping[str, Mapping[str, float]]) -> str:
    """A line for each script, the most expensive first; what was spent outside of them; and the sum in units."""
    frame = pd.DataFrame.from_dict(scripts, orient="index", columns=KINDS).fillna(0.0)
    frame["all"], total = frame.sum(axis=1), sum(os.times()[:4])  # of this process, and of those that have ended
    frame = frame.sort_values("all", ascending=False)
    frame.loc["all scripts"] = frame.sum()
    frame.loc["starting processes, pages", "all"] = total - frame.loc["all scripts", "all"]
    frame["units"] = frame["all"] / unit()
    lines = frame.to_string(float_format="{:.1f}".format, na_rep="")
    return f"CPU seconds, and units of {frame['all'].iloc[0] / frame['units'].iloc[0]:.2f} s\n{lines}"
