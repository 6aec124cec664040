"""The interface of selectors: what the serving engine and the simulator call, once per step.

The caller passes a view of every active request, and the selector answers with a drafter and a draft length for each.
After the step the caller reports the outcome. All policies live behind this one interface:

    choices = selector.assign(views, capacities)        # a drafter and a length for every request
    ... draft, verify, commit ...
    selector.observe(outcomes)                          # accepted tokens, and what they cost
    wishes = selector.probe(views)                      # full information: which other drafters should read along?
    selector.scored(scores)                             # ... and what those drafters would have got right
    selector.finish(request)                            # at the end of a request
    selector.retire(drafter)                            # when a drafter raised

A policy is a matrix of weights [requests, arms]; the assignment follows from one maximum-weight matching under the
drafters' capacities, the same for all policies (:mod:`spin_core.select.matching`).
"""

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
    """The drafter of a request in the coming step, and at most how many tokens it drafts. ``NONE`` drafts 0."""

    drafter: str
    gamma: int


class RequestView(NamedTuple):
    """What a selector may know of a request before a step.

    ``request``: its id. ``emitted``: tokens written so far. ``context``: committed tokens, prompt included.
    ``max_gamma``: how many drafted tokens can still be of use (0 next to its last token). ``current``: the drafter
    of its last step, whose cache is up to date; None before the first. ``found``: how many tokens each lookup drafter
    would propose now, which costs nothing to find out; a drafter that would propose nothing is not chosen, one that is
    missing would have to be asked. ``unread``: seconds that a drafter would spend on the text before it can draft; a
    drafter that is not listed is ready, or of unknown reading speed.
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
    request's share of its drafter's pass and ``verify_seconds`` its share of the target's; shared passes are split by
    :func:`spin_core.select.costs.shares`. ``rows``: rows of the whole target pass, 0 if chunks of prompts were among
    them or a drafter was reading beside it; ``target_seconds``: seconds of that whole pass. From these two a selector
    may learn the cost of one more row. ``plain_seconds``: the part of ``verify_seconds`` that the request would have
    taken without a draft; 0 if unknown. ``failed``: the request or its drafter failed; nothing is learned from it.
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
        """Whether a selector may learn from it: not from failures, and not from seconds that are not finite."""
        total = self.draft_seconds + self.verify_seconds
        return not self.failed and self.emitted > 0 and math.isfinite(total) and total > 0 \
            and self.draft_seconds >= 0 and self.verify_seconds >= 0


class Scored(NamedTuple):
    """Full information: how ``drafter`` would have done on verified text, from a pass in which it read along.

    ``hits[t]`` is the probability that the t-th of the newly read output tokens would have been accepted, had it been
    drafted right after the text before it: 0 or 1 for greedy text, sum min(p, q) for sampled text, NaN if the drafter
    would have proposed nothing. ``seconds``: this request's share of the pass.
    """

    request: int
    drafter: str
    hits: Sequence[float]
    seconds: float = 0.0


class Selector(ABC):
    """Picks a drafter for every active request, step by step.

    ``arms`` are drafters' names; "none" is added if it is missing. ``gamma`` is how many tokens an arm drafts:
    one number, or one per arm. Every random draw comes from ``seed``. Raises ValueError for arms that
    repeat, or a gamma that is no whole number >= 1.
    """

    unit = "tokens/s"                                   # of what `beliefs` returns
    own_lengths = False                                 # True: it chooses how many tokens to draft, up to gamma
    slot: tuple[int, int, int, int] | None = None       # of a policy with epochs: see spin_core.lab.explain

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
        self.open = self.alive.copy()       # arms with any room at this step
        self.rng = np.random.default_rng(seed)
        self.assigned: tuple | None = None      # the last assignment: views, room, weights, arms, lengths

    def assign(self, views: Sequence[RequestView], capacities: Mapping[str, int] | None = None) -> dict[int, Choice]:
        """A drafter and a length for every request. ``capacities``: how many requests a drafter can serve; a missing
        name: any number.

        The order of ``views`` does not matter. Raises ValueError for a request that comes twice or a capacity below 0.
        """
        views = sorted(views, key=lambda v: v.request)
        if len({v.request for v in views}) != len(views):
            raise ValueError("assign: a request comes twice")
        if not views:
            return {}
        room = np.full(len(self.arms), len(views))
        for name, capacity in (capacities or {}).items():
            if capacity < 0:
                raise ValueError(f"assign: capacity of {name!r} is {capacity}")
            if name in self.index and name != NONE:
                room[self.index[name]] = min(capacity, len(views))
        room[~self.alive] = 0
        self.open = room > 0
        weights = self.only_found(self.weights(views), views)
        arms = match(weights, room, free=self.index[NONE])
        gammas = np.minimum(self.lengths(views, arms), [v.max_gamma for v in views])
        self.assigned = views, room, weights, arms, gammas
        none = Choice(NONE, 0)
        return {v.request: Choice(self.arms[a], int(g)) if g > 0 else none for v, a, g in zip(views, arms, gammas)}

    def only_found(self, weights: ndarray, views: Sequence[RequestView]) -> ndarray:
        """The weights, with lookup drafters that would find nothing for a request below all others: such a step would
        be plain decoding, and would be booked as if the drafter had brought one token."""
        empty = [(b, self.index[name]) for b, view in enumerate(views) for name, count in view.found.items()
                 if not count and name in self.index]
        if empty:
            weights = np.array(weights)
            weights[tuple(zip(*empty))] = weights.min() - 1
        return weights

    @abstractmethod
    def weights(self, views: Sequence[RequestView]) -> ndarray:
        """The value of each arm for each request, ``[B, arms]``, finite. Retired arms are ignored."""

    def lengths(self, views: Sequence[RequestView], arms: ndarray) -> ndarray:
        """How many tokens to draft for each request, ``[B]``, given the arm of each, ``arms [B]``."""
        return self.gamma[arms]

    def beliefs(self, views: Sequence[RequestView]) -> tuple[ndarray, ndarray]:
        """For :mod:`spin_core.lab.explain`: what the policy expects of every request with every arm, in ``unit``, NaN
        where it has no opinion; and how often they have drafted together. ``[B, arms]`` each; by default nothing."""
        return np.full((len(views), len(self.arms)), np.nan), np.zeros((len(views), len(self.arms)), int)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from a step; failed outcomes and impossible seconds are left out."""
        valid = [o for o in outcomes if o.valid and o.drafter in self.index]
        if valid:
            self.learn(valid)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from valid outcomes; by default nothing."""

    def arms_of(self, outcomes: Sequence[Outcome]) -> ndarray:
        """The index of each outcome's arm."""
        return np.array([self.index[o.drafter] for o in outcomes])

    def probe(self, views: Sequence[RequestView]) -> dict[int, list[str]]:
        """Drafters that should read along with each request after this step, to be scored; by default none."""
        return {}

    def scored(self, scores: Sequence[Scored]) -> None:
        """What drafters would have got right on verified text."""

    def finish(self, request: int) -> None:
        """Forget a request that has left."""

    def retire(self, drafter: str) -> None:
        """Never choose this drafter again. "none" cannot be retired: it is the fallback of every request."""
        if drafter == NONE:
            raise ValueError("retire: 'none' cannot be retired")
        if drafter in self.index:
            self.alive[self.index[drafter]] = self.open[self.index[drafter]] = False
