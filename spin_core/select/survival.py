"""How far drafts get: what all requests have taught about a drafter, and how this request differs.

For every drafter a, ``hazard [depth]`` is -log of the probability that the next drafted token is accepted, given that
all before it were; all requests together teach it. A request has one number per drafter, its *frailty* theta:

    P(the first k drafted tokens are accepted) = exp(-theta (hazard_1 + ... + hazard_k)),

so theta 1 is the average request, 2 one that fails twice as soon. A request's failures are counted against those that
the average request would have had in the same tests; with a Gamma(kappa, kappa) prior the posterior mean is a ratio of
counts (the conjugate pair Gamma and Poisson; for rare failures the model, for others a good likeness):

    theta = (kappa + failures) / (kappa + expected failures).

``kappa`` is the shrinkage: a new request is the average one, and becomes itself as it is heard. How different
requests are is learned as well, by the method of moments from those that have left: (failures - expected)^2 is
expected plus expected^2 / kappa on average. What all requests teach is corrected the other way round, a test of a
request with theta counting as theta tests: deep positions are drafted for good requests only, and are not to look
easy for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy import ndarray

FIRST_GUESS = 0.7       # of an acceptance nobody has seen: on the hopeful side, so that every drafter gets its chance
READ = 0.5              # of a test: what a token that was read along counts
PATIENCE = 20.0         # how much evidence of spread among requests outweighs the first kappa


class Survival:
    """Hazards per arm and depth, frailties and availability per request and arm.

    ``kappa``: the shrinkage before requests have taught it. ``memory``: over how many drafts of an arm what all
    requests have taught fades to 1/e; workloads shift.
    """

    def __init__(self, arms: int, depths: int, *, kappa: float, memory: float) -> None:
        self.keep, self.depths = np.exp(-1 / memory), depths
        self.spread = np.full((arms, 2), (PATIENCE * kappa, PATIENCE))  # of requests: expected^2, its excess
        self.tested, self.failed = np.zeros((arms, depths)), np.zeros((arms, depths))
        self.found = np.zeros((arms, 2))            # drafts asked for, and those that came to something
        self.row: dict[int, int] = {}
        self.unused: list[int] = []
        self.books = np.zeros((0, 4, arms))         # per request: failures, expected failures, asked, found
        self.refresh()
        self._shrink()

    def draft(self, requests: Iterable[int], arms: ndarray, drafted: ndarray, accepted: ndarray) -> None:
        """Learn from drafts, one per request: all of a drafted chain up to its first rejection was tested."""
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
        np.add.at(self.books, (rows, slice(None), arms),
                  np.stack([failed.any(1), expected, np.ones(len(arms)), some], 1))
        self.refresh()

    def read_along(self, request: int, arm: int, hits: Sequence[float]) -> None:
        """Learn from text that a drafter has read without drafting; NaN where it would have proposed nothing.
        ``refresh`` after the last request of a step.

        Such a token tells less than a drafted one: a draft begins where another has failed, while these lie anywhere,
        many of them in easy stretches. So it counts ``READ`` of a test.
        """
        hits = np.asarray(hits, float)
        known = hits[~np.isnan(hits)]
        tests, failures = READ * len(known), READ * (len(known) - known.sum())
        row = self.rows([request])[0]
        theta = self.frailty([row])[0, arm]
        self.books[row, :, arm] += failures, tests * self.failing[arm, 0], READ * len(hits), tests
        for total, value in ((self.tested, tests * theta), (self.failed, failures)):
            total[arm] *= self.keep ** tests
            total[arm, 0] += value

    def curves(self, theta: ndarray) -> ndarray:
        """P(the first k drafted tokens are accepted) for k = 1 .. depths, ``[B, arms, depths]``."""
        return np.exp(-theta[:, :, None] * self.hazard.cumsum(1))

    def frailty(self, rows: ndarray, bold: float = 0.0) -> ndarray:
        """The posterior mean of theta, ``[B, arms]``, less ``bold`` standard deviations."""
        books, kappa = self.books[rows], self.kappa
        mean = (kappa + books[:, 0]) / (kappa + books[:, 1])
        return np.maximum(mean - bold * np.sqrt(mean / (kappa + books[:, 1])), 0)

    def availability(self, rows: ndarray) -> ndarray:
        """The share of drafts that come to something, ``[B, arms]``, shrunk to that of all requests."""
        pooled = (self.found[:, 1] + 1) / (self.found[:, 0] + 1)
        books = self.books[rows]
        return (8 * pooled + books[:, 3]) / (8 + books[:, 2])

    def rows(self, requests: Iterable[int]) -> ndarray:
        """The rows of these requests; new ones get a row of zeros."""
        return np.fromiter((self.row[r] if r in self.row else self._open(r) for r in requests), int)

    def close(self, request: int) -> None:
        """Forget a request; what it has taught about the drafters stays."""
        row = self.row.pop(request, None)
        if row is not None:
            failures, expected = self.books[row, :2]
            self.spread += np.stack([expected ** 2, (failures - expected) ** 2 - expected], 1)
            self._shrink()
            self.books[row] = 0
            self.unused.append(row)

    def _open(self, request: int) -> int:
        if not self.unused:
            size = len(self.books)
            self.unused = list(range(size, size + max(8, size)))[::-1]
            self.books = np.concatenate([self.books, np.zeros((max(8, size), *self.books.shape[1:]))])
        self.row[request] = self.unused.pop()
        return self.row[request]

    def _shrink(self) -> None:
        """``kappa``, the shrinkage per arm: small where requests differ much."""
        self.kappa = np.clip(self.spread[:, 0] / np.maximum(self.spread[:, 1], 1e-9), .5, 64)

    def refresh(self) -> None:
        """``failing [arms, depths]``, the average request's chance to fail there, and ``hazard``; where little was
        tested, the depth before is the better guess."""
        failing = []
        for failed, tested in zip(self.failed.tolist(), self.tested.tolist()):      # few numbers: quicker than arrays
            guess = 1 - FIRST_GUESS
            failing.append([guess := min(max((f + 4 * guess) / (t + 4), .02), .98) for f, t in zip(failed, tested)])
        self.failing = np.array(failing)
        self.hazard = -np.log1p(-self.failing)
