"""Every check says "open" to an untouched exercise, "right" to solutions, "wrong" to typical mistakes."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

from spin_core import theory
from spin_core.lab import lessons
from spin_core.lab.lessons import checking
from spin_core.lab.lessons.l1_speculation import checks

MODULES = list(pkgutil.walk_packages(lessons.__path__, "spin_core.lab.lessons."))
NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("0[1-9]*.ipynb"))


def right_replacement(p, q):
    rest = np.maximum(p - q, 0)
    return rest / rest.sum() if rest.sum() > 0 else p


WRONG_REPLACEMENTS = {
    "draws from p again": (lambda p, q: p, "would be emitted with probability"),
    "forgets that p may equal q": (lambda p, q: (r := np.maximum(p - q, 0)) / r.sum(), "not finite"),
    "does not normalise": (lambda p, q: np.maximum(p - q, 0), "sums to 1"),
    "forgets to clip": (lambda p, q: p - q, "not negative"),
    "absolute difference": (lambda p, q: abs(p - q) / abs(p - q).sum() if (p != q).any() else p,
                            "would be emitted"),
    "wrong shape": (lambda p, q: np.append(p, 0), "shape"),
    "not an array": (lambda p, q: "residual", "array of numbers"),
    "raises": (lambda p, q: 1 / 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("answer", [None, ...])
def test_untouched_exercises_are_open(answer):
    for check in (checks.check_replacement_distribution, checks.check_choose_gamma):
        assert check(lambda *_: answer).status == "open"


def test_replacement_right():
    assert checks.check_replacement_distribution(right_replacement).status == "right"


@pytest.mark.parametrize("name", WRONG_REPLACEMENTS)
def test_replacement_wrong(name):
    solution, reason = WRONG_REPLACEMENTS[name]
    answer = checks.check_replacement_distribution(solution)
    assert answer.status == "wrong"
    assert reason in answer.message


def test_replacement_must_not_change_its_inputs():
    def solution(p, q):
        distribution = right_replacement(p, q)
        p -= q
        return distribution

    assert "changes its inputs" in checks.check_replacement_distribution(solution).message


def right_loop(p, q, drafted, rng):
    emitted = []
    for j, x in enumerate(drafted):
        if rng.random() * q[j][x] >= p[j][x]:
            return [*emitted, rng.choice(len(p[j]), p=right_replacement(p[j], q[j]))]
        emitted.append(x)
    return [*emitted, rng.choice(len(p[0]), p=p[len(drafted)])]


def loop_with(accepts=lambda u, p, q: u * q < p, rest=right_replacement, goes_on=False):
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
    "goes on behind a rejection": (loop_with(goes_on=True), "ends at the first rejection"),
    "accepts too seldom": (loop_with(lambda u, p, q: u * q < .8 * p or p == q), "BIASED"),
    "no bonus": (lambda p, q, drafted, rng: right_loop(p, q, drafted, rng)[:len(drafted)], "one more token"),
    "a number": (lambda p, q, drafted, rng: 3, "list of token ids"),
    "no return": (lambda p, q, drafted, rng: right_loop(p, q, drafted, rng) and None, "return statement"),
    "changes the draft": (lambda p, q, drafted, rng: drafted.append(0) or right_loop(p, q, drafted[:-1], rng), "inputs"),
    "raises": (lambda *_: 1 / 0, "ZeroDivisionError"),
}


def test_accept_reject_right():
    assert (answer := checks.check_accept_reject(right_loop)).status == "right" and "LOSSLESS" in answer.message
    assert checks.check_accept_reject(lambda *given: np.array(right_loop(*given))).status == "right"
    assert checks.check_accept_reject(lambda p, q, drafted, rng: ...).status == "open"


@pytest.mark.parametrize("name", WRONG_LOOPS)
def test_accept_reject_wrong(name):
    solution, reason = WRONG_LOOPS[name]
    answer = checks.check_accept_reject(solution)
    assert answer.status == "wrong" and reason in answer.message


def test_the_distribution_test_tells_a_lossless_loop_from_a_biased_one():
    assert checks.is_lossless(right_loop).status == "right"
    answer = checks.is_lossless(loop_with(rest=lambda p, q: p))
    assert answer.status == "wrong" and "BIASED" in answer.message and "the target gives it 0.50" in answer.message


@pytest.mark.parametrize("check, solution", [
    (checks.check_choose_gamma, lambda alpha, cost: theory.best_gamma(alpha, cost)[0] and None),
    (checks.check_replacement_distribution, lambda p, q: print(end="") or None)])
def test_a_missing_return_is_named(check, solution):
    assert "Is a return statement missing?" in check(solution).message


def right_gamma(alpha, cost):
    return max(range(65), key=lambda g: theory.expected_tokens(alpha, g) / (g * cost + 1))


WRONG_GAMMAS = {
    "always drafts": (lambda a, c: max(1, right_gamma(a, c)), "Is speculation always worth it?"),
    "ignores the cost": (lambda a, c: right_gamma(a, 0.0), "another gamma gives"),
    "off by one": (lambda a, c: right_gamma(a, c) + 1, "another gamma gives"),
    "never drafts": (lambda a, c: 0, "another gamma gives"),
    "too long": (lambda a, c: 1000, "not in 0 ... 64"),
    "not whole": (lambda a, c: 3.5, "whole number"),
    "raises": (lambda a, c: [][0], "IndexError"),
}


def test_choose_gamma_right():
    assert checks.check_choose_gamma(right_gamma).status == "right"
    assert checks.check_choose_gamma(lambda a, c: np.int64(right_gamma(a, c))).status == "right"


@pytest.mark.parametrize("name", WRONG_GAMMAS)
def test_choose_gamma_wrong(name):
    solution, reason = WRONG_GAMMAS[name]
    answer = checks.check_choose_gamma(solution)
    assert answer.status == "wrong"
    assert reason in answer.message


def test_answers_show_as_text_and_as_html():
    answer = checking.Answer("wrong", "p < q & so on")
    assert repr(answer) == "✘ p < q & so on"
    assert "p &lt; q &amp; so on" in answer._repr_html_()


def check_called(name: str):
    """A check by its name, from whichever module of the lessons has it."""
    for module in MODULES:
        found = getattr(importlib.import_module(module.name), name, None)
        if found:
            return found
    raise AssertionError(f"no lesson has {name}")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_solutions_that_a_lesson_shows_are_right_and_its_exercise_cells_open(path):
    """A lesson hides a solution in a <details> block; a cell that checks it names function and check. Kernels, which
    need more than a function, are checked in the lesson's own tests."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    solutions = [m for cell in notebook.cells if cell.cell_type == "markdown"
                 for m in re.findall(r"<details>.*?```python\n(.*?)```", cell.source, re.DOTALL)]
    checked = [m for source in code for m in re.findall(r"\b(check_\w+)\((\w+)\)", source)]
    checked = [(check, name) for check, name in checked if any(f"def {name}(" in s for s in solutions)]
    assert len(solutions) >= 2 and checked
    for check, name in checked:
        untouched = next(source for source in code if f"def {name}(" in source)
        untouched = untouched[untouched.index(f"def {name}("):].split("\n\n\n")[0]
        space = {"np": np, "theory": theory}
        exec(untouched, space)
        assert check_called(check)(space[name]).status == "open"
        exec(next(s for s in solutions if f"def {name}(" in s), space)
        assert check_called(check)(space[name]).status == "right"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS[0].parent.glob("*.ipynb")), ids=lambda p: p.stem)
