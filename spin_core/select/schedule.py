"""When to explore: epochs whose exploitation grows geometrically, so that T steps explore about log T times."""

from __future__ import annotations


class Epochs:
    """Epoch j = 0, 1, ... has ``explore`` slots of exploration, then ``round(first * growth^j)`` of exploitation.

    Raises ValueError for lengths that cannot be.
    """

    def __init__(self, explore: int, first: int, growth: float) -> None:
        if explore < 0 or first < 1 or growth < 1:
            raise ValueError(f"epochs need explore >= 0, first >= 1 and growth >= 1; got {explore}, {first}, {growth}")
        self.explore, self.first, self.growth = explore, first, growth
        self.slot, self.length = 0, float(first)

    def tick(self) -> bool:
        """Pass one slot; does it explore?"""
        exploring = self.slot < self.explore
        self.slot += 1
        if self.slot >= self.explore + round(self.length):
            self.slot, self.length = 0, self.length * self.growth
        return exploring

    def __str__(self) -> str:
        return f"{self.explore} of exploration, then {self.first} of exploitation, growing {self.growth:g}-fold"
