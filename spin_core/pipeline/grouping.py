"""Which requests share a micro-batch: policies that cut a batch into groups.

A pipeline is as fast as its slowest round: max(sum of drafting, sum of verifying, the longest group's both). So
groups should take equally long, in both stages; :func:`balanced` looks for that. Other policies keep requests of one
drafter, or of similar length, together (:mod:`spin_core.lab.rivals.groups`). None changes what is generated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spin_core.names import load_rivals

Groups = list[list[int]]
"""Indices into the sequence of items, one list per group."""


@dataclass(frozen=True)
class Item:
    """A request as the policies see it: its drafter, its length in tokens, and how long each stage will take for it.

    ``draft`` and ``verify`` are predicted seconds, or anything proportional to them.
    """

    drafter: str = ""
    length: int = 0
    draft: float = 1.0
    verify: float = 1.0


def balanced(items: Sequence[Item], count: int) -> Groups:
    """Longest first, each to the group that it burdens least: Graham's LPT rule, over both stages."""
    draft, verify = totals(items)
    groups: Groups = [[] for _ in range(count)]
    sums = [(0.0, 0.0)] * count         # what a group has so far, of both stages: adding it up anew takes a square
    for i in sorted(range(len(items)), key=lambda i: -max(items[i].draft / draft, items[i].verify / verify)):
        more = [(d + items[i].draft, v + items[i].verify) for d, v in sums]
        least = min(range(count), key=lambda g: max(more[g][0] / draft, more[g][1] / verify))
        groups[least].append(i)
        sums[least] = more[least]
    return groups


NAMES = ("balanced", "drafter", "length")
POLICIES: dict[str, Callable[[Sequence[Item], int], Groups]] = {"balanced": balanced}     # and its rivals, once loaded


def check_policy(name: str) -> None:
    """Raise ValueError for a policy that is not known."""
    if name not in NAMES:
        raise ValueError(f"unknown grouping policy {name!r}; known: {', '.join(NAMES)}")
    if name not in POLICIES:
        load_rivals()


def split(items: Sequence[Item], count: int, policy: str = "balanced") -> Groups:
    """Cut ``items`` into ``count`` groups, none empty, fewer if there are fewer items; in the best order to start.

    Raises ValueError for an unknown policy or a count below one.
    """
    check_policy(policy)
    if count < 1:
        raise ValueError(f"split: at least one group, got {count}")
    groups = POLICIES[policy](items, min(count, len(items))) if items else []
    return johnson([sorted(group) for group in groups if group], items)


def johnson(groups: Groups, items: Sequence[Item]) -> Groups:
    """The order that fills a pipeline of two stages fastest (Johnson's rule).

    First the groups that draft faster than they verify, quickest draft first: verification begins early. Then the
    others, longest verification first: the last one to be verified is short.
    """
    def key(group: list[int]) -> tuple[int, float]:
        draft, verify = sum(items[i].draft for i in group), sum(items[i].verify for i in group)
        return (0, draft) if draft < verify else (1, -verify)

    return sorted(groups, key=key)


def join(newcomer: int, groups: Groups, items: Sequence[Item]) -> int:
    """Which group item ``newcomer`` joins: the one that it burdens least."""
    weigh = weigher(items)
    return min(range(len(groups)), key=lambda g: weigh([*groups[g], newcomer]))


def heaviest(groups: Groups, items: Sequence[Item]) -> float:
    """The largest share of the work, of either stage, that one group has."""
    weigh = weigher(items)
    return max((weigh(group) for group in groups), default=0.0)


def weigher(items: Sequence[Item]) -> Callable[[Sequence[int]], float]:
    """What a group weighs: the larger of its shares of all drafting and of all verifying."""
    draft, verify = totals(items)
    return lambda group: max(sum(items[i].draft for i in group) / draft, sum(items[i].verify for i in group) / verify)


def totals(items: Sequence[Item]) -> tuple[float, float]:
    """All drafting and all verifying; 1 where there is none."""
    return sum(item.draft for item in items) or 1.0, sum(item.verify for item in items) or 1.0
