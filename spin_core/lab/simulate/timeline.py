"""The schedule of a run that happened: from the events of an engine's trace, pipelined or not."""

from collections import Counter
from collections.abc import Iterable, Sequence

from spin_core.lab.schedule import DRAFT, VERIFY, Schedule, Span
from spin_core.trace import Event


def replay(events: Iterable[Event]) -> Schedule:
    """When each stage worked, in seconds since the trace began: passes of drafters, and of the target.

    ``events`` may be those of a whole trace or of a part of it. Micro-batches are the groups; steps in which the
    engine was not cut into any are group 0. Raises ValueError when nothing was verified.
    """
    spans: dict[tuple, Span] = {}
    rounds: Counter[int] = Counter()
    number: dict[int, int] = {}                 # step -> which round of its group it is
    for event in events:
        if event.kind != "step":
            continue
        group = event.micro_batch
        if event.step not in number:
            number[event.step] = rounds[group]
            rounds[group] += 1
            end = event.target_began + event.target_seconds + event.verify_seconds
            spans[event.step, VERIFY] = Span(VERIFY, group, number[event.step], event.target_began, end)
        if event.draft_seconds:
            end = event.draft_began + event.draft_seconds
            spans[event.step, event.drafter] = Span(DRAFT, group, number[event.step], event.draft_began, end)
    if not spans:
        raise ValueError("replay: these events tell of no verification")
    return Schedule(sorted(spans.values(), key=lambda span: span.start))


def last_run(events: Sequence[Event]) -> list[Event]:
    """The events since the engine was last without a request."""
    begin, live = 0, set()
    for i, event in enumerate(events):
        if event.kind == "submit":
            if not live:
                begin = i
            live.add(event.request)
        elif event.kind == "finish":
            live.discard(event.request)
    return list(events[begin:])
