"""Checks of lesson 3's exercises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spin_core.lab.lessons.checking import ask, check, close, said, wrong
from spin_core.lab.simulate.recording import Passes


@check
def check_shrink(solution: Callable) -> str:
    """``solution(tokens, seconds, pool_rate, trust)`` is a request's rate, shrunk to that of all requests."""
    for tokens, seconds, rate, trust in ((0, 0.0, 50.0, 0.4), (30, 0.5, 50.0, 0.5), (10, 1.0, 40.0, 0.0),
                                        (7, 0.1, 20.0, 1e6)):
        answer = ask(solution, tokens, seconds, rate, trust, called=f"shrink({tokens}, {seconds}, {rate:g}, {trust:g})")
        right = (tokens + rate * trust) / (seconds + trust)
        if not close(answer, right, 1e-6 * right):
            wrong(f"{tokens} tokens in {seconds} s, and {trust:g} s worth of trust in {rate:g} tokens/s: "
                  f"you say {said(answer)}, it should be {right:.4g}.")
    return "A ratio of sums: what the request itself saw, and a share of what all others saw."


@check
def check_budget(solution: Callable) -> str:
    """``solution(worth, cost)``: how many of the positions, best first, make tokens per second largest.

    ``worth``: a list of probabilities for B requests each; ``cost(n)``: seconds of a pass over n rows.
    """
    def best(worth, cost):
        values = sorted((w for row in worth for w in row), reverse=True)
        rates = [(len(worth) + sum(values[:n])) / cost(len(worth) + n) for n in range(len(values) + 1)]
        return int(np.argmax(rates))

    cases = [([[.9, .8, .7], [.5, .2, .1]], lambda n: 1 + .2 * n), ([[.9, .8], [.5, .2]], lambda n: 1.0),
             ([[.3, .1], [.2, .0]], lambda n: n), ([[.95, .9, .85, .8]] * 3, Passes((1, 8, 16), (1, 1.1, 3))),
             ([[.9, .8, .7], [.6, .5, .4]], lambda n: 1 if n <= 2 else 1.6),
             ([[.4, .1], [.9, .8], [.7, .2]], lambda n: 1 + .16 * n)]      # the best are not the first ones listed
    for worth, cost in cases:
        answer, right = ask(solution, worth, cost), best(worth, cost)
        if not close(answer, right, 0):
            wrong(f"For worth = {worth} you draft {said(answer)} positions; {right} bring more tokens per second. Do you "
                  "take the best positions of the whole batch first, and count the token that every request gets anyway? "
                  "And costs may have a step: the first position behind it may lose and many together gain.")
    return ("Cheap rows: draft all. Expensive rows: draft nothing. Between them the sorted list is cut where the next "
            "position brings less than the average second does, or, where costs have steps, where the comparison of all "
            "numbers says.")
