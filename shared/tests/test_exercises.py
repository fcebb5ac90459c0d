"""The exercises of all phases, and the checker: what it names, lets pass, says and lets run."""

import ast
import importlib
import inspect
import math
import re
import shutil
import sys
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from phase1_single_head import self_attention
from phase1_single_head.self_attention import SelfAttention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention
from shared import paths
from shared.attention_utils import padding_mask
from shared.exercise_checker import command, grade, in_models
from shared.exercise_checker.check import DONE, NOT_WRITTEN, by_itself, call, check
from shared.exercise_checker.exercise import mistakes
from shared.exercise_checker.files import written_in
from shared.exercise_checker.in_models import (
    IN_LAYERS,
    WAYS,
    ReadersAttention,
    attend_in_a_layer,
)
from shared.grammar import roles
from shared.published import our_attention
from shared.tests.faults import planted
from shared.tests.helpers import MODEL_KINDS, near, tiny_language_model, tiny_model
from shared.tests.test_lessons import changes
from shared.tests.wrong_answers import RIGHT, WRONG, past, prefixed, soft
from shared.training import recipes
from shared.training.objectives import corpus

STUBS = [importlib.import_module(f"{phase}.exercises") for phase in paths.PHASES.values()]
EACH = [(stubs, n, one) for stubs in STUBS for n, one in enumerate(stubs.EXERCISES, start=1)]
BY_NAME = {one.name: one for *_, one in EACH}
NAMES = [one.name for *_, one in EACH]


@pytest.mark.parametrize(("stubs", "number", "one"), EACH, ids=NAMES)
def test_a_stub_asks_for_what_is_checked_and_says_where_it_belongs(stubs, number, one):
    stub = getattr(stubs, one.name)
    asked = list(inspect.signature(stub).parameters)
    checked = list(inspect.signature(one.solution).parameters)
    assert asked == checked[: len(asked)]
    assert (check(one, stub).status, check(one, one.solution).status) == (NOT_WRITTEN, DONE)
    title, lesson, *text = inspect.getdoc(stub).splitlines()
    assert re.match(rf"Exercise {number}[:,] ", title)
    assert not re.search(r"^ *for ", "\n".join(text), re.MULTILINE)
    section, level, minutes = command.about(Path(stubs.__file__))[number - 1]
    assert lesson == f"Lesson: {section} · {level} · {minutes} min"
    folder = Path(stubs.__file__).parent
    lesson = (folder / "README.md").read_text(encoding="utf-8")
    # A heading may add in brackets what people search for.
    heading = re.search(rf"^## {re.escape(section)}( \(.+\))?$", lesson, re.MULTILINE)
    assert (folder / section).is_file() if section.endswith(".md") else heading


# ---- what it names


@pytest.mark.parametrize("name", NAMES)
def test_mistakes_run_and_are_known_by_their_name(name):
    one = BY_NAME[name]
    for said, function in mistakes(one):
        assert not call(one, function, one.cases()[0]).failure, (
            f"must run in the first case: {said}"
        )
        assert by_itself(one, function).text == said and len(said.split(": ", 1)[1]) > 20


ANSWERS = []
for name, rows in WRONG.items():
    for mistake, function in rows:
        ANSWERS.append(pytest.param(name, mistake, function, id=f"{name}-{mistake}"))


@pytest.mark.parametrize(("name", "mistake", "function"), ANSWERS)
def test_wrong_answers_are_noticed_and_named(name, mistake, function):
    report = check(BY_NAME[name], function)
    assert report.status not in (DONE, NOT_WRITTEN), "a false pass"
    said = any(report.text.startswith(known) for known, _ in mistakes(BY_NAME[name]))
    assert report.text.startswith(f"{mistake}: ") if mistake else not said, report.text


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_that_look_different_pass(name):
    assert check(BY_NAME[name], RIGHT[name]).text == DONE


# ---- what lessons tell the reader to change


CHANGES = sorted({change.values[:3] for change in changes()})
ROUNDS = defaultdict(list)  # the first changes of all files, all the second ones ...
OF_FILE = Counter()
for change in CHANGES:
    OF_FILE[change[0]] += 1
    ROUNDS[OF_FILE[change[0]]].append(change)


