"""How can a model write several words in one pass, and exactly as if it had written one at a time?

A small model drafts a few words, and the large one reads them in one pass. Of each drafted word it
then has its own probability p beside the q by which the word was drawn:

    keep the word with chance min(1, p / q)          what the draft says too often is kept less
    else draw from the positive part of p - q        what it says too seldom is made up for,
                                                     and the rest of the draft is thrown away

So each word is distributed as p, whatever the draft is: min(p, q) of it comes from the first line,
what is missing from the second (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, theorem 1). A
bad draft costs time and no quality.

    python phase4_causal/serving/speculative_decoding.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.writing.sampling import Sampling, new_caches
from shared.toy_language import END_ID, MAX_LENGTH
from shared.toy_model import ToyTransformer

DRAFTED = 4  # words at a time

# Chances (n,) that sum to 1 -> an index that is drawn by them. Nothing else is left to chance here.
Choose = Callable[[Tensor], int]


def chooser(generator: torch.Generator) -> Choose:
    """Returns a function that draws with this generator."""

    def choose(chances: Tensor) -> int:
        return int(torch.multinomial(chances, 1, generator=generator))

    return choose


@dataclass
class Speculated:
    """What was written: tokens, the prompt among them.

    passes: of the large model. judged: drafted words up to the first that was refused. accepted:
    those that stayed.
    """

    tokens: list[int]
    passes: int = 0
    accepted: int = 0
    judged: int = 0


def missing_part(p: Tensor, q: Tensor) -> Tensor:
    """What q (V,) says too seldom, as chances (V,): the positive part of p - q, its sum made 1.

    If that is nothing, a word can only have been refused by rounding, and p is the answer.
    """
    part = (p - q).clamp(min=0)
    return part / part.sum() if part.any() else p  # only rounding refused


def keep_or_replace(words: list[int], q: list[Tensor], p: Tensor, choose: Choose) -> list[int]:
    """Returns the drafted words that stay, and one more.

    q: of each drafted word the chances (V,) by which it was drawn. p: those of the large model,
    (n + 1, V), with a row for the one more.
    """
    for i, word in enumerate(words):
        chance = min(1.0, (p[i][word] / q[i][word]).item())
        stays = choose(p.new_tensor([1 - chance, chance]))
        if not stays:
            return [*words[:i], choose(missing_part(p[i], q[i]))]
    return [*words, choose(p[-1])]


def read_on(
    model: ToyTransformer, tokens: list[int], caches: list[KeyValueCache], sampling: Sampling
) -> Tensor:
    """Chances (T, V) of the word after each of the T tokens that the caches do not hold yet."""
    new = torch.tensor([tokens[caches[0].length :]], device=model.positions.device)
    logits, _ = model(new, caches=caches)
    return sampling.probabilities(logits[0]).cpu()  # (1, T, V) -> (T, V)


@torch.no_grad()
def speculate(
    large: ToyTransformer,
    small: ToyTransformer,
    tokens: list[int],
    sampling: Sampling,
    choose: Choose,
    *,
    drafted: int = DRAFTED,
    limit: int = MAX_LENGTH,
) -> Speculated:
    """Go on from tokens, <start> and a prompt, until <end> or `limit` words.

    What is written is distributed as by write_sentences with the large model. Raises ValueError if
    the prompt fills the limit.
    """
    if len(tokens) > limit:
        raise ValueError(
            f"limit must leave room after the prompt of {len(tokens) - 1} words: got {limit}"
        )
    written = Speculated(list(tokens))
    large_caches = new_caches(large, limit + 1)
    small_caches = new_caches(small, limit + 1)
    while len(written.tokens) <= limit and written.tokens[-1] != END_ID:
        draft, q = [], []
        most = min(drafted, limit - len(written.tokens))  # the one more is not counted
        while len(draft) < most and END_ID not in draft:
            q.append(read_on(small, written.tokens + draft, small_caches, sampling)[-1])
            draft.append(choose(q[-1]))
        p = read_on(large, written.tokens + draft, large_caches, sampling)
        new = keep_or_replace(draft, q, p[-len(draft) - 1 :], choose)
        written.passes += 1
        written.accepted += len(new) - 1
        written.judged += min(len(new), len(draft))
        if END_ID in new:
            new = new[: new.index(END_ID) + 1]
        written.tokens += new
        num_read = len(written.tokens) - 1  # the last word is read in the next pass
        for cache in (*large_caches, *small_caches):
            cache.truncate(min(cache.length, num_read))
    return written


def main() -> None:
    q = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    p = torch.tensor([0.8, 0.1, 0.1], dtype=torch.float64)
    choose = chooser(torch.Generator().manual_seed(0))
    counts = torch.zeros_like(p)
    for _ in range(1000):
        first, *_ = keep_or_replace([choose(q)], [q], torch.stack([p, p]), choose)
        counts[first] += 1
    print("How likely each of three words is in the draft:", q.tolist())
    print("in the large model:", p.tolist())
    print("among 1,000 drafts that were judged:", (counts / 1000).tolist())


if __name__ == "__main__":
    main()
