"""The exercises' checks. A check never raises: it answers "open", "right" or "wrong", and why.

An :class:`Exercise` is data: its solution, the cases to try, and typical mistakes with a hint for each. A test holds
that every mistake is caught by the cases, with its own hint. What cannot be told by comparing values (random numbers,
kernels) has a function of its own, made a check by :func:`check`, which calls :func:`ask` and :func:`wrong`.

While nbgrader runs a notebook, an answer that is not right is raised as an AssertionError: that costs the points.
"""

import copy
import dis
import html
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from numbers import Real
from typing import Any, NoReturn

import numpy as np

_MARKS = {"right": "✔", "wrong": "✘", "open": "○"}
_COLOURS = {"right": "#009E73", "wrong": "#D55E00", "open": "#777777"}
_EMPTY_BODY = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "POP_TOP", "COPY_FREE_VARS",
               "LOAD_DEREF"}
_OPEN = "Not solved yet: replace the ... above and run both cells again."


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
            answer = Answer("right", function(*args, **options))
        except Settled as settled:
            answer = settled.args[0]
        except Exception as error:
            answer = Answer("wrong", "What your function returns cannot be compared with the right answer "
                                     f"({type(error).__name__}: {error}).")
        if answer.status != "right" and "NBGRADER_EXECUTION" in os.environ:
            raise AssertionError(answer.message)
        return answer
    return checked


@dataclass
class Exercise:
    """A check: call it with a student's function.

    ``cases`` are the arguments of the calls that are compared with ``solution``. ``mistakes`` has functions with a
    typical mistake by hint: an answer that agrees with one of them on all cases, or on those so far, gets its hint.
    ``right`` is said of a right answer. ``judge(answer, *case)`` is compared instead of the answer where several are
    right. Values outside ``low`` ... ``high`` and, if ``whole``, fractions are wrong. ``test``, which takes the
    student's function and returns what to say, is used instead of comparing cases.
    """

    solution: Callable
    right: str = ""
    cases: Sequence[tuple] = ()
    mistakes: Mapping[str, Callable] = field(default_factory=dict)
    judge: Callable | None = None
    whole: bool = False
    low: float = -np.inf
    high: float = np.inf
    rtol: float = 1e-9
    atol: float = 1e-9
    test: Callable[[Callable], str] | None = None

    def __call__(self, function: Callable) -> Answer:
        return check(self.test or self._try_cases)(function)

    def _try_cases(self, function: Callable) -> str:
        for tried, case in enumerate(self.cases, 1):
            try:
                self._compare(function, case)
            except Settled as settled:
                verdict = settled.args[0]
                if verdict.status == "wrong":
                    hint = self._hint(function, self.cases) or self._hint(function, self.cases[:tried])
                    wrong(f"{verdict.message} {hint}".rstrip())
                raise
        return self.right

    def _compare(self, function: Callable, case: tuple) -> None:
        """The answer to one case must have the type, shape and value of the solution's."""
        called = f"{self.solution.__name__}({_arguments(self.solution, case)})"
        answer = ask(function, *case, called=called)
        expected = np.asarray(self.solution(*copy.deepcopy(case)))
        one = "a whole number" if self.whole else "a number"
        what = f"an array of shape {expected.shape}" if expected.ndim else one
        try:
            found = _array(answer)
        except (ValueError, TypeError, RuntimeError):       # a ragged list, a tensor that NumPy cannot hold
            found = np.asarray(None)
        if (found.dtype.kind == "b") != (expected.dtype.kind == "b") or found.dtype.kind not in "biuf" \
                or self.whole and not np.isnan(found).any() and (found != np.round(found)).any():
            wrong(f"{called} should be {what}{' of True and False' * (expected.dtype.kind == 'b')}; it is "
                  f"{said(answer)}, a {type(answer).__name__}.")
        if found.shape != expected.shape:
            wrong(f"{called} should be {what}; yours has the shape {found.shape}.")
        if not np.isfinite(found).all():
            wrong(f"{called} is not finite: {said(answer)}. Is something divided by zero, or too large for exp?")
        if (found < self.low).any() or (found > self.high).any():
            wrong(f"{called} is {said(answer)}, which is not in {self.low:g} ... {self.high:g}.")
        compared = (found, expected) if self.judge is None else [self.judge(one, *case) for one in (found, expected)]
        if not np.allclose(*compared, rtol=self.rtol, atol=self.atol):
            wrong(f"{called} is {said(answer)}, expected {said(expected)}.")

    def _hint(self, function: Callable, cases: Sequence[tuple]) -> str:
        """The hint of the first mistake that gives what the function gives."""
        answers = [_outcome(function, case) for case in cases]
        return next((hint for hint, mistake in self.mistakes.items()
                     if all(map(_alike, answers, (_outcome(mistake, case) for case in cases)))), "")


def ask(solution: Callable, *args, called: str = "Your function", in_place: bool = False) -> Any:
    """What the student's function returns for ``args``. The check ends here if the function is not written yet, raises,
    returns nothing, or changes its arguments; a function that works ``in_place`` may do the last two. ``called`` names
    the call in messages."""
    given = [argument if in_place or callable(argument) else copy.deepcopy(argument) for argument in args]
    try:
        with np.errstate(all="ignore"):
            answer = solution(*given)
    except NotImplementedError:         # what nbgrader puts in a solution's place
        raise Settled(Answer("open", _OPEN)) from None
    except Exception as error:
        why = "it divides by zero" if isinstance(error, ZeroDivisionError) else str(error)[:200]
        wrong(f"{called} raised {type(error).__name__}: {why}.")
    if answer is Ellipsis or not in_place and answer is None and _is_untouched(solution):
        raise Settled(Answer("open", _OPEN))
    if not in_place:
        if answer is None:
            wrong(f"{called} returns None. Is a return statement missing?")
        if not all(map(_same, given, args)):
            wrong("Your function changes its inputs, which the caller still needs. Work on a copy.")
    return answer


def said(value: Any, most: int = 6) -> str:
    """A value in a message: numbers with four digits, the first ``most`` entries of a list, anything else shortened."""
    if isinstance(value, (list, tuple)) or isinstance(value, np.ndarray) and value.ndim:
        return f"[{', '.join(said(v) for v in value[:most])}{', ...' if len(value) > most else ''}]"
    if isinstance(value, (Real, np.ndarray)) and not isinstance(value, bool) and np.asarray(value).dtype.kind in "iuf":
        return f"{float(value):.4g}"
    return repr(value)[:200]


def _arguments(function: Callable, case: tuple) -> str:
    """The arguments of a call, by name; what is itself a function has only its name."""
    return ", ".join(name if callable(value) else f"{name}={said(value)}"
                     for name, value in zip(inspect.signature(function).parameters, case))


def _outcome(function: Callable, case: tuple) -> np.ndarray | type:
    """What a function gives for a case: numbers, or the type of the error."""
    try:
        with np.errstate(all="ignore"):
            return _array(function(*copy.deepcopy(case)), float)
    except Exception as error:
        return type(error)


def _array(value: Any, dtype: type | None = None) -> np.ndarray:
    """``np.asarray``, also of a tensor that requires a gradient."""
    return np.asarray(value.detach() if hasattr(value, "detach") else value, dtype)


def _alike(one: np.ndarray | type, other: np.ndarray | type) -> bool:
    if isinstance(one, type) or isinstance(other, type):
        return one is other
    return one.shape == other.shape and np.allclose(one, other, equal_nan=True)


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
