"""What a selector believed in a step, and why it chose: for lessons and for debugging.

>>> steps = watch(engine.selection.selector)        # one Explanation per step, from now on
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from spin_core.select import Selector


class Explanation(NamedTuple):
    """One step of a selector with B requests and A arms.

    ``requests [B]``: their ids, rising. ``arms [A]``: names, "none" among them. ``estimate [B, A]``: what the policy
    expects of each pair, in ``unit``; NaN where it has no opinion, for example because the pair was never tried.
    ``count [B, A]``: how often the request has drafted with the arm. ``ready [B, A]``: the drafter has read the text,
    as far as the selector is told. ``found [B, A]``: the drafter would propose at least one token. ``places [A]``: how
    many requests the arm may serve. ``current [B]``: the arm of the request's last step, -1 before its first.
    ``weights [B, A]``: the matching maximises their sum. ``chosen [B]``: the arm that it gave each request; ``gammas
    [B]``: the draft lengths, where 0 is plain decoding. ``slot``: (number of the epoch, place in it, slots of
    exploration, slots of exploitation), None for a policy without epochs. ``drafted``, ``accepted``, ``earned``
    (emitted tokens) and ``seconds`` (the request's share of the step), ``[B]``: how the step went; NaN until observed.
    """

    requests: list[int]
    arms: list[str]
    estimate: ndarray
    unit: str
    count: ndarray
    ready: ndarray
    found: ndarray
    places: ndarray
    current: ndarray
    weights: ndarray
    chosen: ndarray
    gammas: ndarray
    slot: tuple[int, int, int, int] | None
    drafted: ndarray
    accepted: ndarray
    earned: ndarray
    seconds: ndarray

    @property
    def exploring(self) -> bool:
        """Whether the slot is one of exploration."""
        return self.slot is not None and self.slot[1] < self.slot[2]

    @property
    def why(self) -> list[str]:
        """In a word for each request: why it got its arm."""
        possible = (self.places > 0) & self.found & ~np.isnan(self.estimate)
        estimate = np.where(possible, self.estimate, -np.inf)
        return [_why(row, chosen, self.exploring, best == chosen or row[best] == row[chosen])
                for row, chosen, best in zip(estimate, self.chosen.tolist(), estimate.argmax(1).tolist())]

    def observed(self, outcomes: Sequence) -> "Explanation":
        """The same step with how it went for those of its requests that are among ``outcomes``."""
        row = {request: b for b, request in enumerate(self.requests)}
        how = np.stack([self.drafted, self.accepted, self.earned, self.seconds])
        for o in outcomes:
            if o.request in row:
                how[:, row[o.request]] = o.drafted, o.accepted, o.emitted, o.draft_seconds + o.verify_seconds
        return self._replace(**dict(zip(("drafted", "accepted", "earned", "seconds"), how)))


def _why(estimate: ndarray, chosen: int, exploring: bool, best: bool) -> str:
    if np.isneginf(estimate).all():
        return "no opinion"
    if np.isneginf(estimate[chosen]):
        return "never tried"
    if best:
        return "best estimate"
    return "explores" if exploring else "for the batch"     # places are few, a draw, or drafters that share passes


def explain(selector: Selector) -> Explanation | None:
    """What ``selector`` believes, and why it chose as it did in the last ``assign``; None before the first.

    Called right after ``assign`` it shows the beliefs by which the policy chose; after ``observe``, those that it has
    by then.
    """
    if selector.assigned is None:
        return None
    views, places, weights, arms, gammas = selector.assigned
    estimate, count = selector.beliefs(views)
    found = np.ones(weights.shape, bool)
    ready, current = found.copy(), np.full(len(views), -1)
    for b, view in enumerate(views):
        for table, empty in ((found, (name for name, tokens in view.found.items() if not tokens)),
                             (ready, (name for name, seconds in view.unread.items() if seconds > 0))):
            table[b, [selector.index[name] for name in empty if name in selector.index]] = False
        current[b] = selector.index.get(view.current, -1)
    return Explanation([v.request for v in views], list(selector.arms), estimate, selector.unit, count, ready, found,
                       places.copy(), current, np.array(weights), arms.copy(), np.array(gammas), selector.slot,
                       *np.full((4, len(views)), np.nan))


def watch(selector: Selector) -> list[Explanation]:
    """From now on keep an explanation of every step of ``selector``, in a simulation or in an engine: the list that is
    returned grows. What a step earned is filled in once it is observed, also where micro-batches overlap."""
    steps: list[Explanation] = []
    last: dict[int, int] = {}               # request -> its latest step
    assign, observe = selector.assign, selector.observe

    def watched_assign(views, capacities=None):
        choices = assign(views, capacities)
        if views:
            last.update(dict.fromkeys((v.request for v in views), len(steps)))
            steps.append(explain(selector))
        return choices

    def watched_observe(outcomes):
        for number in {last[o.request] for o in outcomes if o.request in last}:
            steps[number] = steps[number].observed(outcomes)
        observe(outcomes)

    selector.assign, selector.observe = watched_assign, watched_observe
    return steps
