"""The seconds of a pass, and how the requests that share it split them.

Splitting a pass by rows alone would be wrong: most of it is spent reading weights, and that part does not depend on
the drafts. So every request pays an equal part of what the pass would take with one row each, and the seconds that
drafted rows add are split by drafted tokens.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy import ndarray


class AffineCost:
    """Seconds of a pass over n rows as ``a + b n``, learned while serving by least squares with exponential forgetting.

    ``memory``: over how many passes an observation fades to 1/e. Until passes over different numbers of rows were
    seen, all of a pass counts as fixed cost ``a``; a slope below zero is noise and counts as zero.
    """

    def __init__(self, memory: float = 1000.0) -> None:
        self.keep = math.exp(-1 / memory)
        self.sums = [0.0] * 5           # of 1, n, n^2, t, n t
        self.line = 0.0, 0.0            # (a, b); zeros before the first pass

    def learn(self, rows: float, seconds: float) -> None:
        """Learn from one pass; seconds that are not finite and above 0 are left out."""
        rows, seconds = float(rows), float(seconds)     # Python floats: arithmetic on numpy scalars is slower
        if rows > 0 and seconds > 0 and math.isfinite(seconds):
            new = 1.0, rows, rows * rows, seconds, rows * seconds
            self.sums = [self.keep * old + x for old, x in zip(self.sums, new)]
            self.line = self._fit()

    def decoding(self, ours: int, rows: int, seconds: float, alone: bool = True) -> float:
        """The seconds that ``ours`` decoded rows took of a pass over ``rows`` in ``seconds``; the others read prompts.

        Learns only from passes without prompts, whose many rows would hide the difference that a few drafted rows
        make, and only from passes that were ``alone`` on the device: while drafters read prompts beside it, plain
        decoding would look expensive.
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
        if fixed < 0:       # noise again: a pass over no rows cannot take negative time
            fixed, slope = 0.0, nt / nn
        return fixed, slope

    def __call__(self, rows):
        fixed, slope = self.line
        return fixed + slope * rows


def shares(drafted: Sequence[int], seconds: float, cost: AffineCost | None = None) -> tuple[float, ndarray]:
    """Split a target pass of ``seconds`` over one row per request and their ``drafted [B]`` rows: the equal part of
    every request, and what each pays besides for its draft, ``[B]``.

    The seconds of a pass without drafts, by ``cost``, are split evenly; the rest by drafted tokens. A cost that has
    learned nothing yet splits everything evenly.
    """
    drafted, count = np.asarray(drafted, float), len(drafted)
    total = drafted.sum()
    if count == 0:
        return 0.0, np.zeros(0)
    whole = cost(count + total) if cost is not None and total else 0.0
    extra = seconds * (whole - cost(count)) / whole if whole > 0 else 0.0
    return float(seconds - extra) / count, extra * drafted / max(total, 1)
