"""Patching against a forward pass by hand, pairs against the grammar, the lens against models that
end earlier. What methods say of the heads of a planted model.
"""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention, merge_heads, split_heads
from phase3_visualization.circuits import decodable, planted, which_methods
from phase3_visualization.circuits.logit_lens import (
    each_word_hidden,
    read_with_lens,
    share_of_logit,
)
from phase3_visualization.circuits.patching import Pairs, Patching, forward_pass, put_in
from phase3_visualization.circuits.pattern_used import uses_of_heads
from phase3_visualization.circuits.subject_pairs import rival_of, subject_pairs
from shared.experiment import Run
from shared.grammar.best_reader import sentence_log_probability
from shared.head_statistics import composed
from shared.tests.helpers import near
from shared.toy_language import MASK_ID, decode, encode
from shared.toy_model import ToyTransformer, patched, patched_input
from shared.training.objectives import corpus
from shared.training.recipes import Recipe, untrained_model

HEADS, WIDTH = 3, 5
WORDS = ["the", "cat", "sat", "on", "the", "mat"]


def model_of(num_layers=2):
    """Untrained, in float64, with biases; queries are made larger, so that heads are not even."""
    recipe = Recipe("circuits", "masked word", HEADS, num_layers, steps=5, d_model=HEADS * WIDTH)
    model = untrained_model(recipe, MultiHeadAttention).model.double().eval()
    model.requires_grad_(False)
    nn.init.normal_(model.output_bias)
    for block in model.blocks:
        block.attention.w_q.weight *= 8
        nn.init.normal_(block.attention.w_v.bias)
        nn.init.normal_(block.attention.w_o.bias)
    return model


def test_one_head_at_one_place_is_put_in_as_by_hand():
    model = model_of()
    tokens, other = torch.randint(4, 90, (2, 2, 7))
    clean, own = forward_pass(model, other), forward_pass(model, tokens)
    first = model.blocks[0]
    to_stream = first.attention.w_o
    chosen = torch.zeros(2, 7, HEADS, dtype=torch.bool)
    chosen[1, 3, 2] = chosen[0, 6, 0] = True
    with patched_input(to_stream, put_in(clean.outputs(0), chosen)):
        logits = forward_pass(model, tokens).logits
    x = model.embed(tokens) + to_stream.bias
    for b, place, head in itertools.product(range(2), range(7), range(HEADS)):
        columns = slice(head * WIDTH, (head + 1) * WIDTH)
        source = clean if chosen[b, place, head] else own
        output = source.weights[0][b, head, place] @ source.values[0][b, :, columns]
        x[b, place] += to_stream.weight[:, columns] @ output
    x, _ = model.blocks[1](x + first.feed_forward(first.feed_forward_norm(x)))
    near(logits, read_with_lens(model, x))
    assert (logits - own.logits).abs().max() > 1e-3
    with pytest.raises(RuntimeError, match="inside"), patched(model.embedding, torch.zeros_like):
        raise RuntimeError("inside")
    assert torch.equal(forward_pass(model, tokens).logits, own.logits), "all is as it was"


@pytest.fixture(scope="module")
def pairs_and_subjects():
    return subject_pairs(corpus()[1][:40])


def test_pairs_differ_in_the_subject_and_both_are_sentences_of_the_grammar(pairs_and_subjects):
    pairs, subjects = pairs_and_subjects
    assert [rival_of(verb) for verb in ("swam", "fell", "sat")] == ["fell", "swam", None]
    for n, length in enumerate(pairs.mask.sum(dim=-1).flatten().tolist()):
        assert (pairs.clean[n] != pairs.corrupted[n]).nonzero().tolist() == [[subjects[n]]]
        for i, j in itertools.product(range(2), range(2)):
            tokens = (pairs.clean, pairs.corrupted)[i][n, :length].clone()
            assert tokens[pairs.position[n]] == MASK_ID
            tokens[pairs.position[n]] = pairs.answers[n, j]
            fits = math.isfinite(sentence_log_probability(decode(tokens.tolist())))
            assert fits == (i == j), "each subject has its own verb, and not the other"


