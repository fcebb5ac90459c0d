"""Parts of attention against formulas and loops; look-ups whose answers are known."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase1_single_head.parts import queries_and_keys, scaling
from phase1_single_head.parts.cross_attention import CrossAttention
from phase1_single_head.parts.undivided import FoldedSelfAttention, UndividedSelfAttention
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared.attention_utils import causal_mask
from shared.tasks import MOST_FACTS, NOUNS, Lookup, TwoPlaces, draw_facts, train_two_places
from shared.tests.helpers import D_K, T_Q, B, near


@pytest.mark.parametrize(
    ("x", "context", "mask", "message"),
    [
        ((2, 3, 5), (2, 3, 4), None, r"x must have shape .*d_model=4"),
        ((2, 3, 4), (3, 4), None, r"context must have shape .*\(3, 4\)"),
        ((2, 3, 4), (2, 5, 4), (3, 6), r"mask of shape \(3, 6\) does not broadcast to scores of shape \(2, 1, 3, 5\)"),
    ],
)
def test_errors_of_cross_attention_name_rule_and_numbers(x, context, mask, message):
    with pytest.raises(ValueError, match=message):
        CrossAttention(4)(torch.ones(x), torch.ones(context), None if mask is None else torch.ones(mask).bool())


@pytest.mark.parametrize("shift", [0, 1])
def test_facts_know_their_right_answers(shift):
    facts = draw_facts(300, torch.Generator().manual_seed(3), shift)
    for row in range(300):
        nouns, length = facts.nouns[row].tolist(), int(facts.lengths[row])
        assert len(set(nouns)) == len(nouns) and 5 <= length <= MOST_FACTS
        for column, place in enumerate(facts.aligned[row].tolist()):
            assert place < length and nouns[place] == (facts.questions[row, column] + shift) % len(NOUNS)
            assert facts.answers[row, column] == facts.adjectives[row, place]
    assert facts.mask.sum(dim=-1).flatten().tolist() == facts.lengths.tolist()


def test_a_look_up_is_scored_against_the_right_fact():
    """An attention made by hand that looks at the right fact scores 1, one that looks beside it 0."""
    facts = draw_facts(50, torch.Generator().manual_seed(4))

    class Look(nn.Module):
        def __init__(self, beside):
            super().__init__()
            self.beside = beside

        def forward(self, x, context, mask):
            weights = F.one_hot((facts.aligned + self.beside) % MOST_FACTS, MOST_FACTS)
            return weights.float() @ context, weights[:, None].float()

    for beside, expected in ((0, 1.0), (1, 0.0)):
        assert Lookup(lambda _, beside=beside: Look(beside)).scores(facts)[1] == expected


def test_replaced_padding_is_seen_only_without_the_mask():
    torch.manual_seed(0)
    facts, other = (draw_facts(50, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    model = Lookup(CrossAttention)
    questions, memory = model.noun(facts.questions), model.memory(facts)
    repadded = torch.where(facts.mask[:, 0, 0, :, None], memory, model.memory(other))  # (B, 1, 1, M) -> (B, M, 1)
    for mask, same in ((facts.mask, True), (None, False)):
        assert torch.equal(*(model.attention(questions, facts_in, mask)[0] for facts_in in (memory, repadded))) == same


@pytest.mark.parametrize("divide", [True, False])
def test_scaling_measures_the_gradients_of_its_formula(divide):
    """dL/ds_j = w_j (v_j - L) and dL/dq = sum_j dL/ds_j k_j / √d_k, against what is reported at d_k = 11."""
    stats, generator = scaling.random_vectors(11, divide, seed=5), torch.Generator().manual_seed(5)
    shapes = ((1, 11), (scaling.NUM_KEYS, 11), (scaling.NUM_KEYS, 1))
    query, key, value = (torch.randn(scaling.NUM_DRAWS, *shape, generator=generator) for shape in shapes)
    root = math.sqrt(11) if divide else 1.0
    weights = torch.softmax((query @ key.mT / root), dim=-1)
    at_scores = weights * (value.mT - weights @ value)
    at_query = (at_scores @ key / root).norm(dim=-1).flatten()
    expected = {
        "mean |dL/dscores|": at_scores.norm(dim=-1).mean().item(),
        "mean |dL/dq|": at_query.mean().item(),
        "median |dL/dq|": at_query.median().item(),
        "largest weight": weights.amax(dim=-1).mean().item(),
    }
    assert {name: stats[name] for name in expected} == pytest.approx(expected, rel=1e-4)


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


def after_steps(attention, optimizer, steps=30):
    """The weights of attention after some steps of a made task."""
    x, wanted = torch.randn(2, B, T_Q, D_K, generator=torch.Generator().manual_seed(29), dtype=torch.float64)
    steps_of = optimizer(attention.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(steps):
        output, weights = attention(x)
        steps_of.zero_grad()
        (output - wanted).square().sum().backward()
        steps_of.step()
    return weights.detach()


def test_a_smaller_start_is_the_division_under_adafactor_and_not_under_adamw():
    """The condition in T5's code: Adafactor's steps shrink with the weights, so that W_q stays smaller by √d_k."""
    differences = []
    for optimizer in (torch.optim.Adafactor, torch.optim.AdamW):
        made = []
        for kind in (SelfAttention, FoldedSelfAttention):
            torch.manual_seed(28)
            made.append(after_steps(kind(D_K, 64, output_projection=True).double(), optimizer))
        differences.append((made[0] - made[1]).abs().max().item())
    assert differences[0] < 1e-6 and differences[1] > 1e-2


def test_answers_of_two_places_by_a_loop():
    generator = torch.Generator().manual_seed(1)
    table, symbols = torch.randint(5, (5, 5), generator=generator), torch.randint(5, (3, 11), generator=generator)
    found = TwoPlaces.answers(symbols, table)
    assert found.shape == (3, 8)
    for row, t in itertools.product(range(3), range(3, 11)):
        assert found[row, t - 3] == table[symbols[row, t - 1], symbols[row, t - 3]]


def test_two_places_are_learned_from_chance():
    _, table, right = train_two_places(lambda d: SelfAttention(d, output_projection=True), seed=0, steps=40)
    assert table.shape == (8, 8) and len(right) == 40 and right[0] < 0.25 < right[-1]


def random_reading(d_k=11, length=7, seed=0):
    """Query, key, value of words with random numbers."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, d, generator=generator).double() for d in (d_k, d_k, 13)]


