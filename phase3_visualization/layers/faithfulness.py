"""Which method finds the word that a guess depends on?

A noun or a determiner is hidden, and the trained model of phase 2 guesses it. A method gives every other word a number,
read in the row of the hidden word; we ask where the largest is. The word that mattered is the one that costs most if it
is hidden, too: the model, and a perfect reader of the grammar (readers.py). Only sentences in which both name the same
word are asked. Whether an answer lies on a word that the grammar relates to the hidden one is plausibility, and another
question (Jacovi & Goldberg 2020).
"""

from collections.abc import Sequence
from statistics import fmean as mean

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from phase3_visualization.layers.readers import (
    TRIED_ON,
    Case,
    first,
    gradient_lengths,
    hide,
    leave_one_out,
    make_cases,
    perfect_reader,
)
from shared import charts, training
from shared.attention_utils import attention_rollout
from shared.evidence.claims import Above, Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.head_statistics import added_by_heads
from shared.toy_model import ToyTransformer
from shared.visualization_utils import BLUE, GREY, INK, QUIET

SENTENCES, QUICK_SENTENCES = 300, 32
RELIABLE = 0.9  # of the sentences: more is asked of weights that show what a guess depends on
COSTS = 0.02  # nats: a word that costs the perfect reader less does not matter
METHODS = {  # and what the picture calls them
    "raw weights": "last layer's weights",
    "norm-weighted": "last layer, weight ×\nlength of the value",
    "rollout": "rollout: layers multiplied,\nwith residual",
    "gradient": "gradient of the loss",
    "nearest word": "nearest word",
}
OF_WEIGHTS = ("raw weights", "norm-weighted", "rollout")


def last_layer_norms(model: ToyTransformer, tokens: Tensor, hidden: int) -> Tensor:
    """The length of what each word adds to the hidden one in the last layer, all heads together: (1, T) -> (T,)."""
    x = model.embed(tokens)
    for block in model.blocks[:-1]:
        x, _ = block(x)
    attention: MultiHeadAttention = model.blocks[-1].attention
    normed = model.blocks[-1].attention_norm(x)
    _, weights = attention(normed)
    value = split_heads(attention.w_v(normed), attention.num_heads)  # (1, T, d_model) -> (1, H, T, d_v)
    weighted = weights[0, :, hidden, :, None] * value[0]  # (H, T, d_v): one row of weights for each head
    return added_by_heads(attention, weighted).sum(dim=0).norm(dim=-1)  # (H, T, d_model) -> (T, d_model) -> (T,)


@torch.no_grad()
def answers(model: ToyTransformer, case: Case) -> dict[str, Tensor]:
    """Method -> a number for each word (T,); that of the hidden word itself is not looked at."""
    tokens = torch.tensor([hide(case.words, case.hidden)], device=model.positions.device)
    layers = [weights[0].double().cpu() for weights in model(tokens)[1]]
    return {
        "raw weights": layers[-1].mean(dim=0)[case.hidden],  # heads averaged
        "norm-weighted": last_layer_norms(model, tokens, case.hidden).double().cpu(),
        "rollout": attention_rollout(layers)[case.hidden],
        "gradient": gradient_lengths(model, case),
        "nearest word": -(torch.arange(len(case.words)) - case.hidden).abs().double(),
        "leave-one-out": leave_one_out(model, case),
    }


def share(chosen: frozenset[int], wanted: frozenset[int]) -> float:
    """How much of a choice is right: with a tie, the share of its positions that are wanted."""
    return len(chosen & wanted) / len(chosen)


