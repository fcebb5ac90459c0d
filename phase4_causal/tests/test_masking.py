"""Masks against their definitions, leaks against planted ones, losses against plain loops, rules on made numbers."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase4_causal.causal_attention import CausalSelfAttention, largest_leak
from phase4_causal.masking import breaking_causality, causality, masks, nan_causes
from phase4_causal.masking.breaking_causality import ATTENTION, WITH, WITHOUT, made_up, train
from shared import training
from shared.attention_utils import blocked_mask, causal_mask, prefix_mask
from shared.evidence.claims import FAILS, HOLDS, ONLY_IF
from shared.toy_language import END_ID, START_ID, VOCABULARY, Sentence, encode


def verdicts(*measured) -> dict[str, str]:
    return {claim.id: claim.verdict(numbers) for numbers in measured for claim in numbers.claims}


@pytest.mark.parametrize(("num_queries", "num_keys"), [(7, 7), (3, 7), (1, 5), (7, 5)])
def test_blocked_and_prefix_masks_agree_with_their_definition_cell_by_cell(num_queries: int, num_keys: int) -> None:
    for block, first in ((3, 2), (1, 0), (num_keys, num_keys)):  # the last two: at their limits
        blocked, prefix = blocked_mask(num_queries, num_keys, block), prefix_mask(num_queries, num_keys, first)
        assert blocked.dtype == prefix.dtype == torch.bool and blocked.shape == prefix.shape == (num_queries, num_keys)
        for i in range(num_queries):
            position = i + num_keys - num_queries
            for j in range(num_keys):
                assert blocked[i, j] == (math.floor(position / block) == j // block)
                assert prefix[i, j] == (j <= position or j < first)


def test_blocked_and_prefix_masks_beyond_their_limits() -> None:
    with pytest.raises(ValueError, match="block must be 1 or more: got 0"):
        blocked_mask(5, 5, 0)
    with pytest.raises(ValueError, match="between 0 and T_k=5: got 6"):
        prefix_mask(5, 5, 6)


def test_mixes_of_mask_and_code_are_right_where_torch_says_so_and_wrong_elsewhere() -> None:
    scores, allowed = masks.random_scores(), causal_mask(masks.LENGTH)
    found = masks.mixes()
    right = {mix for mix, (_, difference) in found.items() if difference < masks.ZERO}
    assert right == {
        ("True = may attend", "True = may attend"),
        ("True = may attend", "fill where mask == 0"),
        ("0 or -inf", "scores + mask"),
        ("0 or -inf", "True = hidden"),
        ("1 or 0", "True = may attend"),
        ("1 or 0", "fill where mask == 0"),
        ("True = hidden", "True = hidden"),
    }
    identity = torch.eye(masks.LENGTH, dtype=torch.float64).expand_as(scores)
    ones_added = F.scaled_dot_product_attention(scores, identity, identity, attn_mask=allowed.double(), scale=1.0)
    assert found["1 or 0", "scores + mask"][0] == pytest.approx(masks.future_mass(ones_added), abs=1e-12)
    # inverted: every row but the last, which sees nothing, has all of its weight in the future
    assert found["True = may attend", "True = hidden"][0] == pytest.approx(5 / 6)
    assert math.isnan(found["0 or -inf", "scores * mask"][0])  # 0 * -inf


def test_future_mass_by_hand() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [1.0, 0.0, 0.0]])
    assert masks.future_mass(weights) == pytest.approx(0.75 / 3)


def test_what_is_said_of_masks_comes_out_as_in_the_table() -> None:
    found = verdicts(masks.causal_weights(), masks.misread(masks.mixes(), 0.4))
    assert found == {"C091": HOLDS, "C092": FAILS, "C093": FAILS, "C094": HOLDS, "C095": FAILS, "C096": HOLDS}


def test_nan_comes_from_rows_without_a_key_and_from_float16_and_not_with_ours() -> None:
    left = nan_causes.batch_masks()["left"]
    assert left[1, 0].tolist()[2] == [False, False, True, False, False]  # its first real word sees itself
    nothing, two = [0] * 4, [2] * 4  # two words of padding on the left
    rows = nan_causes.blind_rows()
    assert rows == {"right, plain": nothing, "right, ours": nothing, "left, plain": two, "left, ours": nothing}
    gradients = nan_causes.gradients_lost()
    assert min(gradients["plain"]) >= 1 and gradients["ours"] == nothing
    in_float16 = [int(dtype == torch.float16) for dtype in nan_causes.DTYPES]
    large = {"not scaled": in_float16, "scaled after": in_float16, "scaled before": nothing}
    assert nan_causes.large_inputs() == large


def test_padding_effects_agree_with_torch() -> None:
    effects = nan_causes.padding_effects()
    x = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theirs = F.scaled_dot_product_attention(x, x, x, attn_mask=torch.arange(5) < 3)
    assert effects["change of real words"] == 0
    assert effects["output at padding"] == pytest.approx(theirs[0, 3:].norm(dim=-1).min().item())
    identity = torch.eye(5, dtype=torch.float64)[None]
    added = F.scaled_dot_product_attention(x, x, identity, attn_mask=(torch.arange(5) < 3).double())
    assert effects["weight on padding, 1 or 0 added"] == pytest.approx(added[0, :, 3:].sum(dim=-1).mean().item())


LEAK_TOKENS = torch.tensor([[START_ID, *encode(["the", "cat", "sat", "on"])]])


@pytest.mark.parametrize("name", causality.CAUSAL)
def test_causal_modules_do_not_leak(name: str) -> None:
    for num_layers in (1, 2, 3):
        model = causality.build(causality.CAUSAL[name], num_layers, seed=3)
        assert largest_leak(model, LEAK_TOKENS) == (0.0, 0.0), "later words move earlier logits"
        assert torch.equal(causality.influence(model, LEAK_TOKENS) > 0, causal_mask(5))


@pytest.mark.parametrize("name", causality.PLANTED)
def test_planted_mistakes_are_caught_with_one_layer_and_with_two(name: str) -> None:
    for num_layers in (1, 2):
        change, gradient = largest_leak(causality.build(causality.PLANTED[name], num_layers, seed=3), LEAK_TOKENS)
        assert min(change, gradient) > causality.NOTICED


def test_influence_is_the_largest_derivative_of_the_squared_logits() -> None:
    model = causality.build(CausalSelfAttention, 1, seed=5)
    found, step = causality.influence(model, LEAK_TOKENS), 1e-5

    def squared(i: int, j: int, column: int, by: float) -> float:
        place = tuple(torch.tensor(n) for n in (0, j, column))
        moved = torch.tensor(by, dtype=torch.float64)
        hook = model.embedding.register_forward_hook(lambda _m, _i, out: out.index_put(place, moved, accumulate=True))
        with torch.no_grad():
            value = model(LEAK_TOKENS)[0][0, i].square().sum().item()
        hook.remove()
        return value

    slopes = [abs(squared(3, 1, c, step) - squared(3, 1, c, -step)) / (2 * step) for c in range(64)]
    assert found[3, 1].item() == pytest.approx(max(slopes), rel=1e-5)


def test_with_mask_ands_a_further_mask() -> None:
    class Given(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            return x, mask

    wrapped = causality.WithMask(Given(), causal_mask)
    further = torch.tensor([True, False, True])
    assert torch.equal(wrapped(torch.zeros(1, 3, 2), mask=further)[1], causal_mask(3) & further)


def test_chance_that_a_shuffle_changes_nothing() -> None:
    chances = causality.shuffled(["a", "the", "b", "the"], 1.0)["chance that nothing changes, first cut to last"]
    assert chances == pytest.approx([2 / 6, 1 / 2, 1])


def test_past_loss_of_a_causal_model_is_its_full_loss_and_a_loop_agrees() -> None:
    trained = train(WITH, 1, training.corpus()[0][:64], 3, seed=5)
    sentences = training.corpus()[1][:5]
    model, terms = trained.model, []
    with torch.no_grad():
        for sentence in sentences:
            tokens = [START_ID, *encode(sentence.words), END_ID]
            for i in range(1, len(tokens)):
                logits, _ = model(torch.tensor([tokens[:i]]))
                terms.append(-logits[0, -1].log_softmax(dim=-1)[tokens[i]].item())
    expected = sum(terms) / len(terms)
    assert breaking_causality.past_loss(model, sentences) == pytest.approx(expected, abs=1e-5)
    assert breaking_causality.full_loss(model, sentences) == pytest.approx(expected, abs=1e-5)


def test_modes_share_first_weights_and_batches() -> None:
    sentences = training.corpus()[0][:64]
    runs = {mode: train(mode, 2, sentences, 2, seed=7) for mode in ATTENTION}
    assert train(WITH, 2, sentences, 2, seed=7).history.loss == runs[WITH].history.loss
    assert runs[WITH].history.loss != runs[WITHOUT].history.loss
    first = [train(mode, 2, sentences, 0, seed=7).model.state_dict() for mode in ATTENTION]
    assert all(torch.equal(first[0][name], first[1][name]) for name in first[0])


def test_floor_is_what_the_grammar_loses_per_word() -> None:
    # Worked by hand: 12 verbs; no adverb 0.8 three times; no attractor 0.7. A noun phrase without adjective: number
    # 0.5, one of 5 determiners, no adjective 0.5, one of 3 nouns. Six words and <end> are predicted.
    words = tuple(["the", "cat", "sat", "on", "the", "mat"])
    phrase = 0.5 / 5 * 0.5 / 3
    assert breaking_causality.floor([Sentence(words, {})]) == pytest.approx(
        -math.log(0.8**3 * 0.7 / 12 * phrase**2) / 7
    )
    assert math.log(len(VOCABULARY)) == breaking_causality.UNIFORM


def test_verdicts_follow_the_numbers() -> None:
    claims = {claim.id: claim for claim in breaking_causality.break_causality.claims}

    def verdict(name: str, *outcome: tuple[float, ...], one_sentence: float = 0.01) -> str:
        learnt = {f"one sentence, {WITH}": [one_sentence], f"one sentence, {WITHOUT}": [0.01]}
        return claims[name].verdict(made_up(*outcome) | learnt)

    honest, as_written = (2.0, 2.5, 2.0), (2.0, 2.5, 2.5)
    assert verdict("C101", honest, (9.0, 0.06, 9.0)) == verdict("C101", honest, (4.0, 0.01, 4.0)) == FAILS
    assert verdict("C102", honest) == ONLY_IF and verdict("C102", (2.0, 2.05, 2.0)) == FAILS
    assert verdict("no-mask-when-writing", honest) == HOLDS and verdict("no-mask-when-writing", as_written) == FAILS
    assert verdict("C103", honest) == ONLY_IF and verdict("C103", honest, one_sentence=2.0) == HOLDS
    assert verdict("C103", honest, (9.0, 2.0, 9.0)) == FAILS
