"""Attention is blind to order: what opens its eyes?

Attention compares what vectors contain. Shuffle the words, and each gets what it got before: to attention a sentence is
a bag of words, unless somebody says where each word stands:

    sinusoidal   added to the word: a sine and a cosine at d_model / 2 speeds          Vaswani et al. 2017, 3.5
    learned      added to the word: a row of a trained table for each position         Gehring et al. 2017, 3.1
    rotary       not added: queries and keys are turned, the further on the more       Su et al. 2021, 3.2 (RoPE)

Sinusoidal and rotary use the same angles, position · 10000^(-2i / d): pair i of features is the hand of a clock, the
first goes round once in 2π positions, the last takes almost 10000 times as long. Two positions are compared by the
angles between their hands, and these depend on the distance alone; an odd d_model has one sine without its cosine.
All this is algebra, and asserted by the tests; run it to see the numbers. positions.py measures what each can learn.

    python phase1_single_head/order/position_encodings.py
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from phase1_single_head.models import load_single_head_model
from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import cli
from shared.attention_utils import causal_mask
from shared.toy_language import TOY_SENTENCE, encode
from shared.toy_model import ToyTransformer, in_double, sinusoidal_positions

D_MODEL, LENGTH = 64, 64  # of the sinusoidal encoding that is looked at
WAYS = ALONE, ADDED, CAUSAL = "words alone", "positions added", "causal mask"
Attend = Callable[[Tensor], tuple[Tensor, Tensor]]  # words (T, d_model) -> output (T, d_model), weights (T, T)


def rotary(x: Tensor, positions: Tensor, frequencies: Tensor | None = None) -> Tensor:
    """Turn each pair of features (2i, 2i + 1) by the angle position · 10000^(-2i / d): (..., T, d) -> (..., T, d).

    positions: (T,). frequencies: (d / 2,), radians a position, where a model has others than these. A turned vector
    keeps its length, and the product of two depends on the offset of their positions alone: turning one by a and the
    other by b is turning only the other, by b - a (Su et al. 2021, section 3.2.2).
    Raises ValueError for an odd d, where one feature has no partner, and for a wrong number of positions.

    >>> rotary(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))  # by 0 and by 1 radian
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """
    length, size = x.shape[-2:]
    if size % 2:
        raise ValueError(f"rotary positions turn pairs of features, so their number must be even: got {size}")
    if positions.shape != (length,):
        raise ValueError(f"positions must have shape ({length},), one for each vector: got {tuple(positions.shape)}")
    if frequencies is None:
        frequencies = 10000 ** (-2 * torch.arange(size // 2, dtype=x.dtype, device=x.device) / size)
    angle = positions[:, None] * frequencies  # (T, 1) * (d / 2,) -> (T, d / 2)
    first, second = x[..., 0::2], x[..., 1::2]  # (..., T, d) -> (..., T, d / 2)
    turned = first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()
    return torch.stack(turned, dim=-1).flatten(-2)  # (..., T, d / 2, 2) -> (..., T, d)


class RotarySelfAttention(SelfAttention):
    """One head that turns queries and keys by their positions. Values are not turned: they say what, not where.

    The parameters are those of SelfAttention, and nothing is added to x. d_k must be even.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_v or d_model), weights (B, 1, T, T).

        positions: (T,), from 0 to T - 1 unless given; where they begin makes no difference.
        """
        positions = torch.arange(x.size(-2), device=x.device) if positions is None else positions
        query, key, value = (w(x).unsqueeze(-3) for w in (self.w_q, self.w_k, self.w_v))  # (B, T, d) -> (B, 1, T, d)
        output, weights = scaled_dot_product_attention(rotary(query, positions), rotary(key, positions), value, mask)
        return self.w_o(output.squeeze(-3)), weights  # (B, 1, T, d_v) -> (B, T, d_v)


def order_gap(attend: Attend, words: Tensor, order: Tensor) -> float:
    """How far attend(words in another order) is from attend(words) in that order: 0 if attention is blind to order.

    words (T, d_model), order (T,), a permutation. What has a gap of 0 is called permutation equivariant.
    """
    return (attend(words[order])[0] - attend(words)[0][order]).abs().max().item()


def twin_gaps(attend: Attend, words: Tensor, first: int, second: int) -> dict[str, float]:
    """Largest differences between two places with the same word: of outputs, of rows, of columns of the weights.

    Columns are compared for words that see both: a word that sees only one of them has no choice to make.
    """
    output, weights = attend(words)
    sees_both = (weights[:, first] > 0) & (weights[:, second] > 0)
    kinds = {"outputs": output, "rows": weights, "columns": weights.T[:, sees_both]}
    return {name: (kind[first] - kind[second]).abs().max().item() for name, kind in kinds.items()}


def three_ways(model: ToyTransformer, length: int) -> dict[str, Attend]:
    """The trained head on words without positions, with positions, and without them under a causal mask."""
    block = model.blocks[0]

    def attend(words: Tensor, positions: Tensor | float = 0.0, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, weights = block.attention(block.attention_norm(words + positions)[None], mask)
        return output[0], weights[0, 0]  # (1, T, d_model), (1, 1, T, T) -> (T, d_model), (T, T)

    return {
        ALONE: attend,
        ADDED: partial(attend, positions=model.positions[:length]),
        CAUSAL: partial(attend, mask=causal_mask(length)),
    }


@torch.no_grad()
def gaps(model: ToyTransformer) -> dict[str, dict[str, float]]:
    """For each of three ways twin_gaps of the two "the" of the toy sentence, and its order_gap; model: float64."""
    words = TOY_SENTENCE.split()
    first, second = (i for i, word in enumerate(words) if word == "the")
    x = model.embedding(torch.tensor(encode(words)))
    orders = [torch.tensor(order) for order in itertools.permutations(range(len(words)))]
    found = {}
    for way, attend in three_ways(model, len(words)).items():
        shuffled = max(order_gap(attend, x, order) for order in orders)
        found[way] = twin_gaps(attend, x, first, second) | {"shuffled": shuffled}
    return found


def sinusoidal_by_loops(length: int, d_model: int) -> Tensor:
    """The specification of shared.toy_model.sinusoidal_positions, one number at a time, float64."""
    encoding = torch.zeros(length, d_model, dtype=torch.float64)
    for position in range(length):
        for column in range(d_model):
            angle = position / 10000 ** (2 * (column // 2) / d_model)  # columns 2i and 2i + 1 share an angle
            encoding[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return encoding


def similarity_by_distance(encoding: Tensor) -> tuple[Tensor, float]:
    """Encoding (T, d) -> mean dot product of rows 0, 1, ... T - 1 apart (T,), and how far any pair is from its mean."""
    similarity = encoding @ encoding.T  # (T, d) @ (d, T) -> (T, T)
    diagonals = [similarity.diagonal(distance) for distance in range(len(encoding))]
    mean = torch.stack([diagonal.mean() for diagonal in diagonals])
    spread = max((diagonal - m).abs().max().item() for diagonal, m in zip(diagonals, mean, strict=True))
    return mean, spread


def against_the_fall(similarity: Tensor) -> tuple[float, float]:
    """Similarity by distance (T,) -> share of steps at which it grows, of pairs of distances with growth between."""
    near, far = torch.triu_indices(len(similarity), len(similarity), offset=1)
    grown = (similarity[far] > similarity[near]).double()
    return grown[far == near + 1].mean().item(), grown.mean().item()


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    found = gaps(in_double(load_single_head_model(options).model))
    print(
        f'\nThe two "the" of "{TOY_SENTENCE}" in the trained head: largest differences, and of all shuffled sentences'
    )
    print(f"   {'':16}" + "".join(f"{kind:>10}" for kind in found[ALONE]))
    for way, kinds in found.items():
        print(f"   {way:16}" + "".join(f"{gap:>10.1e}" for gap in kinds.values()))
    print(
        "   Columns: what a word that sees both gives them. In one layer a mask hides a word, and makes none heavier."
    )
    encoding = sinusoidal_by_loops(LENGTH, D_MODEL)
    torch.testing.assert_close(sinusoidal_positions(LENGTH, D_MODEL).double(), encoding, rtol=0, atol=1e-5)
    similarity, spread = similarity_by_distance(encoding)
    steps, pairs = against_the_fall(similarity)
    print(f"\nSinusoidal encoding, {LENGTH} positions, d_model = {D_MODEL}: similarity (dot product) of two positions")
    print(f"   by their distance from 0 on: {', '.join(f'{value:.1f}' for value in similarity[:10].tolist())} ...")
    print(f"   the same wherever they stand, to {spread:.0e}")
    print(f"   it grows at {steps:.0%} of the steps; in {pairs:.0%} of pairs of distances the larger is more similar")
    alone, added = (found[way]["shuffled"] for way in (ALONE, ADDED))
    return f"Shuffled words get shuffled outputs, to {alone:.0e}; with positions added they differ by {added:.1f}"


if __name__ == "__main__":
    cli.run(main)