@pytest.mark.parametrize("number", ROUNDS)
def test_changes_left_over_make_no_right_answer_wrong(number):
    with ExitStack() as left_over:
        for change in ROUNDS[number]:
            left_over.enter_context(planted(*change))
        for name, function in RIGHT.items():
            assert check(BY_NAME[name], function).text == DONE, name


# What an answer may import from the course, and the functions of which that is made.
IMPORTS = "from phase1_single_head.self_attention import scaled_dot_product_attention\n"
GIVEN = (self_attention.masked_softmax, self_attention.scaled_dot_product_attention)
TEXT_OF_GIVEN = "".join(map(inspect.getsource, GIVEN))
OF_GIVEN = [(file, old, new) for file, old, new in CHANGES if old in TEXT_OF_GIVEN]


def test_what_an_answer_imports_is_let_pass_as_it_is(reader):
    done = (0, "+ 2 masked_softmax           done\n", "")
    assert reader("2", written=IMPORTS + RIGHT_SOFTMAX) == done


@pytest.mark.parametrize(("file", "old", "new"), OF_GIVEN)
def test_a_changed_file_that_an_answer_imports_is_named(file, old, new, reader):
    with planted(file, old, new):
        code, said, errors = reader("2", written=IMPORTS + RIGHT_SOFTMAX)
    assert (code, said, errors.count("\n")) == (2, "", 1)
    assert f": {file} was changed: " in errors and f"git restore {file} brings it back" in errors


# ---- the loops of --hint 3, word for word


def one_query(query, keys, values):
    return F.scaled_dot_product_attention(query[None], keys, values)[0]


ROWS = re.findall(r"= (\[.*\])$", STUBS[0].score_by_hand.__doc__, re.M)
QUERY, *KEYS = map(ast.literal_eval, ROWS)
KNOWN = {  # what the loops take from around them
    "exp": torch.exp,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sqrt": math.sqrt,
    "sin": math.sin,
    "cos": math.cos,
    "log": lambda x: torch.as_tensor(x).log(),
    "concatenate": torch.cat,
    "masked_softmax": soft,
    "attention": one_query,
    "phi": lambda x: F.elu(x) + 1,
    "query": QUERY,
    "key": KEYS,
    "head": defaultdict(dict),
}
AXES = {  # of inputs and results; and of what else the loops fill; none if there is no row
    "score_by_hand": ("weights: n", "scores: n"),
    "masked_softmax": ("weights: T_q T_k", ""),
    "self_attention": (
        "x: T d_model, w_k: d_model d_k, w_v: d_model d_v",
        "query: T d_k, key: T d_k, value: T d_v, scores: T T, mask: T T",
    ),
    "additive_attention": ("weights: T_q T_k, v: d_hidden", "scores: T_q T_k"),
    "cross_attention": ("weights: T_q T_k, w_k: d_model d_k", "scores: T_q T_k, mask: T_q T_k"),
    "split_heads": ("heads: B H T d_k", ""),
    "merge_heads": ("x: B H T d_v", ""),
    "multi_head_attention": ("x: B T d_model, weights: B H T T", "scores: T T, mask: B T"),
    "fused_projection": ("x: B T d_model, query: B H T d_k", ""),
    "grouped_query_attention": (
        "query: H T_q d_k, key: G T_k d_k",
        "scores: T_q T_k, mask: T_q T_k",
    ),
    "transformer_block": ("x: T d_model", "normed: T d_model, y: T d_model, past: T T"),
    "attention_pooling": ("x: B T d_model", "scores: T"),
    "head_entropy": ("weights: H T_q T_k", ""),
    "role_score": ("weights: N H T T", ""),
    "measured_rollout": ("weights: L H T T", "step: T T"),
    "patch_head": ("clean: B T d_model, num_heads: H", ""),
    "direct_logit_attribution": ("heads: H T d_v, unembedding: d_model V", ""),
    "composed_scores": ("x: T d_model, w_k: d_model d_k", "written: T d_model"),
    "prefix_mask": ("mask: T_q T_k", ""),
    "combined_mask": ("mask: B one T_q T_k", ""),
    "next_word_loss": ("logits: B T V", ""),
    "next_word_probabilities": ("logits: B T V", ""),
    "cached_step": ("past_keys: B T d_k", ""),
    "merge_tiles": ("mean: T_q d_v", ""),
    "causal_linear_attention": ("query: T d_k, value: T d_v", ""),
    "induction_score": ("weights: N H T T", ""),
    "gated_memory_step": ("key: H d_k", ""),
    "absorbed_attention": ("query: H d_k, turned: H d_r, latents: T d_c", "scores: T"),
    "judge_draft": ("q: n V", ""),
}


