"""Checks of lesson 9's exercises."""

from __future__ import annotations

from collections.abc import Callable

from spin_core.lab.lessons.checking import ask, check, close, said, whole, wrong
from spin_core.lab.simulate import spire


@check
def check_crossing(solution: Callable) -> str:
    """``solution(weights, cache_per_token, batch)`` is the context from which a pass reads more cache than weights."""
    for batch in (1, 8, 64):
        for body in (spire.TARGET, spire.VANILLA.body, spire.TARGET_70B):
            weights, each = body.parameters, body.kv_bytes(1, 1)
            answer, right = ask(solution, weights, each, batch), weights / (batch * each)
            if not close(answer, right, 1 + 0.001 * right):
                wrong(f"For {weights:,} bytes of weights, {each:,} bytes of cache per token and batch {batch}, "
                      f"{said(answer)} instead of about {right:,.0f}.")
    return ("All requests of a batch share the weights, and each has a cache of its own: the larger the batch, the "
            "sooner the cache takes most of the time.")


@check
def check_entry(solution: Callable) -> str:
    """``solution(position, sink, ring)`` is the entry of a token in a buffer of ``sink`` entries that stay and ``ring``
    entries that are used in turn."""
    for sink, ring in ((1, 4), (4, 7), (0, 3), (1, 64)):
        held: dict[int, int] = {}
        for position in range(3 * (sink + ring) + 2):
            called = f"entry({position}, {sink}, {ring})"
            answer = whole(ask(solution, position, sink, ring, called=called), 0, sink + ring - 1, called)
            held[answer] = position
            lost = [p for p in (*range(min(sink, position + 1)), *range(max(sink, position + 1 - ring), position + 1))
                    if p not in held.values()]
            if lost:
                wrong(f"With sink {sink} and ring {ring}, position {position} was written to entry {answer}; that "
                      f"loses the token at {lost[0]}.")
    return ("The sink stays, the others are used in turn. To draft gamma tokens and take them back, give the ring "
            "gamma entries more than the window.")
