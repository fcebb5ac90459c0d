"""Can one see in a model why it copies?

In layer 0 a previous-token head should copy to each place the word before it. In layer 1 an
induction head should look there for its own word, and say the word that it looks at. Both of its
tables must then be dark on the diagonal, and it must read for its keys what the first head writes
(word_tables.py). The first head must be needed, and bring the answer by the path of the keys: path
patching puts what it gave for another text into one receiver only.

    python phase4_causal/induction/circuits.py
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase3_visualization.circuits.patching import Patching
from phase4_causal.induction.induction_scores import (
    HEADS_A_LAYER,
    NAMED_FROM,
    NUM_SEQUENCES,
    SYMBOLS,
    TRAINING_STEPS,
    exchanged_words,
    generator,
    quality_without,
    repeated_sequences,
    scores_for_naming,
    train_repeater,
    untrained_repeater,
)
from phase4_causal.induction.word_tables import (
    TASK_WORDS,
    centred,
    compositions,
    looks_for,
    on_diagonal,
    says,
)
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import composed
from shared.toy_language import decode
from shared.toy_model import ToyTransformer
from shared.visualization_utils import HIDDEN, WEIGHT_MAP, WIDE

DRAWN = 10  # of the 64 words
RANDOM = 100  # pairs of random matrices
TEXTS = 200  # in which words are exchanged


def largest_by_chance(seed: int) -> float:
    """Returns the largest composition of random matrices, of the shape and rank of a head's."""
    shape = (4, RANDOM, 64, 64 // HEADS_A_LAYER)
    a, b, c, d = torch.randn(shape, generator=generator(seed, 9))
    pairs = zip(a @ b.mT, c @ d.mT, strict=True)
    return max(composed(one, other) for one, other in pairs)


def trained_repeater(run: Run, *, networks: bool) -> ToyTransformer:
    """Returns the trained model of a seed, with feed-forward networks or without."""
    model = untrained_repeater(run.seed, networks=networks)
    return train_repeater(model, run.seed, run.steps(TRAINING_STEPS))


def by_path(patching: Patching, senders: Tensor, receivers: Tensor) -> Numbers:
    """Returns the share of the answer that is back, by paths from heads of layer 0 to those of 1.

    senders, receivers: bool (H,).
    """
    attention = patching.model.blocks[1].attention
    sent = patching.patch_of_heads(0, patching.clean.outputs(0), senders[None, None])
    rest = patching.patch_of_heads(1, patching.corrupted.outputs(1))
    return {
        "by path, queries": patching.through(attention.w_q, receivers, sent),
        "by path, keys": patching.through(attention.w_k, receivers, sent),
        "by path, values": patching.through(attention.w_v, receivers, sent),
        "by path, past layer 1": patching.restored(sent, rest),
    }


def measure(run: Run) -> Numbers:
    """Tables in shares of the 64 words, by chance 1/64; shares of wrong answers, and of an answer.

    With feed-forward networks the head of layer 1 counts that does best.
    """
    model = trained_repeater(run, networks=False)
    before, matching = scores_for_naming(model, run.seed)
    previous_head = int(before.argmax())
    induction_head = int(matching.argmax())
    previous = before >= NAMED_FROM
    match = looks_for(model, induction_head)
    run.shown["match"] = match
    networks = trained_repeater(run, networks=True)
    with_networks = [on_diagonal(looks_for(networks, head)) for head in range(HEADS_A_LAYER)]
    tokens = repeated_sequences(NUM_SEQUENCES, generator(run.seed, 1))
    numbers = {
        "looks for the word before": on_diagonal(match),
        "says the word it looks at": on_diagonal(says(model, induction_head)),
        "looks for the word before with feed-forward": max(with_networks),
        "previous-token heads": int(previous.sum()),
        "wrong without previous-token heads": quality_without(model, tokens, 0, previous).wrong,
        "wrong without the others": quality_without(model, tokens, 0, ~previous).wrong,
        "composition, random": largest_by_chance(run.seed),
    }
    for reader, share in compositions(model, previous_head, induction_head).items():
        numbers[f"composition, {reader}"] = share
    patching = Patching(model, exchanged_words(TEXTS, generator(run.seed, 10)))
    return numbers | by_path(patching, previous, matching >= NAMED_FROM)


CLAIMS = (
    Claim(
        id="induction-key-path",
        text="The word before reaches the guess by one path: from the previous-token heads to the "
        "keys of the induction heads. No other heads of the first layer are needed. We asked it "
        "of two layers of four heads, by exchanging words of the first copy. That leaves the word "
        "that asks as it is, so little can go through queries in any case.",
        source="Elhage et al. 2021; Olsson et al. 2022; we patch paths as Wang et al. 2022 do",
        rule="0.8 or more of the answer goes through the keys of the induction heads, and at most "
        "0.1 each through their queries, through their values, and past layer 1; and if half of "
        f"the answers or more are wrong without the heads that have {NAMED_FROM} of their weight "
        "on the word before (mean ablation), and at most 0.1 without all others",
        effect=lambda n: n["by path, keys"],
        at_least=0.8,
        also=lambda n: (
            max(n["by path, queries"], n["by path, values"], n["by path, past layer 1"]) <= 0.1
            and n["wrong without previous-token heads"] >= 0.5
            and n["wrong without the others"] <= 0.1
        ),
        explored=10,
        oracle={"by path, keys": 0.95, "wrong without previous-token heads": 0.9, "*": 0.0},
        null={"by path, past layer 1": 0.1, "by path, *": 0.3, "*": 0.1},
        revised="at first there were two claims, one for the path and one for the ablation",
    ),
)


def picture(results: Results) -> Figure:
    """Draws for which words the induction head looks: the first words of its table.

    White: one deviation above the table's mean; dark: three.
    """
    values = centred(results.shown["match"])
    table = (values / values.std())[:DRAWN, :DRAWN]
    fig, ax = plt.subplots(figsize=(WIDE, 4.4), layout="constrained")
    style = {"edgecolors": HIDDEN, "linewidth": 0.8}
    ax.pcolormesh(table.numpy(), vmin=1, vmax=3, cmap=WEIGHT_MAP, **style)
    middles = [cell + 0.5 for cell in range(DRAWN)]
    words = decode(TASK_WORDS[:DRAWN])
    ax.set_xticks(middles, words, rotation=90)
    ax.set_yticks(middles, words)
    ax.tick_params(length=0, labelsize=11)
    ax.spines[:].set_visible(False)
    ax.set(xlabel="the word before the place looked at", ylabel="the word that looks")
    ax.set(ylim=(DRAWN, 0), aspect="equal")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="The weights alone tell that an induction head\nlooks for what came after its own word",
    note="first row: “the” looks for a place after “the”\n"
    f"{DRAWN} of {SYMBOLS} words · trained {TRAINING_STEPS} steps",
    answer="One can ask the weights of attention: they match the word before for "
    "{n[looks for the word before]:.0%} of the words. With the feed-forward networks counted in, "
    "it is {n[looks for the word before with feed-forward]:.0%}",
)

if __name__ == "__main__":
    main.run()
