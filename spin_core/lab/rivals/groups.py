"""Other ways to cut a batch into micro-batches than the balanced one (:mod:`spin_core.pipeline.grouping`).

With requests of one drafter in one group, each drafter runs one wide pass per round and not one for every group. With
requests of similar length in one group, attention has less padding.
"""

from collections.abc import Sequence

from spin_core.pipeline.grouping import Groups, Item, weigher


def by_drafter(items: Sequence[Item], count: int) -> Groups:
    """Requests of one drafter stay together as far as the groups can still be balanced.

    A drafter with more than a group's fair share of the work is cut into parts of at most that; the parts are then
    balanced.
    """
    weigh = weigher(items)
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
    weigh = weigher(items)
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
