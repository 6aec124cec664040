"""Arrival times of requests: one by one, or in bursts."""

from numbers import Integral, Real

import numpy as np
from numpy import ndarray

from spin_core.lab.simulate.checks import finite, whole, within

KINDS = ("closed", "poisson", "bursty")
BURST = 8.0             # requests of a burst, on average


def poisson(count: int, rate: float, rng: np.random.Generator) -> ndarray:
    """Arrival times of ``count`` requests, on average ``rate`` per second.

    Raises ValueError for a count below 0, or a rate that is not above 0 and finite.
    """
    _check(count, rate)
    return np.cumsum(rng.exponential(1 / rate, count))


def bursty(count: int, rate: float, burst: float, rng: np.random.Generator) -> ndarray:
    """The same rate in bursts of ``burst`` requests on average, 1 or more, which arrive together."""
    _check(count, rate)
    within("arrivals", 1, 1e9, burst=burst)
    starts = rng.random(count) < 1 / burst
    starts[:1] = True
    return np.cumsum(np.where(starts, rng.exponential(burst / rate, count), 0.0))


def times(kind: str, count: int, rate: float, seed: int = 0) -> ndarray | None:
    """Arrival times ``[count]`` by one of ``KINDS``; None for "closed": all requests are there at the start.

    Raises ValueError for another kind, a count below 0, or a rate that is not above 0 and finite.
    """
    if kind not in KINDS or not isinstance(count, Integral) or count < 0 or not isinstance(rate, Real) or \
            not 0 < rate < np.inf or not np.isfinite(max(count, 1) / rate):
        raise ValueError(f"arrivals: {kind!r} of {', '.join(KINDS)}, at a finite rate above 0, a whole count "
                         f">= 0; got {rate!r} and {count!r}")
    whole("arrivals", 0, seed=seed)
    if kind == "closed":
        return None
    rng = np.random.default_rng(seed)
    return poisson(count, rate, rng) if kind == "poisson" else bursty(count, rate, BURST, rng)


def _check(count: int, rate: float) -> None:
    whole("arrivals", 0, count=count)
    finite("arrivals", zero=False, rate=rate)
