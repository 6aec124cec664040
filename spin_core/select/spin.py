"""SPIN's selection (arXiv 2503.15921): epochs of exploration and exploitation, and a matching.

What the paper says: time comes in epochs; the first slots of an epoch pick drafters at random and record what each
request gets from each, in tokens per second; the others exploit it, by a maximum-weight matching of requests to
the drafters' places. Our choices, where we know of nothing said, are justified by a sweep (``bench select``):

* a slot is a step, and every request has epochs of its own, which begin when it does;
* epoch j explores ``explore`` slots and exploits ``first * growth^j``: geometric growth makes the cost of exploring
  grow as log T, which is the best that a bandit can do;
* exploration takes drafters in random order, none again before all were tried;
* a drafter that a request has not tried yet counts as what all requests together have had from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import Outcome, Seat
from spin_core.select.greedy import Greedy, drawn_first, untried_first


class Spin(Greedy):
    """Epochs and matching. ``prior``: as many steps' worth of what all requests have had go into every estimate."""

    def __init__(self, arms: Sequence[str], *, explore: int = 2, first: int = 8, growth: float = 2.0,
                 prior: float = 1.0, **options) -> None:
        super().__init__(arms, **options)
        if explore < 0 or first < 1 or growth < 1 or prior < 0:
            raise ValueError(f"spin: needs explore >= 0, first >= 1, growth >= 1 and prior >= 0; got "
                             f"{explore}, {first}, {growth}, {prior}")
        self.explore, self.first, self.growth, self.prior = explore, first, growth, prior
        self.totals = np.zeros((3, len(self.arms)))     # steps, tokens and seconds of all requests
        self._schedule = np.zeros(0, dtype=bool)

    def exploring(self, slots: ndarray) -> ndarray:
        """Which of these slots of a request (0, 1, ...) explore, ``[B]``."""
        if len(slots) and slots.max() >= len(self._schedule):
            schedule, length = [], float(self.first)
            while len(schedule) <= 2 * slots.max() + 64:
                schedule += [True] * self.explore + [False] * round(length)
                length *= self.growth
            self._schedule = np.array(schedule)
        return self._schedule[slots]

    def rates(self, seats: Sequence[Seat]) -> ndarray:
        rows = self.ledger.rows(s.request for s in seats)
        if not self.prior:
            return self.ledger.rates(rows)
        share = self.prior / np.maximum(self.totals[0], 1)
        tokens = self.ledger.tokens[rows] + share * self.totals[1]
        seconds = self.ledger.seconds[rows] + share * self.totals[2]
        rates = np.where(seconds > 0, tokens / np.where(seconds > 0, seconds, 1), np.inf)
        rates[:, self.none] = self.ledger.common_rate
        return rates

    def weights(self, seats: Sequence[Seat]) -> ndarray:
        weights = untried_first(self.rates(seats), self.rng)
        steps = self.ledger.steps[self.ledger.rows(s.request for s in seats)]
        rows = np.flatnonzero(self.exploring(steps.sum(1).astype(int)))
        if len(rows):
            weights[rows] = drawn_first(weights[rows], steps[rows], self.none, self.rng)
        return weights

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        arms = self.arms_of(outcomes)
        _, tokens, seconds = self.ledger.add(outcomes, arms)
        for total, values in zip(self.totals, (np.ones(len(arms)), tokens, seconds)):
            np.add.at(total, arms, values)

    def describe(self) -> str:
        return (f"SPIN: per request, {self.explore} slots of exploration, then {self.first} of exploitation, growing "
                f"{self.growth:g}-fold; prior of {self.prior:g} steps")
