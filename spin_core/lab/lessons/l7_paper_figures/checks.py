"""Checks of lesson 7's exercises."""

from __future__ import annotations

from collections.abc import Callable

from spin_core.lab.lessons.checking import ask, check, close, said, wrong
from spin_core.lab.lessons.l7_paper_figures.measure import floor
from spin_core.lab.simulate.profiles import BYTES, DRAFTERS, HARDWARE, TARGETS


@check
def check_floor(solution: Callable) -> str:
    """``solution(parameters, bytes_per_value, bandwidth)`` is the least time of a pass, in seconds."""
    for model in (*TARGETS.values(), DRAFTERS["68M"]):
        for card in HARDWARE.values():
            _compare(f"{model.name} on {card.name}", solution, floor(model, card), model.read, 2, card.bandwidth)
    return "Every weight crosses the bus once, however many rows there are. Compare with the published times."


@check
def check_ridge(solution: Callable) -> str:
    """``solution(arithmetic, stream, bytes_per_value)``, in FLOP/s and bytes/s, is the number of rows from which a
    product takes longer than reading its weights."""
    for card in HARDWARE.values():
        for dtype in card.flops:
            arithmetic, size = card.arithmetic(dtype), BYTES[dtype]
            expected = arithmetic * size / (2 * card.stream)
            _compare(f"{card.name}, {dtype}", solution, expected, arithmetic, card.stream, size, slack=1)
    return "Up to there a drafted token is verified for free, and cutting the batch saves nothing."


def _compare(where: str, solution: Callable, expected: float, *given, slack: float = 0.0) -> None:
    """The solution must give what is expected there, within 1 % and ``slack``."""
    answer = ask(solution, *given, called=f"{where}: it")
    if not close(answer, expected, slack + 0.01 * expected):
        wrong(f"{where}: {said(answer)} instead of about {expected:.3g}")
