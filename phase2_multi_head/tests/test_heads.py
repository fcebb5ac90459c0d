"""MultiHeadAttention beside the table of oracles, wrong heads, gates, patterns of known numbers."""

import pytest
import torch
import torch.nn.functional as F

from phase2_multi_head import visualize
from phase2_multi_head.heads import output_projection, two_lookups, wrong_heads
from phase2_multi_head.heads.head_importance import (
    Sampled,
    gated_heads,
    language_model,
    removal_importance,
)
from phase2_multi_head.heads.head_pruning import greedy_order
from phase2_multi_head.models import MULTI_HEAD_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from shared.attention_checks import torch_reference
from shared.head_statistics import effective_context
from shared.tests.helpers import T_K, T_Q, B, near
from shared.toy_language import MASK_ID, encode
from shared.training.objectives import CHOSEN_SHARE, corpus
from shared.training.recipes import untrained_model


def test_split_and_merge_are_inverse_and_put_each_column_in_its_head():
    x = torch.arange(2 * 5 * 33).view(2, 5, 33).double()
    split = split_heads(x, 3)
    for head, part in enumerate(x.split(11, dim=-1)):
        assert torch.equal(split[:, head], part), f"head {head}: is the transpose missing?"
    assert torch.equal(merge_heads(split), x), "merge_heads is the way back"


def test_multi_head_value_can_differ_from_key_and_dropout_stays_off_the_weights():
    torch.manual_seed(0)
    ours = MultiHeadAttention(33, 3, dropout=0.5).double()
    x, key, value = (torch.randn(B, t, 33, dtype=torch.float64) for t in (T_Q, T_K, T_K))
    first, weights = ours(x, key, value)
    second, _ = ours(x, key, value)
    near(weights.sum(dim=-1), torch.ones(B, 3, T_Q).double())
    assert not torch.equal(first, second), "in training some weights are dropped"
    near(ours.eval()(x, key, value)[0], torch_reference(ours).eval()(x, key, value)[0])


# ---- the room


def test_sliced_heads_see_their_slice_and_ask_one_question_and_real_heads_do_not():
    torch.manual_seed(0)
    wrong, right = wrong_heads.SlicedInput(64, 4).double(), MultiHeadAttention(64, 4).double()
    assert (wrong_heads.columns_read(wrong), wrong_heads.columns_read(right)) == (16, 64)  # C079
    assert wrong_heads.apart_on_equal_slices(wrong) == 0
    assert wrong_heads.apart_on_equal_slices(right) > 0.01


