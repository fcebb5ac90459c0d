"""Wrong and right heads against loops over slices; what describes heads against patterns whose numbers are known."""

import itertools
from dataclasses import asdict

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from phase1_single_head.models import RECIPE
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head import visualize
from phase2_multi_head.heads import heads_vs_loss, one_or_four_heads, output_projection, wrong_heads
from phase2_multi_head.models import ONE_LAYER_RECIPE
from phase2_multi_head.models import RECIPE as DEEP_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from shared import toy_language, training
from shared.attention_utils import causal_mask
from shared.evidence.claims import FAILS, HOLDS
from shared.grammar.entropy import floor, hidden_word_distribution, hidden_word_entropy, questions
from shared.grammar.roles import NO_NAME
from shared.tests.helpers import T_Q, B, close
from shared.toy_language import encode, sample_corpus
from shared.visualization_utils import role_color


def test_sliced_input_is_one_small_head_on_each_slice():
    torch.manual_seed(0)
    wrong = wrong_heads.SlicedInput(33, 3).double()
    x = torch.randn(B, T_Q, 33, dtype=torch.float64)
    mask = causal_mask(T_Q)
    slices = [(wrong.w_q(part), wrong.w_k(part), wrong.w_v(part)) for part in x.split(11, dim=-1)]
    heads = [scaled_dot_product_attention(*projected, mask) for projected in slices]
    output, weights = wrong(x, mask)
    close(output, wrong.w_o(torch.cat([head for head, _ in heads], dim=-1)), rtol=0, atol=1e-12)
    close(weights, torch.stack([w for _, w in heads], dim=1), rtol=0, atol=1e-12)


def test_sliced_heads_see_their_slice_and_ask_one_question_and_real_heads_do_not():
    torch.manual_seed(0)
    wrong, right = wrong_heads.SlicedInput(64, 4), MultiHeadAttention(64, 4)
    assert (wrong_heads.columns_seen(wrong), wrong_heads.columns_seen(right)) == (16, 64)
    assert wrong_heads.same_question(wrong) == 0 < 0.01 < wrong_heads.same_question(right)


def test_a_reshape_alone_puts_no_head_back():
    x = torch.arange(6 * 64).view(1, 6, 64)
    split = split_heads(x, 4)  # (1, 6, 64) -> (1, 4, 6, 16)
    assert torch.equal(merge_heads(split), x)
    assert (split.reshape(x.shape) == x).double().mean() == pytest.approx(1 / 12)  # 32 of 384 numbers


