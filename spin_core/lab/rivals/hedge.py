"""Full information: every drafter is scored on every verified text, so none has to be tried."""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import NONE, Outcome, Scored, RequestView, Selector


class Hedge(Selector):
    """HedgeSpec (arXiv 2510.20064): NormalHedge (Chaudhuri, Freund and Hsu, 2009) over drafters, per request.

    After every step all drafters read the new text. The reward of the drafter that drafted is the tokens it brought;
    that of another, right on a share h of the tokens, is 1 + h + ... + h^gamma; each over its mean seconds per step,
    relative to the best. R_a, the regret, sums how much better arm a did than the distribution we drew from:

        w_a ~ [R_a]+ / c  exp([R_a]+^2 / 2c),   c such that the mean of exp([R_a]+^2 / 2c) is e,

    which needs no learning rate. With no arm ahead it is the uniform distribution.
    """

    unit = "probability"

    def __init__(self, arms: Sequence[str], **options) -> None:
        super().__init__(arms, **options)
        self.regret: dict[int, ndarray] = {}
        self.fresh: dict[int, ndarray] = {}             # tokens of the last step, by each arm
        self.sums = np.zeros((2, len(self.arms)))       # steps and seconds of all requests

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        self._settle([v.request for v in views if v.request in self.fresh])
        probs, _ = self.beliefs(views)
        return np.log(np.maximum(probs, 1e-300)) + self.rng.gumbel(size=probs.shape)

    def beliefs(self, views: Sequence[RequestView]) -> tuple[ndarray, ndarray]:
        probs = self.probs(np.array([self.regret.get(v.request, np.zeros(len(self.arms))) for v in views]))
        return probs, np.zeros(probs.shape, int)        # every drafter is scored on every text: nothing is counted

    def probs(self, regret: ndarray) -> ndarray:
        """NormalHedge's probabilities ``[B, arms]``; retired arms have none."""
        ahead = np.where(self.alive, np.maximum(regret, 0), 0)
        low, high = np.full((len(ahead), 1), 1e-12), ahead.max(1, keepdims=True) ** 2 + 1e-9
        count = self.alive.sum()
        for _ in range(40):         # the mean falls with c: halve the interval in which it crosses e
            c = np.sqrt(low * high)
            mean = (np.exp(np.minimum(ahead ** 2 / (2 * c), 700)) * self.alive).sum(1, keepdims=True) / count
            low, high = np.where(mean > np.e, c, low), np.where(mean > np.e, high, c)
        probs = ahead / high * np.exp(np.minimum(ahead ** 2 / (2 * high), 700))
        total = probs.sum(1, keepdims=True)
        return np.where(total > 0, probs / np.where(total > 0, total, 1), self.alive / count)

    def _settle(self, requests: list[int]) -> None:
        """Book the regrets of their last steps, for the arms that were scored."""
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
        probs = np.where(heard, self.probs(regret), 0) + 1e-12 * heard
        expected = (probs * rewards).sum(1, keepdims=True) / probs.sum(1, keepdims=True).clip(1e-12)
        self.regret |= dict(zip(requests, regret + np.where(heard, rewards - expected, 0)))

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        for outcome, arm in zip(outcomes, self.arms_of(outcomes)):
            self.sums[:, arm] += (1, outcome.draft_seconds + outcome.verify_seconds)
            tokens = self.fresh[outcome.request] = np.full(len(self.arms), np.nan)
            tokens[arm], tokens[self.index[NONE]] = outcome.emitted, 1

    def probe(self, views: Sequence[RequestView]) -> dict[int, list[str]]:
        others = [a for a, alive in zip(self.arms, self.alive) if alive and a != NONE]
        return {v.request: others for v in views}

    def scored(self, scores: Sequence[Scored]) -> None:
        for s in scores:
            tokens, arm = self.fresh.get(s.request), self.index.get(s.drafter)
            if tokens is not None and arm is not None and len(s.hits) and np.isnan(tokens[arm]):
                h = float(np.nan_to_num(np.asarray(s.hits, float)).mean())
                tokens[arm] = (h ** np.arange(self.gamma[arm] + 1)).sum()

    def finish(self, request: int) -> None:
        self.regret.pop(request, None)
        self.fresh.pop(request, None)
