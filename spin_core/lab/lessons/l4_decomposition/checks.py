"""Lesson 4's exercises: solutions, and how answers are checked."""

import numpy as np

from spin_core.lab.lessons.checking import Exercise


def padding(lengths):
    return 1 - sum(lengths) / (len(lengths) * max(lengths))


check_padding = Exercise(
    padding, "The longest request decides: one long text among many short ones pads nearly everything.",
    cases=[([4, 4, 4],), ([1, 3],), ([1000] + [100] * 15,), ([7],)],
    mistakes={
        "That is the share of keys that exist; padding is the rest.": lambda n: sum(n) / (len(n) * max(n)),
        "That is the number of padded keys; divide by all of the rectangle.": lambda n: len(n) * max(n) - sum(n),
        "Divide by all of the rectangle, not by the keys that exist.": lambda n: (len(n) * max(n) - sum(n)) / sum(n),
        "The rectangle is as wide as the longest request.": lambda n: 1 - min(n) / max(n)})


def rows(lengths, width):
    # -(-a // b) is a / b rounded up; plan() makes the pieces of a request equal instead of full ones and a rest
    return sum(-(-length // width) for length in lengths)


_rng = np.random.default_rng(0)
check_rows = Exercise(
    rows, "Narrower pieces are more pieces, and each needs a copy of its request's queries.",
    cases=[([5], 5), ([6], 5), ([1, 1, 1], 64), ([64, 128, 129], 64), ([1000] + [100] * 15, 100),
           *((_rng.integers(1, 900, _rng.integers(2, 17)).tolist(), int(_rng.integers(1, 400))) for _ in range(20))],
    whole=True, low=0,
    mistakes={
        "A piece belongs to one request: round up for each request, then add.": lambda n, w: -(-sum(n) // w),
        "What is left over at the end of a request is a piece too.": lambda n, w: sum(length // w for length in n),
        "A request of exactly one width is one piece.": lambda n, w: sum(length // w + 1 for length in n),
        "Round up, not to the nearest.": lambda n, w: sum(max(1, round(length / w)) for length in n),
        "That is the widest request's number of pieces: add those of all.": lambda n, w: -(-max(n) // w)})


def merge(outs, lses):
    # `merge` of spin_core/decompose/reference.py on arrays; FlashAttention uses this algebra inside one kernel
    weights = np.exp(lses - lses.max(0))
    weights = weights / weights.sum(0)
    return (weights[:, :, None] * outs).sum(0)


def _cut(seed: int, pieces: int, queries: int, shift: float = 0.0, hide: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Outputs ``[R, T, d]`` and log-sum-exps ``[R, T]`` of pieces of random keys. ``shift`` makes the first query's
    scores large, and the last query's as small; ``hide``: no query sees piece 1."""
    rng = np.random.default_rng(seed)
    outs, lses = [], []
    for _ in range(pieces):
        scores = rng.normal(size=(queries, rng.integers(2, 6))) + np.linspace(shift, -shift, queries)[:, None]
        peak = scores.max(1, keepdims=True)
        weights = np.exp(scores - peak)
        outs.append(weights @ rng.normal(size=(scores.shape[1], 3)) / weights.sum(1, keepdims=True))
        lses.append(np.log(weights.sum(1)) + peak[:, 0])
    if hide:
        outs[1][:], lses[1][:] = 0, -np.inf
    return np.stack(outs), np.stack(lses)


def _weighted(weights, outs, over=0):
    """The mean of the pieces with these weights, made to sum to 1 ``over`` an axis."""
    return ((weights / weights.sum(over, keepdims=True))[:, :, None] * outs).sum(0)


check_merge = Exercise(
    merge, "However the keys are cut, merging the pieces gives the same attention: decomposition is exact.",
    cases=[_cut(1, 3, 4), _cut(2, 1, 2), _cut(3, 3, 4, hide=True), _cut(4, 2, 3, shift=900.0)],
    mistakes={
        "Pieces of more weight count more: is a mean enough?": lambda outs, lses: outs.mean(0),
        "Each query has weights of its own that sum to 1 over the pieces: divide by their sum.":
            lambda outs, lses: (np.exp(lses)[:, :, None] * outs).sum(0),
        "The log-sum-exp is the logarithm of a weight: take exp first.":
            lambda outs, lses: _weighted(lses, outs),
        "The largest log-sum-exp can be subtracted from all before exp: it cancels.":
            lambda outs, lses: _weighted(np.exp(lses), outs),
        "Weights sum to 1 over the pieces, not over the queries.":
            lambda outs, lses: _weighted(np.exp(lses - lses.max()), outs, over=1),
        "Subtract each query's own largest log-sum-exp: with the largest of all, a query's weights may become 0.":
            lambda outs, lses: _weighted(np.exp(lses - lses.max()), outs)})
