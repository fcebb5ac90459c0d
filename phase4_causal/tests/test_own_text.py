"""A text of one's own: counts beside plain loops, bad files, planted heads, a little training."""

import math
from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase4_causal.induction.induction_scores import (
    after_earlier_occurrence,
    before_in_first_copy,
    repeated_sequences,
)
from phase4_causal.own_text import (
    character_model,
    characters,
    four_questions,
    repeated_text,
    write,
)
from phase4_causal.own_text.character_model import CharacterModel
from shared.attention_utils import causal_mask
from shared.experiment import Run
from shared.tests.helpers import near

SAYING = "the more we look, the less we know. "
TEXT = characters.as_tokens(SAYING * 700, "a saying")
V = len(TEXT.alphabet)


def own_file(tmp_path, content=SAYING * 700):
    path = tmp_path / "own.txt"
    path.write_text(content, encoding="utf-8")
    return path


# ---- the text


def test_a_text_is_read_as_it_stands_in_two_parts(tmp_path):
    read = characters.load_characters(own_file(tmp_path))
    assert read.name == "own.txt"
    assert read.decode(torch.cat([read.training, read.held_out])) == SAYING * 700
    assert len(read.training) == len(SAYING) * 700 * 9 // 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"short", "20,000 characters or more, some ten pages: .* has 5"),
        (b"\xff\xfe\x80" * 20_000, "is not a text file in UTF-8"),
    ],
)
def test_what_is_no_text_is_one_line(content, message, tmp_path, capsys):
    path = tmp_path / "own.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        write.main(["--text", str(path), "--output-dir", str(tmp_path)])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1
    with pytest.raises(ValueError, match=message):
        characters.load_characters(path)


# ---- counting


def test_counts_of_pairs_by_hand():
    """Before anything is counted, five characters have been seen, as after any other."""
    tokens = torch.tensor([0, 1, 0, 1, 2])
    alone = [(seen + 5 / 3) / 10 for seen in (2, 2, 1)]
    near(characters.counted_table(tokens, 3, 0).tolist(), alone, 1e-6)
    after_1 = [(seen + 5 * share) / 7 for seen, share in zip((1, 0, 1), alone, strict=True)]
    pairs = characters.counted_table(tokens, 3, 1)
    near(pairs[1].tolist(), after_1, 1e-6)
    near(pairs[2].tolist(), alone, 1e-6)  # which nothing follows
    near(characters.counted_loss(pairs, torch.tensor([[1, 2]])), -math.log(after_1[2]), 1e-6)


# ---- the model


def test_the_model_sees_no_later_character_and_knows_its_place():
    torch.manual_seed(0)
    model = CharacterModel(V).double().eval()
    tokens = torch.randint(V, (2, 11), generator=torch.Generator().manual_seed(1))
    logits, layers = model(tokens)
    assert [tuple(weights.shape) for weights in layers] == [(2, 4, 11, 11)] * 2
    beginning, _ = model(tokens[:, :7])
    near(logits[:, :7], beginning)
    # In two layers the mask alone would tell the order.
    one_layer = CharacterModel(V, num_layers=1).double().eval()
    here, _ = one_layer(tokens[:, :7])
    shuffled, _ = one_layer(tokens[:, [1, 0, 2, 3, 4, 5, 6]])
    assert not torch.allclose(shuffled[:, 6], here[:, 6]), "order counts"


def test_only_the_training_part_is_learned(monkeypatch):
    two_parts = characters.as_tokens("a" * 900 + "b" * 100, "two parts")
    monkeypatch.setattr(character_model, "BATCH", 2)
    model = character_model.new_reader(two_parts, seed=0, num_layers=1)
    character_model.train_on_text(model, two_parts, seed=0, steps=10)
    a, b, _ = model.output_bias.tolist()
    assert a > b, "what stands in the training part became likelier"


def test_another_seed_reads_other_pieces(monkeypatch):
    monkeypatch.setattr(character_model, "BATCH", 2)
    losses = []
    for seed in (5, 5, 7):
        model = character_model.new_reader(TEXT, seed=0, num_layers=1)
        losses += character_model.train_on_text(model, TEXT, seed, steps=1)
    assert losses[0] == losses[1] != losses[2]


def test_losses_against_a_plain_loop():
    torch.manual_seed(0)
    model = CharacterModel(V, num_layers=1).eval()
    losses = []
    with torch.no_grad():
        for piece in character_model.held_out_pieces(TEXT):
            logits, _ = model(piece[None, :-1])
            losses.append(F.cross_entropy(logits[0], piece[1:]).item())
    near(character_model.character_loss(model, TEXT), sum(losses) / len(losses), 1e-5)


# ---- a stretch that comes twice


