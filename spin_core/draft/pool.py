"""Drafters by name: built when first used, retired when they fail.

A name belongs to the first of :data:`KINDS` whose ``matches(name, family)`` is true; its ``build(name, context)``
makes the drafter. To add a kind of drafter, write these two functions and add it to the list.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from spin_core.draft.base import BuildContext, Drafter, NullDrafter
from spin_core.draft.composite import CompositeDrafter
from spin_core.draft.fed import FedDrafter, FedLlama
from spin_core.draft.model import ModelDrafter
from spin_core.draft.ngram import NgramDrafter
from spin_core.draft.selfdraft import SelfDrafter
from spin_core.draft.table import DraftTable, TableDrafter
from spin_core.draft.trees import PREFIX, TreeDrafter, parse_name
from spin_core.draft.vote import VoteDrafter
from spin_core.kv.ring import Window
from spin_core.runtime import ModelRunner
from spin_core.zoo.family import DraftModel

COMPOSED_NGRAM = (4, 3)     # a composition trusts lookup from so many repeated tokens on: (longest, shortest)


class DrafterPool:
    """The drafters of one engine. ``drafters`` holds those in use, ``retired`` the errors of those that failed.

    ``on_retire(name)`` is called when a drafter is retired. Any thread may ask for a drafter.
    """

    def __init__(self, family, slots: int, max_len: int, target: ModelRunner) -> None:
        self.context = make_context(family, slots, max_len, target)
        self.drafters: dict[str, Drafter] = {"none": NullDrafter()}
        self.retired: dict[str, BaseException] = {}
        self.on_retire: Callable[[str], None] = lambda name: None
        self._building = threading.RLock()

    def get(self, name: str) -> Drafter:
        """The drafter of that name, built at its first use; one that drafts nothing if it was retired.

        Raises ValueError for a name that is none.
        """
        if not isinstance(name, str):
            raise ValueError(f"a drafter is asked for by its name, not by {name!r}")
        with self._building:
            if name in self.retired:
                return self.drafters["none"]
            if name not in self.drafters:
                self.drafters[name] = self.context.build(name)
            return self.drafters[name]

    def retire(self, name: str, error: BaseException) -> None:
        """Let that drafter never draft again, because of ``error``; its requests go on without drafts."""
        with self._building:
            if name in self.retired or name == "none":
                return
            self.retired[name] = error
            self.drafters.pop(name, None)
        self.on_retire(name)
        # last: where warnings are errors it raises
        warnings.warn(f"drafter {name!r} raised {type(error).__name__}: {error}; its requests go on without drafts",
                      RuntimeWarning, stacklevel=2)

    def rollback(self, slot: int, length: int) -> None:
        """Have every drafter forget what lies beyond ``length`` tokens of a slot; 0 forgets the request."""
        for drafter in list(self.drafters.values()):        # another thread may be building one
            drafter.rollback(slot, length)


class Kind(NamedTuple):
    """One kind of drafter: which names are its own, and how such a drafter is built."""

    matches: Callable[[str, object], bool]
    build: Callable[[str, BuildContext], Drafter]


def names(family) -> list[str]:
    """Every plain name. "FIRST+REST" composes: FIRST is "ngram" or a table, REST any name, itself composed or not.
    "sparse:NAME" or "sparse:NAME:WINDOW" drafts with a sparse cache: NAME is a model of the family or "target", WINDOW
    a number of tokens or a share of the text such as 1/8 (:mod:`spin_core.kv.ring`). "tree:..." drafts trees
    (:mod:`spin_core.draft.trees`). "vote:A,B,..." has drafters vote; "vote" is a vote of all the family's and "ngram"
    (:mod:`spin_core.draft.vote`)."""
    return [*family.drafters, "ngram", "none"]


def build(name: str, family, slots: int, max_len: int, target: ModelRunner) -> Drafter:
    """The drafter of that name, outside of a pool. Raises ValueError for a name that is none."""
    return make_context(family, slots, max_len, target).build(name)


def make_context(family, slots: int, max_len: int, target: ModelRunner) -> BuildContext:
    """What :data:`KINDS` build drafters for."""
    def build_one(name: str) -> Drafter:
        for kind in KINDS:
            if kind.matches(name, family):
                return kind.build(name, context)
        raise ValueError(f"unknown drafter {name!r}; known: {', '.join(names(family))}")

    context = BuildContext(family, slots, max_len, target, build_one)
    return context


def is_fed(source) -> bool:
    """Does that drafter of a family read the target's states?"""
    return isinstance(getattr(source, "model", None), FedLlama)


# ---- the kinds: each moves to its drafter's module

def _model(name: str, context: BuildContext) -> Drafter:
    source = context.family.drafters[name]
    if isinstance(source, DraftTable):
        return TableDrafter(source)
    return FedDrafter(source, *context.size, context.target) if is_fed(source) else ModelDrafter(source, *context.size)


def _sparse(name: str, context: BuildContext) -> Drafter:
    """"sparse:NAME" or "sparse:NAME:WINDOW"."""
    family, target = context.family, context.target
    _, inner, *window = name.split(":", 2)
    window = Window.parse(window[0]) if window else Window()
    if inner == "target":
        source = DraftModel(name, family.target, None, family.max_context)
        return SelfDrafter(source, *context.size, target, window)
    source = family.drafters.get(inner)
    if source is None or isinstance(source, DraftTable):
        models = [n for n, d in family.drafters.items() if not isinstance(d, DraftTable)]
        raise ValueError(f"{name!r}: no model {inner!r} to draft with a sparse cache; there are {', '.join(models)}, "
                         "and the target")
    source = replace(source, name=name)
    return FedDrafter(source, *context.size, target, window) if is_fed(source) else \
        ModelDrafter(source, *context.size, window=window)


def _tree(name: str, context: BuildContext) -> Drafter:
    members, shape, drawing, budget = parse_name(name)
    return TreeDrafter(list(map(context.build, members)), shape, drawing, budget, max_len=context.max_len,
                       vocab_size=context.family.vocab_size)


def _vote(name: str, context: BuildContext) -> Drafter:
    members = name.removeprefix("vote:").split(",") if ":" in name else [*context.family.drafters, "ngram"]
    if len(set(members)) < len(members) or any(m == "" or m.startswith(("vote", PREFIX)) for m in members):
        raise ValueError(f"{name!r}: give drafters by name, each once, separated by commas")
    return VoteDrafter(list(map(context.build, members)))


def _is_composition(name: str, family) -> bool:
    first, plus, _ = name.partition("+")
    return plus == "+" and (first == "ngram" or isinstance(family.drafters.get(first), DraftTable) or
                            name.partition("+")[2].startswith(PREFIX))


def _composition(name: str, context: BuildContext) -> Drafter:
    first, _, rest = name.partition("+")
    if rest.startswith(PREFIX):
        raise ValueError(f"{name!r}: a composition is of chains; what {first} finds can be merged into the tree, as one "
                         f"of its members")
    return CompositeDrafter(NgramDrafter(*COMPOSED_NGRAM) if first == "ngram" else context.build(first),
                            context.build(rest))


KINDS = (
    Kind(lambda name, family: name == "none", lambda name, context: NullDrafter()),
    Kind(lambda name, family: name == "ngram", lambda name, context: NgramDrafter()),
    Kind(lambda name, family: name in family.drafters, _model),
    Kind(lambda name, family: name.startswith("sparse:"), _sparse),
    Kind(lambda name, family: name.startswith(PREFIX), _tree),
    Kind(lambda name, family: name == "vote" or name.startswith("vote:"), _vote),
    Kind(_is_composition, _composition),
)
