"""Full information: every drafter is judged on every verified text, so nobody has to be tried."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import NONE, Outcome, Scored, RequestView, Selector


class Hedge(Selector):
    """HedgeSpec (arXiv 2510.20064): NormalHedge (Chaudhuri, Freund and Hsu, 2009) over drafters, per request.

    After every step all drafters read the new text. The one that drafted is worth what it brought; another, right with
    a share h of the tokens, 1 + h + ... + h^gamma; each over its mean seconds per step, relative to the best.
    R_a sums by how much arm a has done better than what was expected of the distribution we drew from. The distribution is

        w_a ~ [R_a]+ / c  exp([R_a]+^2 / 2c),   c such that the mean of exp([R_a]+^2 / 2c) is e,

    which needs no learning rate. No arm ahead: the uniform distribution.
    """

    def __init__(self, arms: Sequence[str], **options) -> None:
        super().__init__(arms, **options)
        self.regret: dict[int, ndarray] = {}
        self.fresh: dict[int, ndarray] = {}             # what the last step was worth by each arm, in tokens
        self.sums = np.zeros((2, len(self.arms)))       # steps and seconds of all requests

    def weights(self, seats: Sequence[RequestView]) -> ndarray:
        self._settle([s.request for s in seats if s.request in self.fresh])
        distribution = self.distribution(np.array([self.regret.get(s.request, np.zeros(len(self.arms))) for s in seats]))
        return np.log(np.maximum(distribution, 1e-300)) + self.rng.gumbel(size=distribution.shape)

    def distribution(self, regret: ndarray) -> ndarray:
        """NormalHedge's distribution ``[B, arms]`` over living arms."""
        ahead = np.where(self.alive, np.maximum(regret, 0), 0)
        low, high = np.full((len(ahead), 1), 1e-12), ahead.max(1, keepdims=True) ** 2 + 1e-9
        count = self.alive.sum()
        for _ in range(40):         # the mean falls with c: halve the interval in which it crosses e
            c = np.sqrt(low * high)
            mean = (np.exp(np.minimum(ahead ** 2 / (2 * c), 700)) * self.alive).sum(1, keepdims=True) / count
            low, high = np.where(mean > np.e, c, low), np.where(mean > np.e, high, c)
        distribution = ahead / high * np.exp(np.minimum(ahead ** 2 / (2 * high), 700))
        total = distribution.sum(1, keepdims=True)
        return np.where(total > 0, distribution / np.where(total > 0, total, 1), self.alive / count)

    def _settle(self, requests: list[int]) -> None:
        """Book the regrets of their last steps; of arms that nobody has heard nothing is booked."""
        steps, seconds = self.sums
        if not requests or not steps.any():
            return
        # an arm that was never used takes as long as the quickest, until it is
        per_step = np.where(steps > 0, seconds / np.maximum(steps, 1), (seconds[steps > 0] / steps[steps > 0]).min())
        rewards = np.array([self.fresh.pop(r) for r in requests]) / per_step
        heard = ~np.isnan(rewards) & self.alive
        rewards = np.where(heard, rewards, 0)
        rewards /= rewards.max(1, keepdims=True).clip(1e-12)
        regret = np.array([self.regret.get(r, np.zeros(len(self.arms))) for r in requests])
        distribution = np.where(heard, self.distribution(regret), 0) + 1e-12 * heard
        expected = (distribution * rewards).sum(1, keepdims=True) / distribution.sum(1, keepdims=True).clip(1e-12)
        self.regret |= dict(zip(requests, regret + np.where(heard, rewards - expected, 0)))

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        for outcome, arm in zip(outcomes, self.arms_of(outcomes)):
            self.sums[:, arm] += (1, outcome.draft_seconds + outcome.verify_seconds)
            tokens = self.fresh[outcome.request] = np.full(len(self.arms), np.nan)
            tokens[arm], tokens[self.index[NONE]] = outcome.emitted, 1

    def probe(self, seats: Sequence[RequestView]) -> dict[int, list[str]]:
        others = [a for a, alive in zip(self.arms, self.alive) if alive and a != NONE]
        return {s.request: others for s in seats}

    def scored(self, scores: Sequence[Scored]) -> None:
        for s in scores:
            tokens, arm = self.fresh.get(s.request), self.index.get(s.drafter)
            if tokens is not None and arm is not None and len(s.hits) and np.isnan(tokens[arm]):
                h = float(np.nan_to_num(np.asarray(s.hits, float)).mean())
                tokens[arm] = (h ** np.arange(self.gamma[arm] + 1)).sum()

    def finish(self, request: int) -> None:
        self.regret.pop(request, None)
        self.fresh.pop(request, None)

    def describe(self) -> str:
        return "HedgeSpec: NormalHedge on tokens per second, every drafter judged on every text"
