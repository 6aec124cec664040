"""Accept / reject as the textbook has it: one request, one position at a time. Begin here.

Leviathan et al. (arXiv 2211.17192, algorithm 1) and Chen et al. (arXiv 2302.01318, algorithm 2). :mod:`.chain` does
this for a whole batch and with counter-based randomness, :mod:`.kernel` in one launch on a GPU; both are tested
against this loop.
"""

from collections.abc import Callable

from torch import Tensor


def accept_reject(tokens: list[int], p: Callable[[int], Tensor], q: Callable[[int], Tensor],
                  uniform: Callable[[int], float], draw: Callable[[Tensor, int], int]) -> list[int]:
    """Verify drafted ``tokens``; return those that are accepted and one token more.

    ``p(i)`` and ``q(i)`` are the target's and the drafter's distribution ``[V]`` at position i; ``tokens[i]`` was drawn
    from q(i). ``uniform(i)`` is a random number in [0, 1), ``draw(weights, i)`` a token drawn in proportion to them.
    """
    text: list[int] = []
    for i, token in enumerate(tokens):
        target, drafter = p(i), q(i)
        if uniform(i) * drafter[token] < target[token]:         # with probability min(1, p / q)
            text.append(token)
            continue
        residual = (target - drafter).clamp(min=0)
        if not residual.sum() > 0:                              # p = q up to rounding
            residual = target
        return text + [draw(residual, i)]
    return text + [draw(p(len(tokens)), len(tokens))]           # all accepted: a bonus token
