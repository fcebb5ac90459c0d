"""How can a model write several words in one pass, and exactly as if it had written one at a time?

A small model drafts a few words, and the large one reads them in one pass. Of each drafted word it
then has its own probability p beside the q by which the word was drawn:

    keep the word with chance min(1, p / q)           what the draft says too often is kept less often
    else draw one from the positive part of p - q     what it says too seldom is made up for; the rest is thrown away

So each word is distributed as p, whatever the draft is: min(p, q) of it comes from the first line,
what is missing from the second (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, theorem 1). A
bad draft costs time and no quality.
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
Choose = Callable[
    [Tensor], int
]  # chances (n,) that sum to 1 -> an index drawn by them: all that is left to chance


def drawn_by(generator: torch.Generator) -> Choose:
    return lambda chances: int(torch.multinomial(chances, 1, generator=generator))


@dataclass
class Speculated:
    """tokens: the prompt and what was written. passes: of the large model. kept, judged: drafted
    words.
    """

    tokens: list[int]
    passes: int = 0
    kept: int = 0
    judged: int = 0


def missing_part(p: Tensor, q: Tensor) -> Tensor:
    """What q (V,) says too seldom, as chances (V,): the positive part of p - q, divided by its sum."""
    part = (p - q).clamp(min=0)
    return part / part.sum() if part.any() else p  # only rounding refused


def judge(words: list[int], q: list[Tensor], p: Tensor, choose: Choose) -> list[int]:
    """The drafted words that stay, and one more. Word i was drawn by q[i]; p (n + 1, V) has a row
    for the one more.
    """
    for i, word in enumerate(words):
        keep = min(1.0, (p[i][word] / q[i][word]).item())
        if not choose(p.new_tensor([1 - keep, keep])):
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
    """Go on from tokens, <start> and a prompt, until <end> or `limit` words, as sampling.write does
    with one sentence.

    Raises ValueError without a token, or if the prompt fills the limit.
    """
    if not tokens:
        raise ValueError("tokens must begin with <start>: got no tokens")
    if len(tokens) > limit:
        raise ValueError(
            f"limit must leave room after the prompt of {len(tokens) - 1} words: got {limit}"
        )
    written = Speculated(list(tokens))
    caches, small_caches = new_caches(large, limit + 1), new_caches(small, limit + 1)
    while len(written.tokens) <= limit and written.tokens[-1] != END_ID:
        text, q = list(written.tokens), []
        while len(q) < min(drafted, limit - len(written.tokens)) and text[-1] != END_ID:
            q.append(read_on(small, text, small_caches, sampling)[-1])
            text.append(choose(q[-1]))
        words = text[len(written.tokens) :]
        p = read_on(large, text, caches, sampling)[-len(words) - 1 :]
        stay = judge(words, q, p, choose)
        written.passes += 1
        written.kept += len(stay) - 1
        written.judged += min(len(stay), len(words))
        written.tokens += stay[: stay.index(END_ID) + 1] if END_ID in stay else stay
        for cache in (*caches, *small_caches):
            cache.truncate(
                min(cache.length, len(written.tokens) - 1)
            )  # the last word is read in the next pass
    return written
