"""What the tests share: fixtures, and test_all.py as their table of contents.

pyproject.toml loads this file as a plugin of pytest. Its pytest_pycollect_makeitem turns the table
TESTS of test_all.py into the test files beside the rooms.
"""

import contextlib
import os
import pickle
import shutil
import signal

import pytest
import torch

pytest.register_assert_rewrite("shared.tests.helpers")


def pytest_configure():
    """Of the processes of the tests."""
    os.environ["MPLBACKEND"] = "Agg"  # no window, on whatever machine
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported, and needs no GPU
    torch.set_num_threads(1)  # for tensors this small a second thread only costs
    # What is run in the background may be deaf to Ctrl-C, and so may its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_pycollect_makeitem(collector, name, obj):
    """TESTS = {folder: rooms} of test_all.py -> the modules folder/tests/test_<room>.py."""
    if name != "TESTS" or collector.path.name != "test_all.py":
        return None
    modules = []
    for folder, rooms in obj.items():
        for room in rooms:
            path = collector.path.parent / folder / "tests" / f"test_{room}.py"
            modules.append(pytest.Module.from_parent(collector.session, path=path))
    return modules


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """The tests of pages run in two processes: each has a Chromium, and a page slow to make."""
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker("browser")
        if {"browser", "explorer_data"} & {*item.fixturenames}:
            live = item.path.stem == "test_explorer_pages"  # about half of the time
            item.add_marker(pytest.mark.xdist_group("live page" if live else "pages"))


@pytest.fixture(autouse=True)
def float32_unless_said():
    """Every test begins as a notebook does. cli.parse, called by a test, sets float64 for good."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def browser():
    """One headless Chromium for all tests of pages; without one they are skipped, and say so."""
    missing = 'no playwright: pip install -e ".[browser]"'
    api = pytest.importorskip("playwright.sync_api", reason=missing)
    installed = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    chromium = next(filter(None, installed), None)
    if chromium is None:
        pytest.skip("no Chromium: install one (Debian, Ubuntu: sudo apt-get install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def quick_training(folder):
    """Within the block checkpoints lie in this folder, and --quick is quicker still."""
    from shared import experiment, paths
    from shared.training import checkpoints

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "QUICK_STEPS", 8)
        patch.setattr(experiment, "QUICK_STEPS", 8)
        patch.setattr("phase1_single_head.before.bottleneck.NUM_TEST", 30)
        patch.setattr("shared.grammar.roles.UNTRAINED_MODELS", 1)
        patch.setattr(paths, "CHECKPOINTS", folder)
        yield folder
    checkpoints._trained_here.clear()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints of the tests lie apart from the reader's."""
    with quick_training(tmp_path_factory.mktemp("checkpoints")) as folder:
        yield folder


@pytest.fixture(scope="session")
def explorer_models():
    """Untrained models of several sizes with large weights, as rounded as they are in the page."""
    from phase3_visualization.explorer.models import as_packed
    from shared.tests.helpers import EXPLORER_RECIPES, sharp_model

    return {recipe.name: as_packed(sharp_model(recipe), "float16") for recipe in EXPLORER_RECIPES}


def made_once(tmp_path_factory, name, make):
    """Returns what make() returns. In a run in several processes the first makes it for all."""
    if "PYTEST_XDIST_WORKER" not in os.environ or os.name != "posix":
        return make()
    import fcntl

    kept = tmp_path_factory.getbasetemp().parent / name
    with kept.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the others wait here until it is closed
        if not kept.stat().st_size:
            file.write(pickle.dumps(make()))
            file.flush()
        return pickle.loads(kept.read_bytes())


@pytest.fixture(scope="session")
def explorer_data(explorer_models, tmp_path_factory):
    """What a page is told of these models, made once in a run of the tests.

    At its last stop the first model has heads with roles, as a trained one has.
    """
    from phase3_visualization.explorer import write_page
    from shared import cli
    from shared.grammar.scores import with_relations
    from shared.tests.helpers import as_if_trained, small_records
    from shared.toy_language import tokenize

    run = as_if_trained(explorer_models["both sides"])

    def page_data():
        with quick_training(tmp_path_factory.mktemp("explorer")):
            return write_page.page_data(run, run, cli.parse(cli.parser(""), ["--quick"]))

    data = made_once(tmp_path_factory, "explorer_data", page_data)
    none = {"role": None, "own": None}
    subject, place = {"role": "subject → verb", "own": 0.8}, {"role": "verb → place", "own": 0.8}
    data["runs"][0]["stops"][-1]["heads"] = [
        [{"role": "determiner → noun", "own": 0.8}, none, none, {"role": "previous", "own": 0.8}],
        [subject, place, none, none],
    ]
    data["landings"] = []
    for words in (
        "every coin beside that river fell in those red ponds",
        "the farmer beside a barn swam in the lake",
    ):
        view = {"hidden": 1, "layer": 1, "head": 0}
        data["landings"].append(vars(with_relations(tokenize(words))) | view)
    by_name = {record["name"]: record for record in data["wagers"]["models"]}
    for record in small_records(explorer_models):
        by_name[record["name"]] = record
    by_name["masked"] = by_name["causal"] | {"name": "masked"}  # as if trained
    data["wagers"]["models"] = list(by_name.values())
    return data


@pytest.fixture(scope="session")
def explorer_address(explorer_data, tmp_path_factory):
    from phase3_visualization.explorer import write_page

    path = tmp_path_factory.mktemp("page") / "explorer.html"
    path.write_text(write_page.render(explorer_data), encoding="utf-8")
    assert path.stat().st_size < 3e6
    return path.as_uri()


@pytest.fixture(scope="module")
def explorer_page(browser, explorer_address):
    """One page for all tests of a file, in which nothing may go wrong."""
    from shared.tests.helpers import open_watched

    errors = []
    page = open_watched(browser, explorer_address, errors)
    yield page
    page.close()
    assert errors == []
