"""Attention is blind to order: what opens its eyes?

Attention compares what vectors contain. Shuffle the words, and each gets what it got before: to attention a sentence is
a bag of words, unless somebody says where each word stands:

    sinusoidal   added to the word: a sine and a cosine at d_model / 2 speeds          Vaswani et al. 2017, 3.5
    learned      added to the word: a row of a trained table for each position         Gehring et al. 2017, 3.1
    rotary       not added: queries and keys are turned, the further on the more       Su et al. 2021, 3.2 (RoPE)

Sinusoidal and rotary use the same angles, position · 10000^(-2i / d): pair i of features is the hand of a clock, the
first goes round once in 2π positions, the last takes almost 10000 times as long. Two positions are compared by the
angles between their hands, and these depend on the distance alone. Run it to see each of these sentences as a number;
positions.py measures which of the three can learn what.

    python phase1_single_head/order/position_encodings.py
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from phase1_single_head.self_attention import SelfAttention, load_single_head_model, scaled_dot_product_attention
from shared import cli
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.claims import IDENTITY, Claim, measures
from shared.toy_language import TOY_SENTENCE, encode
from shared.toy_model import ToyTransformer, in_double, sinusoidal_positions

EVEN, ODD, LENGTH, SHIFT = 64, 33, 64, 100  # two sizes of encodings, positions to look at, by how many they are moved
WAYS = ALONE, ADDED, CAUSAL = "words alone", "positions added", "causal mask"
Attend = Callable[[Tensor], tuple[Tensor, Tensor]]  # words (T, d_model) -> output (T, d_model), weights (T, T)


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    """Turn each pair of features (2i, 2i + 1) by the angle position · 10000^(-2i / d): (..., T, d) -> (..., T, d).

    positions: (T,). A turned vector keeps its length, and the product of two depends on the offset of their positions
    alone: turning one by a and the other by b is turning only the other, by b - a (Su et al. 2021, section 3.2.2).
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
    i = torch.arange(size // 2, dtype=x.dtype, device=x.device)
    angle = positions[:, None] * 10000 ** (-2 * i / size)  # (T, 1) * (d / 2,) -> (T, d / 2)
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


@measures(
    Claim(
        id="C118",
        text="Self-attention is permutation equivariant: shuffled words get the same outputs, shuffled",
        kind=IDENTITY,
        rule="below 1e-12 all three ways; above 0.01 it is broken",
        holds=lambda n: max(n[f"{way}: shuffled"] for way in WAYS) < 1e-12,
        only_if=lambda n: n[f"{ALONE}: shuffled"] < 1e-12 and min(n[f"{w}: shuffled"] for w in (ADDED, CAUSAL)) > 0.01,
        condition="there are neither positions nor a causal mask",
        unit="largest difference of an output, all orders of the toy sentence, trained head, float64",
        shows=("*: shuffled",),
    ),
    Claim(
        id="C116",
        text=f'Attention tells the two "the" of "{TOY_SENTENCE}" apart',
        kind=IDENTITY,
        rule="above 0.01 all three ways",
        holds=lambda n: min(n[f"{way}: outputs"] for way in WAYS) > 0.01,
        only_if=lambda n: min(n[f"{way}: outputs"] for way in (ADDED, CAUSAL)) > 0.01,
        condition="positions are added or a mask hides different words from them",
        unit="largest difference of their outputs, trained head, float64",
        shows=("*: outputs",),
    ),
    Claim(
        id="C117",
        text='A word can give one "the" more weight than the other',
        kind=IDENTITY,
        source="course notes, with a table of weights that does",
        rule="above 0.01 all three ways",
        holds=lambda n: min(n[f"{way}: columns"] for way in WAYS) > 0.01,
        only_if=lambda n: n[f"{ADDED}: columns"] > 0.01 > n[f"{CAUSAL}: columns"],
        condition="positions are added: in one layer a mask hides a word or shows it, and makes none heavier",
        unit="largest difference of two weights of a word that sees both, trained head, float64",
        shows=("*: columns",),
    ),
)
@torch.no_grad()
def gaps(model: ToyTransformer) -> dict[str, float]:
    """twin_gaps of the two "the" of the toy sentence and its order_gap, three ways; model: float64."""
    words = TOY_SENTENCE.split()
    first, second = (i for i, word in enumerate(words) if word == "the")
    x = model.embedding(torch.tensor(encode(words)))
    orders = [torch.tensor(order) for order in itertools.permutations(range(len(words)))]
    found = {}
    for way, attend in three_ways(model, len(words)).items():
        kinds = twin_gaps(attend, x, first, second) | {"shuffled": max(order_gap(attend, x, o) for o in orders)}
        found |= {f"{way}: {kind}": gap for kind, gap in kinds.items()}
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


@measures(
    Claim(
        id="C136",
        text="Sinusoidal positions need an even d_model",
        kind=IDENTITY,
        source="course notes, whose code stops with an error at an odd one",
        rule=f"above 1e-4 at {ODD}, below at {EVEN}",
        holds=lambda n: n[f"formula, d_model = {ODD}"] > 1e-4 > n[f"formula, d_model = {EVEN}"],
        unit=f"largest difference from the formula of Vaswani et al. 2017, {LENGTH} positions; mean length",
        shows=("*d_model*",),
    ),
    Claim(
        id="sinusoidal-distance",
        text="The similarity of two sinusoidal positions depends on their distance alone",
        kind=IDENTITY,
        rule="below 1e-3",
        holds=lambda n: n["same distance elsewhere"] < 1e-3,
        unit=f"dot product of pairs of rows the same distance apart, against their mean; d_model = {EVEN}",
        shows=("same distance elsewhere",),
    ),
    Claim(
        id="C135",
        text="The nearer two positions, the more similar their sinusoidal encodings",
        kind=IDENTITY,
        rule="similarity grows at no step; on average: in less than a quarter of the pairs",
        holds=lambda n: n["steps at which it grows"] == 0,
        only_if=lambda n: n["pairs of distances with growth"] < 0.25,
        condition="it is meant on average",
        unit=f"share, distances 0 to {LENGTH - 1}, d_model = {EVEN}",
        shows=("steps*", "pairs*"),
    ),
)
def sinusoidal_facts() -> dict[str, float | list[float]]:
    """What can be said of the sinusoidal encoding without training anything."""
    facts = {}
    for d_model in (EVEN, ODD):
        encoding = sinusoidal_positions(LENGTH, d_model).double()
        facts[f"formula, d_model = {d_model}"] = (encoding - sinusoidal_by_loops(LENGTH, d_model)).abs().max().item()
        facts[f"length of a row, d_model = {d_model}"] = encoding.norm(dim=-1).mean().item()
    similarity, facts["same distance elsewhere"] = similarity_by_distance(sinusoidal_positions(LENGTH, EVEN).double())
    facts["similarity by distance"] = similarity[:8].tolist()
    facts["steps at which it grows"], facts["pairs of distances with growth"] = against_the_fall(similarity)
    return facts


BOTH, KEYS = "scores, both moved on", "scores, only the keys moved on"


@measures(
    Claim(
        id="rotary-offset",
        text="A rotary score depends on the offset of the two positions alone, and turning changes no length",
        kind=IDENTITY,
        source="Su et al. 2021, section 3.2",
        rule="scores and lengths below 1e-10; above 1 when only the keys move",
        holds=lambda n: max(n[BOTH], n["lengths of the vectors"]) < 1e-10 and n[KEYS] > 1,
        unit=f"largest change by moving {SHIFT} positions on, float64",
        control="only the keys moved on",
    )
)
def rotary_facts(seed: int) -> dict[str, float]:
    """What can be said of rotary positions for any query and key, here random ones, float64."""
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, LENGTH, EVEN, generator=generator, dtype=torch.float64)
    here, there = torch.arange(LENGTH), torch.arange(LENGTH) + SHIFT
    scores = rotary(query, here) @ rotary(key, here).T
    ones = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(LENGTH, EVEN // 2)  # all hands point the same way
    curves = (similarity_by_distance(e.double())[0] for e in (rotary(ones, here), sinusoidal_positions(LENGTH, EVEN)))
    return {
        BOTH: (scores - rotary(query, there) @ rotary(key, there).T).abs().max().item(),
        KEYS: (scores - rotary(query, here) @ rotary(key, there).T).abs().max().item(),
        "lengths of the vectors": (rotary(query, there).norm(dim=-1) - query.norm(dim=-1)).abs().max().item(),
        "its score of equal words, from sinusoidal similarity": torch.dist(*curves, torch.inf).item(),
    }


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    blind = gaps(in_double(load_single_head_model(options).model))
    findings.record(options, blind, sinusoidal_facts(), rotary_facts(options.seed))
    alone, added = (blind[f"{way}: shuffled"] for way in (ALONE, ADDED))
    return f"Shuffled words get shuffled outputs, to {alone:.0e}; with positions added they differ by {added:.1f}"


if __name__ == "__main__":
    cli.run(main)
