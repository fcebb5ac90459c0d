"""How does a causal head know places by turning queries and keys, in long texts, too?

Pair i of d features turns by 10000^(-2i / d) radians a place (phase 1). In training fast pairs went
round many times. Slow ones never did, and in a longer text they come to angles that no query and
key has met. So, for a text s times as long, turns are slowed when the model is used:

    interpolated   all pairs s times slower (Chen et al. 2023, who then train a little more)
    NTK-aware      base 10000 · s^(d / (d - 2)): the first pair as before, the last s times slower,
                   between them less
    by parts       s times slower where a pair went round less than once in training, as before
                   where twice or more; and scores times (1 + ln(s) / 10)² (YaRN; Peng et al. 2023,
                   sections 3.1 to 3.4)

    python phase4_causal/rotary_attention.py
"""

import math

import torch
from torch import Tensor

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import merge_heads
from phase4_causal.causal_attention import CausalSelfAttention
from shared.attention_utils import Device, also_causal

STRETCHES = ("as trained", "interpolated", "NTK-aware", "by parts (YaRN)")

TRAINED = 32  # words of a text in training
# Rounds in training: below ALPHA a pair is slowed wholly, from BETA on not at all. YaRN has 1 and
# 32, for models that were trained on texts of 4,096.
ALPHA, BETA = 1, 2


def frequencies(
    d_k: int, way: str = "as trained", stretch: float = 1.0, *, device: Device = None
) -> Tensor:
    """The radians that each pair of d_k features turns a place, (d_k / 2,).

    way: one of STRETCHES. stretch: how many times as long as in training a text is. Raises
    ValueError for one pair alone, NTK-aware.
    """
    exponents = -torch.arange(0, d_k, 2, device=device) / d_k
    plain = 10000**exponents
    if way == "interpolated":
        return plain / stretch
    if way == "NTK-aware":
        if d_k < 4:
            raise ValueError(
                "NTK-aware keeps the first pair and slows the last: "
                f"needs 4 features or more: got {d_k}"
            )
        return (10000 * stretch ** (d_k / (d_k - 2))) ** exponents
    if way == "by parts (YaRN)":
        rounds = TRAINED * plain / (2 * math.pi)  # of each pair, in training
        as_trained = ((rounds - ALPHA) / (BETA - ALPHA)).clamp(0, 1)
        return as_trained * plain + (1 - as_trained) * plain / stretch
    return plain


class RotaryHeads(CausalSelfAttention):
    """CausalSelfAttention with rotary positions.

    way, stretch: as `frequencies` takes them; they may be set when the model is trained.
    """

    way = "as trained"
    stretch = 1

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        query, key, value = self.project(x)  # (B, T, d_model) -> (B, H, T, d_k), each
        if self.way == "by parts (YaRN)":
            query = query * (1 + math.log(self.stretch) / 10) ** 2
        positions = torch.arange(x.size(1), device=x.device)
        turns = frequencies(key.size(-1), self.way, self.stretch, device=x.device)
        query = rotary(query, positions, turns)
        key = rotary(key, positions, turns)
        heads, weights = scaled_dot_product_attention(query, key, value, also_causal(x, mask))
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)


def main() -> None:
    print("Radians a place of three pairs, for a text 8 times as long as in training:")
    for way in STRETCHES:
        turns = frequencies(6, way, stretch=8)
        print(f"   {way:17}", *(f"{turn:.4f}" for turn in turns.tolist()))


if __name__ == "__main__":
    main()
