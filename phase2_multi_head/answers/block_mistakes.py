"""SPOILERS: the usual mistakes in exercise 6 of phase 2, the whole layer, each one a function that makes it.

A layer has two steps that look alike, so most mistakes can be made in the first, in the second and in both. Each entry
of BLOCK is in_block, the right layer, with one part exchanged.
"""

import torch
import torch.nn.functional as F


def norm(x):
    return F.layer_norm(x, x.shape[-1:])


def pre_norm(x, start, norm, sub_layer, drop):
    """What is right: x, the stream, plus what the sub-layer makes of a normalised copy. start: x of the whole block."""
    return x + drop(sub_layer(norm(x)))


def from_copy(x, start, norm, sub_layer, drop):
    return norm(x) + drop(sub_layer(norm(x)))


STEPS = (
    ("norm after the addition (post-norm)", lambda x, start, norm, sub_layer, drop: norm(x + drop(sub_layer(x)))),
    ("norm after the sub-layer", lambda x, start, norm, sub_layer, drop: x + drop(norm(sub_layer(x)))),
    ("norm missing", lambda x, start, norm, sub_layer, drop: x + drop(sub_layer(x))),
    ("residual forgotten", lambda x, start, norm, sub_layer, drop: drop(sub_layer(norm(x)))),
    ("residual from the normalised copy", from_copy),
    ("dropout after the addition", lambda x, start, norm, sub_layer, drop: drop(x + sub_layer(norm(x)))),
)


def dropped(x, keep, p):
    return x if keep is None else torch.where(keep, x / (1 - p), 0.0)


def past(length, causal):
    return torch.ones(length, length).tril().bool() if causal else None


def in_block(
    first=pre_norm,
    second=pre_norm,
    norm=norm,
    feed=lambda x, w_1, w_2: torch.relu(x @ w_1) @ w_2,
    see=past,
    drop=dropped,
    which=(0, 1),
):
    """The layer with one of its parts exchanged. which: the keep masks of attention and feed-forward."""

    def wrong(x, attention, w_1, w_2, causal=False, keep=None, p=0.0):
        weights = None

        def attend(y):
            nonlocal weights
            output, weights = attention(y, see(len(x), causal))
            return output

        drop_1, drop_2 = (lambda y, i=i: drop(y, None if keep is None else keep[i], p) for i in which)
        y = first(x, x, norm, attend, drop_1)
        return second(y, x, norm, lambda y: feed(y, w_1, w_2), drop_2), weights

    return wrong


def in_see(change):
    return in_block(see=lambda length, causal: change(torch.ones(length, length)).bool() if causal else None)


BLOCK = (
    *((name, in_block(step, step)) for name, step in STEPS),
    *((name, in_block(first=step)) for name, step in STEPS),
    *((name, in_block(second=step)) for name, step in STEPS),
    ("second addition to the input", in_block(second=lambda x, start, norm, feed, drop: start + drop(feed(norm(x))))),
    ("feed-forward beside attention", in_block(second=lambda x, start, norm, feed, drop: x + drop(feed(norm(start))))),
    (
        "variance divided by d_model - 1",
        in_block(norm=lambda x: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()),
    ),
    ("normalised along the wrong axis", in_block(norm=lambda x: norm(x.T).T)),
    ("normalised along the wrong axis", in_block(norm=lambda x: F.layer_norm(x, x.shape))),
    ("mean not subtracted", in_block(norm=lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5))),
    ("ReLU missing", in_block(feed=lambda x, w_1, w_2: x @ w_1 @ w_2)),
    ("ReLU after the second matrix", in_block(feed=lambda x, w_1, w_2: torch.relu(x @ w_1 @ w_2))),
    ("GELU instead of ReLU", in_block(feed=lambda x, w_1, w_2: F.gelu(x @ w_1) @ w_2)),
    ("causal mask the wrong way around", in_see(torch.triu)),
    ("causal mask hides the position itself", in_see(lambda ones: ones.tril(-1))),
    ("mask inverted", in_see(lambda ones: ones.triu(1))),
    ("causal ignored", in_block(see=lambda length, causal: None)),
    ("always causal", in_block(see=lambda length, causal: past(length, True))),
    ("dropout not rescaled by 1 / (1 - p)", in_block(drop=lambda x, keep, p: x if keep is None else x * keep)),
    ("divided by p", in_block(drop=lambda x, keep, p: x if keep is None else x * keep / p)),
    ("multiplied by 1 - p", in_block(drop=lambda x, keep, p: x if keep is None else x * keep * (1 - p))),
    ("dropped what was to be kept", in_block(drop=lambda x, keep, p: dropped(x, keep if keep is None else ~keep, p))),
    ("dropout ignored", in_block(drop=lambda x, keep, p: x)),
    ("rescaled in evaluation", in_block(drop=lambda x, keep, p: x * (1 if keep is None else keep) / (1 - p))),
    *(("keep masks mixed up", in_block(which=which)) for which in ((1, 0), (0, 0), (1, 1))),
)

HINTS = {
    "norm after the addition (post-norm)": "Vaswani et al. 2017 did so; pre-norm normalises only the copy that goes "
    "into attention or feed-forward, and the stream x goes on as it is",
    "norm after the sub-layer": "the norm belongs before attention and before feed-forward, not on what they add",
    "norm missing": "attention reads norm(x), feed-forward norm(y)",
    "residual forgotten": "add the result to what was there; otherwise the layer must learn to copy",
    "residual from the normalised copy": "add to x itself; keep the normalised copy under a name of its own",
    "dropout after the addition": "drop numbers of what is added, never of the stream x itself",
    "second addition to the input": "feed-forward adds to y, which holds what attention found, not to x once more",
    "feed-forward beside attention": "feed-forward reads norm(y), after attention; yours still reads the norm of x",
    "variance divided by d_model - 1": "that estimates a variance from a sample; here divide by d_model, "
    "torch.var(..., correction=0)",
    "normalised along the wrong axis": "each position by itself, over its d_model numbers; otherwise positions leak "
    "into each other past the mask",
    "mean not subtracted": "that is RMSNorm; here subtract the mean first",
    "ReLU missing": "without it two matrices in a row are one matrix",
    "ReLU after the second matrix": "it belongs between the two matrices; after them, a layer could only add, never "
    "take away",
    "GELU instead of ReLU": "many models have it; here it is max(0, ...)",
    "causal mask the wrong way around": "True = may attend: position i sees j <= i, the lower triangle",
    "causal mask hides the position itself": "position i sees itself as well: j <= i, not j < i",
    "mask inverted": "True = may attend; yours hides the past, as the masks of nn.MultiheadAttention would",
    "causal ignored": "with causal=True, attention needs a mask of shape (T, T)",
    "always causal": "without causal=True the mask is None",
    "dropout not rescaled by 1 / (1 - p)": "a share p is missing; divide the rest by 1 - p, so that the mean stays",
    "divided by p": "p is the share that was dropped, 1 - p the share that is kept: divide by that",
    "multiplied by 1 - p": "divide by it: what is kept must make up for what is missing",
    "dropped what was to be kept": "where keep is True the number stays, where it is False it becomes 0",
    "dropout ignored": "keep says which numbers of the two results become 0",
    "rescaled in evaluation": "without a keep nothing is missing, so nothing is divided by 1 - p, whatever p is",
    "keep masks mixed up": "keep[0] is for what attention found, keep[1] for the result of feed-forward",
}
