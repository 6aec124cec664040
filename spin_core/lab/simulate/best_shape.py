"""Sequoia's best tree (arXiv 2402.12374): from the rates at which a node's first, second, ... child is accepted, the
shape with the most tokens expected per verification."""

from collections.abc import Sequence
from functools import lru_cache
from numbers import Integral

from spin_core.draft.shape import Shape


def best_shape(acceptance: Sequence[float], nodes: int, depth: int) -> tuple[Shape, float]:
    """Sequoia's dynamic programme: the tree of ``nodes`` nodes, at most ``depth`` deep, with the most tokens expected
    per verification, and how many these are (the target's own included).

    ``acceptance[r]``: the probability that the child of rank r is the one accepted, given that its parent was, however
    deep. Raises ValueError for rates that are no probabilities of exclusive events, and for less than one node or
    level.
    """
    if not all(isinstance(n, Integral) and n >= 1 for n in (nodes, depth)):
        raise ValueError(f"best_shape: a tree has at least one node and one level, got {nodes} and {depth}")
    rates = [float(a) for a in acceptance]
    if any(not 0 <= a <= 1 for a in rates) or sum(rates) > 1 + 1e-6:
        raise ValueError(f"best_shape: rates of exclusive events are >= 0 and add up to 1 at most, got {rates}")

    @lru_cache(maxsize=None)
    def tree(size: int, deep: int) -> tuple[float, tuple[int, ...]]:
        """The best tree of ``size`` nodes with its root: tokens expected given that the root is there, and how many
        nodes go to the children of rank 0, 1, ..."""
        if size == 1 or deep == 0:
            return 1.0, ()
        gain, sizes = children(size - 1, 0, deep)
        return 1.0 + gain, sizes

    @lru_cache(maxsize=None)
    def children(left: int, rank: int, deep: int) -> tuple[float, tuple[int, ...]]:
        """The best use of ``left`` nodes for children of rank ``rank`` and on."""
        if left == 0 or rank == len(rates):
            return 0.0, ()
        best = 0.0, ()
        for size in range(1, left + 1):
            gain, rest = children(left - size, rank + 1, deep)
            gain += rates[rank] * tree(size, deep - 1)[0]
            if gain > best[0] + 1e-15:
                best = gain, (size, *rest)
        return best

    depth = min(depth, nodes)
    for deep in range(1, depth):            # from below, so that no recursion is deeper than the ranks are many
        tree(nodes + 1, deep)
    total, _ = tree(nodes + 1, depth)
    parents: list[int] = []
    level = [(-1, nodes + 1, depth)]
    while level:
        below = []
        for node, size, deep in level:
            for taken in tree(size, deep)[1]:
                below.append((len(parents), taken, deep - 1))
                parents.append(node)
        level = below
    return Shape(tuple(parents)), total
