"""One model trained with and without the causal mask, and three ways to test it; no script of its own.

    full, with the mask       the whole sentence goes in, later words hidden in every layer
    full, without             the whole sentence goes in, nothing hidden
    word by word              only the words so far go in, nothing hidden; the last position answers, as when writing

Used by phase4_causal/masking/breaking_causality.py, which shows what comes out:

    python phase4_causal/masking/breaking_causality.py
"""

import math

import torch
import torch.nn.functional as F
from tqdm import tqdm

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from shared import training
from shared.fast_training import FastTraining
from shared.grammar.entropy import sentence_log_probability
from shared.toy_language import PAD_ID, VOCABULARY, Sentence
from shared.toy_model import MakeAttention, ToyTransformer
from shared.training import History, Recipe, Trained

BATCH, LEARNING_RATE, MATRIX_RATE = 32, 0.02, 0.03
WITH, WITHOUT = "with the mask", "without"
ATTENTION: dict[str, MakeAttention] = {WITH: CausalSelfAttention, WITHOUT: MultiHeadAttention}
TESTS = ("full, with the mask", "full, without", "word by word")
UNIFORM = math.log(len(VOCABULARY))  # loss of a guess that takes all words for equally likely


def train(mode: str, num_layers: int, sentences: list[Sentence], steps: int, seed: int) -> Trained:
    """Train one model on next words, fast.

    The two modes start from the same weights and see the same batches.
    """
    recipe = Recipe("mask_training", "next word", 4, num_layers, steps, batch_size=BATCH, seed=seed)
    model = training.new_model(recipe, ATTENTION[mode])
    generator = torch.Generator().manual_seed(seed)
    decay = recipe.weight_decay
    rates = {"matrix_rate": MATRIX_RATE, "learning_rate": LEARNING_RATE, "matrix_decay": decay, "weight_decay": decay}
    fast = FastTraining(model, steps, **rates)
    tokens, lengths = training.to_batch(sentences, recipe.objective)
    history = History()
    for _ in tqdm(range(steps), desc=f"training {mode}", leave=False, disable=None):
        batch = torch.randint(len(tokens), (BATCH,), generator=generator)
        loss = training.next_word_loss(model, tokens[batch, : int(lengths[batch].max())], lengths[batch], generator)
        fast.step(loss)
        history.loss.append(loss.item())
    return Trained(model.eval(), recipe, history)


def under(trained: Trained, mode: str) -> ToyTransformer:
    """The same weights with or without the mask: masks have no parameters."""
    model = training.new_model(trained.recipe, ATTENTION[mode])
    model.load_state_dict(trained.model.state_dict())
    return model.eval()


@torch.no_grad()
def full_loss(model: ToyTransformer, sentences: list[Sentence]) -> float:
    """Next-word loss in nats per word when whole sentences go in."""
    return training.next_word_loss(model, *training.to_batch(sentences, "next word"), torch.Generator()).item()


@torch.no_grad()
def past_loss(model: ToyTransformer, sentences: list[Sentence]) -> float:
    """Next-word loss in nats per word when only the words so far go in, one prefix after the other."""
    tokens, _ = training.to_batch(sentences, "next word")
    total, count = 0.0, 0
    for length in range(1, tokens.size(1)):
        rows = tokens[tokens[:, length] != PAD_ID]  # the sentences that have a next word here
        logits, _ = model(rows[:, :length])
        total += F.cross_entropy(logits[:, -1], rows[:, length], reduction="sum").item()
        count += len(rows)
    return total / count


def floor(sentences: list[Sentence]) -> float:
    """What the grammar itself loses per word on these sentences, <end> included: -ln P(sentence) over the words."""
    total = -sum(sentence_log_probability(sentence.words) for sentence in sentences)
    return total / sum(len(sentence.words) + 1 for sentence in sentences)


Losses = dict[str, float]  # test -> nats per word


def losses(trained: Trained, sentences: list[Sentence]) -> Losses:
    """The three tests of one trained model."""
    without = under(trained, WITHOUT)
    values = (full_loss(under(trained, WITH), sentences), full_loss(without, sentences), past_loss(without, sentences))
    return dict(zip(TESTS, values, strict=True))
