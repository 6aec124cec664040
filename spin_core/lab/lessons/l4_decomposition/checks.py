"""Checks of lesson 4's exercises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spin_core.lab.lessons.checking import array, ask, check, few, said, wrong


@check
def check_rows(solution: Callable) -> str:
    """``solution(lengths, width)`` is R(W), the number of pieces of at most ``width`` keys."""
    rng = np.random.default_rng(0)
    cases = [([5], 5), ([6], 5), ([1, 1, 1], 64), ([64, 128, 129], 64), ([1000] + [100] * 15, 100)]
    cases += [(rng.integers(1, 900, rng.integers(1, 17)).tolist(), int(rng.integers(1, 400))) for _ in range(50)]
    for lengths, width in cases:
        answer, right = ask(solution, lengths, width), sum(-(-length // width) for length in lengths)
        example = f"for lengths {few(lengths)} and width {width}"
        try:
            count = float(answer)
        except (TypeError, ValueError):
            wrong(f"A number of pieces is a number; yours is {said(answer)} {example}.")
        if count != right:
            hint = ""
            if count == -(-sum(lengths) // width):
                hint = " A piece belongs to one request: round up for each request, then add."
            elif count == sum(length // width for length in lengths):
                hint = " What is left over at the end of a request is a piece too."
            wrong(f"{count:g} pieces {example}, expected {right}.{hint}")
    return "Narrower pieces are more pieces, and each needs a copy of its request's queries."


@check
def check_merge(solution: Callable) -> str:
    """``solution(outs, lses)``, of arrays ``[R, T, d]`` and ``[R, T]``, is the attention ``[T, d]`` over all keys of a
    request that was cut into R pieces."""
    rng = np.random.default_rng(1)
    plain, one = _cut(rng, 3, 4, 1.0), _cut(rng, 1, 2, 1.0)
    unseen = _cut(rng, 3, 4, 1.0, hide=True)
    large = _cut(rng, 2, 3, 400.0)
    for words, (outs, lses, right) in (("three pieces", plain), ("one piece", one),
                                       ("a piece that no query may see (its log-sum-exp is -inf)", unseen),
                                       ("scores in the hundreds", large)):
        answer = array(ask(solution, outs, lses), right.shape, "The attention", f"with {words}")
        if not np.isfinite(answer).all():
            wrong(f"The attention is not finite with {words}. The largest log-sum-exp can be subtracted from all "
                  "before exp.")
        error = np.abs(answer - right).max()
        if error > 1e-9:
            mean = np.allclose(answer, outs.mean(0))
            hint = " Pieces of more weight count more: is a mean enough?" if mean else ""
            wrong(f"With {words} the attention is off by {error:.2g}.{hint}")
    return "However the keys are cut, merging the pieces gives the same attention: decomposition is exact."


def _cut(rng: np.random.Generator, pieces: int, queries: int, size: float,
         hide: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs and log-sum-exps of pieces of random keys, and the attention over all of them."""
    scores = [size * rng.normal(size=(queries, rng.integers(2, 6))) for _ in range(pieces)]
    values = [rng.normal(size=(s.shape[1], 3)) for s in scores]
    if hide:
        scores[1][:] = -np.inf

    def attend(s: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        peak = s.max(1, keepdims=True)
        if np.isneginf(peak).all():
            return np.zeros((len(s), v.shape[1])), np.full(len(s), -np.inf)
        weights = np.exp(s - peak)
        return weights @ v / weights.sum(1, keepdims=True), np.log(weights.sum(1)) + peak[:, 0]

    outs, lses = zip(*map(attend, scores, values))
    return np.stack(outs), np.stack(lses), attend(np.concatenate(scores, 1), np.concatenate(values))[0]
