"""Policies by their names."""

from collections.abc import Sequence

from spin_core.names import load_rivals
from spin_core.select.base import Selector
from spin_core.select.greedy import Greedy
from spin_core.select.spin import Spin

POLICIES: dict[str, type[Selector]] = {"spin": Spin, "greedy": Greedy}      # and SPIN's other rivals, once loaded


def names() -> tuple[str, ...]:
    """Every name that :func:`make` knows."""
    load_rivals()
    return *(name for name in POLICIES if name != "fixed"), "fixed:ARM"


def find(name: str) -> type[Selector]:
    """The class of the policy ``name``. Raises ValueError for an unknown name."""
    kind, colon, _ = name.partition(":")
    if kind not in POLICIES:
        load_rivals()
    if kind not in POLICIES or bool(colon) != (kind == "fixed"):
        raise ValueError(f"unknown selection policy {name!r}; known: {', '.join(names())}")
    return POLICIES[kind]


def make(name: str, arms: Sequence[str], **options) -> Selector:
    """The policy ``name`` over ``arms``, with its ``options``; "fixed:ARM" always takes ARM.

    Raises ValueError for an unknown name, TypeError for an option that the policy does not have.
    """
    _, colon, arm = name.partition(":")
    return find(name)(arms, *([arm] if colon else []), **options)
