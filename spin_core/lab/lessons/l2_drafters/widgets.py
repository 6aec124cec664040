"""Guess a request's best drafter before you see how they did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spin_core.lab.lessons.l2_drafters import plots
from spin_core.lab.lessons.panel import Panel, menu, slider


def pick(requests: Sequence[tuple[str, Mapping[str, float]]]) -> Panel:
    """``requests``: prompts, each with every drafter's predicted speed-up. A new request hides the answer again."""
    if not requests:
        raise ValueError("pick: needs at least one request")
    names = list(requests[0][1])
    number = slider("request", 1, 1, len(requests), "a prompt of this run")
    choice = menu("drafter", [("which one would you pick?", ""), *((n, n) for n in names)],
                  "the drafter that you would choose for this prompt")
    panel = Panel([number, choice], lambda: plots.pick(*requests[number.value - 1], choice.value or None),
                  task="Pick before you look. What in a prompt tells that prompt lookup will win?")

    def hide(_change) -> None:
        choice.value = ""       # None would be no choice at all: an empty menu

    number.observe(hide, "value")
    return panel
