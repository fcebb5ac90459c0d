"""How many bytes of cache does a word cost in published models?

A layer may keep keys and values of every word, or those of the last words alone (a window), or one
latent vector a word in place of both, or a state that does not grow. The sizes are those of the
config.json that is published with Llama-2-7b-hf, Meta-Llama-3-8B, gemma-3-4b-it, DeepSeek-V3,
gpt-oss-120b and Qwen3-Next-80B-A3B-Instruct; for Gemma 4 those of gm/nn/gemma4 in
google-deepmind/gemma, and for Qwen3.5 the defaults of Qwen3_5TextConfig in transformers 5.24, which
it calls "Qwen3.5-9B style". A number has 16 bits. Left out, since it is small: the last three
words, which the hybrids' layers keep for a short convolution.

    python phase4_causal/serving/cache_layouts.py
"""

from dataclasses import dataclass

from phase2_multi_head.grouped_query_attention import kv_cache_bytes

LONG = 2**17  # words of a long text: 128k


@dataclass(frozen=True)
class CacheLayout:
    """What the layers of a model keep.

    word_bytes: that a word costs in one layer. full: layers that keep every word. windowed: layers
    that keep the last `window` words. state_bytes: of all layers whose memory does not grow.
    """

    word_bytes: int
    full: int
    windowed: int = 0
    window: int = 0
    state_bytes: int = 0

    def bytes_of(self, length: int) -> int:
        """Bytes of the cache of one text of `length` words."""
        seen_by_windows = min(length, self.window)
        words = self.full * length + self.windowed * seen_by_windows
        return words * self.word_bytes + self.state_bytes


LAYOUTS = {
    "Llama 2 7B": CacheLayout(kv_cache_bytes(num_kv_heads=32, d_k=128, length=1), full=32),
    "Llama 3 8B": CacheLayout(kv_cache_bytes(num_kv_heads=8, d_k=128, length=1), full=32),
    "Gemma 3 4B": CacheLayout(
        kv_cache_bytes(num_kv_heads=4, d_k=256, length=1), full=5, windowed=29, window=1024
    ),
    # Of 42 layers the last 18 read what others keep. 20 of the rest have a window, and keys of half
    # the size, so they count as 10.
    "Gemma 4 E4B": CacheLayout(
        kv_cache_bytes(num_kv_heads=2, d_k=512, length=1), full=4, windowed=10, window=512
    ),
    # A latent vector of 512 numbers and a rotary key of 64, for all heads together.
    "DeepSeek-V3": CacheLayout(2 * (512 + 64), full=61),
    "gpt-oss-120b": CacheLayout(
        kv_cache_bytes(num_kv_heads=8, d_k=64, length=1), full=18, windowed=18, window=128
    ),
    # 36 layers have 32 heads with a state of 128 x 128 numbers each.
    "Qwen3-Next-80B-A3B": CacheLayout(
        kv_cache_bytes(num_kv_heads=2, d_k=256, length=1), full=12, state_bytes=2 * 36 * 32 * 128**2
    ),
    "Qwen3.5 9B": CacheLayout(
        kv_cache_bytes(num_kv_heads=4, d_k=256, length=1), full=8, state_bytes=2 * 24 * 32 * 128**2
    ),
}


def main() -> None:
    print(f"{'':20}KiB for one more word      GiB for a text of 128k words")
    for name, layout in LAYOUTS.items():
        longest = layout.bytes_of(LONG)
        one_more = layout.bytes_of(LONG + 1) - longest
        print(f"{name:20}{one_more / 2**10:21.0f}{longest / 2**30:34.1f}")


if __name__ == "__main__":
    main()
