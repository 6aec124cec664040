"""A plan of attention in words, and its width without its pieces."""

from collections.abc import Sequence

import numpy as np

from spin_core.decompose.costs import Costs
from spin_core.decompose.plan import Plan, candidates, cuts_of


def describe(plan: Plan) -> str:
    """The plan in words, and why."""
    lines = [f"{plan.strategy}: {len(plan.lengths)} requests, {plan.kv_true} keys for {sum(plan.q_lens)} queries"]
    for pool in plan.pools:
        requests = len(pool.requests)
        padding = 1 - sum(p.size for p in pool.pieces) / (pool.width * len(pool.pieces))
        lines.append(f"  {len(pool.pieces)} pieces of {requests} request{'s' * (requests > 1)}, {pool.width} keys "
                     f"wide, {padding:.0%} of them padding; {pool.queries} queries in each")
    if plan.unpooled:
        lines.append(f"  {len(plan.unpooled)} request{'s' * (len(plan.unpooled) > 1)} read whole, where "
                     f"{'they are' if len(plan.unpooled) > 1 else 'it is'} ({_some(plan.unpooled)})")
    if plan.kv_true:
        lines.append(f"  keys touched: {plan.kv_touched}, {plan.kv_touched / plan.kv_true:.2f} times those needed; "
                     f"a padded batch would touch {max(plan.lengths) * len(plan.lengths)}")
        lines.append(f"  queries touched: {plan.q_touched}, {plan.q_touched / sum(plan.q_lens):.2f} times those "
                     "given")
    if plan.seconds is not None:
        lines.append(f"  predicted: {plan.seconds * 1e6:.0f} us per layer")
    if len(plan.considered) > 1:
        best, worst = min(plan.considered.values()), max(plan.considered.values())
        lines.append(f"  {len(plan.considered)} widths weighed, {min(plan.considered)} to {max(plan.considered)} "
                     f"keys: {best * 1e6:.0f} to {worst * 1e6:.0f} us")
    return "\n".join(lines)


def cheapest_width(lengths: np.ndarray, queries: int, costs: Costs) -> int:
    """The width of the plan that "decomposed" makes for requests of ``lengths [B]`` keys and at most ``queries <=
    LARGE`` queries: the same search, without the pieces."""
    cuts = cuts_of(lengths, candidates(lengths))
    return int(cuts.wide[costs.whole_pool(cuts.pieces, cuts.merged, cuts.wide, queries).argmin()])


def _some(numbers: Sequence[int], most: int = 8) -> str:
    return ", ".join(map(str, numbers[:most])) + (", ..." if len(numbers) > most else "")
