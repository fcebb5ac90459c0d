"""Tests: training."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from phase1_single_head.models import make_single_head
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from shared import optimization, training
from shared.checkpoints import _trained_here, checksum, load_checkpoint, load_or_train
from shared.tests.helpers import near
from shared.toy_language import VOCABULARY
from shared.toy_model import ToyTransformer

TINY = training.Recipe("tiny", "masked word", num_heads=2, num_layers=1, steps=25, d_model=16)


class Sorter(nn.Module):
    """A model without blocks: which of four numbers is the largest? One of its parameters never learns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fixed = nn.Parameter(torch.ones(4, 4), requires_grad=False)
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x * self.fixed[0])


def sorter_and_loss(seed=0):
    model, generator = Sorter(), torch.Generator().manual_seed(seed)

    def loss_of_step(_):
        x = torch.randn(32, 4, generator=generator)
        return nn.functional.cross_entropy(model(x), x.argmax(dim=-1))

    return model, loss_of_step


def same_numbers(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def by_hand(model, loss_of_step, steps, optimizers):
    """The loop of fit, written out."""
    losses, highest = [], [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    for step in range(steps):
        loss = loss_of_step(step)
        for optimizer, rate in zip(optimizers, highest, strict=True):
            optimizer.param_groups[0]["lr"] = rate * optimization.one_cycle(step, steps)
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("shape", [(3, 7, 7), (7, 11), (11, 7), (2, 3, 13, 5), (1, 5)])
def test_orthogonal_changes_only_the_singular_values(shape):
    """The iteration, worked out on each singular value alone."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    near(optimization.orthogonal(x), u * s.unsqueeze(-2) @ v, share=1e-10)
    assert torch.equal(optimization.orthogonal(torch.zeros(shape)), torch.zeros(shape))


def test_muon_makes_the_steps_of_torch():
    """Matrices of several shapes, one without a gradient, six steps; torch's own rounds to 8 bits."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(32, 16), (16, 32), (16, 16), (32, 16), (16, 16)]
    ours, theirs = ([nn.Parameter(torch.full(shape, 0.1)) for shape in shapes] for _ in range(2))
    one = optimization.Muon(ours, 0.04, momentum=0.8, weight_decay=0.5)
    two = torch.optim.Muon(theirs, 0.04, momentum=0.8, weight_decay=0.5)
    for _ in range(6):
        for a, b in zip(ours[:-1], theirs[:-1], strict=True):
            a.grad = b.grad = torch.randn(a.shape, generator=generator)
        one.step()
        two.step()
    moved = torch.cat([(a - 0.1).flatten() for a in ours[:-1]]).norm()
    difference = torch.cat([(a - b).flatten() for a, b in zip(ours, theirs, strict=True)]).norm()
    assert difference < 0.02 * moved and torch.equal(ours[-1], theirs[-1])


def test_fit_lowers_a_loss_and_repeats_bit_by_bit():
    (one, loss_of_one), (two, loss_of_two) = sorter_and_loss(), sorter_and_loss()
    with torch.no_grad():  # it learns wherever it is called
        losses = optimization.fit(one, loss_of_one, 60)
    assert losses == optimization.fit(two, loss_of_two, 60) and len(losses) == 60 and same_numbers(one, two)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2
    assert not one.training and torch.equal(one.fixed, torch.ones(4, 4))
    start, loss_of_step = sorter_and_loss()
    assert optimization.fit(start, loss_of_step, 0) == [] and same_numbers(start, Sorter())


OTHER_RATES = {"rate": 3e-3, "decay": 0.2, "matrix_rate": 0.01, "matrix_decay": 0.3}


@pytest.mark.parametrize("rates", [{}, OTHER_RATES, {"matrix_rate": None}])
def test_fit_is_muon_for_the_matrices_and_adamw_for_the_rest(rates):
    one, loss_of_step = sorter_and_loss()
    losses = optimization.fit(one, loss_of_step, 20, **rates)
    rates = dict(matrix_rate=0.04, rate=0.02, matrix_decay=0.5, decay=0.0) | rates
    two, loss_of_step = sorter_and_loss()
    first, norm, _, last = two.layers
    matrices, rest = [first.weight, last.weight], [first.bias, *norm.parameters(), last.bias]
    moved = rest if rates["matrix_rate"] else [*matrices, *rest]
    both = [torch.optim.AdamW(moved, rates["rate"], betas=(0.9, 0.95), weight_decay=rates["decay"], fused=True)]
    if rates["matrix_rate"]:
        both.append(optimization.Muon(matrices, rates["matrix_rate"], weight_decay=rates["matrix_decay"]))
    assert losses == by_hand(two, loss_of_step, 20, both) and same_numbers(one, two)


@pytest.mark.parametrize("make_attention", [make_single_head, MultiHeadAttention, CausalSelfAttention])
@pytest.mark.parametrize("matrix_rate", [0.04, None])
def test_each_parameter_of_a_toy_model_belongs_to_one_optimizer(make_attention, matrix_rate):
    model = ToyTransformer(16, 1, 2, make_attention=make_attention)
    both = optimization.optimizers(model, matrix_rate, 0.02, 0.5, 0.0)
    moved = {type(each): [p for group in each.param_groups for p in group["params"]] for each in both}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert sorted(names[id(p)] for group in moved.values() for p in group) == sorted(names.values())
    by_muon = {names[id(p)] for p in moved.get(optimization.Muon, [])}
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert by_muon == (linear if matrix_rate else set()) and "embedding.weight" not in by_muon


def test_who_watches_sees_every_step_and_changes_nothing_and_rates_follow_a_share():
    (one, loss_of_one), (two, loss_of_two) = sorter_and_loss(), sorter_and_loss()
    seen, share = [], lambda step: float(step < 3)

    def watch(done):
        seen.append((done, torch.is_grad_enabled(), one.layers[0].weight.sum().item()))
        one.eval()

    def loss_of_step(step):
        assert one.training
        return loss_of_one(step)

    losses = optimization.fit(one, loss_of_step, 5, watch=watch, share=share)
    assert losses == optimization.fit(two, loss_of_two, 5, share=share) and same_numbers(one, two)
    assert [done for done, *_ in seen] == [0, 1, 2, 3, 4, 5] and not any(enabled for _, enabled, _ in seen)
    assert seen[0][2] == Sorter().layers[0].weight.sum().item() and seen[-1][2] == one.layers[0].weight.sum().item()
    assert len({weight for *_, weight in seen}) == 4, "three steps that move, two with a rate of 0"


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 800])
def test_rates_go_up_and_down_once(steps):
    shares = np.array([optimization.one_cycle(step, steps) for step in range(steps)])
    top = shares.argmax()
    assert (shares > 0).all() and (shares <= 1).all()
    assert (np.diff(shares[: top + 1]) > 0).all() and (np.diff(shares[top:]) < 0).all()
    if steps == 800:
        assert shares[239] == 1 and top == 239 and shares[0] < 1e-4 and shares[-1] < 1e-4


