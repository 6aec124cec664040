"""Which requests share a micro-batch: policies that cut a batch into groups.

A pipeline is as fast as its slowest round: max(sum of drafting, sum of verifying, the longest group's both). So
groups should take equally long, in both stages; :func:`balanced` looks for that. Two other wishes compete with it. With
requests of one drafter in one group, each drafter runs one wide pass per round and not one for every group. With
requests of similar length in one group, attention has less padding. No policy changes what is generated, only when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    weigh = _weigher(items)
    groups: Groups = [[] for _ in range(count)]
    for i in sorted(range(len(items)), key=lambda i: -weigh([i])):
        min(groups, key=lambda group: weigh([*group, i])).append(i)
    return groups


def by_drafter(items: Sequence[Item], count: int) -> Groups:
    """Requests of one drafter stay together as far as the groups can still be balanced.

    A drafter with more than a group's fair share of the work is cut into parts of at most that; the parts are then
    balanced.
    """
    weigh = _weigher(items)
    fair = weigh(range(len(items))) / count
    parts: Groups = []
    for name in dict.fromkeys(item.drafter for item in items):
        part: list[int] = []
        for i in (i for i, item in enumerate(items) if item.drafter == name):
            if part and weigh([*part, i]) > fair * (1 + 1e-9):
                parts.append(part)
                part = []
            part.append(i)
        parts.append(part)
    while len(parts) < count:                                   # few drafters and many groups: cut the largest
        largest = max(parts, key=len)
        parts.remove(largest)
        parts += [largest[::2], largest[1::2]]
    groups: Groups = [[] for _ in range(count)]
    for part in sorted(parts, key=weigh, reverse=True):
        min(groups, key=lambda group: weigh([*group, *part])).extend(part)
    return groups


def by_length(items: Sequence[Item], count: int) -> Groups:
    """Requests of similar length share a group; the cuts are where the work is shared out most evenly."""
    weigh = _weigher(items)
    order = sorted(range(len(items)), key=lambda i: items[i].length)
    groups: Groups = []
    left = weigh(order)
    for remaining in range(count, 0, -1):
        group = [order.pop(0)]
        fair = left / remaining
        # take the next one along if that comes closer to the fair share, and enough are left for the other groups
        while len(order) >= remaining and (remaining == 1 or fair - weigh(group) > weigh([*group, order[0]]) - fair):
            group.append(order.pop(0))
        left -= weigh(group)
        groups.append(group)
    return groups


POLICIES: dict[str, Callable[[Sequence[Item], int], Groups]] = {
    "balanced": balanced, "drafter": by_drafter, "length": by_length}


def split(items: Sequence[Item], count: int, policy: str = "balanced") -> Groups:
    """Cut ``items`` into ``count`` groups, none empty, fewer if there are fewer items; in the best order to start.

    Raises ValueError for an unknown policy or a count below one.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown grouping policy {policy!r}; known: {', '.join(POLICIES)}")
    if count < 1:
        raise ValueError(f"split: at least one group, got {count}")
    groups = POLICIES[policy](items, min(count, len(items))) if items else []
    return johnson([sorted(group) for group in groups if group], items)


def johnson(groups: Groups, items: Sequence[Item]) -> Groups:
    """The order that fills a pipeline of two stages fastest (Johnson's rule).

    First the groups that draft faster than they verify, quickest draft first: verification begins early. Then the
    others, longest verification first: the last one to be verified is short.
    """
    def times(group: list[int]) -> tuple[float, float]:
        return sum(items[i].draft for i in group), sum(items[i].verify for i in group)

    def key(group: list[int]) -> tuple[int, float]:
        draft, verify = times(group)
        return (0, draft) if draft < verify else (1, -verify)

    return sorted(groups, key=key)


def join(newcomer: int, groups: Groups, items: Sequence[Item]) -> int:
    """Which group item ``newcomer`` joins: the one that it burdens least."""
    weigh = _weigher(items)
    return min(range(len(groups)), key=lambda g: weigh([*groups[g], newcomer]))


def heaviest(groups: Groups, items: Sequence[Item]) -> float:
    """The largest share of the work, of either stage, that one group has."""
    weigh = _weigher(items)
    return max((weigh(group) for group in groups), default=0.0)


def _weigher(items: Sequence[Item]) -> Callable[[Sequence[int]], float]:
    """What a group weighs: the larger of its shares of all drafting and of all verifying."""
    draft, verify = sum(item.draft for item in items) or 1.0, sum(item.verify for item in items) or 1.0
    return lambda group: max(sum(items[i].draft for i in group) / draft, sum(items[i].verify for i in group) / verify)
