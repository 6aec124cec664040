"""Modules that are loaded when something of theirs is asked for: the laboratory's rivals, and Triton's kernels."""

from functools import cache
from importlib import import_module
from types import ModuleType


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
