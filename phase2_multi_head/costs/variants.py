"""Nine ways to compute the same multi-head attention from one set of weights, and a wrong one that looks like it.

    stack of heads               phase 1's SelfAttention in a loop over heads
    separate projections         MultiHeadAttention: w_q, w_k, w_v, then all heads at once
    one projection               w_q, w_k and w_v as one matrix, cut apart afterwards
    einsum                       every product named by its axes: no split, no transpose
    fused                        F.scaled_dot_product_attention; the causal mask is a flag
    fused, boolean mask          the same; the mask is a tensor
    nn.MultiheadAttention        PyTorch's own module, with the weights of each head
    nn.MultiheadAttention, no weights
    grouped queries, G = H       GroupedQueryAttention with a key-value head for each query head

    wrong: inverted mask         fused, with the mask of nn.MultiheadAttention, in which True means hidden

All take their weights from one MultiHeadAttention without biases (a stack of single heads has none). check_agreement
compares outputs, gradients and weights with that module in float64. How long each of those that agree takes is in
benchmark.py.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.fused_attention import FusedMultiHeadAttention
from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, StackOfHeads, merge_heads, split_heads
from shared.attention_checks import check_copy, torch_twin
from shared.attention_utils import causal_mask

STACK, STEPS, ONE, EINSUM = "stack of heads", "separate projections", "one projection", "einsum"
FUSED, FUSED_MASK = "fused", "fused, boolean mask"
TORCH, TORCH_NO_WEIGHTS = "nn.MultiheadAttention", "nn.MultiheadAttention, no weights"
GROUPED, INVERTED = "grouped queries, G = H", "wrong: inverted mask"

TOLERANCE = 1e-5  # in float32, whose sums in another order differ by about 1e-6


class OneProjection(nn.Module):
    """Queries, keys and values of all heads from one matrix (3 d_model, d_model): one large product, not three."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.w_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        parts = self.w_qkv(x).chunk(3, dim=-1)  # (B, T, d_model) -> (B, T, 3 d_model) -> 3 x (B, T, d_model)
        query, key, value = (split_heads(part, self.num_heads) for part in parts)  # (B, T, d_model) -> (B, H, T, d_k)
        heads, weights = scaled_dot_product_attention(query, key, value, mask)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)

    @torch.no_grad()
    def copy_weights(self, multi_head: MultiHeadAttention) -> None:
        check_copy(self, multi_head)
        self.w_qkv.weight.copy_(torch.cat([w.weight for w in (multi_head.w_q, multi_head.w_k, multi_head.w_v)]))
        self.w_o.weight.copy_(multi_head.w_o.weight)


class EinsumAttention(MultiHeadAttention):
    """MultiHeadAttention with named axes: b batch, q queries, k keys, h heads, d size of a head, m of the model."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        w_q, w_k, w_v = (
            w.weight.unflatten(0, (self.num_heads, -1))  # (d_model, d_model) -> (H, d_k, d_model)
            for w in (self.w_q, self.w_k, self.w_v)
        )
        w_o = self.w_o.weight.unflatten(1, (self.num_heads, -1))  # (d_model, d_model) -> (d_model, H, d_k)
        query = torch.einsum("bqm,hdm->bhqd", x, w_q)  # (B, T, d_model) -> (B, H, T, d_k)
        key = torch.einsum("bkm,hdm->bhkd", x, w_k)  # (B, T, d_model) -> (B, H, T, d_k)
        value = torch.einsum("bkm,hdm->bhkd", x, w_v)  # (B, T, d_model) -> (B, H, T, d_k)
        scores = torch.einsum("bhqd,bhkd->bhqk", query / math.sqrt(query.size(-1)), key)  # -> (B, H, T, T)
        weights = masked_softmax(scores, mask)
        heads = torch.einsum("bhqk,bhkd->bhqd", weights, value)  # (B, H, T, T) -> (B, H, T, d_k)
        return torch.einsum("bhqd,mhd->bqm", heads, w_o), weights  # (B, H, T, d_k) -> (B, T, d_model)


class TorchMultiHeadAttention(nn.Module):
    """nn.MultiheadAttention behind this repository's interface: batch first, True = may attend, weights per head.

    Without biases it never takes its shortcut for inference, one kernel for the whole layer.
    """

    def __init__(self, d_model: int, num_heads: int, *, need_weights: bool) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.attention = nn.MultiheadAttention(d_model, num_heads, bias=False, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x (B, T, d_model), mask (T, T) -> output (B, T, d_model), weights (B, H, T, T) or None."""
        hidden = None if mask is None else ~mask  # in its mask True means: may not attend
        return self.attention(x, x, x, attn_mask=hidden, need_weights=self.need_weights, average_attn_weights=False)

    def copy_weights(self, multi_head: MultiHeadAttention) -> None:
        self.attention.load_state_dict(torch_twin(multi_head).state_dict())


