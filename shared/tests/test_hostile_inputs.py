"""What comes from elsewhere and is wrong: sizes without a meaning, files that are damaged.

Each gets one line, and nothing of a reader's is lost. Options that mean nothing: test_scripts.py;
damaged checkpoints: test_training.py; a full disk and Ctrl-C: test_running.py.
"""

import math
import re

import pytest
import torch

from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.long_texts.delta_rule import delta_rule
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.serving.paged_cache import PagedCache
from phase4_causal.writing.sampling import Sampling
from shared import paths
from shared.attention_utils import (
    causal_mask,
    local_mask,
    padding_mask,
    strided_mask,
)
from shared.tests.helpers import near

X = torch.ones(3, 2)

SIZED = [
    ("window", 0, lambda n: local_mask(3, 3, n)),
    ("window", 0, lambda n: local_attention(X, X, X, window=n)),
    ("stride", 1, lambda n: strided_mask(3, 3, n)),
    ("block_size", 1, lambda n: flash_attention(X, X, X, block_size=n)),
    ("T_q", 1, causal_mask),
    ("T_k", 1, lambda n: causal_mask(3, n)),
    ("T_k", 0, lambda n: padding_mask(torch.tensor([0]), n)),
    ("max_length", 1, lambda n: KeyValueCache(1, 1, n, 1)),
    ("num_blocks", 1, lambda n: PagedCache(1, n, 1, 1, 1, X, share=True)),
    ("block_size", 1, lambda n: PagedCache(1, 1, 1, n, 1, X, share=True)),
]


@pytest.mark.parametrize(("name", "least", "build"), SIZED)
def test_sizes_are_whole_numbers(name, least, build):
    for size in (math.nan, math.inf, 1.5, least - 1):
        said = f"{name} must be a whole number, {least} or more: got {size}"
        with pytest.raises(ValueError, match=re.escape(said)):
            build(size)
    build(least)


@pytest.mark.parametrize(
    ("attend", "message"),
    [
        (lambda: padding_mask(torch.tensor([True]), 3), "integers of shape .*: got torch.bool"),
        (
            lambda: delta_rule(X, X, X, torch.ones(3).double()),
            "in torch.float32: got .* in torch.float64",
        ),
        (
            lambda: delta_rule(X, X, X, torch.ones(3).long()),
            "in torch.float32: got .* in torch.int64",
        ),
        (lambda: Sampling(math.nan), "temperature must be finite, and 0 .* or more: got nan"),
        (lambda: Sampling(math.inf), "temperature must be finite, and 0 .* or more: got inf"),
    ],
)
def test_what_means_nothing_is_refused(attend, message):
    with pytest.raises(ValueError, match=message):
        attend()


def test_scores_far_below_0_lose_no_digits():
    value = torch.tensor([[1e-25], [2e-25], [4e-25]])
    for score in (-40.0, -59.0, -200.0):
        found = flash_attention(torch.ones(2, 4), torch.full((3, 4), score / 2), value)
        near(found, value.mean().expand(2, 1))


def test_a_file_that_is_interrupted_stays_as_it_was(tmp_path):
    path = tmp_path / "picture"
    path.write_text("whole")
    with pytest.raises(KeyboardInterrupt), paths.whole_file(path) as unfinished:
        unfinished.write_text("ha")
        raise KeyboardInterrupt
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]


def test_the_workflow_may_do_no_more_than_it_needs():
    text = (paths.ROOT / ".github" / "workflows" / "check_and_publish.yml").read_text(
        encoding="utf-8"
    )
    assert "\npermissions: {contents: read}\n" in text and "\nconcurrency:\n" in text
    assert "\n  push: {branches: " in text, "else the branch of a pull request runs twice"
    assert text.count("runs-on:") == text.count("timeout-minutes:")
    assert "run:" not in text.partition(": write")[2], (
        "a job that may write runs what was installed"
    )
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert all(
        re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", action)
        for action in re.findall(r"uses: (.*)", text)
    )
