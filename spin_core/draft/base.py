"""The contract between drafters and the verifier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spin_core.request import Request

if TYPE_CHECKING:
    from spin_core.draft.build import BuildContext


Stopped = Callable[[], bool]        # what ``catch_up`` asks between its passes: whether the rest is not wanted any more


@dataclass
class Draft:
    """What one drafter proposes for B requests, flattened: request b owns rows ``cu[b]:cu[b+1]`` of N.

    ``tokens [N]`` int64, target ids.
    ``cu [B+1]`` int64, cumulative numbers of drafted tokens; a request may draft none.
    ``probs [S, Vd]`` the distributions q that the sampled tokens were drawn from, exactly; None when every row is
    one-hot.
    ``prob_row [N]`` int64, the row of ``probs`` of each token, or -1 where the token is deterministic given the
    past (argmax, n-gram): its q is then one-hot, whatever scores led to it.
    ``ids [Vd]`` int64, ascending target ids of the draft vocabulary; None when it is the target's own.
    Outside ``ids`` q is zero.
    ``seconds`` that drafting took, where it went on beside other drafters' (on another rank); None: ask a clock.
    """

    tokens: Tensor
    cu: Tensor
    probs: Tensor | None = None
    prob_row: Tensor | None = None
    ids: Tensor | None = None
    seconds: float | None = field(default=None, kw_only=True)

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

    def distribution(self, token: int, row: int, vocab: int) -> Tensor:
        """``[vocab]``: the q in ``row`` that ``token`` was drawn from, before a tree's siblings are left out."""
        if row >= 0 and self.ids is None:
            return self.probs[row]
        q = torch.zeros(vocab, device=self.tokens.device, dtype=None if self.probs is None else self.probs.dtype)
        if row < 0:
            q[token] = 1
        else:
            q[self.ids] = self.probs[row]
        return q

    def to(self, device: torch.device | str) -> "Draft":
        """The same draft on ``device``, the verifier's."""
        return replace(self, **{name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)})


@dataclass
class CaughtUp:
    """What a drafter found while it read the missing text of one request.

    ``tokens``: how many it read. ``hits``: for the output tokens from absolute index ``first`` on, whether the
    drafter would have proposed exactly that token as its first guess, given the text before it; None where it would
    have proposed nothing. For greedy text that is whether the draft would have been accepted.
    """

    tokens: int = 0
    first: int = 0
    hits: list[bool | None] = field(default_factory=list)


def never_stopped() -> bool:
    """The default of ``catch_up``'s ``stopped``: read to the end."""
    return False


class Drafter(ABC):
    """Proposes tokens for requests. One instance serves all requests of one engine; it may keep state per slot.

    A drafter holds, per slot, some prefix of the request's committed sequence, and reads what is missing at the next
    ``propose``, in one parallel pass: starting a request, taking it over from another drafter, and catching up after
    every drafted token was accepted are the same case. ``catch_up`` only reads, ahead of time. It may run in another
    thread beside ``propose`` and ``rollback`` for other slots, so it may touch only what belongs to the slots of its
    requests.
    """

    name: str
    max_context: int                # longest sequence it can read, in tokens
    catch_up_threshold: int = 16    # so many unread tokens at most ``propose`` reads itself; ``catch_up`` reads more
    gamma: int | None = None        # drafted tokens per step by default; None: the engine's default
    is_lookup: bool = False         # it looks its drafts up: reading and drafting cost next to nothing

    @abstractmethod
    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        """Draft at most ``counts[b]`` tokens (of a tree: levels) behind the committed sequence of each request, in
        the order of the requests."""

    def begin(self, requests: list[Request], counts: list[int]) -> None:
        """Begin with what :meth:`propose` is asked for next, if that can go on beside other drafters'. What it raises
        is to be raised by ``propose`` again. Most drafters wait for that."""

    def rollback(self, slot: int, length: int) -> None:
        """Forget everything beyond ``length`` tokens of the request in ``slot``; 0 forgets the request."""

    def available(self, request: Request, most: int) -> int:
        """How many tokens, at most ``most``, a lookup would propose now; 0 for drafters that run a model."""
        return 0

    def missing(self, request: Request) -> int:
        """How many committed tokens a catch-up would read. (A model leaves the last one to the next draft.)"""
        return 0

    def catch_up(self, requests: list[Request], stopped: Stopped = never_stopped) -> list[CaughtUp]:
        """Read what is missing of each request, without drafting. Ends early, at a whole token, once ``stopped()``."""
        return [CaughtUp() for _ in requests]


class NullDrafter(Drafter):
    """Proposes nothing: the engine then decodes plainly, one token per step."""

    name = "none"
    max_context, is_lookup = 2**31, True

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        return Draft.empty(len(requests))


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The null drafter if ``name`` is "none", else None."""
    return NullDrafter() if name == "none" else None