def test_training_lowers_the_loss_and_repeats_bit_by_bit(checkpoints):
    first, second = (training.train(TINY, MultiHeadAttention) for _ in range(2))
    assert np.mean(first.losses[-5:]) < np.mean(first.losses[:5]) - 0.3
    assert first.losses == second.losses
    assert same_numbers(first.model, second.model)


def test_stages_of_a_training_change_nothing_and_lie_in_the_checkpoint(checkpoints):
    """Whoever keeps them gets the same model; the first is untrained, the last is the model, between them it learns."""
    watched = replace(TINY, name="watched", stages=(0, 0.4, 1))
    trained, alone = load_or_train(watched, MultiHeadAttention), training.train(TINY, MultiHeadAttention)
    loaded = load_checkpoint(watched, MultiHeadAttention)
    assert trained.losses == alone.losses and same_numbers(trained.model, alone.model)
    assert list(loaded.stages) == [0, 10, 25] and not alone.stages
    first, between, last = (loaded.at_stage(step).model for step in loaded.stages)
    assert same_numbers(first, training.new_model(TINY, MultiHeadAttention)) and same_numbers(last, alone.model)
    assert not same_numbers(between, first) and not same_numbers(between, last)


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


def test_next_words_bring_their_causal_mask_but_for_the_objective_without():
    """Phase 2's attention is handed the mask that phase 4's makes by itself, and the same weights do the same."""
    recipe = training.Recipe("x", "next word", num_heads=2, num_layers=2, steps=0, d_model=16)
    handed, own = (training.untrained(recipe, make) for make in (MultiHeadAttention, CausalSelfAttention))
    assert training.held_out_loss(handed) == training.held_out_loss(own)
    sentences = training.corpus()[1][:7]
    (layers, mask), (others, same) = (training.attention_on(m.model, sentences, "next word") for m in (handed, own))
    assert torch.equal(mask, same) and all(torch.equal(a, b) for a, b in zip(layers, others, strict=True))
    lengths = [len(sentence.words) + 2 for sentence in sentences]
    assert mask.sum(dim=(1, 2, 3)).tolist() == [n * (n + 1) // 2 for n in lengths]
    assert all(weights.triu(1).max() == 0 for weights in layers)
    layers, mask = training.attention_on(handed.model, sentences, "next word, without a mask")
    assert mask.sum(dim=(1, 2, 3)).tolist() == [n * n for n in lengths] and layers[0].triu(1).max() > 0
    tokens, lengths = training.to_batch(sentences, "next word")
    free = training.OBJECTIVES["next word, without a mask"](handed.model, tokens, lengths, None)
    assert free != training.next_word_loss(handed.model, tokens, lengths)


def test_checkpoints_survive_and_bad_ones_are_named_and_made_again(checkpoints, capsys):
    few = replace(TINY, name="few_steps", steps=3)
    trained = load_or_train(few, MultiHeadAttention)
    loaded = load_checkpoint(few, MultiHeadAttention)
    assert loaded.recipe == few and loaded.losses == trained.losses
    for a, b in zip(trained.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(a, b)
    good = few.path.read_bytes()
    other = torch.load(few.path, weights_only=True)
    bad_files = [
        ("is damaged", good[: len(good) // 2]),
        *(("is damaged", content) for content in (b"", b"not a checkpoint at all", b"\x80\x02")),
        ("is not a checkpoint of this version", {"some": "dict"}),
        ("was made with other settings", other | {"recipe": other["recipe"] | {"steps": 7}}),
        ("holds the weights of another model", other | {"state_dict": {}}),
    ]
    for message, content in bad_files:
        _trained_here.clear()
        if isinstance(content, bytes):
            few.path.write_bytes(content)
        else:
            torch.save(content | {"checksum": checksum({"state_dict": {}} | content)}, few.path)
        again = load_or_train(few, MultiHeadAttention)
        said = capsys.readouterr().out
        assert message in said and "few_steps.pt" in said and "training it again" in said
        assert torch.equal(again.model.embedding.weight, trained.model.embedding.weight)
        load_checkpoint(few, MultiHeadAttention)


def test_an_interrupt_leaves_nothing_half_written(checkpoints, monkeypatch):
    recipe = training.variant(TINY, seed=3)

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(training.torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_or_train(recipe, MultiHeadAttention)
    assert not [file for file in checkpoints.iterdir() if "seed3" in file.name]


def test_quick_never_stands_in_for_a_trained_model(checkpoints):
    recipe = training.variant(TINY, seed=5)
    quick = load_or_train(recipe, MultiHeadAttention, quick=True)
    assert quick.recipe.path != recipe.path and not recipe.path.exists()
    full = load_or_train(recipe, MultiHeadAttention)
    assert load_or_train(recipe, MultiHeadAttention, quick=True) is full


def test_variants_have_names_of_their_own():
    assert training.variant(TINY, seed=2, d_model=32, num_heads=None).name == "tiny_d_model32_seed2"
    assert training.variant(TINY) == TINY
    with pytest.raises(ValueError, match="unknown objective 'x': choose from masked word, next word"):
        training.Recipe("x", "x", num_heads=1, num_layers=1, steps=1)
