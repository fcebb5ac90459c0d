"""Training: the optimizer against torch's, the loop written out, objectives, checkpoints."""

import copy
import math
import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from torch import nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from shared import paths
from shared.tests.helpers import near
from shared.toy_language import VOCABULARY
from shared.toy_model import ToyTransformer
from shared.training.checkpoints import (
    _trained_here,
    read_checkpoint,
    trained_model,
)
from shared.training.loop import Muon, fit, one_cycle, orthogonal
from shared.training.objectives import (
    OBJECTIVES,
    attention_weights,
    corpus,
    next_word_loss,
    to_batch,
)
from shared.training.recipes import (
    Recipe,
    held_out_loss,
    new_model,
    train,
    untrained_model,
    variant,
)

TINY = Recipe("tiny", "masked word", num_heads=2, num_layers=1, steps=25, d_model=16)
FEW = replace(TINY, name="few_steps", steps=3)


class Sorter(nn.Module):
    """Which of four numbers is the largest? One parameter never learns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fixed = nn.Parameter(torch.ones(4, 4), requires_grad=False)
        self.blocks = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.blocks(x * self.fixed[0])


def sorter_and_loss():
    model, generator = Sorter(), torch.Generator().manual_seed(0)

    def loss_of_step(_):
        assert model.training
        x = torch.randn(32, 4, generator=generator)
        return nn.functional.cross_entropy(model(x), x.argmax(dim=-1))

    return model, loss_of_step


def same_numbers(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


# ---- the optimizer and the loop


def test_muon_makes_the_steps_of_torch():
    """Matrices of several shapes, one without a gradient; torch's own rounds to 8 bits."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(32, 16), (16, 32), (16, 16), (32, 16), (16, 16)]
    ours = [nn.Parameter(torch.full(shape, 0.1)) for shape in shapes]
    theirs = copy.deepcopy(ours)
    one = Muon(ours, 0.04, momentum=0.8, weight_decay=0.5)
    two = torch.optim.Muon(theirs, 0.04, momentum=0.8, weight_decay=0.5)
    for _ in range(6):
        for a, b in zip(ours[:-1], theirs[:-1], strict=True):
            a.grad = b.grad = torch.randn(a.shape, generator=generator)
        one.step()
        two.step()
    ours = nn.utils.parameters_to_vector(ours)
    theirs = nn.utils.parameters_to_vector(theirs)
    assert (ours - theirs).norm() < 0.02 * (ours - 0.1).norm()
    assert torch.equal(ours[-256:], theirs[-256:]), "the one without a gradient"
    assert torch.equal(orthogonal(torch.zeros(2, 3)), torch.zeros(2, 3))


USUAL = {"matrix_rate": 0.04, "rate": 0.02, "matrix_decay": 0.5, "decay": 0.0}
OTHERS = {"matrix_rate": 0.01, "rate": 3e-3, "matrix_decay": 0.3, "decay": 0.2}


@pytest.mark.parametrize("rates", [{}, OTHERS, {"matrix_rate": None}])
def test_fit_is_this_loop_with_muon_for_the_matrices_and_adamw_for_the_rest(rates):
    one, loss_of_step = sorter_and_loss()
    with torch.no_grad():  # it learns wherever it is called
        losses = fit(one, loss_of_step, 20, **rates)
    assert not one.training and torch.equal(one.fixed, torch.ones(4, 4))

    rates = USUAL | rates
    two, loss_of_step = sorter_and_loss()
    first, norm, _, last = two.blocks
    matrices, rest = [first.weight, last.weight], [first.bias, *norm.parameters(), last.bias]
    both = []
    if rates["matrix_rate"]:
        muon = Muon(matrices, rates["matrix_rate"], weight_decay=rates["matrix_decay"])
        both.append((muon, rates["matrix_rate"]))
    else:
        rest = matrices + rest
    usual = {"betas": (0.9, 0.95), "fused": True}
    adamw = torch.optim.AdamW(rest, rates["rate"], weight_decay=rates["decay"], **usual)
    both.append((adamw, rates["rate"]))
    for step in range(20):
        two.zero_grad()
        loss = loss_of_step(step)
        loss.backward()
        for each, highest in both:
            each.param_groups[0]["lr"] = highest * one_cycle(step, 20)
            each.step()
        assert loss.item() == losses[step]
    assert same_numbers(one, two)


