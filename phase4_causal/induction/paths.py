"""By which path does the answer reach the model's guess?

    clean       cat RED on swam BIG up ... | cat RED ?       on: it came behind RED
    corrupted   cat BIG on swam RED up ... | cat RED ?       up

Two words of the first copy are exchanged. Patching (phase 3) puts what a part gave for the clean text into the reading
of the corrupted one, path patching into one receiver only (Wang et al. 2022; Goldowsky-Dill et al. 2023). How much of
the clean answer's lead is back?
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase3_visualization.circuits.patching import Pairs, Part, Patching, put_in
from phase4_causal.induction.induction_scores import LENGTH, PERIODS, repeated_sequences
from phase4_causal.induction.models import MATCHES, chosen_by, generator, induction_model
from shared import charts
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, GREY, PURPLE

TEXTS = 200


def sample_texts(count: int, draw: torch.Generator) -> Pairs:
    """Texts as in training; the question is the first of the two exchanged words, in the second copy."""
    rows = []
    for _ in range(count):
        period = int(torch.randint(PERIODS[0], PERIODS[1] + 1, (1,), generator=draw))
        clean = repeated_sequences(1, draw, (period, period), LENGTH - 1)[0]
        places = [(a, b) for a in range(period - 1) for b in range(period - 1) if abs(a - b) >= 2]
        a, b = places[int(torch.randint(len(places), (1,), generator=draw))]
        corrupted = clean.clone()
        corrupted[[a, b]] = clean[[b, a]]
        rows.append((clean, corrupted, torch.tensor(period + a), clean[[a + 1, b + 1]]))
    return Pairs(*map(torch.stack, zip(*rows, strict=True)))


def by_part(patching: Patching) -> dict[str, float]:
    """Activation patching: all of layer 1 by its patterns or by its values."""
    clean, corrupted = patching.clean, patching.corrupted
    return {
        "layer 1, patterns alone": patching.share(patching.heads(1, corrupted.outputs(1, clean.weights[1]))),
        "layer 1, values alone": patching.share(patching.heads(1, clean.outputs(1, corrupted.weights[1]))),
    }


def by_path(patching: Patching, receivers: Tensor) -> dict[str, float]:
    """Path patching: from all heads of layer 0 to the queries, keys or values of some heads of layer 1, bool (H,).

    On its way what layer 0's heads give is read by the feed-forward network of their layer, too. Straight: the network
    keeps to the corrupted text. By the network: it alone reads what the heads gave for the clean one.
    """
    network, receiver = patching.model.blocks[0].feed_forward, patching.model.blocks[1].attention
    sent = patching.heads(0, patching.clean.outputs(0))
    before, after = patching.given(network), patching.given(network, sent)

    def through(part: nn.Linear, *parts: Part) -> float:
        return patching.share((part, put_in(patching.given(part, *parts), receivers[None, None]), False))

    return {
        "queries": through(receiver.w_q, sent),
        "keys": through(receiver.w_k, sent),
        "values": through(receiver.w_v, sent),
        "past layer 1": patching.share(sent, patching.heads(1, patching.corrupted.outputs(1))),
        "keys, straight": through(receiver.w_k, sent, (network, lambda _: before, False)),
        "keys, by the network": through(receiver.w_k, (network, lambda _: after, False)),
    }


def measure(run: Run) -> Numbers:
    """Share of the lead of the clean answer that is back; induction heads score MATCHES or more."""
    model = induction_model(run.options, run.seed)
    patching = Patching(model, sample_texts(TEXTS, generator(run.seed, 10)))
    return by_path(patching, chosen_by(model, run.seed)[1] >= MATCHES) | by_part(patching)


CLAIMS = (
    Claim(
        id="induction-key-path",
        text="The word before reaches the guess by one path: from layer 0 to the keys of the induction heads",
        source="Elhage et al. 2021; path patching as in Wang et al. 2022, feed-forward networks on the way",
        rule="to their keys 0.8 or more; to their queries, to their values, and past layer 1 at most 0.1 each",
        holds=lambda n: n["keys"] >= 0.8 and max(n["queries"], n["values"], n["past layer 1"]) <= 0.1,
        oracle={"keys": 0.95, "*": 0.0},
        null={"past layer 1": 0.1, "*": 0.3},
    ),
    Claim(
        id="induction-pattern-used",
        text="The pattern of the induction heads is used: it decides what is said, their values do not",
        source="Elhage et al. 2021; Olsson et al. 2022",
        rule="layer 1 with the patterns of the clean text restores 0.8 or more, with its values 0.1 or less",
        holds=lambda n: n["layer 1, patterns alone"] >= 0.8 and n["layer 1, values alone"] <= 0.1,
        oracle={"layer 1, patterns alone": 1.0, "layer 1, values alone": 0.0},
        null={"layer 1, *": 0.5},
    ),
)


def picture(results: Results) -> Figure:
    """What each path carries from layer 0, and what layer 1 carries by its patterns and by its values."""
    fig, ax = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
    names = results.mean
    colors = {name: PURPLE if "layer 1, " in name else BLUE if "keys" in name else GREY for name in names}
    charts.bars(ax, {name: results.each(name) for name in names}, colors, number="{:z.2f}")
    ax.set_xlabel("share of the answer restored, by one path from layer 0 to ..., or by a part of layer 1")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Nearly all of the answer comes back through the keys of the induction heads",
    note=f"{TEXTS} pairs of texts · network: the feed-forward network of layer 0",
    answer="Through the keys {n[keys]:.2f} of the answer is back; through the queries {n[queries]:z.2f}, through the "
    "values {n[values]:.2f}",
)

if __name__ == "__main__":
    main.run()
