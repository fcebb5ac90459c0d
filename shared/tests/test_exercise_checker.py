"""Tests: the exercise checker, on the exercises of all phases and on small ones of its own."""

import inspect
import math
import re
import shutil
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from phase1_single_head import exercises as phase1
from phase1_single_head.answers import solutions as solutions1
from phase2_multi_head import exercises as phase2
from phase2_multi_head.answers import solutions as solutions2
from phase3_visualization import exercises as phase3
from phase4_causal import exercises as phase4
from shared import exercise_checker
from shared.exercise_checker import (
    DONE,
    LEVELS,
    NOT_WRITTEN,
    WIDTH,
    WRONG,
    Case,
    Exercise,
    Mistake,
    check,
    edit,
    edited,
    ways,
)

LESSONS = [phase1, phase2, phase3, phase4]
EACH = [pytest.param(lesson, *one, id=one[1].name) for lesson in LESSONS for one in enumerate(lesson.EXERCISES, 1)]
TOLD = {"section": "1. A section", "level": "easy", "minutes": 5, "idea": "An idea.", "steps": "A step."}
HAND, SOFTMAX, SELF, ADDITIVE, POSITIONS, CROSS = phase1.EXERCISES
SPLIT, MERGE, HEADS, PROJECTION, GROUPED, BLOCK, POOLING = phase2.EXERCISES
NEXT = phase4.EXERCISES[2]


def variant(exercise, *changes):
    """The solution with these words replaced: (old, new), (old, new), ..."""
    return edited(exercise.solution, changes)


# ---------------------------------------------------------------------------------------------------------- the edits


def double(number):
    """
    for i in range(2):
        total += number
    """
    return 2 * number


def tripled(number):
    return double(number) + number


def with_mistakes(*mistakes, solution=tripled):
    return Exercise(solution, ("number",), lambda: [Case("", (torch.ones(3),))], mistakes, **TOLD)


def test_an_edit_changes_the_solution_and_its_helpers_in_a_copy():
    assert edited(tripled, edit("+ number", "- number"))(5) == 5
    assert edited(tripled, edit("2 * number", "7 * number"))(5) == 40
    assert edited(tripled, edit("2 * number", "7 * number") + edit("+ number", "- number"))(5) == 30
    assert tripled(5) == 15 and double(5) == 10


@pytest.mark.parametrize(("old", "times"), [("no such words", 0), ("total += number", 0), ("return", 2), ("Case(", 0)])
def test_the_old_words_of_an_edit_stand_in_the_code_exactly_once(old, times):
    """Docstrings do not count, and neither does what the solution does not call."""
    with pytest.raises(ValueError, match=re.escape(f"tripled, a mistake: {old!r} stands {times} times in tripled")):
        ways(with_mistakes(Mistake("a mistake", "a hint", edit(old, "x"))))


def test_an_edit_that_is_no_python_is_refused_by_name():
    with pytest.raises(ValueError, match="tripled, a mistake: invalid syntax"):
        ways(with_mistakes(Mistake("a mistake", "a hint", edit("+ number", "+ +* number"))))


def test_helpers_of_an_earlier_phase_are_edited_too():
    inputs = GROUPED.cases()[0].arguments
    _, weights = variant(GROUPED, ("torch.softmax(scores, dim=-1)", "scores"))(*inputs)
    assert (weights < 0).any() and (solutions2.grouped_query_attention(*inputs)[1] >= 0).all()
    assert (solutions1.attend(*inputs[:1], *inputs[:1], *inputs[:1], None)[1] >= 0).all()


# ------------------------------------------------------------------------------------------------ what is said, by name


