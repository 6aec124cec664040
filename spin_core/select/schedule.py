"""When to explore: epochs whose exploitation grows geometrically, so that T steps explore about log T times."""


class Epochs:
    """Epoch j = 0, 1, ... explores ``explore`` times, then has ``round(first * growth^j)`` slots of exploitation.

    Raises ValueError for lengths that cannot be.
    """

    def __init__(self, explore: int, first: int, growth: float) -> None:
        if explore < 0 or first < 1 or growth < 1:
            raise ValueError(f"epochs need explore >= 0, first >= 1 and growth >= 1; got {explore}, {first}, {growth}")
        self.explore, self.growth = explore, growth
        self.epoch, self.slot, self.length = 0, 0, float(first)
        self.at: tuple[int, int, int, int] | None = None        # epoch, slot in it, slots to explore, slots to exploit

    def tick(self, slots: int = 1) -> bool:
        """Pass one slot; does it explore? ``slots``: how many it takes to explore once."""
        explore, exploit = self.explore * slots, round(self.length)
        self.at = self.epoch, self.slot, explore, exploit
        self.slot += 1
        if self.slot >= explore + exploit:
            self.epoch, self.slot, self.length = self.epoch + 1, 0, self.length * self.growth
        return self.at[1] < explore
