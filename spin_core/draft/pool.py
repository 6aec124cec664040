"""Drafters by name: those of a family, prompt lookup, no speculation, and compositions of them."""

from __future__ import annotations

from spin_core.draft.base import Drafter, NullDrafter
from spin_core.draft.composite import CompositeDrafter
from spin_core.draft.fed import FedDrafter, FedLlama
from spin_core.draft.model import ModelDrafter
from spin_core.draft.ngram import NgramDrafter
from spin_core.draft.table import DraftTable, TableDrafter
from spin_core.runtime import ModelRunner

COMPOSED_NGRAM = (4, 3)     # a composition trusts lookup from so many repeated tokens on: (longest, shortest)


def names(family) -> list[str]:
    """Every plain name. "FIRST+REST" composes: FIRST is "ngram" or a table, REST any name, itself composed or not."""
    return [*family.drafters, "ngram", "none"]


def is_fed(source) -> bool:
    """Does that drafter of a family read the target's states?"""
    return isinstance(getattr(source, "model", None), FedLlama)


def build(name: str, family, slots: int, max_len: int, target: ModelRunner) -> Drafter:
    """The drafter of that name for an engine of ``slots`` requests of ``max_len`` tokens. Raises ValueError if it is
    unknown."""
    if name == "none":
        return NullDrafter()
    if name == "ngram":
        return NgramDrafter()
    if name in family.drafters:
        source = family.drafters[name]
        if isinstance(source, DraftTable):
            return TableDrafter(source)
        size = slots, max_len, family.vocab_size
        return FedDrafter(source, *size, target) if is_fed(source) else ModelDrafter(source, *size)
    first, plus, rest = name.partition("+")
    if plus and (first == "ngram" or isinstance(family.drafters.get(first), DraftTable)):
        # instances of its own: a composition shares no state with drafters that serve under their own names
        lookup = NgramDrafter(*COMPOSED_NGRAM) if first == "ngram" else build(first, family, slots, max_len, target)
        return CompositeDrafter(lookup, build(rest, family, slots, max_len, target))
    raise ValueError(f"unknown drafter {name!r}; known: {', '.join(names(family))}")
