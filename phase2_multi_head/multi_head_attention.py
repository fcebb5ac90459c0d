"""Multi-head attention: several small attentions side by side, each free to look for something else.

    MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W_O,   head_h = Attention(Q W_Q^h, K W_K^h, V W_V^h)
                                                                                 (Vaswani et al. 2017, section 3.2.2)
Two views of the same thing, proved equal below: H small attentions in parallel, or one large projection whose output is
cut into H slices. The second is how it is written for speed; the first is what it means.

    python phase2_multi_head/multi_head_attention.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import cli, findings
from shared.findings import Finding
from shared.toy_language import encode
from shared.training import Recipe, Trained

RECIPE = Recipe("multi_head_model", "masked word", num_heads=4, num_layers=2, steps=2500)
# One layer, like the single-head model of phase 1, so that the number of heads is all that differs.
ONE_LAYER_RECIPE = Recipe("multi_head_one_layer_model", "masked word", num_heads=4, num_layers=1, steps=1000)


def check_heads(d_model: int, num_heads: int) -> None:
    """Raise ValueError, with a way out, unless d_model can be cut into num_heads equal slices."""
    if num_heads < 1 or d_model < 1:
        raise ValueError(f"d_model and num_heads must be 1 or more: got d_model={d_model}, num_heads={num_heads}")
    if d_model % num_heads:
        works = min((h for h in range(1, d_model + 1) if d_model % h == 0), key=lambda h: abs(h - num_heads))
        raise ValueError(
            f"d_model={d_model} is not divisible by num_heads={num_heads} (remainder {d_model % num_heads}); "
            f"nearest that works: {works} heads of {d_model // works}"
        )


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, d_model) -> (B, H, T, d_model / H): head h gets columns h * d_k to (h + 1) * d_k."""
    batch, length, d_model = x.shape
    x = x.view(batch, length, num_heads, d_model // num_heads)  # (B, T, d_model) -> (B, T, H, d_k)
    return x.transpose(1, 2)  # (B, T, H, d_k) -> (B, H, T, d_k): attention mixes the last-but-one axis, so it must be T


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of split_heads: (B, H, T, d_v) -> (B, T, H * d_v)."""
    return x.transpose(1, 2).flatten(start_dim=2)  # (B, H, T, d_v) -> (B, T, H, d_v) -> (B, T, H * d_v)


class MultiHeadAttention(nn.Module):
    """H heads of size d_k = d_model / H; w_q, w_k, w_v read all of d_model, and w_o mixes what the heads found.

    Differs from nn.MultiheadAttention: batch first always, mask True = may attend, weights per head and not averaged.
    Raises ValueError if d_model is not divisible by num_heads.
    """

    def __init__(self, d_model: int, num_heads: int, *, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        check_heads(d_model, num_heads)
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model, bias=bias)
        self.w_k = nn.Linear(d_model, d_model, bias=bias)
        self.w_v = nn.Linear(d_model, d_model, bias=bias)
        self.w_o = nn.Linear(d_model, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """query (B, T_q, d_model), key, value (B, T_k, d_model) -> output (B, T_q, d_model), weights (B, H, T_q, T_k).

        key defaults to query (self-attention), value to key. mask: bool, True = may attend:
        (T_q, T_k), or (B, H, T_q, T_k) with 1 where all share it. The weights are those before dropout: rows sum to 1.
        """
        key = query if key is None else key
        value = key if value is None else value
        query = split_heads(self.w_q(query), self.num_heads)  # (B, T_q, d_model) -> (B, H, T_q, d_k)
        key = split_heads(self.w_k(key), self.num_heads)  # (B, T_k, d_model) -> (B, H, T_k, d_k)
        value = split_heads(self.w_v(value), self.num_heads)  # (B, T_k, d_model) -> (B, H, T_k, d_k)
        heads, weights = scaled_dot_product_attention(query, key, value, mask, dropout=self.dropout)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T_q, d_k) -> (B, T_q, d_model)


class StackOfHeads(nn.Module):
    """The other view: phase 1's SelfAttention, H times, side by side; the outputs concatenated and projected."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        check_heads(d_model, num_heads)
        d_k = d_model // num_heads
        self.heads = nn.ModuleList(SelfAttention(d_model, d_k, d_k) for _ in range(num_heads))
        self.w_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T); all heads share the mask."""
        outputs, weights = zip(*(head(x, mask) for head in self.heads), strict=True)
        return self.w_o(torch.cat(outputs, dim=-1)), torch.cat(weights, dim=1)  # H x (B, T, d_k) -> (B, T, d_model)

    @torch.no_grad()
    def copy_weights(self, multi_head: MultiHeadAttention) -> None:
        """Give head h the rows h * d_k to (h + 1) * d_k of each projection of a bias-free MultiHeadAttention."""
        for name in ("w_q", "w_k", "w_v"):
            slices = getattr(multi_head, name).weight.chunk(len(self.heads))  # (d_model, d_model) -> H x (d_k, d_model)
            for head, rows in zip(self.heads, slices, strict=True):
                getattr(head, name).weight.copy_(rows)
        self.w_o.weight.copy_(multi_head.w_o.weight)


def load_multi_head_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four heads, trained on masked words."""
    return cli.trained_model(RECIPE, MultiHeadAttention, options, seed)