@pytest.mark.parametrize(
    ("exercise", "first", "second", "changes"),
    [
        (SELF, "not divided by √d_k", "one matrix for queries and keys",
         [(" / math.sqrt(key.size(-1))", ""), ("x @ w_k", "x @ w_q")]),
        (SELF, "K Qᵀ instead of Q Kᵀ", "values not made by w_v",
         [("query @ key.mT", "key @ query.mT"), ("x @ w_v", "x")]),
        (SOFTMAX, "hidden scores set to 0", "softmax over the wrong axis",
         [("-math.inf", "0.0"), ("torch.where(mask, weights, 0.0)", "weights"), ("dim=-1", "dim=-2")]),
        (BLOCK, "norm missing", "GELU instead of ReLU",
         [("attention(norm(x)", "attention(x"), ("norm(y) @ w_1", "y @ w_1"), ("torch.relu", "F.gelu")]),
    ],
)  # fmt: skip
def test_two_mistakes_at_once_are_named_both(exercise, first, second, changes):
    text = check(exercise, variant(exercise, *changes)).text
    assert re.match(r"two mistakes at once: .* and .*\. First: .*\. Second: ", text), text
    named = text.removeprefix("two mistakes at once: ").split(". First")[0].split(" and ", 1)
    hints = [mistake.hint for mistake in exercise.mistakes if mistake.name in (first, second)]
    assert first in text and second in text and all(hint in text for hint in hints), named


def test_mistakes_that_show_in_different_cases_are_named_one_after_the_other():
    inverted = [("(mask, scores", "(~mask, scores"), ("(mask, weights", "(~mask, weights")]
    both = variant(SELF, *inverted, (" / math.sqrt(key.size(-1))", ""))
    assert check(SELF, both).text.startswith("not divided by √d_k: ")
    assert check(SELF, variant(SELF, *inverted)).text.startswith("mask inverted: ")


def test_the_usual_false_passes_are_none():
    """What passed once: a mask after softmax with the sum mended. And what had a wrong diagnosis."""
    for eps in (0.0, 1e-9):
        text = check(SOFTMAX, lambda s, m, eps=eps: (w := s.softmax(1) * m) / (w.sum(1)[:, None] + eps)).text
        assert text.startswith("mask after softmax, then divided by the sum: "), text
    text = check(SOFTMAX, lambda s, m: s.masked_fill(~m, -1e308).softmax(1)).text
    assert text.startswith("equal weights where a query sees nothing: "), text


def test_numbers_that_are_nan_are_no_two_mistakes_at_once():
    """NaN has many causes, and some pair of mistakes has it, too."""
    text = check(NEXT, lambda logits, *_: logits[:, -1] * math.nan).text
    assert text.startswith("probabilities[0, 0] is NaN, not a number"), text


# ----------------------------------------------------------------------------------------- what is said, without a name


def right(scores, mask):
    return scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0)


def changed(exercise, change):
    """The right results, changed."""
    return lambda *inputs: (
        change(*results) if isinstance(results := exercise.solution(*inputs), tuple) else change(results)
    )


def in_float32(x, w_q, w_k, w_v, mask=None):
    weights = torch.zeros(len(x), len(x))
    weights[:] = right(x @ w_q @ (x @ w_k).T / w_q.shape[1] ** 0.5, weights == 0 if mask is None else mask)
    return weights @ (x @ w_v), weights


