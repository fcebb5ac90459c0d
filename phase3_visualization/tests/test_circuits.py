"""Patching against a forward pass by hand, pairs against the grammar, the lens against models that
end earlier.

The planted model is what it was made to be, and methods of naming heads say of it what they must.
"""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.circuits import planted, which_methods
from phase3_visualization.circuits.logit_lens import each_word_hidden, read, share_of_logit
from phase3_visualization.circuits.patching import Pairs, Patching, put_in, run
from phase3_visualization.circuits.pattern_used import RIVALS, pairs_of, patched
from shared import training
from shared.experiment import Run
from shared.grammar.best_reader import sentence_log_probability
from shared.head_statistics import composed
from shared.tests.helpers import near
from shared.toy_language import MASK_ID, decode, encode
from shared.toy_model import changed
from shared.training import Recipe

HEADS, WIDTH = 3, 5
WORDS = ["the", "cat", "sat", "on", "the", "mat"]


def model_of(num_layers=2):
    """Untrained, in float64, with biases; queries and keys are made larger, so that its heads are
    not even.
    """
    recipe = Recipe("circuits", "masked word", HEADS, num_layers, steps=5, d_model=HEADS * WIDTH)
    model = training.untrained(recipe, MultiHeadAttention).model.double().eval()
    with torch.no_grad():
        nn.init.normal_(model.output_bias)
        for block in model.blocks:
            block.attention.w_q.weight *= 8
            nn.init.normal_(block.attention.w_v.bias)
            nn.init.normal_(block.attention.w_o.bias)
    return model


@torch.no_grad()
def test_one_head_at_one_place_is_put_in_as_by_hand():
    model, tokens, other = model_of(), torch.randint(4, 90, (2, 7)), torch.randint(4, 90, (2, 7))
    clean, chosen = run(model, other), torch.zeros(2, 7, HEADS, dtype=torch.bool)
    chosen[1, 3, 2] = chosen[0, 6, 0] = True
    with changed(model.blocks[0].attention.w_o, put_in(clean.outputs(0), chosen), read=True):
        logits = run(model, tokens).logits
    own, first, x = run(model, tokens), model.blocks[0], model.embed(tokens)
    for b in range(2):
        for place in range(7):
            added = first.attention.w_o.bias.clone()
            for head in range(HEADS):
                columns = slice(head * WIDTH, (head + 1) * WIDTH)
                source = clean if chosen[b, place, head] else own
                output = source.weights[0][b, head, place] @ source.values[0][b, :, columns]
                added += first.attention.w_o.weight[:, columns] @ output
            x[b, place] += added
    x, _ = model.blocks[1](x + first.feed_forward(first.feed_forward_norm(x)))
    near(logits, read(model, x))
    assert (logits - own.logits).abs().max() > 1e-3
    with pytest.raises(RuntimeError, match="inside"), changed(model.embedding, torch.zeros_like):
        assert (model.embedding(tokens) == 0).all()
        raise RuntimeError("inside")
    assert torch.equal(run(model, tokens).logits, own.logits), (
        "after the block the model is as it was"
    )


def test_pairs_differ_in_the_subject_and_both_are_sentences_of_the_grammar():
    found, subject = pairs_of(training.corpus()[1][:40])
    assert RIVALS["swam"] == "fell" and RIVALS["fell"] == "swam" and "sat" not in RIVALS
    for n, length in enumerate(found.mask.sum(dim=-1).flatten().tolist()):
        assert (found.clean[n] != found.corrupted[n]).nonzero().tolist() == [[subject[n]]]
        for i, tokens in enumerate((found.clean[n, :length], found.corrupted[n, :length])):
            assert tokens[found.asked[n]] == MASK_ID
            for j, answer in enumerate(
                found.answers[n]
            ):  # each subject has its own verb, and not the other
                words = decode(tokens.index_put((found.asked[n],), answer).tolist())
                assert math.isfinite(sentence_log_probability(words)) == (i == j)


