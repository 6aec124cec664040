"""SPIN's selection (arXiv 2503.15921): the weights of epochs of exploration and exploitation.

The policy gives weights; :meth:`spin_core.select.base.Selector.assign` matches requests to drafters by them. What the
paper says (:mod:`spin_core.select.reference`): time comes in epochs; the first slots of an epoch pick drafters at
random and record the tokens per second of each request with each drafter; the others exploit it, by a maximum-weight
matching of requests to the drafters' places. Our choices, where we know of nothing said, are justified by a sweep
(``bench select --sweep``):

* a slot is a step of the server. Epoch j explores ``explore`` slots and exploits ``first * growth^j``: with growth
  above 1 the number of exploration slots grows as log T, and so may the regret;
* an exploration slot takes drafters in random order, those that a request has tried least before the others. It is
  repeated until there are as many tries as drafters, at most ``MAX_TRIES``, which matters only if requests are few;
* a request explores a drafter only where that may pay (:meth:`Spin._may_pay`), and a new drafter begins with one
  token for one request; of many, the later ones wait until first tries have cost little of the time served. A drafter
  that could be the best gets a few tries in every epoch, or bad luck at the first ones would rule it out for good;
* rates are those of the present batch: the part of a step that does not depend on the draft is counted at its present
  length (:class:`spin_core.select.ledger.Ledger`);
* nothing is known in advance. A new request starts with the pooled estimate of all requests before it, as if it had
  seen ``prior`` steps with each drafter, and moves away from it as it is served;
* a drafter that has not read a request's text yet is charged the seconds of reading it, spread over the tokens that
  may still come. If that is more than ``MAX_SWITCH_COST`` of plain decoding, as it is in a large batch on a CPU, only
  one request per slot explores the drafter, the one with the least to read.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import Outcome, RequestView
from spin_core.select.costs import AffineCost
from spin_core.select.greedy import Greedy, drawn_first, untried_first
from spin_core.select.schedule import Epochs
from spin_core.theory import speed_up

MAX_SWITCH_COST = 0.05      # as a share of the seconds that plain decoding would take
MAX_TRIES = 6               # of an epoch, however many drafters there are; and so many drafters are tried at once
TRIAL_SHARE = 0.02          # of the time served: another drafter is tried when first tries have cost less than that
TRIES = 2                   # steps that it takes to find out whether a drafter is better than it seems
FREE_TRIES = 3              # steps, per epoch, of a drafter that would be the best if every draft were accepted
DOUBT, DOUBTED = 3, 0.5     # of a drafter before it has shown what it brings: steps, and tokens accepted in each
ALONE = 3                   # steps in which a new drafter serves one request only: reading texts may be expensive
P_BETTER = 0.3              # the probability that it is better by one standard deviation


class Spin(Greedy):
    """Epochs and matching. ``prior``: how many steps the pooled estimate of all requests weighs in each request's own;
    the pooled estimate fades to 1/e over ``memory`` steps with a drafter. ``shorten``: draft fewer than gamma tokens
    if more do not pay, as in a large batch with expensive rows; the paper's lengths are fixed. ``own_devices``: every
    drafter computes on a device of its own, so a step is as long as its slowest drafter, and the batch chooses
    together (:meth:`_together`)."""

    def __init__(self, arms: Sequence[str], *, explore: int = 1, first: int = 8, growth: float = 2.0,
                 prior: float = 16.0, memory: float = 2000.0, shorten: bool = False, own_devices: bool = False,
                 **options) -> None:
        super().__init__(arms, **options)
        if prior < 0 or memory <= 0:
            raise ValueError(f"spin: prior must not be negative and memory positive; got {prior} and {memory}")
        self.epochs, self.prior, self.keep = Epochs(explore, first, growth), prior, np.exp(-1 / memory)
        self.shorten, self.drafters = shorten, len(self.arms) - 1
        self.own_devices, self.step_cost, self.goodput = own_devices, AffineCost(), 0.0
        self.pass_costs = [AffineCost() for _ in self.arms]     # seconds of a drafter's passes in a step, by requests
        self.totals = np.zeros((5, len(self.arms)))     # pooled: steps, tokens, own seconds, tested, drafted
        self.served = self.trial_cost = 0.0     # seconds of all steps, and those that first tries have added

    @property
    def slot(self) -> tuple[int, int, int, int] | None:
        """Where the last step lay in its epoch, as in :class:`spin_core.lab.explain.Explanation`."""
        return self.epochs.at

    def rates(self, views: Sequence[RequestView]) -> ndarray:
        rows = self.ledger.rows(v.request for v in views)
        return self.ledger.rates(rows, tuple(self._prior()[:3]))

    def _prior(self) -> ndarray:
        """The pooled estimate that a new request starts with, as ``totals``: as if each drafter had been tested in
        ``DOUBT`` steps more, with ``DOUBTED`` of a token accepted in each."""
        steps, tokens, own, tested, drafted = self.totals
        weight, doubt = self.prior / np.maximum(steps, 1), DOUBT * (steps > 0) * (not self.own_devices)
        with_doubt = weight * steps / np.maximum(steps + doubt, 1)
        return np.stack([weight * steps, with_doubt * (tokens + doubt * (1 + DOUBTED)), weight * own,
                         with_doubt * (tested + doubt), weight * drafted])

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        """Called once per step: it also advances the epoch."""
        rates, price = self.rates(views), self._price(views)
        known = np.where(np.isinf(rates), 0, rates)
        known /= 1 + known * price
        unproven = self._unproven()
        waiting = self._waiting(unproven)
        if self.own_devices and np.isfinite(rates[:, self.open]).all():
            weights = self._together(views, price)
        else:
            weights = untried_first(np.where(np.isinf(rates), rates, known), self.rng)
        second = self.goodput or self.ledger.common_rate(len(views))       # what a second is worth, in tokens
        may = self._affordable(views, price, second, unproven) & ~waiting
        weights = np.where(unproven & ~may, weights.min() - 1, weights)
        if self.epochs.tick(math.ceil(min(self.drafters, MAX_TRIES) / len(views))):
            steps = self.ledger.steps[self.ledger.rows(v.request for v in views)]
            drawn = drawn_first(weights, steps, self.none, self.rng)
            return np.where(may & self._may_pay(views, known, price), drawn, weights)
        return weights

    def _unproven(self) -> ndarray:
        """Drafters in their first steps, bool ``[arms]``; none where all have devices of their own: a try is free."""
        steps = self.totals[0].round()      # with a drafter's every step those before fade a little
        return (steps < ALONE) & (np.arange(len(self.arms)) != self.none) & (not self.own_devices)

    def _waiting(self, unproven: ndarray) -> ndarray:
        """Drafters that have not had their first try yet and must wait for it, bool ``[arms]``."""
        new = (self.totals[0] == 0) & self.open & unproven
        begun = np.count_nonzero(np.delete(self.totals[0], self.none))
        new[np.flatnonzero(new)[:max(0, MAX_TRIES - begun)]] = False
        if new.any() and self.trial_cost <= TRIAL_SHARE * self.served:
            new[self.rng.choice(np.flatnonzero(new))] = False       # any: a lookup may find nothing for a long time
        return new

    def _may_pay(self, views: Sequence[RequestView], rates: ndarray, price: ndarray) -> ndarray:
        """Where exploring may bring more than it costs, bool ``[B, arms]``; ``rates [B, arms]``: tokens per second;
        ``price [B, arms]``: seconds of reading for each token to come.

        ``TRIES`` steps cost what the drafter is slower than the best one. What they bring is a faster drafter for the
        tokens that may still come, if the drafter is one standard deviation better than it seems. The accepted tokens
        of a request and of a drafter are known up to a share of 1 / sqrt(number of accepted tokens), requests by half
        at first.
        """
        rows = self.ledger.rows(v.request for v in views)
        accepted, (steps, tokens) = (self.ledger.tokens - self.ledger.steps)[rows], self.totals[:2]
        mean = tokens / np.maximum(steps, 1e-9)         # of a step; at first as if one more had brought two
        more = (tokens + 2) / (steps + 1) - 1
        better = (1 + more * (1 + np.sqrt(1 / (4 + accepted) + 1 / (1 + tokens - steps)))) / np.maximum(mean, 1)
        best = np.maximum(rates[:, self.open].max(1, keepdims=True), 1e-9)
        left = np.array([[v.max_gamma + 1] for v in views])
        gain, loss = P_BETTER * (rates * better / best - 1) * left, TRIES * mean * (1 - rates / best)
        _, _, own, _, drafted = self.totals
        seconds = self.ledger.share(len(views)) + self.gamma * own / np.maximum(drafted, 1)
        ceiling = 1 / (np.maximum(seconds, 1e-12) / (1 + self.gamma) + price)       # the rate with every draft accepted
        return (steps < FREE_TRIES * (1 + self.epochs.epoch)) & (ceiling > best) | (gain > loss)

    def _together(self, views: Sequence[RequestView], price: ndarray) -> ndarray:
        """Expected tokens of a step ``[B, arms]``; drafters that would slow the whole batch are below all others.

        If each request took the drafter with the most tokens per second *of its own share*, a drafter shared by many
        would look cheap and every other expensive, though an idle device costs nothing. What counts is tokens of the
        batch over seconds of the step, which its slowest drafter determines. So the drafters are sorted by the seconds
        of their passes, and every limit is tried: requests take the drafter with the most tokens among those within
        the limit, and the limit with the most tokens per second wins. Reading a text keeps the batch waiting, too: it
        takes ``price [B, arms]`` seconds for each token still to come.
        """
        rows = self.ledger.rows(v.request for v in views)
        steps, tokens = self._prior()[:2]
        expected = (self.ledger.tokens[rows] + tokens) / np.maximum(self.ledger.steps[rows] + steps, 1e-9)
        expected[:, self.none] = 1.0
        expected /= 1 + self.goodput * price
        seconds = np.array([cost(len(views)) for cost in self.pass_costs])
        best, chosen = -1.0, seconds <= 0
        for limit in np.unique(seconds[self.open]):
            allowed = self.open & (seconds <= limit)
            tokens = np.where(allowed, expected, 0)
            taken = np.bincount(tokens.argmax(1), minlength=len(self.arms))
            slowest = max(cost(n) for cost, n in zip(self.pass_costs, taken.tolist()) if n)
            drafted = taken @ self.gamma
            rate = tokens.max(1).sum() / max(slowest + self.step_cost(len(views) + drafted), 1e-12)
            if rate > best:
                best, chosen = rate, allowed
        self.goodput = best
        return expected - np.where(chosen, 0, np.ptp(expected) + 1)

    def _affordable(self, views: Sequence[RequestView], price: ndarray, worth: float, unproven: ndarray) -> ndarray:
        """Which requests may explore which drafters, bool ``[B, arms]``, at a ``price [B, arms]`` of reading, if a
        second is worth so many tokens. An expensive drafter and an ``unproven [arms]`` one get one request, the one
        with the least to read."""
        may = (price <= MAX_SWITCH_COST / worth) & ~unproven
        few = np.flatnonzero(~may.all(0))
        unread = price.copy()
        for arm in few[~price[:, few].any(0)]:      # the speed of its reading is not known: tokens instead of seconds
            unread[:, arm] = [v.context * (v.current != self.arms[arm]) for v in views]
        for row, view in zip(unread, views):        # a lookup that finds nothing cannot be tried
            row[[self.index[name] for name, found in view.found.items() if not found and name in self.index]] = np.inf
        for arm in self.rng.permutation(few):
            row = unread[:, arm].argmin()
            may[row, arm] = True
            unread[row] = np.inf        # a request explores one drafter
        return may

    def _price(self, views: Sequence[RequestView]) -> ndarray:
        """Seconds that reading the text adds to each token still to come, ``[B, arms]``."""
        price = np.zeros((len(views), len(self.arms)))
        for row, view in zip(price, views):
            for name, seconds in view.unread.items():
                if name in self.index:
                    row[self.index[name]] = seconds / (view.max_gamma + 1)
        return price

    def lengths(self, views: Sequence[RequestView], arms: ndarray) -> ndarray:
        """The draft length that theory finds best (:func:`spin_core.theory.speed_up`), given the cost of this drafter's
        tokens and their acceptance for this request, at most ``gamma``, and 1 at its first try;
        just ``gamma`` without ``shorten``."""
        share = self.ledger.share(len(views))
        if not self.shorten or share <= 0:
            return self.gamma[arms]
        rows = self.ledger.rows(v.request for v in views)
        steps, tokens, own, tested, drafted = self._prior()[:, arms]
        accepted = tokens - steps + (self.ledger.tokens - self.ledger.steps)[rows, arms]
        chance = (accepted + 1) / (tested + self.ledger.tested[rows, arms] + 2)
        lengths = np.arange(1, self.gamma.max(initial=1) + 1)
        gains = speed_up(chance[:, None], lengths, (own / np.where(drafted > 0, drafted, 1) / share)[:, None])
        return np.minimum(np.where(drafted > 0, lengths[gains.argmax(1)], 1), self.gamma[arms])

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        arms = self.arms_of(outcomes)
        self.served += sum(o.draft_seconds + o.verify_seconds for o in outcomes)
        unproven = self._unproven()[arms]
        if unproven.any():
            self.trial_cost += sum(o.draft_seconds + o.verify_seconds - o.plain_seconds
                                   for o, new in zip(outcomes, unproven) if new)
            # the pass of an unproven drafter, which drafts for one request, counts as if half of the batch shared it
            outcomes = [o._replace(draft_seconds=o.draft_seconds / max(1.0, len(outcomes) / 2)) if new else o
                        for o, new in zip(outcomes, unproven)]
        _, tokens, own, tested = self.ledger.add(outcomes, arms)
        self.totals *= self.keep ** np.bincount(arms, minlength=len(self.arms))
        drafted = [o.drafted for o in outcomes]
        if self.own_devices:
            self.step_cost.learn(outcomes[0].rows, outcomes[0].target_seconds)
            seconds = np.bincount(arms, [o.draft_seconds for o in outcomes], len(self.arms))
            for arm, count in enumerate(np.bincount(arms, minlength=len(self.arms)).tolist()):
                self.pass_costs[arm].learn(count, seconds[arm])
        np.add.at(self.totals.T, arms, np.stack([np.ones(len(arms)), tokens, own, tested, drafted], 1))