def test_the_places_are_those_of_the_toy_task():
    """Where all words of a block are different, the measure is that of the toy's experiments."""
    draw = torch.Generator().manual_seed(0)
    words = repeated_sequences(3, draw, (16, 16), 32)
    behind = after_earlier_occurrence(words)
    before = before_in_first_copy(words)
    for text in range(3):
        assert torch.equal(repeated_text.came_next(16)[:31], behind[text][:31])
        assert torch.equal(repeated_text.one_before(16), before[text])


def test_a_perfect_head_that_goes_by_one_letter_has_less_than_three_tenths_there():
    """It cannot tell the places behind an equal letter apart, and one of them is the right one."""
    twice = character_model.held_out_pieces(characters.load_characters(None), 64).repeat(1, 2)
    equal = twice[:, 64:-1, None] == twice[:, None, :-1]  # letter of the query, one before the key
    fitting = equal.tril(63).sum(dim=-1)  # keys up to the query -> (N, 63)
    assert 0.2 < (1 / fitting).mean() < 0.3


def head_of(gold, share):
    """A planted head: a share of its weight on the gold keys, the rest on its own token."""
    length = len(gold)
    weights = torch.eye(length)
    for query, key in gold.nonzero().tolist():
        weights[query, query] = 1 - share
        weights[query, key] = share
    return weights


def test_planted_heads_are_found_in_whatever_layer_and_scored_on_the_other_half():
    gold = repeated_text.came_next(7)
    other = repeated_text.one_before(7)
    strong, weak, none = head_of(gold, 0.75), head_of(gold, 0.25), head_of(other, 1.0)
    lower = torch.stack([none, weak]).expand(4, 2, 14, 14).clone()
    upper = torch.stack([strong, none]).expand(4, 2, 14, 14).clone()
    near(repeated_text.best_head_weight([lower, upper], gold), 0.75, 1e-6)
    near(repeated_text.best_head_weight([upper, lower], gold), 0.75, 1e-6)
    near(repeated_text.best_head_weight([lower, upper], other), 1.0, 1e-6)
    upper[2:, 0] = weak  # the head that was chosen does less on the second half
    near(repeated_text.best_head_weight([lower, upper], gold), 0.25, 1e-6)


class Copier(nn.Module):
    """Says what came behind the last occurrence of its token, with two planted heads."""

    def __init__(self, size, sure):
        super().__init__()
        self.size, self.sure = size, sure

    def forward(self, tokens):
        length = tokens.size(1)
        logits = torch.zeros(*tokens.shape, self.size)
        for row, text in enumerate(tokens.tolist()):
            for i in range(length):
                earlier = [j for j in range(i) if text[j] == text[i]]
                if earlier:
                    logits[row, i, text[earlier[-1] + 1]] = self.sure
        even = causal_mask(length) / causal_mask(length).sum(dim=-1, keepdim=True)
        return logits, [even.expand(len(tokens), 1, -1, -1)]


def test_a_planted_copier_loses_its_loss_on_the_second_copy():
    size, length = 97, 8
    stretches = torch.arange(4 * length).view(4, length)
    found = repeated_text.read_twice(Copier(size, 20.0), stretches, "planted")
    assert list(found) == [
        "weight on the token before, planted",
        "weight on what came next, planted",
        "loss gone when it comes twice, planted",
    ]
    assert found["loss gone when it comes twice, planted"] > 0.999
    unsure = repeated_text.read_twice(Copier(size, 0.0), stretches, "planted")
    near(unsure["loss gone when it comes twice, planted"], 0.0)
    even = [1 / (query + 1) for query in range(1, length)]
    near(found["weight on the token before, planted"], sum(even) / len(even), 1e-6)
    even = [1 / (query + 1) for query in range(length, 2 * length - 1)]
    near(found["weight on what came next, planted"], sum(even) / len(even), 1e-6)


# ---- the scripts


def test_both_scripts_take_a_text_of_your_own(checkpoints, tmp_path, capsys, monkeypatch):
    for name in ("STEPS", "EARLY_STEPS", "TRAINING_STEPS"):
        monkeypatch.setattr(four_questions, name, 2)
    monkeypatch.setattr(four_questions, "SENTENCES", 3)
    monkeypatch.setattr(write, "STEPS", 2)
    argv = ["--text", str(own_file(tmp_path)), "--quick", "--output-dir", str(tmp_path)]
    for script in (write, four_questions):
        script.main(argv)
        assert "on record" not in capsys.readouterr().out, "of another text nothing is judged"
    pictures = sorted(path.name for path in tmp_path.glob("visualizations/plots/phase4/*"))
    assert pictures == ["write.png"]


def test_the_difference_has_the_sign_of_what_is_saved(monkeypatch):
    """One head is worse than four."""
    monkeypatch.setattr(four_questions, "early_loss", lambda run, text, heads: 3.0 - heads / 4)
    near(four_questions.text_heads(Run(Namespace(text=None), 0), TEXT), 0.75)
