"""Tests: helpers."""

import inspect
import types

import pytest
import torch

from phase1_single_head import self_attention
from phase1_single_head import visualize as visualize1
from phase1_single_head.before import bottleneck, scoring, scoring_rules
from phase1_single_head.long_path import layer_costs, path_length, recurrence
from phase1_single_head.order import position_encodings, positions
from phase1_single_head.parts import cross_attention, queries_and_keys, scaling, scaling_training, soft_lookup
from phase1_single_head.reading import reading_weights, textbook_numbers, weight_statistics
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head import multi_head_attention
from phase2_multi_head import visualize as visualize2
from phase2_multi_head.block import collapse_rate, pre_or_post_norm, rank_collapse, transformer_block
from phase2_multi_head.costs import benchmark, cost_model, fused_attention, head_costs
from phase2_multi_head.heads import heads_vs_loss, one_or_four_heads, output_projection, untrained_heads, wrong_heads
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase2_multi_head.pooling import attention_pooling, pooling_questions
from phase2_multi_head.pruning import head_pruning, two_lookups
from phase3_visualization import attention_3d, attention_flow
from phase3_visualization.explanation import not_an_explanation
from phase3_visualization.layers import faithfulness, rollout
from phase3_visualization.roles import attention_distance as distance3
from phase3_visualization.roles import entropy_training, head_roles, role_stability, training_film
from phase3_visualization.roles.attention_distance import CausalAttention
from phase4_causal import causal_attention, key_value_cache, summary
from phase4_causal import visualize as visualize4
from phase4_causal.long_texts import length_benchmark, linear_kernel, long_context, sparse_reach
from phase4_causal.masking import breaking_causality, causality, mask_patterns, masks, nan_causes
from phase4_causal.writing import cache_costs, cached_or_not, generation_film, generation_temperature, promises
from phase4_causal.writing import generate as generate4
from shared import training
from shared.training import Recipe

"""The tests of everything:  ./run_all.sh test   or   pytest test_all.py

They compare with oracles: a plain loop, torch's own functions with copied weights, numbers worked by hand. Sizes are
different primes, so that no two axes can be confused; float64 first, where equal means equal to 12 digits. Checks of
the core take the module under test as an argument, because one test breaks the code in sixteen ways and asks whether
the check that is meant to notice does notice.
"""


B, H, T_Q, T_K, D_K, D_V = 2, 3, 5, 7, 11, 13


SCRIPTS = (
    self_attention,
    visualize1,
    soft_lookup,
    queries_and_keys,
    scoring,
    scoring_rules,
    cross_attention,
    scaling,
    scaling_training,
    bottleneck,
    position_encodings,
    positions,
    recurrence,
    path_length,
    layer_costs,
    reading_weights,
    weight_statistics,
    textbook_numbers,
    multi_head_attention,
    visualize2,
    one_or_four_heads,
    untrained_heads,
    heads_vs_loss,
    wrong_heads,
    output_projection,
    head_costs,
    two_lookups,
    head_pruning,
    transformer_block,
    pre_or_post_norm,
    rank_collapse,
    collapse_rate,
    attention_pooling,
    pooling_questions,
    fused_attention,
    cost_model,
    benchmark,
    attention_flow,
    attention_3d,
    head_roles,
    role_stability,
    distance3,
    entropy_training,
    training_film,
    rollout,
    faithfulness,
    not_an_explanation,
    masks,
    causal_attention,
    visualize4,
    causality,
    nan_causes,
    breaking_causality,
    key_value_cache,
    cached_or_not,
    generate4,
    generation_temperature,
    generation_film,
    mask_patterns,
    promises,
    long_context,
    sparse_reach,
    linear_kernel,
    cache_costs,
    length_benchmark,
    summary,
)


torch.set_num_threads(1)  # the tensors are so small that a second thread costs more than it brings


close = torch.testing.assert_close


