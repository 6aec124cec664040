"""What the lessons compute beside :mod:`spin_core.theory`: the best gamma, and acceptance place by place."""

from collections.abc import Iterable, Sequence

import numpy as np

from spin_core.theory import speed_up
from spin_core.trace import Event


def best_gamma(alpha: float, cost: float, limit: int = 64) -> tuple[int, float]:
    """The gamma in 0 .. ``limit`` of the largest speed-up, and that speed-up. 0: do not speculate."""
    gains = speed_up(alpha, np.arange(limit + 1), cost)
    best = int(np.argmax(gains))
    return best, float(gains[best])


def expected_tokens_by_position(alphas: Sequence[float | None], gamma: int) -> float:
    """Tokens per target pass when acceptance depends on the place in the draft: 1 + alphas[0] + alphas[0] alphas[1] +
    ...

    ``alphas[j]`` is the acceptance of drafted token j given that all before it were accepted; at least
    ``gamma`` of them. None, of a place that was never reached, counts as 0.
    """
    if len(alphas) < gamma:
        raise ValueError(f"expected_tokens_by_position: gamma {gamma} needs as many alphas, got "
                         f"{len(alphas)}")
    return float(1 + np.cumprod([a or 0.0 for a in alphas[:gamma]]).sum())


def position_counts(steps: Iterable[Event], gamma: int) -> tuple[np.ndarray, np.ndarray]:
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
