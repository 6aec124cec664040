"""A survival model of drafts: how far drafts of a drafter get, and how this request differs from the average.

For every drafter a, ``hazard [depth]`` is -log of the probability that the next drafted token is accepted, given that
all before it were; all requests together teach it. A request has one number per drafter, its *frailty* theta:

    P(the first k drafted tokens are accepted) = exp(-theta (hazard_1 + ... + hazard_k)),

so theta 1 is the average request, 2 one that fails twice as soon. A request's failures are counted against those that
the average request would have had in the same tests; with a Gamma(kappa, kappa) prior the posterior mean is a ratio of
counts (the conjugate pair Gamma and Poisson; for rare failures the model, for others a good likeness):

    theta = (kappa + failures) / (kappa + expected failures).

``kappa`` is the shrinkage: a new request starts as the average one, and moves away from it as evidence comes in. How
much requests differ is learned as well, by the method of moments from requests that have left: (failures - expected)^2
is expected plus expected^2 / kappa on average. Deep positions are drafted for good requests only and would look too
easy; so a test of a request counts as theta tests in the hazard.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.ledger import RequestTables

FIRST_GUESS = 0.7       # acceptance of a drafter without evidence: optimistic, so that every drafter is tried
READ_WEIGHT = 0.5       # of a test: how much a token counts that a drafter has read along
SPREAD_PRIOR = 20.0     # how much evidence of spread among requests outweighs the first kappa


class Survival(RequestTables):
    """Hazards per arm and depth, frailties and availability per request and arm.

    ``kappa``: the first guess of the shrinkage. ``memory``: over how many drafts of an arm the hazards fade to 1/e,
    for workloads shift.
    """

    def __init__(self, arms: int, depths: int, *, kappa: float, memory: float) -> None:
        self.keep, self.depths = np.exp(-1 / memory), depths
        self.spread = np.full((arms, 2), (SPREAD_PRIOR * kappa, SPREAD_PRIOR))  # expected^2, excess
        self.tested, self.failed = np.zeros((arms, depths)), np.zeros((arms, depths))
        self.found = np.zeros((arms, 2))            # drafts asked for, and those with at least one token
        super().__init__(4, arms)                   # per request: failures, expected failures, asked, found
        self.refresh()
        self._shrink()

    def draft(self, requests: Iterable[int], arms: ndarray, drafted: ndarray, accepted: ndarray) -> None:
        """Learn from drafts, one per request; a draft is tested up to its first rejected token."""
        rows = self.rows(requests)
        some = drafted > 0
        depth = np.arange(self.depths)
        tested = depth < np.minimum(accepted + 1, drafted)[:, None]
        failed = tested & (depth == accepted[:, None])
        theta = self.frailty(rows)[np.arange(len(rows)), arms]
        fade = self.keep ** np.bincount(arms, minlength=len(self.tested))[:, None]
        for total, values in ((self.tested, tested * theta[:, None]), (self.failed, failed)):
            total *= fade
            np.add.at(total, arms, values)
        self.found *= fade
        np.add.at(self.found, arms, np.stack([np.ones(len(arms)), some], 1))
        expected = (self.failing[arms] * tested).sum(1)
        np.add.at(self.tables, (slice(None), rows, arms), np.stack([failed.any(1), expected, np.ones(len(arms)), some]))
        self.refresh()

    def read_along(self, request: int, arm: int, hits: Sequence[float]) -> None:
        """Learn from text that a drafter has read without drafting; NaN where it would have proposed nothing.
        Call ``refresh`` after the last request of a step.

        Such a token tells less than a drafted one: a draft begins where another has failed, while these lie anywhere,
        many of them in easy stretches. So it counts as ``READ_WEIGHT`` of a test.
        """
        hits = np.asarray(hits, float)
        known = hits[~np.isnan(hits)]
        tests, failures = READ_WEIGHT * len(known), READ_WEIGHT * (len(known) - known.sum())
        row = self.rows([request])[0]
        theta = self.frailty([row])[0, arm]
        self.tables[:, row, arm] += failures, tests * self.failing[arm, 0], READ_WEIGHT * len(hits), tests
        for total, value in ((self.tested, tests * theta), (self.failed, failures)):
            total[arm] *= self.keep ** tests
            total[arm, 0] += value

    def curves(self, theta: ndarray) -> ndarray:
        """P(the first k drafted tokens are accepted) for k = 1 .. depths, ``[B, arms, depths]``."""
        return np.exp(-theta[:, :, None] * self.hazard.cumsum(1))

    def frailty(self, rows: ndarray, optimism: float = 0.0) -> ndarray:
        """The posterior mean of theta, ``[B, arms]``, less ``optimism`` standard deviations."""
        failures, expected = self.tables[:2, rows]
        mean = (self.kappa + failures) / (self.kappa + expected)
        return np.maximum(mean - optimism * np.sqrt(mean / (self.kappa + expected)), 0)

    def availability(self, rows: ndarray) -> ndarray:
        """The share of drafts with at least one token, ``[B, arms]``, shrunk to that of all requests."""
        pooled = (self.found[:, 1] + 1) / (self.found[:, 0] + 1)
        asked, found = self.tables[2:, rows]
        return (8 * pooled + found) / (8 + asked)

    def close(self, request: int) -> None:
        """Forget a request; what it has taught about the drafters stays."""
        if request in self.row:
            failures, expected = self.tables[:2, self.row[request]]
            self.spread += np.stack([expected ** 2, (failures - expected) ** 2 - expected], 1)
            self._shrink()
        super().close(request)

    def _shrink(self) -> None:
        """Set ``kappa``, the shrinkage per arm: small if requests differ much."""
        self.kappa = np.clip(self.spread[:, 0] / np.maximum(self.spread[:, 1], 1e-9), .5, 64)

    def refresh(self) -> None:
        """Set ``failing [arms, depths]``, the average request's chance to fail at a depth, and ``hazard``. A depth with
        few tests takes over the chance of the depth before it."""
        failing = []
        for failed, tested in zip(self.failed.tolist(), self.tested.tolist()):      # so few numbers are faster as lists
            guess = 1 - FIRST_GUESS
            failing.append([guess := min(max((f + 4 * guess) / (t + 4), .02), .98) for f, t in zip(failed, tested)])
        self.failing = np.array(failing)
        self.hazard = -np.log1p(-self.failing)
