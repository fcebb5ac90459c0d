"""What comes from elsewhere and is wrong: sizes without a meaning, files that are damaged, links, what never ends.

Each gets one line, and nothing of a reader's is lost. Broken links: test_explorer_page.py; signals:
test_terminals_and_disks.py; variables of the environment: test_set_up.py.
"""

import math
import os
import re
import sys

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.long_texts import ring_attention
from phase4_causal.long_texts.delta_rule import delta_rule
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.serving.paged_cache import PagedCache
from phase4_causal.writing.sampling import Sampling
from shared import cli, paths, training
from shared.attention_utils import causal_mask, local_mask, padding_mask, streaming_mask, strided_mask
from shared.checkpoints import load_checkpoint, save_checkpoint
from shared.evidence import findings, record
from shared.tests.helpers import near, qkv

not_on_windows = pytest.mark.skipif(sys.platform == "win32", reason="no pipes there, and no links for everybody")
X = torch.ones(3, 2)

SIZED = [
    ("window", 0, lambda n: local_mask(3, 3, n)),
    ("window", 1, lambda n: streaming_mask(3, n)),
    ("window", 0, lambda n: local_attention(X, X, X, window=n)),
    ("sinks", 0, lambda n: streaming_mask(3, 1, n)),
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
    for size in (math.nan, math.inf, 1.5, least - 1, True, "1"):
        with pytest.raises(ValueError, match=rf"{name} must be a whole number, {least} or more: got {size}"):
            build(size)
    build(least)


@pytest.mark.parametrize(
    ("attend", "message"),
    [
        (lambda: padding_mask(torch.tensor([True]), 3), "integers of shape .*: got torch.bool"),
        (lambda: delta_rule(X, X, X, torch.ones(3).double()), "in torch.float32: got .* in torch.float64"),
        (lambda: delta_rule(X, X, X, torch.ones(3).long()), "in torch.float32: got .* in torch.int64"),
        (lambda: scaled_dot_product_attention(X, X, X, [[True] * 3] * 3), "dense tensor.*: got list"),
        (lambda: scaled_dot_product_attention(X, X, X, torch.ones(3, 3).bool().to_sparse()), "dense.*: got .*sparse"),
    ],
)
def test_what_means_nothing_is_refused(attend, message):
    with pytest.raises(ValueError, match=message):
        attend()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", [{"temperature": 1e-46}, {"temperature": 1e-320}, {"top_p": 1e-300}], ids=str)
def test_a_rule_that_rounds_to_0_takes_the_likeliest_word(rule, dtype):
    logits = torch.tensor([1.0, 3.0, -math.inf], dtype=dtype)
    assert Sampling(**rule).probabilities(logits).tolist() == [0, 1, 0]


def test_without_features_all_keys_are_alike_and_scores_far_below_0_lose_no_digits():
    inputs = [x.requires_grad_() for x in qkv(d_k=0)]
    output = flash_attention(*inputs)
    near(output, scaled_dot_product_attention(*inputs)[0])
    near(output, inputs[2].mean(dim=-2, keepdim=True).expand_as(output))
    assert torch.autograd.grad(output.sum(), inputs)[2].isfinite().all()
    value = torch.tensor([[1e-25], [2e-25], [4e-25]])
    for score in (-40.0, -59.0, -200.0):
        found = flash_attention(torch.ones(2, 4), torch.full((3, 4), score / 2), value)
        near(found, value.mean().expand(2, 1))


def test_a_hidden_value_that_is_no_number_does_what_it_does_in_torch():
    query, key, value = qkv(t_q=5, t_k=5)
    value[..., 4, :] = math.nan  # 0 · NaN is NaN
    assert F.scaled_dot_product_attention(query, key, value, is_causal=True).isnan().all()
    assert scaled_dot_product_attention(query, key, value, causal_mask(5))[0].isnan().all()
    for said in (
        scaled_dot_product_attention.__doc__,
        flash_attention.__doc__,
        (paths.ROOT / "README.md").read_text("utf-8"),
    ):
        assert "0 · NaN" in said


def test_a_ring_asks_torchrun_and_no_variable_of_its_name(monkeypatch):
    started = []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(torch.multiprocessing, "spawn", lambda *arguments: started.append(arguments))
    ring_attention.main()
    assert started


TINY = training.Recipe("hostile", "masked word", num_heads=2, num_layers=1, steps=0, d_model=16)


def test_a_checkpoint_that_was_changed_is_damaged(checkpoints):
    trained = training.untrained(TINY, MultiHeadAttention)
    save_checkpoint(trained)
    good, whole = torch.load(TINY.path, weights_only=True), bytearray(TINY.path.read_bytes())
    half = {name: numbers.half() for name, numbers in good["state_dict"].items()}
    parts = {"format": [torch.ones(2)], "recipe": [None, {"steps": torch.ones(2)}]}
    parts |= {"history": [None, {"loss": ["x"]}], "state_dict": [half, 3]}
    for content in [good | {part: value} for part, values in parts.items() for value in values]:
        torch.save(content, TINY.path)
        with pytest.raises(ValueError, match="is damaged"):
            load_checkpoint(TINY, MultiHeadAttention)
    whole[whole.index(trained.model.embedding.weight.detach().numpy().tobytes()) + 6] ^= 1
    TINY.path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"is damaged \(its checksum"):
        load_checkpoint(TINY, MultiHeadAttention)


