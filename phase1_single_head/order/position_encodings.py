"""Attention is blind to order, and three encodings of positions that open its eyes.

Attention compares what vectors contain. Shuffle the words, and each gets what it got before: to attention a sentence is
a bag of words, unless somebody says where each word stands:

    sinusoidal   added to the word: a sine and a cosine at d_model / 2 speeds          Vaswani et al. 2017, 3.5
    learned      added to the word: a row of a trained table for each position         Gehring et al. 2017, 3.1
    rotary       not added: queries and keys are turned, the further on the more       Su et al. 2021, 3.2 (RoPE)

Sinusoidal and rotary use the same angles, position · 10000^(-2i / d): pair i of features is the hand of a clock, the
first goes round once in 2π positions, the last takes almost 10000 times as long. Two positions are compared by the
angles between their hands, and these depend on the distance alone. Run it to see each of these sentences as a number:

    python phase1_single_head/order/position_encodings.py

positions.py measures which of the three can learn what.
"""

import argparse
import copy
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
from shared.evidence.findings import Finding
from shared.toy_language import TOY_SENTENCE, encode
from shared.toy_model import ToyTransformer, sinusoidal_positions

EVEN, ODD, LENGTH, SHIFT = 64, 33, 64, 100  # two sizes of encodings, positions to look at, by how many they are moved
Facts = dict[str, float]
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


def twin_gaps(attend: Attend, words: Tensor, first: int, second: int) -> Facts:
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
        "words alone": attend,
        "positions added": partial(attend, positions=model.positions[:length]),
        "causal mask": partial(attend, mask=causal_mask(length)),
    }


@torch.no_grad()
def look_at_order(model: ToyTransformer) -> dict[str, Facts]:
    """Print and return the gaps of the toy sentence for each of three_ways; model: float64."""
    words = TOY_SENTENCE.split()
    first, second = (i for i, word in enumerate(words) if word == "the")
    x = model.embedding(torch.tensor(encode(words)))
    orders = [torch.tensor(order) for order in itertools.permutations(range(len(words)))]
    print(f'\n1. "{TOY_SENTENCE}" in the trained head, largest differences')
    print(f"   {'':18}{'between the two the: outputs':>28}{'rows':>8}{'columns':>9}{f'all {len(orders)} orders':>17}")
    gaps = {}
    for name, attend in three_ways(model, len(words)).items():
        gaps[name] = twin_gaps(attend, x, first, second) | {"shuffled": max(order_gap(attend, x, o) for o in orders)}
        outputs, rows, columns, shuffled = map(findings.number, gaps[name].values())
        print(f"   {name:18}{outputs:>28}{rows:>8}{columns:>9}{shuffled:>17}")
    return gaps


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


def look_at_sinusoidal() -> Facts:
    """Print and return what can be said of the sinusoidal encoding without training anything."""
    print(f"\n2. Sinusoidal, {LENGTH} positions")
    facts = {}
    for d_model in (EVEN, ODD):
        encoding = sinusoidal_positions(LENGTH, d_model).double()
        off, lengths = (encoding - sinusoidal_by_loops(LENGTH, d_model)).abs().max().item(), encoding.norm(dim=-1)
        print(f"   d_model = {d_model}: at most {off:.0e} from the formula, number by number; each row has the length")
        print(f"      {lengths.min():.3f} to {lengths.max():.3f}; √(d_model / 2) = {math.sqrt(d_model / 2):.3f}")
        facts |= {f"formula, d_model = {d_model}": off, f"length of a row, d_model = {d_model}": lengths.mean().item()}
    similarity, facts["spread"] = similarity_by_distance(sinusoidal_positions(LENGTH, EVEN).double())
    facts["steps"], facts["pairs"] = against_the_fall(similarity)
    print(f"   similarity (dot product) of two rows, d_model = {EVEN}, by their distance:")
    print("      " + "  ".join(f"{distance}: {similarity[distance]:.1f}" for distance in range(8)))
    print(f"      the same distance elsewhere in the text: at most {facts['spread']:.0e} from that")
    print(f"      grows at {facts['steps']:.0%} of the steps; over {facts['pairs']:.0%} of all pairs of distances")
    return facts


