"""What does a model learn that is trained without the causal mask?

Then the next word stands in the input, one place to the right. The same model is trained with the
mask and without, and tested on held-out sentences: whole ones with the mask, whole ones without,
and word by word, where only the past goes in, as when writing. Two lines frame every loss: what the
grammar itself loses, and a guess among all words.

    python phase4_causal/masking/breaking_causality.py
"""

import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from phase2_multi_head.models import WITH_MASK_RECIPE, WITHOUT_MASK_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.grammar.best_reader import next_word_floor
from shared.toy_language import PAD_ID, VOCABULARY, Sentence
from shared.toy_model import ToyTransformer
from shared.training.checkpoints import trained_model
from shared.training.objectives import corpus, next_word_loss, to_batch, word_by_word_loss
from shared.training.recipes import variant
from shared.visualization_utils import BLUE, GREY, ORANGE, QUIET, WIDE, readable

NUM_SENTENCES = 300
RECIPES = {"with the mask": WITH_MASK_RECIPE, "without": WITHOUT_MASK_RECIPE}
COLORS = {"with the mask": BLUE, "without": ORANGE}  # of a model, by how it was trained
LAYERS = {1: "one layer", 2: "two layers"}
UNIFORM = math.log(len(VOCABULARY))  # loss of a guess that takes all words for equally likely


@torch.no_grad()
def full_loss(model: ToyTransformer, sentences: list[Sentence], mode: str) -> float:
    """Returns the loss in nats a word when whole sentences go in, with the mask or without."""
    objective, device = RECIPES[mode].objective, model.positions.device
    tokens, lengths = to_batch(sentences, objective)
    loss = next_word_loss(model, tokens.to(device), lengths.to(device), objective=objective)
    return loss.item()


def bigram_loss(sentences: list[Sentence], held_out: list[Sentence]) -> float:
    """Loss in nats per word on held-out sentences of whoever looks at the word before alone.

    How often each word follows another is counted in `sentences`.
    """
    # A little for pairs that were never seen.
    counts = torch.full((len(VOCABULARY), len(VOCABULARY)), 0.01)
    tokens, _ = to_batch(sentences, "next word")
    pairs = (tokens[:, :-1], tokens[:, 1:])
    counts.index_put_(pairs, torch.tensor(1.0), accumulate=True)
    counts[:, PAD_ID] = 0.0  # padding is no word
    chances = counts / counts.sum(dim=-1, keepdim=True)
    tested, _ = to_batch(held_out, "next word")
    guesses = chances.log()[tested[:, :-1]]  # (N, T) -> (N, T, V)
    return F.nll_loss(guesses.mT, tested[:, 1:], ignore_index=PAD_ID).item()


def measure(run: Run) -> Numbers:
    """Returns losses in nats per word, of held-out sentences except "in training"."""
    sentences, held_out = corpus()
    # As many as each model sees.
    sentences = sentences[: WITH_MASK_RECIPE.steps * WITH_MASK_RECIPE.batch_size]
    tested = held_out[: 40 if run.options.quick else NUM_SENTENCES]
    grammar = next_word_floor(tested)
    numbers = {"the grammar": grammar}
    for mode, recipe in RECIPES.items():
        for num_layers, layers in LAYERS.items():
            sized = variant(recipe, num_layers=num_layers)
            trained = trained_model(sized, MultiHeadAttention, run.options, run.seed)
            model = trained.model
            run.shown[mode] = trained.losses  # of two layers, which come last
            in_training = full_loss(model, sentences[: len(tested)], mode)
            word_by_word = word_by_word_loss(model, tested)
            numbers[f"trained {mode}, {layers}, in training"] = in_training
            numbers[f"trained {mode}, {layers}, word by word"] = word_by_word
            if mode == "with the mask":
                masked = full_loss(model, tested, "with the mask")
                unmasked = full_loss(model, tested, "without")
                numbers[f"above the grammar, {layers}"] = masked - grammar
                numbers[f"mask taken away, {layers}"] = unmasked - masked
                numbers[f"mask taken away, {layers}, word by word"] = word_by_word - masked
    numbers["above the grammar, pairs of words"] = bigram_loss(sentences, tested) - grammar
    return numbers


CLAIMS = (
    Claim(
        id="next-token-floor",
        text="Trained with the mask, a small model predicts the next word nearly as well as the "
        "grammar itself. We asked it of one layer of four heads, and of two, after 200 steps.",
        source="the chain rule of probability; Shannon 1948",
        rule="the model's held-out loss lies above that of the grammar by at most a quarter of "
        "what counted pairs of words lie above it, with one layer and with two",
        effect=lambda n: (
            max(n["above the grammar, one layer"], n["above the grammar, two layers"])
            / n["above the grammar, pairs of words"]
        ),
        at_most=0.25,
        explored=10,
        oracle={"above the grammar, pairs of words": 0.65, "*": 0.0},
        null={"*": 0.65},
        revised="at first the rule asked for less than 0.1 nats above the grammar, without a "
        "yardstick",
    ),
)


def picture(results: Results) -> Figure:
    """Draws the training loss of both models of two layers, and what they can do in writing."""
    fig, (curves, past) = plt.subplots(
        1, 2, figsize=(WIDE, 3.6), sharey=True, width_ratios=(1.5, 1), layout="constrained"
    )
    for mode, color in COLORS.items():
        losses = torch.tensor(results.shown[mode])
        last = len(losses)
        smooth = losses.unfold(0, min(10, last), 1).mean(dim=-1)  # (steps,) -> (steps - 9,)
        curves.plot(range(last + 1 - len(smooth), last + 1), smooth, color=color, linewidth=2)
        end = {"ha": "right", "va": "bottom", "color": readable(color)}
        curves.text(last, smooth[-1] + 0.1, mode, **end)
        alone = results.mean[f"trained {mode}, two layers, word by word"]
        bar = past.bar(mode, alone, 0.6, color=color)
        past.bar_label(bar, fmt="%.1f", padding=3, fontsize=12)
    for ax in (curves, past):
        ax.axhline(UNIFORM, color=GREY, linestyle="--", linewidth=1.2, zorder=0)
    curves.text(
        last, UNIFORM + 0.2, "a guess among all words", ha="right", va="bottom", color=QUIET
    )
    curves.set(
        title="in training",
        xlabel="step",
        ylabel="loss, nats per word",
        xlim=(0, last),
        ylim=(-0.3, 13),
        yticks=(0, 5, 10),
    )
    past.set_title("in writing")
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="A model trained without the mask\nwrites worse than a guess",
    note=f"two layers, trained {WITH_MASK_RECIPE.steps} steps each, same first weights and batches",
    answer="It can copy the next word, which it sees: its loss in training is "
    "{n[trained without, two layers, in training]:.1g}. From the past alone it is "
    "{n[trained without, two layers, word by word]:.1f}, where a guess among all words loses "
    f"{UNIFORM:.1f}",
    uses="--seed --seeds --quick --device --retrain --d-model --heads",
)

if __name__ == "__main__":
    main.run()