def gradients(attend, query, key, value):
    """Lengths of what a loss on the output sends to each query, key and value."""
    inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    found = torch.autograd.grad(attend(*inputs).square().sum(), inputs, materialize_grads=True)
    return [gradient.norm(dim=-1) for gradient in found]


def best_alone(query, key, value):
    """A look-up as in a dictionary: the value of the best key, and nothing of the others."""
    return F.one_hot((query @ key.T).argmax(dim=-1), len(key)).to(value) @ value


def test_gradients_reach_all_of_a_soft_and_values_alone_of_a_hard_look_up():
    soft = gradients(lambda q, k, v: scaled_dot_product_attention(q, k, v)[0], *random_reading())
    hard = gradients(best_alone, *random_reading())
    assert min(sizes.min() for sizes in soft) > 1e-6
    assert hard[0].max() == hard[1].max() == 0 < hard[2].max()


def test_a_query_can_ask_for_the_mean_or_for_any_single_value():
    _, key, value = random_reading()
    near(scaled_dot_product_attention(torch.zeros(1, 11).double(), key, value)[0][0], value.mean(dim=0))
    picking = 50 * math.sqrt(11) * torch.linalg.pinv(key).T  # row i scores 50 on key i and 0 on the others
    near(scaled_dot_product_attention(picking, key, value)[0], value)


def test_items_of_a_batch_are_independent():
    torch.manual_seed(0)
    x, other = torch.randn(2, 3, 7, 13)
    attention = SelfAttention(13, d_k=5, d_v=3)
    assert torch.equal(attention(x)[0][0], attention(torch.cat([x[:1], other[1:]]))[0][0])


def test_one_causal_pass_trains_all_prefixes_and_other_masks_do_not():
    reading = random_reading()

    def prefixes(q, k, v):
        return torch.cat([scaled_dot_product_attention(q[:t], k[:t], v[:t])[0][-1:] for t in range(1, 8)])

    def largest_difference(mask):
        def together(q, k, v):
            return scaled_dot_product_attention(q, k, v, mask)[0]

        pairs = zip(gradients(together, *reading), gradients(prefixes, *reading), strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)

    assert largest_difference(causal_mask(7)) == pytest.approx(0, abs=1e-12)
    for wrong in (None, causal_mask(7).T, torch.ones(7, 7, dtype=torch.bool).tril(1)):
        assert largest_difference(wrong) > 1e-3


@pytest.mark.parametrize("size", [3, 7, 11])
def test_symmetric_scores_weigh_a_ring_the_same_both_ways(size):
    """With W_k = W_q scores are symmetric, and the weight of a ring is at most 1/2."""
    half = 3 * torch.randn(size, size, generator=torch.Generator().manual_seed(size)).double()
    weights, ring = (half + half.T).softmax(dim=-1), torch.arange(size).roll(-1)
    forward, backward = weights[range(size), ring], weights[ring, range(size)]
    near(forward.log().sum(), backward.log().sum())
    assert forward.log().mean().exp() <= 0.5
    one_sided = half.softmax(dim=-1)  # the control: without symmetry the two differ
    assert not torch.allclose(one_sided[range(size), ring].log().sum(), one_sided[ring, range(size)].log().sum())


def test_a_ring_needs_two_projections_and_a_star_does_not():
    ring, star = [1, 2, 3, 4, 0], [4, 4, 4, 4, 4]
    assert queries_and_keys.learn_to_look(ring, 0, projections=2) > 0.99
    assert queries_and_keys.learn_to_look(ring, 0, projections=1) <= 0.5 + 1e-6
    assert queries_and_keys.learn_to_look(star, 0, projections=1) > 0.99
