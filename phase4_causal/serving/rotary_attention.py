"""What can be done about rotary positions in a text that is longer than any in training?

Pair i of d features turns by 10000^(-2i / d) radians a place (phase 1). In training fast pairs went
round many times. Slow ones never did, and in a longer text they come to angles that no query and
key has met. So, for a text s times as long, turns are slowed when the model is used:

    interpolated   all pairs s times slower                          Chen et al. 2023, who then train a little more
    NTK-aware      base 10000 · s^(d / (d - 2)): the first pair as before, the last s times slower, between them less
    by parts       s times slower where a pair went round less than once in training, as before where twice or more,
                   and scores times (1 + ln(s) / 10)²                YaRN; Peng et al. 2023, sections 3.1 to 3.4

Or a text is read through a cache of fixed size, and places are counted in that (rolling_cache.py).
"""

import math

import torch
from torch import Tensor

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase4_causal.causal_attention import CausalSelfAttention, also_causal
from phase4_causal.serving.rolling_cache import RollingCache

TRAINED = 32  # words of a text in training
ONCE, TWICE = 1, 2  # YaRN's α and β, which is 32 there: its models were trained on texts of 4,096
WAYS = AS_TRAINED, INTERPOLATED, NTK, PARTS = (
    "as trained",
    "interpolated",
    "NTK-aware",
    "by parts (YaRN)",
)


def frequencies(size: int, way: str = AS_TRAINED, stretch: float = 1.0) -> Tensor:
    """Radians that each pair of `size` features turns a place -> (size / 2,). ValueError for one
    pair, NTK-aware.
    """
    if way == NTK and size < 4:
        raise ValueError(
            f"NTK-aware keeps the first pair and slows the last: needs 4 features or more: got {size}"
        )
    base = 10000 * stretch ** (size / (size - 2)) if way == NTK else 10000
    plain = base ** (-torch.arange(0, size, 2) / size)
    if way == PARTS:
        rounds = TRAINED * plain / (2 * math.pi)  # that a pair went in training
        kept = ((rounds - ONCE) / (TWICE - ONCE)).clamp(0, 1)
        return kept * plain + (1 - kept) * plain / stretch
    return plain / stretch if way == INTERPOLATED else plain


class RotaryHeads(CausalSelfAttention):
    """CausalSelfAttention with rotary positions; `way` and `stretch` may be set when it is trained."""

    way, stretch = AS_TRAINED, 1

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: RollingCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T_k); with a cache T = 1."""
        query, key, value = (
            split_heads(w(x), self.num_heads) for w in (self.w_q, self.w_k, self.w_v)
        )
        if cache is None:
            places, mask = torch.arange(x.size(1), device=x.device), also_causal(x, mask)
        else:
            key, value = cache.append(key, value)  # (B, H, 1, d_k) -> (B, H, T_k, d_k)
            places = cache.places
        if self.way == PARTS:
            query = query * (1 + math.log(self.stretch) / 10) ** 2
        turns, last = (
            frequencies(key.size(-1), self.way, self.stretch).to(x),
            places.sort().values[-x.size(1) :],
        )
        query, key = (
            rotary(query, last, turns),
            rotary(key, places, turns),
        )  # `last`: the places of the queries
        heads, weights = scaled_dot_product_attention(query, key, value, mask)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)
