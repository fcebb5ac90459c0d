"""How does a model read a text without end with a cache of fixed size?

It forgets. A buffer of N slots holds the last N positions: position p goes to slot p mod N, over
the one N before it (sliding window with a rolling buffer; Mistral 7B, Jiang et al. 2023, section
2). The first tokens may have slots of their own, which are never written over (StreamingLLM; Xiao
et al. 2023, section 3.2):

    sinks = 1, N = 3, eight words read      slots    0 | 7 5 6

    python phase4_causal/serving/rolling_cache.py
"""

import torch
from torch import Tensor

from phase4_causal.key_value_cache import KeyValueCache


class RollingCache:
    """Keys and values of the first `sinks` positions and of the last ones, in a KeyValueCache.

    slots: the KeyValueCache. size: how many of its slots roll, those that are not for sinks.
    length: of the text so far. Raises ValueError unless the slots are empty and one is left that
    rolls.
    """

    def __init__(self, slots: KeyValueCache, sinks: int) -> None:
        if not 0 <= sinks < slots.max_length:
            raise ValueError(f"of {slots.max_length} slots one must roll: got sinks={sinks}")
        if slots.length:
            raise ValueError(
                "a rolling cache starts with empty slots: "
                f"got one that holds {slots.length} positions"
            )
        self.slots = slots
        self.sinks = sinks
        self.size = slots.max_length - sinks
        self.length = 0

    @property
    def filled(self) -> int:
        """How many slots hold a position."""
        return min(self.length, self.slots.max_length)

    @property
    def positions(self) -> Tensor:
        """The position in the text that each filled slot holds, (filled,)."""
        slots = torch.arange(self.filled, device=self.slots.keys.device)
        rounds = (self.length - 1 - slots) // self.size  # how often a slot was written over
        return torch.where(slots < self.sinks, slots, slots + rounds * self.size)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put key and value (B, H, 1, d_k) of the next position in its slot.

        Returns the keys and the values of all filled slots, slot by slot, (B, H, filled, d_k) each.
        They are views: the next position is written over one that they show. One position at a
        time, since of two the second might be written over what the first still sees. Raises
        ValueError for more, and for what a KeyValueCache refuses.
        """
        if key.dim() == 4 and key.size(2) != 1:
            raise ValueError(
                f"a rolling cache takes one position at a time: got {key.size(2)}; "
                "read word by word"
            )
        next_slot = self.length
        if self.length >= self.sinks:
            next_slot = self.sinks + (self.length - self.sinks) % self.size
        self.slots.length = next_slot  # where the KeyValueCache writes
        self.slots.append(key, value)
        self.length += 1
        return self.slots.keys[:, :, : self.filled], self.slots.values[:, :, : self.filled]


def main() -> None:
    cache = RollingCache(KeyValueCache(batch=1, num_heads=1, max_length=4, d_k=1), sinks=1)
    print("One sink and three slots that roll. The positions in them, after each word:")
    for _ in range(8):
        cache.append(*torch.zeros(2, 1, 1, 1, 1))
        print("  ", cache.positions.tolist())


if __name__ == "__main__":
    main()