UNKNOWN = [
    (SELF, changed(SELF, lambda o, w: (o + 0.5, w)), r"^weights right, output not: output\[.*, the largest difference"),
    (SELF, changed(SELF, lambda o, w: (o, w.flip(0))), r"^output right, weights not: weights\[\d, \d\] is .*, expect"),
    (PROJECTION, changed(PROJECTION, lambda q, k, v: (q, k, v.exp())), "^query and key right, value not: value"),
    (SELF, lambda x, wq, *a: (x @ wq, x @ x.T), r"^row 0 of weights sums to .*, expected 1"),
    (SOFTMAX, lambda s, m: right(s, m) * 0.5, "^row 0 of weights sums to 0.5, expected 1; .* 0.5 times the right one"),
    (SOFTMAX, lambda s, m: right(s, m) * 0, r"^row 0 of weights sums to 0, expected 1 \(some keys hidden\)$"),
    (SOFTMAX, lambda s, m: right(s, m).flip(0), r"^weights\[\d, \d\] is 0, expected 0\.\d+, the largest difference"),
    (SOFTMAX, lambda s, m: right(s, m) + ~m * 1e-9, r"weights\[.*\] is 1e-09, expected 0, .*\(some keys hidden\)"),
    (
        SELF,
        changed(SELF, lambda o, w: (o * 13**0.5, w)),
        "; off by a constant factor: each number is 3.606 = √13 times",
    ),
    (MERGE, changed(MERGE, lambda m: m / 3), r"; off by a constant factor: each number is 0.3333 = 1 / 3 times"),
    (SPLIT, changed(SPLIT, lambda h: h * 1.7), r"; off by a constant factor: each number is 1.7 times the right one"),
    (BLOCK, changed(BLOCK, lambda o, w: (o, w + 0.1 * (w == 0))), r"sees the future: weights\[0, 0, 1\] is 0.1, but"),
    (SOFTMAX, lambda s, m: right(s, m) * math.nan, r"^weights\[0, 0\] is NaN, not a number: 0 / 0"),
    (SPLIT, changed(SPLIT, lambda h: h / 0), r"^heads\[0, 0, 0, 0\] is -?inf: e to a large number, a division by 0"),
    (SPLIT, changed(SPLIT, lambda h: (h / 0).nan_to_num()), r"e\+308: nan_to_num makes that of inf"),
    (SELF, in_float32, r"^RuntimeError in line \d+: .*; the inputs are float64, .* with dtype=x.dtype"),
    (SELF, changed(SELF, lambda o, w: (o, w[:, :3])), r"weights not: weights has shape \(5, 3\), expected \(5, 5\)"),
    (SELF, changed(SELF, lambda o, w: o), r"^must return output, weights: got one tensor of shape \(5, 13\)"),
    (SELF, lambda *a: None, "got None; is there a return"),
    (SELF, changed(SELF, lambda o, w: (o, w, 1)), "must return output, weights: got 3 values"),
    (SELF, changed(SELF, lambda o, w: (None, w)), "output must be a tensor or numbers: got None"),
    (SOFTMAX, lambda s, m: "weights", r"weights must be a tensor or numbers: got 'weights' \(str\)"),
    (POSITIONS, lambda n, d: torch.zeros(d, n), r"^encoding has shape \(6, 7\), expected \(7, 6\) \(length 7, d_m"),
    (POSITIONS, lambda n, d: {0: POSITIONS.solution(n, d)}[d % 2], r"^KeyError in line \d+: 1 \(length 11, d_m"),
    (MERGE, lambda x: x.transpose(1, 2).view(2, 5, -1), r"^RuntimeError in line \d+: view size is not compatible"),
    (CROSS, lambda *a: CROSS.solution(*a[:6], *(m[:1].expand_as(m) for m in a[6:])), r"\(some keys hidden\)"),
    (HAND, lambda: [0.1, 0.2, 0.3], "^the weights sum to 0.6, expected 1$"),
    (HAND, lambda: [0.12, 0.33, 0.05], "^the weights sum to 0.5, expected 1$"),
    (HAND, lambda: [0.5, 0.25, 0.25], r"^weights\[1\] is 0.25, and that is not right$"),
    (HAND, lambda: [0.1, 0.2], r"weights has shape \(2,\), expected \(3,\)"),
    (SELF, lambda scores: scores, "^TypeError: "),
]


@pytest.mark.parametrize(("exercise", "function", "message"), UNKNOWN)
def test_unknown_mistakes_are_described(exercise, function, message):
    report = check(exercise, function)
    assert report.status == WRONG and re.search(message, report.text), report.text
    assert not any(report.text.startswith(mistake.name) for mistake in exercise.mistakes)


def test_the_checker_serves_any_exercise():
    """Masks that must be bool, infinities that are right: what later phases ask for."""

    def causal(length):
        return torch.ones(length, length).tril().bool()

    exercise = Exercise(causal, ("mask",), lambda: [Case("", (3,))], (), **TOLD)
    assert check(exercise, causal).status == DONE
    assert check(exercise, lambda n: causal(n).int()).text == "mask must be bool: got torch.int32"
    assert check(exercise, lambda n: causal(n).T).text.startswith("sees the future: mask[0, 1] is True, ")
    assert check(exercise, lambda n: causal(n).tril(-1)).text.startswith("mask[0, 0] is 0, expected 1")

    def additive(length):
        return torch.zeros(length, length).masked_fill(~causal(length), -math.inf)

    exercise = Exercise(additive, ("mask",), lambda: [Case("", (3,))], (), **TOLD)
    assert check(exercise, additive).status == DONE
    assert check(exercise, lambda n: additive(n).clamp(min=-9)).text.startswith("mask[0, 1] is -9, expected -inf")


def unwritten(*_):
    raise NotImplementedError


def lost(scores, mask):
    return scores.no_such_method() * nothing  # noqa: F821


