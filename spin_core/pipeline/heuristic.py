"""How many micro-batches? Start at one, try one more while it helps, stop just before it harms (SPIN's heuristic).

More micro-batches hide more of the drafting behind verification, but every part of a batch pays the fixed cost of a
pass again: the throughput rises with the count up to a point that must be measured, and then falls. The climb is the
paper's; the rest is our choice. A trial compares a challenger, one micro-batch more or one fewer, with the incumbent's
latest rounds. Clearly better: it becomes the incumbent. Neither better nor worse: the climb goes on across flat ground,
and of equal counts the smallest is kept. What was found under one load is remembered, and a new load begins with what
the most similar one found. Trials are bounded in three ways:

* **A veto.** A round with more groups takes at least as long as its busier stage, and what a pass over a part of the
  batch takes was measured when so few requests ran. If that bound promises less than ``LEAST_GAIN``, no trial begins.
* **A trial ends as soon as it is clear.** A count that loses a tenth is dropped after two rounds; one that is as good
  as the incumbent may take longer, as that costs nothing.
* **An exploration budget.** Trials may lose ``BUDGET_SHARE`` of the serving time; only where the bound promises
  ``CREDIT_GAIN`` the first trial is on credit. After a trial in vain, the wait for the next under that load doubles.

Measured are verified requests per second: goodput is that times the tokens per verification, which do not depend on how
a batch is cut and only add noise.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

# Gains and losses are shares of the incumbent's throughput, waits and costs are rounds.
LEAST_GAIN = 0.06       # what overlap must promise to be tried: a bound, most of which does not come true
CREDIT_GAIN = 0.2       # what it must promise for the first trial to come before there is any budget
BUDGET_SHARE = 0.03     # of the serving time: what trials may lose in the long run
HOPELESS_LOSS = 0.1     # so large a loss ends a trial at once
PRECISION = 0.005       # of a median, as a share of it: it need not be known better
TOLERATED_LOSS = 0.01   # a smaller count is preferred if it loses no more than this
FIRST_WAIT, LAST_WAIT = 12, 1024        # rounds between trials under one load, at first and at most
GUESSED_COST = 3        # rounds that a first trial may lose: one to warm up and two measured, at half the speed
LARGEST_BUDGET = 16     # rounds of time that the budget holds
KEPT_LOADS = 64         # loads that are remembered


@dataclass(frozen=True)
class Load:
    """What the best count depends on: running requests, their mean context in tokens, requests of each drafter."""

    batch: int
    context: float = 0.0
    drafters: Mapping[str, int] = field(default_factory=dict)

    def distance(self, other: "Load") -> float:
        """How different the loads are: from 1 on, the best count may be another one.

        Reached by a third more requests, twice as much context, or half of the requests with other drafters.
        """
        return max(abs(math.log(self.batch / other.batch)) / math.log(4 / 3),
                   abs(math.log2((self.context + 64) / (other.context + 64))),      # short texts cost the same
                   2 * _moved(self.drafters, other.drafters))

    def differs(self, other: "Load") -> bool:
        """Is the other load so different that the best count may be another one?"""
        return self.distance(other) >= 1


@dataclass(frozen=True)
class Decision:
    """A count and why: ``throughput`` is what was measured at every count so far, requests per second."""

    time: float
    count: int
    why: str
    throughput: dict[int, float]


@dataclass
class _KnownLoad:
    """What is known about one load: the count that serves it, and when another is tried."""

    load: Load
    count: int = 1
    proven: bool = True         # False for a count that was found under another load
    up: bool = True             # the next challenger is one more, or one fewer
    wait: int = FIRST_WAIT           # rounds before the next trial
    patience: int = FIRST_WAIT       # how long the wait after that will be
    cost: float = GUESSED_COST         # rounds of time that the last trial in vain has lost
    vetoed: int = 0             # the count that was last found not worth trying
    rates: dict[int, float] = field(default_factory=dict)       # medians, requests per second by count


@dataclass
class _Trial:
    """A challenger under way."""

    count: int
    samples: list[float] = field(default_factory=list)
    stages: list[tuple[float, float]] = field(default_factory=list)
    lost: float = 0.0           # seconds, against the incumbent


class Heuristic:
    """Chooses the number of micro-batches, at most ``most``, from the rounds that :meth:`observe` is given.

    A trial takes at least ``least`` and at most ``enough`` measured rounds, unless it is hopeless; the first round
    after every change warms up and is not measured. "Clearly" is a difference of more than three standard errors, or of
    six where a count was measured so briefly that they are hardly known themselves.

    Raises ValueError for ``most`` below one, and unless 2 <= least <= enough.
    """

    def __init__(self, most: int, *, least: int = 4, enough: int = 64) -> None:
        if most < 1 or not 2 <= least <= enough:
            raise ValueError(f"Heuristic: most >= 1 and 2 <= least <= enough, got {most}, {least}, {enough}")
        self.most, self.least, self.enough = most, least, enough
        self.decisions: list[Decision] = []
        self.budget = 0.0                            # seconds that trials may still lose
        self.served = self.lost = 0.0               # seconds of all rounds, and what trials lost of them
        self._credit = True                         # no trial so far
        self._known: deque[_KnownLoad] = deque(maxlen=KEPT_LOADS)
        self._now: _KnownLoad | None = None
        self._trial: _Trial | None = None
        self._recent: deque[float] = deque(maxlen=enough)           # the incumbent's latest rates
        self._stages: deque[tuple[float, float]] = deque(maxlen=16)     # seconds (draft, verify) of its latest rounds
        self._passes: dict[int, deque[tuple[float, float]]] = {}    # by requests, the same of undivided batches
        self._warm = False

    @property
    def count(self) -> int:
        """The number of micro-batches to use now."""
        if self._trial:
            return self._trial.count
        return self._now.count if self._now else 1

    def observe(self, load: Load, requests: int, seconds: float, time: float = 0.0,
                stages: tuple[float, float] | None = None) -> bool:
        """A round with ``count`` micro-batches served ``requests`` in ``seconds``. Has the count changed?

        ``stages`` are the seconds that all its drafting and all its verifying took. Without them there is no veto.
        ``time`` is written into the decisions.
        """
        before = self.count
        self.served += seconds
        if self._now is None or self._now.load.differs(load):
            self._meet(load, time)              # what was just measured belongs to another load
        elif seconds > 0:
            if self._trial:
                self._challenge(load, requests, seconds, time, stages)
            else:
                self._serve(load, requests, seconds, time, stages)
            self._warm = self.count == before
        return self.count != before

    # ---- loads

    def _meet(self, load: Load, time: float) -> None:
        """Another load: go on where it was left, or where the most similar one stands."""
        before, first = self.count, self._now is None
        if self._trial:
            self._pay()                         # what it measured belongs to the old load
        near = min(self._known, key=lambda known: known.load.distance(load), default=None)
        if near is None or near.load.differs(load):
            count = min(near.count, load.batch) if near else 1
            near = _KnownLoad(load, count, proven=count == 1, up=count == 1)
            self._known.append(near)
        self._now, self._warm = near, False
        self._recent.clear()
        self._stages.clear()
        if first or self.count != before:
            self._decide("start with one" if first else "another load", time)

    # ---- the incumbent serves

    def _serve(self, load: Load, requests: int, seconds: float, time: float, stages) -> None:
        known, usual = self._now, self._usual_seconds(requests)
        self.budget = min(self.budget + BUDGET_SHARE * seconds, max(LARGEST_BUDGET * usual, self.budget))
        if not self._warm:
            return
        self._recent.append(requests / seconds)
        if stages:
            self._stages.append(stages)
            if known.count == 1:
                self._passes.setdefault(load.batch, deque(maxlen=16)).append(stages)
        known.wait -= 1
        if known.wait > 0 or len(self._recent) < self.least:
            return
        if known.proven and self.budget < known.cost * usual and not (
                self._credit and CREDIT_GAIN <= self.bound(load.batch, requests, known.count + 1) - 1 < math.inf):
            return
        known.rates[known.count] = statistics.median(self._recent)
        if not self._begin(known.count + (1 if known.up else -1), load, requests, time):
            self._turn()

    def bound(self, batch: int, requests: int, count: int) -> float:
        """What the throughput with ``count`` micro-batches, more than now, can be at most, relative to the incumbent's.

        A round lasts as long as its busier stage, which passes over ``count`` parts of the batch. All of these take no
        less than the stage takes now (a median), and each what a pass took when so few requests ran alone; in between,
        and down to nothing for no requests, a straight line. Infinite while nothing is known.
        """
        if not self._stages:
            return math.inf
        seen = {size: passes for size, passes in self._passes.items() if len(passes) >= self.least}
        busier = 0.0
        for stage in (0, 1):
            part = _line([(size, min(p[stage] for p in passes)) for size, passes in seen.items()], batch / count)
            busier = max(busier, count * part, statistics.median(now[stage] for now in self._stages))
        return self._usual_seconds(requests) / busier if busier else math.inf

    def _usual_seconds(self, requests: int) -> float:
        """Seconds of the incumbent's round."""
        return requests / statistics.median(self._recent) if self._recent else 0.0

    # ---- a challenger

    def _begin(self, count: int, load: Load, requests: int, time: float) -> bool:
        """Try this count, unless there is no such count or overlap cannot gain enough; is it tried?"""
        known, more = self._now, count > self._now.count
        if not 1 <= count <= min(self.most, load.batch):
            return False
        gain = self.bound(load.batch, requests, count) - 1 if more else math.inf
        if gain < LEAST_GAIN:
            if known.vetoed != count:
                known.vetoed = count
                self._decide("one more can only lose" if gain < 0 else f"one more gains {gain:.0%} at most", time)
            return False
        self._trial, self._credit = _Trial(count), False
        self._decide("try one more" if more else "try one fewer", time)
        return True

    def _challenge(self, load: Load, requests: int, seconds: float, time: float, stages) -> None:
        known, trial = self._now, self._trial
        trial.lost += seconds - self._usual_seconds(requests)
        if not self._warm:
            return
        trial.samples.append(requests / seconds)
        trial.stages += [stages] if stages else []
        verdict = self._verdict(trial.samples)
        if verdict is None:
            return
        known.rates[trial.count] = statistics.median(trial.samples)
        more = trial.count > known.count
        self._pay()
        if verdict == "worse":
            known.cost, known.proven = max(1.0, trial.lost / self._usual_seconds(requests)), True
        elif verdict == "better" or not more:
            known.count, known.proven, known.patience = trial.count, True, FIRST_WAIT
            self._recent = deque(trial.samples, maxlen=self._recent.maxlen)
            self._stages = deque(trial.stages, maxlen=self._stages.maxlen)
        if verdict == "worse" or not self._begin(trial.count + (1 if more else -1), load, requests, time):
            self._turn()
            name = "more" if more else "fewer"
            self._decide(f"{name} is worse" if verdict == "worse" else f"no {name} to try", time)

    def _verdict(self, samples: list[float]) -> str | None:
        """Is the challenger "better", "worse" or "equal"? None: measure on."""
        measured, usual = len(samples), statistics.median(self._recent)
        noise, rate = _spread(self._recent, samples), statistics.median(samples)
        if measured >= 2 and max(samples) < usual * (1 - max(HOPELESS_LOSS, 4 * noise)):
            return "worse"
        if measured < self.least:
            return None
        doubt = 1.2533 * noise * math.hypot(measured ** -0.5, len(self._recent) ** -0.5)    # of medians of normal noise
        gain = rate / usual - 1
        if abs(gain) > max(3 * doubt, PRECISION if gain < 0 else TOLERATED_LOSS):
            if abs(gain) > 6 * doubt or measured >= min(6 * self.least, self.enough):
                return "better" if gain > 0 else "worse"
        elif measured >= self.enough or 1.2533 * noise / math.sqrt(measured) <= PRECISION / 2:
            return "equal"
        return None

    def _pay(self) -> None:
        """The trial is over."""
        lost = max(0.0, self._trial.lost)
        self.budget, self.lost = self.budget - lost, self.lost + lost
        self._trial = None

    def _turn(self) -> None:
        """Nothing is to be gained in this direction: look into the other one, after a while."""
        known = self._now
        known.up = known.count == 1 or not known.up
        known.wait, known.patience = known.patience, min(2 * known.patience, LAST_WAIT)

    def _decide(self, why: str, time: float) -> None:
        self.decisions.append(Decision(time, self.count, why, dict(sorted(self._now.rates.items()))))


def _spread(*groups) -> float:
    """The standard deviation of a sample around its group's median, as a share of it; robust against a few outliers."""
    off = [abs(s / middle - 1) for samples in groups for middle in [statistics.median(samples)] for s in samples]
    return 1.4826 * statistics.median(off)


def _line(points: list[tuple[float, float]], at: float) -> float:
    """Linear interpolation through the origin and ``points``; level behind the last of them."""
    xs, ys = zip((0.0, 0.0), *sorted(points))
    return float(np.interp(at, xs, ys))


def _moved(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The share of the requests that would have to change drafters to get from one mix to the other."""
    a, b = sum(one.values()) or 1, sum(other.values()) or 1
    names = dict.fromkeys([*one, *other])       # in one order always: a sum's last bit decides at a threshold
    return sum(abs(one.get(name, 0) / a - other.get(name, 0) / b) for name in names) / 2
