"""What is attention not defined on?

Each function raises a ValueError with the rule, the size that it asks for, the one that it got and,
where there is one, the way out. At the end is PyTorch's own module with the weights of ours, to
compare with.
"""

import numpy as np
import torch
from torch import Tensor, nn


def check_attention_inputs(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[int, ...]:
    """Returns the axes before length and size of the output, such as (B, H).

    Raises ValueError for inputs that attention is not defined on.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            shape = tuple(tensor.shape)
            raise ValueError(f"{name} needs at least 2 axes (length, size): got shape {shape}")
    if query.size(-1) != key.size(-1):
        raise ValueError(
            f"query and key must share their last size d_k: got {query.size(-1)} and {key.size(-1)}"
        )
    if key.size(-2) != value.size(-2):
        raise ValueError(
            f"key and value must have the same length T_k: got {key.size(-2)} and {value.size(-2)}"
        )
    try:
        # NumPy's, since torch.broadcast_shapes loads sympy first, which takes a second.
        leading = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    except ValueError:
        shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
        rule = "the axes before length and size must agree"
        raise ValueError(f"{rule}: got query, key, value {shapes}") from None
    if not query.is_floating_point() or not query.dtype == key.dtype == value.dtype:
        dtypes = ", ".join(str(tensor.dtype) for tensor in (query, key, value))
        raise ValueError(f"query, key and value must share one floating dtype: got {dtypes}")
    if mask is not None:
        check_mask(mask, (*leading, query.size(-2), key.size(-2)))
    return leading


def check_sizes(least: int, **sizes: int) -> None:
    """Raises ValueError unless each size is a whole number, `least` or more."""
    for name, size in sizes.items():
        # Not only int is allowed: in torch.compile a size is a symbol. NaN % 1 is NaN.
        if not (size % 1 == 0 and size >= least):
            raise ValueError(f"{name} must be a whole number, {least} or more: got {size}")


def check_mask(mask: Tensor, scores_shape: tuple[int, ...]) -> None:
    """Raises ValueError for a mask that is not bool, or could mean several things on the scores."""
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be bool, True = may attend: got {mask.dtype}; "
            "convert a 1/0 mask with mask.bool()"
        )
    axes, scores_axes = mask.dim(), len(scores_shape)
    if axes not in (2, scores_axes):
        forgot_heads = axes == 3 and scores_axes == 4
        advice = "; give it its head axis with mask.unsqueeze(1)" if forgot_heads else ""
        raise ValueError(
            f"mask must have 2 axes (T_q, T_k) or {scores_axes} like the scores: got {axes}{advice}"
        )
    for size, of_scores in zip(mask.shape, scores_shape[-axes:], strict=True):
        if size not in (1, of_scores):
            shape = tuple(mask.shape)
            raise ValueError(
                f"mask of shape {shape} does not broadcast to scores of shape {scores_shape}"
            )


def at_least_float32(*tensors: Tensor) -> list[Tensor]:
    """Tensors of 16 bits as float32, others as they are.

    float16 ends at 65,504, and bfloat16 has 3 digits for a sum.
    """
    return [tensor.float() if tensor.dtype.itemsize < 4 else tensor for tensor in tensors]


def known_to_hold(condition: Tensor) -> bool:
    """Returns whether all of a boolean tensor is True, or False where asking would have a price.

    torch.compile, export and jit.trace record one program for all values, vmap has several values
    at once, and a GPU would have to be waited for. So use the answer only to leave out work that
    would change nothing.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or condition.device.type != "cpu":
        return False
    try:
        return bool(condition.all())
    except RuntimeError:  # inside vmap
        return False


def check_heads(d_model: int, num_heads: int) -> None:
    """Raises ValueError, with a way out, unless d_model can be cut into num_heads equal slices."""
    check_sizes(1, d_model=d_model, num_heads=num_heads)
    remainder = d_model % num_heads
    if remainder:
        divisors = [heads for heads in range(1, d_model + 1) if d_model % heads == 0]
        nearest = min(divisors, key=lambda heads: abs(heads - num_heads))
        raise ValueError(
            f"d_model={d_model} is not divisible by num_heads={num_heads} (remainder {remainder}); "
            f"nearest that works: {nearest} heads of {d_model // nearest}"
        )


def check_sequences(d_model: int, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raises ValueError unless all are (B, T, d_model), with one B.

    So a batch of one is never repeated silently.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 3 or tensor.size(-1) != d_model:
            shape = tuple(tensor.shape)
            raise ValueError(f"attention takes (B, T, d_model={d_model}): got {name} {shape}")
    if not len(query) == len(key) == len(value):
        sizes = f"query {len(query)}, key {len(key)}, value {len(value)}"
        raise ValueError(f"query, key and value must have one batch size B: got {sizes}")


def check_copy(own: nn.Module, source: nn.Module) -> None:
    """Raises ValueError unless `source` has the sizes of `own`, and no biases."""
    required, received = sizes_of(own), sizes_of(source)
    if required != received:
        raise ValueError(f"a copy must have the sizes of the original, {required}: got {received}")
    if source.w_o.bias is not None:
        raise ValueError("this module needs an original with bias=False: got one with bias=True")


def sizes_of(attention: nn.Module) -> str:
    return f"d_model={attention.w_o.in_features}, num_heads={attention.num_heads}"


def torch_reference(ours: nn.Module) -> nn.MultiheadAttention:
    """PyTorch's own module with the weights of ours.

    Its boolean masks mean the opposite, so pass it ~mask.
    """
    projections = ours.w_q, ours.w_k, ours.w_v
    d_model, bias = ours.w_q.in_features, ours.w_q.bias is not None
    reference = nn.MultiheadAttention(d_model, ours.num_heads, bias=bias, batch_first=True)
    reference.to(ours.w_q.weight)  # its device and dtype
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([w.weight for w in projections]))
        if bias:
            reference.in_proj_bias.copy_(torch.cat([w.bias for w in projections]))
    reference.out_proj.load_state_dict(ours.w_o.state_dict())
    return reference
