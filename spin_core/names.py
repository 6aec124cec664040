"""Modules that are loaded when something of theirs is asked for: the laboratory's, and Triton's kernels."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any


@cache
def load_rivals() -> None:
    """Make the names of what SPIN is compared with known (:mod:`spin_core.lab.rivals`): called where a name is not one
    of the system's, so that nothing of the laboratory is loaded before a user asks for it."""
    import_module("spin_core.lab.rivals")


@cache
def kernels(module: str) -> ModuleType | None:
    """A module of Triton kernels, by its name; None where Triton is not installed."""
    try:
        return import_module(module)
    except ImportError:
        return None


def moved(module: str, where: str, *names: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a ``module`` whose ``names`` are the laboratory's now, in ``where``."""
    def find(name: str) -> Any:
        if name in names:
            return getattr(import_module(where), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
