"""The two-stage schedule: its two rules, its bounds, and what is read off it."""

from __future__ import annotations

from collections import Counter

import pytest
import tiny
from hypothesis import given, strategies as st

from spin_core.engine import Engine
from spin_core.lab.schedule import DRAFT, STAGES, VERIFY, Schedule, Span, simulate
from spin_core.lab.simulate.micro_batches import split_time, steady
from spin_core.pipeline.executor import Executor
from spin_core.request import SamplingParams

TIMES = st.lists(st.tuples(st.floats(0.01, 5), st.floats(0.01, 5)), min_size=1, max_size=6)


def at(schedule: Schedule, stage: str, group: int, round_: int) -> Span:
    return next(s for s in schedule.spans if (s.stage, s.group, s.round) == (stage, group, round_))


@given(TIMES, st.integers(1, 5), st.booleans())
def test_the_rules_of_the_pipeline(times, rounds, overlap):
    draft, verify = zip(*times)
    schedule = simulate(draft, verify, rounds, overlap=overlap)
    assert len(schedule.spans) == 2 * rounds * len(times)
    for span in schedule.spans:
        assert span.seconds == pytest.approx((draft if span.stage == DRAFT else verify)[span.group])
        if span.stage == VERIFY:
            assert span.start >= at(schedule, DRAFT, span.group, span.round).end
        elif span.round:
            assert span.start >= at(schedule, VERIFY, span.group, span.round - 1).end
    for stage in STAGES:
        line = sorted((s.start, s.end) for s in schedule.spans if s.stage == stage)
        assert all(a[1] <= b[0] + 1e-12 for a, b in zip(line, line[1:])), "one thing at a time"
    total = rounds * (sum(draft) + sum(verify))
    assert schedule.ideal - 1e-9 <= schedule.seconds <= total + 1e-9
    if not overlap or len(times) == 1:
        assert schedule.seconds == pytest.approx(total)
    for stage in STAGES:
        waited = sum(b - a for a, b in schedule.bubbles(stage))
        assert waited + schedule.busy(stage) == pytest.approx(schedule.seconds)


@given(TIMES)
def test_the_steady_state_keeps_its_bounds(times):
    draft, verify = zip(*times)
    bound = max(sum(draft), sum(verify), max(d + v for d, v in times))
    assert bound - 1e-9 <= steady(draft, verify) <= sum(draft) + sum(verify) + 1e-9


@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize("draft, verify", [(1, 1), (1, 3), (4, 1)])
def test_equal_groups_reach_the_bound(draft, verify, count):
    assert steady([draft / count] * count, [verify / count] * count) == pytest.approx(
        max(draft, verify, (draft + verify) / count))


def test_one_group_takes_turns_and_two_overlap():
    alone, pair = simulate([1], [1], 10), simulate([0.5] * 2, [0.5] * 2, 10)
    assert alone.seconds == 20 and alone.efficiency == 0.5 and alone.busy_share(DRAFT) == 0.5
    assert pair.seconds == 10.5 and pair.efficiency == pytest.approx(10 / 10.5)
    assert pair.bubbles(VERIFY) == [(0, 0.5)] and pair.bubbles(DRAFT) == [(10, 10.5)]


def test_splitting_costs_what_does_not_scale():
    assert split_time(8, 0, [0.25] * 4) == [2] * 4
    assert split_time(8, 1, [0.25] * 4) == [8] * 4
    assert split_time(8, 0.5, [0.5, 0.5]) == [6, 6]

    def seconds(fixed: float, shares: list[float]) -> float:
        return steady(*[split_time(1, fixed, shares)] * 2)

    free, dear = ([seconds(fixed, [1 / m] * m) for m in (1, 2, 4, 8)] for fixed in (0, 0.6))
    assert free[0] == pytest.approx(2) and free[1] == pytest.approx(1) == pytest.approx(free[2])
    assert dear[1] < dear[0] and dear[3] > dear[0], "first it pays, then it does not"
    assert seconds(0, [2 / 3, 1 / 3]) == pytest.approx(4 / 3), "two of three requests in one group"


def test_spans_that_overlap_count_once_and_windows_cut():
    spans = [Span(DRAFT, 0, 0, 0, 2), Span(DRAFT, 0, 0, 1, 3), Span(VERIFY, 0, 0, 3, 5)]
    schedule = Schedule(spans)
    assert schedule.busy(DRAFT) == 3 and schedule.ideal == 3 and schedule.efficiency == 0.6
    part = schedule.between(2.5, 4)
    assert part.busy(DRAFT) == 0.5 and part.busy(VERIFY) == 1 and part.bubbles(DRAFT) == [(3, 4)]
    idle = schedule.between(7, 8)
    assert idle.bubbles(DRAFT) == [(7, 8)] and idle.efficiency == 0


@pytest.mark.parametrize("call", [lambda: simulate([], []), lambda: simulate([1], [1, 2]), lambda: simulate([-1], [1]),
                                  lambda: simulate([1], [1], 0), lambda: split_time(1, 2, [1]),
                                  lambda: Schedule([])])
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(ValueError):
        call()


# ---- the code that serves keeps the schedule

class VirtualClock(Executor):
    """Runs both stages at once, and dates them on a clock on which micro-batch i drafts for ``draft[i]`` seconds and is
    verified for ``verify[i]``. The clock moves when the owner waits for a flight."""

    def __init__(self, draft, verify) -> None:
        super().__init__()
        self.times, self.now, self.spans = {DRAFT: draft, VERIFY: verify}, 0.0, []
        self.free, self.rounds = dict.fromkeys(STAGES, 0.0), Counter()

    def _start(self, flight, draft, verify) -> None:
        flight.draft(draft)
        flight.verify(verify)
        start, number = self.now, self.rounds[flight.group]
        self.rounds[flight.group] += 1
        for stage in STAGES:
            begin = max(start, self.free[stage])
            start = self.free[stage] = begin + self.times[stage][flight.group]
            self.spans.append(Span(stage, flight.group, number, begin, start))
        flight.end = start

    def _landed(self, flight) -> None:
        self.now = max(self.now, flight.end)


@pytest.mark.parametrize("draft, verify", [((1.0, 2.0), (3.0, 1.0)), ((1.0, 1.0, 1.0), (2.0, 2.0, 2.0)),
                                           ((4.0, 0.5, 1.0), (0.5, 3.0, 1.0)), ((1.0,) * 5, (0.25,) * 5)])
def test_micro_batches_are_launched_when_the_reference_says(draft, verify):
    count, rounds = len(draft), 6
    engine = Engine(tiny.family(), "none", pipeline=count, max_batch=count)
    clock = engine.pipeline._executor = VirtualClock(draft, verify)
    requests = [engine.submit([i, 4], SamplingParams(max_new_tokens=rounds, stop_ids=())) for i in range(count)]
    for _ in range(count * rounds):
        engine.step()
    reference = simulate(draft, verify, rounds)
    assert all(r.finished for r in requests)
    assert [s for s in clock.spans if s.round < rounds - 1] == \
        [s for s in reference.spans if s.round < rounds - 1][:len(clock.spans)]
