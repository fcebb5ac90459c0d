"""Which published models can compute with our attention? Nearly all that the library has.

The library asks for an attention function by its name (transformers.AttentionInterface). So ours is
registered under a name of its own. The model's own layers make queries, keys and values, turn them
by their positions and build the masks, and our function gets the four.

Two additions of published models change the softmax itself: a cap on the scores,
cap · tanh(score / cap), and a sink logit, one learned number a head that takes part in the softmax
and stands for nobody, so that a row of weights sums to less than 1.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.pretrained.language_model import SMOLLM2, LanguageModel, library
from shared.attention_checks import at_least_float32, check_attention_inputs

# query, key, value, mask -> output, weights
AttentionFunction = Callable[..., tuple[Tensor, Tensor]]

FROM_SCRATCH = "from scratch"  # the name by which the library finds our function
# What models hand to their attention and ours would not use, such as numbers added to the scores.
NOT_OURS = ("position_bias", "block_indices", "sinks")


def capped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """scaled_dot_product_attention with a cap on the scores, and sink logits of the heads, (H,).

    Shapes and errors are those of that function, which computes everything if neither is given.
    """
    if cap is None and sinks is None:
        return scaled_dot_product_attention(query, key, value, mask)
    check_attention_inputs(query, key, value, mask)
    dtype = query.dtype
    query, key, value = at_least_float32(query, key, value)
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (B, H, T_q, d_k) @ (B, H, d_k, T_k)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if sinks is not None:  # one more key, which everybody may see and whose value is 0
        nobody = sinks[:, None, None].expand(*scores.shape[:-1], 1)  # (H,) -> (B, H, T_q, 1)
        scores = torch.cat([scores, nobody], dim=-1)  # (B, H, T_q, T_k) -> (B, H, T_q, T_k + 1)
        if mask is not None:
            mask = F.pad(mask, (0, 1), value=True)  # (..., T_q, T_k) -> (..., T_q, T_k + 1)
    weights = masked_softmax(scores, mask)[..., : key.size(-2)]
    return (weights @ value).to(dtype), weights.to(dtype)


# ---- the library's models compute with it


@contextmanager
def attention_named(model: nn.Module, name: str) -> Iterator[None]:
    """Inside `with`, a model of the library asks for the attention function of this name."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def our_attention(model: nn.Module, attend: AttentionFunction = capped_attention) -> Iterator[None]:
    """Inside `with`, every layer of a model of the library computes its attention with `attend`.

    attend gets query, key, value (B, H, T, d) and a mask, bool (B, 1, T_q, T_k) or None, as phase
    1's function, and returns output and weights. Where a model has a cap or sinks, it also gets
    cap= or sinks=. Raises ValueError for a model that has layers without attention, or whose
    attention cannot be exchanged.
    """
    transformers = library()
    from transformers.masking_utils import sdpa_mask

    counts = {"passes": 0, "layers": 0}

    def called_by_library(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """query (B, H, T_q, d_k), key and value (B, H_kv, T_k, d) -> (B, T_q, H, d_v), weights."""
        counts["layers"] += 1
        for name in NOT_OURS:
            if more.get(name) is not None:
                raise cannot_serve(model, f"its layers hand {name} to their attention")
        shared_by = query.size(1) // key.size(1)  # query heads for each head of keys and values
        key = key.repeat_interleave(shared_by, dim=1)  # (B, H_kv, T_k, d_k) -> (B, H, T_k, d_k)
        value = value.repeat_interleave(shared_by, dim=1)
        if scaling is not None:  # ours divides by √d_k, and some models by another number
            query = query * (scaling * math.sqrt(query.size(-1)))
        additions = {}
        if softcap is not None:
            additions["cap"] = softcap
        if s_aux is not None:
            additions["sinks"] = s_aux
        output, weights = attend(query, key, value, attention_mask, **additions)
        return output.transpose(1, 2), weights  # (B, H, T_q, d_v) -> (B, T_q, H, d_v)

    def count_pass(*_: Any) -> None:
        counts["passes"] += 1

    def mask_for_library(*sizes: Any, **options: Any) -> Tensor | None:
        """The library's own mask, True = may attend. It leaves none out because it is causal."""
        options["allow_is_causal_skip"] = False
        return sdpa_mask(*sizes, **options)

    transformers.AttentionInterface.register(FROM_SCRATCH, called_by_library)
    transformers.AttentionMaskInterface.register(FROM_SCRATCH, mask_for_library)
    with attention_named(model, FROM_SCRATCH), model.register_forward_pre_hook(count_pass):
        yield
    layers = model.config.num_hidden_layers
    if counts["layers"] < counts["passes"] * layers:
        ours = counts["layers"] // counts["passes"]
        raise cannot_serve(model, f"only {ours} of its {layers} layers ask the library for theirs")


def cannot_serve(model: nn.Module, reason: str) -> ValueError:
    """The error for a model whose attention is not ours to exchange."""
    return ValueError(
        f"a model of kind {model.config.model_type} cannot compute with our attention: {reason}; "
        f"try --model {SMOLLM2}"
    )


# ---- our module, with the weights of a published layer

# Kinds of encoders whose layers name their parts alike.
BERTS = ("bert", "roberta", "xlm-roberta", "electra", "big_bird")


def modules_of(language_model: LanguageModel) -> list[MultiHeadAttention]:
    """Our MultiHeadAttention for each layer of a BERT, with the layer's own four matrices.

    Raises ValueError for a model of another kind.
    """
    model, config = language_model.model, language_model.model.config
    if config.model_type not in BERTS:
        raise ValueError(
            f"{language_model.name} is of kind {config.model_type}, and our module takes its "
            f"matrices from {', '.join(BERTS)}; try it without --model"
        )
    modules = []
    for layer in model.encoder.layer:
        projections, output = layer.attention.self, layer.attention.output
        module = MultiHeadAttention(output.dense.out_features, config.num_attention_heads)
        module.w_q = projections.query
        module.w_k = projections.key
        module.w_v = projections.value
        module.w_o = output.dense
        modules.append(module.eval())
    return modules
