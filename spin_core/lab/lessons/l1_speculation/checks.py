"""Checks of lesson 1's exercises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spin_core import theory
from spin_core.lab.lessons.checking import array, ask, check, few, whole, wrong


@check
def check_replacement_distribution(solution: Callable) -> str:
    """``solution(p, q)``, arrays ``[V]``, is the distribution of the token that replaces a rejected one.

    Checked through the distribution of the emitted token: min(p, q) by acceptance and the rest of the mass by
    replacement must make p together.
    """
    rng = np.random.default_rng(0)
    pairs = [(rng.dirichlet(np.full(v, a)), rng.dirichlet(np.full(v, b)))
             for v, a, b in ((3, 1.0, 1.0), (6, 0.3, 0.3), (6, 3.0, 0.2), (50, 0.1, 1.0))]
    same = rng.dirichlet(np.ones(5))
    for p, q in [*pairs, (np.array([0.0, 0.4, 0.6]), np.array([1.0, 0.0, 0.0])), (same, same.copy())]:
        example = f"for p = {few(p, form='.2f')} and q = {few(q, form='.2f')}"
        answer = array(ask(solution, p, q), p.shape, "The distribution", example)
        if not np.isfinite(answer).all():
            wrong(f"The distribution is not finite {example}. What is left of p when p equals q?")
        if (answer < 0).any() or abs(answer.sum() - 1) > 1e-9:
            wrong(f"A distribution is not negative and sums to 1; yours is {few(answer, form='.2f')} {example}.")
        accepted = np.minimum(p, q)
        emitted = accepted + (1 - accepted.sum()) * answer
        token = int(np.argmax(np.abs(emitted - p)))
        if abs(emitted[token] - p[token]) > 1e-9:
            wrong(f"Token {token} would be emitted with probability {emitted[token]:.3f}, "
                  f"but the target gives it {p[token]:.3f}, {example}.")
    return "Accepted and replaced tokens together follow p, whatever q is: that is the whole trick."


@check
def check_choose_gamma(solution: Callable) -> str:
    """``solution(alpha, cost)`` is the gamma in 0 .. 64 of the largest speed-up."""
    for alpha, cost in ((0.8, 0.05), (0.6, 0.05), (0.8, 0.1), (0.5, 0.3), (0.9, 0.02), (0.3, 0.4),
                        (0.05, 0.2), (0.0, 0.1), (1.0, 0.1)):
        called = f"choose_gamma({alpha}, {cost})"
        answer = whole(ask(solution, alpha, cost, called=called), 0, 64, called)
        best, gain = theory.best_gamma(alpha, cost)
        yours = float(theory.speed_up(alpha, answer, cost))
        if yours < gain - 1e-12:
            hint = " Is speculation always worth it?" if best == 0 else ""
            wrong(f"For alpha = {alpha} and c = {cost}, gamma = {answer} gives a speed-up of {yours:.3f}; "
                  f"another gamma gives {gain:.3f}.{hint}")
    return "The best gamma grows with alpha and falls with c; it is 0 where c exceeds alpha."
