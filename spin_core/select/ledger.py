"""What every request has brought with every arm so far: the books that most policies keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import Outcome


class Ledger:
    """Steps, emitted tokens and seconds per request and arm, ``[rows, arms]``; a request keeps its row until it leaves.

    A rate is a ratio of sums, tokens over seconds: the mean of ratios would count a short step as much as a long one.
    What the arm ``common`` (no speculation) brings does not depend on the request: all requests share its books.
    """

    def __init__(self, arms: int, common: int) -> None:
        self.common = common
        self.common_sums = np.zeros(2)      # tokens, seconds
        self.row: dict[int, int] = {}
        self.free: list[int] = []
        self.steps, self.tokens, self.seconds = (np.zeros((0, arms)) for _ in range(3))

    def rows(self, requests: Iterable[int]) -> ndarray:
        """The rows of these requests; unknown ones get a row of zeros."""
        return np.fromiter((self.row[r] if r in self.row else self._open(r) for r in requests), int)

    def add(self, outcomes: Sequence[Outcome], arms: ndarray) -> tuple[ndarray, ndarray, ndarray]:
        """Write down a step; returns its rows, tokens and seconds, one each per outcome."""
        rows = self.rows(o.request for o in outcomes)
        tokens = np.array([o.emitted for o in outcomes], float)
        seconds = np.array([o.draft_seconds + o.verify_seconds for o in outcomes])
        self.steps[rows, arms] += 1
        self.tokens[rows, arms] += tokens
        self.seconds[rows, arms] += seconds
        self.common_sums += (tokens[arms == self.common].sum(), seconds[arms == self.common].sum())
        return rows, tokens, seconds

    def rates(self, rows: ndarray, unknown: float | ndarray = np.inf) -> ndarray:
        """Tokens per second, ``[B, arms]``; ``unknown`` where an arm was not tried."""
        tokens, seconds = self.tokens[rows], self.seconds[rows]
        rates = np.where(seconds > 0, tokens / np.where(seconds > 0, seconds, 1), unknown)
        if self.common >= 0:
            rates[:, self.common] = self.common_rate
        return rates

    @property
    def common_rate(self) -> float:
        """Tokens per second of the arm that all share; infinite before its first step."""
        tokens, seconds = self.common_sums
        return tokens / seconds if seconds > 0 else np.inf

    def close(self, request: int) -> None:
        """Forget a request."""
        row = self.row.pop(request, None)
        if row is not None:
            for table in (self.steps, self.tokens, self.seconds):
                table[row] = 0
            self.free.append(row)

    def _open(self, request: int) -> int:
        if not self.free:
            size = len(self.steps)
            more = max(8, size)
            self.steps, self.tokens, self.seconds = (
                np.vstack([t, np.zeros((more, t.shape[1]))]) for t in (self.steps, self.tokens, self.seconds))
            self.free = list(range(size, size + more))[::-1]
        self.row[request] = self.free.pop()
        return self.row[request]
