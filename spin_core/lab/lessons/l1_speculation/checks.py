"""Checks of lesson 1's exercises."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np

from spin_core import theory
from spin_core.lab.lessons.checking import array, ask, check, few, said, whole, wrong
from spin_core.lab.lessons.l1_speculation.distribution import distribution_test


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


GAMMA, DRAWS = 2, 3000
# A made-up language of three tokens: the target's and the drafter's distribution behind each token. p is below q at
# some tokens and above at others, so every branch of the loop is taken.
P = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.45, 0.45, 0.1]])
Q = np.array([[0.2, 0.3, 0.5], [0.4, 0.3, 0.3], [0.1, 0.6, 0.3]])


@check
def check_accept_reject(solution: Callable) -> str:
    """``solution(p, q, drafted, rng)`` is the list of the tokens emitted for a draft; ``p`` has a row more than ``q``.

    First its rules one by one, each with a hint; then the distribution of many texts of the made-up language.
    """
    rng, called = np.random.default_rng(0), "accept_reject(p, q, drafted, rng)"

    @wraps(solution)
    def loop(p, q, drafted):
        return solution(p, q, drafted, rng)

    def emitted(p, q, drafted) -> list[int]:
        answer = ask(loop, np.array(p), np.array(q), drafted, called=called)
        try:
            tokens = [int(token) for token in answer]
        except (TypeError, ValueError):
            wrong(f"{called} should be a list of token ids, it is {said(answer)}.")
        if not 1 <= len(tokens) <= len(drafted) + 1 or not all(0 <= t < len(p[0]) for t in tokens):
            wrong(f"{len(drafted)} drafted tokens give 1 to {len(drafted) + 1} emitted ones, ids from 0 to "
                  f"{len(p[0]) - 1}; yours are {tokens}.")
        return tokens

    same = [emitted(P, P[:GAMMA], [0, 1]) for _ in range(20)]
    if any(tokens[:2] != [0, 1] for tokens in same):
        wrong("Where p and q are equal, every drafted token is accepted; yours rejects some. Which of u q and p is "
              "larger?")
    if any(len(tokens) != GAMMA + 1 for tokens in same):
        wrong("All drafted tokens were accepted: the target adds one more token, drawn from the last row of p.")
    if any(emitted([[0, 1, 0]] * 2, [[1, 0, 0]], [0])[0] == 0 for _ in range(20)):
        wrong("A token with p = 0 was accepted.")
    for _ in range(200):
        tokens = emitted(P[[0, 1, 2]], Q[[0, 1]], [2, 0])
        if any(token != drafted for token, drafted in zip(tokens[:-1], [2, 0])):
            wrong("The step ends at the first rejection: what was drafted behind a rejected token does not count.")
        if tokens[0] == 1 and len(tokens) == 1:
            wrong("Token 1 replaced a rejected token although q gives it as much as p does: replacements are drawn "
                  "from (p - q)+, not from p.")
    return is_lossless.__wrapped__(solution)


@check
def is_lossless(loop: Callable, draws: int = DRAWS) -> str:
    """Whether texts of three tokens of the made-up language, made with ``loop``, follow the target's distribution.

    ``loop`` is called as in :func:`check_accept_reject`; a text that is too short is continued by plain decoding.
    """
    rng, counts = np.random.default_rng(1), np.zeros((3, 3, 3))
    for _ in range(draws):
        drafted, last = [], 0
        for _ in range(GAMMA):
            drafted.append(int(rng.choice(3, p=Q[last])))
            last = drafted[-1]
        rows = [0, *drafted]
        text = [int(t) for t in loop(P[rows], Q[rows[:GAMMA]], list(drafted), rng)]
        while len(text) < 3:
            text.append(int(rng.choice(3, p=P[text[-1]])))
        counts[tuple(text)] += 1
    exact = P[0][:, None, None] * P[:, :, None] * P[None]
    test = distribution_test(counts.ravel(), exact.ravel())
    found = (f"{draws} texts are {test.distance:.3f} from the target's distribution (total variation); chance alone "
             f"explains up to {test.noise:.3f}; p-value {test.p_value:.2g}.")
    if test.p_value < 1e-4:
        first = counts.sum((1, 2)) / draws
        token = int(np.abs(first - P[0]).argmax())
        wrong(f"BIASED: {found} Token {token} comes first in {first[token]:.2f} of the texts; the target gives it "
              f"{P[0, token]:.2f}.")
    return f"LOSSLESS: {found}"
