"""Drafters by name.

Every drafter's file owns a part of the names, written at its head; this file only asks them in turn.
"""

from __future__ import annotations

from spin_core.draft import base, composite, fed, model, ngram, sparse, table, trees, vote
from spin_core.draft.base import BuildContext, Drafter
from spin_core.runtime import ModelRunner
from spin_core.zoo.fed import is_fed

FILES = (base, ngram, table, fed, model, sparse, trees, vote, composite)    # "+" last: members may be of any file

__all__ = ["build", "is_fed", "names"]


def names(family) -> list[str]:
    """Every plain name; names such as "ngram+NAME", "sparse:...", "tree:..." and "vote:..." are made of these."""
    return [*family.drafters, "ngram", "none"]


def build(name: str, family, slots: int, max_len: int, target: ModelRunner) -> Drafter:
    """The drafter of that name for an engine of ``slots`` requests of ``max_len`` tokens. Raises ValueError if it is
    unknown."""
    context = BuildContext(family, slots, max_len, target,
                           lambda member: build(member, family, slots, max_len, target))
    for file in FILES:
        if drafter := file.from_name(name, context):
            return drafter
    raise ValueError(f"unknown drafter {name!r}; known: {', '.join(names(family))}")
