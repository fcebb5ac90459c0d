"""Our attention in published language models: the families of encoders and decoders that it is
known to fit.

The layers of a BERT are rebuilt with our MultiHeadAttention and the model's own norms and
feed-forward network, and run from the embeddings to the last layer, each on what ours before it put
out.

    x = norm(x + attention(x)),   x = norm(x + feed_forward(x))        post-norm (Devlin et al. 2019)

Of decoders only the attention is exchanged. Since GPT-2 two things have become common to all
families here:

    rotary positions     queries and keys are turned by where they stand            (Su et al. 2021; phase 1)
    grouped heads        several query heads share a head of keys and values        (Ainslie et al. 2023; phase 2)

FAMILIES says what else each of them adds. Two of these change the softmax itself, and are written
out below: a cap on the scores, cap · tanh(score / cap), and a sink logit, one learned number a
head, that takes part in the softmax and stands for nobody, so that the weights of a row sum to less
than 1. parity.py measures all families.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase3_visualization.pretrained.language_model import LanguageModel, Reading, read
from shared.attention_checks import at_least_float32, check_attention_inputs
from shared.attention_utils import streaming_mask

# ---- encoders

BERTS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "electra",
    "big_bird",
)  # as configurations say it; they name parts alike


class PostNormLayer(nn.Module):
    """A layer of a BERT with our attention in it."""

    def __init__(self, theirs: nn.Module, num_heads: int) -> None:
        super().__init__()
        projections, output = theirs.attention.self, theirs.attention.output
        bias = output.dense.bias
        self.attention = MultiHeadAttention(len(bias), num_heads).to(
            bias
        )  # on the device, in the precision of theirs
        self.attention.w_q.load_state_dict(projections.query.state_dict())
        self.attention.w_k.load_state_dict(projections.key.state_dict())
        self.attention.w_v.load_state_dict(projections.value.state_dict())
        self.attention.w_o.load_state_dict(output.dense.state_dict())
        self.attention_norm, self.feed_forward_norm = output.LayerNorm, theirs.output.LayerNorm
        self.feed_forward = nn.Sequential(
            theirs.intermediate, theirs.output.dense
        )  # with GELU, where ours has ReLU

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        found, weights = self.attention(x, mask=mask)
        x = self.attention_norm(x + found)
        return self.feed_forward_norm(x + self.feed_forward(x)), weights


def rebuilt_layers(language_model: LanguageModel) -> list[PostNormLayer]:
    """All layers with our attention.

    Raises ValueError for a family whose layers are not known here, and for a BERT that is made to
    write.
    """
    model, config = language_model.model, language_model.model.config
    if config.model_type not in BERTS:
        raise ValueError(
            f"{language_model.name} is of kind {config.model_type}: known are {', '.join(BERTS)}"
        )
    if config.is_decoder:
        raise ValueError(
            f"{language_model.name} is a {config.model_type} with is_decoder=True, whose tokens see no later ones: "
            "its layers are rebuilt as those of an encoder; load it with is_decoder=False"
        )
    return [
        PostNormLayer(layer, config.num_attention_heads).eval() for layer in model.encoder.layer
    ]


@torch.no_grad()
def rebuilt(language_model: LanguageModel, theirs: Reading) -> Reading:
    """What our layers make of the same embeddings: states and weights are ours, all else is as in
    their reading.
    """
    mask = theirs.real[:, None, None, :]  # padding is hidden as a key: (B, T) -> (B, 1, 1, T)
    x = theirs.states[0]
    states, weights = [x], []
    for layer in rebuilt_layers(language_model):
        x, weights_of_layer = layer(x, mask)
        states.append(x)
        weights.append(weights_of_layer)
    all_weights = torch.stack(weights, dim=1)  # L x (B, H, T, T) -> (B, L, H, T, T)
    return replace(theirs, states=torch.stack(states), weights=all_weights)


# ---- decoders


@dataclass(frozen=True)
class Family:
    """What a family of decoders adds to rotary positions and grouped heads; what is not named it
    does without.
    """

    normed: bool = False  # each query and key has a norm before it is turned
    window: str = ""  # tokens see only so many back: in "every layer", or in "some layers"
    own_speeds: bool = False  # layers with a window turn queries and keys at speeds of their own
    capped: bool = False  # scores cannot pass a cap
    sinks: bool = False  # a head may give weight to nobody


FAMILIES = {  # as configurations say it
    "llama": Family(),
    "gemma": Family(),
    "mistral": Family(window="every layer"),
    "mixtral": Family(window="every layer"),
    "qwen2": Family(window="some layers"),
    "qwen3": Family(window="some layers", normed=True),
    "qwen3_moe": Family(window="every layer", normed=True),
    "gemma2": Family(window="some layers", capped=True),
    "gemma3_text": Family(window="some layers", normed=True, own_speeds=True),
    "gpt_oss": Family(window="some layers", sinks=True),
}


def halves_to_pairs(x: Tensor) -> Tensor:
    """Features 0, d/2, 1, d/2 + 1, ...: these models turn feature i with i + d/2, and ours 2i with
    2i + 1.

    In the same order for queries and keys, so no product changes: (..., d) -> (..., d).
    """
    return (
        x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    )  # (..., d) -> (..., 2, d / 2) -> (..., d)


def capped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    cap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """scaled_dot_product_attention with scores that stay below a cap, and a sink logit for each
    head, sinks (H,).
    """
    check_attention_inputs(query, key, value, mask)
    dtype, (query, key, value) = query.dtype, at_least_float32(query, key, value)
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


class ExchangedAttention:
    """Our attention with the parameters of one attention module of a decoder, called in its place."""

    def __init__(self, theirs: nn.Module, model: nn.Module, mask: Tensor | None) -> None:
        """mask: bool (T, T), instead of the layer's own."""
        self.theirs, self.mask = theirs, mask
        self.rotary_emb = model.rotary_emb
        self.family = FAMILIES[model.config.model_type]

    def __call__(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T).

        What else the model hands over, its own masks and angles, is not used. Padding stands at the
        end, where the causal mask hides it from all real tokens.
        """
        theirs, family, length = self.theirs, self.family, hidden_states.size(1)
        query = self.heads_of(theirs.q_proj, hidden_states)  # (B, T, d_model) -> (B, H, T, d_k)
        key = self.heads_of(theirs.k_proj, hidden_states)  # (B, T, d_model) -> (B, G, T, d_k)
        value = self.heads_of(theirs.v_proj, hidden_states)  # (B, T, d_model) -> (B, G, T, d_k)
        if family.normed:
            query = theirs.q_norm(query)
            key = theirs.k_norm(key)
        query = self.turned(query)
        key = self.turned(key)
        query = query * (
            theirs.scaling * math.sqrt(theirs.head_dim)
        )  # they may divide by another number than √d_k
        key = key.repeat_interleave(
            theirs.num_key_value_groups, dim=1
        )  # (B, G, T, d_k) -> (B, H, T, d_k)
        value = value.repeat_interleave(
            theirs.num_key_value_groups, dim=1
        )  # (B, G, T, d_k) -> (B, H, T, d_k)
        mask = self.mask
        if mask is None:
            mask = streaming_mask(length, self.window(), device=query.device)
        if family.capped or family.sinks:
            cap = theirs.attn_logit_softcapping if family.capped else None
            sinks = theirs.sinks if family.sinks else None
            output, weights = capped_attention(query, key, value, mask, cap, sinks)
        else:
            output, weights = scaled_dot_product_attention(query, key, value, mask)
        return theirs.o_proj(merge_heads(output)), weights  # (B, H, T, d_k) -> (B, T, d_model)

    def heads_of(self, projection: nn.Linear, x: Tensor) -> Tensor:
        """Queries, keys or values of as many heads as the projection makes: (B, T, d_model) -> (B,
        heads, T, d_k).
        """
        return split_heads(projection(x), projection.out_features // self.theirs.head_dim)

    def turned(self, x: Tensor) -> Tensor:
        """Queries or keys (B, heads, T, d_k), turned at the speeds of this model, or of this kind
        of layer.
        """
        kind = f"{self.theirs.layer_type}_" if self.family.own_speeds else ""
        speeds = getattr(self.rotary_emb, f"{kind}inv_freq")
        stretch = getattr(self.rotary_emb, f"{kind}attention_scaling")
        positions = torch.arange(x.size(-2), device=x.device)
        return stretch * rotary(halves_to_pairs(x), positions, speeds)

    def window(self) -> int | None:
        """How many tokens back a token of this layer sees, itself included; None for all."""
        if self.family.window == "every layer":
            return self.theirs.config.sliding_window
        return self.theirs.sliding_window if self.family.window == "some layers" else None


@contextmanager
def our_attention(language_model: LanguageModel, mask: Tensor | None = None) -> Iterator[None]:
    """Inside `with`, every layer computes its attention as above; mask: bool (T, T), instead of the
    layer's own.

    Raises ValueError for other kinds of models, and for one that looks both ways.
    """
    model, config = language_model.model, language_model.model.config
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"{language_model.name} is of kind {config.model_type}: known are {', '.join(FAMILIES)}"
        )
    if getattr(config, "use_bidirectional_attention", False):  # in configurations of Gemma alone
        raise ValueError(
            f"{language_model.name} is a {config.model_type} that looks both ways, as EmbeddingGemma does: "
            "here decoders are exchanged, whose tokens see no later ones; heads.py reads it as it is"
        )
    attentions = [layer.self_attn for layer in model.layers]
    try:
        for attention in (
            attentions
        ):  # the module stays, and with it the record of weights: only its call is ours
            attention.forward = ExchangedAttention(attention, model, mask)
        yield
    finally:
        for attention in attentions:
            vars(attention).pop("forward", None)  # what is left is the one of its class


# ---- both


def read_with_ours(language_model: LanguageModel, texts: list[str]) -> Reading:
    """As read(), but each layer computes our attention. Raises ValueError for a family that is not
    known here.
    """
    kind = language_model.model.config.model_type
    if kind in BERTS:
        return rebuilt(language_model, read(language_model, texts))
    if kind not in FAMILIES:
        known = ", ".join((*BERTS, *FAMILIES))
        raise ValueError(
            f"{language_model.name} is of kind {kind}, and our attention is known to fit {known}"
        )
    with our_attention(language_model):
        return read(language_model, texts)


def main() -> None:
    """Print what each family adds."""
    for kind, family in FAMILIES.items():
        added = ["rotary positions", "grouped heads"]
        added += ["norms of queries and keys"] if family.normed else []
        added += [f"a window in {family.window}"] if family.window else []
        added += ["own speeds of layers with a window"] if family.own_speeds else []
        added += ["capped scores"] if family.capped else []
        added += ["a sink logit"] if family.sinks else []
        print(f"{kind:12}{', '.join(added)}")


if __name__ == "__main__":
    main()
