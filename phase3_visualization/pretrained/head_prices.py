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
from shared.published import our_attention

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


def next_token_loss(writer: nn.Module, tokens: Tensor) -> Tensor:
    """Returns the loss of a decoder that writes, in nats, tokens (B, T) -> (B, T - 1)."""
    logits = writer(tokens).logits[:, :-1]  # the last token has no next one
    return F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")


def final_vectors(model: nn.Module, tokens: Tensor) -> Tensor:
    """Returns what the last layer gives, tokens (B, T) -> (B, T, d_model)."""
    return model(tokens).last_hidden_state


@torch.no_grad()
def without_each(
    model: nn.Module,
    tokens: Tensor,
    groups: Sequence[Sequence[Head]],
    ask: Callable[[nn.Module, Tensor], Tensor],
) -> Tensor:
    """Returns what ask(model, tokens) gives without each group of heads, (groups, ...).

    An empty group leaves the model as it is.
    """
    answers = []
    for heads in tqdm(groups, "taking heads out", leave=False):
        with taken_out(model, heads):
            answers.append(ask(model, tokens))
    return torch.stack(answers)
