"""How well does a published decoder guess the next token, with our attention in every layer?

The text is data/raw/claims.json, from a place that is drawn: what is said about attention, and
where. window.py hides tokens from the model.
"""

import json

import torch
import torch.nn.functional as F
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase3_visualization.pretrained.any_model import AttentionFunction, our_attention
from phase3_visualization.pretrained.language_model import LanguageModel
from shared import paths


def excerpt(language_model: LanguageModel, length: int, generator: torch.Generator) -> Tensor:
    """length + 1 tokens of what is said about attention, from a random place -> (1, length + 1)."""
    said = json.loads((paths.ROOT / "data/raw/claims.json").read_text(encoding="utf-8"))
    text = "\n".join(f"{each['claim']} ({each['said']})" for each in said)
    tokens = torch.tensor(language_model.tokenizer(text)["input_ids"])
    start = int(torch.randint(len(tokens) - length, (), generator=generator))
    return tokens[None, start : start + length + 1]


@torch.no_grad()
def next_token_losses(
    language_model: LanguageModel,
    tokens: Tensor,
    mask: Tensor,
    attend: AttentionFunction = scaled_dot_product_attention,
) -> Tensor:
    """Loss in nats of every next token, with this mask and this attention in every layer.

    tokens (1, T + 1), mask bool (T, T) -> (T,).
    """
    model = language_model.model

    def under_mask(query: Tensor, key: Tensor, value: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return attend(query, key, value, mask)

    with our_attention(model, under_mask):
        states = model(tokens[:, :-1]).last_hidden_state[0]  # (1, T + 1) -> (T, d_model)
    logits = states @ model.get_input_embeddings().weight.T  # its words are the output, too: (T, V)
    return F.cross_entropy(logits, tokens[0, 1:], reduction="none")