def test_the_picture_of_reshapes_shows_tokens_kept_and_tokens_mixed():
    x, split = wrong_heads.reshapes()
    right, wrong = (split[name][0] // 10 for name in ("split_heads", "view alone"))  # (H, T, d_k): from which token
    assert right.shape == wrong.shape == (2, 3, 3) and x[0, 1, 4] == 14
    assert (right == torch.arange(3)[:, None]).all()
    assert wrong[0, :, 0].tolist() == [0, 0, 1] and wrong[1, :, 0].tolist() == [1, 2, 2]


def test_numbers_in_the_picture_of_w_o_add_up():
    fig, _ = output_projection.draw()
    cells = {
        text.get_position(): int(text.get_text().replace("−", "-"))
        for text in fig.axes[0].texts
        if text.get_text().lstrip("−").isdecimal()
    }
    plt.close(fig)

    def drawn(left, *tops):
        return [[cells.get((left + column + 0.5, top + 0.5)) for column in range(8)] for top in tops]

    total, middles = output_projection.SUM, [2 * head + 0.5 for head in range(4)]
    quarters, written = drawn(0, *middles), drawn(output_projection.RIGHT, *middles)
    matrix = torch.tensor(drawn(output_projection.MIDDLE, *range(8)))
    (concat,), (output,) = drawn(0, total), drawn(output_projection.RIGHT, total)
    assert (torch.tensor(concat) @ matrix).tolist() == output == torch.tensor(written).sum(dim=0).tolist()
    for head, (quarter, row) in enumerate(zip(quarters, written, strict=True)):
        mine = range(2 * head, 2 * head + 2)
        assert [column for column in range(8) if quarter[column] is not None] == list(mine)
        assert [quarter[column] for column in mine] == [concat[column] for column in mine]
        assert row == sum(concat[column] * matrix[column] for column in mine).tolist()


def test_output_projection_sums_heads_and_folds_for_one_head_alone():
    torch.manual_seed(0)
    x = torch.randn(B, T_Q, 64, dtype=torch.float64)
    one, many = (MultiHeadAttention(64, heads, bias=False).double() for heads in (1, 4))
    value = split_heads(many.w_v(x), 4)
    weights = many(x)[1]
    by_hand = sum((weights[:, h] @ value[:, h]) @ many.w_o.weight[:, 16 * h : 16 * h + 16].T for h in range(4))
    close(output_projection.sum_of_heads(many, x), by_hand, rtol=0, atol=1e-12)
    close(many(x)[0], by_hand, rtol=0, atol=1e-12)
    close(output_projection.folded(one)(x)[0], one(x)[0], rtol=0, atol=1e-12)
    assert (output_projection.folded(many)(x)[0] - many(x)[0]).abs().max() > 0.01
    assert output_projection.columns_written(many) == 64
    nn.init.eye_(many.w_o.weight)
    assert output_projection.columns_written(many) == 16


def test_three_models_differ_in_what_their_claim_says_and_in_nothing_else():
    one, four, deep = (asdict(recipe) for recipe in (RECIPE, ONE_LAYER_RECIPE, DEEP_RECIPE))

    def changed(before, after):
        return {name: (before[name], after[name]) for name in before if before[name] != after[name] and name != "name"}

    assert changed(one, four) == {"num_heads": (1, 4)}
    assert changed(four, deep) == {"num_layers": (1, 2), "matrix_decay": (0.1, 0.5)}
    assert (one["steps"], one["objective"]) == (800, "masked word")


@pytest.mark.parametrize(
    ("one", "four", "deep", "verdict"),
    [
        (0.30, 0.20, 0.15, HOLDS),
        (0.30, 0.20, 0.19, FAILS),  # the second layer brings less than the margin
        (0.21, 0.20, 0.10, FAILS),  # the heads do
        (0.10, 0.20, 0.05, FAILS),  # both together bring something, the heads alone do harm
    ],
)
def test_one_change_one_drop_asks_each_change_by_itself(one, four, deep, verdict):
    claims = {claim.id: claim for claim in one_or_four_heads.what_heads_learn.claims}
    assert claims["one-change-one-drop"].verdict(one_or_four_heads.losses(one, four, deep)) == verdict


def test_the_loss_of_a_model_is_its_cost_less_the_floor():
    trained = training.untrained(ONE_LAYER_RECIPE, MultiHeadAttention)
    sentences = sample_corpus(0, 3)[1]
    asked, costs, entropies = questions(sentences), [], []
    for sentence in sentences:
        for place in range(len(sentence.words)):
            tokens = encode(sentence.words)
            tokens[place] = toy_language.MASK_ID
            q = trained.model(torch.tensor([tokens]))[0][0, place].double().softmax(dim=-1)
            p = hidden_word_distribution(sentence.words, place)
            costs.append(-(p * q.log()).sum().item())
            entropies.append(hidden_word_entropy(sentence.words, place))
    assert floor(asked) == pytest.approx(sum(entropies) / len(entropies))
    excess = (sum(costs) - sum(entropies)) / len(costs)
    assert one_or_four_heads.loss_of(trained, asked) == pytest.approx(excess, rel=1e-5) and excess > 1


def test_attention_dropout_divides_what_it_keeps():
    query, key = torch.zeros(2, 1, 1, 40, 16, dtype=torch.float64)
    used, _ = scaled_dot_product_attention(query, key, torch.eye(40).double()[None, None], dropout=nn.Dropout(0.1))
    close(used, (used > 0).double() / (40 * 0.9), rtol=0, atol=1e-12)


def test_heads_of_known_patterns_are_described_by_their_numbers():
    even, own = torch.full((1, 5, 5), 0.2).double(), torch.eye(5).double()[None]
    after = torch.roll(torch.eye(5).double(), 1, dims=1)[None]
    weights = torch.stack([even, own, after], dim=1)  # (1, 3, 5, 5)
    numbers = visualize.describe("x", [weights, weights], torch.ones(1, 1, 5, 5).bool())
    assert numbers["x: entropy"] == pytest.approx([1, 0, 0] * 2)
    assert numbers["x: difference"] == pytest.approx((0.8 + 0.8 + 1) / 3)


def test_the_grid_names_and_colours_heads_by_role_and_shows_words_once(monkeypatch):
    model = training.untrained(DEEP_RECIPE, MultiHeadAttention)
    names = [["previous", NO_NAME, NO_NAME, "verb → place"], ["subject → verb"] + [NO_NAME] * 3]
    monkeypatch.setattr(visualize, "head_names", lambda *_: names)
    fig, caption = visualize.draw_grid(model, model, visualize.SENTENCE.split())
    titles = [ax.title for ax in fig.axes[:12]]
    assert [title.get_text() for title in titles[:5]] == [
        "previous (0.0)",
        "no name (0.1)",
        "no name (0.2)",
        "verb → place (0.3)",
        "subject → verb (1.0)",
    ]
    assert [title.get_color() for title in titles[:8]] == [role_color(name) for row in names for name in row]
    frames = [[patch.get_xy() for patch in ax.patches] for ax in fig.axes[:12]]
    assert frames == [[]] * 3 + [[(6, 2)], [(2, 1)]] + [[]] * 7  # place mat (6) and verb sat (2); verb and subject cat
    assert "3 of 8 have a role" in fig.get_suptitle() and "layer 1: subject → verb" in caption
    for place, ax in enumerate(fig.axes[:12]):
        drawn = [
            any(tick.label1.get_visible() or tick.label2.get_visible() for tick in axis.get_major_ticks())
            for axis in (ax.xaxis, ax.yaxis)
        ]
        assert drawn == [place < 4, place % 4 == 0]
    monkeypatch.setattr(visualize, "head_names", lambda *_: [[NO_NAME] * 4] * 2)
    assert "no head has a role yet" in visualize.draw_grid(model, model, ["the", "cat"])[1]
    plt.close("all")


def test_total_variation_leaves_padding_out():
    one = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0]])
    other = torch.tensor([[0.5, 0.5, 0], [1, 0, 0], [0, 0, 1]])
    weights = torch.stack([one, other])[None]
    assert visualize.total_variation(weights, torch.tensor([[True, True, False]])) == pytest.approx(0.25)
    assert visualize.total_variation(weights, torch.tensor([[True, True, True]])) == pytest.approx(0.5)


