"""Tests: training."""

import math

import numpy as np
import pytest
import torch

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from shared import training
from shared.toy_language import VOCABULARY
from shared.toy_model import ToyTransformer

TINY = training.Recipe("tiny", "masked word", num_heads=2, num_layers=1, steps=25, d_model=16)


def test_training_lowers_the_loss_and_repeats_bit_by_bit(checkpoints):
    first, second = (training.train(TINY, MultiHeadAttention) for _ in range(2))
    assert np.mean(first.history.loss[-5:]) < np.mean(first.history.loss[:5]) - 0.3
    assert first.history.loss == second.history.loss
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    entropy = torch.tensor(first.history.entropy)
    assert entropy.shape == (len(first.history.entropy_steps), 1, 2) and ((entropy >= 0) & (entropy <= 1)).all()


def test_the_loss_counts_only_the_words_to_predict():
    """An untrained model that knows nothing but the bias of one word: the losses can be worked out by hand."""
    model = ToyTransformer(16, 2, 1, make_attention=CausalSelfAttention)
    with torch.no_grad():
        model.embedding.weight.zero_()
    tokens, lengths = training.to_batch(training.corpus()[1][:7], "next word")
    loss = training.next_word_loss(model, tokens, lengths, torch.Generator())
    assert loss.item() == pytest.approx(math.log(len(VOCABULARY)), rel=1e-5)
    tokens, lengths = training.to_batch(training.corpus()[1][:7], "masked word")
    loss = training.masked_word_loss(model, tokens, lengths, torch.Generator().manual_seed(0))
    assert loss.item() == pytest.approx(math.log(len(VOCABULARY)), rel=1e-5)


def test_checkpoints_survive_and_bad_ones_are_named_and_made_again(checkpoints, capsys):
    trained = training.load_or_train(TINY, MultiHeadAttention)
    loaded = training.load_checkpoint(TINY, MultiHeadAttention)
    assert loaded.recipe == TINY and loaded.history == trained.history
    for a, b in zip(trained.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(a, b)
    good = TINY.path.read_bytes()
    other = torch.load(TINY.path, weights_only=True)
    bad_files = [
        ("is damaged", good[: len(good) // 2]),
        *(("is damaged", content) for content in (b"", b"not a checkpoint at all", b"hello\n", b"\x80\x02", bytes(99))),
        ("is not a checkpoint of this version", {"some": "dict"}),
        ("was made with other settings", other | {"recipe": other["recipe"] | {"steps": 7}}),
        ("holds the weights of another model", other | {"state_dict": {}}),
    ]
    for message, content in bad_files:
        training._trained_here.clear()
        if isinstance(content, bytes):
            TINY.path.write_bytes(content)
        else:
            torch.save(content, TINY.path)
        again = training.load_or_train(TINY, MultiHeadAttention)
        said = capsys.readouterr().out
        assert message in said and "tiny.pt" in said and "training it again" in said
        assert torch.equal(again.model.embedding.weight, trained.model.embedding.weight)
        training.load_checkpoint(TINY, MultiHeadAttention)


def test_an_interrupt_leaves_nothing_half_written(checkpoints, monkeypatch):
    recipe = training.variant(TINY, seed=3)

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(training.torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.load_or_train(recipe, MultiHeadAttention)
    assert not [file for file in checkpoints.iterdir() if "seed3" in file.name]


def test_quick_never_stands_in_for_a_trained_model(checkpoints):
    recipe = training.variant(TINY, seed=5)
    quick = training.load_or_train(recipe, MultiHeadAttention, quick=True)
    assert quick.recipe.path != recipe.path and not recipe.path.exists()
    full = training.load_or_train(recipe, MultiHeadAttention)
    assert training.load_or_train(recipe, MultiHeadAttention, quick=True) is full


def test_variants_have_names_of_their_own():
    assert training.variant(TINY, seed=2, d_model=32, num_heads=None).name == "tiny_d_model32_seed2"
    assert training.variant(TINY) == TINY
    with pytest.raises(ValueError, match="unknown objective 'x': choose from masked word, next word"):
        training.Recipe("x", "x", num_heads=1, num_layers=1, steps=1)
