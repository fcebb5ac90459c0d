"""Where does a head look that has nothing to find?

Softmax shares out all of 1. So the head rests on a token that does no harm, mostly the first (an attention sink), or it
is given a way to rest of its own:

    logit    one more score for each head, learned: it joins the softmax, and its weight is dropped
             (Miller 2023, where it is 0: "softmax off by one"; gpt-oss, OpenAI 2025)
    gate     the output of the head, times a sigmoid of the word that asks            (Qiu et al. 2025)

The logit is a gate, too: with logit b a head gives its plain output times sigmoid(logsumexp(scores) - b). It closes
where all scores are small, that is where nothing was found; the other gate knows the query alone. sinks.py trains them.
"""

import torch
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase3_visualization.pretrained.decoders import capped_attention
from phase4_causal.causal_attention import also_causal
from phase4_causal.serving.rolling_cache import RollingCache
from shared.toy_model import MakeAttention


class RotaryAttention(MultiHeadAttention):
    """Causal attention with rotary positions, which with a cache are the places in it; `attend` says where it rests."""

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: RollingCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T_k); with a cache T = 1.

        Raises ValueError for a cache that does not know places, such as a KeyValueCache by itself.
        """
        if not isinstance(cache, RollingCache | None):
            raise ValueError(f"places are those in a RollingCache: got {type(cache).__name__}; put it into one")
        query, key, value = (split_heads(w(x), self.num_heads) for w in (self.w_q, self.w_k, self.w_v))
        if cache is None:
            places, mask = torch.arange(x.size(1), device=x.device), also_causal(x, mask)
        else:
            key, value = cache.append(key, value)  # (B, H, 1, d_k) -> (B, H, T_k, d_k)
            places = cache.places
        last = places.sort().values[-x.size(1) :]  # those of the queries
        heads, weights = self.attend(rotary(query, last), rotary(key, places), value, mask, x)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        return scaled_dot_product_attention(query, key, value, mask)


class SinkLogit(RotaryAttention):
    """One learned score for each head joins the softmax; its weight is dropped, so that rows sum to less than 1."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.logit = nn.Parameter(torch.zeros(num_heads, 1, 1))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        return capped_attention(query, key, value, mask, cap=None, sinks=self.logit.flatten())  # (H, 1, 1) -> (H,)


class GatedAttention(RotaryAttention):
    """A gate for each head, between 0 and 1, that the word which asks opens or closes."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.gate = nn.Linear(d_model, num_heads)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        output, weights = super().attend(query, key, value, mask, x)
        return output * self.gate(x).sigmoid().mT.unsqueeze(-1), weights  # (B, T, H) -> (B, H, T, 1)


KINDS: dict[str, MakeAttention] = {"plain": RotaryAttention, "logit": SinkLogit, "gate": GatedAttention}
