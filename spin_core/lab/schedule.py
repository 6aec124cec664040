"""Spans of time on the pipeline's two stages, and what can be read off them: bubbles, shares, overlap efficiency."""

from collections.abc import Sequence
from dataclasses import dataclass

from spin_core.pipeline.reference import DRAFT, STAGES, VERIFY, Span, spans

__all__ = ["DRAFT", "STAGES", "VERIFY", "Schedule", "Span", "simulate"]


def simulate(draft: Sequence[float], verify: Sequence[float], rounds: int = 1, *, overlap: bool = True) -> "Schedule":
    """The schedule of the reference (:func:`spin_core.pipeline.reference.spans`)."""
    return Schedule(spans(draft, verify, rounds, overlap=overlap))


@dataclass
class Schedule:
    """Spans of both stages, computed or measured, and what can be read off them.

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
