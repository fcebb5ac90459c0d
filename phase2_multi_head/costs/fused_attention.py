"""The same multi-head attention in PyTorch's fused function, and heads that share keys and values.

F.scaled_dot_product_attention computes scores, softmax and mean in one call. It may do so tile by tile and never hold
all T_q x T_k weights at once (FlashAttention; Dao et al. 2022), which saves memory and time; in return there are no
weights to look at. Which of its backends runs depends on the arguments, and this file reports it.

Grouped-query attention (Ainslie et al. 2023) saves something else: H query heads share G key-value heads, so that
a model that writes word by word has G / H as much to remember.

    python phase2_multi_head/costs/fused_attention.py
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from phase1_single_head.self_attention import check_attention_inputs, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import (
    MultiHeadAttention,
    check_heads,
    load_multi_head_model,
    merge_heads,
    split_heads,
)
from shared import cli
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import encode


class FusedMultiHeadAttention(MultiHeadAttention):
    """MultiHeadAttention with the same parameters and state_dict, computed by F.scaled_dot_product_attention.

    causal=True hides the future, on top of any mask: the last query sees the last key.
    """

    def __init__(
        self, d_model: int, num_heads: int, *, dropout: float = 0.0, bias: bool = True, causal: bool = False
    ) -> None:
        super().__init__(d_model, num_heads, dropout=dropout, bias=bias)
        self.causal = causal

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """query (B, T_q, d_model), key, value (B, T_k, d_model) -> output (B, T_q, d_model), None for the weights."""
        key = query if key is None else key
        value = key if value is None else value
        query = split_heads(self.w_q(query), self.num_heads)  # (B, T_q, d_model) -> (B, H, T_q, d_k)
        key = split_heads(self.w_k(key), self.num_heads)  # (B, T_k, d_model) -> (B, H, T_k, d_k)
        value = split_heads(self.w_v(value), self.num_heads)  # (B, T_k, d_model) -> (B, H, T_k, d_k)
        check_attention_inputs(query, key, value, mask)
        # is_causal needs no mask in memory, but it aligns the first query with the first key: only for equal lengths
        is_causal = self.causal and mask is None and query.size(-2) == key.size(-2)
        if self.causal and not is_causal:
            past = causal_mask(query.size(-2), key.size(-2), device=query.device)
            mask = past if mask is None else mask & past
        dropout = self.dropout.p if self.training else 0.0
        heads = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
        )
        return self.w_o(merge_heads(heads)), None  # (B, H, T_q, d_k) -> (B, T_q, d_model)


class GroupedQueryAttention(nn.Module):
    """H query heads, G key-value heads: each key-value head serves H / G neighbouring query heads.

    G = H is multi-head attention, G = 1 multi-query attention (Shazeer 2019). w_k and w_v are smaller: G d_k rows.
    Raises ValueError if d_model is not divisible by num_heads, or num_heads not by num_kv_heads.
    """

    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int, *, bias: bool = True) -> None:
        super().__init__()
        check_heads(d_model, num_heads)
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            works = [g for g in range(1, num_heads + 1) if num_heads % g == 0]
            raise ValueError(
                f"num_heads={num_heads} is not divisible by num_kv_heads={num_kv_heads}; "
                f"these work: {', '.join(map(str, works))}"
            )
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        d_kv = num_kv_heads * (d_model // num_heads)
        self.w_q = nn.Linear(d_model, d_model, bias=bias)
        self.w_k = nn.Linear(d_model, d_kv, bias=bias)
        self.w_v = nn.Linear(d_model, d_kv, bias=bias)
        self.w_o = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The shapes and the mask of MultiHeadAttention, weights (B, H, T_q, T_k) included."""
        key = query if key is None else key
        value = key if value is None else value
        shared_by = self.num_heads // self.num_kv_heads
        query = split_heads(self.w_q(query), self.num_heads)  # (B, T_q, d_model) -> (B, H, T_q, d_k)
        key = split_heads(self.w_k(key), self.num_kv_heads)  # (B, T_k, d_model) -> (B, G, T_k, d_k)
        value = split_heads(self.w_v(value), self.num_kv_heads)  # (B, T_k, d_model) -> (B, G, T_k, d_k)
        key = key.repeat_interleave(shared_by, dim=1)  # (B, G, T_k, d_k) -> (B, H, T_k, d_k): heads 0 0 0 1 1 1 ...
        value = value.repeat_interleave(shared_by, dim=1)  # (B, G, T_k, d_k) -> (B, H, T_k, d_k)
        heads, weights = scaled_dot_product_attention(query, key, value, mask)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T_q, d_k) -> (B, T_q, d_model)

    @torch.no_grad()
    def copy_weights(self, multi_head: MultiHeadAttention) -> None:
        """Take the weights of a MultiHeadAttention; a group gets the mean of its heads' keys and values.

        So Ainslie et al. 2023 convert trained models, and then train a little more. With G = H nothing is lost.
        """
        self.w_q.load_state_dict(multi_head.w_q.state_dict())
        self.w_o.load_state_dict(multi_head.w_o.state_dict())
        for name in ("w_k", "w_v"):
            for mine, theirs in zip(
                getattr(self, name).parameters(), getattr(multi_head, name).parameters(), strict=True
            ):
                d_k = theirs.size(0) // self.num_heads
                groups = theirs.unflatten(0, (self.num_kv_heads, -1, d_k))  # (H d_k, ...) -> (G, H / G, d_k, ...)
                mine.copy_(groups.mean(dim=1).flatten(0, 1))  # (G, H / G, d_k, ...) -> (G d_k, ...)


