"""The transformer block: attention moves information between positions, a feed-forward network works on each by itself.

Two sub-layers, and around each a residual connection, a LayerNorm and dropout. Where the norm stands is the one choice:

    pre-norm     x + sublayer(norm(x))      the default; x itself is never normalised        (Xiong et al. 2020)
    post-norm    norm(x + sublayer(x))      the first transformer                            (Vaswani et al. 2017)

In pre-norm there is a path from the input to the output on which nothing happens but addition, the residual stream:
each sub-layer reads a normalised copy of it and adds what it found. A stack of such blocks ends with one more norm.
What goes wrong without the addition is in rank_collapse.py, what the place of the norm does in pre_or_post_norm.py.

    python phase2_multi_head/block/transformer_block.py
"""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_multi_head.heads.output_projection import added_by_heads
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model, split_heads, torch_twin
from shared import cli
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import encode, sample_corpus
from shared.toy_model import Block, ToyTransformer

D_MODEL, NUM_HEADS = 64, 4
NORMS = {"pre-norm": True, "post-norm": False}  # name -> norm_first
IDENTITY = "W_V and W_O set to the identity"


class TransformerBlock(nn.Module):
    """One layer of a transformer; the same as nn.TransformerEncoderLayer with ReLU, and it returns the weights too.

    d_ff: size of the hidden layer of the feed-forward network, 4 * d_model unless given. norm_first: pre-norm, or with
    False post-norm. dropout: on the attention weights, inside the feed-forward network and on the output of each
    sub-layer; Vaswani et al. 2017, section 5.4, have the last of these only.
    Raises ValueError if d_model is not divisible by num_heads or d_ff is less than 1.
    """

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int | None = None, *, dropout: float = 0.0, norm_first: bool = True
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(d_model, num_heads, dropout=dropout)
        d_ff = 4 * d_model if d_ff is None else d_ff
        if d_ff < 1:
            raise ValueError(f"d_ff must be 1 or more: got {d_ff}; leave it out for 4 * d_model = {4 * d_model}")
        self.attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff),  # (B, T, d_model) -> (B, T, d_ff)
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(d_ff, d_model),  # (B, T, d_ff) -> (B, T, d_model)
        )
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T).

        mask: bool, True = may attend, (T, T) or (B, H, T, T) with 1 where all share it.
        """
        check_stream(x, self.attention_norm.normalized_shape[0])
        if self.norm_first:
            output, weights = self.attention(self.attention_norm(x), mask=mask)
            x = x + self.dropout(output)
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x))), weights
        output, weights = self.attention(x, mask=mask)
        x = self.attention_norm(x + self.dropout(output))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x))), weights


def check_stream(x: Tensor, d_model: int) -> None:
    """Raise ValueError unless x is (B, T, d_model)."""
    if x.dim() != 3 or x.size(-1) != d_model:
        advice = "; a single sequence needs a batch axis: x[None]" if x.dim() == 2 else ""
        raise ValueError(f"x must have shape (B, T, d_model={d_model}): got {tuple(x.shape)}{advice}")


def torch_layer(block: TransformerBlock) -> nn.TransformerEncoderLayer:
    """PyTorch's own layer with the weights of ours; its boolean masks mean the opposite, so pass it ~mask."""
    first, _, dropout, second = block.feed_forward
    theirs = nn.TransformerEncoderLayer(
        first.in_features,
        block.attention.num_heads,
        first.out_features,
        dropout=dropout.p,
        batch_first=True,
        norm_first=block.norm_first,
        dtype=first.weight.dtype,
    )
    theirs.self_attn.load_state_dict(torch_twin(block.attention).state_dict())
    theirs.linear1.load_state_dict(first.state_dict())
    theirs.linear2.load_state_dict(second.state_dict())
    theirs.norm1.load_state_dict(block.attention_norm.state_dict())
    theirs.norm2.load_state_dict(block.feed_forward_norm.state_dict())
    return theirs.train(block.training)


