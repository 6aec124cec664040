"""The shape of a token tree before any token is known: who has how many children.

SpecInfer (arXiv 2305.09781) expands every node of depth i into k_i children; Sequoia (arXiv 2402.12374) finds the tree
of n nodes that is expected to have most accepted, from the rates at which a node's first, second, ... child is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from spin_core.draft.tree import depths

LARGEST = 512       # nodes


@dataclass(frozen=True)
class Shape:
    """A tree of ``len(parents)`` nodes, level by level: ``parents[i]`` is -1 for a child of the committed text, else a
    node before i, and no parent comes before its predecessor's. Siblings are in the order of their rank: the first is
    the drafter's likeliest or first drawn.

    Raises ValueError for parents that are no tree, or not level by level, and for more than ``LARGEST`` nodes.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.parents) > LARGEST:
            raise ValueError(f"a tree of {len(self.parents)} nodes: at most {LARGEST}")
        if any(not -1 <= parent < node for node, parent in enumerate(self.parents)) or \
                any(a > b for a, b in zip(self.parents, self.parents[1:])):
            raise ValueError(f"parents {list(self.parents)} are no tree written level by level")

    @cached_property
    def levels(self) -> list[int]:
        """The depth of every node, 0 for children of the committed text."""
        return depths(list(self.parents))

    @cached_property
    def children(self) -> list[list[int]]:
        """Of the committed text (last entry, index -1) and of every node its children, by rank."""
        out: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents):
            out[parent].append(node)
        return out

    @property
    def depth(self) -> int:
        """Most tokens that may be accepted."""
        return self.levels[-1] + 1 if self.parents else 0

    def place(self, node: int) -> int:
        """How many nodes of its level come before it."""
        return node - self.levels.index(self.levels[node])

    def cut(self, depth: int, nodes: int) -> "Shape":
        """The part of it that is at most ``depth`` deep and has at most ``nodes`` nodes, the deepest ones left out."""
        kept = sum(level < depth for level in self.levels)
        return self if kept == len(self.parents) <= nodes else Shape(self.parents[:max(0, min(kept, nodes))])

    def __str__(self) -> str:
        """As :func:`parse` reads it."""
        widths = [{len(self.children[n]) for n, level in enumerate(self.levels) if level == d - 1} if d else
                  {len(self.children[-1])} for d in range(self.depth)]
        if all(len(width) == 1 for width in widths):
            return ",".join(str(width.pop()) for width in widths)
        return ".".join(str(parent + 1) for parent in self.parents)


def expansion(widths: Sequence[int]) -> Shape:
    """SpecInfer's expansion (k_1, ..., k_m): every node of depth i has k_(i+1) children. Raises ValueError for a k < 1
    and for trees that are too large."""
    if any(k < 1 for k in widths):
        raise ValueError(f"every node has at least one child: expansion {list(widths)}")
    parents: list[int] = []
    level = [-1]
    for k in widths:
        if len(parents) + len(level) * k > LARGEST:
            raise ValueError(f"expansion {list(widths)} has more than {LARGEST} nodes")
        start = len(parents)
        parents += [parent for parent in level for _ in range(k)]
        level = list(range(start, len(parents)))
    return Shape(tuple(parents))


def parse(text: str) -> Shape:
    """``"2,2,1"``: an expansion. ``"0.0.1.1.2"``: any tree, level by level: 0 hangs below the committed text, i below
    the i-th node."""
    try:
        if "." in text:
            return Shape(tuple(int(number) - 1 for number in text.split(".")))
        return expansion([int(k) for k in text.split(",")])
    except ValueError as error:
        raise ValueError(f"tree shape {text!r}: {error}; write an expansion such as 2,2,1, or the parents of all nodes, "
                         "such as 0.0.1.1.2") from None


def best_shape(acceptance: Sequence[float], nodes: int, depth: int) -> tuple[Shape, float]:
    """Sequoia's dynamic programme: the tree of ``nodes`` nodes, at most ``depth`` deep, with the most tokens expected
    per verification, and how many these are (the target's own included).

    ``acceptance[r]``: the probability that the child of rank r is the one accepted, given that its parent was, however
    deep. Raises ValueError for rates that are no probabilities of exclusive events, and for less than one node or
    level.
    """
    if nodes < 1 or depth < 1:
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
