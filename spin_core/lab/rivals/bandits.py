"""The policies that SPIN is compared with: one drafter for all, a random one, and the classic bandits.

Every policy is a matrix of weights (:mod:`spin_core.select.base`). Greedy, the paper's own rival, is in the system
(:mod:`spin_core.select.greedy`), because SPIN builds on it.
"""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import NONE, Outcome, RequestView, Selector
from spin_core.select.greedy import Greedy, drawn_first, untried_first
from spin_core.select.ledger import Ledger


class Fixed(Selector):
    """Always ``arm``, as far as its capacity goes; the other requests decode plainly.

    If there are too few places, the lowest request ids get them, so that no request's drafter changes from step to
    step.
    """

    def __init__(self, arms: Sequence[str], arm: str, **options) -> None:
        super().__init__(arms, **options)
        if arm not in self.index:
            raise ValueError(f"fixed: unknown arm {arm!r}; known: {', '.join(self.arms)}")
        self.arm = arm

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        wanted = np.zeros((len(views), len(self.arms)))
        wanted[:, self.index[NONE]] = 1
        wanted[:, self.index[self.arm]] = np.linspace(3, 2, len(views))     # views come in the order of their ids
        return wanted


class Random(Selector):
    """A uniformly random arm at every step, no speculation among them: what exploration alone would do."""

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        return self.rng.random((len(views), len(self.arms)))


class EpsilonGreedy(Greedy):
    """Greedy, but with probability ``epsilon`` a request's step goes to a random drafter."""

    def __init__(self, arms: Sequence[str], *, epsilon: float = 0.1, **options) -> None:
        super().__init__(arms, **options)
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon-greedy: epsilon must be in 0 .. 1, got {epsilon}")
        self.epsilon = epsilon

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        weights = super().weights(views)
        rows = np.flatnonzero(self.rng.random(len(views)) < self.epsilon)
        if len(rows):
            weights[rows] = drawn_first(weights[rows], np.zeros((len(rows), 1)), self.none, self.rng)
        return weights


class UCB(Greedy):
    """UCBSpec (Hou et al., arXiv 2505.15141) with tokens per second in place of tokens: optimism under uncertainty.

    The index of arm a after t steps of a request, n of them with a, is its mean reward plus the radius

        width * sqrt( (1 + n) / n^2 * (1 + 2 log( K sqrt(1 + n) / delta )) ),    delta = 1 / t^2,

    where rewards lie in an interval of length ``2 width``: here emitted tokens between 1 and gamma + 1, over the arm's
    mean seconds per step. ``scale`` 1 is the theory's radius; it is made for thousands of steps.
    """

    def __init__(self, arms: Sequence[str], *, scale: float = 1.0, **options) -> None:
        super().__init__(arms, **options)
        if scale < 0:
            raise ValueError(f"ucb: scale must not be negative, got {scale}")
        self.scale = scale

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        rows = self.ledger.rows(v.request for v in views)
        rates, n = self.ledger.rates(rows), self.ledger.steps[rows]
        t, tried = np.maximum(1, n.sum(1, keepdims=True)), np.maximum(n, 1)
        per_step = tried / np.where(n > 0, self.ledger.seconds(rows), 1)
        spread = np.sqrt((1 + tried) / tried ** 2 * (1 + 2 * np.log(len(self.arms) * t ** 2 * np.sqrt(1 + tried))))
        radius = np.where(n > 0, self.scale * self.gamma / 2 * per_step * spread, 0)
        return untried_first(rates + radius, self.rng)


class Thompson(Greedy):
    """Thompson sampling: draw a rate from the belief about every arm, and take the arm with the largest draw.

    The reward of a step is taken as normal around the request's rate with the arm. Its spread is learned over all
    requests; the rate of an arm tried n times on a request is then known up to spread / sqrt(n).
    """

    def __init__(self, arms: Sequence[str], **options) -> None:
        super().__init__(arms, **options)
        self.sums = np.zeros((3, len(self.arms)))       # of 1, reward, reward^2

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        rows = self.ledger.rows(v.request for v in views)
        count, total, square = np.maximum(self.sums, [[1], [0], [0]])
        # as if one more reward had been seen, as far off as rewards are large: one step alone shows no spread
        far = self.sums[1].sum() / max(1, self.sums[0].sum())
        spread = np.sqrt((np.maximum(0, square - total ** 2 / count) + far ** 2) / count)
        noise = self.rng.standard_normal((len(views), len(self.arms))) * spread
        return untried_first(self.ledger.rates(rows) + noise / np.sqrt(self.ledger.steps[rows].clip(1)), self.rng)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        arms = self.arms_of(outcomes)
        _, tokens, own, _ = self.ledger.add(outcomes, arms)
        rewards = tokens / (own + [o.plain_seconds for o in outcomes])
        for total, values in zip(self.sums, (np.ones(len(arms)), rewards, rewards ** 2)):
            np.add.at(total, arms, values)


class EXP3(Selector):
    """EXP3Spec (Hou et al., arXiv 2505.15141) on tokens per second: no assumption on where rewards come from.

    Per request, arm a is drawn with probability proportional to exp(-eta L_a), where L_a sums the losses seen,
    each divided by the probability with which its arm had been drawn. The loss of a step is 1 - reward / largest
    reward so far. eta = sqrt(log K / (K t)) at the request's t-th step.
    """

    unit = "probability"

    def __init__(self, arms: Sequence[str], **options) -> None:
        super().__init__(arms, **options)
        self.ledger = Ledger(len(self.arms), -1)        # its `tokens` hold the losses
        self.top = 0.0

    def chances(self, requests) -> tuple[ndarray, ndarray]:
        """The ledger's rows, and the probabilities ``[B, arms]`` with which each request's arm is drawn."""
        rows = self.ledger.rows(requests)
        t = self.ledger.steps[rows].sum(1, keepdims=True) + 1
        eta = np.sqrt(np.log(len(self.arms)) / (len(self.arms) * t))
        loss = np.where(self.alive, self.ledger.tokens[rows], np.inf)
        probs = np.exp(-eta * (loss - loss.min(1, keepdims=True)))
        return rows, probs / probs.sum(1, keepdims=True)

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        _, probs = self.chances(v.request for v in views)
        # the argmax of log p + Gumbel noise is a draw from p; under capacities the matching keeps to its order
        return np.log(np.maximum(probs, 1e-300)) + self.rng.gumbel(size=probs.shape)

    def beliefs(self, views: Sequence[RequestView]) -> tuple[ndarray, ndarray]:
        requests = [v.request for v in views]
        with self.ledger.peek(requests) as rows:
            return self.chances(requests)[1], self.ledger.steps[rows].astype(int)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        arms = self.arms_of(outcomes)
        rows, probs = self.chances(o.request for o in outcomes)
        rewards = np.array([o.emitted / (o.draft_seconds + o.verify_seconds) for o in outcomes])
        self.top = max(self.top, rewards.max())
        chance = np.maximum(probs[np.arange(len(arms)), arms], 1e-3)
        self.ledger.tokens[rows, arms] += (1 - rewards / self.top) / chance
        self.ledger.steps[rows, arms] += 1

    def finish(self, request: int) -> None:
        self.ledger.close(request)