def test_all_heads_together_restore_everything(pairs_and_subjects):
    pairs, _ = pairs_and_subjects
    patching = Patching(model_of(), pairs)
    every = torch.arange(len(pairs.position))
    sure = torch.zeros_like(patching.clean.logits)
    sure[every, pairs.position, pairs.answers[:, 0]] = 2
    assert pairs.logit_difference(sure) == 2
    here = torch.zeros(*pairs.clean.shape, 1, dtype=torch.bool)
    here[every, pairs.position] = True
    both = [patching.patch_of_heads(layer, patching.clean.outputs(layer), here) for layer in (0, 1)]
    assert patching.restored(*both) == pytest.approx(1, abs=1e-10)
    assert patching.restored() == pytest.approx(0, abs=1e-10)


def test_a_lone_head_restores_everything_alone(pairs_and_subjects):
    pairs, subjects = pairs_and_subjects
    model = model_of(num_layers=1)
    attention = model.blocks[0].attention
    attention.w_o.weight[:, WIDTH:] = 0  # heads 1 and 2 are not heard
    lone, *others = uses_of_heads(model, pairs, subjects)
    assert lone.output == pytest.approx(1, abs=1e-10)
    assert abs(lone.blind) > 1e-3 and abs(lone.pattern) > 1e-3
    for head in others:
        assert [head.output, head.blind] == pytest.approx([0, 0], abs=1e-10)
    (weights,) = forward_pass(model, pairs.clean, pairs.mask).weights
    looks = weights[torch.arange(len(subjects)), :, pairs.position, subjects].mean(dim=0)
    near([head.looks for head in (lone, *others)], looks.tolist())
    nn.init.zeros_(attention.w_k.weight)  # all keys alike: weights are even in both texts
    for head in uses_of_heads(model, pairs, subjects):
        assert head.pattern == pytest.approx(0, abs=1e-10)


def test_the_lens_reads_what_a_model_that_ends_there_would_say():
    model = model_of()
    shorter = copy.deepcopy(model)
    shorter.blocks = shorter.blocks[:1]
    texts = [WORDS[:4], WORDS]
    hidden = each_word_hidden(model, texts)
    logits = read_with_lens(model, hidden.stream)
    assert hidden.words.tolist() == encode(WORDS[:4] + WORDS) and len(logits) == 5
    asked = 0
    for text in texts:
        for place in range(len(text)):
            tokens = torch.tensor([encode(text)])
            tokens[0, place] = MASK_ID
            near(logits[2, asked], shorter(tokens)[0][0, place])
            near(logits[4, asked], model(tokens)[0][0, place])
            asked += 1


def test_shares_of_the_logit_add_up_to_it():
    model = model_of()
    hidden = each_word_hidden(model, [WORDS])
    words, stream = hidden.words, hidden.stream
    biases = torch.stack([block.attention.w_o.bias for block in model.blocks])
    attention = hidden.by_heads.sum(dim=1) + biases[:, None]  # (L, H, N, d) -> (L, N, d)
    near(attention, stream[1::2] - stream[:-1:2])
    added = torch.cat([stream[:1], attention, stream[2::2] - stream[1::2]])
    of_biases = model.output_bias + model.embedding.weight @ model.output_norm.bias
    logits = read_with_lens(model, stream[-1]) - of_biases
    above_mean = logits[torch.arange(len(words)), words] - logits.mean(dim=-1)
    near(share_of_logit(model, added, stream[-1], words).sum(dim=0), above_mean)


MODEL = planted.planted_model()
TEXTS = planted.planted_pairs(5, torch.Generator().manual_seed(0))
LOGITS, DID = planted.run_planted(MODEL, TEXTS.clean)


def other_weights(change, model=MODEL):
    return planted.other_weights(model, change, torch.Generator().manual_seed(1))


