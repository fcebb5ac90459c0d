"""Every script as a reader runs it: briefly trained, with bad input, from elsewhere, twice."""

import functools
import importlib
import inspect
import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from phase1_single_head import visualize as visualize1
from phase1_single_head.parts import queries_and_keys
from phase2_multi_head import visualize as visualize2
from phase3_visualization import attention_3d, attention_flow
from phase4_causal import summary
from phase4_causal import visualize as visualize4
from shared import paths, toy_language
from shared.claims import all_claims
from shared.lab import findings
from shared.lab import report as write_pages
from shared.lab.plan import PLANS
from shared.lab.report import promised
from shared.tests.helpers import smallest, watched_texts
from shared.toy_language import TOY_SENTENCE

LONG = "today some strange kites beside the dark big barn lay on a red soft box"  # 15 words
# With 15 words their text is small in a README.
WIDE = (visualize2, attention_flow, attention_3d, visualize4)

# Two runs of half of the scripts each, so that two processes can share them.
HALVES = {"run-1": ("phase1", "phase2"), "run-2": ("phase3", "phase4")}


def scripts_of(half):
    """The modules that ./run_all.sh runs."""
    names = []
    for phase in HALVES[half]:
        names += PLANS[phase].scripts + PLANS[phase].alone
    return [importlib.import_module(name) for name in names]


def options_of(script, folder):
    """Little training; and a long sentence, where a script shows it and has room for it."""
    options = ["--quick", "--output-dir", str(folder)]
    if "options.words" in inspect.getsource(script) and script not in (summary, *WIDE):
        options += ["--sentence", LONG]
    return options


def in_half(half, *more):
    """Parameters of a test that uses a run: the half, and more, in the process of that half."""
    name = "-".join([half, *(script.__name__ for script in more)])
    return pytest.param(half, *more, marks=pytest.mark.xdist_group(half), id=name)


def of_both_halves(test):
    halves = [in_half(half) for half in HALVES]
    return pytest.mark.parametrize("quick_run", halves, indirect=True)(test)


@pytest.fixture(scope="module")
def quick_runs(checkpoints, tmp_path_factory):
    """Runs a half once, as a reader would: its folder; script -> files; script -> texts."""

    @functools.cache
    def run(half):
        folder = tmp_path_factory.mktemp("run")
        written, texts = {}, {}
        for script in scripts_of(half):
            before = len(paths.written)
            with watched_texts() as seen:
                script.main(options_of(script, folder))
            written[script], texts[script] = paths.written[before:], list(seen.values())
        write_pages.main(["--output-dir", str(folder)])
        return folder, written, texts

    return run


@pytest.fixture
def quick_run(request, quick_runs):
    return quick_runs(request.param)


@of_both_halves
def test_every_script_writes_the_pictures_that_it_announces(quick_run):
    _, written, _ = quick_run
    for script, files in written.items():
        pictures = {path.name for path in files if path.suffix in (".png", ".gif", ".html")}
        assert pictures == promised(script.__name__), script.__name__


@of_both_halves
def test_pictures_are_whole_light_and_described(quick_run):
    folder, written, _ = quick_run
    for path in itertools.chain(*written.values()):
        size = path.stat().st_size
        if path.suffix == ".gif":
            with Image.open(path) as image:
                assert image.n_frames >= 3 and image.info["comment"], path.name
                most = 20_000 if path.name == "3d_attention.gif" else 40_000  # bytes of a frame
                assert size <= most * image.n_frames, path.name
        elif path.suffix == ".png":
            assert size <= (600_000 if "summary" in path.name else 200_000), path.name
            with Image.open(path) as image:
                grey = np.asarray(image.convert("L"))
                assert len(image.info["Description"]) > 20, path.name
            assert grey.min() < 80 and grey.max() == 255, path.name
            for edge in (grey[0], grey[-1], grey[:, 0], grey[:, -1]):
                assert edge.min() > 200, f"{path.name}: something is cut off at the edge"
    page = (folder / paths.PAGE).read_text(encoding="utf-8")
    assert all(path.name in page for path in (folder / paths.PLOTS).rglob("*.png"))


READABLE = 11  # pixels, at the width that a README gives a picture
PRINTED = 14  # points


@of_both_halves
def test_all_text_of_pictures_is_large_enough_to_read(quick_run):
    for script, figures in quick_run[2].items():
        if script is summary:  # a poster, read on paper
            assert all(text.get_fontsize() >= PRINTED for texts in figures for text in texts)
            continue
        for texts in figures:
            pixels, text = smallest(texts)
            where = f"{script.__name__}: {text!r} is {pixels} pixels high in a README"
            assert pixels >= READABLE, where


