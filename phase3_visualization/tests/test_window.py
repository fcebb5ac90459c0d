"""A window over a text: its losses are the library's; what is counted, on losses made by hand; refusals."""

import json

import pytest
import torch

from phase3_visualization.pretrained import decoders, language_model, window
from phase3_visualization.tests.test_decoders import GROUPED, SCALED, tiny
from shared import paths

TOKENS = torch.tensor([[2, 3, 4, 5, 6, 2, 7]])
TIED = {"tie_word_embeddings": True}


@pytest.mark.parametrize(("kind", "sizes"), [("Llama", {}), ("Gemma", {"head_dim": 10})])  # Gemma scales its embeddings
def test_the_loss_with_everything_is_the_library_s(kind, sizes):
    ours = tiny(kind, **GROUPED | sizes | TIED)
    library = pytest.importorskip("transformers").AutoModelForCausalLM.from_config(ours.model.config).eval()
    library.model.load_state_dict(ours.model.state_dict())
    losses = -library(TOKENS[:, :-1]).logits[0].log_softmax(dim=-1)[range(6), TOKENS[0, 1:]]
    found = window.losses(ours, TOKENS, decoders.seen(6, None))
    torch.testing.assert_close(found, losses, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("Llama", {"tie_word_embeddings": False}), ("Gemma2", SCALED | TIED | {"final_logit_softcapping": 30.0})],
)
def test_other_outputs_than_the_embedding_are_refused_in_one_line(kind, sizes):
    with pytest.raises(ValueError, match=f"{kind} .*--model smollm2") as refusal:
        window.losses(tiny(kind, **GROUPED | sizes), TOKENS, decoders.seen(6, None))
    assert "\n" not in str(refusal.value)


def test_an_excerpt_is_a_piece_of_the_text_that_the_generator_draws():
    texts = []

    def tokenizer(text):
        texts.append(text)
        return {"input_ids": list(range(2000))}

    model = language_model.LanguageModel(None, tokenizer, "numbers")
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
    found = window.window_losses(None, None)
    seen = sum(range(257, 769)) / 512
    assert [found[way] for way in window.MASKS] == [1000 + seen, 128, 1128]
    parts = found[f"{window.WINDOW}, parts"]
    assert parts == [1032.5, 1096.5, *[128] * 10], "the first token is seen in the first 128 places"
