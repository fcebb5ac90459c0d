"""Heads on repeated tokens: those made by hand have their names; they are chosen on one half, scored on the other."""

import pytest
import torch

from phase3_visualization.pretrained import language_model, repeated_tokens
from phase3_visualization.tests.test_decoders import GROUPED, tiny
from shared.tests.helpers import close


def heads_of_every_role(tokens):
    """A head for each role, which gives all of its weight to its places: (8, 4, 96, 96)."""
    hits = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    start = torch.eye(96) * (torch.arange(96) == 0)  # a query without such a key looks at the first token
    first = (torch.arange(96) == 0).expand(96, 96)
    previous = torch.eye(96).roll(1, dims=0).tril() + start
    rows = [key.expand(8, 96, 96).float() for key in (previous, hits, hits.roll(1, -1), first)]
    return torch.stack([row / row.sum(-1, keepdim=True).clamp(min=1) for row in rows], dim=1)


def test_heads_on_repeated_tokens_made_by_hand():
    tokens = repeated_tokens.repeated_tokens(torch.arange(3, 60), torch.Generator().manual_seed(0))
    assert tokens.shape == (8, 96) and tokens.min() >= 3
    scores = repeated_tokens.role_scores(heads_of_every_role(tokens), tokens)
    close(torch.stack(list(scores.values())).diagonal(), torch.ones(4, dtype=torch.float64))
    assert repeated_tokens.named(scores) == list(scores)


def test_heads_are_chosen_on_one_half_and_scored_on_the_other(monkeypatch):
    tokens = repeated_tokens.repeated_tokens(torch.arange(3, 60), torch.Generator().manual_seed(0))
    models = {"model": heads_of_every_role(tokens), "shuffled": heads_of_every_role(tokens)[:, :1] / 2}
    monkeypatch.setattr(repeated_tokens, "weights_of", lambda model, tokens: models[model])
    monkeypatch.setattr(repeated_tokens, "shuffled", lambda model, generator: "shuffled")

    def scores():
        return repeated_tokens.head_scores(language_model.LanguageModel("model", None, ""), tokens, None)

    found, best = scores(), [f"{role}: {repeated_tokens.CHOSEN}" for role in repeated_tokens.COLORS]
    assert [found[name] for name in best] == [pytest.approx(1)] * 4
    assert [found[f"{role}: heads"] for role in repeated_tokens.COLORS] == [1] * 4
    assert (found["all heads"], found["first: share of heads"]) == (4, 0.25)
    assert found[repeated_tokens.RANDOM] == pytest.approx(0.5)
    models["model"][4:] = models["model"][4:].flip(1)  # in the other half each head has another role
    swapped = scores()
    assert max(swapped[name] for name in best) < 0.1


def test_the_same_heads_shuffled_have_the_same_numbers():
    model = tiny("Llama", **GROUPED).model
    other = repeated_tokens.shuffled(model, torch.Generator().manual_seed(0))
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.flatten().sort().values, theirs.flatten().sort().values)
    assert not torch.equal(other.embed_tokens.weight, model.embed_tokens.weight)
