"""Tests: what a reader wrote, trained in the toy model: against the course's modules, and wrong ones."""

import math
import re
import time
from functools import partial

import pytest
import torch

from phase1_single_head import exercises as phase1
from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head import exercises as phase2
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization import exercises as phase3
from phase4_causal import exercises as phase4
from phase4_causal.causal_attention import CausalSelfAttention
from shared import training
from shared.attention_utils import padding_mask
from shared.exercise_checker import train
from shared.exercise_checker.in_model import WAYS, Attention
from shared.tests.helpers import near

EXERCISES = {e.name: e for phase in (phase1, phase2, phase4) for e in phase.EXERCISES if e.name in WAYS}
COURSE = {
    "self_attention": lambda d_model, _: SelfAttention(d_model, output_projection=True),
    "multi_head_attention": partial(MultiHeadAttention, bias=False),
    "causal_mask": partial(CausalSelfAttention, bias=False),
}
RIGHT = EXERCISES["multi_head_attention"].solution
pytestmark = pytest.mark.usefixtures("checkpoints")


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("padded", [True, False])
def test_the_solution_in_the_model_is_the_module_of_the_course(name, padded):
    """Started by the same seed they are the same to the last digits: what comes out, and all gradients."""
    found = []
    for make in (partial(Attention, WAYS[name], EXERCISES[name].solution), COURSE[name]):
        torch.manual_seed(7)
        module = make(44, WAYS[name].num_heads).double()
        x = torch.randn(3, 7, 44, dtype=torch.float64, requires_grad=True)
        output, weights = module(x, mask=padding_mask(torch.tensor([7, 2, 5]), 7) if padded else None)
        (output.tanh() + weights.square().sum()).sum().backward()
        found.append([output, weights, x.grad, *(module.get_parameter(f"w_{i}.weight").grad for i in "qkvo")])
    for ours, course in zip(*found, strict=True):
        near(ours, course)


def trained(function, monkeypatch, capsys, name="multi_head_attention", steps=25):
    few = training.corpus()[0][:3000], training.corpus()[1][:80]
    monkeypatch.setattr(training, "corpus", lambda: few)
    monkeypatch.setattr(train, "STEPS", steps)
    monkeypatch.setattr(train, "ASKED", 10)
    done = train.trained([EXERCISES[name]], list(EXERCISES.values()), {name: function})
    return done, capsys.readouterr().out


def inverted(*inputs):
    return RIGHT(*inputs[:6], *(mask if mask is None else ~mask for mask in inputs[6:]))


def test_a_wrong_one_is_told_what_it_costs_and_the_right_one_that_it_costs_nothing(monkeypatch, capsys):
    done, printed = trained(inverted, monkeypatch, capsys)
    yours, course = map(float, re.search(r"a hidden word +(\S+) +(\S+)", printed).groups())
    cost = float(re.search(r"It loses (\S+) nats more than the course's", printed)[1])
    assert not done and cost > 0.2 and abs(yours - course - cost) < 0.016 and "The checker: mask inverted" in printed
    assert len(re.findall(r"^head \d +\S", printed, re.MULTILINE)) == 4
    done, printed = trained(RIGHT, monkeypatch, capsys)
    assert done and "as much as the course's: +0.00" in printed and printed.endswith("The checker: done\n")


def test_who_sees_the_future_looks_best_at_once_and_fails_word_by_word(monkeypatch, capsys):
    done, printed = trained(lambda *size: torch.ones(size).tril(1).bool(), monkeypatch, capsys, "causal_mask", steps=60)
    at_once, word_by_word = (float(re.search(rf"{row} +(\S+)", printed)[1]) for row in ("at once", "word by word"))
    assert not done and at_once < 1 and word_by_word > math.log(100) and "Too good" in printed
    assert "The checker: one word of the future visible" in " ".join(printed.split())


REFUSED = {
    "it gives NaN": lambda *inputs: tuple(part.log() for part in RIGHT(*inputs)),
    "no gradient reaches w_q, w_k, w_v": lambda *inputs: tuple(part.detach() for part in RIGHT(*inputs)),
    "RuntimeError in line .*: Can't call numpy": lambda *inputs: RIGHT(inputs[0].numpy(), *inputs[1:]),
    "instead of .*; here all inputs are float32": lambda *inputs: tuple(part.double() for part in RIGHT(*inputs)),
    "The checker: must return output, weights": lambda *inputs: RIGHT(*inputs)[0],
    r"would take \d+ minutes or more: loop less": lambda *inputs: time.sleep(0.02 * len(inputs[0])) or RIGHT(*inputs),
    "not written yet": phase2.multi_head_attention,
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_trained_is_refused_in_one_line(line, monkeypatch, capsys):
    monkeypatch.setattr(train, "PATIENCE", 20)
    with pytest.raises(ValueError, match=line) as refusal:
        trained(REFUSED[line], monkeypatch, capsys, steps=300)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("phase", "names"), [(phase2, "multi_head_attention"), (phase3, "no exercise of")])
def test_an_exercise_that_cannot_be_trained_names_those_that_can(phase, names, capsys):
    for arguments in (["--train", "1"], ["--train"]):
        with pytest.raises(SystemExit, match="2"):
            phase.main([*arguments, "--solutions"])
        assert f"--train takes {names}" in capsys.readouterr().err
