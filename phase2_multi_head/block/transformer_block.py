"""What is a transformer block, and what does the place of its norms change?

Attention moves information between positions, a feed-forward network works on each by itself: two sub-layers, and
around each a residual connection, a LayerNorm and dropout. Where the norm stands is the one choice:

    pre-norm     x + sublayer(norm(x))      the default; x itself is never normalised        (Xiong et al. 2020)
    post-norm    norm(x + sublayer(x))      the first transformer                            (Vaswani et al. 2017)

In pre-norm there is a path from the input to the output on which nothing happens but addition, the residual stream:
each sub-layer reads a normalised copy of it and adds what it found. x grows from layer to layer, so that each addition
counts for less. A stack of such blocks ends with one more norm. In post-norm x is brought back to the same size after
every addition. Xiong et al. bound the gradient in the last layer of a simplified network before the first step: in
post-norm the bound is the same for any number of layers L, in pre-norm it falls as 1/√L. Large gradients near the
output, they argue, are why post-norm needs a learning rate that starts small (warm-up).

What goes wrong without the addition is in rank_collapse.py.

    python phase2_multi_head/block/transformer_block.py
"""

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from shared import cli
from shared.attention_checks import torch_twin
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.head_statistics import added_by_heads
from shared.toy_language import VOCABULARY, encode, sample_corpus
from shared.toy_model import Block, ToyTransformer, in_double

D_MODEL, NUM_HEADS, NUM_DRAWS = 64, 4, 8  # draws: of initial weights, for each seed
SHALLOW, DEEP = 6, 24  # layers
NORMS = {"pre-norm": True, "post-norm": False}  # name -> norm_first


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


def eight_word_tokens() -> Tensor:
    """About a hundred sentences of eight words, (N, 8): one length, so that no mask is needed."""
    return torch.tensor([encode(s.words) for s in sample_corpus(0, 500, seed=1)[1] if len(s.words) == 8])


