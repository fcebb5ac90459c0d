"""How does a learned query make one vector out of a sentence?

A classifier needs one vector for a sentence. Every pooling below is a weighted mean of the words;
they differ in who chooses the weights:

    mean         nobody: each word gets the same
    last word    the place: the last word gets 1, the others 0
    attention    a learned query: softmax(q · x_t / √d_model)

(The last is after Yang et al. 2016, section 2.2, without its tanh.)
What a query learns is in pooling_questions.py.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from phase1_single_head.self_attention import masked_softmax, scaled_dot_product_attention
from shared.attention_checks import check_mask
from shared.toy_language import MAX_LENGTH, VOCABULARY
from shared.toy_model import sinusoidal_positions

# x (B, T, d_model), mask -> pooled (B, d_model), weights (B, 1, 1, T): one head, one query
Pooling = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


def visible_words(x: Tensor, mask: Tensor | None) -> Tensor:
    """Which words of x (B, T, d_model) may be read, bool (B, 1, 1, T).

    mask: None, (B or 1, 1, 1, T) or (1, T).
    """
    if x.dim() != 3 or x.size(1) == 0:
        rule = "pooling takes words (B, T, d_model) with T of 1 or more"
        raise ValueError(f"{rule}: got shape {tuple(x.shape)}")
    shape = (x.size(0), 1, 1, x.size(1))
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=x.device)
    check_mask(mask, shape)
    return mask.expand(shape)


def weighted_mean(weights: Tensor, x: Tensor) -> Tensor:
    """weights (B, 1, 1, T), x (B, T, d_model) -> (B, d_model)."""
    mean = weights[:, 0] @ x  # (B, 1, T) @ (B, T, d_model) -> (B, 1, d_model)
    return mean[:, 0]


def mean_pooling(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean of the visible words: equal scores for all. A row of padding alone gives 0."""
    visible = visible_words(x, mask)
    weights = masked_softmax(x.new_zeros(visible.shape), visible)
    return weighted_mean(weights, x), weights


def last_pooling(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The last visible word. A row of padding alone gives 0."""
    position = torch.arange(x.size(1), device=x.device)
    visible = position.where(visible_words(x, mask), -1)
    last = visible.amax(dim=-1, keepdim=True)  # (B, 1, 1, T) -> (B, 1, 1, 1)
    weights = (position == last).to(x.dtype)  # (B, 1, 1, 1) -> (B, 1, 1, T)
    return weighted_mean(weights, x), weights


class AttentionPooling(nn.Module):
    """One learned query attends over the words; keys and values are the words themselves.

    A key projection would add d_model² weights and nothing else: q · (W x) = (Wᵀ q) · x, which is
    another query. So it is with a value projection if a linear layer follows. The query starts at
    zero, where all scores are equal: training begins with the mean and moves away from it.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> pooled (B, d_model), weights (B, 1, 1, T).

        mask: bool, True = may be read, (B, 1, 1, T) as padding_mask makes it. A row of padding
        alone gives 0.
        """
        visible = visible_words(x, mask)
        # One head, one query: (d_model,) -> (B, 1, 1, d_model).
        query = self.query.expand(x.size(0), 1, 1, -1)
        words = x.unsqueeze(1)  # (B, T, d_model) -> (B, 1, T, d_model)
        pooled, weights = scaled_dot_product_attention(query, words, words, visible)
        return pooled.flatten(start_dim=1), weights  # (B, 1, 1, d_model) -> (B, d_model)


class AttentionClassifier(nn.Module):
    """Words -> embedding + position -> attention or nothing -> pooling -> linear -> yes or no.

    attention: a module like MultiHeadAttention, its output added to the words.
    """

    def __init__(self, d_model: int, pooling: Pooling, attention: nn.Module | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), d_model)
        positions = sinusoidal_positions(MAX_LENGTH, d_model)
        self.register_buffer("positions", positions, persistent=False)
        self.to_logits = nn.Linear(d_model, 2)
        self.pooling = pooling
        self.attention = attention

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """tokens (B, T), mask (B, 1, 1, T) -> logits (B, 2), pooling weights (B, 1, 1, T)."""
        x = self.embedding(tokens) + self.positions[: tokens.size(-1)]  # (B, T) -> (B, T, d_model)
        if self.attention is not None:
            x = x + self.attention(x, mask=mask)[0]
        # The mask again: the layer hid padding from the words, but it wrote a vector at each place
        # of padding too.
        pooled, weights = self.pooling(x, mask)
        return self.to_logits(pooled), weights  # (B, d_model) -> (B, 2)
