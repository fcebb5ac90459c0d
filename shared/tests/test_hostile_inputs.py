"""What comes from elsewhere and is wrong: sizes without a meaning, files that are damaged, links,
what never ends.

Each gets one line, and nothing of a reader's is lost. Broken links: test_explorer_pages.py; signals
and variables of the environment: test_running.py.
"""

import argparse
import json
import math
import os
import re
import signal
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.long_texts.delta_rule import delta_rule
from phase4_causal.long_texts.flash_attention import flash_attention
from phase4_causal.long_texts.local_attention import local_attention
from phase4_causal.serving.paged_cache import PagedCache
from phase4_causal.writing.sampling import Sampling
from shared import checkpoints as checkpoints_module
from shared import cli, paths, training
from shared.attention_utils import (
    causal_mask,
    local_mask,
    padding_mask,
    streaming_mask,
    strided_mask,
)
from shared.checkpoints import (
    checksum,
    load_checkpoint,
    load_or_train,
    save_checkpoint,
    trained_model,
)
from shared.evidence import findings, record
from shared.tests.helpers import near, qkv

not_on_windows = pytest.mark.skipif(
    sys.platform == "win32", reason="no pipes there, and no links for everybody"
)
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
    for size in (math.nan, math.inf, 1.5, least - 1, True, "1", (2, 3), [4], {5: 6}):
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
        (
            lambda: scaled_dot_product_attention(X, X, X, [[True] * 3] * 3),
            "dense tensor.*: got list",
        ),
        (
            lambda: scaled_dot_product_attention(X, X, X, torch.ones(3, 3).bool().to_sparse()),
            "dense.*: got .*sparse",
        ),
    ],
)
def test_what_means_nothing_is_refused(attend, message):
    with pytest.raises(ValueError, match=message):
        attend()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "rule", [{"temperature": 1e-46}, {"temperature": 1e-320}, {"top_p": 1e-300}], ids=str
)
def test_a_rule_that_rounds_to_0_takes_the_likeliest_word(rule, dtype):
    logits = torch.tensor([1.0, 3.0, -math.inf], dtype=dtype)
    assert Sampling(**rule).probabilities(logits).tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [70_000.0, 1e30])  # more is inf in 32 and 16 bits
def test_however_hot_a_word_that_has_no_chance_gets_none(temperature, dtype):
    logits = torch.tensor([1.0, -math.inf, 3.0, -math.inf, 2.0], dtype=dtype)
    third = torch.tensor([1, 0, 1, 0, 1], dtype=dtype) / 3
    for rule in (Sampling(temperature), Sampling(temperature, top_p=0.99)):
        near(
            rule.probabilities(logits), third, 1e-2
        )  # why: 16 bits, and 70,000 is still a temperature
    for too_hot in (1.1e30, 1e300, math.inf):
        with pytest.raises(
            ValueError, match=f"between 0 .* and 1e.30 .*: got {too_hot:g}".replace("+", ".")
        ):
            Sampling(too_hot)


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
    assert (
        "0 · NaN" in scaled_dot_product_attention.__doc__ and "0 · NaN" in flash_attention.__doc__
    )


TINY = training.Recipe("hostile", "masked word", num_heads=2, num_layers=1, steps=0, d_model=16)


def saved():
    """A model that was never trained, with one stage, in its file -> what the file holds."""
    trained = training.untrained(TINY, MultiHeadAttention)
    numbers = parameters_to_vector(trained.model.parameters()).detach()
    save_checkpoint(replace(trained, stages={0: numbers}))
    return torch.load(TINY.path, weights_only=True)


def refuses(content, message):
    torch.save(content, TINY.path)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(TINY, MultiHeadAttention)


def test_a_checkpoint_that_was_changed_is_damaged(checkpoints):
    good, whole = saved(), bytearray(TINY.path.read_bytes())
    weights = good["state_dict"]
    half = {name: numbers.half() for name, numbers in weights.items()}
    whole_numbers = {
        name: numbers.view(torch.int32) for name, numbers in weights.items()
    }  # of the same bytes
    in_a_row = {name: numbers.flatten() for name, numbers in weights.items()}
    swapped = {"w_q": "w_k", "w_k": "w_q"}
    renamed = {
        re.sub("w_[qk]", lambda match: swapped[match[0]], name): tensor
        for name, tensor in weights.items()
    }
    parts = {
        "format": [torch.ones(2)],
        "recipe": [None, {"steps": torch.ones(2)}],
        "stages": [{0: torch.ones(2)}],
    }
    parts |= {
        "history": [None, {"loss": ["x"]}],
        "state_dict": [half, whole_numbers, in_a_row, renamed, 3],
    }
    for part, values in parts.items():
        for value in values:
            refuses(good | {part: value}, r"is damaged \((its checksum is another|\w+Error)\)")
    whole[whole.index(weights["embedding.weight"].numpy().tobytes()) + 6] ^= 1
    TINY.path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"is damaged \(its checksum"):
        load_checkpoint(TINY, MultiHeadAttention)


