"""One drafter for everyone: what a system without selection does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from spin_core.select.base import NONE, RequestView, Selector


class Fixed(Selector):
    """Always ``arm``, as far as its capacity goes; the others decode plainly.

    Who gets a place when there are too few is decided by seniority: the lowest request ids, so that nobody's drafter
    changes from step to step.
    """

    def __init__(self, arms: Sequence[str], arm: str, **options) -> None:
        super().__init__(arms, **options)
        if arm not in self.index:
            raise ValueError(f"fixed: unknown arm {arm!r}; known: {', '.join(self.arms)}")
        self.arm = arm

    def weights(self, seats: Sequence[RequestView]) -> ndarray:
        wanted = np.zeros((len(seats), len(self.arms)))
        wanted[:, self.index[NONE]] = 1
        wanted[:, self.index[self.arm]] = np.linspace(3, 2, len(seats))     # seats come in the order of their ids
        return wanted

    def describe(self) -> str:
        return f"fixed: {self.arm}"
