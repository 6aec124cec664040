"""Selection beyond the paper: full information, a shared prior, and draft positions that compete for a budget.

SPIN's bandit learns one number per request and drafter. This policy keeps a survival model of drafts
(:mod:`spin_core.lab.rivals.survival`) and a model of the seconds of passes
(:class:`spin_core.select.costs.AffineCost`), both learned while serving, and maximises the tokens per second of the
*whole batch*:

* drafters. A drafter's pass costs much the same for one request as for many. So all sets of drafters are compared, each
  request with its best drafter in the set, and the best set wins;
* lengths. Given the drafters, the k-th drafted token of a request is worth the probability that all k are accepted.
  All such positions of the batch compete: the best N are drafted and verified, with the N at which tokens per second
  peak (a verification budget, as in arXiv 2607.05147);
* exploration costs no draft. A drafter may read along: one pass over verified text shows how it would have done (arXiv
  2510.20064). A drafter that takes over a request reads its text anyway; others are probed when the request has
  written 8, 16, 32, ... tokens, if they could be so much better than the best that the pass may pay.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import NONE, Outcome, Scored, RequestView, Selector
from spin_core.select.costs import AffineCost
from spin_core.lab.rivals.survival import Survival

PROBE_AFTER = 8     # tokens after which other drafters are first probed
P_BETTER = 0.16     # the probability that a drafter is better than one standard deviation above its estimate
MAX_DRAFTERS = 3    # in one step: each costs a pass of its own


class SpinFull(Selector):
    """SPIN with full information.

    ``kappa``: the first guess of the shrinkage (:mod:`spin_core.lab.rivals.survival`). ``memory``: drafts after which
    what was learned about a drafter has faded to 1/e. ``optimism``: probing assumes a frailty so many standard
    deviations below its mean. ``cost``: seconds of the target's pass by numbers of rows (an array), if profiled; None:
    a line, learned while serving. ``gamma`` bounds the lengths.
    """

    unit = "tokens a step, net of the time they take"
    own_lengths = True

    def __init__(self, arms: Sequence[str], *, gamma: int = 8, kappa: float = 8.0, memory: float = 2000.0,
                 optimism: float = 1.0, cost: Callable | None = None, **options) -> None:
        super().__init__(arms, gamma=gamma, **options)
        self.none, self.depths = self.index[NONE], int(self.gamma.max())
        self.survival = Survival(len(self.arms), self.depths, kappa=kappa, memory=memory)
        self.target = AffineCost()
        self.cost = cost or self.target
        self.rows = 0.0                 # drafted rows of the last plan
        self.deepest = np.full(len(self.arms), self.depths)     # how deep each drafter goes in the last plan
        self.passes = [AffineCost() for _ in self.arms]
        self.optimism, self.due = optimism, {}      # due: tokens at which a request is next probed
        self.goodput = 0.0              # tokens per second of the last plan
        drafting = [a for a in range(len(self.arms)) if a != self.none]
        sets = [{self.none, *some} for size in range(MAX_DRAFTERS + 1)
                for some in itertools.combinations(drafting, size)]
        # sorted, because of equally good sets the first is taken
        self.sets = np.array(sorted([a in some for a in range(len(self.arms))] for some in sets))

    # ---- deciding

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        self._look(views)
        sets = self.sets[(self.open | ~self.sets).all(1)]
        for _ in range(3):              # goodput is the price of a second and also the result: iterate until it settles
            before = self.goodput
            gain, chosen = self._weigh(sets, len(views))
            if abs(self.goodput - before) <= .02 * self.goodput:
                break
        # drafters outside the chosen set are the fallback if capacities leave no room inside
        return gain - np.where(chosen, 0, np.ptp(gain) + 1)

    def _look(self, views: Sequence[RequestView], optimism: float = 0.0) -> None:
        """Set the present estimates: ``worth [B, arms, depths]``, the chance that a drafted token is accepted; ``found
        [B, arms]``, that there is a draft; and the lines of costs ``[arms]``."""
        rows = self.survival.rows(v.request for v in views)
        self.found = self.survival.availability(rows)
        for b, view in enumerate(views):
            for name, length in view.found.items():
                if name in self.index:
                    self.found[b, self.index[name]] = length > 0
        room = np.minimum(self.gamma, np.array([v.max_gamma for v in views])[:, None])
        possible = np.arange(self.depths) < room[:, :, None]
        self.worth = self.survival.curves(self.survival.frailty(rows, optimism)) * self.found[:, :, None] * possible
        self.per_pass, self.per_row = np.array([p.line for p in self.passes]).T
        # the cost of one more row near the last plan: a profiled pass may be no line
        low, here, high = self.cost(len(views) + self.rows + np.array([-1.0, 0, 1]) * max(1, self.rows / 4))
        self.slope = max(0.0, (high - low) / (2 * max(1, self.rows / 4)))
        self.known = here > 0

    def _gain(self, count: int) -> tuple[ndarray, ndarray, ndarray, ndarray]:
        """For each arm at the present price of a second, each ``[B, arms]``: the request's net gain in tokens; its
        tokens, the drafted length, and the rows to verify."""
        draft = self.per_row + self.per_pass / count
        price = self.slope * self.found + draft                                 # of one more position
        lengths = (self.worth > self.goodput * price[:, :, None]).sum(2)        # worth falls with depth
        lengths = np.minimum(lengths, self.deepest)
        tokens = 1 + np.where(np.arange(self.depths) < lengths[:, :, None], self.worth, 0).sum(2)
        rows = lengths * self.found
        return tokens - self.goodput * (self.slope * rows + draft * lengths), tokens, lengths, rows

    def _weigh(self, sets: ndarray, count: int) -> tuple[ndarray, ndarray]:
        """The net gain of each request with each arm ``[B, arms]``, and the best of ``sets``."""
        gain, tokens, lengths, rows = self._gain(count)
        choice = np.where(sets[:, None, :], gain, -np.inf).argmax(2)            # [sets, B]
        b = np.arange(count)
        drafted = rows[b, choice].sum(1)
        spent = self.cost(count + drafted) + (self.per_row * lengths)[b, choice].sum(1)
        longest = (lengths * (choice[:, :, None] == np.arange(len(self.arms)))).max(1)      # [sets, arms]
        spent = spent + longest @ self.per_pass                                 # as many passes as the longest draft
        ratio = tokens[b, choice].sum(1) / np.maximum(spent, 1e-12)
        best = int(ratio.argmax())
        self.goodput, self.rows = float(ratio[best]) if self.known else 0.0, float(drafted[best])
        return gain, sets[best]

    def lengths(self, views: Sequence[RequestView], arms: ndarray) -> ndarray:
        """The verification budget: the best N positions of the batch, N where tokens per second peak."""
        b = np.arange(len(views))
        worth, found = self.worth[b, arms], self.found[b, arms]
        price = (self.slope * found + self.per_row[arms])[:, None]
        net = np.maximum(worth - self.goodput * price, 0)
        passes, self.deepest = 0.0, np.full(len(self.arms), self.depths)
        for arm in sorted({*arms.tolist()} - {self.none}):
            # a pass at this depth serves all requests that draft as deep: go on while it pays for them together
            mine = arms == arm
            total = (net[mine].sum(0) - self.goodput * self.per_pass[arm]).cumsum()
            best = int(total.argmax())
            depth = best + 1 if total[best] > 0 else 0
            worth[mine, depth:] = 0
            self.deepest[arm] = max(1, depth)
            passes += depth * self.per_pass[arm]
        price = np.maximum(price, 1e-12)
        order = np.argsort(-worth / price, axis=None, kind="stable")[:np.count_nonzero(worth)]
        rows = np.append(0, found[order // self.depths].cumsum())
        drafting = passes + self.per_row[arms[order // self.depths]].cumsum()
        tokens = len(views) + np.append(0, worth.ravel()[order].cumsum())
        seconds = self.cost(len(views) + rows) + np.append(passes, drafting)
        count = int((tokens / seconds).argmax()) if self.known else len(order)
        return np.bincount(order[:count] // self.depths, minlength=len(views))

    def beliefs(self, views: Sequence[RequestView]) -> tuple[ndarray, ndarray]:
        with self.survival.peek([v.request for v in views]) as rows:
            self._look(views)
            return self._gain(len(views))[0], self.survival.tables[2, rows].astype(int)

    # ---- learning

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        arms = self.arms_of(outcomes)
        drafted = np.array([o.drafted for o in outcomes])
        self.target.learn(outcomes[0].rows, outcomes[0].target_seconds)
        seconds = np.array([o.draft_seconds for o in outcomes])
        for arm in sorted({*arms.tolist()} - {self.none}):
            mine = arms == arm
            depth = max(1, drafted[mine].max())         # a drafter that found nothing was asked nevertheless
            self.passes[arm].learn(max(1, drafted[mine].sum() / depth), seconds[mine].sum() / depth)
        some = arms != self.none
        if some.any():
            self.survival.draft([o.request for o, s in zip(outcomes, some) if s], arms[some], drafted[some],
                                np.array([o.accepted for o in outcomes])[some])

    def probe(self, views: Sequence[RequestView]) -> dict[int, list[str]]:
        due = [v for v in views
               if v.emitted >= self.due.setdefault(v.request, PROBE_AFTER) and v.max_gamma >= PROBE_AFTER]
        if not due:
            return {}
        self._look(due)
        gain, tokens, _, _ = self._gain(len(views))
        best, b = gain.argmax(1), np.arange(len(due))
        self._look(due, self.optimism)
        better = self._gain(len(views))[0] - gain[b, best][:, None]
        # the gain of a better drafter until the end, against the tokens that the pass delays
        steps = np.array([v.max_gamma for v in due]) / tokens[b, best]
        unread = np.array([v.context if v.emitted < 2 * PROBE_AFTER else v.emitted / 2 for v in due])
        price = self.goodput * (self.per_pass + self.per_row * unread[:, None])
        could = (better * steps[:, None] * P_BETTER > price) & (better > 0) & self.open
        could[:, self.none] = False
        self.due |= {v.request: 2 * v.emitted for v in due}
        return {v.request: [self.arms[a] for a in np.flatnonzero(others)] for v, others in zip(due, could)}

    def scored(self, scores: Sequence[Scored]) -> None:
        for s in scores:
            if s.drafter in self.index and len(s.hits):
                self.survival.read_along(s.request, self.index[s.drafter], s.hits)
        if scores:
            self.survival.refresh()

    def finish(self, request: int) -> None:
        self.survival.close(request)
        self.due.pop(request, None)