def from_toy_block(toy: Block) -> TransformerBlock:
    """A TransformerBlock with the weights of a block of the toy transformer: pre-norm, d_ff = 2 d_model, no dropout."""
    first, _, second = toy.feed_forward
    block = TransformerBlock(first.in_features, toy.attention.num_heads, first.out_features).to(first.weight)
    for name in ("attention_norm", "attention", "feed_forward_norm"):
        getattr(block, name).load_state_dict(getattr(toy, name).state_dict())
    block.feed_forward[0].load_state_dict(first.state_dict())
    block.feed_forward[3].load_state_dict(second.state_dict())
    return block.train(toy.training)


@torch.no_grad()
def difference_to_torch(norm_first: bool) -> float:
    """Largest difference of outputs to nn.TransformerEncoderLayer, causal mask, float64."""
    block = TransformerBlock(D_MODEL, NUM_HEADS, norm_first=norm_first).double()
    x, mask = torch.randn(2, 7, D_MODEL, dtype=torch.float64), causal_mask(7)
    return (block(x, mask)[0] - torch_layer(block)(x, src_mask=~mask)).abs().max().item()


@torch.no_grad()
def difference_to_toy(model: ToyTransformer, words: list[str]) -> float:
    """Largest difference, in outputs and weights of all layers, between the toy transformer's blocks and ours."""
    x, largest = model.embed(torch.tensor([encode(words)])), 0.0
    for toy in model.blocks:
        pairs = zip(from_toy_block(toy)(x), toy(x), strict=True)
        largest = max(largest, *((ours - theirs).abs().max().item() for ours, theirs in pairs))
        x, _ = toy(x)
    return largest


def attention_share(d_ff_factor: int) -> float:
    """Share of a block's parameters that are in its attention, d_ff = d_ff_factor * d_model."""
    block = TransformerBlock(D_MODEL, NUM_HEADS, d_ff_factor * D_MODEL)
    count = {part: sum(p.numel() for p in part.parameters()) for part in (block, block.attention)}
    return count[block.attention] / count[block]


def eight_word_tokens() -> Tensor:
    """About a hundred sentences of eight words, (N, 8): one length, so that no mask is needed."""
    return torch.tensor([encode(s.words) for s in sample_corpus(0, 500, seed=1)[1] if len(s.words) == 8])


