"""Lesson 8's exercises: solutions, and how answers are checked."""

import numpy as np

from spin_core.draft.shape import expansion
from spin_core.lab.lessons.checking import Exercise


def sees(parents):
    mask = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


_SHAPES = [(-1,), (-1, 0, 1), (-1, -1), (-1, -1, 0, 0, 1, 2), expansion([3, 1, 2]).parents]
check_sees = Exercise(
    sees, "Every path is read as if it were alone: so one pass reads them all.",
    cases=[(list(parents),) for parents in _SHAPES],
    mistakes={
        "A node sees itself as well.": lambda parents: sees(parents) & ~np.eye(len(parents), dtype=bool),
        "A node sees all its ancestors, not only its parent.":
            lambda parents: np.array([[j in (i, parent) for j in range(len(parents))]
                                      for i, parent in enumerate(parents)]),
        "That is a chain's mask: a node must not see its siblings.":
            lambda parents: np.tri(len(parents), dtype=bool),
        "Rows are the nodes that look, columns the nodes that they see.": lambda parents: sees(parents).T})


def tested_with(q, elders):
    left = q.copy()
    left[elders] = 0
    return left / left.sum()


_rng = np.random.default_rng(1)
check_tested_distribution = Exercise(
    tested_with, "The distribution of a draw, given what was drawn before it: Sequoia's rule is no more than that.",
    cases=[(_rng.dirichlet(np.ones(size)), elders)
           for size, elders in ((6, []), (6, [2]), (6, [0, 5]), (9, [3, 1, 8]), (4, [1]))],
    low=0,
    mistakes={
        "An elder sibling still has mass: it cannot be drawn again.": lambda q, elders: q,
        "A distribution sums to 1: divide by what is left.":
            lambda q, elders: np.where(np.isin(range(len(q)), elders), 0, q),
        "The tokens that are left keep their proportions of q.":
            lambda q, elders: (left := ~np.isin(range(len(q)), elders)) / left.sum(),
        "Keep the array's length, with zeros for the elder siblings: an index is a token.":
            lambda q, elders: (left := np.delete(q, elders)) / left.sum()})


def tree_tokens(parents, rates):
    worth, ranks = [], {}
    for parent in parents:
        ranks[parent] = ranks.get(parent, -1) + 1
        worth.append((worth[parent] if parent >= 0 else 1) * rates[ranks[parent]])
    return 1 + sum(worth)


def _tokens(parents, rates, path=True, ranked=True):
    """The sum with a mistake: without the product along the path, or without ranks."""
    worth, ranks = [], {}
    for parent in parents:
        ranks[parent] = ranks.get(parent, -1) + 1
        worth.append((worth[parent] if parent >= 0 and path else 1) * rates[ranks[parent] if ranked else 0])
    return 1 + sum(worth)


check_tree_tokens = Exercise(
    tree_tokens, "A node counts with the product of the rates on its path. The best shape maximises this sum.",
    cases=[(list(parents), rates) for parents, rates in
           (((-1,), [0.6]), ((-1, 0, 1), [0.6]), ((-1, -1), [0.5, 0.2]), (expansion([2, 2]).parents, [0.5, 0.2]),
            ((-1, -1, 0, 0, 1, 2), [0.6, 0.2]), (expansion([3, 1, 2]).parents, [0.5, 0.2, 0.1]))],
    mistakes={
        "The target's own token counts, too.": lambda parents, rates: tree_tokens(parents, rates) - 1,
        "A node counts only if its parent was accepted: multiply along the path.":
            lambda parents, rates: _tokens(parents, rates, path=False),
        "A later sibling is accepted less often: its rate is rates[rank].":
            lambda parents, rates: _tokens(parents, rates, ranked=False),
        "At most one child of a node is accepted, but each has its own probability: add them, do not take the best.":
            lambda parents, rates: 1 + sum(rates[0] ** (d + 1) for d in range(_deepest(parents)))})


def _deepest(parents):
    depths = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return max(depths)