@torch.no_grad()
def added_on_the_diagonal(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """What each head adds if every word attends to itself alone, (B, H, T, d_model): W_O W_V x, without W_O's bias."""
    value = split_heads(attention.w_v(x), attention.num_heads)  # (B, T, d_model) -> (B, H, T, d_k)
    return added_by_heads(attention, value)  # (B, H, T, d_k) -> (B, H, T, d_model)


def best_single_head(n: Numbers) -> float:
    return max(cosine for name, cosines in n.items() if name.startswith("single") for cosine in cosines)


@measures(
    Claim(
        id="C078",
        text="A head that looks along the diagonal, each word at itself, acts as a residual connection",
        source='course notes, "Head Specialization"',
        kind=EXPERIMENT,
        rule="of some head at least 0.25, half of what a head has that copies its 16 of the 64 columns",
        holds=lambda n: best_single_head(n) >= 0.25,
        oracle={"single heads, layer 0": [0.5] * 4, "single heads, layer 1": [0.5] * 4},
        null={"single heads, layer 0": [0.0] * 4, "single heads, layer 1": [0.0] * 4},
        unit="cosine of what a head reads and what it adds, all its weight on the word itself, mean over words",
        control="all heads of a layer together, which could copy every column",
    )
)
@torch.no_grad()
def diagonal_cosines(model: ToyTransformer) -> dict[str, float | list[float]]:
    """Cosine of what attention reads and what it adds with its weights on the diagonal: all heads, and each alone."""
    x = model.embed(eight_word_tokens())
    cosines: dict[str, float | list[float]] = {}
    for index, block in enumerate(model.blocks):
        read = block.attention_norm(x)
        added = added_on_the_diagonal(block.attention, read)
        cosines[f"all heads, layer {index}"] = F.cosine_similarity(added.sum(dim=1), read, dim=-1).mean().item()
        single = F.cosine_similarity(added, read[:, None], dim=-1).mean(dim=(0, 2))  # (B, H, T) -> (H,)
        cosines[f"single heads, layer {index}"] = single.tolist()
        x, _ = block(x)
    return cosines


@torch.no_grad()
def use_xavier(module: nn.Module) -> None:
    """Xavier weights and no biases, as in the paper; nn.Linear's own start smaller, by √3 for a square matrix."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def layer_gradients(num_layers: int, *, norm_first: bool, seed: int) -> list[float]:
    """Size (Frobenius norm) of the gradient of each layer's last feed-forward matrix, before the first step."""
    torch.manual_seed(seed)
    blocks = nn.ModuleList(TransformerBlock(D_MODEL, NUM_HEADS, norm_first=norm_first) for _ in range(num_layers))
    to_logits = nn.Linear(D_MODEL, len(VOCABULARY))
    use_xavier(blocks)
    use_xavier(to_logits)
    x, wanted = torch.randn(8, 12, D_MODEL), torch.randint(len(VOCABULARY), (8, 12))
    for block in blocks:
        x, _ = block(x)
    x = F.layer_norm(x, (D_MODEL,)) if norm_first else x  # pre-norm: the one norm of the stream itself, at its end
    F.cross_entropy(to_logits(x).flatten(0, 1), wanted.flatten()).backward()  # (B, T, V) -> (B * T, V)
    return [block.feed_forward[3].weight.grad.norm().item() for block in blocks]


DEPTH, OVER = f"{DEEP} layers over {SHALLOW}", f"post-norm over pre-norm, {DEEP} layers"


@measures(
    Claim(
        id="norm-depth",
        text="Before the first step, with Xavier weights, the gradient in the last layer of a post-norm network is as "
        "large in a deep network as in a shallow one; in pre-norm it falls as 1/√L with the number of layers L, and so "
        "post-norm has the larger gradients near the output",
        source="Xiong et al. 2020, abstract and theorem 1",
        kind=EXPERIMENT,
        rule="24 layers over 6: post-norm 0.67 to 1.5 (said: 1), pre-norm at most 0.67 (said: 0.5); in 24 layers "
        "post-norm at least 1.5 times pre-norm",
        holds=lambda n: (
            1 / 1.5 <= n[f"{DEPTH}, post-norm"] <= 1.5 and n[f"{DEPTH}, pre-norm"] <= 1 / 1.5 and n[OVER] >= 1.5
        ),
        oracle={f"{DEPTH}, post-norm": 1.0, f"{DEPTH}, pre-norm": 0.5, OVER: 4.9},
        null={f"{DEPTH}, post-norm": 1.0, f"{DEPTH}, pre-norm": 1.0, OVER: 1.0},
        unit=f"ratio of gradients of the last feed-forward matrix, means of {NUM_DRAWS} draws",
    )
)
def norm_gradients(seed: int) -> dict[str, float]:
    """Gradients in the last layer: deep over shallow for each place of the norm, and post-norm over pre-norm."""
    draws = range(NUM_DRAWS * seed, NUM_DRAWS * (seed + 1))
    last = {
        (norm, layers): statistics.mean(layer_gradients(layers, norm_first=first, seed=d)[-1] for d in draws)
        for norm, first in NORMS.items()
        for layers in (SHALLOW, DEEP)
    }
    numbers = {f"{DEPTH}, {norm}": last[norm, DEEP] / last[norm, SHALLOW] for norm in NORMS}
    return numbers | {OVER: last["post-norm", DEEP] / last["pre-norm", DEEP]}


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
    torch.testing.assert_close(stream + computed, torch_layer(block)(x))
    print("   nn.TransformerEncoderLayer with the same weights computes the same")


def attention_share(d_ff: int) -> float:
    """Share of a block's parameters that are in its attention."""
    block = TransformerBlock(D_MODEL, NUM_HEADS, d_ff)
    ours, all_of_them = (sum(p.numel() for p in part.parameters()) for part in (block.attention, block))
    return ours / all_of_them


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = {seed: load_multi_head_model(options, seed) for seed in cli.seeds(options)}
    models = {seed: in_double(each.model) for seed, each in trained.items()}
    model = models[options.seed]
    print(f'\n"{" ".join(options.words)}" through the first block, {trained[options.seed].label}')
    show_block(from_toy_block(model.blocks[0]), model.embed(torch.tensor([encode(options.words)])))
    print(f"   with d_ff = 4 d_model, {attention_share(4 * D_MODEL):.0%} of a block's parameters are in its attention")
    gradients = [norm_gradients(seed) for seed in models]
    findings.record(options, *map(diagonal_cosines, models.values()), *gradients)
    pre, post = (gradients[0][f"{DEPTH}, {norm}"] for norm in NORMS)
    return f"At {DEEP} layers the last gradient is {post:.2f} of that at {SHALLOW} in post-norm, {pre:.2f} in pre-norm"


if __name__ == "__main__":
    cli.run(main)
