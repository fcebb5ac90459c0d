"""All implementations agree (copied weights, float64); parameters, operations and bytes are what the formulas say."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import SelfAttention, attention_by_loops, scaled_dot_product_attention
from phase2_multi_head.costs import benchmark, cost_model, fused_attention, variants
from phase2_multi_head.costs.variants import (
    FUSED,
    FUSED_MASK,
    INVERTED,
    TOLERANCE,
    TORCH,
    Variant,
    check_agreement,
    load_variants,
)
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention, kv_cache_bytes
from phase2_multi_head.multi_head_attention import MultiHeadAttention, StackOfHeads, merge_heads, split_heads
from shared.attention_utils import causal_mask
from shared.measure import count_operations, in_bytes
from shared.tests.helpers import D_K, T_K, T_Q, B, H, close, qkv, some_mask


def layer(d_model: int = 33, num_heads: int = 3, dtype: torch.dtype = torch.float64) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(d_model, num_heads, bias=False).to(dtype)


def masks_for(kind, t_q, t_k):
    generator = torch.Generator().manual_seed(5)
    shapes = {"pairs": (t_q, t_k), "padding": (B, 1, 1, t_k), "each head": (B, H, t_q, t_k)}
    return some_mask(generator, shapes[kind]) if kind in shapes else None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("t_q", "t_k"), [(T_Q, T_Q), (T_Q, T_K), (T_K, T_Q)])
@pytest.mark.parametrize("kind", ["no mask", "pairs", "padding", "each head"])
def test_fused_attention_is_the_plain_one_in_outputs_and_gradients(kind, t_q, t_k, causal):
    torch.manual_seed(0)
    plain, fused = MultiHeadAttention(33, H).double(), FusedMultiHeadAttention(33, H, causal=causal).double()
    fused.load_state_dict(plain.state_dict())
    mask = masks_for(kind, t_q, t_k)
    future_hidden = mask if not causal else causal_mask(t_q, t_k) if mask is None else mask & causal_mask(t_q, t_k)
    gradients = []
    for attention, seen in ((plain, future_hidden), (fused, mask)):
        torch.manual_seed(1)
        x, context = (torch.randn(B, t, 33, dtype=torch.float64, requires_grad=True) for t in (t_q, t_k))
        output, weights = attention(x, context, mask=seen)
        output.square().sum().backward()
        gradients.append((output, x.grad, context.grad, *(p.grad for p in attention.parameters())))
    assert weights is None
    for ours, theirs in zip(*gradients, strict=True):
        close(ours, theirs, rtol=0, atol=1e-11)


def test_fused_attention_passes_is_causal_for_equal_lengths_alone(monkeypatch):
    calls = []

    def watched(*inputs, **options):
        calls.append(options)
        return inputs[0]

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    attention = FusedMultiHeadAttention(33, H, causal=True, dropout=0.25)
    x, longer = torch.randn(B, T_Q, 33), torch.randn(B, T_K, 33)
    attention(x)
    attention.eval()
    attention(x, longer)
    attention(x, mask=torch.ones(T_Q, T_Q).bool())
    assert [c["is_causal"] for c in calls] == [True, False, False]
    assert [c["dropout_p"] for c in calls] == [0.25, 0.0, 0.0]
    assert calls[0]["attn_mask"] is None and torch.equal(calls[1]["attn_mask"], causal_mask(T_Q, T_K))
    with pytest.raises(ValueError, match="head axis"):
        attention(x, mask=torch.ones(B, T_Q, T_Q).bool())


@pytest.mark.parametrize(("heads", "groups"), [(6, 1), (6, 2), (6, 3), (6, 6)])
def test_grouped_queries_are_torchs_and_head_h_reads_its_neighbours_group(heads, groups):
    torch.manual_seed(0)
    attention = GroupedQueryAttention(42, heads, groups).double()
    x, context = torch.randn(B, T_Q, 42, dtype=torch.float64), torch.randn(B, T_K, 42, dtype=torch.float64)
    mask = masks_for("padding", T_Q, T_K)
    output, weights = attention(x, context, mask=mask)
    query = split_heads(attention.w_q(x), heads)
    key, value = (split_heads(w(context), groups) for w in (attention.w_k, attention.w_v))
    fused = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    close(output, attention.w_o(merge_heads(fused)), rtol=0, atol=1e-12)
    for head in range(heads):
        group = head // (heads // groups)
        expected = scaled_dot_product_attention(query[:, head], key[:, group], value[:, group], mask[:, 0])[1]
        close(weights[:, head], expected, rtol=0, atol=1e-12)


def test_grouped_queries_converted_from_many_heads():
    torch.manual_seed(0)
    many = MultiHeadAttention(42, 6).double()
    x = torch.randn(B, T_Q, 42, dtype=torch.float64)
    same = GroupedQueryAttention(42, 6, 6).double()
    same.copy_weights(many)
    for ours, theirs in zip(same(x), many(x), strict=True):
        close(ours, theirs, rtol=0, atol=1e-12)
    halves = GroupedQueryAttention(42, 6, 2).double()
    halves.copy_weights(many)
    for name in ("w_k", "w_v"):
        ours, theirs = getattr(halves, name), getattr(many, name)
        for group, row in itertools.product(range(2), range(7)):
            rows = [7 * head + row for head in range(3 * group, 3 * group + 3)]
            close(ours.weight[7 * group + row], theirs.weight[rows].mean(dim=0))
            close(ours.bias[7 * group + row], theirs.bias[rows].mean())
    with pytest.raises(ValueError, match="num_heads=6 is not divisible by num_kv_heads=4; these work: 1, 2, 3, 6"):
        GroupedQueryAttention(42, 6, 4)


COPIES = {
    "stack": lambda d_model, heads: StackOfHeads(d_model, heads),
    "one projection": lambda d_model, heads: variants.OneProjection(d_model, heads),
    "torch": lambda d_model, heads: variants.TorchMultiHeadAttention(d_model, heads, need_weights=True),
    "grouped": lambda d_model, heads: GroupedQueryAttention(d_model, heads, 2, bias=False),
}


@pytest.mark.parametrize("kind", COPIES)
def test_weights_that_would_mean_something_else_are_not_copied(kind):
    """None of these raised an error; each built another function, and one that differs visibly."""
    mine = COPIES[kind](16, 4)
    before = [parameter.clone() for parameter in mine.parameters()]
    for source, message in (
        (MultiHeadAttention(16, 4), "needs an original with bias=False: got one with bias=True"),
        (MultiHeadAttention(16, 8, bias=False), "d_model=16, num_heads=4: got d_model=16, num_heads=8"),
        (MultiHeadAttention(32, 4, bias=False), "d_model=16, num_heads=4: got d_model=32, num_heads=4"),
        (GroupedQueryAttention(16, 4, 4, bias=False), "from a MultiHeadAttention: got a GroupedQueryAttention"),
        (torch.nn.MultiheadAttention(16, 4, bias=False), "from a MultiHeadAttention: got a MultiheadAttention"),
    ):
        with pytest.raises(ValueError, match=message):
            mine.copy_weights(source)
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), before, strict=True)), "half copied"
    mine.copy_weights(FusedMultiHeadAttention(16, 4, bias=False))  # the same parameters, with the same meaning
    with pytest.raises(ValueError, match="needs an original with bias=True: got one with bias=False"):
        GroupedQueryAttention(16, 4, 2).copy_weights(MultiHeadAttention(16, 4, bias=False))


def test_cache_of_a_published_model():
    # Llama 3 8B, bfloat16: 2 (keys, values) x 32 layers x 8 heads x 128 x 2 bytes = 128 KiB for each token
    assert kv_cache_bytes(8, 128, 1, num_layers=32) == 131_072
    assert kv_cache_bytes(32, 128, 8192, num_layers=32) == 4 * 2**30


def test_backend_tells_kernels_from_plain_steps():
    q, k, v = qkv(d_k=8, d_v=8)
    assert fused_attention.backend(lambda: F.scaled_dot_product_attention(q, k, v)) == "flash"
    assert fused_attention.backend(lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)) == "math"
    assert fused_attention.backend(lambda: scaled_dot_product_attention(q, k, v)) == "math"


def test_what_is_causal_lets_through():
    assert torch.equal(fused_attention.seen_by_flag(T_Q, T_Q), causal_mask(T_Q))
    assert torch.equal(fused_attention.seen_by_flag(T_Q, T_K), torch.ones(T_Q, T_K).bool().tril())


def test_quartiles_stand_beside_the_median_for_each_length():
    numbers = benchmark.core_ratios((16, 32), 0.01, "cpu")
    assert numbers["T"] == [16, 32]
    low, median, high = (torch.tensor(numbers[name]) for name in ("lower quartile", "median", "upper quartile"))
    assert (low > 0).all() and (low <= median).all() and (median <= high).all()


def random_mask(length: int) -> torch.Tensor:
    """Half of it hidden; each query sees itself, since nn.MultiheadAttention gives NaN to one that sees nothing."""
    return (torch.rand(length, length) < 0.5) | torch.eye(length, dtype=torch.bool)


VARIANT_MASKS = {"none": lambda n: torch.ones(n, n, dtype=torch.bool), "causal": causal_mask, "random": random_mask}


@pytest.mark.parametrize("mask", VARIANT_MASKS)
def test_nine_implementations_agree_in_outputs_gradients_and_weights(mask):
    multi_head = layer()  # 3 heads of 11, 2 sequences of 7: no two axes alike
    x, mask = torch.randn(2, 7, 33, dtype=torch.float64), VARIANT_MASKS[mask](7)
    loaded = load_variants(multi_head, mask)
    assert len(loaded) == 10
    del loaded[INVERTED]
    differences = check_agreement(loaded, multi_head, x, mask)
    assert max(differences.values()) < 1e-12, differences
    with_weights = {name for name, variant in loaded.items() if variant(x)[1] is not None}
    assert {name for name in loaded if name not in with_weights} == {FUSED, FUSED_MASK, variants.TORCH_NO_WEIGHTS}


def test_the_reference_of_the_comparison_agrees_with_plain_loops():
    multi_head, mask = layer(), random_mask(5)
    x = torch.randn(1, 5, 33, dtype=torch.float64)
    q, k, v = (w(x)[0].detach().chunk(3, dim=-1) for w in (multi_head.w_q, multi_head.w_k, multi_head.w_v))
    heads = [attention_by_loops(q[h], k[h], v[h], mask)[0] for h in range(3)]
    expected = torch.cat(heads, dim=-1) @ multi_head.w_o.weight.T
    for name, variant in load_variants(multi_head, mask).items():
        close = torch.allclose(variant(x)[0][0], expected, rtol=0, atol=1e-12)
        assert close == (name != INVERTED), name


def test_each_variant_takes_the_mask_in_its_own_form():
    multi_head = layer()
    none, causal, other = (load_variants(multi_head, VARIANT_MASKS[name](5)) for name in VARIANT_MASKS)
    assert none[FUSED_MASK].mask.all() and none[INVERTED].mask.all() and none[TORCH].mask is None
    assert causal[FUSED].mask is None and causal[FUSED].module.causal and not causal[FUSED_MASK].module.causal
    assert other[FUSED].mask is not None and not other[FUSED].module.causal
    with pytest.raises(ValueError, match="bias=False"):
        load_variants(MultiHeadAttention(33, 3), causal_mask(5))


class ScaleOff(FusedMultiHeadAttention):
    """Scores one percent too large."""

    def forward(self, x, mask=None):
        self.w_q.weight.data *= 1.01
        result = super().forward(x, mask=mask)
        self.w_q.weight.data /= 1.01
        return result


class WrongGradient(MultiHeadAttention):
    def forward(self, x, mask=None):
        return super().forward(x, x.detach(), x, mask)


class WrongWeights(MultiHeadAttention):
    """Right outputs, averaged weights."""

    def forward(self, x, mask=None):
        output, weights = super().forward(x, mask=mask)
        return output, weights.mean(dim=1, keepdim=True)


class WithNaN(MultiHeadAttention):
    def forward(self, x, mask=None):
        output, weights = super().forward(x, mask=mask)
        return output, weights.masked_fill(~mask, math.nan)


@pytest.mark.parametrize("wrong", (ScaleOff, WrongGradient, WrongWeights, WithNaN))
def test_a_slightly_wrong_variant_is_refused(wrong):
    multi_head, mask = layer(dtype=torch.float32), causal_mask(7)
    module = wrong(33, 3, bias=False)
    module.load_state_dict(multi_head.state_dict())
    x = torch.randn(2, 7, 33)
    (difference,) = check_agreement({"wrong": Variant(module, mask)}, multi_head, x, mask).values()
    assert not difference <= TOLERANCE
    if wrong is not ScaleOff:  # the other three give the right output: only the rest betrays them
        torch.testing.assert_close(module(x, mask=mask)[0], multi_head(x, mask=mask)[0])


def test_shapes_are_read_and_bad_ones_get_one_clear_line(capsys):
    assert benchmark.parse_shapes("8x64, 2x1024") == [(8, 64), (2, 1024)]
    for bad in ("8y64", "0x64", "8x", "x8", "-1x5", "", "8x64,"):
        with pytest.raises(SystemExit) as stopped:
            benchmark.main([f"--shapes={bad}"])
        error = capsys.readouterr().err
        assert stopped.value.code == 2 and error.count("\n") == 1 and "as in 8x64,2x1024" in error, bad
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(["--threads", "0"])
    assert stopped.value.code == 2 and "--threads must be 1 or more: got 0" in capsys.readouterr().err


def test_the_benchmark_refuses_before_it_times(tmp_path, monkeypatch, capsys):
    def with_one_more(multi_head, mask):
        loaded = load_variants(multi_head, mask)
        wrong = ScaleOff(multi_head.w_q.in_features, multi_head.num_heads, bias=False)
        wrong.load_state_dict(multi_head.state_dict())
        return loaded | {"one percent off": Variant(wrong, mask)}

    monkeypatch.setattr(benchmark, "D_MODEL", 32)
    monkeypatch.setattr(benchmark, "load_variants", with_one_more)
    answer = benchmark.main(["--quick", "--shapes", "3x5", "--threads", "2", "--output-dir", str(tmp_path)])
    assert torch.get_num_threads() == 1  # set back
    printed = capsys.readouterr().out
    assert printed.count("refused: differs by") == 2 and "timed all the same" in printed and "9 of 10 agree" in answer


def test_a_ratio_with_a_refused_variant_is_nan():
    result = benchmark.Result("1x1", {}, {"forward": {"a": [1.0]}}, {})
    assert math.isnan(result.ratio("forward", "a", TORCH))
    result = replace(result, times={"forward": {"a": [3.0], TORCH: [2.0]}})
    assert result.ratio("forward", "a") == 1.5


@pytest.mark.parametrize(("batch", "length", "d_model", "num_heads"), ((1, 7, 33, 3), (2, 13, 22, 2), (3, 5, 35, 7)))
def test_operations_as_the_formulas_say(batch, length, d_model, num_heads):
    x = torch.randn(batch, length, d_model, dtype=torch.float64)
    projections = cost_model.projection_operations(length, d_model, batch=batch)
    attention = cost_model.attention_operations(length, d_model, batch=batch)
    assert count_operations(layer(d_model, num_heads), x) == projections + attention
    if batch == 1:
        assert cost_model.counted_operations(length, d_model, num_heads) == (projections, attention)


@pytest.mark.parametrize(("length", "d_model", "num_heads"), ((5, 33, 3), (64, 32, 1), (101, 33, 3), (128, 64, 2)))
def test_peak_memory_as_the_formulas_say(length, d_model, num_heads):
    """Short and long, on both sides of T = 2 d_k."""
    in_steps = cost_model.measured_peak(MultiHeadAttention, length, d_model, num_heads)
    assert in_steps == cost_model.peak_bytes_in_steps(length, d_model, num_heads)
    fused = cost_model.measured_peak(FusedMultiHeadAttention, length, d_model, num_heads)
    formula = cost_model.peak_bytes_fused(length, d_model)
    assert formula <= fused <= formula + 2**20  # scratch memory


@pytest.mark.parametrize("d_model", (2, 22, 346))
def test_attention_takes_over_at_twice_the_width(d_model):
    assert cost_model.crossing(d_model) == 2 * d_model


def test_sizes_in_words():
    sizes = {5: "5 B", 1536: "1.5 KiB", 2**20: "1 MiB", 3 * 2**30: "3 GiB", 2**45: "32 TiB"}
    assert {size: in_bytes(size) for size in sizes} == sizes


def test_the_cost_model_measures_the_same_twice_and_what_the_formulas_say():
    lengths = cost_model.QUICK_LENGTHS
    measured = cost_model.measure(lengths)
    assert measured == cost_model.measure(lengths)
    errors = cost_model.errors(measured)
    assert errors.pop("fused") < 0.05 and set(errors.values()) == {0}
    numbers = cost_model.growth(measured)
    (claim,) = cost_model.growth.claims
    assert claim.holds(numbers) and numbers["training, checkpointed"] > 10  # one layer's weights still grow like T²


def test_what_heads_cost():
    d, length = cost_model.BROAD, 128
    counts = cost_model.costs_by_heads()
    assert counts == {h: (4 * d**2, 8 * length * d**2 + 4 * length**2 * d, h * length**2) for h in cost_model.HEADS}
    count = cost_model.count_parameters
    assert count(SelfAttention(D_K)) == 3 * D_K**2
    assert count(SelfAttention(D_K, output_projection=True)) == 4 * D_K**2
    assert count(SelfAttention(D_K, 3, 5)) == D_K * (3 + 3 + 5)
    assert count(MultiHeadAttention(33, 3)) == 4 * 33**2 + 4 * 33
    assert count(layer(33, 3)) == count(StackOfHeads(33, 3)) == 4 * 33**2


@pytest.mark.parametrize(("length", "heads_help"), [(64, False), (4096, True)])
def test_half_the_length_always_saves_half_the_heads_only_for_long_sequences(length, heads_help):
    whole = cost_model.measured_peak(MultiHeadAttention, 64, 512, 8)
    saved = cost_model.saved_by_halves(length)
    assert saved["length"] > 0.5 and (saved["heads"] > saved["d_model"]) == heads_help
    if length == 64:
        assert saved["length"] == 1 - cost_model.measured_peak(MultiHeadAttention, 32, 512, 8) / whole


def test_checkpointing_keeps_the_weights_of_one_layer_at_a_time():
    weights = 4 * 4 * 128**2  # bytes of one layer: 4 heads, float32
    kept, again = (cost_model.training_peak(3, 128, checkpointed=c) for c in (False, True))
    assert kept >= 3 * weights and kept - again >= 2 * weights