def test_a_checkpoint_with_a_checksum_of_its_own_is_damaged_if_a_part_is_odd(checkpoints):
    good = saved()
    nowhere = {name: part for name, part in good.items() if name != "checksum"}
    for part in ("recipe", "vocabulary", "history", "stages"):
        others = {name: value for name, value in nowhere.items() if name != part}
        refuses(others | {"checksum": checksum(others)}, "is damaged")
    weights = good["state_dict"]
    one_nan = weights | {"output_bias": torch.full_like(weights["output_bias"], math.nan)}
    half = {name: numbers.half() for name, numbers in weights.items()}
    odd = {"history": [None, {}, {"loss": None}, {"loss": ["x"]}], "stages": [{"x": torch.ones(2)}]}
    odd |= {"state_dict": [one_nan, half]}
    for part, values in odd.items():
        for value in values:
            others = nowhere | {part: value}
            refuses(others | {"checksum": checksum(others)}, "is damaged")


@not_on_windows
def test_what_is_no_file_in_the_place_of_a_checkpoint_is_one_line_before_anything_is_trained(
    checkpoints, capsys
):
    for make, remove in ((os.mkfifo, os.unlink), (os.mkdir, os.rmdir)):
        TINY.path.unlink(missing_ok=True)
        make(TINY.path)
        with pytest.raises(SystemExit, match="2"):
            cli.run(lambda: load_or_train(TINY, MultiHeadAttention))
        assert capsys.readouterr() == ("", f"{TINY.path}: is not a file: move it away\n")
        remove(TINY.path)


