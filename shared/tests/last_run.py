"""What did the last run leave behind?

    ./run_all.sh; .venv/bin/python -m pytest shared/tests/last_run.py

Its name keeps it out of the tests of everything: a reader may have run a part, or with options of
their own. The gate runs all, and then asks this.
"""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from phase1_single_head import visualize as visualize1
from phase2_multi_head.heads import output_projection
from phase2_multi_head.models import MULTI_HEAD_RECIPE, WITH_MASK_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.explorer import examples
from phase3_visualization.explorer.models import as_packed
from phase3_visualization.layers.readers import (
    HiddenWord,
    leave_one_out,
    perfect_reader,
    where_largest,
)
from phase4_causal import visualize as visualize4
from shared import paths
from shared.claims import all_claims
from shared.lab import findings, record
from shared.lab.plan import PLANS, can_run
from shared.lab.report import promised
from shared.tests.helpers import in_torch
from shared.toy_language import MASK_ID, SPECIAL, START_ID, VERBS, encode
from shared.training.checkpoints import trained_model

FOLDERS = (paths.PLOTS, paths.ANIMATIONS)


def check_picture(path):
    """A picture is light, says what it shows, and nothing of it is cut off."""
    size = path.stat().st_size
    with Image.open(path) as image:
        if path.suffix == ".gif":
            assert image.n_frames >= 3 and image.info["comment"], path.name
            most = 20_000 if path.name == "3d_attention.gif" else 40_000  # bytes of a frame
            assert size <= most * image.n_frames, path.name
            return
        assert size <= (600_000 if "summary" in path.name else 200_000), path.name
        assert len(image.info["Description"]) > 20, path.name
        letters = float(image.info["Letters"].split()[0])
        assert letters >= 9 or "summary" in path.name, f"{path.name}: {letters} pixels on a phone"
        grey = np.asarray(image.convert("L"))
        assert grey.min() < 80 and grey.max() == 255, path.name
        for edge in (grey[0], grey[-1], grey[:, 0], grey[:, -1]):
            assert edge.min() > 200, f"{path.name}: something is cut off at the edge"


def pictures_in(folder):
    """Of a run that wrote to this folder."""
    pictures = []
    for kind in FOLDERS:
        pictures += [*(folder / kind).rglob("*.png"), *(folder / kind).rglob("*.gif")]
    return pictures


def scripts_that_run():
    """The modules that ./run_all.sh runs here."""
    names = []
    for plan in PLANS.values():
        names += plan.scripts + plan.alone
    return [name for name in names if can_run(name)]


@pytest.fixture(scope="module", autouse=True)
def after_a_run():
    if not (paths.ROOT / paths.PAGE).is_file():
        pytest.skip("nothing was run here: ./run_all.sh does it")


def test_every_script_wrote_the_pictures_that_it_announces():
    announced = set().union(*map(promised, scripts_that_run()))
    written = {path.name for path in pictures_in(paths.ROOT)}
    assert {name for name in announced if not name.endswith(".html")} == written


def test_pictures_are_whole_light_and_described_and_on_the_page():
    page = (paths.ROOT / paths.PAGE).read_text(encoding="utf-8")
    for path in pictures_in(paths.ROOT):
        check_picture(path)
        assert path.name in page


def test_every_experiment_left_the_numbers_of_its_claims():
    measured = {saved.experiment: saved.runs for saved in findings.gather(paths.ROOT)}
    ran = scripts_that_run()
    for claim in all_claims():
        if claim.experiment in ran:
            assert claim.holds(measured[claim.experiment][0]) in (True, False), claim.id


def test_every_number_that_does_not_depend_on_the_machine_is_on_record():
    """replicate.py --check compares them."""
    for saved in findings.gather(paths.ROOT):
        numbers = record.for_everybody(saved.experiment, saved.runs[0])
        assert set(numbers) == set(record.first_run(saved.experiment)), saved.experiment


def test_the_notebook_of_lesson_1_runs(monkeypatch):
    """Beside the course, so that it clones and installs nothing."""
    notebook = paths.ROOT / ".github" / "lesson_1.ipynb"
    monkeypatch.chdir(notebook.parent)
    names = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)


# ---- the sentences of the live page, which were chosen for the model with seed 0


@pytest.fixture(scope="module")
def shown():
    """That model, rounded as it is in the page."""
    return as_packed(trained_model(MULTI_HEAD_RECIPE, MultiHeadAttention), "float16")


def guessed(trained, sentence, hidden, *removed):
    """Where the hidden word looks, (L, H, T), ln p of each token, and the one that is hidden."""
    tokens = encode(sentence.split())
    truth, tokens[hidden] = tokens[hidden], MASK_ID
    forward = in_torch(trained, tokens, {"removed": [f"{layer}.{head}" for layer, head in removed]})
    return forward.weights[:, :, hidden], forward.logits[hidden].log_softmax(dim=-1), truth


@pytest.mark.parametrize("chosen", [*examples.OPENINGS, examples.KNOCKED_OUT])
def test_a_head_looks_at_the_verb_and_the_hidden_word_needs_it(shown, chosen):
    sentence, _ = chosen
    layer, head = examples.costliest_head(shown, *chosen)
    weights, whole, truth = guessed(shown, *chosen)
    _, blind, _ = guessed(shown, *chosen, (layer, head))
    assert whole[truth] - blind[truth] > 0.5
    if chosen in examples.OPENINGS:
        assert sentence.split()[weights[layer, head].argmax()] in VERBS


@pytest.mark.parametrize("chosen", examples.OPENINGS[:3])
def test_training_taught_the_first_hidden_words(shown, chosen):
    untrained = as_packed(shown.at_stage(0), "int8")
    better = []
    for trained in (untrained, shown):
        _, chances, truth = guessed(trained, *chosen)
        better.append(int((chances[len(SPECIAL) :] > chances[truth]).sum()))
    before, after = better
    assert before >= 5 and after == 0


@torch.no_grad()
def test_the_thickest_line_misses_what_the_model_and_a_perfect_reader_need(shown):
    sentence, hidden = examples.PRETTY_LINE
    case = HiddenWord(tuple(sentence.split()), hidden, related=frozenset())
    weights, _, _ = guessed(shown, sentence, hidden)
    lines = weights[-1].mean(dim=0)  # (H, T) -> (T,)
    thickest = max(case.others, key=lambda position: lines[position])
    costs = leave_one_out(shown.model, case)
    assert costs.max() - costs[thickest] > 1
    assert where_largest(costs, case) <= where_largest(perfect_reader(case), case)


@torch.no_grad()
def test_each_changed_word_moves_the_guess_at_its_own_place():
    masked = as_packed(trained_model(WITH_MASK_RECIPE, MultiHeadAttention), "float16")

    def guesses(words):
        return in_torch(masked, [START_ID, *encode(words)], {}).logits.softmax(dim=-1)

    words = examples.WORDS.split()
    for position, other in enumerate(examples.OTHERS.split()):
        changed = [*words[:position], other, *words[position + 1 :]]
        moves = (guesses(words) - guesses(changed)).abs().sum(dim=-1) / 2
        assert moves[position + 1] > 0.05


# ---- the same again


@pytest.mark.parametrize("script", [output_projection, visualize1, visualize4])
def test_the_same_seed_gives_the_same_bytes(script, tmp_path):
    script.main(["--output-dir", str(tmp_path)])
    written = [*tmp_path.rglob("*.png"), *tmp_path.rglob("*.json")]
    assert written
    for path in written:
        first = paths.ROOT / path.relative_to(tmp_path)
        assert path.read_bytes() == first.read_bytes(), path.name