def load_one_layer_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """One layer of four heads, trained like the single head of phase 1."""
    return cli.trained_model(ONE_LAYER_RECIPE, MultiHeadAttention, options, seed)


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@torch.no_grad()
def count_operations(module: nn.Module, length: int, d_model: int) -> int:
    """Multiplications and additions of one forward pass over one sequence, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(1, length, d_model))
    return counter.get_total_flops()


@torch.no_grad()
def difference_of_views(d_model: int, num_heads: int) -> float:
    """Largest difference, in outputs and weights, between the stack of heads and the one projection cut in slices."""
    multi_head = MultiHeadAttention(d_model, num_heads, bias=False).double()
    stack = StackOfHeads(d_model, num_heads).double()
    stack.copy_weights(multi_head)
    x = torch.randn(2, 7, d_model, dtype=torch.float64)
    return max((a - b).abs().max().item() for a, b in zip(multi_head(x), stack(x), strict=True))


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    if options.train_only:
        for seed in cli.seeds(options):
            load_multi_head_model(options, seed)
            load_one_layer_model(options, seed)
        return
    show_split(options)
    num_heads, d_model = options.heads or 4, options.d_model or 64
    difference = difference_of_views(d_model, num_heads)
    print(f"\nStack of {num_heads} single heads against one projection cut in slices, the same weights:")
    print(f"   largest difference {difference:.1e}")
    assert difference < 1e-12
    show_costs(difference, options)


@torch.no_grad()
def show_split(options: argparse.Namespace) -> None:
    """Follow the shapes of a trained model's first layer, and say where each head looks."""
    trained = load_multi_head_model(options)
    model, words = trained.model, options.words
    attention: MultiHeadAttention = model.blocks[0].attention
    tokens = torch.tensor([encode(words)], device=model.positions.device)
    x = model.blocks[0].attention_norm(model.embed(tokens))
    projected = attention.w_q(x)
    split = split_heads(projected, attention.num_heads)
    print(f'\n"{" ".join(words)}" in a model with {trained.recipe.num_layers} layers, {trained.label}')
    print("\nSplit and merge (B batch, T length, H heads):")
    print(f"   queries of all heads   {tuple(projected.shape)!s:15} (B, T, d_model)")
    print(f"   split_heads            {tuple(split.shape)!s:15} (B, H, T, d_k): view, then transpose")
    print(f"   merge_heads            {tuple(merge_heads(split).shape)!s:15} (B, T, d_model): the inverse")
    assert torch.equal(merge_heads(split), projected)
    without_transpose = projected.view_as(split)
    print(f"   without the transpose  {(without_transpose == split).double().mean():.1%} of the numbers are in place")
    _, layers = model(tokens)
    print("\nThe largest weight of each head:")
    for layer, weights in enumerate(layers):
        for head, matrix in enumerate(weights[0]):
            i, j = divmod(int(matrix.argmax()), len(words))
            print(f"   layer {layer} head {head}: {i} {words[i]} -> {j} {words[j]}, {matrix[i, j]:.2f}")


