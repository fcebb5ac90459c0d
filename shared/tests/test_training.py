"""Training: the optimizer against torch's, the loop against one written out, objectives,
checkpoints good and bad.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from phase1_single_head.models import make_single_head
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from shared import checkpoints as kept
from shared import optimization, training
from shared.checkpoints import checksum, load_checkpoint, load_or_train
from shared.tests.helpers import near
from shared.toy_language import VOCABULARY
from shared.toy_model import ToyTransformer
from shared.training import Recipe

TINY = Recipe("tiny", "masked word", num_heads=2, num_layers=1, steps=25, d_model=16)
FEW = replace(TINY, name="few_steps", steps=3)


class Sorter(nn.Module):
    """A model without blocks: which of four numbers is the largest? One of its parameters never
    learns.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fixed = nn.Parameter(torch.ones(4, 4), requires_grad=False)
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x * self.fixed[0])


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


OTHER_RATES = {"rate": 3e-3, "decay": 0.2, "matrix_rate": 0.01, "matrix_decay": 0.3}


@pytest.mark.parametrize("rates", [{}, OTHER_RATES, {"matrix_rate": None}])
def test_fit_is_this_loop_with_muon_for_the_matrices_and_adamw_for_the_rest(rates):
    one, loss_of_step = sorter_and_loss()
    with torch.no_grad():  # it learns wherever it is called
        losses = optimization.fit(one, loss_of_step, 20, **rates)
    assert not one.training and torch.equal(one.fixed, torch.ones(4, 4))
    rates = dict(matrix_rate=0.04, rate=0.02, matrix_decay=0.5, decay=0.0) | rates
    two, loss_of_step = sorter_and_loss()
    first, norm, _, last = two.layers
    matrices, rest = [first.weight, last.weight], [first.bias, *norm.parameters(), last.bias]
    moved = rest if rates["matrix_rate"] else [*matrices, *rest]
    both = [
        torch.optim.AdamW(
            moved, rates["rate"], betas=(0.9, 0.95), weight_decay=rates["decay"], fused=True
        )
    ]
    if rates["matrix_rate"]:
        both.append(
            optimization.Muon(matrices, rates["matrix_rate"], weight_decay=rates["matrix_decay"])
        )
    highest = [each.param_groups[0]["lr"] for each in both]
    for step in range(20):
        two.zero_grad()
        loss = loss_of_step(step)
        loss.backward()
        for each, rate in zip(both, highest, strict=True):
            each.param_groups[0]["lr"] = rate * optimization.one_cycle(step, 20)
            each.step()
        assert loss.item() == losses[step]
    assert same_numbers(one, two)


@pytest.mark.parametrize(
    "make_attention", [make_single_head, MultiHeadAttention, CausalSelfAttention]
)
@pytest.mark.parametrize("matrix_rate", [0.04, None])
def test_each_parameter_of_a_toy_model_belongs_to_one_optimizer(make_attention, matrix_rate):
    model = ToyTransformer(16, 1, 2, make_attention=make_attention)
    both = optimization.optimizers(model, matrix_rate, 0.02, 0.5, 0.0)
    moved = {
        type(each): [p for group in each.param_groups for p in group["params"]] for each in both
    }
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert sorted(names[id(p)] for group in moved.values() for p in group) == sorted(names.values())
    by_muon = {names[id(p)] for p in moved.get(optimization.Muon, [])}
    linear = {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    assert by_muon == (linear if matrix_rate else set()) and "embedding.weight" not in by_muon


def test_who_watches_sees_every_step_and_changes_nothing_and_rates_follow_a_share():
    (one, loss_of_one), (two, loss_of_two) = sorter_and_loss(), sorter_and_loss()
    seen, share = [], lambda step: float(step < 3)

    def watch(done):
        seen.append((done, torch.is_grad_enabled(), one.layers[0].weight.sum().item()))
        one.eval()

    losses = optimization.fit(one, loss_of_one, 5, watch=watch, share=share)
    assert losses == optimization.fit(two, loss_of_two, 5, share=share) and same_numbers(one, two)
    assert [done for done, *_ in seen] == [0, 1, 2, 3, 4, 5] and not any(
        enabled for _, enabled, _ in seen
    )
    assert (
        seen[0][2] == Sorter().layers[0].weight.sum().item()
        and seen[-1][2] == one.layers[0].weight.sum().item()
    )
    assert len({weight for *_, weight in seen}) == 4, "three steps that move, two with a rate of 0"


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 800])
def test_rates_go_up_and_down_once(steps):
    shares = np.array([optimization.one_cycle(step, steps) for step in range(steps)])
    top = shares.argmax()
    assert (shares > 0).all() and (shares <= 1).all()
    assert (np.diff(shares[: top + 1]) > 0).all() and (np.diff(shares[top:]) < 0).all()
    assert steps < 800 or (
        shares[239] == 1 and top == 239 and shares[0] < 1e-4 and shares[-1] < 1e-4
    )


# ---- toy models


def test_training_lowers_the_loss_and_repeats_bit_by_bit(checkpoints):
    first, second = (training.train(TINY, MultiHeadAttention) for _ in range(2))
    assert np.mean(first.losses[-5:]) < np.mean(first.losses[:5]) - 0.3
    assert first.losses == second.losses and same_numbers(first.model, second.model)


