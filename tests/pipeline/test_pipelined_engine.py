"""The pipelined engine: the sequential engine's texts, under delays, faults and cancellations, and every wait ends."""

from __future__ import annotations

import functools
import gc
import random
import threading
import time
import warnings
import weakref

import pytest
import tiny
from hypothesis import given, settings, strategies as st

from spin_core.engine import Engine
from spin_core.pipeline import DRAFT, VERIFY, StageTimeout
from spin_core.lab.simulate.timeline import last_run, replay
from spin_core.request import FinishReason, SamplingParams

GREEDY = SamplingParams(max_new_tokens=10, stop_ids=())
SAMPLED = SamplingParams(temperature=1.0, top_k=9, max_new_tokens=10, stop_ids=())
PATIENCE = 30.0


def pipelined(count=2, drafter="near", **options) -> Engine:
    """An engine whose waits end soon enough for a test. "restless": another count after every round."""
    restless = count == "restless"
    engine = Engine(options.pop("family", tiny.family()), None if "selector" in options else drafter, 3,
                    pipeline="auto" if restless else count, **options)
    if restless:
        engine.pipeline.heuristic = Restless(engine.max_batch)
    limit(engine, PATIENCE)
    return engine


class Restless:
    """Stands in for the heuristic: whatever it may decide, no text may depend on it."""

    def __init__(self, most: int) -> None:
        self.most, self.count, self.dice = most, 1, random.Random(most)

    def observe(self, *round_) -> None:
        self.count = self.dice.randint(1, self.most)


def limit(engine: Engine, seconds: float) -> None:
    make = engine.pipeline._get_executor

    def limited():
        executor = make()
        executor.limit = seconds
        return executor

    engine.pipeline._get_executor = limited


def drain(engine: Engine) -> None:
    deadline = time.monotonic() + 4 * PATIENCE
    while engine.queue or engine.running:
        engine.step()
        assert time.monotonic() < deadline, "no progress"


def texts(engine: Engine, jobs) -> list[list[int]]:
    """Serve (prompt, params, drafter) with some requests arriving later; their outputs."""
    requests = []
    for prompt, params, drafter in jobs:
        requests.append(engine.submit(prompt, params, drafter=drafter))
        if len(requests) % 3 == 0:
            engine.step()
    drain(engine)
    tiny.assert_sound(engine, requests)
    for request in requests:            # one micro-batch is the step without a pipeline: so compare with plain decoding
        if request.params.greedy:
            tiny.assert_greedy(engine.family.target, request, stop_ids=())
    return [r.output_ids for r in requests]


@functools.cache
def mixed(drafters: tuple[str, ...] = ("near",), number: int = 8) -> tuple[list, list[list[int]]]:
    """Jobs, every other one sampled, and their texts without a pipeline."""
    jobs = [([i, 4, i], (GREEDY, SAMPLED.with_(seed=i))[i % 2], drafters[i % len(drafters)]) for i in range(number)]
    return jobs, texts(Engine(tiny.family(), "near", 3), jobs)


def slow_down(engine: Engine, seed: int, most: float = 1e-3) -> None:
    """Random delays in every pass of the target and of the drafters."""
    dice = random.Random(seed)

    def delayed(call):
        def later(*args, **kwargs):
            time.sleep(dice.random() * most)
            return call(*args, **kwargs)
        return later

    engine.target.forward = delayed(engine.target.forward)
    for name in tiny.DRAFTERS:
        drafter = engine.get_drafter(name)
        drafter.propose = delayed(drafter.propose)


JOBS = st.lists(st.tuples(st.lists(st.integers(0, tiny.VOCAB - 1), min_size=1, max_size=12),
                          st.builds(lambda p, s, n: p.with_(seed=s, max_new_tokens=n),
                                    st.sampled_from([GREEDY, SAMPLED]),
                                    st.integers(0, 99), st.integers(1, 10)),
                          st.sampled_from(tiny.DRAFTERS)), min_size=1, max_size=7)


@settings(max_examples=8, deadline=None)
@given(JOBS, st.sampled_from([1, 2, 3, 5, "auto", "restless"]), st.sampled_from(["balanced", "drafter", "length"]),
       st.integers(1, 6), st.sampled_from([3, 512]), st.integers(0, 2**20))