def score_methods(model: ToyTransformer, cases: Sequence[Case]) -> Numbers:
    """How often each method's largest number is right, by three measures, as "method, measure".

    found: on the word that mattered, where both readers agree. perfect reader's word: on that of the perfect reader
    alone, agreed or not. plausible: on a word that the grammar relates to the hidden one.
    """
    right: dict[str, list[float]] = {}
    asked = agreed = 0
    for case in tqdm(cases, desc="sentences", leave=False, disable=None):
        costs = perfect_reader(case)
        if costs.max() < COSTS:
            continue
        chosen = {name: first(values, case) for name, values in answers(model, case).items()}
        chosen |= {"perfect reader": first(costs, case), "chance": frozenset(case.others)}
        wanted = {"perfect reader's word": chosen["perfect reader"], "plausible": case.related}
        asked += 1
        if chosen["leave-one-out"] <= chosen["perfect reader"]:
            agreed += 1
            wanted["found"] = chosen["perfect reader"]
        for name, guess in chosen.items():
            for measure, words in wanted.items():
                right.setdefault(f"{name}, {measure}", []).append(share(guess, words))
    if not agreed:
        raise ValueError(f"none of {len(cases)} sentences can be asked: the model and the grammar agree on no word")
    found = {name: mean(shares) for name, shares in right.items()}
    found["rollout minus raw weights"] = (
        found["rollout, perfect reader's word"] - found["raw weights, perfect reader's word"]
    )
    return found | {"sentences asked": asked, "both readers agree": agreed}


def measure(run: Run) -> Numbers:
    """Share of held-out sentences; beside chance, the nearest word, and the two readers, who are the ceiling."""
    trained = load_multi_head_model(run.options, run.seed)
    sentences = training.corpus()[1][TRIED_ON:][: QUICK_SENTENCES if run.options.quick else SENTENCES]
    run.shown["model"] = trained.label
    return score_methods(trained.model, make_cases(sentences))


CLAIMS = (
    Claim(
        id="faithful-weights",
        text="Attention weights show which words influence a guess",
        source="course notes, Why Visualization Matters; Jain & Wallace 2019 against, Wiegreffe & Pinter 2019 for it",
        rule="the largest raw weight of the last layer, heads averaged, lies on the word that mattered most in more "
        "than 0.9 of the sentences",
        holds=Above(lambda n: n["raw weights, found"], RELIABLE),
        oracle={"raw weights, found": 1.0},
        null={"raw weights, found": 0.16},
        headline=True,
    ),
    Claim(
        id="faithful-rollout",
        text="Rollout shows better than raw weights which words an output comes from",
        source="Abnar & Zuidema 2020, of models with more layers than the two here",
        rule="it finds the word that a perfect reader misses most more often than raw weights do",
        holds=Above(lambda n: n["rollout minus raw weights"], 0.0),
        oracle={"rollout minus raw weights": 0.3},
        null={"rollout minus raw weights": 0.0},
    ),
)


def picture(results: Results) -> Figure:
    """A bar for each method, the best on top, between chance and what the rule asks for."""
    names = sorted(METHODS, key=lambda name: -results.mean[f"{name}, found"])
    fig, ax = plt.subplots(figsize=(8.6, 4.6), layout="constrained")
    values = {METHODS[name]: results.each(f"{name}, found") for name in names}
    colors = {METHODS[name]: BLUE if name in OF_WEIGHTS else GREY for name in names}
    charts.bars(ax, values, colors, guess=results.mean["chance, found"], guess_name="by chance", number="{:.0%}")
    ax.set_xlim(0, 1.1)  # whatever was found: the line of the rule stays inside
    ax.axvline(RELIABLE, color=INK, linewidth=1, linestyle=":")
    ax.text(RELIABLE, len(names) - 0.4, f"reliable: {RELIABLE:.0%}", ha="center", va="top", color=QUIET)
    ax.set_title("sentences in which the word that mattered comes first", color=QUIET)
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Attention weights often find the word that mattered, but not reliably",
    note="{shown[model]} · {n[both readers agree]:.0f} held-out sentences, on whose word the model and a perfect "
    "reader agree\nblue: made of attention weights; grey: of something else",
    answer="The largest raw weight lies on the word that mattered in {n[raw weights, found]:.0%} of the sentences "
    "(by chance {n[chance, found]:.0%}), on a related word in {n[raw weights, plausible]:.0%}",
)

if __name__ == "__main__":
    main.run()
