"""Any drafter, drawn anew at every step: what exploration alone would do."""

from __future__ import annotations

from collections.abc import Sequence

from numpy import ndarray

from spin_core.select.base import RequestView, Selector


class Random(Selector):
    """Uniform over the living arms, no speculation among them."""

    def weights(self, seats: Sequence[RequestView]) -> ndarray:
        return self.rng.random((len(seats), len(self.arms)))

    def describe(self) -> str:
        return "random"