def axes_in(text):
    for part in text.split(", ") if text else ():
        name, letters = part.split(": ")
        yield name, letters.split()


@pytest.mark.parametrize("name", NAMES)
def test_the_loops_of_the_hint_are_what_the_solutions_compute(name):
    one = BY_NAME[name]
    read, filled = AXES.get(name, ("", ""))

    def by_loops(*inputs):
        right = one.solution(*inputs)
        right = right if isinstance(right, tuple) else (right,)
        names = KNOWN | dict(zip(inspect.signature(one.solution).parameters, inputs, strict=False))
        for name, tensor in zip(one.names, right, strict=True):
            names[name] = torch.zeros_like(tensor)
        for name, letters in axes_in(read):
            names |= dict(zip(letters, getattr(names[name], "shape", [names[name]]), strict=True))
        for name, letters in axes_in(filled):
            zeros = torch.zeros([names[axis] for axis in letters], dtype=torch.float64)
            if name != "mask" or names["mask"] is None:
                names[name] = zeros == 0 if name in ("mask", "past") else zeros
        exec(one.paragraphs[2], names)
        return [names[name] for name in one.names] if len(one.names) > 1 else names[one.returns]

    for case in one.cases():
        if not re.search("1e1|1000", case.name):  # there e to a score is inf
            within = replace(one, cases=lambda case=case: [case], tables="")
            assert check(within, by_loops).text == DONE


# ---- what is said without a name

SOFTMAX = BY_NAME["masked_softmax"]
SELF = BY_NAME["self_attention"]
SPLIT = BY_NAME["split_heads"]
POSITIONS = BY_NAME["sinusoidal_positions"]
BY_HAND = BY_NAME["score_by_hand"]


def unwritten(*_):
    raise NotImplementedError


def lost(scores, mask):
    return scores.no_such_method() * mask


LINE_OF_LOST = inspect.getsourcelines(lost)[1] + 1


def in_place(scores, mask):
    scores[~mask] = -math.inf
    return torch.softmax(scores, dim=1).nan_to_num(0)


SAID = [
    (
        SELF,
        lambda *a: SELF.solution(*a)[0],
        r"^must return output, weights: got one tensor of shape \(5, 13\)",
    ),
    (SELF, lambda *a: (None, SELF.solution(*a)[1]), "output must be a tensor or numbers: got None"),
    (
        SELF,
        lambda x, q, *_: x @ torch.ones(11, 3),
        "^another dtype: the inputs are float64, so give new tensors the dtype of an input",
    ),
    (SELF, lambda x, q, k, v, mask: (~mask, x), r"NoneType.* \(without a mask\)$"),
    (
        SOFTMAX,
        lambda s, m: soft(s, m) * 0.5,
        r"^row 0 of weights sums to 0.5: it must be 1 \(some keys hidden\)$",
    ),
    (
        SOFTMAX,
        lambda s, m: soft(s, m) + ~m * 1e-9,
        r"weights\[.*\] is 1e-09, and must be exactly 0: the mask hides it \(some keys hidden\)",
    ),
    (SOFTMAX, lambda s, m: sys.exit("stop"), "^SystemExit in line "),
    (
        SOFTMAX,
        lambda s, m: torch.softmax(m, dim=1),
        "^NotImplementedError in line ",
    ),  # torch's own has a message
    (
        SOFTMAX,
        lost,
        f"^AttributeError in line {LINE_OF_LOST}: 'Tensor' .*some keys hidden",
    ),
    (
        SOFTMAX,
        in_place,
        "^your function changed scores, which its caller may still need: make a new tensor$",
    ),
    (
        SPLIT,
        lambda x, n: list(x.chunk(n, -1)),
        "got 3 values; of several tensors torch.stack or torch.cat makes one",
    ),
    (
        POSITIONS,
        lambda n, d: torch.zeros(d, n),
        r"^encoding has shape \(6, 7\), expected \(7, 6\) \(length 7, d_m",
    ),
    (
        BY_HAND,
        lambda: [0.5, 0.25, 0.25],
        r"^weights\[1\] is 0.25, and that is not right$",
    ),
    (
        BY_NAME["prefix_mask"],
        lambda p, q, k: prefixed(p, past(q, k)).index_fill(0, torch.tensor([1]), True),
        r"^mask\[1, 3\] is True: True means that query 1 may see key 3",
    ),
]


