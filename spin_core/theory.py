"""What speculation should gain on paper: the formulas of Leviathan et al. (arXiv 2211.17192).

``alpha`` is the probability that a drafted token is accepted, given that all drafted before it were.
``gamma`` is how many tokens are drafted per target pass. ``cost`` (c in the paper) is the time of one drafted
token over the time of one plain target pass. Everything is a numpy function of numbers or arrays.
"""

import numpy as np

from spin_core.names import moved


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


def speed_up(alpha, gamma, cost):
    """Over plain decoding: expected tokens / (gamma cost + 1) (theorem 3.8).

    The theorem takes a pass over gamma + 1 tokens to cost what a pass over one costs. Where it costs more,
    add to ``cost`` what each further token adds.
    """
    return expected_tokens(alpha, gamma) / (np.asarray(gamma, float) * cost + 1)


__getattr__ = moved(__name__, "spin_core.lab.theory", "best_gamma", "expected_tokens_by_position", "one_rate",
                    "position_counts", "rates")
