"""The ceilings: selection with knowledge of the recording.

* oracle-request: the best arm of every request, in hindsight, for its whole life;
* oracle-step: the best arm at every step, each with the draft length it always has;
* oracle-length: the best arm at every step, proposing exactly what will be accepted (arXiv 2601.11580).

All arms emit the same text, so the best arm takes the least time. Requests of a batch share passes, so the best arm of
one depends a little on the others. We take a pass's price per request from the number that share it, find the best
arms at these prices, count again, and let replays decide between a few such plans. The ceilings of single steps switch
for free, which no system can.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from spin_core.select.base import NONE, RequestView, Selector
from spin_core.lab.simulate.checks import whole
from spin_core.lab.simulate.recording import MAX_GAMMA, Recording, verifications
from spin_core.lab.simulate.replay import Replay, replay


class Plan(Selector):
    """Follows a ``plan``, even where the drafter will find nothing."""

    def __init__(self, arms: Sequence[str], plan, **options) -> None:
        super().__init__(arms, **options)
        self.plan = plan

    def only_found(self, weights: ndarray, views: Sequence[RequestView]) -> ndarray:
        return weights


class Planned(Plan):
    """Follows a plan by request, ``weights [R, arms]``, as :func:`replay` numbers them."""

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        return self.plan[[s.request for s in views]]


class PlannedSteps(Plan):
    """Follows a plan by position: ``arms`` and ``gammas``, one array per request."""

    def weights(self, views: Sequence[RequestView]) -> ndarray:
        weights = np.zeros((len(views), len(self.arms)))
        weights[np.arange(len(views)), [self.plan[s.request][0][s.emitted] for s in views]] = 1
        return weights

    def lengths(self, views: Sequence[RequestView], arms: ndarray) -> ndarray:
        return np.array([self.plan[s.request][1][s.emitted] for s in views])


@dataclass(frozen=True)
class Prices:
    """Seconds per request, at a batch of ``batch``: of a step, of a verified row more, and of a drafted position of
    each arm when ``sharing[arm]`` requests share its pass."""

    step: float
    row: float
    draft: ndarray

    @staticmethod
    def of(recording: Recording, batch: int, rows: float, sharing: ndarray) -> "Prices":
        """``rows``: drafted rows per request around which the target's pass is linearised."""
        target = recording.passes["target"].table(batch * (MAX_GAMMA + 1))
        most = max(batch + 1, min(round(batch * (1 + rows)), batch * (MAX_GAMMA + 1)))
        row = max(0.0, (target[most] - target[batch]) / (most - batch))
        draft = []
        for arm, shared in zip(recording.arms, sharing):
            table, count = recording.passes[arm].table(batch), min(max(shared, 1.0), batch)
            draft.append(np.interp(count, np.arange(batch + 1), table) / count)
        return Prices(target[batch] / batch, row, np.array([*draft, 0.0]))


def chain_counts(recording: Recording, arm: int, gamma: int) -> tuple[ndarray, ndarray, ndarray]:
    """(steps, drafted rows, drafting passes) of every request if ``arm`` drafts ``gamma`` tokens all the way, ``[R]``.

    The closed form of a fixed policy: chains follow one another, each begins where the last one ended.
    """
    accepted, proposed = recording.accepted[arm].tolist(), recording.proposed[arm].tolist()
    lookup, found = recording.arms[arm] in recording.lookups, recording.lookup_finds(recording.arms[arm])
    out = np.zeros((3, len(recording)))
    for r, (start, end) in enumerate(itertools.pairwise(recording.starts.tolist())):
        steps = verifications(proposed[start:end], accepted[start:end], gamma)
        asked = [(start + at, min(gamma, end - start - at - 1)) for at, _, _ in steps]
        passes = [n > 0 if lookup else n * (found is None or not found[at]) for at, n in asked]
        out[:, r] = len(steps), sum(drafted for _, drafted, _ in steps), sum(passes)
    return out[0], out[1], out[2]


