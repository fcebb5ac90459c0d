"""How does a model read a text without end with a cache of fixed size?

It forgets. A buffer of W slots holds the last W positions: position p goes to slot p mod W, over
the one W before it (sliding window with a rolling buffer; Mistral 7B, Jiang et al. 2023, section
2). The first tokens may have slots of their own, which are never written over (StreamingLLM; Xiao
et al. 2023, section 3.2):

    sinks = 1, W = 3, eight words read      slots    0 | 7 5 6
    places, counted within the cache                 0 | 3 1 2

Keys are kept unturned, and turned by their place in the cache when they are asked: so no distance
is larger than the cache, however long the text.
"""

import torch
from torch import Tensor

from phase4_causal.key_value_cache import KeyValueCache


class RollingCache:
    """Keys and values of the first `sinks` positions and, in the other slots of a KeyValueCache, of
    the last ones.

    length counts all positions that were read. Raises ValueError unless the slots are empty and one
    is left that rolls.
    """

    def __init__(self, slots: KeyValueCache, sinks: int) -> None:
        if not 0 <= sinks < slots.max_length:
            raise ValueError(f"of {slots.max_length} slots one must roll: got sinks={sinks}")
        if slots.length:
            raise ValueError(
                f"a rolling cache starts with empty slots: got one that holds {slots.length} positions"
            )
        self.slots, self.sinks, self.window, self.length = slots, sinks, slots.max_length - sinks, 0

    @property
    def positions(self) -> Tensor:
        """The position in the text that each filled slot holds -> (min(length, sinks + window),)."""
        slots = torch.arange(min(self.length, self.slots.max_length), device=self.slots.keys.device)
        rounds = (self.length - 1 - slots) // self.window  # how often a slot was written over
        return torch.where(slots < self.sinks, slots, slots + rounds * self.window)

    @property
    def places(self) -> Tensor:
        """The place of each filled slot in the cache: 0 is the oldest position, the last is the
        newest.
        """
        forgotten = max(0, self.length - self.slots.max_length)
        return torch.where(self.positions < self.sinks, self.positions, self.positions - forgotten)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put key and value (B, H, 1, d_k) of the next position in its slot -> all keys, all
        values, slot by slot.

        Each is (B, H, min(length, sinks + window), d_k). One at a time: of two, the second might be
        written over what the first still sees. What comes back are views: the next position is
        written over one that they show. Raises ValueError for more, and for what a KeyValueCache
        refuses.
        """
        if key.dim() == 4 and key.size(2) != 1:
            raise ValueError(
                f"a rolling cache takes one position at a time: got {key.size(2)}; read word by word"
            )
        behind = self.length - self.sinks
        self.slots.length = (
            self.sinks + behind % self.window if behind >= 0 else self.length
        )  # where it writes next
        self.slots.append(key, value)
        self.length += 1
        kept = slice(min(self.length, self.slots.max_length))
        return self.slots.keys[:, :, kept], self.slots.values[
            :, :, kept
        ]  # (B, H, slots, d_k) -> (B, H, kept, d_k)
