"""The contract between selectors and whoever runs the steps: the serving engine, or a replay of recorded text.

Once per step the caller tells which requests are seated, and the selector says who drafts for each of them and how
many tokens. After the step the caller tells how it went. All policies live behind this one interface:

    choices = selector.assign(seats, capacities)        # who drafts for whom
    ... draft, verify, commit ...
    selector.observe(outcomes)                          # what it brought, and what it cost
    wishes = selector.probe(seats)                      # full information: who else should read along?
    selector.scored(scores)                             # ... and what these drafters would have got right
    selector.finish(request)                            # at the end of a request
    selector.retire(drafter)                            # when a drafter raised

A policy is a matrix of weights [requests, arms]; who gets which arm then follows from one maximum-weight matching
under the drafters' capacities, the same for all policies (:mod:`spin_core.select.matching`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from spin_core.select.matching import match

NONE = "none"       # no speculation: an arm that always has room, so that every request is always served


class Choice(NamedTuple):
    """Who drafts for a request in the coming step, and at most how many tokens. ``NONE`` drafts 0."""

    drafter: str
    gamma: int


class RequestView(NamedTuple):
    """What a selector may know of a request before a step.

    ``request``: its id. ``emitted``: tokens written so far. ``context``: committed tokens, prompt included.
    ``max_gamma``: how many drafted tokens can still be of use (0 next to its last token). ``current``: the drafter
    of its last step, whose cache is up to date; None before the first. ``found``: how many tokens drafters that
    look up would propose now, which costs nothing to find out; who is missing there would have to be asked, and who
    would propose nothing is not chosen. ``unread``: seconds that a drafter would spend on the text before it can
    draft; who is missing there is ready, or nobody knows yet how fast it reads.
    """

    request: int
    emitted: int
    context: int
    max_gamma: int
    current: str | None = None
    found: Mapping[str, int] = {}
    unread: Mapping[str, float] = {}


class Outcome(NamedTuple):
    """How one step went for one request.

    ``drafted``, ``accepted``, ``emitted``: tokens, as in :class:`spin_core.trace.Event`. ``draft_seconds`` is this
    request's share of its drafter's pass and ``verify_seconds`` its share of the target's: how seconds of a shared
    pass are split is :func:`spin_core.select.costs.shares`. ``rows``: rows that the whole target pass had, 0 where
    chunks of prompts were among them or a drafter was reading beside it, and ``target_seconds`` what the pass took as
    a whole; from both a selector may learn what a row more costs. ``plain_seconds``: of ``verify_seconds``, what the
    request would have taken without a draft; 0 where that is not known. ``failed``: the request or its drafter failed;
    nothing is learned from it.
    """

    request: int
    drafter: str
    drafted: int
    accepted: int
    emitted: int
    draft_seconds: float
    verify_seconds: float
    rows: int = 0
    target_seconds: float = 0.0
    plain_seconds: float = 0.0
    failed: bool = False

    @property
    def valid(self) -> bool:
        """Is there something to learn from it? Not from failures, and not from seconds that cannot be."""
        total = self.draft_seconds + self.verify_seconds
        return not self.failed and self.emitted > 0 and math.isfinite(total) and total > 0 \
            and self.draft_seconds >= 0 and self.verify_seconds >= 0


class Scored(NamedTuple):
    """Full information: how ``drafter`` would have done on verified text, from the pass in which it read along.

    ``hits[t]`` is the probability that the t-th of the newly read output tokens would have been accepted, drafted
    right behind the text before it: 0 or 1 for greedy text, sum min(p, q) for sampled text, NaN where the drafter
    would have proposed nothing. ``seconds``: this request's share of what the pass took.
    """

    request: int
    drafter: str
    hits: Sequence[float]
    seconds: float = 0.0


class Selector(ABC):
    """Picks a drafter for every seated request, step by step.

    ``arms`` are drafters' names; "none" is added where it is missing. ``gamma`` is how many tokens an arm drafts:
    one number, or one per arm. Every random draw comes from ``seed``. Raises ValueError for arms that
    repeat or a gamma that cannot be.
    """

    def __init__(self, arms: Sequence[str], *, gamma: int | Mapping[str, int] = 4, seed: int = 0) -> None:
        self.arms = [*arms, *([] if NONE in arms else [NONE])]
        if len(set(self.arms)) != len(self.arms):
            raise ValueError(f"{type(self).__name__}: arms repeat: {', '.join(self.arms)}")
        lengths = gamma if isinstance(gamma, Mapping) else dict.fromkeys(self.arms, gamma)
        missing = [a for a in self.arms if a != NONE and (not isinstance(lengths.get(a), Integral) or lengths[a] < 1)]
        if missing:
            raise ValueError(f"{type(self).__name__}: gamma must be a whole number >= 1 for every arm, "
                             f"{missing[0]!r} has {lengths.get(missing[0])!r}")
        self.index = {a: i for i, a in enumerate(self.arms)}
        self.gamma = np.array([0 if a == NONE else lengths[a] for a in self.arms])
        self.alive = np.ones(len(self.arms), dtype=bool)
        self.open = self.alive.copy()       # who has room for anybody at this step
        self.rng = np.random.default_rng(seed)

    def assign(self, seats: Sequence[RequestView], capacities: Mapping[str, int] | None = None) -> dict[int, Choice]:
        """Who drafts for whom. ``capacities``: how many requests a drafter can serve; a missing name: any number.

        The order of ``seats`` does not matter. Raises ValueError for a request seated twice or a capacity below 0.
        """
        seats = sorted(seats, key=lambda s: s.request)
        if len({s.request for s in seats}) != len(seats):
            raise ValueError("assign: a request is seated twice")
        if not seats:
            return {}
        room = np.full(len(self.arms), len(seats))
        for name, capacity in (capacities or {}).items():
            if capacity < 0:
                raise ValueError(f"assign: capacity of {name!r} is {capacity}")
            if name in self.index and name != NONE:
                room[self.index[name]] = min(capacity, len(seats))
        room[~self.alive] = 0
        self.open = room > 0
        arms = match(self.only_found(self.weights(seats), seats), room, free=self.index[NONE])
        gammas = np.minimum(self.lengths(seats, arms), [s.max_gamma for s in seats])
        none = Choice(NONE, 0)
        return {s.request: Choice(self.arms[a], int(g)) if g > 0 else none for s, a, g in zip(seats, arms, gammas)}

    def only_found(self, weights: ndarray, seats: Sequence[RequestView]) -> ndarray:
        """The weights, with drafters that would find nothing for a seat below all others: such a step would be plain
        decoding, and what a request gets from a drafter would be mixed with what it gets from none."""
        empty = [(b, self.index[name]) for b, seat in enumerate(seats) for name, count in seat.found.items()
                 if not count and name in self.index]
        if empty:
            weights = np.array(weights)
            weights[tuple(zip(*empty))] = weights.min() - 1
        return weights

    @abstractmethod
    def weights(self, seats: Sequence[RequestView]) -> ndarray:
        """How much it is worth to give each seat each arm, ``[seats, arms]``, finite. Retired arms are ignored."""

    def lengths(self, seats: Sequence[RequestView], arms: ndarray) -> ndarray:
        """How many tokens to draft for each seat, ``[seats]``, once it is known which of the ``arms`` each has."""
        return self.gamma[arms]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from a step; failed ones and impossible seconds are left out."""
        valid = [o for o in outcomes if o.valid and o.drafter in self.index]
        if valid:
            self.learn(valid)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from valid outcomes. A policy that learns nothing has nothing to do here."""

    def arms_of(self, outcomes: Sequence[Outcome]) -> ndarray:
        """The index of each outcome's arm."""
        return np.array([self.index[o.drafter] for o in outcomes])

    def probe(self, seats: Sequence[RequestView]) -> dict[int, list[str]]:
        """Which drafters should read along with which requests after this step, to be scored. Mostly nobody."""
        return {}

    def scored(self, scores: Sequence[Scored]) -> None:
        """What drafters would have got right on verified text."""

    def finish(self, request: int) -> None:
        """A request has left; what is kept about it alone can be forgotten."""

    def retire(self, drafter: str) -> None:
        """Never choose this drafter again. "none" cannot be retired: somebody has to serve."""
        if drafter == NONE:
            raise ValueError("retire: 'none' cannot be retired")
        if drafter in self.index:
            self.alive[self.index[drafter]] = self.open[self.index[drafter]] = False

    def describe(self) -> str:
        """One line: the policy and its settings."""
        return type(self).__name__