def test_the_planted_model_is_right_on_every_repetition():
    other, _ = planted.run_planted(MODEL, TEXTS.corrupted)
    texts = zip(TEXTS.clean.tolist(), TEXTS.corrupted.tolist(), strict=True)
    for n, (text, corrupted) in enumerate(texts):
        assert text[1:12] == text[12:] == corrupted[12:]
        assert len(set(text)) == 12
        assert LOGITS[n, 12:-1].argmax(dim=-1).tolist() == text[13:]
        right = corrupted[corrupted.index(text[3]) + 1]
        assert TEXTS.answers[n].tolist() == [text[4], right]
        assert other[n, TEXTS.position[n]].argmax() == right


def test_planted_heads_look_where_they_were_made_to():
    looked_before = DID["previous"].weights
    same_word = (TEXTS.clean[:, :, None] == TEXTS.clean[:, None, :]).double()  # (B, T) -> (B, T, T)
    matches = {
        "previous": torch.eye(23).roll(-1, dims=1).tril().expand(5, 23, 23),
        "decoy": torch.eye(23).expand(5, 23, 23),
        "induction": same_word @ looked_before.mT,
    }
    for name, match in matches.items():
        chances = (12 * match.double()).exp().tril()
        near(DID[name].weights, chances / chances.sum(dim=-1, keepdim=True))


def test_a_gradient_says_what_a_patch_does_where_all_is_straight():
    near(*planted.restored_by_head(MODEL, TEXTS, "induction"))
    assert planted.restored_by_head(MODEL, TEXTS, "decoy") == (0, 0)
    _, sure = planted.restored_by_head(MODEL, TEXTS, "previous")
    _, unsure = planted.restored_by_head(planted.planted_model(3.0), TEXTS, "previous")
    assert sure < 0.01 and unsure > 0.8


@pytest.mark.parametrize("change", planted.CHANGES)
def test_other_weights_of_the_planted_model_compute_the_same(change):
    logits, _ = planted.run_planted(other_weights(change), TEXTS.clean)
    near(logits, LOGITS, 1e-9)


def test_weights_times_lengths_are_those_of_the_key():
    """In plain loops, on weights of the same function whose values are not all of one length."""
    # The second change is for what W_O makes of the values.
    model = other_weights("stream sheared", other_weights("W_V and W_O"))
    said = which_methods.scores_of_methods(model, TEXTS)
    _, did = planted.run_planted(model, TEXTS.clean)
    heads = model.layers[0] | model.layers[1]
    for number, (name, head) in enumerate(heads.items()):
        weights, values = did[name].weights, did[name].values
        carried = {"weight × |v|": values, "weight × |v W_O|": values @ head.output}
        for method, vectors in carried.items():
            largest = []
            for n, i in itertools.product(range(5), range(23)):
                products = [weights[n, i, j] * vectors[n, j].norm() for j in range(i + 1)]
                largest.append(max(products))
            near(said[method][number], torch.stack(largest).mean())


def test_what_methods_say_of_planted_heads():
    said = which_methods.scores_of_methods(MODEL, TEXTS)
    sharp = sum(1 / (1 + i * math.exp(-12)) for i in range(23)) / 23
    near(said["largest weight"][:2].tolist(), [sharp, sharp])
    near(said["weight × |v|"], said["largest weight"])  # all values are of length 1
    near(said["weight × |v W_O|"], said["largest weight"])
    usual, lost = which_methods.certain_loss(MODEL, TEXTS.clean).item(), 0.0
    # Without the word before weights are even, on words seen twice, once, or never.
    for i in range(12, 22):
        twice, once = math.exp(16 / (i + 1)), math.exp(8 / (i + 1))
        lost += math.log(((i - 11) * twice + (23 - i) * once + 17) / once) / 10
    near(said["zero ablation"][:2].tolist(), [lost - usual, 0])
    near(said["activation patching"], torch.tensor([1, 0, 1]).double(), 1e-3)
    near(said["direct logit attribution"] / 8, torch.tensor([0, 0, 1]).double(), 1e-3)
    one = Pairs(TEXTS.clean[:1], TEXTS.corrupted[:1], TEXTS.position[:1], TEXTS.answers[:1])
    alone = which_methods.scores_of_methods(MODEL, one)["mean ablation"]
    assert said["mean ablation"][0] > 1
    assert alone.abs().max() < 1e-12, "the mean of one is itself"
    sure = said["gradient at a gate"]
    soft = which_methods.scores_of_methods(planted.planted_model(4.0), TEXTS)["gradient at a gate"]
    assert soft[0] > soft[2] and sure[0] < 0.01 * sure[2]


