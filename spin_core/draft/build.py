"""How drafters are built from their names, and what drafters made of others have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spin_core.draft.base import CaughtUp, Drafter, Stopped, never_stopped
from spin_core.request import Request
from spin_core.runtime.linear import has_bf16


@dataclass(frozen=True)
class BuildContext:
    """What a drafter is built for.

    Every drafter's file has ``from_name(name, context) -> Drafter | None``: None where the name is not in the file's
    part of the language of names, ValueError where it is but cannot be built. ``slots``: requests that the engine
    serves at once; ``max_len``: tokens of a request; ``target``: the engine's runner; ``build(name)``: a new instance
    of another drafter, as a member (members share no state with drafters that serve under their own names);
    ``told_bf16``: the engine's ``bf16``.
    """

    family: Any
    slots: int
    max_len: int
    target: Any
    build: Callable[[str], Drafter]
    told_bf16: bool | None = None

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
