"""What is multi-head attention: several small ones, or one that is cut up?

    MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W_O,   head_h = Attention(Q W_Q^h, K W_K^h, V W_V^h)
                                                                                 (Vaswani et al. 2017, section 3.2.2)
Two views of the same thing, proved equal below: H small attentions in parallel, each free to look for something else,
or one large projection whose output is cut into H slices. The first is what it means; the second is how it is written.
What it costs is in costs/cost_model.py, how to get it wrong without noticing in heads/wrong_heads.py.

    python phase2_multi_head/multi_head_attention.py
"""

import argparse

import torch
from torch import Tensor, nn

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import cli
from shared.attention_utils import causal_mask
from shared.toy_language import encode
from shared.training import LITTLE_DECAY, Recipe, Trained

RECIPE = Recipe("multi_head_model", "masked word", num_heads=4, num_layers=2, steps=800)
# One layer, like the single-head model of phase 1, so that the number of heads is all that differs.
ONE_LAYER_RECIPE = Recipe(
    "one_layer_model", "masked word", num_heads=4, num_layers=1, steps=800, matrix_decay=LITTLE_DECAY
)


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


def check_sequences(d_model: int, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ValueError unless all are batches (B, T, d_model) of one size: a batch is never repeated silently."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 3 or tensor.size(-1) != d_model:
            raise ValueError(f"attention takes (B, T, d_model={d_model}): got {name} {tuple(tensor.shape)}")
    if not len(query) == len(key) == len(value):
        sizes = f"query {len(query)}, key {len(key)}, value {len(value)}"
        raise ValueError(f"query, key and value must have one batch size B: got {sizes}")


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
        check_sequences(self.w_q.in_features, query, key, value)
        query = split_heads(self.w_q(query), self.num_heads)  # (B, T_q, d_model) -> (B, H, T_q, d_k)
        key = split_heads(self.w_k(key), self.num_heads)  # (B, T_k, d_model) -> (B, H, T_k, d_k)
        value = split_heads(self.w_v(value), self.num_heads)  # (B, T_k, d_model) -> (B, H, T_k, d_k)
        heads, weights = scaled_dot_product_attention(query, key, value, mask, dropout=self.dropout)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T_q, d_k) -> (B, T_q, d_model)


def check_copy(w_o: nn.Linear, num_heads: int, source: nn.Module) -> None:
    """Raise ValueError unless the weights of `source` mean the same in a module with this w_o and so many heads."""
    if not isinstance(source, MultiHeadAttention):
        raise ValueError(f"weights are copied from a MultiHeadAttention: got a {type(source).__name__}")
    required, received = (w_o.in_features, num_heads), (source.w_o.in_features, source.num_heads)
    if required != received:
        sizes = ["d_model={}, num_heads={}".format(*sizes) for sizes in (required, received)]
        raise ValueError(f"a copy must have the sizes of the original, {sizes[0]}: got {sizes[1]}")
    bias = w_o.bias is not None
    if bias != (source.w_o.bias is not None):
        raise ValueError(f"this module needs an original with bias={bias}: got one with bias={not bias}")


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
        check_copy(self.w_o, len(self.heads), multi_head)
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


def torch_twin(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's own module with the weights of ours; its boolean masks mean the opposite, so pass it ~mask."""
    w_q, w_k, w_v = ours.w_q, ours.w_k, ours.w_v
    bias = w_q.bias is not None
    theirs = nn.MultiheadAttention(
        w_q.in_features, ours.num_heads, bias=bias, batch_first=True, device=w_q.weight.device, dtype=w_q.weight.dtype
    )
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([w_q.weight, w_k.weight, w_v.weight]))
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([w_q.bias, w_k.bias, w_v.bias]))
    theirs.out_proj.load_state_dict(ours.w_o.state_dict())
    return theirs