def test_composition_is_that_of_the_definition():
    query, key, value = torch.randn(3, 2, 5, 2).double()
    output = torch.randn(2, 2, 5).double()
    writer, reader = map(planted.PlantedHead, query, key, value, output)
    formula = "ak,bk,cv,vb->ac"
    both = torch.einsum(formula, reader.query, reader.key, writer.value, writer.output)
    read, written = reader.query @ reader.key.T, writer.value @ writer.output
    share = both.norm() / (read.norm() * written.norm())
    near(which_methods.key_composition(writer, reader), share)
    near(composed(torch.diag(torch.tensor([3.0, 4.0])), torch.eye(2)), 0.5**0.5, 1e-6)  # 5 of 5 √2


def test_the_table_of_methods():
    found = which_methods.measure(Run(None, 0))
    pairs = planted.planted_pairs(which_methods.TEXTS, torch.Generator().manual_seed(0))
    numbers = which_methods.scores_of_methods(MODEL, pairs)["zero ablation"]
    scores = [found["zero ablation, planted head"], found["zero ablation, decoy"]]
    near(scores, (numbers[:2] / max(numbers)).tolist())
    named = {name for name in found if name.endswith(", names it") and found[name]}
    assert len(named) == 4 and "K-composition, names it" in named
    moved = {name for name in found if name.endswith(planted.CHANGES) and found[name] > 1e-9}
    sheared = {"weight × |v W_O|, stream sheared", "K-composition, stream sheared"}
    assert moved == {"weight × |v|, W_V and W_O", *sheared}


# ---- what a probe reads


def test_a_probe_is_asked_about_what_it_has_not_learned():
    """What it learns from says nothing about the second half, but for one number that does."""
    draw = torch.Generator().manual_seed(0)
    kinds = torch.randint(4, (400,), generator=draw)
    noise = torch.randn(400, 12, generator=draw).double()
    assert decodable.probe_accuracy(noise, kinds) < 0.4
    told = torch.cat([noise, F.one_hot(kinds, 4)], dim=1)
    assert decodable.probe_accuracy(told, kinds) == 1
    assert decodable.probe_accuracy(told * 1e-6, kinds) == 1, "however small the numbers are"
    apart = told.clone()
    apart[200:, 12:] = apart[200:, 12:].roll(1, dims=1)
    assert decodable.probe_accuracy(apart, kinds) < 0.1, (
        "a probe that had learned the second half knows it"
    )


def test_a_head_that_copies_the_subject_is_read_and_one_that_nobody_reads_restores_nothing():
    """Head 0 of layer 0 looks at the subject alone; nothing that head 1 gives is added."""
    texts, subject = subject_pairs(corpus()[1][:300])
    torch.manual_seed(0)
    model = ToyTransformer(num_layers=1, make_attention=MultiHeadAttention).double()
    own = texts.clean.size(1)
    weights = torch.full((len(subject), 4, own, own), 1.0 / own).double()
    weights[:, :2] = F.one_hot(subject, own)[:, None, None]
    attention = model.blocks[0].attention
    with torch.no_grad():
        attention.w_o.weight[:, 16:32] = 0
        attention.w_o.weight[:, :16] *= 5

    def looks(x, mask=None):
        value = split_heads(attention.w_v(x), 4)
        return attention.w_o(merge_heads(weights @ value)), weights

    attention.forward = looks
    heads = decodable.probe_and_patch(model, texts, subject)
    assert [head.name for head in heads] == ["0.0", "0.1", "0.2", "0.3"]
    assert heads[0].read > 0.85 and heads[1].read > 0.75 and heads[2].read < 0.65
    assert abs(heads[1].restored) < 1e-9 < abs(heads[0].restored)
