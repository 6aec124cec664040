"""What attention costs on a device, as an equation with a few constants.

The model is linear, as SPIN's is: calls, keys and values read, scores computed, copies of queries, merging. A key
(with its value) of one kv head costs something however many queries attend to it, and more for each query row.
:mod:`spin_core.decompose.calibrate` measures the constants.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch


@dataclass(frozen=True)
class Heads:
    """The shape of attention: query heads = ``kv * group``."""

    kv: int
    group: int


@dataclass(frozen=True)
class Costs:
    """Seconds. ``*_key`` is per key and kv head, ``*_score`` per key, kv head and query row, ``*_query`` per query
    row and kv head of a request or a piece, ``*_call`` per call: of a request, of a pool, of a merge, and of a step
    whatever it does. ``unpooled_step`` is once per step with unpooled requests, as ``pool_call`` is for a pool: the
    first run of either code after other work is the slowest. ``pool_width`` is per key of a row: on a GPU all rows
    run at once, and a long one runs on when the others have finished."""

    kv: int
    group: int
    step_call: float
    unpooled_call: float
    unpooled_key: float
    unpooled_score: float
    pool_call: float
    pool_width: float
    pool_key: float
    pool_score: float
    pool_query: float
    merge_call: float
    merge_query: float
    unpooled_query: float = 0.0
    unpooled_step: float = 0.0

    def unpooled(self, lengths: np.ndarray, q_lens: np.ndarray) -> np.ndarray:
        """Seconds of every request when it is read where it is."""
        rows = q_lens * self.group
        return self.unpooled_call + self.kv * (lengths * (self.unpooled_key + rows * self.unpooled_score)
                                            + rows * self.unpooled_query)

    def pool(self, counts: np.ndarray, width: np.ndarray | int, queries: int) -> np.ndarray:
        """Seconds of every request when it is in a pool of this width with ``counts`` pieces."""
        rows = queries * self.group
        return counts * self.kv * (width * (self.pool_key + rows * self.pool_score)
                                   + rows * (self.pool_query + self.merge_query * (counts > 1)))

    def calls(self, pooled: np.ndarray | bool, merged: np.ndarray | bool,
              width: np.ndarray | int) -> np.ndarray | float:
        """Seconds of a pool whatever is in it, if there is one, and of merging, if there is any."""
        return pooled * (self.pool_call + self.pool_width * width) + self.merge_call * merged

    def whole_pool(self, pieces: np.ndarray | int, merged: np.ndarray | int, width: np.ndarray | int,
                   queries: int) -> np.ndarray | float:
        """Seconds of a pool of so many ``pieces``, ``merged`` of them of requests cut into several: :meth:`calls` and
        the sum of :meth:`pool`, without a look at every request."""
        rows = queries * self.group
        piece = width * (self.pool_key + rows * self.pool_score) + rows * self.pool_query
        return self.kv * (pieces * piece + merged * (rows * self.merge_query)) + self.calls(True, merged > 0, width)

    def plan(self, plan) -> float:
        """Seconds of a layer of a :class:`spin_core.decompose.plan.Plan`."""
        lengths, q_lens = (np.array([each[b] for b in plan.unpooled]) for each in (plan.lengths, plan.q_lens))
        total = self.step_call + self.unpooled_step * bool(plan.unpooled) + self.unpooled(lengths, q_lens).sum()
        for pool in plan.pools:
            pieces = Counter(piece.request for piece in pool.pieces).values()
            total += self.whole_pool(sum(pieces), sum(n for n in pieces if n > 1), pool.width, pool.queries)
        return float(total)


FIELDS = [name for name in Costs.__dataclass_fields__ if name not in ("kv", "group")]


def features(plan, heads: Heads) -> np.ndarray:
    """How often a plan is charged each constant of :class:`Costs`, in the order of ``FIELDS``: what it would cost if
    that one were a second and the others nothing."""
    return np.array([Costs(heads.kv, heads.group, *one).plan(plan) for one in np.eye(len(FIELDS)).tolist()])


def priced(plan, costs: Costs | None):
    """``plan`` with its predicted seconds."""
    return plan if costs is None else replace(plan, seconds=costs.plan(plan))


def typical(dtype: torch.dtype, heads: Heads, dim: int) -> Costs:
    """What a core of a common CPU charges, by the bytes and the products of a key."""
    size = dtype.itemsize * dim
    return Costs(heads.kv, heads.group, step_call=3e-5, unpooled_step=3e-5, unpooled_call=1.5e-5,
                 unpooled_key=1e-10 * size, unpooled_score=5e-11 * dim, unpooled_query=3e-10 * size, pool_call=1e-4,
                 pool_width=0.0, pool_key=2.4e-10 * size, pool_score=4e-11 * dim, pool_query=7e-10 * size,
                 merge_call=6e-5, merge_query=1e-10 * size)
