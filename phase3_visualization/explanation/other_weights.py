"""Run a trained model on other attention weights than its own, with the same outputs (after Brunner et al. 2020).

What a head hands on for word i is a mean of values, sum over j of a_ij v_j. The values of one head of phase 2 have
d_v = 16 numbers, so that a row of more than d_v + 1 = 17 weights can change in some directions without any effect
(alternative_weights in reading_weights.py of phase 1 finds such a row). Here that is done to every row of every
head in both layers at once, and the model is asked for its answer. not_an_explanation.py shows what comes out.
"""

import copy

import torch
from torch import Tensor

from phase1_single_head.reading.reading_weights import alternative_weights, total_variation
from phase2_multi_head.heads.output_projection import added_by_heads
from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from shared.toy_language import MAX_LENGTH, encode
from shared.toy_model import ToyTransformer
from shared.training import Trained


def in_float64(trained: Trained) -> ToyTransformer:
    return copy.deepcopy(trained.model).cpu().double().eval()


def added_by_words(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """(x_j W_V^h + b_V^h) W_O^h, what head h adds for a weight of 1 on word j: x (1, T, d_model) -> (H, T, d_model).

    attention(x) is the sum of these over heads and words, each times its weight, plus the bias of w_o.
    """
    value = split_heads(attention.w_v(x), attention.num_heads)[0]  # (1, T, d_model) -> (H, T, d_v)
    return added_by_heads(attention, value)  # (H, T, d_v) -> (H, T, d_model)


def joined(sentences: list[list[str]], shortest: int) -> list[list[str]]:
    """Each sentence with its successor, where both together have `shortest` to MAX_LENGTH words."""
    pairs = [first + second for first, second in zip(sentences[::2], sentences[1::2], strict=False)]
    return [words for words in pairs if shortest <= len(words) <= MAX_LENGTH]


def exchanged(weights: Tensor, added: Tensor) -> Tensor:
    """Every row replaced by another one with the same output, where there is one: (H, T, T), (H, T, d) -> (H, T, T)."""
    rows = [
        row if (other := alternative_weights(row, value)) is None else other
        for matrix, value in zip(weights, added, strict=True)
        for row in matrix
    ]
    return torch.stack(rows).view_as(weights)


@torch.no_grad()
def run_exchanged(model: ToyTransformer, words: list[str]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Run the model on other weights -> logits (T, V), and per layer the weights it would use and those it did."""
    x = model.embed(torch.tensor([encode(words)]))
    own, other = [], []
    for block in model.blocks:
        normed = block.attention_norm(x)
        added = added_by_words(block.attention, normed)
        own.append(block.attention(normed)[1][0])  # (1, H, T, T) -> (H, T, T)
        other.append(exchanged(own[-1], added))
        x = x + (other[-1] @ added).sum(dim=0) + block.attention.w_o.bias  # (H, T, d_model) -> (T, d_model)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    logits = model.output_norm(x) @ model.embedding.weight.T + model.output_bias  # (1, T, d_model) -> (1, T, V)
    return logits[0], own, other


def exchange_all(model: ToyTransformer, texts: list[list[str]]) -> dict[str, float]:
    """All rows of all heads on each text: how many have another row, how different it is, and what the model says."""
    moved, heaviest_changed, changes, rows = [], 0, [], 0
    for words in texts:
        logits, own, other = run_exchanged(model, words)
        with torch.no_grad():
            changes.append((model(torch.tensor([encode(words)]))[0][0] - logits).abs().max().item())
        before, after = (torch.cat(layers).flatten(0, 1) for layers in (own, other))  # L x (H, T, T) -> (L * H * T, T)
        rows += len(before)
        heaviest_changed += int((before.argmax(dim=-1) != after.argmax(dim=-1)).sum())
        moved += [total_variation(a, b) for a, b in zip(before, after, strict=True) if not torch.equal(a, b)]
    return {
        "rows": rows,
        "rows with another": len(moved),
        "weight that moves, median": torch.tensor(moved).median().item() if moved else 0.0,
        "share of rows with another heaviest word": heaviest_changed / rows,
        "largest change of a logit": max(changes),
    }
