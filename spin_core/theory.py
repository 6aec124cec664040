"""What speculation should gain on paper: the formulas of Leviathan et al. (arXiv 2211.17192).

``alpha`` is the probability that a drafted token is accepted, given that all drafted before it were.
``gamma`` is how many tokens are drafted per target pass. ``cost`` (c in the paper) is the time of one drafted
token over the time of one plain target pass. Everything is a numpy function of numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from spin_core.trace import Event


def expected_tokens(alpha, gamma):
    """Tokens per target pass, ``(1 - alpha^(gamma + 1)) / (1 - alpha)`` (equation 1); gamma + 1 at alpha = 1.

    ``alpha`` in [0, 1] and ``gamma`` >= 0 broadcast against each other. It is the sum 1 + alpha + ... +
    alpha^gamma: the target always adds a token of its own, and drafted token j is kept if it and all before
    it were accepted.
    """
    alpha, gamma = np.asarray(alpha, float), np.asarray(gamma, float)
    if np.any((alpha < 0) | (alpha > 1)) or np.any(gamma < 0):
        raise ValueError(f"expected_tokens: alpha must be in [0, 1] and gamma >= 0, got {alpha} and {gamma}")
    miss = np.where(alpha == 1, 1.0, 1 - alpha)                # 1 stands in where the quotient would be 0 / 0
    return np.where(alpha == 1, gamma + 1, (1 - alpha ** (gamma + 1)) / miss)[()]


def expected_tokens_by_position(alphas: Sequence[float | None], gamma: int) -> float:
    """The same when acceptance depends on the place in the draft: 1 + alphas[0] + alphas[0] alphas[1] + ...

    ``alphas[j]`` is the acceptance of drafted token j given that all before it were accepted; at least
    ``gamma`` of them. None, of a place that was never reached, counts as 0.
    """
    if len(alphas) < gamma:
        raise ValueError(f"expected_tokens_by_position: gamma {gamma} needs as many alphas, got "
                         f"{len(alphas)}")
    return float(1 + np.cumprod([a or 0.0 for a in alphas[:gamma]]).sum())


def speed_up(alpha, gamma, cost):
    """Over plain decoding: expected tokens / (gamma cost + 1) (theorem 3.8).

    The theorem takes a pass over gamma + 1 tokens to cost what a pass over one costs. Where it costs more,
    add to ``cost`` what each further token adds.
    """
    return expected_tokens(alpha, gamma) / (np.asarray(gamma, float) * cost + 1)


def best_gamma(alpha: float, cost: float, limit: int = 64) -> tuple[int, float]:
    """The gamma in 0 .. ``limit`` of the largest speed-up, and that speed-up. 0: do not speculate."""
    gains = speed_up(alpha, np.arange(limit + 1), cost)
    best = int(np.argmax(gains))
    return best, float(gains[best])


def position_counts(steps: Iterable["Event"], gamma: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each place of a draft was looked at, and accepted: two int arrays ``[gamma]``.

    ``steps`` are "step" events. Looked at are the accepted tokens and the one whose rejection ended the
    draft; where the text ended inside the accepted run (a stop token), what stood behind it was not.
    """
    tested, accepted = np.zeros(gamma, int), np.zeros(gamma, int)
    for step in steps:
        rejected = step.accepted < min(len(step.drafted), len(step.emitted))
        accepted[:step.accepted] += 1
        tested[:step.accepted + rejected] += 1
    return tested, accepted


def rates(tested: Sequence[int], accepted: Sequence[int]) -> list[float | None]:
    """alpha of every place: accepted / tested, None where nothing was tested."""
    return [float(a / t) if t else None for t, a in zip(tested, accepted)]


def one_rate(tested: Sequence[int], accepted: Sequence[int]) -> float | None:
    """One alpha for all places together; None where nothing was tested."""
    return rates([sum(tested)], [sum(accepted)])[0]
