"""What a step costs, and which request it is put down to.

A pass of a model serves many requests at once. Splitting its seconds by rows alone would be wrong: most of a
pass is spent fetching weights, and that part is there whoever drafts. So a request pays an equal part of what the pass
would take with one row each, and what the drafted rows add is split by drafted tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy import ndarray


class AffineCost:
    """Seconds of a pass over n rows as ``a + b n``, learned while serving: least squares that forget.

    ``memory``: over how many passes an observation fades to 1/e. Before rows of different numbers were seen the pass
    is taken to be all fixed cost, ``a``; a slope below zero is noise and counts as none.
    """

    def __init__(self, memory: float = 1000.0) -> None:
        self.keep = math.exp(-1 / memory)
        self.sums = [0.0] * 5           # of 1, n, n^2, t, n t
        self.line = 0.0, 0.0            # (a, b); zeros before the first pass

    def learn(self, rows: float, seconds: float) -> None:
        """Learn from one pass; seconds that cannot be are left out."""
        rows, seconds = float(rows), float(seconds)     # numbers of Python's own: arithmetic on them is much quicker
        if rows > 0 and seconds > 0 and math.isfinite(seconds):
            new = 1.0, rows, rows * rows, seconds, rows * seconds
            self.sums = [self.keep * old + x for old, x in zip(self.sums, new)]
            self.line = self._fit()

    def decoding(self, ours: int, rows: int, seconds: float, alone: bool = True) -> float:
        """Of a pass of ``rows`` that took ``seconds``, what its ``ours`` decoded rows took; the others read prompts.

        Learns from passes without prompts only. So many rows at once are cheaper each, and next to them the difference
        that a few drafted rows make, which is what counts here, would not show. Nor from passes that were not
        ``alone`` on the device: just those in which nobody drafts yet, because drafters are reading, would look dear.
        """
        if rows == ours and alone:
            self.learn(rows, seconds)
            return seconds
        return min(seconds, self(ours) or seconds * ours / rows)

    def _fit(self) -> tuple[float, float]:
        weight, n, nn, t, nt = self.sums
        spread = nn / weight - (n / weight) ** 2
        slope = max(0.0, (nt / weight - n * t / weight ** 2) / spread) if spread > 1e-6 else 0.0
        fixed = t / weight - slope * n / weight
        if fixed < 0:       # noise again: a pass over no rows cannot take less than nothing
            fixed, slope = 0.0, nt / nn
        return fixed, slope

    def __call__(self, rows):
        fixed, slope = self.line
        return fixed + slope * rows


def shares(drafted: Sequence[int], seconds: float, cost: AffineCost | None = None) -> tuple[float, ndarray]:
    """Each request's part of a target pass of ``seconds`` over one row each and their ``drafted`` rows: what everybody
    pays, drafts or not, and what each pays for its draft, ``[B]``.

    What the pass would take without drafts, by ``cost``, is split evenly; the rest by drafted tokens. Without a
    cost that has learned something, everything is split evenly.
    """
    drafted, count = np.asarray(drafted, float), len(drafted)
    total = drafted.sum()
    if count == 0:
        return 0.0, np.zeros(0)
    whole = cost(count + total) if cost is not None and total else 0.0
    extra = seconds * (whole - cost(count)) / whole if whole > 0 else 0.0
    return float(seconds - extra) / count, extra * drafted / max(total, 1)
