"""The contract between drafters and the verifier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from spin_core.request import Request


@dataclass
class Draft:
    """What one drafter proposes for B requests, flattened: request b owns rows ``cu[b]:cu[b+1]`` of N.

    ``tokens [N]`` int64, target ids.
    ``cu [B+1]`` int64, cumulative numbers of drafted tokens; a request may draft none.
    ``probs [S, Vd]`` the laws the sampled tokens were drawn from, exactly; None when every row is one-hot.
    ``prob_row [N]`` int64, the row of ``probs`` of each token, or -1 where the token is deterministic given the
    past (argmax, n-gram): its law is then one-hot, whatever scores led to it.
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


class Drafter(ABC):
    """Proposes tokens for requests. One instance serves all requests of one engine; it may keep state per slot.

    A drafter holds, per slot, some prefix of the request's committed sequence. Whatever is missing it reads at the
    next ``propose`` in one parallel pass. Starting a request, taking one over from another drafter, and catching
    up after every drafted token was accepted are therefore one and the same thing.
    """

    name: str
    max_context: int

    @abstractmethod
    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        """Draft at most ``counts[b]`` tokens behind the committed sequence of each request, in their order."""

    def rollback(self, slot: int, length: int) -> None:
        """Forget everything beyond ``length`` tokens of the request in ``slot``; 0 forgets the request."""


class NullDrafter(Drafter):
    """Proposes nothing: the engine then decodes plainly, one token per step."""

    name = "none"
    max_context = 2**31

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        return Draft.empty(len(requests))
