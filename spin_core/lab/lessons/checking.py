"""Tools for the checks of the exercises. A check never raises: it answers "open", "right" or "wrong", and why.

A lesson's ``checks.py`` has one function for each exercise. It calls the student's function through :func:`ask`,
reports a mistake through :func:`wrong`, and returns what there is to say about a right answer.
"""

from __future__ import annotations

import copy
import dis
import html
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from numbers import Real
from typing import Any, NoReturn

import numpy as np

_MARKS = {"right": "✔", "wrong": "✘", "open": "○"}
_COLOURS = {"right": "#009E73", "wrong": "#D55E00", "open": "#777777"}
_EMPTY_BODY = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "POP_TOP", "COPY_FREE_VARS",
               "LOAD_DEREF"}


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


class Settled(Exception):
    """Ends a check early; ``args[0]`` is the :class:`Answer`."""


def wrong(message: str) -> NoReturn:
    """The answer is wrong, and ``message`` says what is wrong with it."""
    raise Settled(Answer("wrong", message))


def check(function: Callable[..., str]) -> Callable[..., Answer]:
    """Make a check of ``function``, which returns what to say about a right answer."""
    @wraps(function)
    def checked(*args, **options) -> Answer:
        try:
            return Answer("right", function(*args, **options))
        except Settled as settled:
            return settled.args[0]
        except Exception as error:
            return Answer("wrong", "What your function returns cannot be compared with the right answer "
                                   f"({type(error).__name__}: {error}).")
    return checked


def ask(solution: Callable, *args, called: str = "Your function", in_place: bool = False) -> Any:
    """What the student's function returns for ``args``. The check ends here if the function is not written yet, raises,
    returns nothing, or changes its arguments; a function that works ``in_place`` may do the last two. ``called`` names
    the call in messages."""
    given = [argument if in_place or callable(argument) else copy.deepcopy(argument) for argument in args]
    try:
        with np.errstate(all="ignore"):
            answer = solution(*given)
    except Exception as error:
        why = "it divides by zero" if isinstance(error, ZeroDivisionError) else str(error)[:200]
        wrong(f"{called} raised {type(error).__name__}: {why}")
    if answer is Ellipsis or not in_place and answer is None and _is_untouched(solution):
        raise Settled(Answer("open", "Not solved yet: replace the ... above and run both cells again."))
    if not in_place:
        if answer is None:
            wrong(f"{called} returns None. Is a return statement missing?")
        if not all(map(_same, given, args)):
            wrong("Your function changes its inputs, which the caller still needs. Work on a copy.")
    return answer


def array(answer: Any, shape: tuple[int, ...], what: str, example: str = "") -> np.ndarray:
    """The answer as an array of floats of that ``shape``; ``what`` names it, and ``example`` the case, in messages."""
    try:
        values = np.asarray(answer, float)
    except (TypeError, ValueError):
        wrong(f"{what} is an array of numbers; yours is {said(answer)} {example}".rstrip() + ".")
    if values.shape != shape:
        wrong(f"{what} has shape {values.shape}, expected {shape} {example}".rstrip() + ".")
    return values


def whole(answer: Any, low: int, high: int, called: str) -> int:
    """The answer as a whole number from ``low`` to ``high``."""
    if isinstance(answer, bool) or not isinstance(answer, (int, np.integer)):
        wrong(f"{called} should be a whole number, it is {said(answer)}.")
    if not low <= answer <= high:
        wrong(f"{called} = {answer} is not in {low} ... {high}.")
    return int(answer)


def close(answer: Any, right: float, tolerance: float) -> bool:
    """Whether the answer is a number no further than ``tolerance`` from the right one. NaN is not."""
    try:
        return abs(float(answer) - right) <= tolerance
    except (TypeError, ValueError):
        return False


def said(answer: Any) -> str:
    """The answer in a message: a number with four digits, anything else as it is, shortened."""
    return f"{float(answer):.4g}" if isinstance(answer, Real) else repr(answer)[:200]


def few(numbers, most: int = 6, form: str = "") -> str:
    """A list of numbers in a message, the first ``most`` of them."""
    return f"[{', '.join(format(n, form) for n in numbers[:most])}{', ...' if len(numbers) > most else ''}]"


def _is_untouched(solution: Callable) -> bool:
    """Whether the function's body is still the exercise's docstring and dots."""
    code = getattr(inspect.unwrap(solution), "__code__", None)
    return code is not None and {i.opname for i in dis.get_instructions(code)} <= _EMPTY_BODY


def _same(one: Any, other: Any) -> bool:
    """Whether an argument is as it was. Arrays and tensors may hold NaN."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if hasattr(one, "cpu"):
        one, other = one.cpu().numpy(), other.cpu().numpy()
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return one is other or one == other
