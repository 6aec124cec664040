"""The exercises of the lesson on the whole system, and the cases that its figures run."""

from __future__ import annotations

from collections.abc import Callable

from spin_core.lessons.exercises import OPEN, Answer
from spin_core.simulate.profiles import BYTES, DRAFTERS, HARDWARE, TARGETS, Hardware, Model

HEURISTIC = (("Alpaca", "68M", 8), ("Alpaca", "1.4B", 8), ("Alpaca", "1.4B", 32), ("CP", "1.4B", 32),
             ("CP", "1.4B", 64))
"""Data set, drafter and batch: who gains nothing from micro-batches, and who does."""


def floor(model: Model, card: Hardware, dtype: str = "fp16") -> float:
    """Seconds below which no pass can be: every weight is read once, at the peak bandwidth."""
    return model.read * BYTES[dtype] / card.bandwidth


def check_floor(solution: Callable) -> Answer:
    """Exercise 7.1: ``solution(parameters, bytes_per_value, bandwidth)`` is the least time of a pass, in
    seconds."""
    for model in (*TARGETS.values(), DRAFTERS["68M"]):
        for card in HARDWARE.values():
            if (wrong := _wrong(solution, floor(model, card), model.read, 2, card.bandwidth)) is not None:
                return Answer(*wrong(f"{model.name} on {card.name}"))
    return Answer("right", "Every weight crosses the bus once, however many rows there are. Compare with the "
                           "published times.")


def check_ridge(solution: Callable) -> Answer:
    """Exercise 7.2: ``solution(arithmetic, stream, bytes_per_value)``, in FLOP/s and bytes/s, is the number of rows from
    which a product takes longer than reading its weights."""
    for card in HARDWARE.values():
        for dtype in card.flops:
            arithmetic, size = card.arithmetic(dtype), BYTES[dtype]
            expected = arithmetic * size / (2 * card.stream)
            if (wrong := _wrong(solution, expected, arithmetic, card.stream, size)) is not None:
                return Answer(*wrong(f"{card.name}, {dtype}"))
    return Answer("right", "Up to there a drafted token is verified for free, and cutting the batch saves nothing.")


def _wrong(solution: Callable, expected: float, *given):
    """None if the solution gives what is expected (within 1 %), else what to say, as a function of where."""
    try:
        got = solution(*given)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return lambda where: ("wrong", f"{where}: it raised {said}")
    if got is None or got is ...:
        return lambda where: (OPEN.status, OPEN.message)
    if not isinstance(got, (int, float)) or abs(got - expected) > 0.01 * expected:
        return lambda where: ("wrong", f"{where}: {got} instead of about {expected:.3g}")
    return None
