"""Numbers that cannot be are refused by name where they come in: with NaN a clock never moves on, and a result is void.
"""

import math
from numbers import Integral, Real


def whole(function: str, least: int, **values: int) -> None:
    """Raise ValueError unless every one of ``values`` is an integer and at least ``least``."""
    for name, value in values.items():
        if not isinstance(value, Integral) or value < least:
            raise ValueError(f"{function}: {name} {value!r} must be a whole number, at least {least}")


def within(function: str, low: float, high: float, **values: float) -> None:
    """Raise ValueError unless every one of ``values`` is a number from ``low`` to ``high``. NaN is none."""
    for name, value in values.items():
        if not isinstance(value, Real) or not low <= value <= high:
            raise ValueError(f"{function}: {name} {value!r} must be a number from {low:g} to {high:g}")


def finite(function: str, *, zero: bool = True, **values: float) -> None:
    """Raise ValueError unless every one of ``values`` is a finite number above 0, or 0 where ``zero`` allows it."""
    for name, value in values.items():
        if not isinstance(value, Real) or not math.isfinite(value) or value < 0 or not (zero or value):
            raise ValueError(f"{function}: {name} {value!r} must be a finite number {'>=' if zero else '>'} 0")
