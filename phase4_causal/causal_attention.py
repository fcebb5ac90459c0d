"""Can attention be kept from looking ahead, completely?

Then the next word must be predicted, and a model learns to write. Causal self-attention is phase
2's module with a mask: every word sees itself and what came before. masking/causality.py proves
that nothing leaks from the future. Run it to see the mask, and why a hidden score is -inf and not
0:

    python phase4_causal/causal_attention.py
"""

import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase4_causal.key_value_cache import KeyValueCache
from shared.attention_checks import check_sequences
from shared.attention_utils import causal_mask
from shared.toy_language import END_ID, MAX_LENGTH, START_ID, decode, encode
from shared.toy_model import ToyTransformer


def also_causal(x: Tensor, mask: Tensor | None) -> Tensor:
    """The causal mask of x (B, T, d_model), and a further one, which may be None: both must allow a
    key.
    """
    causal = causal_mask(x.size(1), device=x.device)
    return causal if mask is None else causal & mask


class CausalSelfAttention(MultiHeadAttention):
    """MultiHeadAttention over one sequence in which position i attends to positions 0 to i,
    whatever else is masked.
    """

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T_k), zero for every key
        after the query.

        cache: keys and values of the positions before x; those of x are added to it, so T_k =
        cache.length afterwards. Without a cache T_k = T. mask: a further mask over the T_k keys,
        such as that of padding, as MultiHeadAttention takes it; both must allow a key. Raises
        ValueError if the cache has no room for T more positions.
        """
        check_sequences(self.w_q.in_features, x, x, x)
        query, key, value = (
            split_heads(w(x), self.num_heads) for w in (self.w_q, self.w_k, self.w_v)
        )  # of x alone
        if cache is not None:
            key, value = cache.append(
                key, value
            )  # (B, H, T, d_k) -> (B, H, T_k, d_k): the past comes from the cache
        causal = causal_mask(
            x.size(1), key.size(2), device=x.device
        )  # the last query stands at the last key
        mask = causal if mask is None else causal & mask
        heads, weights = scaled_dot_product_attention(query, key, value, mask, dropout=self.dropout)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)


@torch.no_grad()
def generate(model: ToyTransformer, prompt: list[str], limit: int = MAX_LENGTH) -> list[str]:
    """Continue the prompt with the likeliest word, one at a time, until <end> or `limit` words;
    returns all words.

    The plainest way: everything is computed again for each word. writing/sampling.py draws words
    and keeps a cache.
    """
    device = model.positions.device
    tokens = [START_ID, *encode(prompt)]
    while len(tokens) <= limit:
        logits, _ = model(torch.tensor([tokens], device=device))
        likeliest = int(
            logits[0, -1].argmax()
        )  # (1, T, V) -> (V,): the last position predicts what comes next
        if likeliest == END_ID:
            break
        tokens.append(likeliest)
    return decode(tokens[1:])


def main() -> None:
    print("A row for each query, a column for each key, 1 = may attend:")
    for row in causal_mask(6):
        print("   " + " ".join("1" if cell else "." for cell in row))
    print("\nHidden means -inf before softmax, not 0, a score like any other: exp(0) is 1")
    for scores in ((2, 0, 3), (2, -math.inf, 3), (-2, 0, -3)):
        weights = torch.tensor(scores, dtype=torch.float32).softmax(dim=0)
        print(
            f"   {f'softmax({list(scores)})':22} = {', '.join(f'{weight:.3f}' for weight in weights)}"
        )
    torch.manual_seed(0)
    attention, x = CausalSelfAttention(d_model=8, num_heads=2), torch.randn(1, 6, 8)
    other = torch.cat([x[:, :5], torch.randn(1, 1, 8)], dim=1)  # another last word
    moved = (attention(other)[0] - attention(x)[0])[:, :5].abs().max()
    print(f"\nAnother sixth word moves the outputs of the first five by {moved:.2g}")


if __name__ == "__main__":
    main()
