"""The contract between drafters and the verifier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