def test_a_callback_sees_every_step_and_changes_nothing_and_rates_follow_a_schedule():
    one, loss_of_one = sorter_and_loss()
    two, loss_of_two = sorter_and_loss()
    steps, weights = [], []

    def callback(done):
        assert not torch.is_grad_enabled()
        steps.append(done)
        weights.append(one.blocks[0].weight.sum().item())
        one.eval()

    def schedule(step):
        return float(step < 3)

    losses = fit(one, loss_of_one, 5, callback=callback, schedule=schedule)
    assert losses == fit(two, loss_of_two, 5, schedule=schedule) and same_numbers(one, two)
    assert steps == [0, 1, 2, 3, 4, 5] and weights[0] == Sorter().blocks[0].weight.sum().item()
    assert len(set(weights)) == 4, "three steps that move, two with a rate of 0"


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 800])
def test_rates_go_up_and_down_once(steps):
    shares = [one_cycle(step, steps) for step in range(steps)]
    top = shares.index(max(shares))
    up, down = shares[: top + 1], shares[top:]
    assert up == sorted(set(up)) and down == sorted(set(down), reverse=True)
    assert min(shares) > 0 and shares[top] <= 1
    if steps == 800:
        assert top == 239 and shares[top] == 1 and max(shares[0], shares[-1]) < 1e-4


# ---- toy models


def test_training_lowers_the_loss_and_repeats_bit_by_bit():
    first = train(TINY, MultiHeadAttention)
    second = train(TINY, MultiHeadAttention)
    assert sum(first.losses[-5:]) < sum(first.losses[:5]) - 1.5
    assert first.losses == second.losses and same_numbers(first.model, second.model)


OLD_PROCESSOR = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "DNNL_MAX_CPU_ISA": "SSE41",
}
TRAIN = """
import sys
import torch
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.training.recipes import Recipe, train

torch.set_num_threads(1)
trained = train(eval(sys.argv[1]), MultiHeadAttention)
weights = torch.nn.utils.parameters_to_vector(trained.model.parameters())
torch.save([trained.losses, weights.detach()], sys.argv[2])
"""


def test_one_seed_ends_at_one_model_on_every_processor(tmp_path):
    """In float32 the losses are apart by 1e-7 at the first step, and by more and more."""
    recipe, file = replace(TINY, steps=60), tmp_path / "trained"
    command = [sys.executable, "-c", TRAIN, repr(recipe), file]
    subprocess.run(command, env=os.environ | OLD_PROCESSOR, cwd=paths.ROOT, check=True)
    losses, weights = torch.load(file, weights_only=True)
    here = train(recipe, MultiHeadAttention)
    near(here.losses, losses, share=1e-9)
    near(nn.utils.parameters_to_vector(here.model.parameters()), weights, share=1e-9)


