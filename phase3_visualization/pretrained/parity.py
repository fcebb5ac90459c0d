"""Is the attention of phase 2 what a published language model computes?

The layers of a BERT are rebuilt with our MultiHeadAttention and the model's own norms and feed-forward network, and run
from the embeddings to the last layer, each on what ours before it put out. Every hidden state and every weight of every
head is compared, on a padded batch, in float64: in float32 two right programs drift apart, layer by layer.

    x = norm(x + attention(x)),   x = norm(x + feed_forward(x))        post-norm (Devlin et al. 2019)

Of Llama and seven later kinds only the attention is exchanged, as decoders.py says. Run it to see MiniLM compared.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.pretrained.language_model import TEXT, LanguageModel, Reading, load, read

BERTS = ("bert", "roberta", "xlm-roberta", "electra", "big_bird")  # they name their parts alike


class PostNormLayer(nn.Module):
    """A layer of a BERT with our attention in it."""

    def __init__(self, theirs: nn.Module, num_heads: int) -> None:
        super().__init__()
        projections, output = theirs.attention.self, theirs.attention.output
        bias = output.dense.bias
        self.attention = MultiHeadAttention(len(bias), num_heads).to(bias)  # on the device, in the precision of theirs
        self.attention.w_q.load_state_dict(projections.query.state_dict())
        self.attention.w_k.load_state_dict(projections.key.state_dict())
        self.attention.w_v.load_state_dict(projections.value.state_dict())
        self.attention.w_o.load_state_dict(output.dense.state_dict())
        self.attention_norm, self.feed_forward_norm = output.LayerNorm, theirs.output.LayerNorm
        self.feed_forward = nn.Sequential(theirs.intermediate, theirs.output.dense)  # with GELU, where ours has ReLU

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        found, weights = self.attention(x, mask=mask)
        x = self.attention_norm(x + found)
        return self.feed_forward_norm(x + self.feed_forward(x)), weights


def rebuilt_layers(language_model: LanguageModel) -> list[PostNormLayer]:
    """All layers with our attention. ValueError for a family whose layers are not known here."""
    model, config = language_model.model, language_model.model.config
    if config.model_type not in BERTS:
        raise ValueError(f"{language_model.name} is of the kind {config.model_type}: known are {', '.join(BERTS)}")
    return [PostNormLayer(layer, config.num_attention_heads).eval() for layer in model.encoder.layer]


@torch.no_grad()
def differences(language_model: LanguageModel, reading: Reading) -> list[tuple[float, float]]:
    """Largest difference of states and of weights to the model's own, a pair for each layer; padding included."""
    x, mask, result = reading.states[0], reading.real[:, None, None, :], []  # padding is hidden as a key: (B, 1, 1, T)
    for index, layer in enumerate(rebuilt_layers(language_model)):
        x, weights = layer(x, mask)
        pairs = ((x, reading.states[index + 1]), (weights, reading.weights[:, index]))
        result.append(tuple((ours - theirs).abs().max().item() for ours, theirs in pairs))
    return result


def in_float64(language_model: LanguageModel) -> LanguageModel:
    """A copy that computes with 15 digits."""
    return replace(language_model, model=copy.deepcopy(language_model.model).double())


def main() -> None:
    for name, language_model in (("float32", load()), ("float64", in_float64(load()))):
        reading = read(language_model, [TEXT, "Words!", "Short sentences are padded at the end."])
        states, weights = (max(layers) for layers in zip(*differences(language_model, reading), strict=True))
        print(f"{name}: hidden states differ by {states:.0e} at most, weights of all heads by {weights:.0e}")


if __name__ == "__main__":
    main()
