"""Adaptive speculation length (Minions, arXiv 2402.15678): one drafter, with the draft length that pays now.

A step in which b requests draft s tokens each takes t(b, s) seconds and brings b (1 + accepted(s)) tokens. Both are
learned while serving, and every step takes the s with the most tokens per second. The paper minimises
t_verify(b, s) / accepted(s); here drafting is part of the time, and the target's own token part of the gain.
"""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.lab.rivals.bandits import Fixed
from spin_core.lab.rivals.survival import Survival
from spin_core.select.base import NONE, Outcome, RequestView
from spin_core.select.costs import AffineCost


LONGEST = 8


class Minions(Fixed):
    """One drafter for all, ``arm``, with an adaptive length; by default the first that votes ("vote:..."), else the
    first.

    ``gamma``: the longest drafts.
    """

    own_lengths = True

    def __init__(self, arms: Sequence[str], arm: str | None = None, *, gamma=LONGEST, **options) -> None:
        voting = [name for name in arms if name.startswith("vote")]
        super().__init__(arms, arm or next(iter([*voting, *arms]), NONE), gamma=gamma, **options)
        self.longest = int(self.gamma[self.index[self.arm]])
        self.survival = Survival(1, max(1, self.longest), kappa=8.0, memory=500.0)
        self.target, self.passes = AffineCost(), AffineCost()
        # the cost of one more row shows only when lengths differ: these first
        self.tries = [n for n in (self.longest, 1, (self.longest + 1) // 2) if n]

    def lengths(self, views: Sequence[RequestView], arms: ndarray) -> ndarray:
        return np.where(arms == self.index[self.arm], self.best(len(views)), 0)

    def best(self, batch: int) -> int:
        """The length with the most tokens per second."""
        if self.tries or not self.longest:
            return self.tries[0] if self.tries else 0
        length = np.arange(1, self.longest + 1)
        held = np.exp(-self.survival.hazard[0].cumsum()).cumsum()       # accepted(s), over all requests
        seconds = self.target(batch * (1 + length)) + self.passes(length)
        return int(length[((1 + held) / seconds).argmax()])

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        self.target.learn(outcomes[0].rows, outcomes[0].target_seconds)
        drafts = [o for o in outcomes if o.drafter == self.arm != NONE]
        if drafts:
            self.tries = self.tries[1:]
            longest = max(o.drafted for o in drafts)
            self.passes.learn(max(1, longest), sum(o.draft_seconds for o in drafts))
            self.survival.draft([o.request for o in drafts], np.zeros(len(drafts), int),
                                np.minimum([o.drafted for o in drafts], self.longest),
                                np.minimum([o.accepted for o in drafts], self.longest))

    def finish(self, request: int) -> None:
        self.survival.close(request)
