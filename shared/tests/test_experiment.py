"""The runner of experiments: what it prints, draws, keeps and refuses, on made experiments."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from shared import paths
from shared.evidence import replications
from shared.evidence.claims import Claim
from shared.evidence.replications import Block
from shared.experiment import Experiment, Run, table

CLAIM = Claim(id="wet", text="water is wet", rule="above 0.5", holds=lambda n: n["water, wet"] > 0.5, headline=True)


def measure(run: Run) -> dict:
    run.shown["word"] = f"word {run.seed}"
    return {"water, wet": 0.6 + run.seed / 10, "water, dry": 0.25, "steps": run.steps(100), "all": [1.0, 2.0]}


def picture(results):
    fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    ax.plot(results.each("water, wet"))
    return fig


def film(results):
    return [np.zeros((20, 30, 3), np.uint8), np.full((20, 30, 3), 255, np.uint8)], 0.5


@pytest.fixture
def main(monkeypatch, tmp_path):
    """An experiment of this file, as if the file lay in phase 1; nothing about it is in the record."""
    monkeypatch.setattr(replications, "read", lambda: ())
    made = Experiment(
        measure,
        [CLAIM],
        picture,
        title="{n[water, wet]:.1f} of all is wet, and this title is far too long for the width of a small picture",
        note="{shown[word]}",
        answer="wet: {n[water, wet]:.2f}, {shown[word]}",
        film=film,
        options=lambda parser: parser.add_argument("--wish", default="none"),
    )
    made.file, made.doc = paths.ROOT / "phase1_single_head" / "wetness.py", "Is water wet?\n\nIt is made up."
    return made


def test_what_an_experiment_prints_draws_and_keeps(main, tmp_path, capsys):
    assert main(["--output-dir", str(tmp_path), "--wish", "rain"]) == "wet: 0.60, word 0"
    printed = capsys.readouterr().out
    assert '+ holds: "water is wet"' in printed and "1, 2" not in printed, "lists with --numbers alone"
    with Image.open(tmp_path / paths.PLOTS / "phase1" / "wetness.png") as image:
        assert image.info["Description"].startswith("0.6 of all is wet") and "Is water wet? word 0" in str(image.info)
    with Image.open(tmp_path / paths.ANIMATIONS / "phase1" / "wetness.gif") as image:
        assert image.n_frames == 2
    (kept,) = (tmp_path / paths.PROCESSED / "findings").iterdir()
    content = json.loads(kept.read_text(encoding="utf-8"))
    assert content["numbers"]["water, wet"] == [0.6] and content["answer"] == "wet: 0.60, word 0"
    assert content["findings"][0]["here"] == "holds" and "all" in content["table"]


def test_several_seeds_are_told_by_their_mean(main, tmp_path, capsys):
    assert main(["--output-dir", str(tmp_path), "--seeds", "3", "--no-pictures"]) == "wet: 0.70, word 0"
    assert not (tmp_path / paths.PLOTS).exists() and "0.7" in capsys.readouterr().out


def test_a_title_is_said_only_where_the_run_agrees_with_the_record(main, tmp_path, monkeypatch):
    block = Block("a", {}, [0, 1, 2], {"wet": {"water, wet": [0.1, 0.2, 0.3]}})
    monkeypatch.setattr(replications, "read", lambda: (block,))
    main(["--output-dir", str(tmp_path)])
    with Image.open(tmp_path / paths.PLOTS / "phase1" / "wetness.png") as image:
        assert image.info["Description"].startswith("Is water wet? word 0")


def test_bad_input_is_one_line_and_exit_code_2(main, tmp_path, capsys):
    main.measure = lambda run: run.refuse("--wish: nobody grants that")
    with pytest.raises(SystemExit) as stop:
        main(["--output-dir", str(tmp_path)])
    assert stop.value.code == 2 and capsys.readouterr().err.endswith("--wish: nobody grants that\n")


def test_quick_trains_fewer_steps(main, tmp_path):
    main(["--output-dir", str(tmp_path), "--quick", "--no-pictures"])
    (kept,) = (tmp_path / paths.PROCESSED / "findings").iterdir()
    assert json.loads(kept.read_text(encoding="utf-8"))["numbers"]["steps"] == [30]


def test_the_table_has_rows_columns_and_ranges():
    numbers = {"one head, loss": 0.5, "one head, share": 0.25, "guess": 3, "every": [1, 2]}
    text = table(numbers, {"one head, loss": "0.4 to 0.6"}, everything=False)
    assert text.split() == [
        "loss",
        "share",
        "one",
        "head",
        "0.5",
        "0.25",
        "published",
        "0.4",
        "to",
        "0.6",
        "guess",
        "3",
    ]
    assert "every" in table(numbers, {}, everything=True)
    long = table({f"row {i}, a": i for i in range(40)}, {"row 0, a": "1 to 2"}, everything=False)
    assert "24 more lines with --numbers" in long and "published" not in long
    assert len(table({f"row {i}, a": i for i in range(40)}, {}, everything=True).splitlines()) == 41
