"""What need a model that writes not compute again for each new word?

Keys and values of the past: under a causal mask they never change, since the key of word 3 depends
on words 0 to 3 alone. So the model computes query, key and value of the new word, puts key and
value behind the others, and attends. The buffer has its full size from the beginning: torch.cat
would copy the whole past for each new word.

    python phase4_causal/key_value_cache.py
"""

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared.attention_checks import check_sizes
from shared.attention_utils import causal_mask


class KeyValueCache:
    """Keys and values of one attention layer, (B, H, max_length, d_k) each.

    The first `length` positions are filled. Raises ValueError for a size below 1.
    """

    def __init__(
        self,
        batch: int,
        num_heads: int,
        max_length: int,
        d_k: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        check_sizes(1, batch=batch, num_heads=num_heads, max_length=max_length, d_k=d_k)
        self.keys = torch.zeros(batch, num_heads, max_length, d_k, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.length = 0

    @property
    def max_length(self) -> int:
        return self.keys.size(2)

    @property
    def num_bytes(self) -> int:
        """Memory of the buffers, filled or not."""
        return self.keys.nbytes + self.values.nbytes

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put key and value (B, H, T_new, d_k) behind the others.

        Returns all keys and all values, each (B, H, length, d_k): a view of the buffer, not a copy.
        Raises ValueError, and stores nothing, if the sizes do not fit, if there is no room, if the
        numbers have more digits or a wider range than the buffer, or if the keys carry gradients: a
        buffer that is written again cannot hold them.
        """
        self._check(key, "key")
        self._check(value, "value")
        new = key.size(2)
        if new != value.size(2):
            rule = "key and value must have the same length"
            raise ValueError(f"{rule}: got {new} and {value.size(2)}")
        end = self.length + new
        if end > self.max_length:
            got = f"got {end} ({self.length} there, {new} new); make it with a larger max_length"
            raise ValueError(f"the cache has room for {self.max_length} positions: {got}")
        self.keys[:, :, self.length : end] = key
        self.values[:, :, self.length : end] = value
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _check(self, new: Tensor, name: str) -> None:
        batch, num_heads, _, d_k = self.keys.shape
        if new.dim() != 4 or new.shape != (batch, num_heads, new.size(2), d_k):
            rule = f"this cache takes a {name} of shape ({batch}, {num_heads}, T_new, {d_k})"
            raise ValueError(f"{rule}: got {tuple(new.shape)}")
        if torch.promote_types(new.dtype, self.keys.dtype) != self.keys.dtype:
            got = f"got {new.dtype}; make it with dtype={new.dtype}"
            raise ValueError(f"this cache holds {self.keys.dtype}, nothing wider: {got}")
        if new.requires_grad:
            got = f"got a {name} with gradients; call the model under torch.no_grad()"
            raise ValueError(f"a cache is for writing, not for training: {got}")

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions. Raises ValueError if there are fewer."""
        if not 0 <= length <= self.length:
            rule = f"length must lie between 0 and the {self.length} positions there"
            raise ValueError(f"{rule}: got {length}")
        self.length = length


def main() -> None:
    key = torch.arange(1.0, 6).view(1, 1, 5, 1)  # of five words, one number each: (B, H, T, d_k)
    query, value = torch.ones_like(key), 10 * key
    at_once, _ = scaled_dot_product_attention(query, key, value, causal_mask(5))
    cache = KeyValueCache(batch=1, num_heads=1, max_length=6, d_k=1)
    print("Room for six keys. The output of the newest word, with the cache and with all at once:")
    for new in (slice(0, 3), slice(3, 4), slice(4, 5)):
        keys, values = cache.append(key[:, :, new], value[:, :, new])
        newest = query[:, :, :1]  # the newest word sees all keys
        output, _ = scaled_dot_product_attention(newest, keys, values)
        expected = at_once[0, 0, cache.length - 1]
        filled = cache.keys.flatten().tolist()
        print(f"   keys {filled}: {output.item():.2f} and {expected.item():.2f}")


if __name__ == "__main__":
    main()
