"""No assumption on where rewards come from: exponential weights on what was seen, each made up for its chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import Outcome, RequestView, Selector
from spin_core.select.ledger import Ledger


class EXP3(Selector):
    """EXP3Spec (Hou et al., arXiv 2505.15141) on tokens per second.

    Per request, arm a is drawn with probability proportional to exp(-eta L_a), where L_a sums the losses seen,
    each divided by the probability with which its arm had been drawn. The loss of a step is 1 - reward / largest
    reward so far. eta = sqrt(log K / (K t)) at the request's t-th step.
    """

    def __init__(self, arms: Sequence[str], **options) -> None:
        super().__init__(arms, **options)
        self.ledger = Ledger(len(self.arms), -1)        # its `tokens` hold the losses
        self.top = 0.0

    def chances(self, requests) -> tuple[ndarray, ndarray]:
        """The ledger's rows, and the distribution ``[B, arms]`` from which each request's arm is drawn."""
        rows = self.ledger.rows(requests)
        t = self.ledger.steps[rows].sum(1, keepdims=True) + 1
        eta = np.sqrt(np.log(len(self.arms)) / (len(self.arms) * t))
        loss = np.where(self.alive, self.ledger.tokens[rows], np.inf)
        distribution = np.exp(-eta * (loss - loss.min(1, keepdims=True)))
        return rows, distribution / distribution.sum(1, keepdims=True)

    def weights(self, seats: Sequence[RequestView]) -> ndarray:
        _, distribution = self.chances(s.request for s in seats)
        # the argmax of log p + Gumbel noise is a draw from p; under capacities the matching keeps to its order
        return np.log(np.maximum(distribution, 1e-300)) + self.rng.gumbel(size=distribution.shape)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        arms = self.arms_of(outcomes)
        rows, distribution = self.chances(o.request for o in outcomes)
        rewards = np.array([o.emitted / (o.draft_seconds + o.verify_seconds) for o in outcomes])
        self.top = max(self.top, rewards.max())
        self.ledger.tokens[rows, arms] += (1 - rewards / self.top) / np.maximum(distribution[np.arange(len(arms)), arms], 1e-3)
        self.ledger.steps[rows, arms] += 1

    def finish(self, request: int) -> None:
        self.ledger.close(request)

    def describe(self) -> str:
        return "EXP3Spec on tokens per second"