@of_both_halves
def test_no_picture_shows_the_source_of_a_formula(quick_run):
    """A logarithmic axis has ticks "$\\mathdefault{10^{6}}$" unless they are named."""
    for script, figures in quick_run[2].items():
        for texts in figures:
            sources = [text for text, _, _ in texts.values() if "$" in text]
            assert sources == [], script.__name__


@of_both_halves
def test_every_script_records_its_claims(quick_run):
    folder, written, _ = quick_run
    recorded = []
    for content in findings.gather(folder):
        recorded += [finding["id"] for finding in content["findings"]]
    ran = {script.__name__ for script in written}
    assert sorted(recorded) == sorted(c.id for c in all_claims() if c.experiment in ran)


@pytest.mark.parametrize("quick_run", [in_half("run-1")], indirect=True)
def test_weights_of_all_sentences_are_saved(quick_run):
    saved = torch.load(quick_run[0] / paths.PROCESSED / "attention_weights.pt", weights_only=True)
    assert saved[TOY_SENTENCE].shape == (6, 6)
    saved = torch.load(quick_run[0] / paths.PROCESSED / "multi_head_patterns.pt", weights_only=True)
    assert saved[TOY_SENTENCE].shape == (2, 4, 6, 6)
    assert len(saved) == len(toy_language.read_sentences(str(paths.TOY_SEQUENCES)))


TWICE = [
    in_half("run-1", queries_and_keys),
    in_half("run-1", visualize1),
    in_half("run-2", visualize4),
]


@pytest.mark.parametrize(("quick_run", "script"), TWICE, indirect=["quick_run"])
def test_the_same_seed_gives_the_same_bytes(quick_run, script, tmp_path, monkeypatch):
    """Trained anew elsewhere, pictures and findings are the same, byte for byte."""
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr("shared.training.checkpoints._trained_here", {})
    script.main(options_of(script, tmp_path))
    compared = [*tmp_path.rglob("*.png"), *tmp_path.rglob("*.json")]
    assert compared
    for path in compared:
        first = quick_run[0] / path.relative_to(tmp_path)
        assert path.read_bytes() == first.read_bytes(), path.name


@pytest.mark.parametrize(
    ("quick_run", "script"),
    [in_half("run-1" if script is visualize2 else "run-2", script) for script in WIDE],
    indirect=["quick_run"],
)
def test_long_sentences_work_in_every_script(quick_run, script, tmp_path):
    script.main(["--quick", "--sentence", LONG, "--output-dir", str(tmp_path)])
    assert {path.name for path in tmp_path.rglob("*.[pg][ni][gf]")} == promised(script.__name__)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sentence", "the cta sat"], '"cta" is not among .* nearest known words: .*cat'),
        (["--sentence", ""], "the sentence is empty"),
        (["--sentence", "cat " * 40], "40 words: the limit is 32"),
        (["--sentences", "no-such-file.txt"], "cannot use no-such-file.txt: No such file"),
        (["--sentences", str(paths.ROOT)], f"cannot use {paths.ROOT}: Is a directory"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--device", "cuda"], "--device cuda is not available here"),
        (["--seed", "-1"], "--seed must lie between 0 and 2147483648: got -1"),
        (["--seeds", "1000000"], "--seeds must lie between 1 and 100: got 1000000"),
        (["--d-model", "4000000"], "--d-model must lie between 1 and 1024: got 4000000"),
        (["--heads", "5"], "--d-model 64 is not divisible by --heads 5"),
        (["--output-dir", f"{__file__}/x"], "cannot use .*test_scripts.py.x: "),
    ],
)
@pytest.mark.parametrize(
    "script", [visualize1, queries_and_keys], ids=["a function", "an experiment"]
)
def test_bad_input_is_one_clear_line_and_exit_code_2(script, arguments, message, capsys):
    if arguments[-1] == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(SystemExit) as stop:
        script.main(arguments)
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert re.search(message, said) and said.count("\n") == 1, said


def test_a_script_starts_from_anywhere(tmp_path):
    """A real process, another folder, a name that pandas looks for."""
    script = paths.ROOT / "phase1_single_head" / "before" / "bottleneck.py"
    command = [sys.executable, script, "--sentence", "the cta"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.returncode == 2 and "nearest known words" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())
