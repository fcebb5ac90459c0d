"""How is the next word picked from what the model says, and a sentence written word by word?

    temperature   logits / t before softmax: 0 always takes the likeliest word (greedy), 1 takes the model at its word,
                  more makes unlikely words likelier
    top-k         only the k likeliest words may be drawn
    top-p         only the nucleus: the fewest likely words that together have probability p (Holtzman et al. 2020)

They apply in this order. The model reads each word once, through a key-value cache.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from phase4_causal.key_value_cache import KeyValueCache
from shared.toy_language import END_ID, MAX_LENGTH, PAD_ID, decode
from shared.toy_model import ToyTransformer

HOTTEST = 1e30  # more is infinite in 32 bits, and a word of no chance, whose logit is -inf, would get -inf / inf


@dataclass(frozen=True)
class Sampling:
    """How the next word is picked. None: no limit on the words. Raises ValueError for values
    without a meaning.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= HOTTEST:  # NaN fails this as well
            rule = f"temperature must lie between 0 (always the likeliest word) and {HOTTEST:g} (all alike)"
            raise ValueError(f"{rule}: got {self.temperature:g}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top-k must leave 1 word or more: got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                f"top-p must lie above 0 and at most at 1 (all words): got {self.top_p:g}"
            )

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits (..., V) -> the probabilities (..., V) by which the next word is drawn; each row
        sums to 1.
        """
        if (
            min(self.temperature, self.top_p or 1) < torch.finfo(logits.dtype).tiny
        ):  # 0, or rounds to it: 0 / 0 is NaN
            return F.one_hot(logits.argmax(dim=-1), logits.size(-1)).to(
                logits.dtype
            )  # (..., V) -> (...) -> (..., V)
        logits = (
            logits - logits.max(dim=-1, keepdim=True).values
        )  # else a small temperature overflows
        ranked, order = (
            (logits / self.temperature).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        )
        if self.top_k is not None:
            ranked[..., self.top_k :] = 0.0
            ranked = ranked / ranked.sum(dim=-1, keepdim=True)
        if self.top_p is not None and self.top_p < 1:
            likelier = ranked.cumsum(dim=-1) - ranked  # what the words before it have
            ranked = ranked.masked_fill(likelier >= self.top_p, 0.0)
            ranked = ranked / ranked.sum(dim=-1, keepdim=True)
        return torch.zeros_like(ranked).scatter(-1, order, ranked)  # by word id again


GREEDY = Sampling(temperature=0.0)


@dataclass
class Written:
    """What was generated for B sentences that share the length of their prompt; S is the number of
    steps.

    tokens (B, T + S): <start>, prompt, new words, <end>, then padding. logits (B, S, V).
    attended[s][layer] (B, H, T + s): the weights of the newest token in step s, on itself and all
    tokens before.
    """

    tokens: Tensor
    logits: Tensor
    attended: list[list[Tensor]]

    def entropy(self, sampling: Sampling) -> Tensor:
        """Entropy of what each word was drawn from, summed over a sentence -> (B,), nats.

        On average over sentences that is the entropy of the sentences (the chain rule).
        """
        entropies = torch.special.entr(sampling.probabilities(self.logits)).sum(
            dim=-1
        )  # (B, S, V) -> (B, S)
        ended = self.tokens[:, -self.logits.size(1) :] == END_ID  # (B, T + S) -> (B, S)
        goes_on = ended.cumsum(dim=1) - ended.long() == 0  # up to the step that wrote <end>
        return (entropies * goes_on).sum(dim=1)

    def sentences(self) -> list[list[str]]:
        """The words of each sentence, between <start> and <end>."""
        rows = [row[1:] for row in self.tokens.tolist()]
        return [decode(row[: row.index(END_ID)] if END_ID in row else row) for row in rows]


def new_caches(model: ToyTransformer, max_length: int, batch: int = 1) -> list[KeyValueCache]:
    """An empty cache for each layer. Raises ValueError if the model has fewer than max_length
    positions.
    """
    limit, d_model = model.positions.shape
    if max_length > limit:
        raise ValueError(f"this model has {limit} positions: got max_length={max_length}")
    like = model.embedding.weight
    heads = [block.attention.num_heads for block in model.blocks]
    return [
        KeyValueCache(batch, h, max_length, d_model // h, dtype=like.dtype, device=like.device)
        for h in heads
    ]


@torch.no_grad()
def write(
    model: ToyTransformer,
    tokens: Tensor,
    sampling: Sampling = GREEDY,
    *,
    limit: int = MAX_LENGTH,
    generator: torch.Generator | None = None,
) -> Written:
    """Go on from tokens (B, T), <start> and a prompt, until all sentences have ended or have
    `limit` words.

    generator: a CPU generator; the same seed draws the same words. Raises ValueError if the prompt
    fills the limit.
    """
    batch, length = tokens.shape
    if length > limit:
        raise ValueError(
            f"limit must leave room after the prompt of {length - 1} words: got {limit}"
        )
    caches, new, all_logits, attended = new_caches(model, limit + 1, batch), tokens, [], []
    ended = torch.zeros(batch, dtype=torch.bool, device=tokens.device)
    while tokens.size(1) <= limit and not ended.all():
        logits, layers = model(new, caches=caches)
        all_logits.append(
            logits[:, -1]
        )  # (B, T, V) -> (B, V): the last position predicts what comes next
        attended.append([weights[:, :, -1] for weights in layers])  # (B, H, T, T_k) -> (B, H, T_k)
        chances = sampling.probabilities(all_logits[-1]).cpu()
        drawn = torch.multinomial(chances, 1, generator=generator).to(
            tokens.device
        )  # (B, V) -> (B, 1)
        new = drawn.masked_fill(ended[:, None], PAD_ID)
        ended |= new[:, 0] == END_ID
        tokens = torch.cat([tokens, new], dim=1)  # (B, T) -> (B, T + 1)
    return Written(tokens, torch.stack(all_logits, dim=1), attended)