@torch.no_grad()
def test_all_heads_together_restore_everything_and_a_lone_head_does_so_alone():
    pairs, subject = pairs_of(training.corpus()[1][:40])
    patching = Patching(model_of(), pairs)
    sure, every = torch.zeros_like(patching.clean.logits), torch.arange(len(pairs.asked))
    sure[every, pairs.asked, pairs.answers[:, 0]] = 2
    assert pairs.lead(sure) == 2
    here = torch.zeros(*pairs.clean.shape, 1, dtype=torch.bool)
    here[every, pairs.asked] = True
    both = [patching.heads(layer, patching.clean.outputs(layer), here) for layer in (0, 1)]
    assert patching.share(*both) == pytest.approx(
        1, abs=1e-10
    ) and patching.share() == pytest.approx(0, abs=1e-10)
    model = model_of(num_layers=1)
    model.blocks[0].attention.w_o.weight[:, WIDTH:] = 0  # heads 1 and 2 are not heard
    found = patched(model, pairs, subject)
    assert found["output"] == pytest.approx([1, 0, 0], abs=1e-10)
    assert found["blind"][1:] == pytest.approx([0, 0], abs=1e-10) and abs(found["blind"][0]) > 1e-3
    assert abs(found["pattern"][0]) > 1e-3
    looks = (
        run(model, pairs.clean, pairs.mask).weights[0][every, :, pairs.asked, subject].mean(dim=0)
    )
    near(found["looks"], looks.tolist())
    nn.init.zeros_(
        model.blocks[0].attention.w_k.weight
    )  # all keys alike: weights are even in both texts
    assert patched(model, pairs, subject)["pattern"] == pytest.approx([0, 0, 0], abs=1e-10)


@torch.no_grad()
def test_the_lens_reads_what_a_model_that_ends_there_would_say():
    model = model_of()
    shorter = copy.deepcopy(model)
    shorter.blocks = shorter.blocks[:1]
    stream, _, hidden = each_word_hidden(model, [WORDS[:4], WORDS])
    logits = read(model, stream)
    assert hidden.tolist() == encode(WORDS[:4] + WORDS) and len(logits) == 5
    for n, place in enumerate((0, 1, 2, 3, 0, 1, 2, 3, 4, 5)):
        tokens = torch.tensor([encode(WORDS[:4] if n < 4 else WORDS)])
        tokens[0, place] = MASK_ID
        for depth, ends in ((2, shorter), (4, model)):
            near(logits[depth, n], ends(tokens)[0][0, place])


@torch.no_grad()
def test_shares_of_the_logit_add_up_to_it():
    model = model_of()
    stream, heads, words = each_word_hidden(model, [WORDS])
    biases = [block.attention.w_o.bias.expand(len(words), -1) for block in model.blocks]
    attention = [
        layer.sum(dim=0) + bias for layer, bias in zip(heads, biases, strict=True)
    ]  # (H, N, d) -> (N, d)
    near(torch.stack(attention), stream[1::2] - stream[:-1:2])
    added = torch.stack([stream[0], *attention, *(stream[2::2] - stream[1::2])])
    logits = (
        read(model, stream[-1])
        - model.output_bias
        - model.embedding.weight @ model.output_norm.bias
    )
    right = logits[torch.arange(len(words)), words]
    near(share_of_logit(model, added, stream[-1], words).sum(dim=0), right - logits.mean(dim=-1))


@pytest.fixture
def texts():
    return planted.draw_pairs(5, torch.Generator().manual_seed(0))


def test_the_planted_model_is_right_on_every_repetition_and_its_heads_look_where_they_were_made_to(
    texts,
):
    (logits, seen), (other, _) = (
        planted.read(planted.planted_model(), x) for x in (texts.clean, texts.corrupted)
    )
    for n, (text, corrupted) in enumerate(
        zip(texts.clean.tolist(), texts.corrupted.tolist(), strict=True)
    ):
        assert text[1:12] == text[12:] == corrupted[12:] and len(set(text)) == 12
        assert logits[n, 12:-1].argmax(dim=-1).tolist() == text[13:]
        answers = [text[4], corrupted[corrupted.index(text[3]) + 1]]
        assert (
            texts.answers[n].tolist() == answers and other[n, texts.asked[n]].argmax() == answers[1]
        )
        matches = {name: torch.zeros(23, 23).double() for name in seen}
        for i, j in itertools.product(range(23), range(23)):
            matches["previous"][i, j], matches["decoy"][i, j] = j == i - 1, j == i
            matches["induction"][i, j] = sum(
                seen["previous"][0][n, j, k] for k in range(23) if text[k] == text[i]
            )
        for name, match in matches.items():
            chances = (12 * match).exp().tril()
            near(seen[name][0][n], chances / chances.sum(dim=-1, keepdim=True))


@pytest.mark.parametrize("change", planted.CHANGES)
def test_other_weights_of_the_planted_model_compute_the_same(texts, change):
    model = planted.planted_model()
    other = planted.other_weights(model, change, torch.Generator().manual_seed(1))
    near(planted.read(other, texts.clean)[0], planted.read(model, texts.clean)[0], 1e-9)


