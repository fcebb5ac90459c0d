"""What attention is not defined on: one ValueError each, with the rule, both numbers and the way
out.

And PyTorch's own module with the weights of ours, to compare with.
"""

import numpy as np
import torch
from torch import Tensor, nn


def check_attention_inputs(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[int, ...]:
    """The axes before length and size of what attention gives; ValueError for inputs that it is not
    defined on.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            raise ValueError(
                f"{name} needs at least 2 axes (length, size): got shape {tuple(tensor.shape)}"
            )
    if query.size(-1) != key.size(-1):
        raise ValueError(
            f"query and key must share their last size d_k: got {query.size(-1)} and {key.size(-1)}"
        )
    if key.size(-2) != value.size(-2):
        raise ValueError(
            f"key and value must have the same length T_k: got {key.size(-2)} and {value.size(-2)}"
        )
    try:
        leading = np.broadcast_shapes(
            query.shape[:-2], key.shape[:-2], value.shape[:-2]
        )  # torch's loads sympy first
    except ValueError:
        shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
        raise ValueError(
            f"the axes before length and size must agree: got query, key, value {shapes}"
        ) from None
    if not query.is_floating_point() or not query.dtype == key.dtype == value.dtype:
        dtypes = ", ".join(str(tensor.dtype) for tensor in (query, key, value))
        raise ValueError(f"query, key and value must share one floating dtype: got {dtypes}")
    if mask is not None:
        check_mask(mask, (*leading, query.size(-2), key.size(-2)))
    return leading


NO_SIZES = (bool, str, tuple, list, dict, type(None))  # of which % means nothing, or something else


def check_sizes(least: int, **sizes: int) -> None:
    """Raise ValueError unless each size is a whole number, and at least so large; NaN, 1.5 and True
    are none.
    """
    for name, size in sizes.items():
        if isinstance(size, NO_SIZES) or not (size % 1 == 0 and size >= least):
            raise ValueError(f"{name} must be a whole number, {least} or more: got {size}")


def check_mask(mask: Tensor, scores_shape: tuple[int, ...]) -> None:
    """Raise ValueError for a mask that is not bool or could mean more than one thing on scores of
    this shape.
    """
    if not isinstance(mask, Tensor) or mask.layout != torch.strided:
        raise ValueError(
            f"mask must be a dense tensor: got {getattr(mask, 'layout', type(mask).__name__)}"
        )
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be bool, True = may attend: got {mask.dtype}; convert a 1/0 mask with mask.bool()"
        )
    if mask.dim() not in (2, len(scores_shape)):
        advice = (
            "; give it its head axis with mask.unsqueeze(1)"
            if (mask.dim(), len(scores_shape)) == (3, 4)
            else ""
        )
        raise ValueError(
            f"mask must have 2 axes (T_q, T_k) or {len(scores_shape)} like the scores: got {mask.dim()}{advice}"
        )
    if any(
        m not in (1, s) for m, s in zip(reversed(mask.shape), reversed(scores_shape), strict=False)
    ):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to scores of shape {scores_shape}"
        )


def at_least_float32(*tensors: Tensor) -> list[Tensor]:
    """Tensors of 16 bits as float32, others as they are: float16 ends at 65,504, bfloat16 has 3
    digits for a sum.
    """
    return [tensor.float() if tensor.dtype.itemsize < 4 else tensor for tensor in tensors]


def known_to_hold(condition: Tensor) -> bool:
    """Returns whether all of a boolean tensor is True, and False where that cannot be asked without
    a price.

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
    """Raise ValueError, with a way out, unless d_model can be cut into num_heads equal slices."""
    check_sizes(1, d_model=d_model, num_heads=num_heads)
    if d_model % num_heads:
        works = min(
            (h for h in range(1, d_model + 1) if d_model % h == 0), key=lambda h: abs(h - num_heads)
        )
        raise ValueError(
            f"d_model={d_model} is not divisible by num_heads={num_heads} (remainder {d_model % num_heads}); "
            f"nearest that works: {works} heads of {d_model // works}"
        )


def check_sequences(d_model: int, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ValueError unless all are batches (B, T, d_model) of one size: a batch is never
    repeated silently.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 3 or tensor.size(-1) != d_model:
            raise ValueError(
                f"attention takes (B, T, d_model={d_model}): got {name} {tuple(tensor.shape)}"
            )
    if not len(query) == len(key) == len(value):
        sizes = f"query {len(query)}, key {len(key)}, value {len(value)}"
        raise ValueError(f"query, key and value must have one batch size B: got {sizes}")


def check_copy(own: nn.Module, source: nn.Module) -> None:
    """Raise ValueError unless the weights of `source` mean the same in `own`: w_o and num_heads
    must agree.
    """
    required, received = (
        (own.w_o.in_features, own.num_heads),
        (source.w_o.in_features, source.num_heads),
    )
    if required != received:
        sizes = ["d_model={}, num_heads={}".format(*sizes) for sizes in (required, received)]
        raise ValueError(f"a copy must have the sizes of the original, {sizes[0]}: got {sizes[1]}")
    bias = own.w_o.bias is not None
    if bias != (source.w_o.bias is not None):
        raise ValueError(
            f"this module needs an original with bias={bias}: got one with bias={not bias}"
        )


def torch_twin(ours: nn.Module) -> nn.MultiheadAttention:
    """PyTorch's own module with the weights of ours; its boolean masks mean the opposite, so pass
    it ~mask.
    """
    w_q, w_k, w_v = ours.w_q, ours.w_k, ours.w_v
    bias = w_q.bias is not None
    theirs = nn.MultiheadAttention(
        w_q.in_features,
        ours.num_heads,
        bias=bias,
        batch_first=True,
        device=w_q.weight.device,
        dtype=w_q.weight.dtype,
    )
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([w_q.weight, w_k.weight, w_v.weight]))
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([w_q.bias, w_k.bias, w_v.bias]))
    theirs.out_proj.load_state_dict(ours.w_o.state_dict())
    return theirs
