"""Every policy by its name."""

from __future__ import annotations

from collections.abc import Sequence

from spin_core.select.base import Selector
from spin_core.select.greedy import EpsilonGreedy, Greedy
from spin_core.select.hedge import Hedge
from spin_core.select.minions import Minions
from spin_core.select.rivals import EXP3, UCB, Fixed, Random, Thompson
from spin_core.select.spin import Spin
from spin_core.select.spin_full import SpinFull

_POLICIES: dict[str, type[Selector]] = {
    "spin": Spin, "spin-full": SpinFull, "random": Random,
    "greedy": Greedy, "epsilon-greedy": EpsilonGreedy, "ucb": UCB, "exp3": EXP3,
    "thompson": Thompson, "hedge": Hedge, "minions": Minions}
NAMES = (*_POLICIES, "fixed:ARM")


def make(name: str, arms: Sequence[str], **options) -> Selector:
    """The policy ``name`` over ``arms``, with its ``options``; "fixed:ARM" always takes ARM.

    Raises ValueError for an unknown name, TypeError for an option that the policy does not have.
    """
    if name.startswith("fixed:"):
        return Fixed(arms, name.removeprefix("fixed:"), **options)
    if name not in _POLICIES:
        raise ValueError(f"unknown selection policy {name!r}; known: {', '.join(NAMES)}")
    return _POLICIES[name](arms, **options)
