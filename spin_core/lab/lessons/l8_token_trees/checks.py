"""Checks of lesson 8's exercises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spin_core.draft.shape import expansion
from spin_core.lab.lessons.checking import array, ask, check, close, said, wrong


@check
def check_tested_distribution(solution: Callable) -> str:
    """``solution(q, elders)``: the distribution a child drawn without replacement is tested with."""
    rng = np.random.default_rng(1)
    for size, elders in ((6, []), (6, [2]), (6, [0, 5]), (9, [3, 1, 8]), (4, [1])):
        q = rng.dirichlet(np.ones(size))
        answer, after = array(ask(solution, q, elders), q.shape, "The distribution"), f"With elder siblings {elders}"
        if any(answer[e] != 0 for e in elders):
            wrong(f"{after} your distribution still gives one of them mass: it cannot be drawn.")
        if not close(answer.sum(), 1, 1e-9):
            wrong(f"{after} your distribution sums to {answer.sum():.3f}.")
        want = q.copy()
        want[elders] = 0
        if not np.allclose(answer, want / want.sum()):
            wrong(f"{after} the tokens that are left have other proportions than in q.")
    return "The distribution of a draw, given what was drawn before it: Sequoia's rule is no more than that."


@check
def check_tree_tokens(solution: Callable) -> str:
    """``solution(parents, rates)``: tokens expected per verification of a tree of that shape."""
    cases = [((-1,), [0.6]), ((-1, 0, 1), [0.6]), ((-1, -1), [0.5, 0.2]), (expansion([2, 2]).parents, [0.5, 0.2]),
             ((-1, -1, 0, 0, 1, 2), [0.6, 0.2]), (expansion([3, 1, 2]).parents, [0.5, 0.2, 0.1])]
    for parents, rates in cases:
        answer, want = ask(solution, list(parents), rates), expected_tokens(parents, rates)
        if not close(answer, want, 1e-9):
            hint = " Is the target's own token counted?" if close(answer, want - 1, 1e-9) else ""
            wrong(f"parents {list(parents)}, rates {rates}: expected {want:.3f}, yours is {said(answer)}.{hint}")
    return "A node counts with the product of the rates on its path. The best shape maximises this sum."


def expected_tokens(parents, rates) -> float:
    """1 + the sum over nodes of the probability that they are accepted: ``rates[r]`` for a child of rank r, given that
    its parent was."""
    reach: list[float] = []
    ranks: dict[int, int] = {}
    for parent in parents:
        rank = ranks[parent] = ranks.get(parent, -1) + 1
        reach.append((reach[parent] if parent >= 0 else 1.0) * rates[rank])
    return 1.0 + sum(reach)
