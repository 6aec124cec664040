"""What cutting a batch into micro-batches would bring, from the seconds that its two stages take as a whole."""

from collections.abc import Iterable, Sequence

from spin_core.lab.schedule import VERIFY, simulate
from spin_core.lab.simulate.checks import finite, within


def split_time(seconds: float, fixed: float, shares: Iterable[float]) -> list[float]:
    """What a stage that takes ``seconds`` for the whole batch takes for parts of it.

    ``fixed`` of the time does not depend on how many requests there are (reading the weights, launching kernels),
    the rest is shared out; ``shares`` are the parts of the batch and sum to one. With ``fixed`` 0 splitting is free,
    with 1 every part costs as much as the whole batch.
    """
    finite("split_time", seconds=seconds)
    shares = list(shares)
    for share in (fixed, *shares):
        within("split_time", 0, 1, share=share)
    return [seconds * (fixed + (1 - fixed) * share) for share in shares]


def steady(draft: Sequence[float], verify: Sequence[float]) -> float:
    """Seconds per round once the pipeline is full.

    Every round must give each stage its sum, and every group both of its own stages, one after the other:
    max(sum draft, sum verify, max_i (draft_i + verify_i)) is a bound, and reached when the groups are alike.
    """
    rounds = 4 * len(draft) + 8
    ends = [s.end for s in simulate(draft, verify, rounds).spans if s.stage == VERIFY and s.group == len(draft) - 1]
    half = rounds // 2
    return (ends[-1] - ends[half - 1]) / (rounds - half)
