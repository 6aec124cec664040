"""SPIN's selection (arXiv 2503.15921) in the paper's words, as short as it can be said; no server uses it.

Time is slotted and grouped in epochs. The first slots of an epoch *explore*: every request gets a drafter at random,
and what it accepts per second is recorded. The others *exploit*: a maximum-weight bipartite matching between requests
and the places of drafters, where the weight of an edge is the estimated goodput of that request with that drafter.
:class:`spin_core.select.spin.Spin` without its additions must do the same, and a test says so.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment


class Reference:
    """``capacities[drafter]``: how many requests a drafter can serve at once. An epoch has ``explore`` slots of
    exploration; epoch j then exploits for ``first * growth**j`` slots, so T slots explore about log T times."""

    def __init__(self, capacities: dict[str, int], *, explore: int = 1, first: int = 8, growth: float = 2.0,
                 seed: int = 0) -> None:
        self.places = [name for name, count in capacities.items() for _ in range(count)]    # a column each
        self.explore, self.exploit, self.growth = explore, float(first), growth
        self.slot, self.exploring, self.rng = 0, False, np.random.default_rng(seed)
        self.tokens: dict[tuple[int, str], int] = {}        # (request, drafter) -> emitted tokens
        self.seconds: dict[tuple[int, str], float] = {}

    def goodput(self, request: int, drafter: str) -> float:
        """Tokens per second that the request has had from the drafter; huge before the first time, so it is tried."""
        pair = request, drafter
        return self.tokens[pair] / self.seconds[pair] if pair in self.tokens else 1e9 + self.rng.random()

    def choose(self, requests: list[int]) -> dict[int, str]:
        """The drafter of every request in this slot."""
        self.exploring = self.slot < self.explore
        weights = [[self.rng.random() if self.exploring else self.goodput(r, name) for name in self.places]
                   for r in requests]
        self.slot += 1
        if self.slot >= self.explore + round(self.exploit):         # the next epoch exploits for longer
            self.slot, self.exploit = 0, self.exploit * self.growth
        rows, columns = linear_sum_assignment(weights, maximize=True)
        return {requests[b]: self.places[c] for b, c in zip(rows, columns)}

    def observe(self, request: int, drafter: str, tokens: int, seconds: float) -> None:
        """Record what a slot brought."""
        pair = request, drafter
        self.tokens[pair] = self.tokens.get(pair, 0) + tokens
        self.seconds[pair] = self.seconds.get(pair, 0.0) + seconds
