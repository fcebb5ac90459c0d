"""The block against nn.TransformerEncoderLayer and the toy transformer; rank collapse against worked numbers."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phase2_multi_head.block import rank_collapse, transformer_block
from phase2_multi_head.block.transformer_block import TransformerBlock, from_toy_block, torch_layer
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.attention_utils import causal_mask, padding_mask
from shared.tests.helpers import close
from shared.toy_model import Block, ToyTransformer


def new_block(norm_first=True, dropout=0.0):
    """d_model 21, 3 heads of 7, d_ff 11; the norms have weights of their own, so that none can stand for another."""
    torch.manual_seed(0)
    block = TransformerBlock(21, 3, 11, dropout=dropout, norm_first=norm_first).double()
    for norm in (block.attention_norm, block.feed_forward_norm):
        nn.init.normal_(norm.weight, 1.0, 0.5)
        nn.init.normal_(norm.bias, 0.0, 0.5)
    return block


def words(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64)


# The second sequence has 3 real words of 5; nn.TransformerEncoderLayer takes the two kinds of masks apart, inverted.
KEYS = padding_mask(torch.tensor([5, 3]), 5)
MASKS = {
    "no mask": (None, {}),
    "causal": (causal_mask(5), {"src_mask": ~causal_mask(5)}),
    "padding": (KEYS, {"src_key_padding_mask": ~KEYS[:, 0, 0]}),
    "both": (causal_mask(5) & KEYS, {"src_mask": ~causal_mask(5), "src_key_padding_mask": ~KEYS[:, 0, 0]}),
}


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("kind", MASKS)
def test_block_is_torchs_layer_forwards_and_backwards(kind, norm_first):
    block, (mask, their_masks) = new_block(norm_first), MASKS[kind]
    theirs = torch_layer(block)
    x = words(2, 5, 21)
    ours_in, theirs_in = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, weights = block(ours_in, mask)
    expected = theirs(theirs_in, **their_masks)
    close(output, expected)
    direction = words(2, 5, 21).cos()
    output.backward(direction)
    expected.backward(direction)
    close(ours_in.grad, theirs_in.grad)
    ours_as_weights = copy.deepcopy(block)  # our gradients in the place of the weights: torch_layer puts them in order
    for place, parameter in zip(ours_as_weights.parameters(), block.parameters(), strict=True):
        place.data = parameter.grad
    for name, ours in torch_layer(ours_as_weights).named_parameters():
        close(ours.data, theirs.get_parameter(name).grad, msg=lambda text, name=name: f"{name}: {text}")
    read = theirs.norm1(x) if norm_first else x
    hide = {"attn_mask": their_masks.get("src_mask"), "key_padding_mask": their_masks.get("src_key_padding_mask")}
    _, their_weights = theirs.self_attn(read, read, read, average_attn_weights=False, **hide)
    assert weights.shape == (2, 3, 5, 5)
    close(weights, their_weights)


@pytest.mark.parametrize("norm_first", [True, False])
def test_dropout_is_where_torch_has_it_and_off_in_eval(norm_first):
    """The same random numbers in the same order: every dropout must stand in the same place, with the same p.

    One sequence only: with more, torch keeps them in another order in memory, and draws in that order.
    """
    block = new_block(norm_first, dropout=0.3)
    theirs, x = torch_layer(block), words(1, 5, 21)
    trained = []
    for layer in (block, theirs):
        torch.manual_seed(5)
        trained.append(layer(x)[0] if layer is block else layer(x))
    close(*trained)
    assert not torch.equal(block(x)[0], block(x)[0]), "dropout is not active in training"
    block.eval()
    assert torch.equal(block(x)[0], block(x)[0]), "dropout is alive in eval"
    close(block(x)[0], torch_layer(block)(x))  # with gradients
    with torch.no_grad():
        close(block(x)[0], torch_layer(block)(x))  # torch's fast path
    close(block(x)[0], new_block(norm_first)(x)[0])
    assert {module.p for module in block.modules() if isinstance(module, nn.Dropout)} == {0.3}


def test_block_is_the_block_of_the_toy_transformer():
    torch.manual_seed(0)
    toy = Block(21, MultiHeadAttention(21, 3)).double()
    for norm in (toy.attention_norm, toy.feed_forward_norm):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    x, mask = words(2, 5, 21), causal_mask(5) & KEYS
    block = from_toy_block(toy)
    assert block.feed_forward[0].out_features == 42 and block.feed_forward[0].weight is not toy.feed_forward[0].weight
    for ours, theirs in zip(block(x, mask), toy(x, mask), strict=True):
        close(ours, theirs, rtol=0, atol=0)


def test_parameters_of_a_block():
    """Attention 4 d² + 4 d, feed-forward 8 d² + 5 d at d_ff = 4 d, norms 4 d: a third is attention's, nearly."""
    assert sum(p.numel() for p in TransformerBlock(21, 3).parameters()) == 12 * 21**2 + 13 * 21
    d = transformer_block.D_MODEL
    assert transformer_block.attention_share(4 * d) == (4 * d**2 + 4 * d) / (12 * d**2 + 13 * d)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TransformerBlock(20, 3), "d_model=20 is not divisible by num_heads=3"),
        (lambda: TransformerBlock(0, 1), "d_model and num_heads must be 1 or more: got d_model=0"),
        (lambda: TransformerBlock(20, 4, 0), r"d_ff must be 1 or more: got 0; leave it out for 4 \* d_model = 80"),
        (lambda: TransformerBlock(20, 4, dropout=1.5), "1.5"),
        (lambda: new_block()(words(2, 5, 20)), r"\(B, T, d_model=21\): got \(2, 5, 20\)$"),
        (lambda: new_block()(words(5, 21)), r"got \(5, 21\); a single sequence needs a batch axis: x\[None\]"),
        (lambda: new_block()(words(2, 5, 21), torch.ones(5, 5)), "mask must be bool"),
        (lambda: rank_collapse.distance_to_rank_one(words(7)), r"at least 2 axes \(T, d\): got shape \(7,\)"),
    ],
)
def test_what_a_block_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_heads_on_the_diagonal_are_attention_with_a_mask_that_hides_all_others():
    attention, x = new_block().attention, words(2, 5, 21)
    added = transformer_block.added_on_the_diagonal(attention, x)
    output, weights = attention(x, mask=torch.eye(5, dtype=torch.bool))
    close(weights, torch.eye(5, dtype=torch.float64).expand(2, 3, 5, 5))
    assert added.shape == (2, 3, 5, 21)
    close(added.sum(dim=1) + attention.w_o.bias, output)


