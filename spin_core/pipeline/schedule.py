"""Who works when: spans of time on two stages, what they say about a pipeline, and a simulator that makes them.

Two stages, drafting and verifying, each do one thing at a time. A batch is cut into m groups (micro-batches); in every
round each group is drafted for and then verified, groups in turn. Two rules tie the stages together:

    verify(r, i) starts after draft(r, i)           a draft must exist before it can be checked
    draft(r + 1, i) starts after verify(r, i)       the next draft continues the text that was just committed

With one group the second rule makes the stages take turns. With more, one group is verified while another is drafted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DRAFT, VERIFY = "draft", "verify"
STAGES = (DRAFT, VERIFY)


@dataclass(frozen=True)
class Span:
    """One stage at work for one group: from ``start`` to ``end``, in seconds."""

    stage: str
    group: int
    round: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class Schedule:
    """Spans of both stages, simulated or measured, and what can be read off them.

    ``start`` and ``end`` bound the time that is looked at; by default it runs from the first span to the last.
    """

    spans: list[Span]
    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        if not self.spans and (self.start is None or self.end is None):
            raise ValueError("a schedule needs at least one span")
        self.start = min(s.start for s in self.spans) if self.start is None else self.start
        self.end = max(s.end for s in self.spans) if self.end is None else self.end

    @property
    def seconds(self) -> float:
        """How long it all took."""
        return self.end - self.start

    def busy(self, stage: str) -> float:
        """Seconds in which the stage worked."""
        return sum(end - start for start, end in self._worked(stage))

    def busy_share(self, stage: str) -> float:
        """The share of the time in which the stage worked."""
        return self.busy(stage) / self.seconds if self.seconds else 0.0

    def bubbles(self, stage: str) -> list[tuple[float, float]]:
        """When the stage waited, as (start, end)."""
        edges = [self.start, *(edge for span in self._worked(stage) for edge in span), self.end]
        return [(a, b) for a, b in zip(edges[::2], edges[1::2]) if b > a]

    @property
    def ideal(self) -> float:
        """Seconds if the stages overlapped perfectly: the busier stage never waits."""
        return max(map(self.busy, STAGES))

    @property
    def efficiency(self) -> float:
        """Overlap efficiency: ideal / achieved, 1 at best. Stages that take turns evenly reach 1/2."""
        return self.ideal / self.seconds if self.seconds else 1.0

    def between(self, start: float, end: float) -> "Schedule":
        """What happened from ``start`` to ``end``; spans that reach across are cut."""
        cut = [Span(s.stage, s.group, s.round, max(s.start, start), min(s.end, end)) for s in self.spans]
        return Schedule([s for s in cut if s.end > s.start], start, end)

    def _worked(self, stage: str) -> list[tuple[float, float]]:
        """The stage's spans in order, those that touch or overlap joined."""
        joined: list[tuple[float, float]] = []
        for start, end in sorted((s.start, s.end) for s in self.spans if s.stage == stage):
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        return joined


def simulate(draft: Sequence[float], verify: Sequence[float], rounds: int = 1, *, overlap: bool = True) -> Schedule:
    """The schedule of ``rounds`` rounds over groups whose stages take ``draft[i]`` and ``verify[i]`` seconds.

    ``overlap`` False is the sequential executor: nothing starts before all that came before has ended.
    """
    if len(draft) != len(verify) or not draft:
        raise ValueError(f"simulate: one draft and one verify time per group, got {len(draft)} and {len(verify)}")
    if min(*draft, *verify) < 0 or rounds < 1:
        raise ValueError("simulate: times must not be negative, and there must be at least one round")
    free = dict.fromkeys(STAGES, 0.0)           # when each stage can take on more
    committed = [0.0] * len(draft)              # when each group's last verification was done
    spans = []
    for r in range(rounds):
        for i, (d, v) in enumerate(zip(draft, verify)):
            start = max(free[DRAFT] if overlap else max(free.values()), committed[i])
            drafted = free[DRAFT] = start + d
            begin = max(free[VERIFY], drafted)
            committed[i] = free[VERIFY] = begin + v
            spans += [Span(DRAFT, i, r, start, drafted), Span(VERIFY, i, r, begin, committed[i])]
    return Schedule(spans)


def steady(draft: Sequence[float], verify: Sequence[float]) -> float:
    """Seconds per round once the pipeline is full.

    Every round must give each stage its sum, and every group both of its own stages, one after the other:
    max(sum draft, sum verify, max_i (draft_i + verify_i)) is a bound, and reached when the groups are alike.
    """
    rounds = 4 * len(draft) + 8
    ends = [s.end for s in simulate(draft, verify, rounds).spans if s.stage == VERIFY and s.group == len(draft) - 1]
    half = rounds // 2
    return (ends[-1] - ends[half - 1]) / (rounds - half)


def split_time(seconds: float, fixed: float, shares: Iterable[float]) -> list[float]:
    """What a stage that takes ``seconds`` for the whole batch takes for parts of it.

    ``fixed`` of the time does not depend on how many requests there are (reading the weights, launching kernels),
    the rest is shared out; ``shares`` are the parts of the batch and sum to one. With ``fixed`` 0 splitting is free,
    with 1 every part costs as much as the whole batch.
    """
    if not 0 <= fixed <= 1 or seconds < 0:
        raise ValueError(f"split_time: seconds >= 0 and a fixed share in 0 .. 1, got {seconds} and {fixed}")
    return [seconds * (fixed + (1 - fixed) * share) for share in shares]


def throughput(draft: float, verify: float, count: int, *, draft_fixed: float = 0.0, verify_fixed: float = 0.0,
               batch: int | None = None) -> float:
    """Batches served per second with ``count`` equal micro-batches, in the steady state.

    ``draft`` and ``verify`` are seconds for the undivided batch. With ``batch`` given, its requests cannot be cut, so
    the groups differ by one where ``count`` does not divide it.
    """
    shares = [1 / count] * count if batch is None else [len(range(i, batch, count)) / batch for i in range(count)]
    return 1 / steady(split_time(draft, draft_fixed, shares), split_time(verify, verify_fixed, shares))
