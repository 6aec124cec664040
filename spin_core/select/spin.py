"""SPIN's selection (arXiv 2503.15921): epochs of exploration and exploitation, and a matching.

What the paper says: time comes in epochs; the first slots of an epoch pick drafters at random and record what each
request gets from each, in tokens per second; the others exploit it, by a maximum-weight matching of requests to
the drafters' places. Our choices, where we know of nothing said, are justified by a sweep (``bench select``):

* a slot is a step of the server. Epoch j explores ``explore`` slots and exploits ``first * growth^j``: with growth
  above 1 the number of explored slots grows as log T, and so may the regret;
* an explored slot takes drafters in random order, those that a request has tried least before the others; exploring
  goes on until there are as many tries as drafters: for one slot, unless requests are few;
* a rate is that of the present batch: what a step costs beside its draft, drafts or not, is counted as what it is now
  (:class:`spin_core.select.ledger.Ledger`);
* nothing is known in advance. A new request counts on what all requests before it have had from each drafter, as if it
  had seen ``prior`` steps of it, and leaves that behind as it is served.

In the engine there is one thing more, which no replay knows: a drafter that has not read a request's text yet is
weighed with what reading costs, spread over the tokens that may still come. Where that is more than ``DEAR`` of plain
decoding, as it is in a large batch on a CPU, only one request explores the drafter in a slot, one with little to read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import Outcome, RequestView
from spin_core.select.greedy import Greedy, drawn_first, untried_first
from spin_core.select.schedule import Epochs
from spin_core.theory import speed_up

DEAR = 0.05     # of the time that plain decoding would take


class Spin(Greedy):
    """Epochs and matching. ``prior``: as many steps' worth of what all requests have had go into every estimate;
    what they have had fades to 1/e over ``memory`` steps with a drafter. ``shorten``: draft fewer than gamma tokens
    where more do not pay, as in a large batch where rows are dear; the paper's lengths are fixed."""

    def __init__(self, arms: Sequence[str], *, explore: int = 1, first: int = 8, growth: float = 2.0,
                 prior: float = 16.0, memory: float = 2000.0, shorten: bool = False, **options) -> None:
        super().__init__(arms, **options)
        if prior < 0 or memory <= 0:
            raise ValueError(f"spin: prior must not be negative and memory positive; got {prior} and {memory}")
        self.epochs, self.prior, self.keep = Epochs(explore, first, growth), prior, np.exp(-1 / memory)
        self.shorten, self.drafters = shorten, len(self.arms) - 1
        self.totals = np.zeros((5, len(self.arms)))     # of all: steps, tokens, own seconds, tested and drafted tokens

    def rates(self, seats: Sequence[RequestView]) -> ndarray:
        rows = self.ledger.rows(s.request for s in seats)
        return self.ledger.rates(rows, tuple(self._prior()[:3]))

    def _prior(self) -> ndarray:
        """What a new request counts on, as ``totals``."""
        return self.totals * (self.prior / np.maximum(self.totals[0], 1))

    def weights(self, seats: Sequence[RequestView]) -> ndarray:
        rates, price = self.rates(seats), self._price(seats)
        known = np.where(np.isinf(rates), 0, rates)
        weights = untried_first(np.where(np.isinf(rates), rates, known / (1 + known * price)), self.rng)
        if self.epochs.tick(math.ceil(self.drafters / len(seats))):
            steps = self.ledger.steps[self.ledger.rows(s.request for s in seats)]
            drawn = drawn_first(weights, steps, self.none, self.rng)
            return np.where(self._affordable(price, self.ledger.common_rate(len(seats))), drawn, weights)
        return weights

    def _affordable(self, price: ndarray, plain: float) -> ndarray:
        """Who may explore whom at a ``price [B, arms]``, where plain decoding brings ``plain`` tokens per second: dear
        drafters get a request each, one for which they read least."""
        may = price <= DEAR / plain
        dear, price = np.flatnonzero(~may.all(0)), price.copy()
        for arm in self.rng.permutation(dear) if len(dear) else ():
            row = price[:, arm].argmin()
            may[row, arm] = True
            price[row] = np.inf             # a request explores one drafter
        return may

    def _price(self, seats: Sequence[RequestView]) -> ndarray:
        """Seconds that reading the text adds to each token which may still come, ``[B, arms]``."""
        price = np.zeros((len(seats), len(self.arms)))
        for row, seat in zip(price, seats):
            for name, seconds in seat.unread.items():
                if name in self.index:
                    row[self.index[name]] = seconds / (seat.max_gamma + 1)
        return price

    def lengths(self, seats: Sequence[RequestView], arms: ndarray) -> ndarray:
        """The length that speculation's theory finds best for what this drafter's tokens cost and how often they hold
        for this request, at most ``gamma``; ``gamma`` where it is fixed."""
        share = self.ledger.share(len(seats))
        if not self.shorten or share <= 0:
            return self.gamma[arms]
        rows = self.ledger.rows(s.request for s in seats)
        steps, tokens, own, tested, drafted = self._prior()[:, arms]
        accepted = tokens - steps + (self.ledger.tokens - self.ledger.steps)[rows, arms]
        chance = (accepted + 1) / (tested + self.ledger.tested[rows, arms] + 2)
        lengths = np.arange(1, self.gamma.max(initial=1) + 1)
        gains = speed_up(chance[:, None], lengths, (own / np.where(drafted > 0, drafted, 1) / share)[:, None])
        return np.where(drafted > 0, np.minimum(lengths[gains.argmax(1)], self.gamma[arms]), self.gamma[arms])

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        arms = self.arms_of(outcomes)
        _, tokens, own, tested = self.ledger.add(outcomes, arms)
        self.totals *= self.keep ** np.bincount(arms, minlength=len(self.arms))
        drafted = [o.drafted for o in outcomes]
        np.add.at(self.totals.T, arms, np.stack([np.ones(len(arms)), tokens, own, tested, drafted], 1))

    def describe(self) -> str:
        return f"SPIN: {self.epochs}; prior of {self.prior:g} steps"
