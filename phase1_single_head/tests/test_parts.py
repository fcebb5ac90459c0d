"""Parts of attention against formulas and loops; look-ups whose answers are known."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.parts import queries_and_keys, scaling
from phase1_single_head.parts.cross_attention import CrossAttention
from phase1_single_head.parts.undivided import FoldedSelfAttention, UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.attention_utils import causal_mask
from shared.tasks import MOST_FACTS, NOUNS, Facts, Lookup, TwoPlaces, draw_facts, train_two_places
from shared.tests.helpers import D_K, T_Q, B, near, qkv


def test_errors_of_cross_attention_name_rule_and_numbers():
    for x, context, message in (
        ((2, 3, 5), (2, 3, 4), r"x must have shape .*d_model=4"),
        ((2, 3, 4), (3, 4), r"context must have shape .*\(3, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            CrossAttention(4)(torch.ones(x), torch.ones(context))


@pytest.mark.parametrize("shift", [0, 1])
def test_facts_know_their_right_answers(shift):
    facts = draw_facts(100, torch.Generator().manual_seed(3), shift)
    for row in range(100):
        nouns, length = facts.nouns[row].tolist(), int(facts.lengths[row])
        assert len(set(nouns)) == len(nouns) and 5 <= length <= MOST_FACTS
        for column, place in enumerate(facts.aligned[row].tolist()):
            assert place < length and nouns[place] == (facts.questions[row, column] + shift) % len(NOUNS)
            assert facts.answers[row, column] == facts.adjectives[row, place]
    assert facts.mask.sum(dim=-1).flatten().tolist() == facts.lengths.tolist()


@pytest.mark.parametrize(("beside", "expected"), [(0, 1.0), (1, 0.0)])
def test_a_look_up_is_scored_against_the_right_fact(beside, expected):
    """An attention made by hand that looks at the right fact scores 1, one that looks beside it 0."""
    facts = draw_facts(50, torch.Generator().manual_seed(4))

    def look(x, context, mask):
        weights = F.one_hot((facts.aligned + beside) % MOST_FACTS, MOST_FACTS).float()
        return weights @ context, weights[:, None]

    assert Lookup(lambda _: look).scores(facts)[1] == expected


def test_facts_of_padding_change_no_answer():
    torch.manual_seed(0)
    facts, other = (draw_facts(50, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    model, seen = Lookup(CrossAttention), facts.mask[:, 0, 0]  # (B, 1, 1, M) -> (B, M)
    nouns, adjectives = facts.nouns.where(seen, other.nouns), facts.adjectives.where(seen, other.adjectives)
    repadded = Facts(nouns, adjectives, facts.lengths, facts.aligned, facts.questions)
    assert torch.equal(model(facts)[0], model(repadded)[0])
    questions = model.noun(facts.questions)
    without_mask = [model.attention(questions, model.memory(each))[0] for each in (facts, repadded)]
    assert not torch.allclose(*without_mask)


# ---- the division by √d_k


@pytest.mark.parametrize("divide", [True, False])
def test_scaling_measures_the_gradients_of_its_formula(divide):
    """dL/ds_j = w_j (v_j - L) and dL/dq = sum_j dL/ds_j k_j / √d_k, against what is reported at d_k = 11."""
    stats, generator = scaling.random_vectors(11, divide, seed=5), torch.Generator().manual_seed(5)
    shapes = ((1, 11), (scaling.NUM_KEYS, 11), (scaling.NUM_KEYS, 1))
    query, key, value = (torch.randn(scaling.NUM_DRAWS, *shape, generator=generator) for shape in shapes)
    root = math.sqrt(11) if divide else 1.0
    scores = query @ key.mT / root
    weights = torch.softmax(scores, dim=-1)
    at_scores = weights * (value.mT - weights @ value)
    at_query = (at_scores @ key / root).norm(dim=-1).flatten()
    expected = {
        "spread of scores": scores.std(),
        "entropy": -(weights * weights.log()).sum(dim=-1).mean() / math.log(scaling.NUM_KEYS),
        "largest weight": weights.amax(dim=-1).mean(),
        "mean |dL/dscores|": at_scores.norm(dim=-1).mean(),
        "mean |dL/dq|": at_query.mean(),
        "median |dL/dq|": at_query.median(),
    }
    assert stats == pytest.approx({name: number.item() for name, number in expected.items()}, rel=1e-4)


def test_undivided_attention_differs_by_the_root_alone():
    torch.manual_seed(28)
    ours = UndividedSelfAttention(D_K, 7, output_projection=True).double()
    x = torch.randn(B, T_Q, D_K).double()
    scores = ours.w_q(x) @ ours.w_k(x).mT
    near(ours(x, causal_mask(T_Q))[1][:, 0], scores.masked_fill(~causal_mask(T_Q), -math.inf).softmax(dim=-1))
    torch.manual_seed(28)
    folded = FoldedSelfAttention(D_K, 7, output_projection=True).double()
    near(folded.w_q.weight * math.sqrt(7), ours.w_q.weight, share=1e-6)
    near(folded.w_k.weight, ours.w_k.weight)


def test_answers_of_two_places_by_a_loop():
    generator = torch.Generator().manual_seed(1)
    table, symbols = torch.randint(5, (5, 5), generator=generator), torch.randint(5, (3, 11), generator=generator)
    found = TwoPlaces.answers(symbols, table)
    assert found.shape == (3, 8)
    for row, t in itertools.product(range(3), range(3, 11)):
        assert found[row, t - 3] == table[symbols[row, t - 1], symbols[row, t - 3]]


def test_two_places_are_learned_from_chance_and_the_last_tenth_of_training_counts(monkeypatch):
    _, table, right = train_two_places(lambda d: SelfAttention(d, output_projection=True), seed=0, steps=40)
    assert table.shape == (8, 8) and len(right) == 40 and right[0] < 0.25 < right[-1]
    monkeypatch.setattr(scaling, "train_two_places", lambda *_: (None, None, [0.0] * 27 + [0.5, 0.6, 0.7]))
    found = scaling.learned("divided", 8, SimpleNamespace(seed=0, steps=lambda steps: steps))
    assert found == pytest.approx(0.6)


def test_gradients_reach_all_of_a_soft_and_values_alone_of_a_hard_look_up():
    """Hard, as in a dictionary: the value of the best key, and nothing of the others."""
    inputs = [x.requires_grad_() for x in qkv(leading=())]
    query, key, value = inputs
    soft, _ = scaled_dot_product_attention(query, key, value)
    hard = F.one_hot((query @ key.T).argmax(dim=-1), len(key)).double() @ value
    for output, reached in ((soft, [True, True, True]), (hard, [False, False, True])):
        found = torch.autograd.grad(output.sum(), inputs, materialize_grads=True)
        assert [bool(gradient.any()) for gradient in found] == reached


def test_a_ring_needs_two_projections_and_a_star_does_not():
    """With one for both, scores are symmetric: forwards and backwards a ring has the same weight, at most 1/2."""
    ring, star = [1, 2, 3, 4, 0], [4, 4, 4, 4, 4]
    assert queries_and_keys.learn_to_look(ring, 0, projections=2) > 0.99
    assert queries_and_keys.learn_to_look(ring, 0, projections=1) <= 0.5 + 1e-6
    assert queries_and_keys.learn_to_look(star, 0, projections=1) > 0.99
