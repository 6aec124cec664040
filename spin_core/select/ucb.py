"""Optimism: take the arm that could be the fastest, given how little is known of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import RequestView
from spin_core.select.greedy import Greedy, untried_first


class UCB(Greedy):
    """UCBSpec (Hou et al., arXiv 2505.15141) with tokens per second in place of tokens.

    The index of arm a after t steps of a request, n of them with a, is its mean reward plus the radius

        width * sqrt( (1 + n) / n^2 * (1 + 2 log( K sqrt(1 + n) / delta )) ),    delta = 1 / t^2,

    where rewards lie in an interval of length ``2 width``: here emitted tokens between 1 and gamma + 1, over the arm's
    mean seconds per step. ``scale`` 1 is the theory's radius; it is made for thousands of steps.
    """

    def __init__(self, arms: Sequence[str], *, scale: float = 1.0, **options) -> None:
        super().__init__(arms, **options)
        if scale < 0:
            raise ValueError(f"ucb: scale must not be negative, got {scale}")
        self.scale = scale

    def weights(self, seats: Sequence[RequestView]) -> ndarray:
        rows = self.ledger.rows(s.request for s in seats)
        rates, n = self.ledger.rates(rows), self.ledger.steps[rows]
        t, tried = np.maximum(1, n.sum(1, keepdims=True)), np.maximum(n, 1)
        per_step = tried / np.where(n > 0, self.ledger.seconds(rows), 1)
        spread = np.sqrt((1 + tried) / tried ** 2 * (1 + 2 * np.log(len(self.arms) * t ** 2 * np.sqrt(1 + tried))))
        radius = np.where(n > 0, self.scale * self.gamma / 2 * per_step * spread, 0)
        return untried_first(rates + radius, self.rng)

    def describe(self) -> str:
        return f"UCBSpec on tokens per second, {self.scale:g} of the theory's radius"