@torch.no_grad()
def differences(d_model: int, num_heads: int) -> dict[str, float]:
    """How far one projection cut in slices is from a stack of single heads, and from PyTorch's module, in float64."""
    x, mask = torch.randn(2, 7, d_model, dtype=torch.float64), causal_mask(7)
    plain = MultiHeadAttention(d_model, num_heads, bias=False).double()
    stack = StackOfHeads(d_model, num_heads).double()
    stack.copy_weights(plain)
    ours = MultiHeadAttention(d_model, num_heads).double()
    theirs = torch_twin(ours)(x, x, x, attn_mask=~mask, average_attn_weights=False)
    pairs = {"a stack of heads": (plain(x), stack(x)), "nn.MultiheadAttention": (ours(x, mask=mask), theirs)}
    return {
        name: max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))
        for name, (one, other) in pairs.items()
    }


@torch.no_grad()
def dropout_sums() -> dict[str, float]:
    """How far rows of weights are from summing to 1: those used in training, those used in eval, those returned.

    160 rows of 40 weights, dropout 0.1. In training a weight that is kept is divided by 0.9, so a row sums to 1 only on
    average.
    """
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 4, 40, 16, dtype=torch.float64)
    identity = torch.eye(40, dtype=torch.float64).expand(1, 4, 40, 40)  # as values, it hands back the weights used
    dropout = nn.Dropout(0.1)
    used, returned = scaled_dot_product_attention(query, key, identity, dropout=dropout)
    used_in_eval, _ = scaled_dot_product_attention(query, key, identity, dropout=dropout.eval())
    rows = {"used in training": used, "used in eval": used_in_eval, "returned": returned}
    return {name: (weights.sum(dim=-1) - 1).abs().max().item() for name, weights in rows.items()}


@torch.no_grad()
def show_heads(options: argparse.Namespace) -> None:
    """Follow the shapes of a trained model's first layer, and say where each head looks."""
    trained = load_multi_head_model(options)
    model, words = trained.model, options.words
    attention: MultiHeadAttention = model.blocks[0].attention
    tokens = torch.tensor([encode(words)], device=model.positions.device)
    x = model.blocks[0].attention_norm(model.embed(tokens))
    projected = attention.w_q(x)
    split = split_heads(projected, attention.num_heads)
    output, _ = attention(x)
    print(f'\n"{" ".join(words)}" in a model with {trained.recipe.num_layers} layers, {trained.label}')
    print("\nShapes (B batch, T length, H heads):")
    print(f"   what comes in          {tuple(x.shape)!s:15} (B, T, d_model)")
    print(f"   queries of all heads   {tuple(projected.shape)!s:15} (B, T, d_model): each number has read all of x")
    print(f"   split_heads            {tuple(split.shape)!s:15} (B, H, T, d_k)")
    print(f"   merge_heads            {tuple(merge_heads(split).shape)!s:15} (B, T, d_model): the inverse")
    print(f"   what goes out          {tuple(output.shape)!s:15} (B, T, d_model): blocks can be stacked")
    assert torch.equal(merge_heads(split), projected) and output.shape == x.shape
    _, layers = model(tokens)
    print("\nThe largest weight of each head:")
    for layer, weights in enumerate(layers):
        for head, matrix in enumerate(weights[0]):
            i, j = divmod(int(matrix.argmax()), len(words))
            print(f"   layer {layer} head {head}: {i} {words[i]} -> {j} {words[j]}, {matrix[i, j]:.2f}")


@cli.script
def main(argv: list[str] | None = None) -> str | None:
    options = cli.parse(cli.parser(__doc__, trains=True), argv)
    if options.train_only:
        for seed in cli.seeds(options):
            load_multi_head_model(options, seed)
            load_one_layer_model(options, seed)
        return None
    show_heads(options)
    num_heads = options.heads or 4
    found, sums = differences(options.d_model or 64, num_heads), dropout_sums()
    assert max(found.values()) < 1e-12
    print(f"\nWith dropout, a row that is used in training sums to 1 only to {sums['used in training']:.2f};", end=" ")
    print(f"the weights returned are those before it: to {sums['returned']:.0e}")
    print("Largest difference: " + "; ".join(f"{name} {difference:.1g}" for name, difference in found.items()))
    return f"Both: {num_heads} small ones and one cut up differ by {found['a stack of heads']:.1g}"


if __name__ == "__main__":
    cli.run(main)