def long_winded(*_):
    raise RuntimeError("a\nb " * 300)


def test_errors_of_a_reader_are_one_line_with_its_number():
    assert check(SELF, lambda *a: unwritten(*a)).text == "not written yet: it needs unwritten"
    assert check(HAND, lambda: [0.25, ..., 0.09]).status == NOT_WRITTEN
    report, line = check(SOFTMAX, lost), inspect.getsourcelines(lost)[1] + 1
    assert report.text == (
        f"AttributeError in line {line}: 'Tensor' object has no attribute 'no_such_method' (some keys hidden)"
    )
    assert check(SOFTMAX, lambda *a: lost(*a)).text == report.text, "the innermost line of the file"
    without_mask = check(SELF, lambda x, wq, wk, wv, mask=None: right(x @ wq @ (x @ wk).T, mask)).text
    assert re.search(r"'NoneType'; in this call mask is None \(without a mask\)$", without_mask), without_mask
    # torch raises NotImplementedError for softmax of bool, which is not "not written yet"
    assert check(SOFTMAX, lambda s, m: torch.softmax(m, dim=1)).text.startswith("NotImplementedError in line ")
    assert check(SOFTMAX, lambda s, m: sys.exit("stop")).text.startswith("SystemExit in line ")
    long = check(SELF, long_winded).text
    assert re.fullmatch(r"RuntimeError in line \d+: [ab ]+ \.\.\. \(without a mask\)", long) and len(long) < 250


def raising(error):
    def function(*_):
        raise error("of the reader's own")

    return function


@pytest.mark.parametrize("error", [RuntimeError, IndexError, ValueError])
def test_errors_are_no_known_mistakes(error):
    """Of two mistakes at once some fail, too."""
    for exercise in (exercise for lesson in LESSONS for exercise in lesson.EXERCISES):
        assert check(exercise, raising(error)).text.startswith(f"{error.__name__} in line ")


def in_place(fill):
    def function(scores, mask):
        scores[~mask] = fill
        return torch.softmax(scores, dim=1).nan_to_num(0)

    return function


def test_changed_inputs_are_noticed():
    said = "your function changed scores, which its caller may still need: make a new tensor"
    assert check(SOFTMAX, in_place(-math.inf)).text == said
    text = check(SOFTMAX, in_place(0)).text
    assert text.startswith("hidden scores set to 0: ") and text.endswith(f"; also, {said}")

    def once(scores, mask):
        weights = right(scores, mask)
        if mask.all():
            scores[0] = 0
        return weights

    assert check(SOFTMAX, once).text == said


# ------------------------------------------------------------------------------------- the command line, and the file


@pytest.fixture
def reader(tmp_path, capsys):
    """A reader of phase 1: runs the exercises on a file in a folder of his own -> exit code, output, errors."""
    folder = tmp_path / "phase1_single_head"
    folder.mkdir()
    stubs = Path(shutil.copy(phase1.__file__, folder))

    def run(*arguments, written=None):
        if written is not None:
            (folder / "my_exercises.py").write_bytes(written if isinstance(written, bytes) else written.encode())
        code = 0
        try:
            exercise_checker.run(str(stubs), phase1.EXERCISES, phase1.AFTERWARDS, list(arguments))
        except SystemExit as stop:
            code = stop.code
        return (code, *capsys.readouterr())

    run.file = folder / "my_exercises.py"
    return run


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_first_run_makes_a_file_of_the_stubs_and_shows_what_there_is_to_do(lesson, tmp_path, capsys):
    stubs = Path(shutil.copy(lesson.__file__, tmp_path))
    with pytest.raises(SystemExit) as stop:
        exercise_checker.run(str(stubs), lesson.EXERCISES, lesson.AFTERWARDS, [])
    said, number = capsys.readouterr().out, len(lesson.EXERCISES)
    made, *table, count, begin, _, time = said.splitlines()
    assert stop.value.code == 1 and count == f"0 of {number} done"
    assert re.fullmatch(r"made \S+/my_exercises.py: write your answers there; git leaves this file alone", made)
    for line, (i, exercise) in zip(table, enumerate(lesson.EXERCISES, start=1), strict=True):
        assert re.split(r"  +", line) == [f"- {i} {exercise.name}", "not written yet", *exercise.about.split(" · ")]
    assert len({len(line) for line in table}) == 1 and len(table[0]) <= 100
    assert begin.startswith(f"Begin with 1 {lesson.EXERCISES[0].name}; for a hint: python ")
    hours, minutes = map(int, re.search(r"estimates; .* (\d+) h (\d+) min\.$", time).groups())
    assert 60 * hours + minutes == sum(exercise.minutes for exercise in lesson.EXERCISES)
    text = (tmp_path / "my_exercises.py").read_text(encoding="utf-8")
    assert not re.search("exercise_checker|EXERCISES|__main__", text)
    for exercise in lesson.EXERCISES:
        assert inspect.getsource(getattr(lesson, exercise.name)) in text


