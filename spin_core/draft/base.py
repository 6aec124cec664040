"""The contract between drafters and the verifier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spin_core.request import Request


@dataclass
class Draft:
    """What one drafter proposes for B requests, flattened: request b owns rows ``cu[b]:cu[b+1]`` of N.

    ``tokens [N]`` int64, target ids.
    ``cu [B+1]`` int64, cumulative numbers of drafted tokens; a request may draft none.
    ``probs [S, Vd]`` the distributions the sampled tokens were drawn from, exactly; None when every row is one-hot.
    ``prob_row [N]`` int64, the row of ``probs`` of each token, or -1 where the token is deterministic given the
    past (argmax, n-gram): its distribution is then one-hot, whatever scores led to it.
    ``ids [Vd]`` int64, ascending target ids of the draft vocabulary; None when it is the target's own.
    Outside ``ids`` q is zero.
    """

    tokens: Tensor
    cu: Tensor
    probs: Tensor | None = None
    prob_row: Tensor | None = None
    ids: Tensor | None = None

    def __post_init__(self) -> None:
        if self.prob_row is None:
            self.prob_row = torch.full_like(self.tokens, -1)

    @staticmethod
    def empty(batch: int, device: torch.device | str = "cpu") -> "Draft":
        """Nothing drafted for any of ``batch`` requests."""
        return Draft(torch.empty(0, dtype=torch.int64, device=device),
                     torch.zeros(batch + 1, dtype=torch.int64, device=device))

    @staticmethod
    def one_hot(tokens: list[list[int]], device: torch.device | str = "cpu") -> "Draft":
        """Deterministic proposals, one list per request."""
        counts = torch.tensor([0] + [len(t) for t in tokens], dtype=torch.int64, device=device)
        flat = torch.tensor([t for row in tokens for t in row], dtype=torch.int64, device=device)
        return Draft(flat, counts.cumsum(0))

    @property
    def counts(self) -> Tensor:
        """Drafted tokens per request, ``[B]``."""
        return self.cu.diff()

    def to(self, device: torch.device | str) -> "Draft":
        """The draft on the verifier's device, where drafters have another one."""
        parts = (self.tokens, self.cu, self.probs, self.prob_row, self.ids)
        return Draft(*(None if part is None else part.to(device) for part in parts))


@dataclass
class CaughtUp:
    """What reading along brought for one request.

    ``tokens``: how many were read. ``hits``: for the output tokens from absolute index ``first`` on, whether
    the drafter would have proposed that token first, right behind the text before it; None where it would have proposed
    nothing. For a greedy text that is whether the draft would have been accepted.
    """

    tokens: int = 0
    first: int = 0
    hits: list[bool | None] = field(default_factory=list)


@dataclass(frozen=True)
class BuildContext:
    """What a drafter is built for: an engine that serves ``slots`` requests of at most ``max_len`` tokens with the
    runner ``target``. ``build(name)`` makes a drafter that is a member of another one: an instance of its own, for
    it shares no state with the drafter that serves under that name."""

    family: Any
    slots: int
    max_len: int
    target: Any
    build: Callable[[str], "Drafter"]

    @property
    def size(self) -> tuple[int, int, int]:
        """Slots, room of a slot in tokens, and the target's vocabulary."""
        return self.slots, self.max_len, self.family.vocab_size


def never() -> bool:
    """Nobody asks to stop."""
    return False


class Drafter(ABC):
    """Proposes tokens for requests. One instance serves all requests of one engine; it may keep state per slot.

    A drafter holds, per slot, some prefix of the request's committed sequence. Whatever is missing it reads at the
    next ``propose`` in one parallel pass. Starting a request, taking one over from another drafter, and catching
    up after every drafted token was accepted are therefore one and the same thing.

    ``catch_up`` does the reading alone, ahead of time. It may run in another thread beside ``propose`` and
    ``rollback`` for other slots: what it touches belongs to its requests' slots.
    """

    name: str
    max_context: int
    catch_up_threshold: int = 16       # missing tokens that make a ``propose`` hardly dearer: no need to catch up first
    gamma: int | None = None    # drafted tokens per step where nobody asks for another number; None: the engine's default
    is_lookup: bool = False         # it looks up: reading and drafting cost next to nothing

    @abstractmethod
    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        """Draft at most ``counts[b]`` tokens, or of a tree so many levels, behind the committed sequence of each
        request, in their order."""

    def rollback(self, slot: int, length: int) -> None:
        """Forget everything beyond ``length`` tokens of the request in ``slot``; 0 forgets the request."""

    def available(self, request: Request, most: int) -> int:
        """How many tokens, at most ``most``, would be proposed now: for who looks up, and so knows without a pass."""
        return 0

    def missing(self, request: Request) -> int:
        """How many committed tokens a catch-up would read. (A model leaves the last one to the next draft.)"""
        return 0

    def catch_up(self, requests: list[Request], stopped: Callable[[], bool] = never) -> list[CaughtUp]:
        """Read what is missing of each request, without drafting. Ends early, at a whole token, once ``stopped()``."""
        return [CaughtUp() for _ in requests]


class NullDrafter(Drafter):
    """Proposes nothing: the engine then decodes plainly, one token per step."""

    name = "none"
    max_context, is_lookup = 2**31, True

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        return Draft.empty(len(requests))