class InvertedMask(FusedMultiHeadAttention):
    """The commonest mistake with masks: handed over with the other meaning, True = hidden. No error follows."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:  # type: ignore[override]
        """The shapes of FusedMultiHeadAttention."""
        return super().forward(x, mask=None if mask is None else ~mask)


@dataclass(frozen=True)
class Variant:
    """One way to compute attention, with the mask in the form that it takes: a function of x alone."""

    module: nn.Module
    mask: Tensor | None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T) or None."""
        return self.module(x, mask=self.mask)


def load_variants(multi_head: MultiHeadAttention, mask: Tensor) -> dict[str, Variant]:
    """All variants with the weights of a MultiHeadAttention, on its device and in its dtype.

    mask: (T, T), bool, True = may attend, with at least one True in each row. Each variant gets it as it likes it best:
    no mask where nothing is hidden, and "fused" a flag if it is the causal one. "fused, boolean mask" and the wrong one
    always get the tensor. Raises ValueError if the module has biases.
    """
    if multi_head.w_q.bias is not None:
        raise ValueError("the variants have no biases: got a MultiHeadAttention with biases; make it with bias=False")
    size = d_model, num_heads = multi_head.w_q.in_features, multi_head.num_heads
    flag = torch.equal(mask, causal_mask(mask.size(-1), device=mask.device))
    modules: dict[str, nn.Module] = {
        STACK: StackOfHeads(*size),
        STEPS: MultiHeadAttention(*size, bias=False),
        ONE: OneProjection(*size),
        EINSUM: EinsumAttention(*size, bias=False),
        FUSED: FusedMultiHeadAttention(*size, bias=False, causal=flag),
        FUSED_MASK: FusedMultiHeadAttention(*size, bias=False),
        TORCH: TorchMultiHeadAttention(*size, need_weights=True),
        TORCH_NO_WEIGHTS: TorchMultiHeadAttention(*size, need_weights=False),
        GROUPED: GroupedQueryAttention(d_model, num_heads, num_heads, bias=False),
        INVERTED: InvertedMask(*size, bias=False),
    }
    variants = {}
    for name, module in modules.items():
        module.to(multi_head.w_q.weight)  # its device and dtype
        if hasattr(module, "copy_weights"):
            module.copy_weights(multi_head)
        else:
            module.load_state_dict(multi_head.state_dict())
        needless = name not in (FUSED_MASK, INVERTED) and (bool(mask.all()) or (name == FUSED and flag))
        variants[name] = Variant(module, None if needless else mask)
    return variants


def outcome(attention: Callable[[Tensor], tuple[Tensor, Tensor | None]], x: Tensor, upstream: Tensor) -> list[Tensor]:
    """Output (B, T, d_model), gradient of x (B, T, d_model) and, where there are any, weights (B, H, T, T)."""
    x = x.detach().requires_grad_()
    output, weights = attention(x)
    (gradient,) = torch.autograd.grad(output, x, upstream)
    return [tensor.detach() for tensor in (output, gradient, weights) if tensor is not None]


def check_agreement(
    variants: dict[str, Variant], multi_head: MultiHeadAttention, x: Tensor, mask: Tensor
) -> dict[str, float]:
    """Largest difference of each variant from the module in float64, over outputs, gradients of x and weights.

    A NaN anywhere makes it NaN, so ask whether `difference <= TOLERANCE`, which NaN is not.
    """
    upstream = torch.randn_like(x)
    reference = Variant(copy.deepcopy(multi_head).cpu().double(), mask.cpu())  # cpu: mps has no float64
    exact = outcome(reference, x.cpu().double(), upstream.cpu().double())
    differences = {}
    for name, variant in variants.items():
        pairs = zip(outcome(variant, x, upstream), exact, strict=False)  # not all return weights
        largest = [torch.linalg.vector_norm(ours.cpu() - right, ord=math.inf) for ours, right in pairs]
        differences[name] = torch.stack(largest).max().item()
    return differences
