"""Lengths of the requests of a batch: drawn from a workload, or made with a given skew."""

from __future__ import annotations

import numpy as np

from spin_core.workloads import load_workload
from spin_core.zoo import Family


class Lengths:
    """Draws the lengths of requests that are served together, as continuous batching mixes them.

    Each is a prompt of the workload's test split, and as much of an answer of at most ``answer`` tokens as
    has been written so far, which may be any part of it.
    """

    def __init__(self, family: Family, workload: str = "mix", answer: int = 256) -> None:
        prompts = load_workload(workload, split="test")
        self.prompts = [len(family.encode(prompt.messages)) for prompt in prompts]
        self.answer = answer

    def draw(self, count: int, *, seed: int = 0, new: int = 0) -> list[int]:
        """Tokens of ``count`` requests, ``new`` in-flight ones included. Longer lists of a seed begin with
        the shorter."""
        rng = np.random.default_rng(seed)
        return [int(rng.choice(self.prompts) + rng.integers(0, self.answer + 1)) + new for _ in range(count)]

    @property
    def longest(self) -> int:
        """Tokens of the longest request that may be drawn."""
        return max(self.prompts) + self.answer


def skewed_lengths(count: int, longest: int, skew: float, shortest: int = 8) -> list[int]:
    """``count`` lengths from ``longest`` down to (1 - skew) times it, each shorter by the same factor than
    the one before, and none below ``shortest``. A skew of 0 makes them equal."""
    ends = np.log([longest, max((1 - skew) * longest, shortest)])
    return [int(n) for n in np.exp(np.linspace(*ends, count)).round()]