@pytest.mark.parametrize("copies", [True, False])
def test_a_head_that_copies_its_columns_would_pass_as_a_residual_connection_and_a_new_one_does_not(copies):
    torch.manual_seed(0)
    model = ToyTransformer(make_attention=MultiHeadAttention).double()
    for block in model.blocks if copies else ():
        nn.init.eye_(block.attention.w_v.weight)
        nn.init.eye_(block.attention.w_o.weight)
        nn.init.zeros_(block.attention.w_v.bias)
    cosines = transformer_block.diagonal_cosines(model)
    assert cosines["all heads, layer 1"] == pytest.approx(float(copies), abs=0.1)
    assert cosines["single heads, layer 0"] == pytest.approx([copies / 2] * 4, abs=0.1)
    (claim,) = transformer_block.diagonal_cosines.claims
    assert claim.holds(cosines) == copies


def test_xavier_reaches_the_matrices_and_leaves_the_norms():
    block = new_block()
    norm = block.attention_norm.weight.clone()
    transformer_block.use_xavier(block)
    for layer in (block.attention.w_q, block.attention.w_o, block.feed_forward[0], block.feed_forward[3]):
        limit = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert 0.9 * limit < layer.weight.abs().max() <= limit and not layer.bias.any()
    assert torch.equal(block.attention_norm.weight, norm)


@pytest.mark.parametrize("norm_first", [True, False])
def test_layer_gradients_are_those_of_torchs_layers(norm_first):
    """The same draws, through nn.TransformerEncoderLayer; pre-norm has a norm at its end, post-norm none."""
    size, heads = transformer_block.D_MODEL, transformer_block.NUM_HEADS
    torch.manual_seed(3)
    layers = nn.ModuleList(TransformerBlock(size, heads, norm_first=norm_first) for _ in range(2))
    to_logits = nn.Linear(size, len(transformer_block.VOCABULARY))
    transformer_block.use_xavier(layers)
    transformer_block.use_xavier(to_logits)
    x = torch.randn(8, 12, size)
    wanted = torch.randint(len(transformer_block.VOCABULARY), (8, 12))
    layers = [torch_layer(layer) for layer in layers]
    for layer in layers:
        x = layer(x)
    x = nn.LayerNorm(size)(x) if norm_first else x
    F.cross_entropy(to_logits(x).transpose(1, 2), wanted).backward()
    expected = [layer.linear2.weight.grad.norm().item() for layer in layers]
    found = transformer_block.layer_gradients(2, norm_first=norm_first, seed=3)
    assert found == pytest.approx(expected, rel=1e-4)


def test_distance_to_rank_one_worked_by_hand():
    distance = rank_collapse.distance_to_rank_one
    by_hand = {
        1 / math.sqrt(2): [[1.0, 0.0], [0.0, 1.0]],  # mean (½, ½): 1 of the squares is left of 2
        1.0: [[3.0, -4.0], [-3.0, 4.0]],  # mean 0: nothing is alike
        math.sqrt(2 / 10): [[1.0, 2.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]],  # mean (1, 1): 2 left of 10
    }
    for expected, x in by_hand.items():
        assert distance(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-14)
    same_rows = words(1, 7).expand(5, 7)
    assert distance(same_rows) < 1e-15 and distance(torch.zeros(5, 7)) == 0
    outer = words(5, 1) @ words(1, 7)  # rank one, but the rows are multiples: not all words alike
    assert distance(outer) > 0.3