def qkv(seed=0, *, t_q=T_Q, t_k=T_K, dtype=torch.float64, leading=(B, H), d_k=D_K, d_v=D_V):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((t_q, d_k), (t_k, d_k), (t_k, d_v))
    return [torch.randn(*leading, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def some_mask(generator, shape):
    """About two thirds visible, and the first query of it sees nothing at all."""
    mask = torch.rand(shape, generator=generator) < 0.67
    mask[..., 0, :] = False
    return mask


def attention(query, key, value, mask=None):
    return scaled_dot_product_attention(query, key, value, mask)


def broken(module, replacements):
    """A copy of the module with each of the replacements made exactly once."""
    source = inspect.getsource(module)
    for old, new in replacements:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
        source = source.replace(old, new)
    copy = types.ModuleType(f"broken_{module.__name__}")
    exec(compile(source, copy.__name__, "exec"), copy.__dict__)
    return copy


def words_of(sentence):
    return sentence.split()


def layer(d_model: int = 33, num_heads: int = 3, dtype: torch.dtype = torch.float64) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(d_model, num_heads, bias=False).to(dtype)


def needs_browser(test):
    """All of them in one process, since they share one Chromium."""
    return pytest.mark.browser(pytest.mark.xdist_group("browser")(test))


EXPLORER_RECIPES = (
    Recipe("both sides", "masked word", num_heads=4, num_layers=2, steps=0),
    Recipe("causal", "next word", num_heads=4, num_layers=2, steps=0),
    Recipe("small", "masked word", num_heads=3, num_layers=3, steps=0, d_model=21),
    Recipe("small causal", "next word", num_heads=5, num_layers=1, steps=0, d_model=15),
)


def sharp_model(recipe):
    """Random weights, but large: no zero bias, words that outweigh positions, attention that decides."""
    make_attention = CausalAttention if recipe.objective == "next word" else MultiHeadAttention
    trained = training.untrained(recipe, make_attention)
    with torch.no_grad():
        for name, parameter in trained.model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            if "norm.weight" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            if name == "embedding.weight":
                parameter.mul_(4)
            if "w_q.weight" in name or "w_k.weight" in name:
                parameter.mul_(5)
    trained.model.eval()
    return trained


def open_watched(browser, address, errors, **context):
    """A new tab; whatever it complains about, and whatever it asks for beside its own file, lands in errors."""
    page = browser.new_page(**context)
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith(address.split("#")[0]) else errors.append(request.url)
    )
    page.goto(address)
    return page


def change(before, after):
    old, new = f"{before:.2f}", f"{after:.2f}"
    return new if old == new else f"{old} → {new}"


EXPECTED = {
    "phase1/attention_heatmap.png",
    "phase1/qkv_flow.png",
    "phase1/alignment.png",
    "phase1/bottleneck.png",
    "phase1/cross_attention.png",
    "phase1/path_length.png",
    "phase1/positions.png",
    "phase1/reading_weights.png",
    "phase1/scaling.png",
    "phase1/scaling_training.png",
    "phase1/scoring_rules.png",
    "phase2/multi_head_grid.png",
    "phase2/attention_entropy.png",
    "phase2/head_roles.png",
    "phase2/heads_vs_loss.png",
    "phase2/rank_collapse.png",
    "phase2/benchmark.png",
    "phase2/cost_model.png",
    "phase2/head_pruning.png",
    "phase2/attention_pooling.png",
    "phase3/attention_flow.png",
    "phase3/3d_attention.png",
    "phase3/3d_heads.png",
    "phase3/head_roles.png",
    "phase3/role_stability.png",
    "phase3/attention_distance.png",
    "phase3/entropy_training.png",
    "phase3/rollout.png",
    "phase3/not_an_explanation.png",
    "phase4/causal_mask.png",
    "phase4/mask_gallery.png",
    "phase4/mask_conventions.png",
    "phase4/leak_proof.png",
    "phase4/next_token.png",
    "phase4/break_causality.png",
    "phase4/kv_cache.png",
    "phase4/linear_attention.png",
    "phase4/long_context.png",
    "phase4/generation_temperature.png",
    "phase4/mask_patterns.png",
    "phase4/sparse_reach.png",
    "phase4/bidirectional_vs_causal.png",
    "summary_all_phases.png",
}


IN_ONE_RUN = pytest.mark.xdist_group("run")  # in one process, when the tests run in several: all scripts run once only


NOT_RUN = (  # these need the extra, or take longer: the claim stands in the script
    *("pretrained", "pretrained_parity", "coreference", "hub_or_no_op"),
    *("induction", "ring_attention"),
)
