"""The lessons' exercises: every typical mistake is caught with its own hint; solutions are in step with the lessons."""

from __future__ import annotations

import ast
import builtins
import copy
import importlib
import inspect
import json
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from spin_core.lab.lessons import checking, grade, solutions
from spin_core.lab.lessons.l1_speculation.checks import (
    accept_reject, check_accept_reject, is_lossless, replacement)

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))
LESSONS = NOTEBOOKS[1:]
EXERCISES = solutions.exercises()
COMPARED = {name: one for name, one in EXERCISES.items() if one.test is None}
MISTAKES = [(name, hint) for name, one in COMPARED.items() for hint in one.mistakes]


def wrong(name: str, function) -> str:
    """The message of a check, which must not be content."""
    answer = EXERCISES[name](function)
    assert answer.status == "wrong", (name, answer)
    return answer.message


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_is_right_and_the_untouched_exercise_open(name):
    assert EXERCISES[name](EXERCISES[name].solution).status == "right"
    assert EXERCISES[name](lambda *given: ...).status == EXERCISES[name](lambda *given: None).status == "open"

    def as_nbgrader_gives_it(*given):
        raise NotImplementedError
    assert EXERCISES[name](as_nbgrader_gives_it).status == "open"


@pytest.mark.parametrize("name, hint", MISTAKES)
def test_a_typical_mistake_is_caught_with_its_own_hint(name, hint):
    assert wrong(name, EXERCISES[name].mistakes[hint]).endswith(hint)


@pytest.mark.parametrize("name", EXERCISES)
def test_what_is_no_answer_is_said(name):
    assert "Is a return statement missing?" in wrong(name, lambda *given: print(end=""))
    assert "ZeroDivisionError" in wrong(name, lambda *given: 1 / 0)
    for value in ("three", {}, object, [None] * 4, True, np.array([[1.0, 2.0]] * 2), -1, [10 ** 6] * 4, [[1], [1, 2]]):
        wrong(name, lambda *given: value)


@pytest.mark.parametrize("name", COMPARED)
def test_wrong_type_shape_nan_and_changed_inputs_are_told_apart(name):
    one = COMPARED[name]
    boolean = np.asarray(one.solution(*copy.deepcopy(one.cases[0]))).dtype.kind == "b"
    assert "should be" in wrong(name, lambda *given: str(one.solution(*given)))
    assert "shape" in wrong(name, lambda *given: np.append(one.solution(*given), boolean))
    if not boolean:
        assert "not finite" in wrong(name, lambda *given: np.asarray(one.solution(*given)) * np.nan)

    def changing(*given):
        answer = one.solution(*copy.deepcopy(given))
        for argument in given:
            if isinstance(argument, list):
                argument.append(0)
            elif isinstance(argument, np.ndarray):
                argument += 1
        return answer
    if any(isinstance(argument, (list, np.ndarray)) for argument in one.cases[0]):
        assert "changes its inputs" in wrong(name, changing)


def test_a_slip_without_a_hint_shows_what_was_expected():
    assert wrong("check_rows", lambda lengths, width: 7) == "rows(lengths=[5], width=5) is 7, expected 1."
    assert "worth=[[0.9, 0.8, 0.7], [0.5, 0.2, 0.1]], cost)" in wrong("check_budget", lambda worth, cost: 5)
    assert "which is not in 0 ... 64" in wrong("check_choose_gamma", lambda alpha, cost: 1000)


def test_ragged_lists_and_tensors_with_a_gradient_get_a_verdict():
    assert "should be a number; it is [[1], [1, 2]], a list" in wrong("check_finish", lambda *given: [[1], [1, 2]])
    check = EXERCISES["check_finish"]

    def with_gradient(function):
        return lambda *given: torch.tensor(function(*given), dtype=torch.float64, requires_grad=True)
    assert check(with_gradient(check.solution)).status == "right"
    hint, mistake = next(iter(check.mistakes.items()))
    assert wrong("check_finish", with_gradient(mistake)).endswith(hint)


# ---- lesson 1's loop, whose random numbers cannot be compared

def loop_with(accepts=lambda u, p, q: u * q < p, rest=replacement, goes_on=False):
    """The loop with another test, another replacement, or one that goes on behind a rejection."""
    def loop(p, q, drafted, rng):
        emitted = []
        for j, x in enumerate(drafted):
            if accepts(rng.random(), p[j][x], q[j][x]):
                emitted.append(x)
                continue
            emitted.append(rng.choice(len(p[j]), p=rest(p[j], q[j])))
            if not goes_on:
                return emitted
        return [*emitted, rng.choice(len(p[0]), p=p[len(drafted)])]
    return loop