def test_the_same_texts_under_random_delays(jobs, count, grouping, max_batch, chunk, seed):
    sizes = dict(max_batch=max_batch, prefill_chunk=chunk)
    expected = texts(Engine(tiny.family(), "near", 3, **sizes), jobs)
    engine = pipelined(count, grouping=grouping, **sizes)
    slow_down(engine, seed)
    assert texts(engine, jobs) == expected


def test_fed_drafters_read_the_states_of_their_own_group():
    family = tiny.fed_family()
    jobs = [([i, 4, i + 1], (GREEDY, SAMPLED.with_(seed=i))[i % 2], "fed") for i in range(6)]
    expected = texts(Engine(family, "fed", 3, max_batch=6), jobs)
    for count in (3, "restless"):
        assert texts(pipelined(count, "fed", family=family, max_batch=6), jobs) == expected


@pytest.mark.parametrize("count", [1, 3, "auto"])
def test_an_engine_without_work_does_nothing(count):
    engine = pipelined(count)
    assert engine.step() == [] and engine.generate([]) == [] and engine.trace.events == []
    engine.generate([[1, 2]], GREEDY.with_(max_new_tokens=0))
    assert engine.step() == []
    engine.generate([[1, 2]], GREEDY)
    assert engine.step() == []
    tiny.assert_idle(engine)


def test_the_stages_overlap_and_the_trace_tells():
    engine = pipelined(3, max_batch=6)
    drafting, seen = threading.Event(), []
    forward, propose = engine.target.forward, engine.drafters["near"].propose

    def announce(*args):
        drafting.set()
        return propose(*args)

    def look(*args):
        drafting.clear()
        seen.append(drafting.wait(0.2))         # does someone begin to draft while we verify?
        return forward(*args)

    engine.drafters["near"].propose, engine.target.forward = announce, look
    requests = engine.generate([[i, 4] for i in range(6)], GREEDY)
    assert sum(seen) > len(seen) / 4        # a busy machine may be late now and then; without overlap it is never
    tiny.assert_sound(engine, requests)
    steps = [e for e in engine.trace.events if e.kind == "step"]
    assert {e.micro_batches for e in steps} >= {3} and {e.micro_batch for e in steps} == {0, 1, 2}
    schedule = replay(engine.trace.events)
    for stage in (DRAFT, VERIFY):
        line = [s for s in schedule.spans if s.stage == stage]
        assert all(a.end <= b.start + 1e-9 for a, b in zip(line, line[1:]))
    assert schedule.busy(DRAFT) + schedule.busy(VERIFY) > schedule.seconds * 0.9
    assert engine.trace.metrics()["emitted"] == 6 * GREEDY.max_new_tokens


def test_a_sequential_run_can_be_replayed_too():
    engine = Engine(tiny.family(), "near", 3)
    with pytest.raises(ValueError, match="no verification"):
        replay(engine.trace.events)
    engine.generate([[1, 4], [2, 4]], GREEDY)
    schedule = replay(engine.trace.events)
    line = sorted(schedule.spans, key=lambda s: s.start)
    assert all(a.end <= b.start + 1e-9 for a, b in zip(line, line[1:])), "nothing overlaps"
    seconds = engine.trace.metrics()["seconds"]
    assert schedule.busy(DRAFT) == pytest.approx(seconds["draft"])
    assert schedule.busy(VERIFY) == pytest.approx(seconds["target"] + seconds["verify"])
    told = len(engine.trace.events)
    engine.generate([[3, 4]], GREEDY)
    assert last_run(engine.trace.events) == engine.trace.events[told:]


# ---- faults

def test_a_drafter_that_raises_under_way_costs_no_request():
    engine = pipelined(3, max_batch=6)
    propose, calls = engine.drafters["near"].propose, []

    def failing(*args):
        calls.append(args)
        if len(calls) >= 4:
            raise RuntimeError("out of ideas")
        return propose(*args)

    engine.drafters["near"].propose = failing
    jobs = [([i, 4, i], GREEDY, ("near", "subset")[i % 2]) for i in range(8)]
    expected = texts(Engine(tiny.family(), "near", 3), jobs)
    with pytest.warns(RuntimeWarning, match="drafter 'near' raised RuntimeError: out of ideas") as warned:
        assert texts(engine, jobs) == expected
    assert len(warned) == 1 and "near" in engine.retired