def test_git_ignores_the_file():
    assert "my_exercises.py" in (Path(phase1.__file__).parents[1] / ".gitignore").read_text(encoding="utf-8").split()


RIGHT_SOFTMAX = """
import torch
def masked_softmax(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1).nan_to_num(0)
"""


def test_what_is_written_is_checked_and_never_overwritten(reader):
    code, said, _ = reader("2", written=RIGHT_SOFTMAX)
    assert (code, said) == (0, "+ 2 masked_softmax           done\n")
    code, said, _ = reader()
    assert code == 1 and "made" not in said and reader.file.read_text(encoding="utf-8") == RIGHT_SOFTMAX
    assert said.count("not written yet: your file has no ") == 5
    assert "\n1 of 6 done\nGo on with 1 score_by_hand; " in said


@pytest.mark.parametrize("windows", [RIGHT_SOFTMAX.replace("\n", "\r\n"), "\ufeff" + RIGHT_SOFTMAX])
def test_windows_line_ends_and_a_byte_order_mark_do_no_harm(reader, windows):
    assert reader("2", written=windows)[:2] == (0, "+ 2 masked_softmax           done\n")


def test_lines_are_those_of_the_file(reader):
    wrong = "# one\n# two\ndef masked_softmax(scores, mask):\n    return scores.nothing\n"
    assert "AttributeError in line 4: " in reader("2", written=wrong)[1]
    assert "'int' object is not callable" in reader("2", written="masked_softmax = 3")[1]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("a = 1\ndef f(:\n", "phase1_single_head/my_exercises.py, line 2: SyntaxError: invalid syntax"),
        ("if True:\n\tx = 1\n        y = 2\n", "my_exercises.py, line 3: TabError: "),
        ("import torch\n\nimport no_such_module\n", "line 3: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f():\n    return 1 / 0\n\n\nf()\n", "my_exercises.py, line 2: ZeroDivisionError: division by zero"),
        ("exit(3)\n", "my_exercises.py, line 1: SystemExit: 3"),
        (b"a = '\xff'\n", "my_exercises.py, line 1: SyntaxError: "),
        (b"a = 1\0\n", "my_exercises.py: "),
    ],
)
def test_a_file_that_cannot_be_run_is_one_line(reader, written, message):
    code, said, errors = reader(written=written)
    assert code == 2 and not said and errors.count("\n") == 1 and message in errors, errors


@pytest.mark.parametrize("lesson", LESSONS)
def test_hints_and_solutions_make_nothing(lesson, tmp_path, capsys):
    stubs = Path(shutil.copy(lesson.__file__, tmp_path))
    for number, exercise in enumerate(lesson.EXERCISES, start=1):
        for arguments, which in (["--hint"], 1), (["--hint", "1"], 1), (["--hint", "2"], 2), (["--hint", "3"], 3):
            exercise_checker.run(str(stubs), lesson.EXERCISES, lesson.AFTERWARDS, [str(number), *arguments])
            said = capsys.readouterr().out
            assert said.startswith(f"{number} {exercise.name} · {exercise.about}\nhint {which} of 3: ")
            assert textwrap.indent(exercise.hints[which - 1], "    ") in said
            assert (f" {number} --hint {which + 1}, " in said) == (which < 3)
            assert all(len(line) <= WIDTH for line in said.splitlines())
    exercise_checker.run(str(stubs), lesson.EXERCISES, lesson.AFTERWARDS, ["--solutions"])
    assert capsys.readouterr().out.endswith(f"{len(lesson.EXERCISES)} of {len(lesson.EXERCISES)} done\n")
    assert [path.name for path in tmp_path.iterdir()] == ["exercises.py"]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_reader_who_has_done_all_is_told_what_comes_next(lesson, tmp_path, capsys):
    stubs = Path(shutil.copy(lesson.__file__, tmp_path))
    names = ", ".join(exercise.name for exercise in lesson.EXERCISES)
    written = f"from {lesson.EXERCISES[0].solution.__module__} import {names}"
    (tmp_path / "my_exercises.py").write_text(written, encoding="utf-8")
    exercise_checker.run(str(stubs), lesson.EXERCISES, lesson.AFTERWARDS, [])
    status, said = capsys.readouterr().out.split("\n\n")
    assert status.endswith(f"{len(lesson.EXERCISES)} of {len(lesson.EXERCISES)} done")
    assert said.split() == lesson.AFTERWARDS.split() and said.startswith("You can now ")
    following = re.findall(r"\w+/\w+\.(?:md|py)", said)
    assert following and all((Path(phase1.__file__).parents[1] / path).is_file() for path in following)


