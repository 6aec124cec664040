"""Selection beyond the paper: full information, a shared prior, and draft positions that compete for a budget.

SPIN's bandit learns a number per request and drafter. This one keeps a model of how drafts survive
(:mod:`spin_core.select.survival`) and of what passes cost (:class:`spin_core.select.costs.AffineCost`, learned while
serving), and picks what brings the most tokens per second for the *whole batch*:

* drafters. A drafter's pass costs much the same for one request as for many. So all sets of drafters are weighed, each
  request with its best in the set, and the best set wins;
* lengths. Once it is settled who drafts for whom, the k-th drafted token of a request is worth the probability that the
  target gets as far as accepting it. All such positions of the batch compete: the best N are drafted and verified,
  with N where tokens per second peak (a verification budget, as in arXiv 2607.05147);
* exploration costs no draft. A drafter may read along: one pass over text that is already verified says how it would
  have done (arXiv 2510.20064). Drafters that cost next to nothing always do, and one that takes a request over does
  anyway; the others do in epochs of SPIN's geometric schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import NONE, Outcome, Scored, Seat, Selector
from spin_core.select.costs import AffineCost
from spin_core.select.schedule import Epochs
from spin_core.select.survival import Survival

FREE = 0.02         # of a target's pass: a drafter whose passes take less reads along all the time
TOGETHER = 3        # drafters in one step, at most: each costs a pass of its own


class SpinFull(Selector):
    """SPIN with full information.

    ``kappa``: how many failures a request must show before it counts for as much as all others. ``memory``: drafts
    after which what was learned about a drafter has faded to 1/e. ``explore``, ``first``, ``growth``: the epochs in
    which drafters read along (:class:`spin_core.select.schedule.Epochs`). ``cost``: seconds of the target's pass over
    numbers of rows (an array), where profiled; None: a line, learned while serving. ``gamma`` bounds the lengths.
    """

    def __init__(self, arms: Sequence[str], *, gamma: int = 8, kappa: float = 8.0, memory: float = 2000.0,
                 explore: int = 1, first: int = 8, growth: float = 2.0, cost: Callable | None = None,
                 **options) -> None:
        super().__init__(arms, gamma=gamma, **options)
        self.none, self.depths = self.index[NONE], int(self.gamma.max())
        self.survival = Survival(len(self.arms), self.depths, kappa=kappa, memory=memory)
        self.target = AffineCost()
        self.cost = cost or self.target
        self.rows = 0.0                 # drafted rows of the last plan
        self.passes = [AffineCost() for _ in self.arms]
        self.epochs = Epochs(explore, first, growth)
        self.goodput = 0.0              # tokens per second that the last plan came to
        sets = np.array(list(itertools.product((False, True), repeat=len(self.arms))))
        self.sets = sets[sets[:, self.none] & (sets.sum(1) <= TOGETHER + 1)]

    # ---- deciding

    def weights(self, seats: Sequence[Seat]) -> ndarray:
        self._look(seats)
        sets = self.sets[(self.alive | ~self.sets).all(1)]
        for _ in range(3):              # goodput is the price of a second and what comes out: weigh until it settles
            before = self.goodput
            gain, chosen = self._weigh(sets, len(seats))
            if abs(self.goodput - before) <= .02 * self.goodput:
                break
        # drafters outside the chosen set are a way out where capacities leave no room inside
        return gain - np.where(chosen, 0, np.ptp(gain) + 1)

    def _look(self, seats: Sequence[Seat]) -> None:
        """What is believed now: ``worth [B, arms, depths]``, the chance that a drafted token is of use; ``found [B,
        arms]``, that there is a draft; and the lines of costs ``[arms]``."""
        rows = self.survival.rows(s.request for s in seats)
        self.found = self.survival.availability(rows)
        for b, seat in enumerate(seats):
            for name, length in seat.found.items():
                if name in self.index:
                    self.found[b, self.index[name]] = length > 0
        room = np.minimum(self.gamma, np.array([s.max_gamma for s in seats])[:, None])
        possible = np.arange(self.depths) < room[:, :, None]
        self.worth = self.survival.curves(rows) * self.found[:, :, None] * possible
        self.per_pass, self.per_row = np.array([p.line for p in self.passes]).T
        # what a row more costs, about where the last plan was: a profiled pass may be no line
        low, here, high = self.cost(len(seats) + self.rows + np.array([-1.0, 0, 1]) * max(1, self.rows / 4))
        self.slope = max(0.0, (high - low) / (2 * max(1, self.rows / 4)))
        self.known = here > 0

    def _weigh(self, sets: ndarray, count: int) -> tuple[ndarray, ndarray]:
        """What each arm gains each request ``[B, arms]`` at today's price of a second; the best of ``sets``."""
        draft = self.per_row + self.per_pass / count
        price = self.slope * self.found + draft                                 # of one more position
        lengths = (self.worth > self.goodput * price[:, :, None]).sum(2)        # worth falls with depth
        tokens = 1 + np.where(np.arange(self.depths) < lengths[:, :, None], self.worth, 0).sum(2)
        rows = lengths * self.found
        gain = tokens - self.goodput * (self.slope * rows + draft * lengths)
        choice = np.where(sets[:, None, :], gain, -np.inf).argmax(2)            # [sets, B]
        seat = np.arange(count)
        drafted = rows[seat, choice].sum(1)
        spent = self.cost(count + drafted) + (self.per_row * lengths)[seat, choice].sum(1)
        for arm, per_pass in enumerate(self.per_pass):                          # as many passes as the longest draft
            spent = spent + per_pass * np.where(choice == arm, lengths[:, arm], 0).max(1)
        ratio = tokens[seat, choice].sum(1) / np.maximum(spent, 1e-12)
        best = int(ratio.argmax())
        self.goodput, self.rows = float(ratio[best]) if self.known else 0.0, float(drafted[best])
        return gain, sets[best]

    def lengths(self, seats: Sequence[Seat], arms: ndarray) -> ndarray:
        """The verification budget: the best N positions of the batch, N where tokens per second peak."""
        seat = np.arange(len(seats))
        worth, found = self.worth[seat, arms], self.found[seat, arms]
        together = np.bincount(arms, minlength=len(self.arms))[arms]
        draft = self.per_row[arms] + self.per_pass[arms] / together
        price = np.maximum(self.slope * found + draft, 1e-12)[:, None]
        order = np.argsort(-worth / price, axis=None, kind="stable")[:np.count_nonzero(worth)]
        rows = np.append(0, np.broadcast_to(found[:, None], worth.shape).ravel()[order].cumsum())
        drafting = np.append(0, np.broadcast_to(draft[:, None], worth.shape).ravel()[order].cumsum())
        tokens = len(seats) + np.append(0, worth.ravel()[order].cumsum())
        count = int((tokens / (self.cost(len(seats) + rows) + drafting)).argmax()) if self.known else len(order)
        return np.bincount(order[:count] // self.depths, minlength=len(seats))

    # ---- learning

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        arms = self.arms_of(outcomes)
        drafted = np.array([o.drafted for o in outcomes])
        self.target.learn(outcomes[0].rows, outcomes[0].target_seconds)
        seconds = np.array([o.draft_seconds for o in outcomes])
        for arm in np.unique(arms[arms != self.none]):
            mine = arms == arm
            depth = max(1, drafted[mine].max())         # a drafter that found nothing was asked all the same
            self.passes[arm].learn(max(1, drafted[mine].sum() / depth), seconds[mine].sum() / depth)
        some = arms != self.none
        if some.any():
            self.survival.draft([o.request for o, s in zip(outcomes, some) if s], arms[some], drafted[some],
                                np.array([o.accepted for o in outcomes])[some])

    def probe(self, seats: Sequence[Seat]) -> dict[int, list[str]]:
        whole = FREE * self.target(1)
        free = np.array([0 < p(1) < whole for p in self.passes]) & self.alive
        names = [a for a, is_free in zip(self.arms, free) if is_free]
        if self.epochs.tick():
            others = [a for i, a in enumerate(self.arms) if self.alive[i] and i != self.none and not free[i]]
            names += [str(self.rng.choice(others))] if others else []
        return {s.request: names for s in seats} if names else {}

    def scored(self, scores: Sequence[Scored]) -> None:
        for s in scores:
            if s.drafter in self.index and len(s.hits):
                self.survival.read_along(s.request, self.index[s.drafter], s.hits)

    def finish(self, request: int) -> None:
        self.survival.close(request)

    def describe(self) -> str:
        return f"SPIN with full information: kappa {self.survival.kappa:g}, {self.epochs}"
