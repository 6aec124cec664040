"""Checks of the exercises. A check never raises: it says "open", "right" or "wrong", and why."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from numbers import Real
from typing import Any

import numpy as np

from spin_core import theory

_MARKS = {"right": "✔", "wrong": "✘", "open": "○"}
_COLOURS = {"right": "#009E73", "wrong": "#D55E00", "open": "#777777"}


@dataclass
class Answer:
    """The verdict on an exercise: ``status`` is "open", "right" or "wrong", ``message`` says why."""

    status: str
    message: str

    def __repr__(self) -> str:
        return f"{_MARKS[self.status]} {self.message}"

    def _repr_html_(self) -> str:
        return (f'<div style="border-left: 4px solid {_COLOURS[self.status]}; padding: .4em .8em">'
                f"{html.escape(repr(self))}</div>")


OPEN = Answer("open", "Not solved yet: replace the ... above and run both cells again.")


def attempt(solution: Callable, *args, called: str = "Your function") -> tuple[Any, Answer | None]:
    """What the reader's function returns, and the verdict if that is settled by now: it raised, or is not written yet.
    ``called``: how to name the call that raised."""
    try:
        with np.errstate(all="ignore"):
            answer = solution(*args)
    except Exception as error:
        why = "it divides by zero" if isinstance(error, ZeroDivisionError) else error
        return None, Answer("wrong", f"{called} raised {type(error).__name__}: {why}")
    return answer, OPEN if answer is None or answer is Ellipsis else None


def close(answer: Any, right: float, tolerance: float) -> bool:
    """Is it a number, and no further than ``tolerance`` from the right one? NaN is not."""
    try:
        return abs(float(answer) - right) <= tolerance
    except (TypeError, ValueError):
        return False


def said(answer: Any) -> str:
    """The answer in a message: a number with four digits, anything else as it is."""
    return f"{float(answer):.4g}" if isinstance(answer, Real) else repr(answer)


def check(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """A check of an exercise: what it cannot compare with the right answer is wrong, and nothing is raised."""
    @wraps(function)
    def checked(*args, **options) -> Answer:
        try:
            return function(*args, **options)
        except Exception as error:
            return Answer("wrong", f"What your function returns cannot be compared with what is expected "
                                   f"({type(error).__name__}: {error}).")
    return checked


@check
def check_replacement_distribution(solution: Callable) -> Answer:
    """Exercise 1.1: ``solution(p, q)``, arrays ``[V]``, is the distribution of the token that replaces a rejected one.

    Checked through the distribution of what is emitted: min(p, q) by acceptance, and the rest of the mass by
    replacement, must make p together.
    """
    rng = np.random.default_rng(0)
    pairs = [(rng.dirichlet(np.full(v, a)), rng.dirichlet(np.full(v, b)))
             for v, a, b in ((3, 1.0, 1.0), (6, 0.3, 0.3), (6, 3.0, 0.2), (50, 0.1, 1.0))]
    same = rng.dirichlet(np.ones(5))
    for p, q in [*pairs, (np.array([0.0, 0.4, 0.6]), np.array([1.0, 0.0, 0.0])), (same, same.copy())]:
        given = p.copy(), q.copy()
        answer, verdict = attempt(solution, *given)
        if verdict:
            return verdict
        example = f"for p = {_show(p)} and q = {_show(q)}"
        try:
            answer = np.asarray(answer, float)
        except (TypeError, ValueError):
            return Answer("wrong", f"A law is an array of numbers; yours is {answer!r} {example}.")
        if not (np.array_equal(given[0], p) and np.array_equal(given[1], q)):
            return Answer("wrong", "Your function changes its inputs; the caller still needs p and q.")
        if answer.shape != p.shape:
            return Answer("wrong", f"The law has shape {answer.shape}, expected {p.shape} {example}.")
        if not np.isfinite(answer).all():
            return Answer("wrong", f"The law is not finite {example}. What is left of p when p equals q?")
        if (answer < 0).any() or abs(answer.sum() - 1) > 1e-9:
            return Answer("wrong",
                          f"A law is not negative and sums to 1; yours is {_show(answer)} {example}.")
        accepted = np.minimum(p, q)
        emitted = accepted + (1 - accepted.sum()) * answer
        token = int(np.argmax(np.abs(emitted - p)))
        if abs(emitted[token] - p[token]) > 1e-9:
            return Answer("wrong", f"Token {token} would be emitted with probability {emitted[token]:.3f}, "
                                   f"but the target gives it {p[token]:.3f}, {example}.")
    return Answer("right", "Accepted and replaced tokens together follow p, whatever q is: the whole trick.")


@check
def check_choose_gamma(solution: Callable) -> Answer:
    """Exercise 1.2: ``solution(alpha, cost)`` is the gamma in 0 .. 64 of the largest speed-up."""
    for alpha, cost in ((0.8, 0.05), (0.6, 0.05), (0.8, 0.1), (0.5, 0.3), (0.9, 0.02), (0.3, 0.4),
                        (0.05, 0.2), (0.0, 0.1)):
        answer, verdict = attempt(solution, alpha, cost, called=f"choose_gamma({alpha}, {cost})")
        if verdict:
            return verdict
        best, gain = theory.best_gamma(alpha, cost)
        if isinstance(answer, bool) or not isinstance(answer, (int, np.integer)):
            return Answer("wrong",
                          f"choose_gamma({alpha}, {cost}) should be a whole number, it is {answer!r}.")
        if not 0 <= answer <= 64:
            return Answer("wrong", f"choose_gamma({alpha}, {cost}) = {answer} is not in 0 ... 64.")
        yours = float(theory.speed_up(alpha, answer, cost))
        if yours < gain - 1e-12:
            hint = " Is speculation always worth it?" if best == 0 else ""
            return Answer("wrong", f"For alpha = {alpha} and c = {cost}, gamma = {answer} gives a speed-up "
                                   f"of {yours:.3f}; another gamma gives {gain:.3f}.{hint}")
    return Answer("right", "The best gamma grows with alpha and falls with c; it is 0 where c exceeds alpha.")


def _show(distribution: np.ndarray) -> str:
    few = ", ".join(f"{x:.2f}" for x in distribution[:6])
    return f"[{few}{', ...' if len(distribution) > 6 else ''}]"