@not_on_windows
def test_whoever_plants_a_file_changes_and_loses_nothing(tmp_path, monkeypatch):
    diary, path = tmp_path / "diary", tmp_path / "picture"
    diary.write_text("mine")
    planted = [tmp_path / f".{name}.picture" for name in (os.getpid(), "00000000")]
    for link in planted:
        link.symlink_to(diary)
    with paths.whole_file(path) as unfinished:
        unfinished.write_text("ours")
    monkeypatch.setattr(paths.secrets, "token_hex", lambda size: "0" * 2 * size)
    with pytest.raises(FileExistsError), paths.whole_file(path):
        pass
    assert [file.read_text() for file in (path, diary, *planted)] == ["ours", "mine", "mine", "mine"]


GOOD = f"{','.join(record.COLUMNS)}\nwater,wetness,100,AMD,2.13.0,c0de,0.5\n"


@pytest.mark.parametrize("text", ["", "[{", "a,b\n1,2\n", GOOD.replace("0.5", "wet"), GOOD.replace("0.5", ""), "\0"])
def test_a_damaged_record_is_one_line_that_names_it(text, tmp_path, capsys):
    path = findings.file_of("a.py", tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for read in (record.read, lambda _: findings.gather(tmp_path)):
        with pytest.raises(SystemExit, match="2"):
            cli.run(lambda read=read: read(path))
        said = capsys.readouterr().err
        assert said.startswith(f"{path}: is damaged: ") and said.count("\n") == 1


@not_on_windows
def test_sentences_come_from_a_file_that_ends(tmp_path, capsys):
    pipe, long, wide = (tmp_path / name for name in ("pipe", "long", "wide"))
    os.mkfifo(pipe)
    long.write_text("the cat sat\n" * 100_000)
    wide.write_text("x" * 900_000)
    for path in (pipe, "/dev/zero", long, wide, tmp_path):
        with pytest.raises(SystemExit, match="2"):
            cli.parse(cli.parser(None), ["--sentences", str(path)])
        said = capsys.readouterr().err
        assert str(path) in said and said.count("\n") == 1 and len(said) < 500


def test_the_workflow_may_do_no_more_than_it_needs():
    text = (paths.ROOT / ".github" / "workflows" / "check_and_publish.yml").read_text(encoding="utf-8")
    assert "\npermissions: {contents: read}\n" in text and "\nconcurrency:\n" in text
    assert "\n  push: {branches: " in text, "else the branch of a pull request runs twice"
    assert text.count("runs-on:") == text.count("timeout-minutes:")
    assert "run:" not in text.partition(": write")[2], "a job that may write runs what was installed"
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", action) for action in re.findall(r"uses: (.*)", text))
