"""Can attention be kept from looking ahead, completely?

Then the next word must be predicted, and a model learns to write. Causal self-attention is phase
2's module with a mask: every word sees itself and what came before. All masks, that of padding as
well, are in shared/attention_utils.py. masking/causality.py proves that nothing leaks from the
future. Run this file to see the mask, and why a hidden score is -inf and not 0:

    python phase4_causal/causal_attention.py
"""

import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads
from phase4_causal.key_value_cache import KeyValueCache
from shared.attention_utils import causal_mask
from shared.toy_language import END_ID, MAX_LENGTH, START_ID, decode, encode
from shared.toy_model import ToyTransformer


class CausalSelfAttention(MultiHeadAttention):
    """MultiHeadAttention over one sequence, in which position i attends to positions 0 to i."""

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model) and weights (B, H, T, T_k).

        Every key after the query has weight zero. cache: keys and values of the positions before x;
        those of x are added to it, so T_k = cache.length afterwards. Without a cache T_k = T. mask:
        a further mask over the T_k keys, such as that of padding, as MultiHeadAttention takes it;
        both must allow a key. Raises ValueError if the cache has no room for T more positions.
        """
        query, key, value = self.project(x)  # (B, T, d_model) -> (B, H, T, d_k), each
        if cache is not None:
            # The past comes from the cache: (B, H, T, d_k) -> (B, H, T_k, d_k).
            key, value = cache.append(key, value)
            query = query.to(key.dtype)  # under autocast a cache may be more precise
        # The last query stands at the last key.
        causal = causal_mask(x.size(1), key.size(2), device=x.device)
        mask = causal if mask is None else causal & mask
        heads, weights = scaled_dot_product_attention(query, key, value, mask, dropout=self.dropout)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)


@torch.no_grad()
def generate(model: ToyTransformer, prompt: list[str], limit: int = MAX_LENGTH) -> list[str]:
    """Continue the prompt with the likeliest word, again and again (greedy decoding).

    Returns all words, when <end> has come or there are `limit` of them. The plainest way:
    everything is computed again for each word. writing/sampling.py draws words and keeps a cache.
    """
    device = model.positions.device
    tokens = [START_ID, *encode(prompt)]
    while len(tokens) <= limit:
        logits, _ = model(torch.tensor([tokens], device=device))
        likeliest = int(logits[0, -1].argmax())  # the last position predicts what comes next
        if likeliest == END_ID:
            break
        tokens.append(likeliest)
    return decode(tokens[1:])


def main() -> None:
    print("A row for each query, a column for each key, 1 = may attend:")
    for row in causal_mask(6):
        print("   " + " ".join("1" if cell else "." for cell in row))
    print("\nHidden means -inf before softmax, not 0, a score like any other: exp(0) is 1")
    for scores in ([2, 0, 3], [2, -math.inf, 3], [-2, 0, -3]):
        weights = torch.tensor(scores, dtype=torch.float32).softmax(dim=0)
        print("   {:22} = {:.3f}, {:.3f}, {:.3f}".format(f"softmax({scores})", *weights.tolist()))
    torch.manual_seed(0)
    attention = CausalSelfAttention(d_model=8, num_heads=2)
    x = torch.randn(1, 6, 8)
    other = torch.cat([x[:, :5], torch.randn(1, 1, 8)], dim=1)  # another last word
    before, _ = attention(x)
    after, _ = attention(other)
    moved = (after - before)[:, :5].abs().max()
    print(f"\nAnother sixth word moves the outputs of the first five by {moved:.2g}")


if __name__ == "__main__":
    main()