WRONG_LOOPS = {
    "accepts everything": (loop_with(lambda u, p, q: True), "p = 0"),
    "accepts with probability p": (loop_with(lambda u, p, q: u < p), "every drafted token is accepted"),
    "p and q exchanged": (loop_with(lambda u, p, q: u * p < q), "p = 0"),
    "replaces from p": (loop_with(rest=lambda p, q: p), "not from p"),
    "replaces by the likeliest": (loop_with(rest=lambda p, q: np.eye(len(p))[np.argmax(p - q)]), "Draw in proportion"),
    "replaces by any of the residual": (loop_with(rest=lambda p, q: (p > q) / (p > q).sum()), "Draw in proportion"),
    "bonus from the wrong row": (
        lambda p, q, drafted, rng: accept_reject(np.vstack([p[:-1], p[-2]]), q, drafted, rng), "BIASED"),
    "goes on behind a rejection": (loop_with(goes_on=True), "ends at the first rejection"),
    "residual not divided": (loop_with(rest=lambda p, q: np.maximum(p - q, 0)), "Divide the residual by its sum"),
    "accepts too seldom": (loop_with(lambda u, p, q: u * q < .8 * p or p == q), "BIASED"),
    "no bonus": (lambda *given: accept_reject(*given)[:len(given[2])], "one more token"),
    "a number": (lambda *given: 3, "list of token ids"),
    "fractions": (lambda *given: [x + .5 for x in accept_reject(*given)], "list of token ids"),
    "changes the draft": (lambda p, q, draft, rng: draft.append(0) or accept_reject(p, q, draft[:-1], rng), "inputs"),
}


@pytest.mark.parametrize("name", WRONG_LOOPS)
def test_a_wrong_loop_is_caught(name):
    loop, reason = WRONG_LOOPS[name]
    assert reason in wrong("check_accept_reject", loop)


def test_the_distribution_test_tells_a_lossless_loop_from_a_biased_one():
    assert "LOSSLESS" in check_accept_reject(accept_reject).message
    assert check_accept_reject(lambda *given: np.array(accept_reject(*given))).status == "right"
    assert is_lossless(accept_reject).status == "right"
    answer = is_lossless(loop_with(rest=lambda p, q: p))
    assert answer.status == "wrong" and "BIASED" in answer.message and "the target gives it 0.50" in answer.message


def test_answers_show_as_text_and_as_html():
    answer = checking.Answer("wrong", "p < q & so on")
    assert repr(answer) == "✘ p < q & so on"
    assert "p &lt; q &amp; so on" in answer._repr_html_()


# ---- solutions, nbgrader, grades