@pytest.mark.parametrize(("one", "function", "message"), SAID)
def test_what_is_wrong_is_said_in_words(one, function, message):
    assert re.search(message, check(one, function).text), check(one, function).text


def test_a_stub_is_not_written_and_neither_is_what_needs_it():
    assert check(SELF, lambda *a: unwritten(*a)).text == "not written yet: it needs unwritten"
    assert check(BY_HAND, lambda: [0.25, ..., 0.09]).status == NOT_WRITTEN


def test_of_two_mistakes_the_first_is_named():
    """Scores not divided, and values that are not made by w_v: the weights tell the first."""

    def two_mistakes(x, q, k, v, m):
        weights = (x @ q @ (x @ k).T).softmax(1)
        return weights @ x @ v * 3, weights

    assert check(SELF, two_mistakes).text.startswith("not divided by √d_k: ")


A_WRONG_SOFTMAX = """
import torch
def masked_softmax(scores, mask):
    return (scores * mask).softmax(0)
def self_attention(x, w_q, w_k, w_v, mask=None):
    mask = torch.ones(len(x), len(x)).bool() if mask is None else mask
    weights = masked_softmax((x @ w_q) @ (x @ w_k).T / SIZE, mask)
    return weights @ (x @ w_v), weights
"""
BLAMED = "your masked_softmax (exercise 2) is not right yet"


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("w_q.size(1) ** 0.5", BLAMED),
        ("w_q.size(1)", f"{BLAMED}. With a right one: divided by d_k: divide by its root"),
    ],
)
def test_a_wrong_exercise_is_found_where_a_later_one_calls_it(size, said):
    names = {}
    exec(A_WRONG_SOFTMAX.replace("SIZE", size), names)
    own = names["masked_softmax"]
    assert check(SELF, names["self_attention"]).text.startswith(said)
    assert names["masked_softmax"] is own


RAW = {  # what torch says of it -> what the checker says before
    "one yes or no asked of a whole tensor": lambda s, m: soft(s, m) if m else s,
    "a transpose is missing, or one is too many": lambda s, m: s @ s,
    "axes that do not line up": lambda s, m: s + m.T,
    "view cannot reorder": lambda s, m: s.T.view(35),
    "e to a large score is too large": lambda s, m: s * math.exp(1000),
}


@pytest.mark.parametrize("sentence", RAW)
def test_a_usual_error_of_torch_is_said_in_words(sentence):
    assert check(SOFTMAX, RAW[sentence]).text.startswith(sentence)


# ---- the command line, and the reader's file


