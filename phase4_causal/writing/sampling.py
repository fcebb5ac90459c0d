"""How is the next word picked from what the model says, and a sentence written word by word?

    temperature   logits / t before softmax: 0 always takes the likeliest word (greedy), 1 takes
                  the model at its word, more makes unlikely words likelier
    top-k         only the k likeliest words may be drawn
    top-p         only the nucleus: the fewest likely words that together have probability p
                  (Holtzman et al. 2020)

They apply in this order. The model reads each word once, through a key-value cache. There is no
beam search: it seeks the one likeliest sentence, and here many different ones are wanted. Greedy
is a beam of one: GREEDY below, and, in its plainest form, generate in causal_attention.py.

    python phase4_causal/writing/sampling.py
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from phase4_causal.key_value_cache import KeyValueCache
from shared.attention_checks import at_least_float32
from shared.toy_language import END_ID, MAX_LENGTH, PAD_ID, decode
from shared.toy_model import ToyTransformer


@dataclass(frozen=True)
class Sampling:
    """How the next word is picked; None means all words. Raises ValueError for senseless values."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:  # NaN fails this as well
            rule = "temperature must be finite, and 0 (always the likeliest word) or more"
            raise ValueError(f"{rule}: got {self.temperature:g}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top-k must leave 1 word or more: got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            rule = "top-p must lie above 0 and at most at 1 (all words)"
            raise ValueError(f"{rule}: got {self.top_p:g}")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits (..., V) -> the probabilities (..., V) by which the next word is drawn.

        For logits of 16 bits they are computed and returned in float32.
        """
        (logits,) = at_least_float32(logits)
        if self.temperature == 0:
            likeliest = logits.argmax(dim=-1)  # (..., V) -> (...)
            return F.one_hot(likeliest, logits.size(-1)).to(logits.dtype)  # (...) -> (..., V)
        # With the largest at 0 a small temperature does not overflow.
        logits = logits - logits.max(dim=-1, keepdim=True).values
        chances = (logits / self.temperature).softmax(dim=-1)
        ranked, order = chances.sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            ranked[..., self.top_k :] = 0.0
            ranked = ranked / ranked.sum(dim=-1, keepdim=True)
        if self.top_p is not None and self.top_p < 1:
            so_far = ranked.cumsum(dim=-1)
            likelier = F.pad(so_far[..., :-1], (1, 0))  # what the words before it have
            top_p = max(self.top_p, torch.finfo(ranked.dtype).tiny)  # the likeliest word stays
            ranked = ranked.masked_fill(likelier >= top_p, 0.0)
            ranked = ranked / ranked.sum(dim=-1, keepdim=True)
        return torch.zeros_like(ranked).scatter(-1, order, ranked)  # by word id again


GREEDY = Sampling(temperature=0.0)


@dataclass
class Written:
    """What was written: B sentences that share the length of their prompt, in S steps."""

    tokens: Tensor  # (B, T + S): <start>, prompt, new words, <end>, then padding
    logits: Tensor  # (B, S, V)
    # attended[s][layer], (B, H, T + s): the weights of the newest token in step s, on itself and
    # all before it
    attended: list[list[Tensor]]

    def entropy(self, sampling: Sampling) -> Tensor:
        """Entropy of what each word was drawn from, summed over a sentence -> (B,), nats.

        On average over sentences that is the entropy of the sentences (the chain rule).
        """
        drawn_from = sampling.probabilities(self.logits)
        entropies = torch.special.entr(drawn_from).sum(dim=-1)  # (B, S, V) -> (B, S)
        ended = self.tokens[:, -self.logits.size(1) :] == END_ID  # (B, T + S) -> (B, S)
        goes_on = ended.cumsum(dim=1) - ended.long() == 0  # up to the step that wrote <end>
        return (entropies * goes_on).sum(dim=1)

    def sentences(self) -> list[list[str]]:
        """The words of each sentence, between <start> and <end>."""
        sentences = []
        for row in self.tokens.tolist():
            end = row.index(END_ID) if END_ID in row else len(row)
            sentences.append(decode(row[1:end]))
        return sentences


def new_caches(model: ToyTransformer, max_length: int, batch: int = 1) -> list[KeyValueCache]:
    """An empty cache for each layer. Raises ValueError if the model has too few positions."""
    limit, d_model = model.positions.shape
    if max_length > limit:
        raise ValueError(f"this model has {limit} positions: got max_length={max_length}")
    like = model.embedding.weight
    caches = []
    for block in model.blocks:
        heads = block.attention.num_heads
        d_k = d_model // heads
        cache = KeyValueCache(batch, heads, max_length, d_k, dtype=like.dtype, device=like.device)
        caches.append(cache)
    return caches


@torch.no_grad()
def write_sentences(
    model: ToyTransformer,
    tokens: Tensor,
    sampling: Sampling = GREEDY,
    *,
    limit: int = MAX_LENGTH,
    generator: torch.Generator | None = None,
) -> Written:
    """Go on from tokens (B, T), <start> and a prompt, until each sentence has ended.

    limit: the most words of a sentence. generator: a CPU generator; the same seed draws the same
    words. Raises ValueError if the prompt fills the limit.
    """
    batch, length = tokens.shape
    if length > limit:
        rule = f"limit must leave room after the prompt of {length - 1} words"
        raise ValueError(f"{rule}: got {limit}")
    caches = new_caches(model, limit + 1, batch)
    all_logits, attended = [], []
    new = tokens  # what the model has not read yet
    ended = torch.zeros(batch, dtype=torch.bool, device=tokens.device)
    while tokens.size(1) <= limit and not ended.all():
        logits, layers = model(new, caches=caches)
        newest = logits[:, -1]  # (B, T, V) -> (B, V): the last position predicts what comes next
        all_logits.append(newest)
        attended.append([weights[:, :, -1] for weights in layers])  # (B, H, T, T_k) -> (B, H, T_k)
        chances = sampling.probabilities(newest).cpu()
        drawn = torch.multinomial(chances, 1, generator=generator)  # (B, V) -> (B, 1)
        new = drawn.to(tokens.device).masked_fill(ended[:, None], PAD_ID)
        ended |= new[:, 0] == END_ID
        tokens = torch.cat([tokens, new], dim=1)  # (B, T) -> (B, T + 1)
    return Written(tokens, torch.stack(all_logits, dim=1), attended)


def main() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    print("A model gives four words 0.50, 0.30, 0.15 and 0.05; by these chances one is drawn:")
    rules = {
        "temperature 0": GREEDY,
        "temperature 0.5": Sampling(0.5),
        "temperature 2": Sampling(2.0),
        "top-k 3": Sampling(top_k=3),
        "top-p 0.7": Sampling(top_p=0.7),
    }
    for name, rule in rules.items():
        print(f"   {name:16}", *(f"{chance:.2f}" for chance in rule.probabilities(logits)))


if __name__ == "__main__":
    main()