def look_at_rotary(seed: int) -> Facts:
    """Print and return what can be said of rotary positions for any query and key, here random ones, float64."""
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, LENGTH, EVEN, generator=generator, dtype=torch.float64)
    here, there = torch.arange(LENGTH), torch.arange(LENGTH) + SHIFT
    scores = rotary(query, here) @ rotary(key, here).T
    facts = {
        "scores, both moved on": (scores - rotary(query, there) @ rotary(key, there).T).abs().max().item(),
        "scores, only the keys moved on": (scores - rotary(query, here) @ rotary(key, there).T).abs().max().item(),
        "lengths of the vectors": (rotary(query, there).norm(dim=-1) - query.norm(dim=-1)).abs().max().item(),
    }
    ones = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(LENGTH, EVEN // 2)  # all hands point the same way
    curves = (similarity_by_distance(e.double())[0] for e in (rotary(ones, here), sinusoidal_positions(LENGTH, EVEN)))
    print(
        f"\n3. Rotary, {LENGTH} random queries and keys of size {EVEN}, moved on by {SHIFT} positions: largest change"
    )
    for name, fact in facts.items():
        print(f"   {name:32} {findings.number(fact)}")
    print(f"   its score of equal words falls like sinusoidal similarity: {torch.dist(*curves, torch.inf):.0e} apart")
    return facts


def record_findings(gaps: dict[str, Facts], waves: Facts, turned: Facts, options: argparse.Namespace) -> None:
    moved = max(turned["scores, both moved on"], turned["lengths of the vectors"])
    kinds, ways = ("shuffled", "outputs", "columns"), ("positions added", "causal mask")
    shuffled, outputs, columns = ({way: by_kind[kind] for way, by_kind in gaps.items()} for kind in kinds)
    findings.record(
        "phase1_single_head/order/position_encodings.py",
        [
            Finding(
                "C118",
                "Self-attention is permutation equivariant: shuffled words get the same outputs, shuffled",
                "course notes",
                shuffled,
                "largest difference of an output, all orders of the toy sentence, trained head, float64",
                "below 1e-12 all three ways; above 0.01 it is broken",
                **findings.conditional(
                    max(shuffled.values()) < 1e-12,
                    shuffled["words alone"] < 1e-12 and min(shuffled[way] for way in ways) > 0.01,
                    "there are neither positions nor a causal mask",
                ),
                seeds=[options.seed],
            ),
            Finding(
                "C116",
                f'Attention tells the two "the" of "{TOY_SENTENCE}" apart',
                "course notes",
                outputs,
                "largest difference of their outputs, trained head, float64",
                "above 0.01 all three ways",
                **findings.conditional(
                    min(outputs.values()) > 0.01,
                    min(outputs[way] for way in ways) > 0.01,
                    "positions are added or a mask hides different words from them",
                ),
                seeds=[options.seed],
            ),
            Finding(
                "C117",
                'A word can give one "the" more weight than the other',
                "course notes, with a table of weights that does",
                columns,
                "largest difference of two weights of a word that sees both, trained head, float64",
                "above 0.01 all three ways",
                **findings.conditional(
                    min(columns.values()) > 0.01,
                    columns["positions added"] > 0.01 > columns["causal mask"],
                    "positions are added: in one layer a mask hides a word or shows it, and makes none heavier",
                ),
                seeds=[options.seed],
            ),
            Finding(
                "C136",
                "Sinusoidal positions need an even d_model",
                "course notes, whose code stops with an error at an odd one",
                {name: fact for name, fact in waves.items() if "d_model" in name},
                f"largest difference from the formula of Vaswani et al. 2017, {LENGTH} positions; mean length",
                f"above 1e-4 at {ODD}, below at {EVEN}",
                findings.verdict(waves[f"formula, d_model = {ODD}"] > 1e-4 > waves[f"formula, d_model = {EVEN}"]),
            ),
            Finding(
                "sinusoidal-distance",
                "The similarity of two sinusoidal positions depends on their distance alone",
                "course notes",
                {"largest difference": waves["spread"]},
                f"dot product of pairs of rows the same distance apart, against their mean; d_model = {EVEN}",
                "below 1e-3",
                findings.verdict(waves["spread"] < 1e-3),
            ),
            Finding(
                "C135",
                "The nearer two positions, the more similar their sinusoidal encodings",
                "course notes",
                {"steps at which it grows": waves["steps"], "pairs of distances with growth": waves["pairs"]},
                f"share, distances 0 to {LENGTH - 1}, d_model = {EVEN}",
                "similarity grows at no step; on average: in less than a quarter of the pairs",
                **findings.conditional(waves["steps"] == 0, waves["pairs"] < 0.25, "it is meant on average"),
            ),
            Finding(
                "rotary-offset",
                "A rotary score depends on the offset of the two positions alone, and turning changes no length",
                "Su et al. 2021, section 3.2",
                turned,
                f"largest change by moving {SHIFT} positions on, float64",
                "scores and lengths below 1e-10; above 1 when only the keys move",
                findings.verdict(moved < 1e-10 and turned["scores, only the keys moved on"] > 1),
                control="only the keys moved on",
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    model = copy.deepcopy(load_single_head_model(options).model).cpu().double()  # 15 digits: "the same" can be strict
    record_findings(look_at_order(model), look_at_sinusoidal(), look_at_rotary(options.seed), options)


if __name__ == "__main__":
    cli.run(main)