def oracle_request(recording: Recording, gammas: Mapping[str, int], *, batch: int = 8) -> ndarray:
    """The best arm of every request, in hindsight: the plan, tokens per second ``[R, arms + 1]``, "none" last.

    Replayed in the recorded order it is at least as fast as every fixed arm: these are among the plans it picks from.
    """
    _check(recording, gammas, batch)
    arms, lengths = [*recording.arms, NONE], recording.lengths
    counts = [chain_counts(recording, a, gammas[name]) for a, name in enumerate(recording.arms)]
    counts.append((lengths, np.zeros(len(lengths)), np.zeros(len(lengths))))
    longest = int(recording.prompts.max())
    reading = np.stack([0 * recording.prompts if name in (*recording.lookups, NONE) else
                        recording.passes[name].table(longest)[recording.prompts] for name in arms], 1)
    plans: dict[bytes, ndarray] = {}
    for size in range(1, min(3, len(arms)) + 1):
        for allowed in itertools.combinations(range(len(arms)), size):
            sharing = np.full(len(arms), batch / size)
            for _ in range(4):
                prices = Prices.of(recording, batch, 2, sharing)
                times = np.stack([s * prices.step + r * prices.row + p * prices.draft[a]
                                  for a, (s, r, p) in enumerate(counts)], 1) + reading
                rates = lengths[:, None] / times
                rates[:, [a for a in range(len(arms)) if a not in allowed]] *= 1e-6
                best = rates.argmax(1)
                sharing = batch * np.bincount(best, minlength=len(arms)) / len(best)
            plans[best.tobytes()] = rates
    return max(plans.values(), key=lambda plan: replay(recording, Planned(arms, plan, gamma=gammas),
                                                       batch=batch).goodput)


def oracle_steps(recording: Recording, gammas: Mapping[str, int] | None, *, batch: int = 8) -> Replay:
    """The best arm at every step, each with its ``gammas``; None: with exactly as many tokens as will be accepted.

    Dynamic programming from the end of every answer: the time left at a position is that of the best step there and
    what is left where it ends. Switching is free. At batch 1, where no pass is shared, nothing can be faster.
    """
    _check(recording, gammas, batch)
    arms = [*recording.arms, NONE]
    sharing, runs = np.full(len(arms), float(batch)), []
    for _ in range(3):
        prices = Prices.of(recording, batch, 2, sharing)
        plan = [_best_steps(recording, r, gammas, prices) for r in range(len(recording))]
        runs.append(replay(recording, PlannedSteps(arms, plan, gamma=MAX_GAMMA), batch=batch, free_switching=True))
        for arm in range(len(arms)):
            _, sizes = np.unique(runs[-1].step[runs[-1].arm == arm], return_counts=True)
            sharing[arm] = sizes.mean() if len(sizes) else batch
    return max(runs, key=lambda run: run.goodput)


def _check(recording: Recording, gammas: Mapping[str, int] | None, batch: int) -> None:
    whole("oracle", 1, batch=batch)
    for name in recording.arms if gammas is not None else ():
        whole("oracle", 0, **{f"gamma of {name}": gammas.get(name)})


def _best_steps(recording: Recording, r: int, gammas: Mapping[str, int] | None, prices: Prices) \
        -> tuple[ndarray, ndarray]:
    """Arm and draft length at every position of answer r."""
    start, end = int(recording.starts[r]), int(recording.starts[r + 1])
    length = end - start
    left, arms, lengths = [0.0] * (length + 1), np.zeros(length, int), np.zeros(length, int)
    drafters = []
    for a, name in enumerate(recording.arms):
        found = recording.lookup_finds(name)
        drafters.append((a, name in recording.lookups, [False] * length if found is None else found[start:end].tolist(),
                         gammas and gammas[name], recording.proposed[a, start:end].tolist(),
                         recording.accepted[a, start:end].tolist()))
    for at in range(length - 1, -1, -1):
        best, choice = prices.step + left[at + 1], (len(recording.arms), 0)
        for a, lookup, found, gamma, proposed, accepted in drafters:
            asked = min(accepted[at] if gamma is None else gamma, length - at - 1)
            if asked == 0:
                continue
            drafted = min(asked, proposed[at])
            passes = 1 if lookup else 0 if found[at] else asked
            cost = prices.step + drafted * prices.row + passes * prices.draft[a] + \
                left[at + min(drafted, accepted[at]) + 1]
            if cost < best:
                best, choice = cost, (a, asked)
        left[at], (arms[at], lengths[at]) = best, choice
    return arms, lengths