def kv_cache_bytes(num_kv_heads: int, d_k: int, length: int, *, num_layers: int = 1, bytes_each: int = 2) -> int:
    """Memory that generation needs for the keys and values of `length` past tokens; bytes_each is 2 in bfloat16."""
    return 2 * num_layers * num_kv_heads * d_k * length * bytes_each


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


def backends(device: str) -> dict[str, str]:
    """The backend for the usual arguments, on tensors of 2 sequences, 4 heads, 16 tokens, d_k = 32."""
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
    return {name: backend(call) for name, call in calls.items()}


@torch.no_grad()
def fused_differences(options: argparse.Namespace) -> dict[str, float]:
    """Trained first layer, step by step against fused: the largest difference of the outputs, float32 and float64."""
    model = load_multi_head_model(options).model
    plain = model.blocks[0].attention
    x = model.blocks[0].attention_norm(model.embed(torch.tensor([encode(options.words)], device=options.device)))
    differences = {}
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        if (options.device, name) == ("mps", "float64"):
            continue  # that device has none
        first = MultiHeadAttention(x.size(-1), plain.num_heads).to(x.device, dtype)
        fused = FusedMultiHeadAttention(x.size(-1), plain.num_heads).to(x.device, dtype)
        first.load_state_dict(plain.state_dict())
        fused.load_state_dict(plain.state_dict())
        differences[name] = (first(x.to(dtype))[0] - fused(x.to(dtype))[0]).abs().max().item()
    return differences


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


@torch.no_grad()
def show_groups() -> dict[str, int]:
    """Parameters of one layer and the keys and values it makes, per number of groups; and a published model's cache."""
    d_model, num_heads, length = 512, 8, 4096
    print(f"\nOne layer, d_model = {d_model}, {num_heads} query heads, {length:,} tokens remembered in bfloat16:")
    caches = {}
    for groups in (8, 4, 2, 1):
        attention = GroupedQueryAttention(d_model, num_heads, groups).bfloat16()
        parameters = sum(p.numel() for p in attention.parameters())
        x = torch.zeros(length, d_model, dtype=torch.bfloat16)
        cache = attention.w_k(x).nbytes + attention.w_v(x).nbytes
        assert cache == kv_cache_bytes(groups, d_model // num_heads, length)
        caches[f"G={groups}"] = cache
        print(f"   {groups} key-value heads: {parameters:>9,} parameters, cache {cache / 2**20:4.1f} MiB")
    many, few = (kv_cache_bytes(g, 128, 8192, num_layers=32) / 2**30 for g in (32, 8))
    print("   Llama 3 8B (32 layers, 32 query heads of 128, 8 key-value heads; Grattafiori et al. 2024), 8,192 tokens:")
    print(f"   {few:.0f} GiB, where 32 key-value heads would take {many:.0f} GiB")
    return caches


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    differences = fused_differences(options)
    print("\nThe trained model's first layer, step by step against fused, largest difference of the outputs:")
    print("   " + ", ".join(f"{name}: {difference:.1e}" for name, difference in differences.items()))
    ran = backends(options.device)
    print(f"\nWhich backend runs, on {options.device}:")
    for name, kernel in ran.items():
        print(f"   {name:24} {kernel}")
    show_alignment()
    record_findings(differences, ran, show_groups(), options)


def record_findings(
    differences: dict[str, float], ran: dict[str, str], caches: dict[str, int], options: argparse.Namespace
) -> None:
    flash = {name: int(kernel == "flash") for name, kernel in ran.items()}
    wrong = {
        f"{t_q} queries, {t_k} keys": int((seen_by_flag(t_q, t_k) != causal_mask(t_q, t_k)).sum())
        for t_q, t_k in ((5, 5), (2, 5), (1, 5))
    }
    findings.record(
        "phase2_multi_head/costs/fused_attention.py",
        [
            Finding(
                "C049",
                "Flash attention gives the same output",
                "course notes",
                differences,
                "largest difference of outputs, trained layer",
                "no difference at all; or below 1e-5 in float32",
                **findings.conditional(
                    max(differences.values()) == 0,
                    differences["float32"] < 1e-5,
                    "equal means up to rounding: sums are taken in another order",
                ),
            ),
            Finding(
                "C051",
                "F.scaled_dot_product_attention uses flash attention automatically when available",
                "course notes",
                flash,
                f"1 where a flash kernel ran, on {options.device}",
                "it runs in each of the usual calls",
                **findings.conditional(
                    min(flash.values()) == 1,
                    flash["no mask"] == flash["is_causal"] == 1,
                    "the arguments allow it; those with 0 here fall back to another kernel, without a word",
                ),
            ),
            Finding(
                "is-causal-alignment",
                "is_causal=True is the causal mask",
                "PyTorch's documentation",
                wrong,
                "cells in which is_causal=True differs from the causal mask whose last query sees the last key",
                "none",
                **findings.conditional(
                    max(wrong.values()) == 0, wrong["5 queries, 5 keys"] == 0, "queries and keys are equally many"
                ),
            ),
            Finding(
                "gqa-cache",
                "Grouped queries shrink the cache by H / G",
                "Ainslie et al. 2023",
                caches,
                "bytes of the keys and values of 4,096 tokens, one layer of 8 query heads of 64, bfloat16",
                "8 key-value heads take exactly 8 times what 1 takes",
                findings.verdict(caches["G=8"] == 8 * caches["G=1"]),
            ),
        ],
        options.output_dir,
    )


if __name__ == "__main__":
    cli.run(main)
