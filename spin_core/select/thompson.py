"""Chance in proportion to belief: an arm is taken as often as it is believed to be the best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import Outcome, RequestView
from spin_core.select.greedy import Greedy, untried_first


class Thompson(Greedy):
    """Draw a rate from what is known of every arm, and take the largest.

    The reward of a step is taken as normal around the request's rate with the arm. Its spread is learned over all
    requests; the rate of an arm tried n times on a request is then known up to spread / sqrt(n).
    """

    def __init__(self, arms: Sequence[str], **options) -> None:
        super().__init__(arms, **options)
        self.sums = np.zeros((3, len(self.arms)))       # of 1, reward, reward^2

    def weights(self, seats: Sequence[RequestView]) -> ndarray:
        rows = self.ledger.rows(s.request for s in seats)
        count, total, square = np.maximum(self.sums, [[1], [0], [0]])
        # one more observation, as far off as rewards are large: after a single step nobody knows a spread
        far = self.sums[1].sum() / max(1, self.sums[0].sum())
        spread = np.sqrt((np.maximum(0, square - total ** 2 / count) + far ** 2) / count)
        noise = self.rng.standard_normal((len(seats), len(self.arms))) * spread
        return untried_first(self.ledger.rates(rows) + noise / np.sqrt(self.ledger.steps[rows].clip(1)), self.rng)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        arms = self.arms_of(outcomes)
        _, tokens, own, _ = self.ledger.add(outcomes, arms)
        rewards = tokens / (own + [o.plain_seconds for o in outcomes])
        for total, values in zip(self.sums, (np.ones(len(arms)), rewards, rewards ** 2)):
            np.add.at(total, arms, values)

    def describe(self) -> str:
        return "Thompson sampling on tokens per second, normal rewards"
