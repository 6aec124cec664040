"""Checks of lesson 2's exercises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spin_core.lab.lessons.checking import ask, check, close, said, wrong


@check
def check_vocabulary(solution: Callable) -> str:
    """``solution(counts, size, stop_ids)`` are the ``size`` ids of the best draft vocabulary, ascending.

    Checked by coverage: no other set of that size with the stop ids in it may cover more of the text.
    """
    rng = np.random.default_rng(1)
    for vocab, size, stops, ends in ((12, 4, (2,), 0), (50, 10, (0, 49), 0), (30, 30, (5,), 0), (12, 4, (2,), 99)):
        counts = rng.permutation(np.arange(vocab) + 1)
        counts[list(stops)] = ends          # a stop id ends every answer, but in a short text it may be rare
        ids = [int(i) for i in ask(solution, counts, size, stops)]
        if len(ids) != size or len(set(ids)) != size:
            wrong(f"{len(set(ids))} different ids, expected {size} (vocabulary of {vocab}).")
        if missing := set(stops) - set(ids):
            wrong(f"Stop id {missing.pop()} is missing: such a drafter could never end an answer.")
        if ids != sorted(ids):
            wrong("The ids must ascend: column j of the drafter's head is the j-th of them.")
        others = np.sort(np.delete(counts, list(stops)))[::-1]
        best = int(counts[list(stops)].sum() + others[:size - len(stops)].sum())
        if counts[ids].sum() < best:
            wrong(f"They cover {counts[ids].sum()} tokens of {counts.sum()}; {best} are possible.")
    return "The most frequent ids, and the stop ids whatever their count."


@check
def check_speed(solution: Callable) -> str:
    """``solution(steps, c, v)`` is the speed-up of one answer over plain decoding.

    ``steps``: (drafted, accepted) of each verification; ``c`` the cost of a drafted token and ``v[k]`` that of a target
    pass over k + 1 rows, both in plain passes.
    """
    cases = [([(4, 4)], .1, [1, 1, 1, 1, 1]), ([(4, 0), (4, 2), (1, 1), (0, 0)], .05, [1, 1.1, 1.2, 1.3, 1.4]),
             ([(0, 0)] * 3, .5, [1.0]), ([(2, 1)] * 7, .3, [1, 1.5, 2])]
    for steps, c, v in cases:
        answer = ask(solution, steps, c, v)
        plain = sum(accepted + 1 for _, accepted in steps)
        expected = plain / sum(drafted * c + v[drafted] for drafted, _ in steps)
        if not close(answer, expected, 1e-9):
            hint = "count the target's own token, too" if len(steps) == 1 else "each step pays for what it drafted"
            wrong(f"{said(answer)} for the steps {steps}, c = {c}; expected {expected:.4f}: {hint}.")
    return "This is how the table above and every replay of this project count."
