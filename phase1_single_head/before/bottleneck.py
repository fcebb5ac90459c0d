"""Why was attention invented, and what does one vector lose?

The recurrent readers and writers of seq2seq.py read random letters and write them again in the same
order. Without attention all that the writer knows is one vector of 64 numbers. Are the letters lost
that were read first? Readers are trained on strings of 4 to 24 letters, and one without attention
on 24 letters alone: at mixed lengths place 4 is trained in every batch, place 24 in one of 21.
After each letter the writer is told the right one, or reads its own.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.before.seq2seq import LuongSeq2Seq, Seq2Seq
from shared import charts
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.optimization import fit
from shared.visualization_utils import BLUE, GREEN, GREY

LETTERS = 12  # how many there are
FIRST_INPUT = LETTERS  # what the writer reads before it has written anything
SHORTEST, LONGEST = 4, 24
LENGTHS = (4, 8, 12, 16, 24)  # of the strings that are tested
STEPS, NUM_TEST = 250, 100
MODELS = {  # and the shortest strings that each is trained on
    "none, mixed": (Seq2Seq, SHORTEST),
    "Luong, mixed": (LuongSeq2Seq, SHORTEST),
    "none, 24": (Seq2Seq, LONGEST),
}
QUARTERS = ("first", "second", "third", "last")


def draw_strings(number: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random strings, and what the writer reads while it writes them; each (number, length)."""
    strings = torch.randint(LETTERS, (number, length), generator=generator)
    start = torch.full((number, 1), FIRST_INPUT)
    return strings, torch.cat([start, strings[:, :-1]], dim=1)


def train_writer(name: str, run: Run) -> Seq2Seq:
    """Train one of MODELS on strings of random length."""
    make, shortest = MODELS[name]
    torch.manual_seed(run.seed)
    generator = torch.Generator().manual_seed(run.seed)
    model = make(LETTERS)

    def loss_of_step(_: int) -> Tensor:
        length = int(torch.randint(shortest, LONGEST + 1, (1,), generator=generator))
        strings, previous = draw_strings(64, length, generator)
        logits, _ = model(strings, previous)
        return F.cross_entropy(logits.flatten(0, 1), strings.flatten())

    progress = f"writing strings, {name}"
    fit(model, loss_of_step, run.steps(STEPS), matrix_rate=None, rate=2e-2, progress=progress)
    return model


@torch.no_grad()
def accuracy_by_place(model: Seq2Seq, length: int, *, own: bool = False) -> Tensor:
    """Share of letters right at each place (length,).

    own: the writer reads the letters that it has written itself, not the right ones.
    """
    generator = torch.Generator().manual_seed(10**6 + length)
    strings, previous = draw_strings(NUM_TEST, length, generator)
    if own:
        for place in range(1, length):
            logits, _ = model(strings, previous)
            previous[:, place] = logits[:, place - 1].argmax(dim=-1)
    logits, _ = model(strings, previous)
    return (logits.argmax(dim=-1) == strings).float().mean(dim=0)


def measure(run: Run) -> Numbers:
    """Share of letters right in strings not trained on: by length, and of 24 letters by quarter."""
    models = {name: train_writer(name, run) for name in MODELS}
    found = {}
    for name in ("none", "Luong"):
        for length in LENGTHS:
            by_place = accuracy_by_place(models[f"{name}, mixed"], length)
            found[f"{name}, {length} letters"] = by_place.mean().item()
    for label, name in {"mixed lengths": "none, mixed", "24 alone": "none, 24"}.items():
        for way, own in {"": False, " reads its own": True}.items():
            by_place = accuracy_by_place(models[name], LONGEST, own=own)
            for quarter, part in zip(QUARTERS, by_place.chunk(4), strict=True):
                found[f"{label}{way}, {quarter}"] = part.mean().item()
        found[f"{label}, first minus last"] = found[f"{label}, first"] - found[f"{label}, last"]
    return found


CLAIMS = (
    Claim(
        id="I134",
        text="A vector of fixed size is a bottleneck for long strings; attention opens it "
        "(recurrent networks of 64 numbers, the same 250 steps)",
        source="Bahdanau et al. 2014, section 1; Cho et al. 2014",
        rule="at 24 letters at least 0.3 more are right with attention, 0.8 or more; without it at "
        "least 0.3 fewer than at 4 letters",
        effect=lambda n: n["Luong, 24 letters"] - n["none, 24 letters"],
        at_least=0.3,
        also=lambda n: (
            n["Luong, 24 letters"] >= 0.8 and n["none, 24 letters"] <= n["none, 4 letters"] - 0.3
        ),
        oracle={"none, 24 letters": 0.4, "*": 1.0},
        null={"none, 4 letters": 1.0, "*": 0.4},
        revised="was 0.93 with attention and 0.55 without, and written backwards",
    ),
    Claim(
        id="C174",
        text="Without attention the letters read first are often forgotten by the time the "
        "writing starts",
        source="course notes, 24.1",
        rule="trained at mixed lengths or at 24 letters alone, the first quarter is at least 0.1 "
        "below the last",
        effect=lambda n: (
            -min(n["mixed lengths, first minus last"], n["24 alone, first minus last"])
        ),
        at_least=0.1,
        oracle={"*": -0.3},
        null={"*": 0.0},
        revised="was measured on strings written backwards alone",
    ),
    Claim(
        id="quarters-lengths",
        text="That one vector loses the end of a string more than its beginning comes mostly from "
        "training at mixed lengths, where late places are rare",
        source="our question",
        rule="trained at 24 letters alone, the first quarter's lead over the last is at most half "
        "as large as at mixed lengths, where it is 0.1 or more",
        effect=lambda n: n["24 alone, first minus last"] / n["mixed lengths, first minus last"],
        at_most=0.5,
        also=lambda n: n["mixed lengths, first minus last"] >= 0.1,
        oracle={"mixed lengths, *": 0.3, "24 alone, *": 0.0},
        null={"*": 0.3},
        revised="did not ask for a lead of 0.1 at mixed lengths",
    ),
)


def picture(found: Results) -> Figure:
    """Left: letters right against length. Right: without attention, by place in the string."""
    sizes = {"figsize": (9.6, 4.4), "subplot_kw": {"ylim": (0, 1.03)}}
    fig, (left, right) = plt.subplots(1, 2, layout="constrained", **sizes)
    columns = [f"{length} letters" for length in LENGTHS]
    rows = {"no attention": found.row("none", columns), "attention": found.row("Luong", columns)}
    colors = {"no attention": GREY, "attention": BLUE}
    charts.lines(left, LENGTHS, rows, colors, guess=1 / LETTERS)
    left.set(xlabel="letters to write again", ylabel="letters right")
    rows = {f"at {way}": found.row(way, QUARTERS) for way in ("mixed lengths", "24 alone")}
    colors = {"at mixed lengths": GREY, "at 24 alone": GREEN}
    charts.lines(right, (1, 2, 3, 4), rows, colors, guess=1 / LETTERS)
    right.set_xticks((1, 2, 3, 4), QUARTERS)
    right.set_xlabel("quarter of 24 letters, by training")
    right.set_title("no attention: the beginning is lost least")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Without attention most of a long string is lost",
    note=f"trained {STEPS} steps · each letter after the right ones",
    answer="Of 24 letters {n[none, 24 letters]:.0%} pass one vector of 64 numbers, "
    "{n[Luong, 24 letters]:.0%} pass with attention; of the first quarter "
    "{n[24 alone, first]:.0%} and of the last {n[24 alone, last]:.0%}, trained at 24 letters alone",
)

if __name__ == "__main__":
    main.run()