def test_all_numbers_of_heads_start_alike_and_see_the_same_batches(monkeypatch):
    rows = [torch.tensor([encode(text.split())] * 3) for text in ("the cat sat", "a girl often swam in the lake")]
    for group in rows:
        group[:, 0] = torch.tensor([5, 6, 7])  # three sentences of each length
    monkeypatch.setattr(heads_vs_loss, "sentences_by_length", lambda: rows)
    seen = []
    loss = training.masked_word_loss

    def spy(model, tokens, lengths, generator):
        seen.append((tokens.clone(), generator.get_state()))
        return loss(model, tokens, lengths, generator)

    monkeypatch.setattr(training, "masked_word_loss", spy)
    starts = [heads_vs_loss.train(num_heads, seed=3, steps=0).state_dict() for num_heads in heads_vs_loss.HEADS]
    for other in starts[1:]:
        torch.testing.assert_close(other, starts[0], rtol=0, atol=0)
    trained = [heads_vs_loss.train(num_heads, seed=3, steps=3) for num_heads in (1, 8)]
    for (tokens, state), (other_tokens, other_state) in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(tokens, other_tokens) and torch.equal(state, other_state)
        assert tokens.shape[0] == heads_vs_loss.BATCH and not (tokens == toy_language.PAD_ID).any()
    one, eight = (model.embedding.weight for model in trained)
    assert not torch.equal(one, eight)  # but they compute different things
    assert len({tuple(tokens.flatten().tolist()) for tokens, _ in seen[:3]}) == 3  # and no batch comes twice


def test_head_distance_against_loops():
    model = training.new_model(heads_vs_loss.recipe(4, 0, 0), MultiHeadAttention)
    with torch.no_grad():
        model.blocks[0].attention.w_q.weight.mul_(20)  # sharper, so that the distance is no small number
    sentences = sample_corpus(0, 5)[1]
    values = []
    for sentence in sentences:
        weights = training.attention_on(model, [sentence], "masked word")[0][0][0].double()  # (H, T, T), no padding
        for g, h in itertools.combinations(range(4), 2):
            for p, q in zip(weights[g], weights[h], strict=True):
                m = (p + q) / 2
                values.append(((p * (p / m).log()).sum() + (q * (q / m).log()).sum()).item() / 2)
    distance = heads_vs_loss.head_distance(model, sentences)
    assert abs(distance - sum(values) / len(values)) < 1e-5 and distance > 0.05