def test_a_view_alone_mixes_words():
    x = wrong_heads.numbered_words()
    assert x[0, 1, 4] == 14 and torch.equal(merge_heads(split_heads(x, 2)), x)
    right, wrong = split_heads(x, 2)[0], x.view(1, 2, 3, 3)[0]  # (H, T, d_k)
    assert (right // 10 == torch.arange(3)[:, None]).all(), "every row is one word"
    assert (wrong[:, :, 0] // 10).tolist() == [[0, 0, 1], [1, 2, 2]]


@torch.no_grad()
def test_with_w_o_a_head_writes_to_every_column_and_without_it_to_its_own():
    torch.manual_seed(0)
    x = torch.randn(B, T_Q, 64, dtype=torch.float64)
    attention = MultiHeadAttention(64, 4, bias=False).double()
    assert output_projection.columns_written(attention, x) == 64
    torch.nn.init.eye_(attention.w_o.weight)
    assert output_projection.columns_written(attention, x) == 16


def test_two_lookups_are_learned():
    assert two_lookups.right_after_training(8, 3, steps=60) > 0.3, "by chance 0.13"


EVEN, OWN = torch.full((5, 5), 0.2, dtype=torch.float64), torch.eye(5, dtype=torch.float64)


def test_heads_of_known_patterns_are_described_by_their_numbers():
    """One looks at all words alike, one at the word itself, one at the next."""
    weights, mask = torch.stack([EVEN, OWN, OWN.roll(1, dims=1)])[None], torch.ones(1, 1, 5, 5) > 0
    weights[..., 4, :], mask[..., 4, :] = 0.2, False  # the last word is padding
    layers = [weights, weights]
    entropy = visualize.describe_heads(layers, layers, mask)["entropy"]
    near(entropy, [[1, 0, 0]] * 2)
    assert visualize.total_variation(layers, mask) == pytest.approx((0.8 + 0.8 + 1) / 3)


def test_effective_context_worked_by_hand():
    """Entropy of .5 .25 .25 is 1.5 ln 2, so its row draws on 2^1.5 words; four equal ones on 4."""
    one = [[0.5, 0.25, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0], [0.25] * 4, [0.7, 0.1, 0.1, 0.1]]
    other = [[0.0, 0.0, 0.0, 1.0], [0.5, 0.0, 0.5, 0.0], [0.0, 0.8, 0.0, 0.2], [0.25] * 4]
    weights = torch.tensor([[one, other]], dtype=torch.float64)
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 3, :] = False  # the last word is padding: its row does not count
    uneven = 1 / (0.8**0.8 * 0.2**0.2)  # e^(-0.8 ln 0.8 - 0.2 ln 0.2): less than two words
    near(effective_context(weights, mask), ((2**1.5 + 1 + 4) / 3, (1 + 2 + uneven) / 3))


COLUMNS = ("entropy", "before training", "effective context")


def test_the_numbers_of_a_head_are_its_own_in_its_layer():
    """Head 0 of layer 0 looks at itself, all others at all words; before, head 0 of layer 1 did."""
    sharp, blurred = torch.stack([OWN, EVEN])[None], torch.stack([EVEN, EVEN])[None]
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    columns = visualize.describe_heads([sharp, blurred], [blurred, sharp], mask)
    numbers = visualize.numbers_of(columns)
    expected = {
        "layer 0 head 0": (0, 1, 1),
        "layer 0 head 1": (1, 1, 5),
        "layer 1 head 0": (1, 0, 5),
        "layer 1 head 1": (1, 1, 5),
    }
    assert len(numbers) == 4 * len(COLUMNS) + 2
    for name, values in expected.items():
        near([numbers[f"{name}, {column}"] for column in COLUMNS], values)
    assert (numbers["sharper heads"], numbers["all heads"]) == (1, 4)


def test_an_attention_of_ones_own_is_trained(checkpoints, tmp_path, capsys):
    options = ["--quick", "--no-pictures", "--output-dir", str(tmp_path)]
    alibi = "phase2_multi_head.alibi_attention:AlibiAttention"
    visualize.main([*options, "--attention", alibi])
    printed = capsys.readouterr().out
    assert f"training {alibi.replace(':', '.')}" in printed and "published" not in printed


BROKEN = """import torch
class Broken(torch.nn.Module):
    def __init__(self, *sizes):
        sizes[7]"""


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ("phase2_multi_head.alibi_attention:X", "MODULE:CLASS, please"),
        ("torch.nn:Linear", "must give (output, weights): "),
        ("phase1_single_head.self_attention:SelfAttention", "got [(2, 3, 64), (2, 1, 3, 3)]"),
        ("own_attention:Broken", "line 4 of "),
    ],
)
def test_what_is_no_attention_is_one_line(wrong, part, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_attention.py").write_text(BROKEN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        visualize.main(["--output-dir", str(tmp_path), "--attention", wrong])
    error = capsys.readouterr().err
    assert part in error and error.count("\n") == 1


# ---- gates against W_O without the columns of a head, orders of removal by hand


class TwoLayers(torch.nn.Module):
    """Two layers of attention and a readout, float64; the loss has curvature in every gate."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(MultiHeadAttention(33, 3) for _ in range(2))
        self.readout = torch.nn.Linear(33, 11)
        self.double()
        self.x = torch.randn(7, 5, 33, dtype=torch.float64)
        self.target = torch.randint(11, (7, 5))

    def losses(self):
        x = self.x
        for layer in self.layers:
            x = x + layer(x)[0]
        return F.cross_entropy(self.readout(x).mT, self.target, reduction="none").mean(dim=-1)


def sampled():
    model = TwoLayers()
    return Sampled(model.layers, model.losses)


def test_open_gates_change_nothing_and_no_hook_stays_even_after_an_error():
    sample = sampled()
    before = sample.losses()
    with gated_heads(sample.layers, torch.ones(2, 3, dtype=torch.float64)):
        assert torch.equal(sample.losses(), before), "a gate of 1 must not change a single bit"
    removal_importance(sample)
    with (
        pytest.raises(RuntimeError),
        gated_heads(sample.layers, torch.zeros(2, 3, dtype=torch.float64)),
    ):
        raise RuntimeError
    assert torch.equal(sample.losses(), before)


def test_a_closed_gate_is_a_head_without_its_columns_of_w_o():
    sample = sampled()
    rises = removal_importance(sample)
    assert rises.shape == (2, 3, 7)
    for layer, head in sample.heads:
        other = TwoLayers()
        with torch.no_grad():
            other.layers[layer].w_o.weight[:, 11 * head : 11 * (head + 1)] = 0
        near(rises[layer, head], other.losses() - sample.losses())
        assert rises[layer, head].abs().max() > 1e-4, "the head does something"


def test_greedy_measures_again_where_two_heads_stand_in_for_each_other():
    heads = [(0, 0), (0, 1), (0, 2)]

    def loss(removed):  # either twin is cheap while the other is there
        both_twins = {(0, 0), (0, 1)} <= removed
        return 5.0 * both_twins + 1.0 * ((0, 2) in removed) + 0.1 * ((0, 1) in removed)

    assert greedy_order(heads, loss) == [(0, 0), (0, 2), (0, 1)]


def test_the_loss_of_the_language_model_counts_each_hidden_word_alike():
    trained = untrained_model(MULTI_HEAD_RECIPE, MultiHeadAttention)
    sentences = corpus()[1][:13]
    length = max(len(sentence.words) for sentence in sentences)
    drawn = torch.rand(13, length, generator=torch.Generator().manual_seed(0)) < CHOSEN_SHARE
    costs = []
    for sentence, row in zip(sentences, drawn, strict=True):
        words = torch.tensor([encode(sentence.words)])
        hidden = row[: len(sentence.words)]
        logits = trained.model(words.masked_fill(hidden, MASK_ID))[0][0]  # (T, V)
        costs.append(F.cross_entropy(logits[hidden], words[0, hidden], reduction="none"))
    costs = torch.cat(costs)
    assert len(costs) > 13
    near(language_model(trained, 13).losses().mean(), costs.mean())
