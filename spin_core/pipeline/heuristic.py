"""How many micro-batches? Start at one, measure, raise while it helps, stop just before it harms (SPIN's heuristic).

More micro-batches let more of the drafting hide behind verification, but every part of a batch pays the fixed cost of
a pass again. So the throughput rises with the count, up to a point, and then falls; nobody knows the point before
measuring. The climb goes on while a count is *not clearly worse* than the best so far, so that a flat stretch, or a
gain smaller than the noise, does not end it. It ends at the first count that is clearly worse, or with one request per
micro-batch. Of all counts that were measured the smallest is taken that comes within one percent of the best.

What is measured is not goodput but verified requests per second: goodput is that times the tokens per verification,
which do not depend on how a batch is cut, only make the measurement noisier.

Another load is probed anew; one that has been settled before is remembered.

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


class Heuristic:
    """Chooses the number of micro-batches, at most ``most``, from measurements that :meth:`observe` is given.

    ``count`` is the one to use now. A count is measured over at least ``least`` and at most ``enough`` rounds, until
    its standard error falls below ``PRECISION``; the first round of every count warms up. "Clearly" worse is a
    difference of more than three standard errors.
    """

    def __init__(self, most: int, *, least: int = 12, enough: int = 64) -> None:
        if most < 1 or not 2 <= least <= enough:
            raise ValueError(f"Heuristic: most >= 1 and 2 <= least <= enough, got {most}, {least}, {enough}")
        self.most, self.least, self.enough = most, least, enough
        self.load: Load | None = None
        self.decisions: list[Decision] = []
        self._known: list[tuple[Load, int]] = []        # loads that were settled, and how
        self._begin()

    @property
    def settled(self) -> bool:
        """Is the climb over?"""
        return not self._climbing

    def observe(self, load: Load, requests: int, seconds: float, time: float = 0.0) -> bool:
        """A round with ``count`` micro-batches served ``requests`` in ``seconds``. Has the count changed?"""
        before = self.count
        if self.load is None or self.load.differs(load):
            known = next((count for one, count in reversed(self._known) if not one.differs(load)), None)
            why = "start with one" if self.load is None else "the load has changed: start again"
            self._begin()
            self.load = load
            if known:
                self.count, self._climbing, why = known, False, "the load is one we know"
            self._decide(why, time)
            return self.count != before         # what was just measured belongs to another load
        if self._climbing and seconds > 0:
            if self._warm:
                self._samples[self.count].append(requests / seconds)
                self._climb(min(self.most, load.batch), time)
            self._warm = True
        return self.count != before

    def _begin(self) -> None:
        self.count = 1
        self._samples: dict[int, list[float]] = {1: []}
        self._climbing, self._warm = True, False

    def _climb(self, most: int, time: float) -> None:
        """Enough measured at this count? Then go on, or settle."""
        measured, noise = len(self._samples[self.count]), self._noise()
        if measured < self.least or measured < self.enough and noise / math.sqrt(measured) > PRECISION:
            return
        medians = self._medians()
        best = max(medians, key=medians.get)
        doubt = noise * math.hypot(measured ** -0.5, len(self._samples[best]) ** -0.5)
        worse = medians[self.count] < medians[best] * (1 - max(3 * doubt, PRECISION))
        if worse and measured < min(3 * self.least, self.enough):
            return                          # a fall ends the climb for good: look twice
        if worse or self.count >= most:
            self.count = next(count for count, rate in medians.items() if rate >= medians[best] * (1 - NEXT_TO_BEST))
            self._climbing = False
            self._known.append((self.load, self.count))
            self._decide("more is worse" if worse else "no more to try", time)
        else:
            self.count += 1
            self._samples[self.count], self._warm = [], False
            self._decide("try one more", time)

    def _medians(self) -> dict[int, float]:
        """Requests per second by count, smallest count first. One delayed round moves a median little."""
        return {count: statistics.median(samples) for count, samples in self._samples.items() if samples}

    def _noise(self) -> float:
        """The standard error of the median of one sample, as a share of it: from the samples of all counts together."""
        medians = self._medians()
        off = [abs(s / medians[count] - 1) for count, samples in self._samples.items() for s in samples]
        return 1.2533 * 1.4826 * statistics.median(off)         # for normal noise; robust against a few outliers

    def _decide(self, why: str, time: float) -> None:
        self.decisions.append(Decision(time, self.count, why, self._medians()))


def _moved(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The share of the drafting that would have to change hands to get from one mix to the other."""
    a, b = sum(one.values()) or 1, sum(other.values()) or 1
    return sum(abs(one.get(name, 0) / a - other.get(name, 0) / b) for name in {*one, *other}) / 2