def test_distance_to_rank_one_is_the_nearest_and_blind_to_order_size_and_rotation():
    x = words(3, 5, 7) + 0.5
    distance = rank_collapse.distance_to_rank_one(x)
    rotation, _ = torch.linalg.qr(words(7, 7))
    for other in (x.flip(dims=[1]), -13 * x, x @ rotation):
        close(rank_collapse.distance_to_rank_one(other), distance)
    assert (rank_collapse.distance_to_rank_one(x + 3) < distance).all(), "a shift makes words more alike"
    mean = x.mean(dim=1, keepdim=True)
    for _ in range(20):  # no other row is nearer than the mean
        row = mean + 0.1 * torch.randn_like(mean)
        assert (torch.linalg.matrix_norm(x - row) / torch.linalg.matrix_norm(x) > distance).all()
    singular = torch.linalg.svdvals(x - mean)  # an independent way to the norm
    close(distance, (singular**2).sum(dim=-1).sqrt() / (x**2).sum(dim=(1, 2)).sqrt())


def test_layers_are_made_of_the_parts_that_they_name():
    block, x = new_block(), words(2, 5, 21)
    attend, feed, norms = block.attention, block.feed_forward, (block.attention_norm, block.feed_forward_norm)
    expected = {
        rank_collapse.ALONE: attend(x)[0],
        rank_collapse.FEED_FORWARD: feed(attend(x)[0]),
        rank_collapse.NO_RESIDUAL: feed(norms[1](attend(norms[0](x))[0])),
        rank_collapse.RESIDUAL: x + attend(x)[0],
        rank_collapse.NO_NORMS: x + attend(x)[0] + feed(x + attend(x)[0]),
        rank_collapse.WHOLE: block(x)[0],
    }
    assert expected.keys() == rank_collapse.LAYERS.keys()
    for name, output in expected.items():
        close(rank_collapse.LAYERS[name](block, x), output)


@pytest.mark.parametrize("xavier", [False, True])
def test_without_residual_the_words_become_alike_sooner(xavier):
    x, blocks = rank_collapse.new_stack(xavier, seed=1000)
    runs = {name: rank_collapse.distances(x, blocks[:6], layer) for name, layer in rank_collapse.LAYERS.items()}
    start = rank_collapse.distance_to_rank_one(x).item()
    assert all(run[0] == pytest.approx(start) for run in runs.values())
    without = (rank_collapse.ALONE, rank_collapse.FEED_FORWARD, rank_collapse.NO_RESIDUAL)
    for name, run in runs.items():
        if name in without:
            assert run[-1] == rank_collapse.FLOOR and len(run) <= 7 and min(run[:-1]) > rank_collapse.FLOOR
        else:
            assert len(run) == 7 and run[-1] > 0.3


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_attention_in_two_parts_is_attention(scale):
    attention = new_block().attention
    x = words(1, 5, 21)
    mean = x.mean(dim=1, keepdim=True)
    apart = scale * (x - mean)
    new_mean, new_apart = rank_collapse.attend_apart(attention, mean, apart)
    output, _ = attention(mean + apart)
    close(new_mean + new_apart, output)
    close(new_mean, output.mean(dim=1, keepdim=True))
    close(new_apart, output - output.mean(dim=1, keepdim=True), rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("e", [1e-3, 1e-20, 1e-80])
def test_two_words_of_one_number_are_cubed(e):
    """Words m ± e, weights a number each: the outputs are w_o w_v (m ± e tanh(w_q w_k (m ± e) e)), so ± e³ is left."""
    attention = MultiHeadAttention(1, 1, bias=False).double()
    for linear, weight in zip((attention.w_q, attention.w_k, attention.w_v, attention.w_o), (2, 3, 5, 7), strict=True):
        nn.init.constant_(linear.weight, weight)
    mean, apart = torch.full((1, 1, 1), 0.25).double(), torch.tensor([e, -e]).double()[None, :, None]
    _, left = rank_collapse.attend_apart(attention, mean, apart)
    close(left, 5 * 7 * 2 * 3 * apart**3, rtol=2e-5, atol=0)


def test_exact_distances_agree_above_rounding_and_go_on_below():
    x, blocks = rank_collapse.new_stack(True, seed=1000)
    plain = rank_collapse.distances(x, blocks, rank_collapse.LAYERS[rank_collapse.ALONE])
    exact = rank_collapse.exact_distances(x, blocks)
    assert exact[:3] == pytest.approx(plain[:3], rel=1e-9) and exact[3] == pytest.approx(plain[3], rel=1e-6)
    assert exact[-1] < 1e-150 and all(after < before for before, after in itertools.pairwise(exact))


def test_acceleration_tells_doubly_exponential_from_exponential():
    assert rank_collapse.acceleration([1e-1, 1e-2, 1e-3, 1e-4]) == pytest.approx([1, 1])
    assert rank_collapse.acceleration([1e-1, 1e-3, 1e-9, 1e-27]) == pytest.approx([3, 3])