@pytest.fixture
def reader(tmp_path, capsys):
    """Runs the exercises of a phase on a file of its own: exit code, output, errors."""

    def run(*arguments, written=None, stubs=STUBS[0]):
        folder = tmp_path / Path(stubs.__file__).parent.name
        folder.mkdir(exist_ok=True)
        run.file = folder / "my_exercises.py"
        if written is not None:
            run.file.write_bytes(written if isinstance(written, bytes) else written.encode())
        copy, code = shutil.copy(stubs.__file__, folder), 0
        try:
            command.run_exercises(copy, stubs.EXERCISES, stubs.AFTERWARDS, list(arguments))
        except SystemExit as stop:
            code = stop.code
        return (code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("stubs", STUBS)
def test_from_the_first_run_to_the_last(stubs, reader):
    """Hints make no file. The first run makes one of the stubs, and the last says what next."""
    count = len(stubs.EXERCISES)
    for number, one in enumerate(stubs.EXERCISES, start=1):
        for which in ("1", "2", "3"):
            code, said, _ = reader(str(number), "--hint", which, stubs=stubs)
            assert not code and one.paragraphs[int(which) - 1].splitlines()[0] in said
            assert all(len(line) <= 122 for line in said.splitlines())
    assert not reader.file.exists()
    code, said, _ = reader(stubs=stubs)
    made, *table, done, begin = said.splitlines()
    assert (code, done) == (1, f"0 of {count} done") and made.startswith("made ")
    for n, line in enumerate(table, start=1):
        assert line.split()[1:3] == [str(n), stubs.EXERCISES[n - 1].name]
    assert begin.startswith(f"Next: 1 {stubs.EXERCISES[0].name}; for a hint: python ")
    assert len(table) == count
    text = reader.file.read_text(encoding="utf-8")
    assert not re.search("exercise_checker|EXERCISES|__main__", text)
    assert all(inspect.getsource(getattr(stubs, one.name)) in text for one in stubs.EXERCISES)
    answers = stubs.__name__.replace("exercises", "answers")
    solved = f"from {answers} import EXERCISES\n"
    solved += "for one in EXERCISES: globals()[one.name] = one.solution\n"
    code, said, _ = reader(stubs=stubs, written=solved)
    assert not code and " ".join(said.split()).endswith(" ".join(stubs.AFTERWARDS.split()))
    following = re.findall(r"\w+/\w+\.(?:md|py)", stubs.AFTERWARDS)
    assert following and all((paths.ROOT / path).is_file() for path in following)


RIGHT_SOFTMAX = """import torch
def masked_softmax(s, m):
    return (s + torch.where(m, 0, -torch.inf)).softmax(-1).nan_to_num(0)
"""
PHASE = "phase1_single_head/my_exercises.py"
COMMANDS = [  # arguments, what my_exercises.py holds, exit code, what is said
    (["2"], RIGHT_SOFTMAX, 0, "+ 2 masked_softmax           done"),
    (["2"], "\ufeff" + RIGHT_SOFTMAX, 0, "done"),
    (
        ["masked_softmax"],
        "# 1\ndef masked_softmax(scores, mask):\n    return scores.none\n",
        1,
        "Error in line 3: ",
    ),
    ([], RIGHT_SOFTMAX, 1, "\n1 of 6 done\nNext: 1 score_by_hand; "),
    ([], "a = 1\ndef f(:\n", 2, f"{PHASE}: SyntaxError in line 2: invalid syntax"),
    (
        [],
        "import torch\n\nimport no_such_module\n",
        2,
        f"{PHASE}: ModuleNotFoundError in line 3: No module named",
    ),
    (
        [],
        "def f():\n    return 1 / 0\n\n\nf()\n",
        2,
        f"{PHASE}: ZeroDivisionError in line 2: division by zero",
    ),
    ([], b"a = '\xff'\n", 2, f"{PHASE}: SyntaxError in line 1: "),
    (["7"], "", 2, "no exercise '7': choose from 1 score_by_hand, 2 masked_softmax, 3 self_att"),
    (
        ["--hint"],
        "",
        2,
        "with which exercise? Its number comes first: python phase1_single_head/exercises.py 3",
    ),
    (["--trian"], "", 2, "no option --trian: did you mean --train?"),
    (["--hint", "--in", "smollm2"], "", 2, "--in: not allowed with argument --hint"),
    (["--csv", "x"], "", 2, "--csv FILE goes with --grade PATH"),
]


@pytest.mark.parametrize(("arguments", "written", "expected", "message"), COMMANDS)
def test_the_command_line(arguments, written, expected, message, reader):
    code, said, errors = reader(*arguments, written=written)
    assert code == expected and message in said + errors, said + errors
    assert errors.count("\n") == (code == 2) and not (said and errors)
    written = written if isinstance(written, bytes) else written.encode()
    assert reader.file.read_bytes() == written, "never overwritten"


# ---- for teachers


HANDED_IN = {
    "anna.py": RIGHT_SOFTMAX
    + """
print("not in the table")
def score_by_hand():
    return [2, 4, 0]
def self_attention(*inputs):
    import time
    time.sleep(1000)
def additive_attention(*inputs):
    import os
    os._exit(0)
def cross_attention(*inputs):
    return input()
""",
    "ben/work.py": "a = 1\ndef f(:\n",
    "dora\n.py": """\
import os, time
if os.fork() == 0:
    time.sleep(1000)
os.write(1, b"not in the table")
for descriptor in range(3, 9):
    try:
        os.write(descriptor, b'["done", "a\\\\nben.py  + 1"]\\n' + 90_000 * b"[")
    except OSError:
        pass
os._exit(0)
""",
    "cem.py": "from phase1_single_head.answers import self_attention as answer\n"
    "self_attention = answer.solution\n",
}
TABLE = """\
anna.py      x 1 score_by_hand            softmax missing
anna.py      + 2 masked_softmax           done
anna.py      x 3 self_attention           no answer within 30 s: does it loop for ever?
anna.py      x 4 additive_attention       no answer: it ended Python or disturbed the checker
anna.py      - 5 sinusoidal_positions     not written yet: the file has no sinusoidal_positions
ben/work.py  x ben/work.py: SyntaxError in line 2: invalid syntax
cem.py       + 3 self_attention           done
cem.py       ! uses phase1_single_head.answers
'dora\\n.py'  x 'a\\nben.py  + 1'
1 score_by_hand              0         softmax missing (1)
2 masked_softmax             1
3 self_attention             1         no answer within 30 s: does it loop for ever? (1)
"""


def test_a_folder_is_graded_whatever_is_in_it(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "PATIENCE", 2)
    folder = tmp_path / "class"
    (folder / "ben").mkdir(parents=True)
    for name, text in HANDED_IN.items():
        (folder / name).write_text(text, encoding="utf-8")
    table = tmp_path / "table.csv"
    code, said, errors = reader("--grade", str(folder), "--csv", str(table))
    rows = table.read_text(encoding="utf-8").splitlines()
    assert rows[2] == "anna.py,masked_softmax,1,40,done,os._exit"
    assert len(rows) == 1 + 6 * 4 and sum(",1," in row for row in rows) == 2
    assert (code, errors) == (0, "") and not reader.file.exists()
    assert set(TABLE.splitlines()) <= set(said.splitlines()), said
    assert "EOFError in line" in said and "not in the table" not in said
    assert "done of 4" in said
    answers = [inspect.getsource(one.solution) for one in STUBS[0].EXERCISES]
    hints = [one.paragraphs[n] for one in STUBS[0].EXERCISES for n in range(3)]
    assert not any(text in said for text in answers + hints)


def test_what_cannot_be_graded_is_said_in_one_line(reader, tmp_path):
    (tmp_path / "empty").mkdir()
    for place in ("none", "empty"):
        code, said, errors = reader("--grade", str(tmp_path / place))
        assert (code, said, errors.count("\n")) == (2, "", 1)
        assert f"{place} is no file, nor a folder of files in .py" in errors


@pytest.mark.parametrize("stubs", STUBS)
def test_what_is_handed_out_has_the_tasks_and_no_answer(stubs, reader, tmp_path):
    """It is Python without the course, and not written yet."""
    code, said, _ = reader("--handout", str(tmp_path / "out"), stubs=stubs)
    file = tmp_path / "out" / f"{Path(stubs.__file__).parent.name}.py"
    text = file.read_text(encoding="utf-8")
    assert (code, said) == (0, f"made {file}\n") and not reader.file.exists()
    assert not re.search("^(from|import) (phase|shared)|[.]answers|noqa", text, re.MULTILINE)
    assert all(inspect.getsource(getattr(stubs, one.name)) in text for one in stubs.EXERCISES)
    functions = written_in(file)
    assert {check(one, functions[one.name]).status for one in stubs.EXERCISES} == {NOT_WRITTEN}
    code, said, errors = reader("--handout", str(tmp_path / "out"), stubs=stubs)
    assert (code, said) == (2, "") and "is there already, and is left as it is\n" in errors
    assert file.read_text(encoding="utf-8") == text


# ---- what a reader wrote, trained in the toy model

COURSE = {
    "self_attention": lambda d_model, _: SelfAttention(d_model, output_projection=True),
    "multi_head_attention": partial(MultiHeadAttention, bias=False),
    "prefix_mask": partial(CausalSelfAttention, bias=False),
}
ATTEND = BY_NAME["multi_head_attention"].solution


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("padded", [True, False])
def test_the_solution_in_the_model_is_the_module_of_the_course(name, padded):
    """Started by the same seed they are the same: what comes out, and all gradients."""
    found = []
    for make in (partial(ReadersAttention, WAYS[name], BY_NAME[name].solution), COURSE[name]):
        torch.manual_seed(7)
        module = make(44, WAYS[name].num_heads).double()
        x = torch.randn(3, 7, 44, dtype=torch.float64, requires_grad=True)
        mask = padding_mask(torch.tensor([7, 2, 5]), 7) if padded else None
        output, weights = module(x, mask=mask)
        (output.tanh() + weights.square().sum()).sum().backward()
        gradients = [module.get_parameter(f"w_{letter}.weight").grad for letter in "qkvo"]
        found.append([output, weights, x.grad, *gradients])
    for one, other in zip(*found, strict=True):
        near(one, other)


@pytest.fixture
def trained(checkpoints, monkeypatch, capsys):
    few = corpus()[0][:3000], corpus()[1][:80]
    for module in (recipes, roles, in_models):
        monkeypatch.setattr(module, "corpus", lambda: few)
    monkeypatch.setattr(in_models, "SENTENCES_ASKED", 10)

    def run(function, name="multi_head_attention", steps=25):
        monkeypatch.setattr(in_models, "STEPS", steps)
        exercises = [BY_NAME[way] for way in WAYS]
        done = in_models.use_answer([BY_NAME[name]], exercises, {name: function})
        return done, capsys.readouterr().out

    return run


def inverted(*inputs):
    return ATTEND(*inputs[:6], *(mask if mask is None else ~mask for mask in inputs[6:]))


def test_a_wrong_one_is_told_what_it_costs_and_the_right_one_that_it_costs_nothing(trained):
    done, printed = trained(inverted, steps=60)
    yours, course = map(float, re.search(r"a hidden word +(\S+) +(\S+)", printed).groups())
    assert not done and "The checker: mask inverted" in printed
    assert yours > course + 0.2
    assert len(re.findall(r"^head \d +\S", printed, re.MULTILINE)) == 4
    done, printed = trained(ATTEND)
    yours, course = re.search(r"a hidden word +(\S+) +(\S+)", printed).groups()
    assert done and yours == course
    assert printed.endswith("The checker: done\n")


def test_who_sees_the_future_looks_best_at_once_and_fails_word_by_word(trained):
    done, printed = trained(
        lambda p, q, k: prefixed(p, torch.ones(q, k).tril(1)), "prefix_mask", steps=60
    )
    at_once, _, grammar = map(float, re.search(r"at once +(\S+) +(\S+) +(\S+)", printed).groups())
    word_by_word = float(re.search(r"word by word +(\S+)", printed)[1])
    assert not done and at_once < 1 < grammar and word_by_word > math.log(100)
    assert "The checker: one word of the future visible" in " ".join(printed.split())


def changed_by(change):
    """The solution, and what it gives changed."""
    return lambda *inputs: tuple(change(part) for part in ATTEND(*inputs))


REFUSED = {
    "it gives NaN": changed_by(torch.log),
    "it gives shape .* instead of": changed_by(lambda part: part[..., 1:]),
    "it gives no tensor": changed_by(lambda part: part.detach().numpy()),
    "not written yet": STUBS[1].multi_head_attention,
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_trained_is_refused_in_one_line(line, trained):
    with pytest.raises(ValueError, match=line) as refusal:
        trained(REFUSED[line])
    assert "\n" not in str(refusal.value)


def test_an_exercise_that_cannot_be_trained_names_those_that_can(reader):
    for arguments in (["--train", "1"], ["--in", "smollm2", "1"]):
        code, _, errors = reader(*arguments, written="", stubs=STUBS[1])
        can = "of this phase's exercises multi_head_attention can run in"
        assert code == 2 and can in errors


# ---- a published model writes with it


@torch.no_grad()
@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_solutions_compute_in_every_kind_of_model(kind):
    torch.manual_seed(0)
    model = tiny_model(kind).double()
    text = torch.randint(2, 97, (1, 7)) if kind != "vit" else torch.randn(1, 3, 20, 20).double()
    own = model(text).last_hidden_state
    for name, way in IN_LAYERS.items():
        attend = partial(attend_in_a_layer, way, BY_NAME[name].solution)
        with our_attention(model, attend):
            near(model(text).last_hidden_state, own, share=1e-5)


@pytest.mark.parametrize("name", IN_LAYERS)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_a_model_writes_the_same_with_a_right_answer_alone(kind, name, tmp_path, capsys):
    tiny = tiny_language_model(kind, vocab_size=8)
    tiny.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    one = BY_NAME[name]
    for is_right in (True, False):
        function = one.solution if is_right else mistakes(one)[0][1]
        assert in_models.use_answer([one], [one], {name: function}, str(tmp_path)) == is_right
        said = capsys.readouterr().out
        assert ("\nThe same: " in said) == is_right
        own_and_yours = re.findall(r"^(?:its own|yours)  +(.+)", said, re.MULTILINE)
        assert len(own_and_yours) == 2 * (kind != "bert")
        assert len(set(own_and_yours)) < 2 or not is_right
