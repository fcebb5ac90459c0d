"""What is a head of a published model worth? Take it out, and see what the model loses: its price.

A head is taken out by its mean: at every token its output becomes the mean of its outputs over all
tokens of the text. So what it adds everywhere stays, and what it says about a token is gone. All
else is as it was (mean ablation: Wang et al. 2023). A decoder predicts the next token, and there
the price is how much this loss rises, in nats a token. An encoder predicts nothing, so there it is
how far the final vectors of the tokens turn, 1 - cosine: 0 where nothing changes.

Works with every model that shared.published.our_attention serves.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from phase2_multi_head.block.sink_logits import attention_with_sinks
from shared.published import library, our_attention

Head = tuple[int, int]  # its layer, and which head of the layer it is


@contextmanager
def taken_out(model: nn.Module, heads: Sequence[Head]) -> Iterator[None]:
    """Inside `with`, for one pass, each of these heads says the same at all tokens: its mean."""
    layers = itertools.count()

    def attend(*inputs: Tensor | None, **additions: Any) -> tuple[Tensor, Tensor]:
        output, weights = attention_with_sinks(*inputs, **additions)  # (B, H, T, d)
        layer = next(layers)
        for its_layer, head in heads:
            if its_layer == layer:
                output[:, head] = output[:, head].mean(dim=1, keepdim=True)
        return output, weights

    with our_attention(model, attend):
        yield


def next_token_loss(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Returns the loss of a decoder as a function of tokens (B, T): nats, (B, T - 1).

    The model's output matrix must be its token embedding.
    """
    with torch.device("meta"):  # nothing is made: its parts are the model and its embedding
        predictor = library().AutoModelForCausalLM.from_config(model.config)
    setattr(predictor, predictor.base_model_prefix, model)
    predictor.tie_weights()

    def loss(tokens: Tensor) -> Tensor:
        logits = predictor(tokens).logits[:, :-1]  # the last token has no next one
        return F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")

    return loss


def turn(model: nn.Module, tokens: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns how far the final vectors turn from those of now, as a function of tokens: (B, T)."""
    own = model(tokens).last_hidden_state

    def turned(tokens: Tensor) -> Tensor:
        return 1 - F.cosine_similarity(model(tokens).last_hidden_state, own, dim=-1)

    return turned


@torch.no_grad()
def costs(
    model: nn.Module,
    tokens: Tensor,
    groups: Sequence[Sequence[Head]],
    cost: Callable[[Tensor], Tensor],
) -> Tensor:
    """Returns what tokens (B, T) cost without each group of heads: (groups, B, T), or T - 1.

    A price is what they cost more than without an empty group, and below 0 if the model does
    better.
    """
    result = []
    for heads in tqdm(groups, "taking heads out", leave=False):
        with taken_out(model, heads):
            result.append(cost(tokens))
    return torch.stack(result)
