"""Every check says "open" to an untouched exercise, "right" to solutions, "wrong" to typical mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

from spin_core import lessons, theory

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


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
    for check in (lessons.check_replacement_law, lessons.check_choose_gamma):
        assert check(lambda *_: answer).status == "open"


def test_replacement_law_right():
    assert lessons.check_replacement_law(right_replacement).status == "right"


@pytest.mark.parametrize("name", WRONG_REPLACEMENTS)
def test_replacement_law_wrong(name):
    solution, reason = WRONG_REPLACEMENTS[name]
    answer = lessons.check_replacement_law(solution)
    assert answer.status == "wrong"
    assert reason in answer.message


def test_replacement_law_must_not_change_its_inputs():
    def solution(p, q):
        law = right_replacement(p, q)
        p -= q
        return law

    assert "changes its inputs" in lessons.check_replacement_law(solution).message


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
    assert lessons.check_choose_gamma(right_gamma).status == "right"
    assert lessons.check_choose_gamma(lambda a, c: np.int64(right_gamma(a, c))).status == "right"


@pytest.mark.parametrize("name", WRONG_GAMMAS)
def test_choose_gamma_wrong(name):
    solution, reason = WRONG_GAMMAS[name]
    answer = lessons.check_choose_gamma(solution)
    assert answer.status == "wrong"
    assert reason in answer.message


def test_answers_show_as_text_and_as_html():
    answer = lessons.Answer("wrong", "p < q & so on")
    assert repr(answer) == "✘ p < q & so on"
    assert "p &lt; q &amp; so on" in answer._repr_html_()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_solutions_that_a_lesson_shows_are_right_and_its_exercise_cells_open(path):
    """A lesson hides a solution in a <details> block; the cell that checks it names function and check."""
    notebook = nbformat.read(path, as_version=4)
    solutions = [m for cell in notebook.cells if cell.cell_type == "markdown"
                 for m in re.findall(r"<details>.*?```python\n(.*?)```", cell.source, re.DOTALL)]
    checks = [re.search(r"(?:lessons\.)?(check_\w+)\((\w+)\)", cell.source) for cell in notebook.cells
              if cell.cell_type == "code"]
    checks = [m for m in checks if m]
    if not checks:
        pytest.skip("no exercises")
    assert len(solutions) == len(checks) == 2
    for match, solution in zip(checks, solutions):
        check, name = getattr(lessons, match[1]), match[2]
        untouched = next(cell.source for cell in notebook.cells
                         if cell.cell_type == "code" and f"def {name}(" in cell.source)
        space = {"np": np, "theory": theory}
        exec(untouched, space)
        assert check(space[name]).status == "open"
        exec(solution, space)
        assert check(space[name]).status == "right"