@torch.no_grad()
def added_on_the_diagonal(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """What each head adds if every word attends to itself alone, (B, H, T, d_model): W_O W_V x, without W_O's bias."""
    value = split_heads(attention.w_v(x), attention.num_heads)  # (B, T, d_model) -> (B, H, T, d_k)
    return added_by_heads(attention, value)  # (B, H, T, d_k) -> (B, H, T, d_model)


@torch.no_grad()
def diagonal_cosines(model: ToyTransformer) -> dict[str, Tensor]:
    """Cosine of what attention reads and what it adds with its weights on the diagonal -> (1 + H,): all heads, each."""
    tokens = eight_word_tokens()
    x, inputs = model.embed(tokens), {}
    for index, block in enumerate(model.blocks):
        inputs[f"trained, layer {index}"] = (block.attention, block.attention_norm(x))
        x, _ = block(x)
    x = torch.randn(len(tokens), 8, D_MODEL, dtype=x.dtype)
    inputs["new module"] = (MultiHeadAttention(D_MODEL, NUM_HEADS).to(x), x)
    identity = MultiHeadAttention(D_MODEL, NUM_HEADS, bias=False).to(x)
    nn.init.eye_(identity.w_v.weight)
    nn.init.eye_(identity.w_o.weight)
    inputs[IDENTITY] = (identity, x)
    cosines = {}
    for name, (attention, read) in inputs.items():
        added = added_on_the_diagonal(attention, read)
        added = torch.cat([added.sum(dim=1, keepdim=True), added], dim=1)  # (B, H, T, d) -> (B, 1 + H, T, d)
        cosines[name] = F.cosine_similarity(added, read[:, None], dim=-1).mean(dim=(0, 2))
    return cosines


@torch.no_grad()
def show_block(block: TransformerBlock, x: Tensor) -> None:
    """Follow x (1, T, d_model) through a pre-norm block: shapes, and how long the vectors are at each step."""
    read = block.attention_norm(x)
    found, _ = block.attention(read)
    stream = x + found
    read_again = block.feed_forward_norm(stream)
    hidden = block.feed_forward[:2](read_again)
    computed = block.feed_forward[3](hidden)
    steps = {
        "x, the residual stream": x,
        "   attention reads": read,
        "   attention adds": found,
        "x + attention": stream,
        "   feed-forward reads": read_again,
        "   hidden, after ReLU": hidden,
        "   feed-forward adds": computed,
        "what goes out": stream + computed,
    }
    print(f"   {'':24} {'shape':12} mean length of a vector")
    for name, values in steps.items():
        print(f"   {name:24} {tuple(values.shape)!s:12} {values.norm(dim=-1).mean():6.2f}")
    print(f"   of the hidden numbers, ReLU has set {(hidden == 0).double().mean():.0%} to 0")
    torch.testing.assert_close(stream + computed, block(x)[0])


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    model = copy.deepcopy(trained.model).cpu().double()  # 15 digits, so that "equal" can be strict
    print(f'\n"{" ".join(options.words)}" through the first block of the toy transformer, {trained.label}')
    show_block(from_toy_block(model.blocks[0]), model.embed(torch.tensor([encode(options.words)])))
    shares = {f"d_ff = {factor} d_model": attention_share(factor) for factor in (4, 2)}
    print("\nShare of a block's parameters that are in its attention:")
    print("   " + ", ".join(f"{name}: {share:.3f}" for name, share in shares.items()))
    equal = {f"nn.TransformerEncoderLayer, {name}": difference_to_torch(first) for name, first in NORMS.items()}
    equal["block of the toy transformer"] = difference_to_toy(model, options.words)
    print("\nThe same weights, largest difference to ours:")
    for name, difference in equal.items():
        print(f"   {name:40} {difference:.1e}")
        assert difference < 1e-12
    cosines = diagonal_cosines(model)
    print("\nIf every word attends to itself alone: cosine of what attention reads and what it adds")
    for name, (together, *single) in cosines.items():
        print(f"   {name:32} {together:5.2f}   single heads {' '.join(f'{value:5.2f}' for value in single)}")
    record_findings(shares, equal, cosines, options)


def record_findings(
    shares: dict[str, float], equal: dict[str, float], cosines: dict[str, Tensor], options: argparse.Namespace
) -> None:
    together = {name: values[0].item() for name, values in cosines.items()}
    identity = together.pop(IDENTITY)
    single = {name: findings.number(values[1:].max().item()) for name, values in cosines.items() if name != IDENTITY}
    findings.record(
        "phase2_multi_head/block/transformer_block.py",
        [
            Finding(
                "block-parity",
                "The block written by hand is what the library and the toy transformer compute",
                "Vaswani et al. 2017, section 3.1; Xiong et al. 2020",
                equal,
                "largest absolute difference of outputs, of the toy's blocks also of weights; float64",
                "below 1e-12, with copied weights",
                findings.verdict(max(equal.values()) < 1e-12),
            ),
            Finding(
                "C160",
                "Attention with residual connection and norm has everything that a transformer layer needs",
                "course notes",
                {f"attention's share, {name}": share for name, share in shares.items()},
                f"share of the block's parameters, d_model = {D_MODEL}",
                "attention has at least nine tenths of the parameters; the rest is what such a layer lacks",
                findings.verdict(min(shares.values()) >= 0.9),
            ),
            Finding(
                "C078",
                "A head that looks along the diagonal, each word at itself, acts as a residual connection",
                "course notes",
                together | {IDENTITY: identity},
                "cosine of what attention reads and what it adds, all weights on the diagonal, mean over words",
                "at least 0.9: what comes out points where x points",
                **findings.conditional(
                    min(together.values()) >= 0.9,
                    identity >= 0.9,
                    "W_V W_O is close to the identity",
                ),
                control="single heads, the largest cosine: " + "; ".join(f"{n} {value}" for n, value in single.items()),
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
