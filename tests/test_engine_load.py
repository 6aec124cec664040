"""Hundreds of requests over time on one engine: all end, none is lost, and each has the text it would have alone."""

import pytest
import tiny

from spin_core.lab.bench import load, load_beside, load_faults, service as bench
from spin_core.engine import Engine
from spin_core.request import FinishReason



@pytest.fixture(scope="module")
def service():
    family = bench.small()
    todo = bench.jobs(500, 0, [*family.drafters, "ngram", "none"])
    engine = Engine(family, max_batch=16, kv_tokens=160, **bench.LIMITS)
    return family, engine, todo, bench.serve(engine, todo, 0)


def test_everybody_ends_and_nobody_is_lost(service):
    _, engine, todo, served = service
    assert len(served.requests) == len(todo) == 500 and all(r.finished and r.error is None for r in served.requests)
    reasons = [r.finish_reason for r in served.requests]
    assert min(reasons.count(r) for r in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED)) > 20
    assert served.queued > 20, "so many came at once that some had to wait"
    assert len({e.drafter for e in engine.trace.events if e.kind == "step"}) >= 3
    tiny.assert_idle(engine)


def test_texts_are_those_of_requests_served_one_by_one(service):
    family, _, todo, served = service
    assert bench.differences(family, served, todo) == (0, 500)


def test_a_wrong_text_would_be_seen(service):
    family, _, todo, served = service
    whole, given_up = (next(i for i, r in enumerate(served.requests) if len(r.output_ids) > 2 and
                            (r.finish_reason is FinishReason.CANCELLED) is cancelled) for cancelled in (False, True))
    for i in (whole, given_up):
        request, job = served.requests[i].snapshot(), todo[i]
        request.output_ids[1] = (request.output_ids[1] + 1) % family.vocab_size
        assert bench.differences(family, bench.Served([request]), [job]) == (1, 1)


def test_memory_stays_flat(service):
    """A second service on the same engine: caches and books are filled, whatever grows now is kept for nothing."""
    _, engine, todo, _ = service
    memory = load.Memory(engine, 80)         # looked at 25 times
    bench.serve(engine, todo[:200], 1, keep=False, between=memory.look)
    objects = [row["objects"] for row in memory.rows[::6]]
    # a leaked request would leave a dozen objects, with its output
    assert len(objects) >= 4 and objects[-1] - objects[1] < 300, objects


def test_growth_is_unknown_where_the_system_does_not_tell():
    memory = load.Memory(Engine(bench.small()), 9)
    memory.rows = [{"a": 0, "b": value} for value in (2, 2, 2, 3, 3, 3, 4, 4, 4)]
    assert memory.growth("a") is None and memory.growth("b") == 2
