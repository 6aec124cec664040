"""The shape of a token tree before any token is known: how many children every node has.

SpecInfer (arXiv 2305.09781) expands every node of depth i into k_i children.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
        """The most tokens that can be accepted."""
        return self.levels[-1] + 1 if self.parents else 0

    def place(self, node: int) -> int:
        """How many nodes of its level come before it."""
        return node - self.levels.index(self.levels[node])

    def cut(self, depth: int, nodes: int) -> "Shape":
        """The shape cut to at most ``depth`` levels and ``nodes`` nodes; the deepest nodes go first."""
        kept = sum(level < depth for level in self.levels)
        return self if kept == len(self.parents) <= nodes else Shape(self.parents[:max(0, min(kept, nodes))])

    def __str__(self) -> str:
        """The text from which :func:`parse` makes this shape."""
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
        raise ValueError(f"tree shape {text!r}: {error}; write an expansion such as 2,2,1, or the parents of all "
                         "nodes, such as 0.0.1.1.2") from None