def test_next_words_bring_their_causal_mask_but_for_the_objective_without():
    """Phase 2's attention is handed the mask that phase 4's makes by itself, and the same weights
    do the same.
    """
    recipe = Recipe("x", "next word", num_heads=2, num_layers=2, steps=0, d_model=16)
    handed, own = (
        training.untrained(recipe, make) for make in (MultiHeadAttention, CausalSelfAttention)
    )
    assert training.held_out_loss(handed) == training.held_out_loss(own)
    sentences = training.corpus()[1][:7]
    (layers, mask), (others, same) = (
        training.attention_on(m.model, sentences, "next word") for m in (handed, own)
    )
    assert torch.equal(mask, same) and all(
        torch.equal(a, b) for a, b in zip(layers, others, strict=True)
    )
    lengths = [len(sentence.words) + 2 for sentence in sentences]
    assert mask.sum(dim=(1, 2, 3)).tolist() == [n * (n + 1) // 2 for n in lengths]
    layers, mask = training.attention_on(handed.model, sentences, "next word, without a mask")
    assert (
        mask.sum(dim=(1, 2, 3)).tolist() == [n * n for n in lengths] and layers[0].triu(1).max() > 0
    )
    tokens, lengths = training.to_batch(sentences, "next word")
    free = training.OBJECTIVES["next word, without a mask"](handed.model, tokens, lengths, None)
    assert free != training.next_word_loss(handed.model, tokens, lengths)


@pytest.mark.parametrize("objective", ["next word", "masked word"])
def test_the_loss_counts_only_the_words_to_predict(objective):
    """Of a model that has no embeddings, each word costs the same."""
    model = ToyTransformer(16, 2, 1, make_attention=MultiHeadAttention)
    nn.init.zeros_(model.embedding.weight)
    batch = training.to_batch(training.corpus()[1][:7], objective)
    loss = training.OBJECTIVES[objective](model, *batch, torch.Generator().manual_seed(0))
    near(loss.item(), math.log(len(VOCABULARY)), share=1e-5)


# ---- checkpoints


def test_stages_of_a_training_change_nothing_and_lie_in_the_checkpoint(checkpoints):
    """Whoever keeps them gets the same model; the first is untrained, the last is the model,
    between them it learns.
    """
    watched = replace(TINY, name="watched", stages=(0, 0.4, 1))
    trained, alone = (
        load_or_train(watched, MultiHeadAttention),
        training.train(TINY, MultiHeadAttention),
    )
    loaded = load_checkpoint(watched, MultiHeadAttention)
    assert trained.losses == alone.losses and same_numbers(trained.model, alone.model)
    assert list(loaded.stages) == [0, 10, 25] and not alone.stages
    first, between, last = (loaded.at_stage(step).model for step in loaded.stages)
    assert same_numbers(first, training.new_model(TINY, MultiHeadAttention)) and same_numbers(
        last, alone.model
    )
    assert not same_numbers(between, first) and not same_numbers(between, last)


def sealed(content):
    return content | {"checksum": checksum(content)}


DAMAGED = {  # what became of a file -> its new content, and what is said
    "cut off": (lambda good, _: good[: len(good) // 2], "is damaged"),
    "empty": (lambda *_: b"", "is damaged"),
    "text": (lambda *_: b"not a checkpoint at all", "is damaged"),
    "code": (
        lambda *_: {"format": kept.FORMAT, "recipe": Recipe},
        "is damaged (UnpicklingError)",
    ),  # a class to import
    "a foreign dict": (lambda *_: {"some": "dict"}, "is not a checkpoint of this version"),
    "other settings": (
        lambda _, was: sealed(was | {"recipe": was["recipe"] | {"steps": 7}}),
        "with other settings",
    ),
    "other words": (lambda _, was: sealed(was | {"vocabulary": ["cat"]}), "with other settings"),
    "no weights": (
        lambda _, was: sealed(was | {"state_dict": {}}),
        "holds the weights of another model",
    ),
    "no numbers": (
        lambda _, was: sealed(was | {"state_dict": nan(was["state_dict"])}),
        "numbers that are not finite",
    ),
}


def nan(weights):
    return {name: tensor * math.nan for name, tensor in weights.items()}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_bad_checkpoint_is_named_and_made_again(checkpoints, capsys, what):
    trained = load_or_train(FEW, MultiHeadAttention)
    loaded = load_checkpoint(FEW, MultiHeadAttention)
    assert (loaded.recipe, loaded.losses) == (FEW, trained.losses) and same_numbers(
        loaded.model, trained.model
    )
    damage, message = DAMAGED[what]
    content = damage(FEW.path.read_bytes(), torch.load(FEW.path, weights_only=True))
    if isinstance(content, bytes):
        FEW.path.write_bytes(content)
    else:
        torch.save(content, FEW.path)
    kept._trained_here.clear()
    again = load_or_train(FEW, MultiHeadAttention)
    said = capsys.readouterr().out
    assert message in said and "few_steps.pt" in said and "training it again" in said
    assert same_numbers(again.model, trained.model) and load_checkpoint(FEW, MultiHeadAttention)


def test_the_same_model_is_the_same_bytes(checkpoints):
    """Whatever the file is called while it is written."""
    trained = training.untrained(TINY, MultiHeadAttention)
    written = []
    for _ in range(2):
        kept.save_checkpoint(trained)
        written.append(TINY.path.read_bytes())
    assert written[0] == written[1]
    TINY.path.unlink()


def test_an_interrupt_leaves_nothing_half_written(checkpoints, monkeypatch):
    def interrupted(content, file):
        file.write(b"so f")
        raise KeyboardInterrupt

    before = sorted(checkpoints.iterdir())
    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.save_checkpoint(training.untrained(training.variant(TINY, seed=3), MultiHeadAttention))
    assert sorted(checkpoints.iterdir()) == before


def test_quick_never_stands_in_for_a_trained_model(checkpoints):
    recipe = training.variant(TINY, seed=5)
    quick = load_or_train(recipe, MultiHeadAttention, quick=True)
    assert quick.recipe.path != recipe.path and not recipe.path.exists()
    full = load_or_train(recipe, MultiHeadAttention)
    assert load_or_train(recipe, MultiHeadAttention, quick=True) is full
