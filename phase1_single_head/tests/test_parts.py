"""Parts of attention against torch's module, formulas and loops; lookups whose answers are known."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase1_single_head.models import make_single_head
from phase1_single_head.parts import cross_attention, queries_and_keys, scaling, soft_lookup
from phase1_single_head.parts.cross_attention import CrossAttention
from phase1_single_head.parts.soft_lookup import Reading
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import training
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import D_K, T_K, T_Q, B, close, torch_single_head
from shared.toy_language import encode


def test_cross_attention_is_torchs_module_with_one_head():
    """Unequal lengths, the padding of the context hidden; outputs, weights and gradients of both inputs."""
    torch.manual_seed(20)
    ours = CrossAttention(D_K).double()
    x, context = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    mask = padding_mask(torch.tensor([4, 7]), T_K)
    results = []
    for attend in (
        lambda x, context: ours(x, context, mask),
        lambda x, context: torch_single_head(ours)(x, context, context, key_padding_mask=~mask[:, 0, 0]),
    ):
        inputs = [x.clone().requires_grad_(), context.clone().requires_grad_()]
        output, weights = attend(*inputs)
        gradients = torch.autograd.grad((output**2).sum(), inputs)
        results.append((output, weights.reshape(B, T_Q, T_K), *gradients))
    for mine, torchs in zip(*results, strict=True):
        close(mine, torchs, rtol=0, atol=1e-12)


def test_cross_attention_reads_keys_and_values_from_the_context_alone():
    torch.manual_seed(21)
    attention = CrossAttention(D_K, d_k=3, d_v=13).double()
    x, context = torch.randn(B, T_Q, D_K).double(), torch.randn(B, T_K, D_K).double()
    output, weights = attention(x, context)
    for b, i in itertools.product(range(B), range(T_Q)):
        query = attention.w_q.weight @ x[b, i]
        scores = torch.stack([query @ (attention.w_k.weight @ row) for row in context[b]]) / math.sqrt(3)
        expected = torch.softmax(scores, dim=0)
        close(weights[b, 0, i], expected)
        value = sum(w * (attention.w_v.weight @ row) for w, row in zip(expected, context[b], strict=True))
        close(output[b, i], attention.w_o.weight @ value)
    assert output.shape == (B, T_Q, D_K) and weights.shape == (B, 1, T_Q, T_K)


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
    facts = cross_attention.draw_facts(300, torch.Generator().manual_seed(3), shift)
    for row in range(300):
        nouns, length = facts.nouns[row].tolist(), int(facts.lengths[row])
        assert len(set(nouns)) == len(nouns) and 5 <= length <= cross_attention.MOST_FACTS
        for column, (question, place) in enumerate(
            zip(facts.questions[row].tolist(), facts.aligned[row].tolist(), strict=True)
        ):
            assert place < length and nouns[place] == (question + shift) % len(cross_attention.NOUNS)
            assert facts.answers[row, column] == facts.adjectives[row, place]
    assert facts.mask.sum(dim=-1).flatten().tolist() == facts.lengths.tolist()


def test_lookup_is_scored_against_the_right_fact():
    """An attention made by hand that looks at the right fact scores 1, one that looks beside it 0."""
    facts = cross_attention.draw_facts(50, torch.Generator().manual_seed(4))

    class Look(nn.Module):
        def __init__(self, beside):
            super().__init__()
            self.beside = beside

        def forward(self, x, context, mask):
            weights = F.one_hot((facts.aligned + self.beside) % cross_attention.MOST_FACTS, cross_attention.MOST_FACTS)
            return weights.float() @ context, weights[:, None].float()

    for beside, expected in ((0, 1.0), (1, 0.0)):
        assert cross_attention.score(cross_attention.Lookup(Look(beside)), facts)[1] == expected


@pytest.mark.parametrize("divide", [True, False])
def test_scaling_measures_the_gradients_of_its_formula(divide):
    """dL/ds_j = w_j (v_j - L) and dL/dq = sum_j dL/ds_j k_j / √d_k, against what measure() reports at d_k = 11."""
    stats, generator = scaling.measure(11, divide, seed=5), torch.Generator().manual_seed(5)
    shapes = ((1, 11), (scaling.NUM_KEYS, 11), (scaling.NUM_KEYS, 1))
    query, key, value = (torch.randn(scaling.NUM_DRAWS, *shape, generator=generator) for shape in shapes)
    root = math.sqrt(11) if divide else 1.0
    weights = torch.softmax((query @ key.mT / root), dim=-1)
    at_scores = weights * (value.mT - weights @ value)
    at_query = (at_scores @ key / root).norm(dim=-1).flatten()
    expected = {
        scaling.AT_SCORES: at_scores.norm(dim=-1).mean().item(),
        scaling.AT_QUERY: at_query.mean().item(),
        scaling.MEDIAN: at_query.median().item(),
        "largest weight": weights.amax(dim=-1).mean().item(),
    }
    assert {name: stats[name] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_unscaled_attention_differs_by_the_root_alone():
    torch.manual_seed(28)
    ours = scaling.UnscaledSelfAttention(D_K, 7, output_projection=True).double()
    x = torch.randn(B, T_Q, D_K).double()
    scores = ours.w_q(x) @ ours.w_k(x).mT
    close(ours(x, causal_mask(T_Q))[1][:, 0], scores.masked_fill(~causal_mask(T_Q), -math.inf).softmax(dim=-1))
    torch.manual_seed(28)
    folded = scaling.FoldedSelfAttention(D_K, 7, output_projection=True).double()
    close(folded.w_q.weight * math.sqrt(7), ours.w_q.weight, rtol=1e-6, atol=0)
    close(folded.w_k.weight, ours.w_k.weight)


def after_steps(attention, optimizer, steps=30):
    """Loss and weights of attention after some steps of a made task."""
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
        for kind in (SelfAttention, scaling.FoldedSelfAttention):
            torch.manual_seed(28)
            made.append(after_steps(kind(D_K, 64, output_projection=True).double(), optimizer))
        differences.append((made[0] - made[1]).abs().max().item())
    assert differences[0] < 1e-6 and differences[1] > 1e-2


def random_reading(seed=0, length=7, d_k=11, d_v=13):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(length, d, generator=generator).double() for d in (d_k, d_k, d_v))
    return Reading(list("abcdefg"[:length]), query, key, value, (query @ key.T / math.sqrt(d_k)).softmax(dim=-1))


def test_reading_is_what_the_model_itself_computes():
    trained = training.untrained(training.Recipe("t", "masked word", 1, 1, 7, d_model=14), make_single_head)
    words = ["the", "big", "cat", "sat", "on", "a", "mat"]
    reading, short = soft_lookup.read(trained, [words, words[:2]])
    weights = trained.model(torch.tensor([encode(words)]))[1][0][0, 0]
    close(reading.weights.float(), weights, rtol=0, atol=1e-5)
    assert reading.query.dtype == torch.float64 and reading.value.shape == (7, 14) and short.weights.shape == (2, 2)
    assert trained.model.positions.dtype == torch.float32, "the model that was passed in stays as it was"


def test_share_found_by_hand():
    rows = torch.tensor([[0.95, 0.05], [0.6, 0.4]], dtype=torch.float64)
    reading = Reading(["a", "b"], rows, rows, rows, rows)
    assert soft_lookup.share_found([reading]) == pytest.approx((0.775, 0.5))


def test_gradients_reach_all_of_a_soft_and_values_alone_of_a_hard_lookup():
    reading = random_reading()
    soft, hard = soft_lookup.gradient_sizes(reading), soft_lookup.gradient_sizes(reading, hard=True)
    assert min(sizes.min() for sizes in soft.values()) > 1e-6
    assert hard["query"].max() == hard["key"].max() == 0.0
    picked = reading.weights.argmax(dim=-1).bincount(minlength=7)  # v picked m times: d(m v²)/dv = 2 m v
    close(hard["value"], 2 * picked * reading.value.norm(dim=-1))


def attended(query, reading):
    return scaled_dot_product_attention(query, reading.key, reading.value)[0][0]


def test_pooling_queries_give_the_mean_and_any_single_value():
    reading = random_reading()
    close(attended(torch.zeros(1, 11).double(), reading), reading.value.mean(dim=0))
    for wanted in range(7):
        close(attended(soft_lookup.picking_query(reading.key, wanted), reading), reading.value[wanted])
        scores = soft_lookup.picking_query(reading.key, wanted, margin=3.0) @ reading.key.T / math.sqrt(11)
        close(scores[0], 3.0 * F.one_hot(torch.tensor(wanted), 7).double(), rtol=0, atol=1e-12)
    crowded = random_reading(d_k=3)  # 7 keys in 3 dimensions depend on each other
    close(attended(torch.zeros(1, 3).double(), crowded), crowded.value.mean(dim=0))
    assert (attended(soft_lookup.picking_query(crowded.key, 0), crowded) - crowded.value[0]).abs().max() > 1e-3


def over_the_batch(x):
    """A mistake: the softmax runs over the items of the batch."""
    weights = (x @ x.mT).softmax(dim=0)
    return weights @ x, weights


def test_items_of_a_batch_are_independent_and_the_check_notices_when_not():
    torch.manual_seed(0)
    x, other = torch.randn(2, 3, 7, 13)
    neighbours = torch.cat([x[:1], other[1:]])
    attention = SelfAttention(13, d_k=5, d_v=3)
    assert torch.equal(attention(x)[0][0], attention(neighbours)[0][0])
    assert not torch.allclose(over_the_batch(x)[0][0], over_the_batch(neighbours)[0][0], atol=1e-2)


def one_pass_against_prefixes(reading, mask):
    """Largest difference of outputs and of gradients between one masked pass and a pass for each prefix."""
    inputs = [tensor.clone().requires_grad_() for tensor in (reading.query, reading.key, reading.value)]
    together, _ = scaled_dot_product_attention(*inputs, mask)
    alone = torch.cat([scaled_dot_product_attention(*(x[:end] for x in inputs))[0][-1:] for end in range(1, 8)])
    gradients = [torch.autograd.grad(outputs.square().sum(), inputs) for outputs in (together, alone)]
    pairs = [(together, alone), *zip(*gradients, strict=True)]
    return max((a - b).abs().max().item() for a, b in pairs)


def test_one_causal_pass_trains_all_prefixes_and_other_masks_do_not():
    reading = random_reading()
    assert one_pass_against_prefixes(reading, causal_mask(7)) < 1e-12
    for wrong in (None, causal_mask(7).T, torch.ones(7, 7, dtype=torch.bool).tril(1)):
        assert one_pass_against_prefixes(reading, wrong) > 1e-3


@pytest.mark.parametrize("size", [3, 7, 11])
def test_symmetric_scores_weigh_a_ring_the_same_both_ways(size):
    """With W_k = W_q scores are symmetric, and the weight of a ring is at most 1/2."""
    half = 3 * torch.randn(size, size, generator=torch.Generator().manual_seed(size)).double()
    weights, ring = (half + half.T).softmax(dim=-1), torch.arange(size).roll(-1)
    forward, backward = weights[range(size), ring], weights[ring, range(size)]
    close(forward.log().sum(), backward.log().sum())
    assert forward.log().mean().exp() <= 0.5
    one_sided = half.softmax(dim=-1)  # the control: without symmetry the two differ
    assert not torch.allclose(one_sided[range(size), ring].log().sum(), one_sided[ring, range(size)].log().sum())


@pytest.mark.parametrize("seed", range(3))
def test_a_ring_needs_two_projections_and_a_star_does_not(seed):
    ring, star = [1, 2, 3, 4, 0], [4, 4, 4, 4, 4]
    assert queries_and_keys.learn_to_look(ring, seed, shared=False) > 0.99
    assert queries_and_keys.learn_to_look(ring, seed, shared=True) <= 0.5 + 1e-6
    assert queries_and_keys.learn_to_look(star, seed, shared=True) > 0.99


def test_share_on_diagonal_by_hand():
    weights = torch.tensor([[[0.6, 0.4], [0.7, 0.3]], [[0.9, 0.1], [0.2, 0.8]]])
    assert queries_and_keys.share_on_diagonal(weights) == 0.75
    assert queries_and_keys.share_on_diagonal(weights[0]) == 0.5


def test_nothing_is_learned_among_bare_vectors():
    """A demonstration with Q = K = V = X has no parameter; a head has."""
    x = torch.randn(5, 8)
    assert not scaled_dot_product_attention(x, x, x)[1].requires_grad
    assert SelfAttention(8)(x[None])[1].requires_grad


def test_replaced_padding_is_seen_only_without_the_mask():
    torch.manual_seed(0)
    facts = cross_attention.draw_facts(50, torch.Generator().manual_seed(0))
    model = cross_attention.Lookup(CrossAttention(cross_attention.D_MODEL))
    moved = cross_attention.replace_padding(model, facts)
    assert moved["with the mask"] == 0 and moved["without a mask"] > 0.01


@pytest.mark.parametrize(("without", "said"), [(0.2, "Without the division"), (1.0, "9 steps are too few")])
def test_title_says_what_training_found(without, said):
    found = scaling.ends(divided=1.0, not_divided=without, smaller_W_q=1.0)
    figure, _ = scaling.draw_training(found, 1, 9)
    assert figure.get_suptitle().startswith(said)
    scaling.plt.close(figure)