def test_next_words_bring_their_causal_mask_but_for_the_objective_without():
    """Phase 2's attention is handed the mask that phase 4's makes by itself."""
    recipe = Recipe("x", "next word", num_heads=2, num_layers=2, steps=0, d_model=16)
    handed = untrained_model(recipe, MultiHeadAttention)
    own = untrained_model(recipe, CausalSelfAttention)
    assert held_out_loss(handed) == held_out_loss(own)
    sentences = corpus()[1][:7]
    lengths = [len(sentence.words) + 2 for sentence in sentences]
    layers, mask = attention_weights(handed.model, sentences, "next word")
    others, same = attention_weights(own.model, sentences, "next word")
    assert torch.equal(mask, same) and torch.equal(torch.stack(layers), torch.stack(others))
    assert mask.sum(dim=(1, 2, 3)).tolist() == [n * (n + 1) // 2 for n in lengths]

    shorter, words = attention_weights(handed.model, sentences, "next word", end=False)
    assert words.sum(dim=(1, 2, 3)).tolist() == [n * (n - 1) // 2 for n in lengths]
    near(shorter[1] * words, layers[1][..., :-1, :-1] * words)

    unmasked = "next word, without a mask"
    layers, mask = attention_weights(handed.model, sentences, unmasked)
    assert mask.sum(dim=(1, 2, 3)).tolist() == [n * n for n in lengths]
    assert layers[0].triu(1).max() > 0
    batch = to_batch(sentences, "next word")
    free = OBJECTIVES[unmasked](handed.model, *batch, None)
    assert free != next_word_loss(handed.model, *batch)


@pytest.mark.parametrize("objective", ["next word", "masked word"])
def test_the_loss_counts_only_the_words_to_predict(objective):
    """Of a model that has no embeddings, each word costs the same."""
    model = ToyTransformer(16, 2, 1, make_attention=MultiHeadAttention)
    nn.init.zeros_(model.embedding.weight)
    batch = to_batch(corpus()[1][:7], objective)
    loss = OBJECTIVES[objective](model, *batch, torch.Generator().manual_seed(0))
    near(loss.item(), math.log(len(VOCABULARY)), share=1e-5)


def test_a_hidden_word_is_the_one_that_stood_there():
    tokens, lengths = to_batch(corpus()[1][:7], "masked word")

    def knows_the_sentences(seen, mask):
        assert not torch.equal(seen, tokens)
        return 50.0 * nn.functional.one_hot(tokens, len(VOCABULARY)), []

    generator = torch.Generator().manual_seed(0)
    assert OBJECTIVES["masked word"](knows_the_sentences, tokens, lengths, generator) < 1e-9


# ---- checkpoints


def test_stages_of_a_training_change_nothing_and_lie_in_the_checkpoint(checkpoints):
    """The first is untrained, the last is the model, between them it learns."""
    watched = replace(TINY, name="watched", stages=(0, 0.4, 1))
    trained = trained_model(watched, MultiHeadAttention)
    alone = train(TINY, MultiHeadAttention)
    loaded = read_checkpoint(watched, MultiHeadAttention, "cpu")
    assert trained.losses == alone.losses and same_numbers(trained.model, alone.model)
    assert list(loaded.stages) == [0, 10, 25] and not alone.stages
    content = torch.load(watched.path, weights_only=True)
    kept = [*content["state_dict"].values(), *content["stages"].values()]
    assert {numbers.dtype for numbers in kept} == {torch.float64}, "not that of the caller"
    first, between, last = [loaded.at_stage(step).model for step in loaded.stages]
    assert same_numbers(first, new_model(TINY, MultiHeadAttention))
    assert same_numbers(last, alone.model)
    assert not same_numbers(between, first) and not same_numbers(between, last)


def cut_off(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_part(name, part):
    """The file with another part."""

    def change(path):
        torch.save(torch.load(path, weights_only=True) | {name: part}, path)

    return change


def no_number(path):
    content = torch.load(path, weights_only=True)
    content["state_dict"]["embedding.weight"][3] = torch.nan
    torch.save(content, path)


DAMAGED = {  # what becomes of a file
    "cut off": cut_off,
    "code": with_part("history", {"code": Sorter()}),
    "an older version": with_part("format", 3),
    "other settings": with_part("recipe", {"steps": 7}),
    "other weights": with_part("state_dict", {}),
    "NaN": no_number,
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_checkpoint_is_one_line_and_made_again(checkpoints, capsys, damage):
    trained = trained_model(FEW, MultiHeadAttention)
    loaded = read_checkpoint(FEW, MultiHeadAttention, "cpu")
    assert (loaded.recipe, loaded.losses) == (FEW, trained.losses)
    assert same_numbers(loaded.model, trained.model)
    assert not loaded.model.training, "else dropout would answer, too"
    damage(FEW.path)
    _trained_here.clear()
    again = trained_model(FEW, MultiHeadAttention)
    assert "few_steps.pt is damaged: trained again\n" in capsys.readouterr().out
    assert same_numbers(again.model, trained.model)
    assert read_checkpoint(FEW, MultiHeadAttention, "cpu")


def options_of(**options):
    """Options of a command line."""
    usual = {"seed": 0, "d_model": None, "heads": None, "layers": None, "device": "cpu"}
    return Namespace(**usual | {"retrain": False, "quick": False} | options)


def test_quick_never_stands_in_for_a_trained_model(checkpoints):
    quick = trained_model(TINY, MultiHeadAttention, options_of(quick=True), seed=5)
    recipe = variant(TINY, seed=5)
    assert quick.recipe.path != recipe.path and not recipe.path.exists()
    full = trained_model(recipe, MultiHeadAttention)
    assert trained_model(TINY, MultiHeadAttention, options_of(quick=True), seed=5) is full


def test_float32_of_apples_gpus_never_stands_in_for_a_trained_model(monkeypatch):
    door = "shared.training.checkpoints.already_trained"
    monkeypatch.setattr(door, lambda recipe, *_: recipe)
    for device, name in {"mps": "tiny_mps", "cuda": "tiny"}.items():
        assert trained_model(TINY, MultiHeadAttention, options_of(device=device)).name == name


def test_quick_trains_again_only_if_it_is_told_to(checkpoints, capsys):
    recipe = replace(FEW, name="again")
    trains = "training again_quick"
    for retrain, printed in ((False, trains), (False, ""), (True, trains)):
        _trained_here.clear()
        trained_model(recipe, MultiHeadAttention, options_of(quick=True, retrain=retrain))
        assert capsys.readouterr().out.partition(":")[0] == printed


def test_options_size_a_model_and_one_that_has_one_head_or_layer_by_design_keeps_it(checkpoints):
    options = options_of(seed=3, d_model=24, heads=6, layers=5)
    several = trained_model(replace(FEW, num_layers=2), MultiHeadAttention, options).recipe
    assert (several.seed, several.d_model, several.num_heads, several.num_layers) == (3, 24, 6, 5)
    alone = trained_model(replace(FEW, num_heads=1), MultiHeadAttention, options, seed=7).recipe
    assert (alone.seed, alone.num_heads, alone.num_layers) == (7, 1, 1)
