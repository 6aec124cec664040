"""The result of a simulated run: one row per step of a group, and the times of every request."""

from dataclasses import dataclass

from numpy import ndarray

from spin_core.lab.schedule import DRAFT, VERIFY, Schedule, Span
from spin_core.pipeline.heuristic import Decision

STEP_FIELDS = ("start", "drafted", "begin", "end", "size", "rows", "needed", "touched", "emitted", "draft", "group")


@dataclass
class Run:
    """What happened. ``steps``: one array per field of ``STEP_FIELDS``, one entry per step of a group; the first
    four are times: drafting begins and ends, verification begins and ends. ``needed``, ``touched``: keys without
    and with padding; ``draft``: seconds of drafting, were the group alone.
    ``arrived``, ``admitted``, ``finished``: times by request. ``served``: steps by drafter. ``events``: one
    (step, request, drafter, drafted, accepted) per request and step, if asked for.
    """

    steps: dict[str, ndarray]
    lengths: ndarray
    arrived: ndarray
    admitted: ndarray
    finished: ndarray
    served: dict[str, int]
    decisions: list[Decision]
    events: list[tuple[int, int, str, int, int]]

    @property
    def tokens(self) -> int:
        """Emitted, all requests together."""
        return int(self.steps["emitted"].sum())

    @property
    def seconds(self) -> float:
        """From the first arrival to the last token."""
        return float(self.finished.max() - self.arrived.min())

    @property
    def goodput(self) -> float:
        """Emitted tokens per second."""
        return self.tokens / self.seconds

    @property
    def waiting(self) -> ndarray:
        """Seconds from arrival until there was room in the batch, by request."""
        return self.admitted - self.arrived

    @property
    def latency(self) -> ndarray:
        """Seconds from arrival to the last token, by request."""
        return self.finished - self.arrived

    @property
    def request_steps(self) -> int:
        return int(self.steps["size"].sum())

    @property
    def padding(self) -> float:
        """The share of padding among the keys that are computed on."""
        return 1 - float(self.steps["needed"].sum() / self.steps["touched"].sum())

    def schedule(self) -> Schedule:
        """When each stage worked, for a Gantt chart."""
        s, rounds = self.steps, {}
        spans = []
        for i, group in enumerate(s["group"].astype(int).tolist()):
            number = rounds[group] = rounds.get(group, -1) + 1
            for stage, start, end in ((DRAFT, "start", "drafted"), (VERIFY, "begin", "end")):
                spans.append(Span(stage, group, number, float(s[start][i]), float(s[end][i])))
        return Schedule(spans)