def test_other_weights_are_twice_as_long_or_half_as_long_as_often():
    """By what a matrix does to the queries of the heads, whose own columns are orthogonal: the
    length of the matrix.
    """
    model, draw, powers = planted.planted_model(), torch.Generator().manual_seed(0), []
    for _ in range(20):
        other = planted.other_weights(model, "W_Q and W_K", draw)
        for before, after in zip(model.layers, other.layers, strict=True):
            powers += [
                (after[name].query.norm() / before[name].query.norm()).log2() for name in before
            ]
    powers = torch.stack(powers)
    assert abs(powers.mean()) < 0.3 and 0.7 < powers.std() < 1.3, (
        "2 to the power of a normal number"
    )


def test_weights_times_lengths_are_those_of_the_key(texts):
    """In plain loops, on weights of the same function whose values are not all of one length."""
    model = planted.planted_model()
    for change in ("W_V and W_O", "stream sheared"):  # the second for what W_O makes of them
        model = planted.other_weights(model, change, torch.Generator().manual_seed(1))
    said, (_, seen) = which_methods.answers(model, texts), planted.read(model, texts.clean)
    heads = [(name, head) for layer in model.layers for name, head in layer.items()]
    for number, (name, head) in enumerate(heads):
        weights, value, _ = seen[name]
        for method, carried in (("weight × |v|", value), ("weight × |v W_O|", value @ head.output)):
            lengths, largest = carried.norm(dim=-1), []
            for n, i in itertools.product(*map(range, weights.shape[:2])):
                largest.append(max(weights[n, i, j] * lengths[n, j] for j in range(i + 1)))
            near(said[method][number], torch.stack(largest).mean())


def test_what_methods_say_of_planted_heads(texts):
    model, rest = planted.planted_model(), [1 / (1 + i * math.exp(-12)) for i in range(23)]
    said = which_methods.answers(model, texts)
    near(said["largest weight"][:2], torch.full((2,), sum(rest) / 23, dtype=torch.float64))
    near(said["weight × |v|"], said["largest weight"])  # all values are of length 1
    near(said["weight × |v W_O|"], said["largest weight"])
    usual, lost = which_methods.loss(model, texts.clean), 0.0
    for i in range(
        12, 22
    ):  # without the word before: even weights, on words seen twice, once, never
        twice, once = math.exp(16 / (i + 1)), math.exp(8 / (i + 1))
        lost += math.log(((i - 11) * twice + (23 - i) * once + 17) / once) / 10
    near(said["zero ablation"][:2], torch.stack([lost - usual, 0 * usual]))
    alone = which_methods.answers(model, Pairs(*(x[:1] for x in list(vars(texts).values())[:4])))
    assert (
        said["mean ablation"][0] > 1 and alone["mean ablation"].abs().max() < 1e-12
    )  # the mean of one is itself
    near(said["activation patching"], torch.tensor([1, 0, 1]).double(), 1e-3)
    near(said["direct logit attribution"] / 8, torch.tensor([0, 0, 1]).double(), 1e-3)
    soft = which_methods.answers(planted.planted_model(4.0), texts)["gradient at a gate"]
    assert (
        soft[0] > soft[2] and said["gradient at a gate"][0] < 0.01 * said["gradient at a gate"][2]
    )
    writer, reader = (
        planted.Head(*torch.randn(3, 5, 2).double(), torch.randn(2, 5).double()) for _ in range(2)
    )
    read_and_written = torch.einsum(
        "ak,bk,cv,vb->ac", reader.query, reader.key, writer.value, writer.output
    )
    norms = (reader.query @ reader.key.T).norm() * (writer.value @ writer.output).norm()
    near(composed(torch.diag(torch.tensor([3.0, 4.0])), torch.eye(2)), 0.5**0.5, 1e-6)  # 5 of 5 √2
    near(
        which_methods.key_composition(writer, reader),
        read_and_written.square().sum().sqrt() / norms,
    )


def test_the_table_of_methods():
    found = which_methods.measure(Run(None, 0))
    named = {name.split(",")[0] for name, number in found.items() if "names it" in name and number}
    moved = {
        name for name, number in found.items() if name.endswith(planted.CHANGES) and number > 1e-9
    }
    draw = torch.Generator().manual_seed(0)
    pairs = planted.draw_pairs(which_methods.TEXTS, draw)
    for method, numbers in which_methods.answers(planted.planted_model(), pairs).items():
        given = [found[f"{method}, {name}"] for name in which_methods.GIVEN]
        near(given, (numbers[:2] / max(numbers)).tolist())
    assert named == {"K-composition", "zero ablation", "mean ablation", "activation patching"}
    assert moved == {
        "weight × |v|, W_V and W_O",
        "weight × |v W_O|, stream sheared",
        "K-composition, stream sheared",
    }
