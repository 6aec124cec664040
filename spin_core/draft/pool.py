"""Drafters by name: built when first used, retired when they fail.

Every drafter's file owns a part of the names, written at its head, and builds what is named so; :data:`KINDS` are asked
in turn. To add a kind of drafter, give its file a ``from_name`` and list it here.
"""

import threading
import warnings
from collections.abc import Callable

from spin_core.draft import base, composite, fed, joined, model, ngram, remote, sparse, table, trees
from spin_core.draft.base import Drafter, NullDrafter
from spin_core.draft.build import BuildContext
from spin_core.draft.composite import COMPOSED_NGRAM
from spin_core.runtime import ModelRunner
from spin_core.zoo.fed import is_fed, layers_read

KINDS = [base, remote, ngram, table, joined, fed, model, sparse, trees, composite]      # asked in this order
__all__ = ["COMPOSED_NGRAM", "DrafterPool", "build", "is_fed", "layers_read"]


class DrafterPool:
    """The drafters of one engine. ``drafters`` holds those in use, ``retired`` the errors of those that failed.

    ``on_retire(name)`` is called when a drafter is retired. Any thread may ask for a drafter.
    """

    def __init__(self, family, slots: int, max_len: int, target: ModelRunner) -> None:
        self.context = BuildContext(family, slots, max_len, target, KINDS, getattr(target, "bf16", None))
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

    def rollback(self, slot: int, length: int, name: str | None = None) -> None:
        """Have every drafter, or the one of that name, forget what lies beyond ``length`` tokens of a slot; 0 forgets
        the request. A drafter that cannot is retired. One that was retired, or never built, holds nothing."""
        failed = {}
        for own, drafter in list(self.drafters.items()):        # another thread may be building one
            try:
                if name in (None, own):
                    drafter.rollback(slot, length)
            except Exception as error:
                failed[own] = error
        for own, error in failed.items():
            self.retire(own, error)


def build(name: str, family, slots: int, max_len: int, target: ModelRunner | None, bf16: bool | None = None) -> Drafter:
    """The drafter of that name, outside of a pool; without a ``target``, on another rank, with the engine's ``bf16``.
    Raises ValueError for a name that is none."""
    return BuildContext(family, slots, max_len, target, KINDS, getattr(target, "bf16", bf16)).build(name)
