"""What do a fused function and shared keys and values change?

F.scaled_dot_product_attention computes scores, softmax and mean in one call. It may do so tile by tile and never hold
all T_q x T_k weights at once (FlashAttention; Dao et al. 2022), which saves memory and time; in return there are no
weights to look at. Which of its backends runs depends on the arguments, and this file reports it.

Grouped-query attention (Ainslie et al. 2023) saves something else: H query heads share G key-value heads, so that
a model that writes word by word has G / H as much to remember.

    python phase2_multi_head/costs/fused_attention.py
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import kv_cache_bytes
from phase2_multi_head.models import load_multi_head_model
from shared import cli
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.claims import PROBE, Claim, measures
from shared.toy_language import encode
from shared.toy_model import ToyTransformer, in_double


class _Operations(TorchDispatchMode):
    """Collects the names of the operations that reach PyTorch's kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(operation.overloadpacket.__name__)
        return operation(*args, **(kwargs or {}))


def backend(call: Callable[[], Any]) -> str:
    """The kernel of F.scaled_dot_product_attention that a call runs: flash, efficient, cudnn or math (plain steps)."""
    with _Operations() as operations:
        call()
    kernels = [name for name in operations.names if name.startswith("_scaled_dot_product_")]
    return kernels[0].removeprefix("_scaled_dot_product_").split("_attention")[0] if kernels else "math"


@measures(
    Claim(
        id="C051",
        text="F.scaled_dot_product_attention uses flash attention automatically when it is available",
        source='course notes, "Using PyTorch\'s Optimized Attention"',
        kind=PROBE,
        rule="it runs without a mask and with is_causal=True; the other calls show for what else it is available",
        holds=lambda n: n["no mask"] == n["is_causal"] == 1,
        unit="1 where a flash kernel ran, 0 where another one did, without a word",
    )
)
def flash_runs(device: str) -> dict[str, int]:
    """Whether flash runs for the usual arguments, on tensors of 2 sequences, 4 heads, 16 tokens, d_k = 32."""
    dtype = torch.float32 if device == "cpu" else torch.float16  # flash on a GPU wants 16 bits
    q, k, v = torch.randn(3, 2, 4, 16, 32, device=device, dtype=dtype)
    mask = causal_mask(16, device=device)
    calls: dict[str, Callable[[], Any]] = {
        "no mask": lambda: F.scaled_dot_product_attention(q, k, v),
        "is_causal": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "boolean mask": lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        "dropout": lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        "values of another size": lambda: F.scaled_dot_product_attention(q, k, v[..., :24]),
        "grouped queries": lambda: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
    }
    return {name: int(backend(call) == "flash") for name, call in calls.items()}


def seen_by_flag(query_length: int, key_length: int) -> Tensor:
    """Which keys is_causal=True lets each query see -> bool (T_q, T_k)."""
    zeros = torch.zeros(1, 1, max(query_length, key_length), 8)
    identity = torch.eye(key_length)[None, None]  # as values, it hands back the weights
    weights = F.scaled_dot_product_attention(
        zeros[:, :, :query_length], zeros[:, :, :key_length], identity, is_causal=True
    )
    return weights[0, 0] > 0  # (1, 1, T_q, T_k) -> (T_q, T_k)


def show_alignment() -> None:
    print("\nTwo new tokens, five keys (three of them from a cache): what each may see")
    for name, seen in (("is_causal=True", seen_by_flag(2, 5)), ("causal_mask(2, 5)", causal_mask(2, 5))):
        print(f"   {name:18} " + "   ".join(" ".join("#" if cell else "." for cell in row) for row in seen))


@measures(
    Claim(
        id="is-causal-alignment",
        text="is_causal=True aligns the first query with the first key, so that it is the causal mask for equal "
        "lengths and not where new queries meet older keys",
        source="PyTorch's documentation of F.scaled_dot_product_attention",
        kind=PROBE,
        rule="0 cells for equal lengths, and some for fewer queries than keys",
        holds=lambda n: n["5 queries, 5 keys"] == 0 < min(n["2 queries, 5 keys"], n["1 queries, 5 keys"]),
        unit="cells in which is_causal=True differs from the causal mask whose last query sees the last key",
    )
)
def misaligned_cells() -> dict[str, int]:
    """How many cells the flag and the mask treat differently, by the numbers of queries and keys."""
    return {
        f"{t_q} queries, {t_k} keys": int((seen_by_flag(t_q, t_k) != causal_mask(t_q, t_k)).sum())
        for t_q, t_k in ((5, 5), (2, 5), (1, 5))
    }


def show_cache() -> None:
    """Llama 3 8B has 32 layers of 32 query heads of 128, and 8 key-value heads (Grattafiori et al. 2024)."""
    print("\nKeys and values that must be kept, in MiB")
    for name, groups, sizes, layers in (
        ("8 heads of 64, 4,096 tokens, one layer", (8, 4, 2, 1), (64, 4096), 1),
        ("Llama 3 8B, 8,192 tokens", (32, 8), (128, 8192), 32),
    ):
        kept = (f"G = {g}: {kv_cache_bytes(g, *sizes, num_layers=layers) / 2**20:,.0f}" for g in groups)
        print(f"   {name}: {', '.join(kept)}")


@torch.no_grad()
def check_fused(model: ToyTransformer, words: list[str]) -> float:
    """The largest difference between a trained layer in steps and fused, float64; 0 but for rounding."""
    layer = in_double(model).blocks[0]
    fused = FusedMultiHeadAttention(layer.attention.w_q.in_features, layer.attention.num_heads).double()
    fused.load_state_dict(layer.attention.state_dict())
    x = layer.attention_norm(in_double(model).embed(torch.tensor([encode(words)])))
    difference = (layer.attention(x)[0] - fused(x)[0]).abs().max().item()
    assert difference < 1e-12
    return difference


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    difference = check_fused(load_multi_head_model(options).model, options.words)
    show_alignment()
    show_cache()
    findings.record(options, flash_runs(options.device), misaligned_cells())
    return f"The same output (to {difference:.0e}), no weights; heads that share keys and values cache less"


if __name__ == "__main__":
    cli.run(main)