@pytest.mark.parametrize("count, when", [(1, "after it"), (3, "before the pass"), (3, "after it"),
                                         ("restless", "before the pass")])
def test_a_target_that_raises_under_way_fails_the_step_and_nothing_else(count, when):
    engine = pipelined(count, max_batch=6)
    forward, calls = engine.target.forward, []

    def failing(*args):
        calls.append(args)
        bad = len(calls) in (3, 4, 7)
        if bad and when == "before the pass":
            raise MemoryError("no room")
        out = forward(*args)
        if bad:
            raise MemoryError("no room")
        return out

    engine.target.forward = failing
    jobs, expected = mixed()
    requests = [engine.submit(*job[:2], drafter=job[2]) for job in jobs]
    assert sum(tiny.steps(engine, MemoryError)) == 3
    assert [r.output_ids for r in requests] == expected
    tiny.assert_sound(engine, requests)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_generate_leaves_a_usable_engine(error):
    engine = pipelined(2, max_batch=4)
    forward, calls = engine.target.forward, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 5:
            raise error
        return forward(*args)

    engine.target.forward = interrupted
    with pytest.raises(error):
        engine.generate([[i, 4] for i in range(5)], GREEDY)
    tiny.assert_idle(engine)
    assert not engine.pipeline.in_flight
    tiny.assert_greedy(engine.family.target, engine.generate([[7, 7]], GREEDY.with_(stop_ids=None))[0])


def test_a_stage_that_hangs_ends_the_wait_and_loses_no_request():
    engine = pipelined(2, max_batch=4)
    limit(engine, 0.3)
    release, forward, calls = threading.Event(), engine.target.forward, []

    def hanging(*args):
        calls.append(args)
        if len(calls) == 3:
            release.wait(PATIENCE)
        return forward(*args)

    engine.target.forward = hanging
    jobs, expected = mixed(number=4)
    requests = [engine.submit(*job[:2]) for job in jobs]
    start = time.monotonic()
    with pytest.raises(StageTimeout, match="within 0.3 s"):
        drain(engine)
    assert time.monotonic() - start < PATIENCE / 2 and len(engine.running) == 4
    release.set()
    for flight in [step.flight for step in engine.pipeline.in_flight]:
        flight.executor.limit = PATIENCE
    limit(engine, PATIENCE)
    for _ in range(20):         # who waited for a draft in vain flies again
        try:
            drain(engine)
        except StageTimeout:
            continue
        break
    assert [r.output_ids for r in requests] == expected
    tiny.assert_sound(engine, requests)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from([1, 2, 4, "restless"]), st.lists(st.integers(0, 20), min_size=8, max_size=8),
       st.integers(0, 2**20))
def test_cancelling_under_way_ends_one_request_and_no_other(count, when, seed):
    engine = pipelined(count, max_batch=5)
    slow_down(engine, seed, 1e-3)
    jobs, expected = mixed(tuple(tiny.DRAFTERS))
    requests = [engine.submit(*job[:2], drafter=job[2]) for job in jobs]
    for now in range(1000):
        for request, then in zip(requests, when):
            if then == now:
                engine.cancel(request)
                assert request.finished
        if not (engine.queue or engine.running):
            break
        engine.step()
    for request, text in zip(requests, expected):
        if request.finish_reason is FinishReason.CANCELLED:
            assert request.output_ids == text[:len(request.output_ids)]
        else:
            assert request.output_ids == text
    tiny.assert_sound(engine, requests)


@pytest.mark.parametrize("count", [2, "auto"])
def test_a_consumer_that_stops_listening_ends_its_requests_and_no_others(count):
    engine = pipelined(count, max_batch=3)
    other = engine.submit([9, 9], GREEDY)
    stream = engine.stream([[i, 4] for i in range(5)], GREEDY)
    while not next(stream).emitted:
        pass
    stream.close()
    assert len(engine.queue) + len(engine.running) == (not other.finished)
    drain(engine)
    assert other.output_ids == texts(Engine(tiny.family(), "near", 3), [([9, 9], GREEDY, "near")])[0]
    tiny.assert_idle(engine)


@pytest.mark.parametrize("count", [1, 2, "auto"])
def test_nothing_holds_on_to_finished_requests(count):
    engine = pipelined(count)
    gone = [weakref.ref(r) for r in engine.generate([[i, 4] for i in range(5)], GREEDY)]
    gc.collect()
    assert not [r for r in gone if r() is not None]