def show_costs(difference: float, options: argparse.Namespace) -> None:
    """Count parameters and operations, compare them with the formulas, and record what is commonly said about them."""
    d, length = 512, 128
    parameters = {
        "single head without W_O": count_parameters(SelfAttention(d)),
        "single head with W_O": count_parameters(SelfAttention(d, output_projection=True)),
        "8 heads": count_parameters(MultiHeadAttention(d, 8, bias=False)),
        "8 heads with biases": count_parameters(MultiHeadAttention(d, 8)),
    }
    formulas = (3 * d**2, 4 * d**2, 4 * d**2, 4 * d**2 + 4 * d)
    print(f"\nParameters, d_model = {d}:")
    for (name, counted), formula, text in zip(
        parameters.items(), formulas, ("3d²", "4d²", "4d²", "4d² + 4d"), strict=True
    ):
        print(f"   {name:24} {counted:>10,} = {text}")
        assert counted == formula
    operations = {f"H={h}": count_operations(MultiHeadAttention(d, h), length, d) for h in (1, 2, 4, 8, 16)}
    projections, attention = (
        8 * length * d**2,
        4 * length**2 * d,
    )
    print(
        f"\nOperations of one pass, T = {length}, d_model = {d}: "
        f"projections 8Td² = {projections:,}, attention 4T²d = {attention:,}"
    )
    for name, counted in operations.items():
        print(f"   {name:5} {counted:,}")
        assert counted == projections + attention
    shares = {
        f"T={t}, d={w}": 4 * t**2 * w / (4 * t**2 * w + 8 * t * w**2)
        for t, w in ((6, 64), (32, 64), (512, 512), (1024, 512), (4096, 512))
    }
    print("\nShare of the operations that grows with T² (half at T = 2 d_model):")
    print("   " + ", ".join(f"{name}: {share:.0%}" for name, share in shares.items()))
    findings.record(
        "phase2_multi_head/multi_head_attention.py",
        [
            Finding(
                "I031",
                "Multi-head attention is several small attentions in parallel, or one projection cut into slices",
                "course notes",
                {"stack of single heads against one projection, same weights": difference},
                "largest absolute difference of outputs and weights, float64",
                "below 1e-12",
                findings.verdict(difference < 1e-12),
            ),
            Finding(
                "C026",
                "A single head has 3d² parameters, multi-head attention 4d²",
                "course notes",
                parameters,
                "parameters, d_model = 512",
                "like for like, both with W_O, the counts differ as said (3 to 4)",
                findings.verdict(parameters["single head with W_O"] * 4 == parameters["8 heads"] * 3),
                control="the two counts as said compare a head without W_O to heads with it",
            ),
            Finding(
                "C027",
                "Multi-head attention has 4 d_model² parameters in all",
                "course notes",
                {name: parameters[name] for name in ("8 heads", "8 heads with biases")},
                "parameters, d_model = 512",
                "equals 4 · 512² = 1,048,576",
                **findings.conditional(
                    parameters["8 heads with biases"] == 4 * d**2,
                    parameters["8 heads"] == 4 * d**2,
                    "the projections have no biases, which add 4 d_model",
                ),
            ),
            Finding(
                "C029",
                "H heads cost H times the computation of one",
                "course notes",
                operations,
                f"operations of one forward pass, T = {length}, d_model = {d}",
                "16 heads take at least twice the operations of one",
                findings.verdict(operations["H=16"] >= 2 * operations["H=1"]),
                control="counted by torch, equal to 8Td² + 4T²d, in which H does not occur",
            ),
            Finding(
                "C032",
                "The attention scores are the dominant cost",
                "course notes",
                shares,
                "share of all operations in Q Kᵀ and in weights · V",
                "more than half",
                **findings.conditional(
                    min(shares.values()) > 0.5,
                    shares["T=4096, d=512"] > 0.5,
                    "T > 2 d_model: not in any model of this repository",
                ),
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
