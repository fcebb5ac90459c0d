"""Our attention in published language models: which families of encoders and decoders does it fit?

The layers of a BERT are rebuilt with our MultiHeadAttention and the model's own norms and
feed-forward network, and run from the embeddings to the last layer, each on what ours before it put
out.

    x = norm(x + attention(x)),  x = norm(x + feed_forward(x))    post-norm (Devlin et al. 2019)

Of decoders only the attention is exchanged. Since GPT-2 two things have become common to all
families here:

    rotary positions    queries and keys are turned by where they stand      (Su et al. 2021)
    grouped heads       several query heads share a head of keys and values  (Ainslie et al. 2023)

FAMILIES says what else each of them adds. Two additions change the softmax itself: a cap on the
scores, cap · tanh(score / cap), and a sink logit, one learned number a head that takes part in the
softmax and stands for nobody, so that a row of weights sums to less than 1. parity.py measures all
families.
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase3_visualization.pretrained.language_model import LanguageModel, Reading, read_texts
from shared.attention_checks import at_least_float32, check_attention_inputs
from shared.attention_utils import streaming_mask

# ---- encoders

# As configurations say it. Their layers name the parts alike.
BERTS = ("bert", "roberta", "xlm-roberta", "electra", "big_bird")


class PostNormLayer(nn.Module):
    """A layer of a BERT with our attention in it."""

    def __init__(self, theirs: nn.Module, num_heads: int) -> None:
        super().__init__()
        projections, output = theirs.attention.self, theirs.attention.output
        self.attention = MultiHeadAttention(output.dense.out_features, num_heads)
        self.attention.w_q = projections.query
        self.attention.w_k = projections.key
        self.attention.w_v = projections.value
        self.attention.w_o = output.dense
        self.attention_norm = output.LayerNorm
        # With GELU, where ours has ReLU.
        self.feed_forward = nn.Sequential(theirs.intermediate, theirs.output.dense)
        self.feed_forward_norm = theirs.output.LayerNorm

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
    check_kind(language_model, BERTS)
    if config.is_decoder:
        raise ValueError(
            f"{language_model.name} is a {config.model_type} with is_decoder=True, whose tokens "
            "see no later ones: its layers are rebuilt as those of an encoder; load it with "
            "is_decoder=False"
        )
    return [
        PostNormLayer(layer, config.num_attention_heads).eval() for layer in model.encoder.layer
    ]


@torch.no_grad()
def rebuilt(language_model: LanguageModel, theirs: Reading) -> Reading:
    """Their reading with the states and weights that our layers make of the same embeddings."""
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

# query, key, value, mask -> output, weights
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Family:
    """What a family of decoders adds to rotary positions and grouped heads."""

    normed: bool = False  # each query and key has a norm before it is turned
    window: str = ""  # tokens see only so many back: in "every layer", or in "some layers"
    own_speeds: bool = False  # layers with a window turn queries and keys at speeds of their own
    capped: bool = False  # scores cannot pass a cap
    sinks: bool = False  # a head may give weight to nobody


FAMILIES = {
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
    """Puts features in the order 0, d/2, 1, d/2 + 1, ...: (..., d) -> (..., d).

    These models turn feature i with i + d/2, and ours 2i with 2i + 1. Queries and keys have the
    same order, so no product changes.
    """
    halves = x.unflatten(-1, (2, -1))  # (..., d) -> (..., 2, d / 2)
    return halves.transpose(-1, -2).flatten(-2)  # -> (..., d / 2, 2) -> (..., d)


def capped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    cap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """scaled_dot_product_attention with a cap on the scores, and sink logits of the heads, (H,)."""
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


class ExchangedAttention:
    """Our attention with the parameters of a decoder's attention, and called in its place.

    mask: bool (T, T), instead of the layer's own. attend: what computes output and weights.
    """

    def __init__(
        self, theirs: nn.Module, model: nn.Module, mask: Tensor | None, attend: Attend
    ) -> None:
        self.theirs, self.mask, self.attend = theirs, mask, attend
        self.rotary_emb = model.rotary_emb
        self.family = FAMILIES[model.config.model_type]

    def __call__(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T).

        What else the model hands over, its own masks and angles, is not used. Padding stands at the
        end, where the causal mask hides it from all real tokens.
        """
        theirs, family = self.theirs, self.family
        query = self.heads_of(theirs.q_proj, hidden_states)  # (B, T, d_model) -> (B, H, T, d_k)
        key = self.heads_of(theirs.k_proj, hidden_states)  # (B, T, d_model) -> (B, G, T, d_k)
        value = self.heads_of(theirs.v_proj, hidden_states)  # (B, T, d_model) -> (B, G, T, d_k)
        if family.normed:
            query = theirs.q_norm(query)
            key = theirs.k_norm(key)
        # They may divide by another number than √d_k.
        query = self.turned(query) * (theirs.scaling * math.sqrt(theirs.head_dim))
        key = self.turned(key)
        shared_by = theirs.num_key_value_groups  # query heads for each head of keys and values
        key = key.repeat_interleave(shared_by, dim=1)  # (B, G, T, d_k) -> (B, H, T, d_k)
        value = value.repeat_interleave(shared_by, dim=1)
        mask = self.mask
        if mask is None:
            mask = streaming_mask(query.size(2), self.window(), device=query.device)
        if family.capped or family.sinks:
            cap = theirs.attn_logit_softcapping if family.capped else None
            sinks = theirs.sinks if family.sinks else None
            output, weights = capped_attention(query, key, value, mask, cap, sinks)
        else:
            output, weights = self.attend(query, key, value, mask)
        return theirs.o_proj(merge_heads(output)), weights  # (B, H, T, d_k) -> (B, T, d_model)

    def heads_of(self, projection: nn.Linear, x: Tensor) -> Tensor:
        """All heads that a projection makes: (B, T, d_model) -> (B, heads, T, d_k)."""
        return split_heads(projection(x), projection.out_features // self.theirs.head_dim)

    def turned(self, x: Tensor) -> Tensor:
        """Queries or keys (B, heads, T, d_k), turned at the speeds of the model or of the layer."""
        kind = f"{self.theirs.layer_type}_" if self.family.own_speeds else ""
        speeds = getattr(self.rotary_emb, f"{kind}inv_freq")
        stretch = getattr(self.rotary_emb, f"{kind}attention_scaling")
        positions = torch.arange(x.size(-2), device=x.device)
        return stretch * rotary(halves_to_pairs(x), positions, speeds)

    def window(self) -> int | None:
        """How many tokens back a token of this layer sees, itself included; None for all."""
        if self.family.window == "every layer":
            return self.theirs.config.sliding_window
        if self.family.window == "some layers":
            return self.theirs.sliding_window
        return None


@contextmanager
def our_attention(
    language_model: LanguageModel,
    mask: Tensor | None = None,
    attend: Attend = scaled_dot_product_attention,
) -> Iterator[None]:
    """Inside `with`, every layer computes its attention as above.

    mask: bool (T, T), instead of the layer's own. attend: what computes output and weights, but for
    families with a cap or with sinks. Raises ValueError for other kinds of models, and
    for one that looks both ways.
    """
    model, config = language_model.model, language_model.model.config
    check_kind(language_model, FAMILIES)
    if getattr(config, "use_bidirectional_attention", False):  # in configurations of Gemma alone
        raise ValueError(
            f"{language_model.name} is a {config.model_type} that looks both ways, as "
            "EmbeddingGemma does: here decoders are exchanged, whose tokens see no later ones; "
            "heads.py reads it as it is"
        )
    attentions = [layer.self_attn for layer in model.layers]
    try:
        # The module stays, and with it the record of weights: only its call is ours.
        for attention in attentions:
            attention.forward = ExchangedAttention(attention, model, mask, attend)
        yield
    finally:
        for attention in attentions:
            vars(attention).pop("forward", None)  # what is left is the one of its class


# ---- both


def check_kind(language_model: LanguageModel, known: Collection[str]) -> None:
    """Raises ValueError for a model of another kind than these."""
    kind = language_model.model.config.model_type
    if kind not in known:
        raise ValueError(
            f"{language_model.name} is of kind {kind}, and our attention is known to fit "
            f"{', '.join(known)}"
        )


def read_with_ours(language_model: LanguageModel, texts: list[str]) -> Reading:
    """As read_texts, but each layer computes our attention. ValueError for an unknown family."""
    check_kind(language_model, [*BERTS, *FAMILIES])
    if language_model.model.config.model_type in BERTS:
        return rebuilt(language_model, read_texts(language_model, texts))
    with our_attention(language_model):
        return read_texts(language_model, texts)


def main() -> None:
    print("Beside rotary positions and grouped heads a family has")
    for kind, family in FAMILIES.items():
        added = [name for name, value in vars(family).items() if value]
        print(f"   {kind:12}", ", ".join(added) or "nothing else")


if __name__ == "__main__":
    main()