# ------------------------------------------------------------------------------------- what is said before they begin


@pytest.mark.parametrize(("lesson", "number", "exercise"), EACH)
def test_a_stub_says_where_it_belongs_how_hard_it_is_and_how_long_it_takes(lesson, number, exercise):
    text = inspect.getdoc(getattr(lesson, exercise.name))
    first, empty, second, _, *others = text.splitlines()
    assert re.match(rf"Exercise {number}[:,] ", first) and not empty and second == f"Lesson: {exercise.about}"
    assert not re.search(r"\b(\d+ min|easy|hard|README)\b", "\n".join(others)), "said once"
    page, folder = exercise.section, Path(lesson.__file__).parent
    if page.endswith(".md"):
        assert (folder / page).is_file()
    else:
        assert f"\n## {page}\n" in (folder / "README.md").read_text(encoding="utf-8")
    assert exercise.level in LEVELS and exercise.minutes % 5 == 0
    assert all(f"{level}: " in " ".join(lesson.__doc__.split()) for level in LEVELS) and "estimate" in lesson.__doc__


@pytest.mark.parametrize(("lesson", "number", "exercise"), EACH)
def test_hints_go_from_the_idea_to_the_whole(lesson, number, exercise):
    idea, steps, whole = exercise.hints
    assert len(idea) < 300 and not re.search(r"^for |[@=] ", idea, re.M), "an idea, not a formula"
    assert not re.search(r"^ *(for|return) ", steps, re.M) and len(steps.splitlines()) >= 3, "steps, not the code"
    assert re.search(r"^ *for .*:$", whole, re.M)


@pytest.mark.parametrize("choice", ["4", "additive_attention"])
def test_one_exercise_can_be_checked_alone(choice, reader):
    assert reader("--solutions", choice)[:2] == (0, "+ 4 additive_attention       done\n")


def test_what_is_wrong_is_printed_in_lines_of_a_readable_width(reader):
    wrong = "def masked_softmax(scores, mask):\n    return scores.masked_fill(~mask, -1e9).softmax(-1)\n"
    code, said, _ = reader(written=wrong)
    assert code == 1 and re.search(r"^x 2 masked_softmax +hidden scores set to a finite number: ", said, re.M)
    assert all(len(line) <= WIDTH for line in said.splitlines()) and len(said.splitlines()) > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["7"], "no exercise '7': choose from 1 score_by_hand, 2 masked_softmax, 3 self_att"),
        (["attention"], "no exercise 'attention'"),
        (["9", "--hint"], "no exercise '9'"),
        (["--hint"], "a hint for which exercise? Put its number or name first, as in: python phase1_single_head/exer"),
        (["--hint", "3"], "a hint for which exercise?"),
        (["3", "--hint", "4"], "there are hints 1, 2 and 3, no '4'; the exercise comes first, as in: "),
        (["3", "--hint", "x"], "there are hints 1, 2 and 3, no 'x'"),
        (["--hint", "self_attention"], "no 'self_attention'; the exercise comes first, as in: python phase1_single_he"),
        (["--solution"], "unrecognized arguments: --solution"),
        (["1", "2"], "unrecognized arguments: 2"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message, reader):
    code, said, errors = reader(*arguments)
    assert code == 2 and message in errors and errors.count("\n") == 1 and not said
    assert not reader.file.exists()