def test_an_engines_threads_end_with_it():
    before = set(threading.enumerate())
    engine = pipelined(2)
    engine.generate([[1, 4], [2, 4]], GREEDY)
    assert len(set(threading.enumerate()) - before) == 2
    del engine
    gc.collect()
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


# ---- with a selector, and with the heuristic

def test_capacities_hold_for_all_micro_batches_together():
    from test_selection import Restless as Selector

    engine = pipelined(3, max_batch=6, selector=Selector(["near", "other"], seed=3), capacities={"near": 2, "other": 3})
    longer = GREEDY.with_(max_new_tokens=40)    # who sits where hangs on timing: enough steps to meet every case
    # there first, so its place is not given away
    requests = [engine.submit([9, 4], longer, drafter="near", gamma=2)]
    requests += [engine.submit([i, 4], longer) for i in range(8)]
    most, groups = 0, set()
    while engine.queue or engine.running:
        engine.step()
        serving = [(r.drafter, step.micro_batch) for step in engine.pipeline.in_flight for r in step.requests
                   if not r.finished]
        for name, capacity in (("near", 2), ("other", 3)):
            assert sum(drafter == name for drafter, _ in serving) <= capacity
        most = max(most, sum(drafter != "none" for drafter, _ in serving))
        groups |= {group for drafter, group in serving if drafter != "none"}
    assert most >= 3 and groups == {0, 1, 2}, "one alone could not take so many, and every group gets some"
    tiny.assert_sound(engine, requests)


def test_a_count_that_changes_all_the_time_is_followed():
    engine = pipelined("restless", max_batch=5)
    requests = engine.generate([[i, 4] for i in range(9)], GREEDY.with_(max_new_tokens=20))
    tiny.assert_sound(engine, requests)
    assert len({e.micro_batches for e in engine.trace.events if e.kind == "step"}) > 3


def test_time_without_a_step_does_not_count_for_the_heuristic():
    engine, heard = pipelined("auto", max_batch=2), []
    engine.pipeline.heuristic.observe = lambda load, requests, seconds, *rest: heard.append(seconds)
    for i in range(2):
        engine.submit([i, 4], GREEDY)
    engine.step()
    engine.step()
    time.sleep(3)
    drain(engine)
    assert heard and max(heard) < 2.5


@pytest.mark.parametrize("fast", [True, False])
def test_a_selector_may_choose_for_each_micro_batch(fast):
    from test_selection import Restless

    pool = ["near", "subset", "other", "ngram"]
    engine = pipelined(3, max_batch=6, selector=Restless(pool, seed=1), fast_switching=fast)
    requests = [engine.submit([i, 4, i, 4], GREEDY) for i in range(9)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drain(engine)
    expected = texts(Engine(tiny.family(), "near", 3), [(r.prompt_ids, GREEDY, "near") for r in requests])
    assert [r.output_ids for r in requests] == expected
    assert len({e.drafter for e in engine.trace.events if e.drafted}) > 2
    tiny.assert_sound(engine, requests)


def test_the_heuristic_decides_and_its_decisions_are_in_the_trace():
    engine = pipelined("auto", max_batch=4)
    heuristic = engine.pipeline.heuristic
    heuristic.budget = 1e9          # so short a run would not be tried with
    heuristic.bound = lambda *asked: 2.0
    engine.generate([[i, 4] for i in range(4)], SamplingParams(max_new_tokens=80, stop_ids=()))
    decisions = engine.trace.decisions
    assert decisions[0].why == "start with one" and [d.count for d in decisions][:2] == [1, 2]
    assert all(rate > 0 for d in decisions for rate in d.throughput.values())
    steps = [e for e in engine.trace.events if e.kind == "step"]
    assert {e.micro_batches for e in steps} >= {1, 2}
    after = next(e for e in steps if e.time > decisions[1].time)
    assert after.micro_batches == 2, "what is decided holds from the next launch on"


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, "on"])
def test_impossible_pipelines_are_refused(wrong):
    with pytest.raises(ValueError, match="'off', 'async', 'auto' or a number of micro-batches"):
        Engine(tiny.family(), "near", pipeline=wrong)


def test_unknown_grouping_is_refused():
    with pytest.raises(ValueError, match="unknown grouping policy 'age'"):
        Engine(tiny.family(), "near", pipeline=2, grouping="age")