def test_links_of_a_lesson_lead_to_files_that_exist(path):
    texts = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    links = [link for text in texts for link in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in link]
    assert links and not [link for link in links if not (path.parent / link).exists()]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS[0].parent.glob("*.ipynb")), ids=lambda p: p.stem)
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


# every check of a function that a student writes (a kernel's check takes a "rung")
CHECKS = {name: function for module in MODULES
          for name, function in vars(importlib.import_module(module.name)).items()
          if name.startswith("check_") and list(inspect.signature(function).parameters) == ["solution"]}


@pytest.mark.parametrize("answer", ["three", float("nan"), -1, [None] * 4, np.array([1.0, 2.0]), [10 ** 6] * 4, {}, object])
@pytest.mark.parametrize("name", CHECKS)
def test_what_is_no_answer_is_wrong_and_never_raises(name, answer):
    assert CHECKS[name](lambda *given: answer).status == "wrong"


def test_the_rarest_ids_are_no_vocabulary_even_if_the_stop_id_is_frequent():
    def lazy(counts, size, stops):
        frequent = list(np.argsort(counts)[::-1][:size - len(stops)])
        ids = dict.fromkeys([*stops, *frequent])
        return sorted([*ids, *[i for i in range(len(counts)) if i not in ids]][:size] if len(ids) < size else ids)
    assert CHECKS["check_vocabulary"](lazy).status == "wrong"


def test_a_budget_is_not_where_the_first_position_loses():
    def hasty(worth, cost):
        values = sorted((w for row in worth for w in row), reverse=True)
        rates = [(len(worth) + sum(values[:n])) / cost(len(worth) + n) for n in range(len(values) + 1)]
        return next((n for n in range(len(values)) if rates[n + 1] <= rates[n]), len(values))
    verdict = CHECKS["check_budget"](hasty)
    assert verdict.status == "wrong" and "step" in verdict.message
