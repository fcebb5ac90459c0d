"""What is measured on a decoder: its losses in a window are the library's, its heads on repeated tokens have names."""

import json
from argparse import Namespace

import pytest
import torch

from phase3_visualization.pretrained import decoder_heads, window
from phase3_visualization.pretrained.language_model import LanguageModel
from phase3_visualization.tests.test_decoders import GROUPED, SCALED, tiny
from shared import paths
from shared.attention_utils import streaming_mask
from shared.experiment import Run
from shared.tests.helpers import close

TOKENS = torch.tensor([[2, 3, 4, 5, 6, 2, 7]])
TIED = {"tie_word_embeddings": True}


@pytest.mark.parametrize(("kind", "sizes"), [("Llama", {}), ("Gemma", {"head_dim": 10})])  # Gemma scales its embeddings
def test_the_loss_with_everything_is_the_library_s(kind, sizes):
    ours = tiny(kind, **GROUPED | sizes | TIED)
    library = pytest.importorskip("transformers").AutoModelForCausalLM.from_config(ours.model.config).eval()
    library.model.load_state_dict(ours.model.state_dict())
    losses = -library(TOKENS[:, :-1]).logits[0].log_softmax(dim=-1)[range(6), TOKENS[0, 1:]]
    found = window.losses(ours, TOKENS, streaming_mask(6, None))
    close(found, losses, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("Llama", {"tie_word_embeddings": False}), ("Gemma2", SCALED | TIED | {"final_logit_softcapping": 30.0})],
)
def test_other_outputs_than_the_embedding_are_refused_in_one_line(kind, sizes):
    with pytest.raises(ValueError, match=f"{kind} .*--model smollm2") as refusal:
        window.losses(tiny(kind, **GROUPED | sizes), TOKENS, streaming_mask(6, None))
    assert "\n" not in str(refusal.value)


def test_an_excerpt_is_a_piece_of_the_text_that_the_generator_draws():
    texts = []

    def tokenizer(text):
        texts.append(text)
        return {"input_ids": list(range(2000))}

    model = LanguageModel(None, tokenizer, "numbers")
    found = [window.excerpt(model, torch.Generator().manual_seed(seed))[0].tolist() for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    for tokens in found:
        assert tokens == list(range(tokens[0], tokens[0] + window.LENGTH + 1)) and tokens[-1] < 2000
    said = json.loads((paths.ROOT / "data" / "raw" / "claims.json").read_text(encoding="utf-8"))
    assert all(each["claim"] in texts[0] and each["said"] in texts[0] for each in said)


def test_losses_beyond_the_window_are_means_and_each_way_has_its_mask(monkeypatch):
    """A loss that counts what a token sees, and 1000 for the first token."""
    monkeypatch.setattr(window, "excerpt", lambda *_: None)
    monkeypatch.setattr(window, "losses", lambda model, tokens, mask: mask.sum(dim=-1) + 1000.0 * mask[:, 0])
    monkeypatch.setattr(window, "load", lambda name: LanguageModel(None, None, "made"))
    found = window.measure(Run(Namespace(model=None), 0))
    seen = sum(range(257, 769)) / 512
    assert [found[way] for way in window.MASKS] == [1000 + seen, 128, 1128]


def heads_of_every_role(tokens):
    """A head for each role, which gives all of its weight to its places: (8, 4, 96, 96)."""
    hits = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    start = torch.eye(96) * (torch.arange(96) == 0)  # a query without such a key looks at the first token
    first = (torch.arange(96) == 0).expand(96, 96)
    previous = torch.eye(96).roll(1, dims=0).tril() + start
    rows = [key.expand(8, 96, 96).float() for key in (previous, hits, hits.roll(1, -1), first)]
    return torch.stack([row / row.sum(-1, keepdim=True).clamp(min=1) for row in rows], dim=1)


def test_heads_on_repeated_tokens_made_by_hand():
    tokens = decoder_heads.repeated_tokens(torch.arange(3, 60), torch.Generator().manual_seed(0))
    assert tokens.shape == (8, 96) and tokens.min() >= 3
    scores = decoder_heads.role_scores(heads_of_every_role(tokens), tokens)
    close(torch.stack(list(scores.values())).diagonal(), torch.ones(4, dtype=torch.float64))
    assert decoder_heads.named(scores) == list(scores)


def test_heads_are_chosen_on_one_half_and_scored_on_the_other(monkeypatch):
    tokens = decoder_heads.repeated_tokens(torch.arange(3, 60), torch.Generator().manual_seed(0))
    models = {"model": heads_of_every_role(tokens), "shuffled": heads_of_every_role(tokens)[:, :1] / 2}
    monkeypatch.setattr(decoder_heads, "weights_of", lambda model, tokens: models[model])
    monkeypatch.setattr(decoder_heads, "shuffled", lambda model, generator: "shuffled")

    def scores():
        return decoder_heads.head_scores("model", tokens, None)[0]

    found, best = scores(), [f"{role}, best head" for role in decoder_heads.COLORS]
    assert [found[name] for name in best] == [pytest.approx(1)] * 4
    assert [found[f"{role}, heads"] for role in decoder_heads.COLORS] == [1] * 4
    assert (found["all heads"], found["first, share of heads"]) == (4, 0.25)
    assert found["highest score in the shuffled model"] == pytest.approx(0.5)
    models["model"][4:] = models["model"][4:].flip(1)  # in the other half each head has another role
    swapped = scores()
    assert max(swapped[name] for name in best) < 0.1


def test_the_same_heads_shuffled_have_the_same_numbers():
    model = tiny("Llama", **GROUPED).model
    other = decoder_heads.shuffled(model, torch.Generator().manual_seed(0))
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.flatten().sort().values, theirs.flatten().sort().values)
    assert not torch.equal(other.embed_tokens.weight, model.embed_tokens.weight)
