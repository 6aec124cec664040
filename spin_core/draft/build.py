"""How drafters are built from their names, and what drafters made of others have in common."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from spin_core.draft.base import CaughtUp, Drafter, Stopped, never_stopped
from spin_core.names import load_rivals
from spin_core.request import Request
from spin_core.runtime.linear import has_bf16


@dataclass(frozen=True)
class BuildContext:
    """What a drafter is built for.

    ``slots``: requests that the engine serves at once; ``max_len``: tokens of a request; ``target``: the engine's
    runner, None on another rank; ``told_bf16``: the engine's ``bf16``. ``kinds``: the drafters' files, asked in turn.
    Each has ``from_name(name, context) -> Drafter | None``: None where the name is not in the file's part of the
    language of names, ValueError where it is but cannot be built.
    """

    family: Any
    slots: int
    max_len: int
    target: Any
    kinds: list[ModuleType]
    told_bf16: bool | None = None

    def build(self, name: str) -> Drafter:
        """A new drafter of that name; as a member of another one it shares no state with what serves under its own
        name. Raises ValueError for a name that is none."""
        def found() -> Drafter | None:
            return next(filter(None, (kind.from_name(name, self) for kind in self.kinds)), None)

        drafter = found() or load_rivals() or found()       # these add their own to the kinds
        if drafter is None:
            known = [*self.family.drafters, "ngram", "none"]
            raise ValueError(f"unknown drafter {name!r}; known: {', '.join(known)}")
        return drafter

    @property
    def size(self) -> tuple[int, int, int]:
        """What every model drafter is given: slots, room of a slot, and the target's vocabulary."""
        return self.slots, self.max_len, self.family.vocab_size

    @property
    def check(self) -> bool:
        """Whether models are compared with the library's logits when they are loaded; drafters as the target."""
        return getattr(self.target, "check", True)

    @property
    def bf16(self) -> bool:
        """Whether model drafters multiply in bf16: as the engine was told, or where the CPU is made for it."""
        return has_bf16() if self.told_bf16 is None else self.told_bf16


class EnsembleDrafter(Drafter):
    """A drafter made of ``members``, each with state of its own: all of them read and forget together."""

    members: list[Drafter]

    def rollback(self, slot: int, length: int) -> None:
        for member in self.members:
            member.rollback(slot, length)

    def available(self, request: Request, most: int) -> int:
        return max(m.available(request, most) for m in self.members)

    def missing(self, request: Request) -> int:
        return max(m.missing(request) for m in self.members)

    def catch_up(self, requests: list[Request], stopped: Stopped = never_stopped) -> list[CaughtUp]:
        """All members read. No ``hits``: what the ensemble would have proposed first needs drafts, not only reading."""
        found = [m.catch_up(requests, stopped) for m in self.members]
        return [CaughtUp(max(f.tokens for f in each)) for each in zip(*found)]