def test_a_disk_that_fills_while_a_model_is_saved_is_one_line(checkpoints, capsys):
    """Here by a limit on the size of files, of which torch.save says nothing useful."""
    resource = pytest.importorskip("resource", reason="no limits on Windows")
    wide = replace(TINY, name="wide", d_model=64)
    before, limits = sorted(checkpoints.iterdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
    trained = training.untrained(wide, MultiHeadAttention)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(SystemExit, match="2"):
            cli.run(lambda: save_checkpoint(trained))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err == f"{wide.path}: File too large\n"
    assert sorted(checkpoints.iterdir()) == before


def test_options_size_a_model_and_one_that_has_one_head_or_layer_by_design_keeps_it(monkeypatch):
    options = argparse.Namespace(
        seed=3, d_model=24, heads=6, layers=5, device="cpu", retrain=True, quick=False
    )
    monkeypatch.setattr(
        checkpoints_module, "load_or_train", lambda recipe, *_, **more: (recipe, more)
    )
    recipe, more = trained_model(replace(TINY, num_layers=2), MultiHeadAttention, options)
    assert (recipe.seed, recipe.d_model, recipe.num_heads, recipe.num_layers) == (3, 24, 6, 5)
    assert more == {"device": "cpu", "retrain": True, "quick": False}
    alone, _ = trained_model(replace(TINY, num_heads=1), MultiHeadAttention, options, seed=7)
    assert (alone.seed, alone.num_heads, alone.num_layers) == (7, 1, 1)


def test_a_model_that_was_read_is_ready_to_be_asked_and_retrain_is_heard_with_quick(
    checkpoints, capsys
):
    saved()
    assert not load_checkpoint(TINY, MultiHeadAttention).model.training, (
        "else dropout would answer, too"
    )
    recipe = replace(TINY, name="again", steps=5)
    for retrain, said in (
        (False, "training again_quick"),
        (False, ""),
        (True, "training again_quick"),
    ):
        checkpoints_module._trained_here.clear()
        load_or_train(recipe, MultiHeadAttention, quick=True, retrain=retrain)
        assert capsys.readouterr().out.partition(":")[0] == said


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
    assert [file.read_text() for file in (path, diary, *planted)] == [
        "ours",
        "mine",
        "mine",
        "mine",
    ]


GOOD = f"{','.join(record.COLUMNS)}\nwater,wetness,100,AMD,2.13.0,c0de,0.5\n"


@pytest.mark.parametrize(
    "text", ["", "[{", "a,b\n1,2\n", GOOD.replace("0.5", "wet"), GOOD.replace("0.5", ""), "\0"]
)
def test_a_damaged_record_is_one_line_that_names_it(text, tmp_path, capsys):
    path = findings.file_of("a", tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for read in (record.read, lambda _: findings.gather(tmp_path)):
        with pytest.raises(SystemExit, match="2"):
            cli.run(lambda read=read: read(path))
        said = capsys.readouterr().err
        assert said.startswith(f"{path}: is damaged: ") and said.count("\n") == 1


def damaged_records():
    """What may become of the record: a name of the damage, and the text."""
    whole = paths.EVIDENCE.read_text(encoding="utf-8")
    header, *rows = whole.splitlines(keepends=True)
    tenth = next(
        n for n, row in enumerate(rows) if f",{min(record.SEEDS)}," in row and '"' not in row
    )
    row = rows[tenth]
    before_value = row[: row.rindex(",") + 1]
    yield "cut behind its header", header
    yield "cut behind its first row", header + rows[0]
    yield "cut in the middle of a number", header + "".join(rows[: tenth + 3])
    yield "cut in the middle of a row", header + "".join(rows[: tenth + 10]) + row[: len(row) // 2]
    yield "a row is lost", whole.replace(row, "")
    yield "a row comes twice", whole.replace(row, row + row)
    for odd in ("inf", "-inf", "nan", "wet", "", "1,2"):
        yield f"a value is {odd}", whole.replace(row, before_value + odd + "\n")
    for odd in ("100.5", "99", "-1", "", "first"):
        yield (
            f"a seed is {odd}",
            whole.replace(row, row.replace(f",{min(record.SEEDS)},", f",{odd},")),
        )
    for column in (row.split(",")[3], row.split(",")[5]):
        yield f"not {column} alone", whole.replace(row, row.replace(column, "other"))
    yield "a stray quote", whole.replace(row, '"' + row)
    yield "a stray quote in the middle of a row", whole.replace(row, row.replace(",", ',"', 1))
    yield "two rows are one", whole.replace(row, row.rstrip("\n"))


DAMAGED = dict(damaged_records())


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_record_that_lost_or_changed_something_is_not_read(damage, tmp_path):
    path = tmp_path / "evidence.csv"
    path.write_text(DAMAGED[damage], encoding="utf-8")
    with pytest.raises(OSError, match=r"is damaged: git checkout .* brings it back") as error:
        record.read(path)
    assert error.value.filename == str(path)


def test_a_record_is_read_whoever_has_edited_its_ends_of_lines(tmp_path):
    text = paths.EVIDENCE.read_text(encoding="utf-8")
    for name, encoding, end in (
        ("windows.csv", "utf-8", "\r\n"),
        ("marked.csv", "utf-8-sig", "\n"),
    ):
        (tmp_path / name).write_bytes(text.replace("\n", end).encode(encoding))
        assert record.read(tmp_path / name).equals(record.read())


FINDING = {"id": "C1", "claim": "water is wet", "verdict": "holds, 1 of 1 seeds", "kind": "holds"}


@pytest.mark.parametrize(
    "finding",
    [
        {},
        {"id": "C1"},
        {"kind": "holds"},
        FINDING | {"kind": "perhaps"},
        FINDING | {"kind": []},
        [],
        3,
    ],
)
def test_findings_of_which_a_part_is_missing_are_one_line(finding, tmp_path):
    content = dict.fromkeys(findings.PARTS, "") | {"experiment": "a", "findings": [FINDING]}
    findings.save(tmp_path, content)
    (content,) = findings.gather(tmp_path)
    content["findings"].append(finding)
    findings.file_of("a", tmp_path).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(OSError, match="is damaged: remove it"):
        findings.gather(tmp_path)


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


LONG = "/".join(["b" * 200] * 25)  # an address of five thousand letters


@not_on_windows
@pytest.mark.parametrize(
    ("argv", "beginning", "end"),
    [
        (["--sentences", "a" * 5000], "cannot use aaa", "aaa: File name too long\n"),
        (["--sentences", LONG], "cannot use bbb", "bbb: File name too long\n"),
        (["--output-dir", f"/{LONG}"], "cannot use /bbb", "bbb: File name too long\n"),
        (
            ["--output-dir", ""],
            "argument --output-dir: ",
            "must name a folder, such as . for this one\n",
        ),
        (["--seed", "1" * 4000], "--seed must lie between", "111\n"),
        (["--device", "x" * 4000], "argument --device: invalid choice", ")\n"),
        (
            ["--seed", str(2**32 - 3), "--seeds", "3"],
            "--seed must lie between 0 and 4294967292",
            "4294967293\n",
        ),
    ],
)
def test_an_option_that_means_nothing_is_one_line_that_fits_a_screen(argv, beginning, end, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.parse(cli.parser(None), argv)
    said = capsys.readouterr().err
    message = said.partition(": ")[2]
    assert (
        message.startswith(beginning)
        and said.endswith(end)
        and said.count("\n") == 1
        and len(said) < 500
    )


def test_the_last_seeds_that_there_are_can_be_asked_for(tmp_path):
    argv = ["--seed", str(2**32 - 4), "--seeds", "3", "--output-dir", str(tmp_path)]
    assert list(cli.seeds(cli.parse(cli.parser(None), argv))) == [2**32 - 4, 2**32 - 3, 2**32 - 2]


@not_on_windows
def test_a_file_with_a_name_of_five_thousand_letters_is_one_line_that_fits_a_screen(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.run(lambda: paths.check_writable(paths.Path(f"/{LONG}")))
    said = capsys.readouterr().err
    assert (
        said.startswith("/bbb") and said.endswith("bbb: File name too long\n") and len(said) < 500
    )


@not_on_windows
def test_what_is_to_outlive_its_terminal_goes_on_to_do_so():
    """nohup: a script that was started deaf to a hang-up stays deaf to it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        cli.run(lambda: None)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


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
