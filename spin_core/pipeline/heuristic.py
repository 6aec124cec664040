"""How many micro-batches? Start at one, measure, raise while it helps, stop just before it harms (SPIN's heuristic).

More micro-batches let more of the drafting hide behind verification, but every part of a batch pays the fixed cost of
a pass again. So the throughput rises with the count, up to a point, and then falls; nobody knows the point before
measuring. The climb goes on while a count is *not clearly worse* than the best so far, so that a flat stretch, or a
gain smaller than the noise, does not end it. It ends at the first count that is clearly worse, or with one request per
micro-batch. Of all counts that were measured the smallest is taken that comes within one percent of the best.

What is measured is not goodput but verified requests per second: goodput is that times the tokens per verification,
which do not depend on how a batch is cut, only make the measurement noisier.

Another load is probed anew; one that was met before is remembered, with all that was measured under it.

Our choices, where the paper is silent: how long to measure, what "clearly" means, and when the load is another one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

PRECISION = 0.005       # of a median, as a share of it: better it need not be known
NEXT_TO_BEST = 0.01     # a smaller count is preferred if it loses no more than this


@dataclass(frozen=True)
class Load:
    """What the best count depends on: requests that run, their mean context in tokens, and who drafts how many."""

    batch: int
    context: float = 0.0
    drafters: Mapping[str, int] = field(default_factory=dict)

    def differs(self, other: "Load") -> bool:
        """Is the other load so different that the best count may be another one?

        A quarter more or less requests, half as much context again, or a quarter of the drafting in other hands.
        """
        return (not 0.8 <= self.batch / other.batch <= 1.25
                or not 2 / 3 <= (self.context + 64) / (other.context + 64) <= 1.5     # short texts cost the same
                or _moved(self.drafters, other.drafters) > 0.25)


@dataclass(frozen=True)
class Decision:
    """A count and why: ``throughput`` is what was measured at every count so far, requests per second."""

    time: float
    count: int
    why: str
    throughput: dict[int, float]


@dataclass
class _Climb:
    """What was measured under one load, by count, and how far the climb has come."""

    load: Load
    count: int = 1
    samples: dict[int, list[float]] = field(default_factory=lambda: {1: []})
    over: bool = False

    def medians(self) -> dict[int, float]:
        """Requests per second by count, smallest count first. One delayed round moves a median little."""
        return {count: statistics.median(samples) for count, samples in self.samples.items() if samples}

    def noise(self) -> float:
        """The standard error of the median of one sample, as a share of it: from the samples of all counts together."""
        medians = self.medians()
        off = [abs(s / medians[count] - 1) for count, samples in self.samples.items() for s in samples]
        return 1.2533 * 1.4826 * statistics.median(off)         # for normal noise; robust against a few outliers


class Heuristic:
    """Chooses the number of micro-batches, at most ``most``, from measurements that :meth:`observe` is given.

    A count is measured over at least ``least`` and at most ``enough`` rounds, until its standard error falls below
    ``PRECISION``; the first round after every change warms up. "Clearly" worse is a difference of more than three
    standard errors, or of six where a count was measured so briefly that they are hardly known themselves.
    """

    def __init__(self, most: int, *, least: int = 12, enough: int = 64) -> None:
        if most < 1 or not 2 <= least <= enough:
            raise ValueError(f"Heuristic: most >= 1 and 2 <= least <= enough, got {most}, {least}, {enough}")
        self.most, self.least, self.enough = most, least, enough
        self.decisions: list[Decision] = []
        self._climbs: list[_Climb] = []         # of every load so far; those of short ones go on when it comes back
        self._now: _Climb | None = None
        self._warm = False

    @property
    def count(self) -> int:
        """The number of micro-batches to use now."""
        return self._now.count if self._now else 1

    @property
    def settled(self) -> bool:
        """Is the climb over?"""
        return self._now is not None and self._now.over

    def observe(self, load: Load, requests: int, seconds: float, time: float = 0.0) -> bool:
        """A round with ``count`` micro-batches served ``requests`` in ``seconds``. Has the count changed?"""
        before = self.count
        if self._now is None or self._now.load.differs(load):
            self._meet(load, time)              # what was just measured belongs to another load
        elif not self._now.over and seconds > 0:
            if self._warm:
                self._now.samples[self.count].append(requests / seconds)
                self._climb(self._now, time)
            self._warm = True
        return self.count != before

    def _meet(self, load: Load, time: float) -> None:
        """Another load: begin with one micro-batch, or where its climb was left."""
        known = next((climb for climb in reversed(self._climbs) if not climb.load.differs(load)), None)
        why = ("the load is one we know" if known else
               "the load has changed: start again" if self._now else "start with one")
        if known is None:
            known = _Climb(load)
            self._climbs.append(known)
        self._now, self._warm = known, False
        self._decide(why, time)

    def _climb(self, climb: _Climb, time: float) -> None:
        """Enough measured at this count? Then go on, or settle."""
        measured, noise = len(climb.samples[climb.count]), climb.noise()
        if measured < self.least or measured < self.enough and noise / math.sqrt(measured) > PRECISION:
            return
        medians = climb.medians()
        best = max(medians, key=medians.get)
        doubt = noise * math.hypot(measured ** -0.5, len(climb.samples[best]) ** -0.5)
        fall = 1 - medians[climb.count] / medians[best]
        worse = fall > max(3 * doubt, PRECISION)
        if worse and fall <= 6 * doubt and measured < min(3 * self.least, self.enough):
            return                              # a fall ends the climb for good: look longer
        if worse or climb.count >= min(self.most, climb.load.batch):
            climb.count = next(count for count, rate in medians.items() if rate >= medians[best] * (1 - NEXT_TO_BEST))
            climb.over = True
            self._decide("more is worse" if worse else "no more to try", time)
        else:
            climb.count += 1
            climb.samples[climb.count], self._warm = [], False
            self._decide("try one more", time)

    def _decide(self, why: str, time: float) -> None:
        self.decisions.append(Decision(time, self.count, why, self._now.medians()))


def _moved(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The share of the drafting that would have to change hands to get from one mix to the other."""
    a, b = sum(one.values()) or 1, sum(other.values()) or 1
    return sum(abs(one.get(name, 0) / a - other.get(name, 0) / b) for name in {*one, *other}) / 2
