"""What is a transformer block, and what does the place of its norms change?

Attention moves information between positions, a feed-forward network works on each by itself: two sub-layers, and
around each a residual connection, a LayerNorm and dropout. Where the norm stands is the one choice:

    pre-norm     x + sublayer(norm(x))      the default; x itself is never normalised        (Xiong et al. 2020)
    post-norm    norm(x + sublayer(x))      the first transformer                            (Vaswani et al. 2017)

In pre-norm there is a path from the input to the output on which nothing happens but addition, the residual stream:
each sub-layer reads a normalised copy of it and adds what it found. x grows from layer to layer, so that each addition
counts for less. A stack of such blocks ends with one more norm. In post-norm x is brought back to the same size after
every addition. Xiong et al. prove for a simplified network that then the gradient in the last layer is as large in a
deep network as in a shallow one, where in pre-norm it falls as 1/√L with the number of layers L. Large gradients near
the output, they argue, are why post-norm needs a learning rate that starts small (warm-up).

What goes wrong without the addition is in rank_collapse.py.

    python phase2_multi_head/block/transformer_block.py
"""

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase2_multi_head.heads.output_projection import added_by_heads
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model, split_heads, torch_twin
from shared import cli
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, Claim, measures
from shared.toy_language import VOCABULARY, encode, sample_corpus
from shared.toy_model import Block, ToyTransformer, in_double

D_MODEL, NUM_HEADS, NUM_DRAWS = 64, 4, 4
SHALLOW, DEEP = 6, 24  # layers
NORMS = {"pre-norm": True, "post-norm": False}  # name -> norm_first
INITIAL = {"nn.Linear's own": False, "Xavier": True}  # initial weights -> xavier
ALL_ONE = "W_V and W_O set to the identity"


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


@measures(
    Claim(
        id="block-parity",
        text="The block written by hand is what the library and the toy transformer compute",
        source="Vaswani et al. 2017, section 3.1; Xiong et al. 2020",
        kind=IDENTITY,
        rule="below 1e-12, with copied weights",
        holds=lambda n: max(n.values()) < 1e-12,
        unit="largest absolute difference of outputs, of the toy's blocks also of weights; float64",
    )
)
@torch.no_grad()
def differences(model: ToyTransformer, words: list[str]) -> dict[str, float]:
    """How far our block is from nn.TransformerEncoderLayer, causal mask, and from the toy transformer's blocks."""
    found = {}
    for name, norm_first in NORMS.items():
        block = TransformerBlock(D_MODEL, NUM_HEADS, norm_first=norm_first).double()
        x, mask = torch.randn(2, 7, D_MODEL, dtype=torch.float64), causal_mask(7)
        theirs = torch_layer(block)(x, src_mask=~mask)
        found[f"nn.TransformerEncoderLayer, {name}"] = (block(x, mask)[0] - theirs).abs().max().item()
    x, largest = model.embed(torch.tensor([encode(words)])), 0.0
    for toy in model.blocks:
        pairs = zip(from_toy_block(toy)(x), toy(x), strict=True)
        largest = max(largest, *((ours - theirs).abs().max().item() for ours, theirs in pairs))
        x, _ = toy(x)
    return found | {"block of the toy transformer": largest}


@measures(
    Claim(
        id="C160",
        text="Attention with residual connection and norm has everything that a transformer layer needs",
        kind=IDENTITY,
        rule="attention has at least nine tenths of the parameters; the rest is what such a layer lacks",
        holds=lambda n: min(n.values()) >= 0.9,
        unit="share of the block's parameters, d_model = 64",
    )
)
def attention_shares() -> dict[str, float]:
    """Share of a block's parameters that are in its attention."""
    shares = {}
    for factor in (4, 2):
        block = TransformerBlock(D_MODEL, NUM_HEADS, factor * D_MODEL)
        count = {part: sum(p.numel() for p in part.parameters()) for part in (block, block.attention)}
        shares[f"attention's share, d_ff = {factor} d_model"] = count[block.attention] / count[block]
    return shares


