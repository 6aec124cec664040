"""When requests come: one by one, or in bursts."""

from __future__ import annotations

import numpy as np
from numpy import ndarray


def poisson(count: int, rate: float, rng: np.random.Generator) -> ndarray:
    """Arrival times of ``count`` requests, on average ``rate`` per second."""
    return np.cumsum(rng.exponential(1 / rate, count))


def bursty(count: int, rate: float, burst: float, rng: np.random.Generator) -> ndarray:
    """The same rate in bursts of ``burst`` requests on average, which arrive together."""
    starts = rng.random(count) < 1 / burst
    starts[0] = True
    return np.cumsum(np.where(starts, rng.exponential(burst / rate, count), 0.0))
