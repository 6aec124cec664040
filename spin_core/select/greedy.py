"""Greedy and epsilon-greedy: the rivals in the SPIN paper, and the sums that SPIN itself keeps."""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import NONE, Outcome, RequestView, Selector
from spin_core.select.ledger import Ledger


class Greedy(Selector):
    """Try every arm once on a request, in random order; from then on take the arm with the most tokens per second.

    A drafter that was unlucky at its only try is never tried again: greedy does not explore.
    """

    def __init__(self, arms: Sequence[str], **options) -> None:
        super().__init__(arms, **options)
        self.none = self.index[NONE]
        self.ledger = Ledger(len(self.arms), self.none)

    def rates(self, views: Sequence[RequestView]) -> ndarray:
        """Tokens per second that each request has had from each arm, infinite where it was not tried."""
        return self.ledger.rates(self.ledger.rows(v.request for v in views))

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        return untried_first(self.rates(views), self.rng)

    def beliefs(self, views: Sequence[RequestView]) -> tuple[ndarray, ndarray]:
        with self.ledger.peek([v.request for v in views]) as rows:
            rates, count = self.rates(views), self.ledger.steps[rows].astype(int)
        return np.where(np.isfinite(rates), rates, np.nan), count

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        self.ledger.add(outcomes, self.arms_of(outcomes))

    def finish(self, request: int) -> None:
        self.ledger.close(request)


def untried_first(rates: ndarray, rng: np.random.Generator) -> ndarray:
    """``rates [B, arms]`` as finite weights: untried (infinite) arms above all others, in random order."""
    untried = np.isinf(rates)
    if not untried.any():
        return rates
    known = np.where(untried, 0, rates)
    return np.where(untried, known.max() + 1 + rng.random(rates.shape), known)


def drawn_first(weights: ndarray, steps: ndarray, none: int, rng: np.random.Generator) -> ndarray:
    """``weights [B, arms]`` of exploration: any drafter is above all others, those with fewer ``steps [B, arms]``
    before those with more, else at random. "none" keeps its weight: it always brings one token."""
    chance = rng.random(weights.shape) - steps
    chance += np.abs(weights).max(initial=0) + 1 - chance.min(initial=0)
    chance[:, none] = weights[:, none]
    return chance