def eight_word_tokens() -> Tensor:
    """About a hundred sentences of eight words, (N, 8): one length, so that no mask is needed."""
    return torch.tensor([encode(s.words) for s in sample_corpus(0, 500, seed=1)[1] if len(s.words) == 8])


@torch.no_grad()
def added_on_the_diagonal(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """What each head adds if every word attends to itself alone, (B, H, T, d_model): W_O W_V x, without W_O's bias."""
    value = split_heads(attention.w_v(x), attention.num_heads)  # (B, T, d_model) -> (B, H, T, d_k)
    return added_by_heads(attention, value)  # (B, H, T, d_k) -> (B, H, T, d_model)


@measures(
    Claim(
        id="C078",
        text="A head that looks along the diagonal, each word at itself, acts as a residual connection",
        kind=EXPERIMENT,
        rule="at least 0.9: what comes out points where x points",
        holds=lambda n: min(cosine for name, cosine in n.items() if name != ALL_ONE and "heads" not in name) >= 0.9,
        only_if=lambda n: n[ALL_ONE] >= 0.9,
        condition="W_V W_O is close to the identity",
        oracle={"trained, layer 0": 1.0, "new module": 1.0, ALL_ONE: 1.0},
        null={"trained, layer 0": 0.0, "new module": 0.0, ALL_ONE: 1.0},
        unit="cosine of what attention reads and what it adds, all weights on the diagonal, mean over words",
        control="single heads, whose cosines stand beside",
    )
)
@torch.no_grad()
def diagonal_cosines(model: ToyTransformer) -> dict[str, float | list[float]]:
    """Cosine of what attention reads and what it adds with its weights on the diagonal: all heads, and each alone."""
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
    inputs[ALL_ONE] = (identity, x)
    cosines: dict[str, float | list[float]] = {}
    for name, (attention, read) in inputs.items():
        added = added_on_the_diagonal(attention, read)
        cosines[name] = F.cosine_similarity(added.sum(dim=1), read, dim=-1).mean().item()
        single = F.cosine_similarity(added, read[:, None], dim=-1).mean(dim=(0, 2))  # (B, H, T) -> (H,)
        cosines[f"{name}, single heads"] = single.tolist()
    return cosines


@torch.no_grad()
def use_xavier(module: nn.Module) -> None:
    """Xavier weights and no biases, as in the paper; nn.Linear's own start smaller, by √3 for a square matrix."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def layer_gradients(num_layers: int, *, norm_first: bool, xavier: bool, seed: int) -> list[float]:
    """Size (Frobenius norm) of the gradient of each layer's last feed-forward matrix, before the first step."""
    torch.manual_seed(seed)
    blocks = nn.ModuleList(TransformerBlock(D_MODEL, NUM_HEADS, norm_first=norm_first) for _ in range(num_layers))
    to_logits = nn.Linear(D_MODEL, len(VOCABULARY))
    if xavier:
        use_xavier(blocks)
        use_xavier(to_logits)
    x, wanted = torch.randn(8, 12, D_MODEL), torch.randint(len(VOCABULARY), (8, 12))
    for block in blocks:
        x, _ = block(x)
    x = F.layer_norm(x, (D_MODEL,)) if norm_first else x  # pre-norm: the one norm of the stream itself, at its end
    F.cross_entropy(to_logits(x).flatten(0, 1), wanted.flatten()).backward()  # (B, T, V) -> (B * T, V)
    return [block.feed_forward[3].weight.grad.norm().item() for block in blocks]


DEPTH, RISE, OVER = "last layer, 24 layers over 6", "last layer over first", "last layer, post-norm over pre-norm"


@measures(
    Claim(
        id="norm-depth",
        text="In post-norm the gradient in the last layer is as large in a deep network as in a shallow one; in "
        "pre-norm it shrinks with depth",
        source="Xiong et al. 2020, theorem 1",
        kind=EXPERIMENT,
        rule="post-norm 0.75 to 1.33, pre-norm at most 0.8, with both kinds of initial weights",
        holds=lambda n: all(
            0.75 <= n[f"{DEPTH}, post-norm, {i}"] <= 1.33 and n[f"{DEPTH}, pre-norm, {i}"] <= 0.8 for i in INITIAL
        ),
        oracle={
            f"{DEPTH}, {norm}, {i}": ratio for norm, ratio in (("pre-norm", 0.5), ("post-norm", 1)) for i in INITIAL
        },
        null={f"{DEPTH}, {norm}, {i}": 1.0 for norm in NORMS for i in INITIAL},
        unit="gradient of the last feed-forward matrix, before the first step",
        control="the theorem's 1/√L gives 0.50 for pre-norm",
        shows=(f"{DEPTH}*",),
    ),
    Claim(
        id="norm-layers",
        text="In post-norm the gradients near the output are large",
        source="Xiong et al. 2020, abstract",
        kind=EXPERIMENT,
        rule="with both kinds of initial weights, the last layer's at least 1.25 times the first layer's; failing "
        "that, at least 1.25 times that of a pre-norm network of the same depth",
        holds=lambda n: min(n[f"{RISE}, post-norm, {i}"] for i in INITIAL) >= 1.25,
        only_if=lambda n: min(n[f"{OVER}, {i}"] for i in INITIAL) >= 1.25,
        condition="large means larger than in pre-norm; in a post-norm network other layers may have as much",
        oracle={f"{RISE}, post-norm, {i}": 2.0 for i in INITIAL},
        null={f"{RISE}, post-norm, {i}": 1.0 for i in INITIAL} | {f"{OVER}, {i}": 1.0 for i in INITIAL},
        unit="gradient of the last feed-forward matrix, 24 layers, before the first step",
        shows=(f"{RISE}*", f"{OVER}*"),
    ),
)
def norm_gradients(seeds: range) -> dict[str, float]:
    """Ratios of gradients, means of NUM_DRAWS draws for each seed."""

    def mean_gradients(num_layers: int, norm: str, initial: str) -> list[float]:
        draws = range(NUM_DRAWS * seeds.start, NUM_DRAWS * seeds.stop)
        settings = {"norm_first": NORMS[norm], "xavier": INITIAL[initial]}
        return list(
            map(statistics.mean, zip(*(layer_gradients(num_layers, seed=d, **settings) for d in draws), strict=True))
        )

    last, numbers = {}, {}
    for norm in NORMS:
        for initial in INITIAL:
            deep, shallow = (mean_gradients(num_layers, norm, initial) for num_layers in (DEEP, SHALLOW))
            last[norm, initial] = deep[-1]
            numbers[f"{DEPTH}, {norm}, {initial}"] = deep[-1] / shallow[-1]
            numbers[f"{RISE}, {norm}, {initial}"] = deep[-1] / deep[0]
    return numbers | {f"{OVER}, {i}": last["post-norm", i] / last["pre-norm", i] for i in INITIAL}


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


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_multi_head_model(options)
    model = in_double(trained.model)
    print(f'\n"{" ".join(options.words)}" through the first block of the toy transformer, {trained.label}')
    show_block(from_toy_block(model.blocks[0]), model.embed(torch.tensor([encode(options.words)])))
    equal = differences(model, options.words)
    assert max(equal.values()) < 1e-12
    gradients = norm_gradients(cli.seeds(options))
    findings.record(options, equal, attention_shares(), diagonal_cosines(model), gradients)
    pre, post = (gradients[f"{DEPTH}, {norm}, Xavier"] for norm in NORMS)
    return f"At {DEEP} layers the last gradient is {post:.2f} of that at {SHALLOW} in post-norm, {pre:.2f} in pre-norm"


if __name__ == "__main__":
    cli.run(main)
