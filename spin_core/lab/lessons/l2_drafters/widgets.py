"""Guess a request's best drafter before you see how they did."""

from collections.abc import Mapping, Sequence

from spin_core.lab.lessons.l2_drafters import plots
from spin_core.lab.lessons.panel import Panel, menu, slider


def pick(requests: Sequence[tuple[str, Mapping[str, float]]]) -> Panel:
    """``requests``: prompts, each with every drafter's predicted speed-up. A new request hides the answer again."""
    if not requests:
        raise ValueError("pick: needs at least one request")
    names = list(requests[0][1])
    choice = menu("drafter", [("which one would you pick?", ""), *((name, name) for name in requests[0][1])],
                  "the drafter that you would choose for this prompt")

    def hide() -> None:
        choice.value = ""       # None would be no choice at all: an empty menu

    return Panel([slider("request", 1, 1, len(requests), "a prompt of this run"), choice],
                 lambda number, chosen: plots.pick(*requests[number - 1], chosen or None), before={"request": hide},
                 task="Pick before you look. What in a prompt tells that prompt lookup will win?")
