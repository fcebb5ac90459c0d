"""Speculative decoding writes what the large model alone would: by all branches on short texts, and by sampling."""

import math
from collections import Counter

import pytest
import torch

from phase4_causal.causal_attention import CausalSelfAttention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.serving.drafts import drawn_by, missing_part, speculate
from phase4_causal.writing.sampling import GREEDY, Sampling, write
from shared.toy_language import END_ID, START_ID
from shared.toy_model import ToyTransformer


def model(seed, layers):
    """Untrained, in float64; of the vocabulary <end> and two words are left."""
    torch.manual_seed(seed)
    made = ToyTransformer(8, 2, layers, make_attention=CausalSelfAttention).double().eval()
    torch.nn.init.normal_(made.embedding.weight, std=0.5)  # so that it has opinions
    with torch.no_grad():
        made.output_bias.fill_(-1e4)[END_ID : END_ID + 3] = 0.0
    return made


LARGE, SMALL = model(5, layers=2), model(3, layers=1)


def along(path, todo, chance):
    """Follows the path, then takes the first choice that is possible and leaves the others to do; notes each chance."""

    def choose(chances):
        if len(chance) == len(path):
            first, *others = chances.nonzero().flatten().tolist()
            todo.extend([*path, other] for other in others)
            path.append(first)
        chance.append(chances[path[len(chance)]].item())
        return path[len(chance) - 1]

    return choose


def by_branches(sampling, drafted, limit):
    """Text -> its probability: speculate run anew for every way that chance may take."""
    found, todo = Counter(), [[]]
    while todo:
        choose = along(todo.pop(), todo, chance := [])
        written = speculate(LARGE, SMALL, [START_ID], sampling, choose, drafted=drafted, limit=limit)
        found[tuple(written.tokens)] += math.prod(chance)
    return found


@torch.no_grad()
def by_large_alone(sampling, limit, tokens=(START_ID,)):
    """Text -> its probability, word by word, without caches and drafts."""
    if len(tokens) > limit or tokens[-1] == END_ID:
        return Counter({tokens: 1.0})
    chances, found = sampling.probabilities(LARGE(torch.tensor([tokens]))[0][0, -1]), Counter()
    for word in chances.nonzero().flatten().tolist():
        for text, rest in by_large_alone(sampling, limit, (*tokens, word)).items():
            found[text] = chances[word].item() * rest
    return found


def difference(one, other):
    return max(abs(one[text] - other[text]) for text in one | other)


@pytest.mark.parametrize(
    ("sampling", "drafted", "limit"),
    [(Sampling(), 1, 3), (Sampling(0.7), 2, 4), (Sampling(1.5), 3, 3), (Sampling(1.5, top_k=2), 2, 4), (GREEDY, 3, 9)],
)
def test_every_text_is_as_likely_as_if_the_large_model_wrote_alone(sampling, drafted, limit):
    assert difference(by_branches(sampling, drafted, limit), by_large_alone(sampling, limit)) < 1e-10


def test_a_draft_by_the_large_model_itself_is_kept_whole():
    prompt = [START_ID, 4, 4]
    written = speculate(LARGE, LARGE, prompt, GREEDY, drawn_by(torch.Generator()), drafted=3)
    assert written.tokens == write(LARGE, torch.tensor([prompt])).tokens[0].tolist()
    assert written.kept == written.judged and written.passes == math.ceil((len(written.tokens) - 3) / 4)
    p = torch.tensor([0.75, 0.25])
    assert torch.equal(missing_part(p, p), p), "where rounding refused a word, nothing is missing, and 0 / 0 is NaN"
    with pytest.raises(ValueError, match="after the prompt of 2 words: got 2"):
        speculate(LARGE, SMALL, prompt, GREEDY, drawn_by(torch.Generator()), limit=2)


def test_a_text_without_a_word_to_go_on_from_is_refused():
    with pytest.raises(ValueError, match=r"<start>.*got no tokens"):
        speculate(LARGE, SMALL, [], GREEDY, drawn_by(torch.Generator()))


def test_a_cache_forgets_its_end_and_goes_on_from_there():
    cache, (first, second) = KeyValueCache(1, 2, 5, 3), torch.randn(2, 1, 2, 3, 3)
    cache.append(first, first)
    cache.truncate(1)
    keys, values = cache.append(second, second)
    assert torch.equal(keys, torch.cat([first[:, :, :1], second], dim=2)) and torch.equal(keys, values)
    for length in (-1, 5):
        with pytest.raises(ValueError, match=f"between 0 and the 4 positions there: got {length}"):
            cache.truncate(length)
