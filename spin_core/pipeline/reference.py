"""The pipeline's schedule in a few lines: when two stages work for a batch that is cut into m micro-batches.

Each stage does one thing at a time. In every round each micro-batch is drafted for and then verified, in turn. Two
rules tie the stages together:

    verify(r, i) starts after draft(r, i)           a draft must exist before it can be verified
    draft(r + 1, i) starts after verify(r, i)       the next draft continues the text that was just committed

With one micro-batch the second rule makes the stages take turns. With more, one is verified while another is drafted
for. The code that serves (:mod:`spin_core.pipeline.micro_batches`) keeps this schedule, and is tested against it.
"""

from collections.abc import Sequence
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


def spans(draft: Sequence[float], verify: Sequence[float], rounds: int = 1, *, overlap: bool = True) -> list[Span]:
    """The spans of ``rounds`` rounds over groups whose stages take ``draft[i]`` and ``verify[i]`` seconds.

    ``overlap`` False is the sequential executor: nothing starts before all that came before has ended.
    """
    if len(draft) != len(verify) or not draft:
        raise ValueError(f"spans: one draft and one verify time per group, got {len(draft)} and {len(verify)}")
    if not all(0 <= seconds < float("inf") for seconds in (*draft, *verify)) or rounds < 1:
        raise ValueError("spans: times must be finite and not negative, and there must be at least one round")
    free = dict.fromkeys(STAGES, 0.0)           # when each stage can take on more
    committed = [0.0] * len(draft)              # when each group's last verification was done
    out = []
    for r in range(rounds):
        for i, (d, v) in enumerate(zip(draft, verify)):
            start = max(free[DRAFT] if overlap else max(free.values()), committed[i])
            drafted = free[DRAFT] = start + d
            begin = max(free[VERIFY], drafted)
            committed[i] = free[VERIFY] = begin + v
            out += [Span(DRAFT, i, r, start, drafted), Span(VERIFY, i, r, begin, committed[i])]
    return out
