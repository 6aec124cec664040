"""Checks of lesson 5's exercises."""

from __future__ import annotations

import random
from collections.abc import Callable

from spin_core.lab.lessons.checking import ask, check, close, few, said, whole, wrong
from spin_core.lab.lessons.l5_pipeline.measure import Stage, round_seconds
from spin_core.pipeline.reference import simulate


@check
def check_finish(solution: Callable) -> str:
    """``solution(draft, verify)``, seconds per group, is when one round of the pipeline is over."""
    dice = random.Random(0)
    cases = [([1.0], [2.0]), ([1.0, 1.0], [1.0, 1.0]), ([2.0, 1.0], [1.0, 3.0])]
    cases += [([dice.uniform(0.1, 3) for _ in range(n)], [dice.uniform(0.1, 3) for _ in range(n)]) for n in (3, 4, 6)]
    for draft, verify in cases:
        answer, right = ask(solution, draft, verify), simulate(draft, verify).seconds
        if not close(answer, right, 1e-9):
            hint = ""
            if close(answer, sum(draft) + sum(verify), 1e-9):
                hint = " That is taking turns: a group can be verified while the next is drafted."
            elif close(answer, max(sum(draft), sum(verify)), 1e-9):
                hint = " The ideal forgets that the first group cannot be verified before it is drafted."
            wrong(f"For draft = {few(draft, form='.2g')} and verify = {few(verify, form='.2g')} the round is over "
                  f"after a number of seconds, {right:.3g}; yours is {said(answer)}.{hint}")
    return "A verification starts when its draft is there and the verification before it is over: the later of the two."


@check
def check_best_count(solution: Callable) -> str:
    """``solution(draft, verify, fixed, most)`` is the count in 1 .. most with the shortest round, of a pipeline that
    runs empty at the end of every round."""
    for draft, verify, fixed in ((1.0, 1.0, 0.0), (1.0, 1.0, 0.05), (1.0, 1.0, 0.2), (1.0, 1.0, 1.0), (0.2, 1.0, 0.1),
                                 (0.5, 1.0, 0.02), (4.0, 1.0, 0.05)):
        called = f"best_count({draft}, {verify}, {fixed}, 9)"
        answer = whole(ask(solution, draft, verify, fixed, 9, called=called), 1, 9, called)
        rounds = {m: round_seconds(Stage(draft, fixed), Stage(verify, fixed), m, refill=True) for m in range(1, 10)}
        best = min(rounds, key=rounds.get)
        if rounds[answer] > rounds[best] * (1 + 1e-6):
            wrong(f"For draft {draft}, verify {verify} and a fixed share of {fixed}, {answer} micro-batches take "
                  f"{rounds[answer]:.3f} a round, {best} take {rounds[best]:.3f}.")
    return "More micro-batches shorten what is not overlapped at both ends; each pays the fixed share again."