@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_solutions_are_in_step_with_the_lessons(path):
    """After a change: python -m spin_core.lab.lessons.solutions"""
    solved = solutions.solved(json.loads(path.read_text()), EXERCISES)
    assert solved == json.loads((path.parent / "solutions" / path.name).read_text()), "write the solutions again"


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_a_solution_uses_no_name_that_its_lesson_does_not_bring(path):
    solved = solutions.solved(json.loads(path.read_text()), EXERCISES)
    nodes = [node for cell in solved["cells"] if cell["cell_type"] == "code"
             for node in ast.walk(ast.parse(solutions.source(cell)))]
    given = {alias.asname or alias.name for node in nodes for alias in getattr(node, "names", ())
             if isinstance(alias, ast.alias)}
    given |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    given |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    given |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for task, _ in solutions.graded(solved):
        used = {node.id for node in ast.walk(ast.parse(solutions.source(task)))
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        assert used <= given | set(dir(builtins)), used - given


def test_every_exercise_is_in_a_lesson_with_a_task_a_check_and_points():
    checks, ids = [], []
    for path in LESSONS:
        notebook = nbformat.read(path, as_version=4)
        pairs = list(solutions.graded(notebook))
        assert 2 <= len(pairs) <= 4, path.name
        for task, check in pairs:
            ids.append(task.metadata.nbgrader.grade_id)
            name = re.fullmatch(r"checks\.(check_\w+)\((\w+)\)", check.source)
            checks.append(name[1])
            assert f"def {name[2]}{inspect.signature(EXERCISES[name[1]].solution)}:" in task.source
            assert check.metadata.nbgrader.points > 0 and check.metadata.nbgrader.locked
    assert sorted(checks) == sorted(EXERCISES) and len(set(ids)) == len(ids)


def test_nbgrader_sees_an_error_unless_the_answer_is_right(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    check = EXERCISES["check_rows_read"]
    assert check(check.solution).status == "right"
    for function in (lambda drafted, accepted: 0, lambda drafted, accepted: ...):
        with pytest.raises(AssertionError):
            check(function)


def test_grade_gives_points_to_right_answers_and_survives_all_others(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    path = Path(tmp_path.name) / "04_decomposition.ipynb"
    assert _grade(path, {"rows": "def rows(lengths, width):\n    while True: pass", "padding": helper_in_a_cell_of_its_own,
                         "merge": "def merge(outs, lses):\n    import os; os._exit(0)"}) == [1, 0, 0]
    args = grade.argparse.Namespace(where=[path.parent], seconds=5, json=str(tmp_path / "scores.json"))
    path.write_text("{")
    assert grade.run(args) == 0 and "cannot be read" in capsys.readouterr().out
    assert [s["points"] for s in json.loads((tmp_path / "scores.json").read_text())["scores"]] == [0, 0, 0]
    with pytest.raises(ValueError, match="no lessons"):
        grade.run(grade.argparse.Namespace(where=[tmp_path / "empty"], seconds=1, json=None))


def test_what_an_answer_writes_on_the_output_neither_ends_the_grading_nor_gives_points(tmp_path):
    path = tmp_path / "04_decomposition.ipynb"
    forged = """import os; os.system('echo {\\"status\\": \\"right\\", \\"message\\": \\"\\"}')"""
    anywhere = """
for fd in range(3, 99):
    try: os.write(fd, b'hello \\xff\\n')
    except OSError: pass"""
    assert _grade(path, {"padding": f"import os; os.system('echo hello')\n{helper_in_a_cell_of_its_own}",
                         "rows": f"{forged}\ndef rows(lengths, width):\n    return 7", "merge": anywhere}) == [1, 0, 0]


def test_magics_and_shell_lines_cost_no_points(tmp_path):
    magics = f"%%time\n{helper_in_a_cell_of_its_own}\nif True:\n    %timeit padding([1])\n!ls\npadding?"
    assert _grade(tmp_path / "04_decomposition.ipynb", {"padding": magics, "rows": "", "merge": ""}) == [1, 0, 0]
    python = "x = (7\n % 4)"
    assert grade._python(python) == python


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_seconds_are_finite_and_above_0(seconds, tmp_path):
    with pytest.raises(ValueError, match="finite number above 0"):
        grade.run(grade.argparse.Namespace(where=[tmp_path], seconds=seconds, json=None))


def test_what_is_not_graded_is_named_and_stops_no_other(tmp_path, capsys):
    for name in ("nope.ipynb", "04_decomposition.ipynb"):
        (tmp_path / name).write_text("{")
    paths = [tmp_path / "nope.ipynb", tmp_path / "missing" / "04_decomposition.ipynb", tmp_path / "gone"]
    grade.run(grade.argparse.Namespace(where=[*paths, tmp_path / "04_decomposition.ipynb"], seconds=5, json=None))
    said = capsys.readouterr().out
    assert [f"{path}: not graded, {why}" in said for path, why in zip(paths, ("no lesson", "there is no", "there is no"))
            ] == [True] * 3 and "04_decomposition.ipynb: 0 of" in said


helper_in_a_cell_of_its_own = "def padding(lengths):\n    print('noise')\n    return math.fsum([1, -filled(lengths)])"


def _grade(path: Path, answers: dict[str, str]) -> list[float]:
    notebook = nbformat.read(LESSONS[0].parent / path.name, as_version=4)
    for task, _ in solutions.graded(notebook):
        task.source = answers[task.metadata.nbgrader.grade_id.split("-")[1]]
    notebook.cells[2].source += "\nimport math"
    notebook.cells.insert(1, nbformat.v4.new_code_cell("def filled(n):\n    return sum(n) / (len(n) * max(n))"))
    notebook.cells.insert(2, nbformat.v4.new_code_cell("this needs the rest of the lesson"))
    nbformat.write(notebook, path)
    return [score.points for score in grade.grade(path, 5)]


# ---- what a notebook refers to

@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_links_of_a_lesson_lead_to_files_that_exist(path):
    for folder in {path.parent, path.parent / "solutions" if path in LESSONS else path.parent}:
        cells = nbformat.read(folder / path.name, as_version=4).cells
        links = [link for cell in cells if cell.cell_type == "markdown"
                 for link in re.findall(r"\]\(([^)#\s]+)\)", cell.source) if "://" not in link]
        assert links and not [link for link in links if not (folder / link).exists()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_names_that_a_lesson_takes_from_the_package_exist(path):
    """A move or a renaming in the package is noticed here, without running the lesson."""
    code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    tree, modules = ast.parse(code), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("spin_core"):
            for alias in node.names:
                found = getattr(importlib.import_module(node.module), alias.name, None)
                found = found or importlib.import_module(f"{node.module}.{alias.name}")
                if inspect.ismodule(found):
                    modules[alias.asname or alias.name] = found
    used = {(node.value.id, node.attr) for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules}
    assert not [f"{name}.{attribute}" for name, attribute in used if not hasattr(modules[name], attribute)]
