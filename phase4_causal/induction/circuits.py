"""Can one see in a model why it copies?

In layer 0 a previous-token head should copy to each place the word before it. In layer 1 an induction head should look
there for its own word, and say the word that it looks at. Both of its tables must then be dark on the diagonal, and it
must read for its keys what the first head writes (word_tables.py). The first head must be needed, and bring the answer
by the path of the keys: path patching puts what it gave for another text into one receiver only.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from phase3_visualization.circuits.patching import Patching
from phase4_causal.induction.induction_scores import exchanged_words, repeated_sequences, without
from phase4_causal.induction.models import HEADS, NAMED, NUM_TEST, STEPS, generator, head_scores, train, untrained
from phase4_causal.induction.word_tables import centred, compositions, copying_score, looks_for, on_diagonal, says
from shared import charts
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import composed
from shared.toy_model import in_double
from shared.visualization_utils import BLUE, GREY, WEIGHT_MAP

DRAWN, RANDOM, TEXTS = 32, 100, 200  # of the 64 words; pairs of random matrices; texts in which words are exchanged


def largest_by_chance(seed: int) -> float:
    """The largest composition of pairs of random matrices, of the shape and rank of a head's."""
    a, b, c, d = torch.randn(4, RANDOM, 64, 64 // HEADS, generator=generator(seed, 9))
    return max(composed(*pair) for pair in zip(a @ b.mT, c @ d.mT, strict=True))


def by_path(patching: Patching, senders: Tensor, receivers: Tensor) -> dict[str, float]:
    """Share of the clean answer that is back, by paths from heads of layer 0 to heads of layer 1, bool (H,) each."""
    attention = patching.model.blocks[1].attention
    sent = patching.heads(0, patching.clean.outputs(0), senders[None, None])
    return {
        "path by queries": patching.through(attention.w_q, receivers, sent),
        "path by keys": patching.through(attention.w_k, receivers, sent),
        "path by values": patching.through(attention.w_v, receivers, sent),
        "path past layer 1": patching.share(sent, patching.heads(1, patching.corrupted.outputs(1))),
    }


def measure(run: Run) -> Numbers:
    """Tables in shares of the 64 words, by chance 1/64; what is left without heads; shares of an answer by path.

    With feed-forward networks the head of layer 1 counts that does best.
    """
    model, networks = (
        in_double(train(untrained(run.seed, networks=there), run.seed, run.steps(STEPS))) for there in (False, True)
    )
    before, matching = head_scores(model, run.seed)
    first, second, previous = int(before.argmax()), int(matching.argmax()), before >= NAMED
    match, said = looks_for(model, second), says(model, second)
    run.shown.update(match=match, said=said)
    with_networks = max(on_diagonal(looks_for(networks, head)) for head in range(HEADS))
    numbers = {
        "looks for the word before": on_diagonal(match),
        "says the word it looks at": on_diagonal(said),
        "copying score": copying_score(said),
        "looks for the word before, with feed-forward networks": with_networks,
        **compositions(model, first, second),
        "random matrices, largest": largest_by_chance(run.seed),
        "previous-token heads": int(previous.sum()),
        "weight on the word before": before[first].item(),
    }
    tokens = repeated_sequences(NUM_TEST, generator(run.seed, 1))
    for name, heads in {"without them": previous, "without the others": ~previous}.items():
        left = without(model, tokens, 0, heads)
        numbers |= {f"{name}, {unit}": number for unit, number in left.items()}
    patching = Patching(model, exchanged_words(TEXTS, generator(run.seed, 10)))
    return numbers | by_path(patching, previous, matching >= NAMED)


CLAIMS = (
    Claim(
        id="induction-weights-alone",
        text="It can be read off the weights that a head looks for the word before, by its own word, and says the word "
        "that it looks at",
        source="Elhage et al. 2021, sections on QK and OV circuits",
        rule="both tables of the best induction head are largest on the diagonal for 0.9 of the words, its copying "
        "score is 0.9 or more",
        holds=lambda n: min(n["looks for the word before"], n["says the word it looks at"], n["copying score"]) >= 0.9,
        oracle={"*": 1.0},
        null={"*": 0.02},
        headline=True,
    ),
    Claim(
        id="induction-k-composition",
        text="What the previous-token head writes the induction head reads for its keys, not for queries or values",
        source="Elhage et al. 2021, composition scores",
        rule=f"the K-composition of the best head of each kind is above that of all {RANDOM} pairs of random matrices; "
        "Q and V are not",
        holds=lambda n: n["K"] > n["random matrices, largest"] >= max(n["Q"], n["V"]),
        oracle={"K": 0.2, "Q": 0.05, "V": 0.05, "*": 0.15},
        null={"*": 0.15},
    ),
    Claim(
        id="induction-previous-token",
        text="Of the first layer the model needs the heads that look at the word before, and no other",
        source="Elhage et al. 2021; Olsson et al. 2022",
        rule=f"without the heads of layer 0 with {NAMED} of their weight there (mean ablation) half of the answers are "
        "wrong, or more; without all others at most 0.1",
        holds=lambda n: n["without them, wrong"] >= 0.5 and n["without the others, wrong"] <= 0.1,
        oracle={"without them, *": 0.9, "without the others, *": 0.0},
        null={"*": 0.1},
    ),
    Claim(
        id="induction-key-path",
        text="The word before reaches the guess by one path: from previous-token heads to the keys of induction heads",
        source="Elhage et al. 2021; path patching as in Wang et al. 2022",
        rule="to their keys 0.8 or more; to their queries, to their values, and past layer 1 at most 0.1 each",
        holds=lambda n: (
            n["path by keys"] >= 0.8 and max(n["path by queries"], n["path by values"], n["path past layer 1"]) <= 0.1
        ),
        oracle={"path by keys": 0.95, "*": 0.0},
        null={"path past layer 1": 0.1, "*": 0.3},
    ),
)


def draw_table(ax: Axes, table: Tensor, title: str, rows: str, columns: str) -> None:
    """The first words of a table, from one (white) to three standard deviations above the mean (dark)."""
    values = centred(table)
    ax.imshow((values / values.std())[:DRAWN, :DRAWN].numpy(), vmin=1, vmax=3, cmap=WEIGHT_MAP)
    ax.set(xticks=[], yticks=[], ylabel=rows, xlabel=columns)
    ax.set_title(title, fontsize=12)


def picture(results: Results) -> Figure:
    """Both tables of the best induction head, and what it reads of the best previous-token head."""
    fig, (match, said, parts) = plt.subplots(1, 3, figsize=(10, 4.4), layout="constrained")
    draw_table(match, results.shown["match"], "looks for:\nthe word before", "word of the query", "word before the key")
    draw_table(said, results.shown["said"], "says:\nthe word it looks at", "word it looks at", "word it says")
    rows = {name: results.each(name[0].upper()) for name in ("queries", "keys", "values")}
    chance = results.mean["random matrices, largest"]
    charts.bars(parts, rows, {"queries": GREY, "keys": BLUE, "values": GREY}, guess=chance, guess_name="random")
    parts.set_title("reads the previous-token head\nfor its keys", fontsize=12)
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="A circuit read off the weights: look for the word before, say the word that is there",
    note=f"best head of layer 1 · {DRAWN} of 64 words · white: average, dark: far above average",
    answer="The word before is matched for {n[looks for the word before]:.0%} of the words, by weights alone; with "
    "feed-forward networks for {n[looks for the word before, with feed-forward networks]:.0%}",
)

if __name__ == "__main__":
    main.run()
