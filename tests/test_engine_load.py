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


def test_every_request_ends_and_none_is_lost(service):
    _, engine, todo, served = service
    assert len(served.requests) == len(todo) == 500 and all(r.finished and r.error is None for r in served.requests)
    reasons = [r.finish_reason for r in served.requests]
    assert min(reasons.count(r) for r in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED)) > 20
    assert served.queued > 20, "so many came at once that some had to wait"
    assert len({e.drafter for e in engine.trace.events if e.kind == "step"}) >= 3
    tiny.assert_idle(engine)


def test_texts_are_those_of_requests_served_one_by_one(service):
    family, _, todo, served = service
    assert bench.differences(family, list(zip(served.requests, todo))) == (0, 500)


def test_a_wrong_text_would_be_seen(service):
    family, _, todo, served = service
    whole, given_up = (next(i for i, r in enumerate(served.requests) if len(r.output_ids) > 2 and
                            (r.finish_reason is FinishReason.CANCELLED) is cancelled) for cancelled in (False, True))
    for i in (whole, given_up):
        request, job = served.requests[i].snapshot(), todo[i]
        request.output_ids[1] = (request.output_ids[1] + 1) % family.vocab_size
        assert bench.differences(family, [(request, job)]) == (1, 1)


def test_memory_stays_flat(service):
    """A second service on the same engine: caches and books are filled, whatever grows now is kept for nothing."""
    _, engine, todo, _ = service
    memory = load.Memory(engine, 400)        # looked at five times
    bench.serve(engine, todo[:200], 1, keep=False, between=memory.look)
    objects = [row["objects"] for row in memory.rows]
    # a leaked request would leave a dozen objects, with its output
    assert len(objects) >= 4 and objects[-1] - objects[1] < 300, objects


def test_growth_is_unknown_where_the_system_does_not_tell():
    memory = load.Memory(Engine(bench.small()), 9)
    memory.rows = [{"a": 0, "b": value} for value in (2, 2, 2, 3, 3, 3, 4, 4, 4)]
    assert memory.growth("a") is None and memory.growth("b") == 2


# ---- faults, and other programs

def test_faults_lose_no_request_and_change_no_text(monkeypatch):
    monkeypatch.setattr(load_faults, "EVERY", 4)
    report = load_faults.measure(60, 8, 0, pipelines=["auto"])
    row, = report.rows
    assert row["faults"] >= 10 and row["kinds"] >= 5 and row["drafters_retired"] >= 1 and row["requests"] > 60
    assert all(bar.holds for bar in report.bars), report.bars


def test_engines_called_from_several_threads_lose_nothing_and_change_no_text():
    report = load_faults.measure_threads(4, 0)
    assert [row["requests"] for row in report.rows] == [16] * 4 and all(bar.holds for bar in report.bars), report


def test_what_several_threads_break_is_counted(monkeypatch):
    monkeypatch.setattr(load_faults.Callers, "_generate", lambda self, todo: 1 / 0)
    monkeypatch.setattr(load_faults, "differences", lambda *_: (2, 3))
    report = load_faults.measure_threads(1, 0, pipelines=["off"])
    row, = report.rows
    assert (row["exceptions"], row["lost"], row["wrong_texts"]) == (2, 8, 2)
    assert [bar.holds for bar in report.bars] == [False, False, False, True] and "ZeroDivisionError" in report.notes[0]
    assert load_faults.measure_threads(1, 0, pipelines=["off"], seconds=0).bars[-1].holds is False


def test_every_broken_draft_is_noticed():
    """None of the changes leaves a draft as it was, or the benchmark would test nothing."""
    family = bench.small()
    for name, change in load_faults.DRAFTS.items():
        engine = Engine(family, "close", max_batch=2, **bench.LIMITS)
        drafter = engine.get_drafter("close")
        propose = drafter.propose
        drafter.propose = lambda *args, **options: change(propose(*args, **options))
        with pytest.warns(RuntimeWarning):
            engine.generate([[5, 6, 7], [8, 9]])
        assert "close" in engine.retired, name


@pytest.mark.parametrize("beside, of_fair_share, quiet, holds", [(20.0, 1.2, 1.0, [True, True]),
                                                                  (8.0, .48, .5, [False, False])])
def test_throughput_is_compared_with_the_fair_share(monkeypatch, beside, of_fair_share, quiet, holds):
    """Two cores, both used alone, and two busy programs: a third of the machine is ours. Plain decoding keeps it."""
    measured = {("ours", 0): 50.0, ("ours", 2): beside, ("default", 0): 50 / quiet, ("default", 2): 1.0}
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(load_beside, "_program", lambda program, environment, busy, seconds: {
        "threads": 2, "tokens_per_s": 20.0 if (program, busy) == ("plain", 2) and not environment else
        measured["default" if environment else "ours", busy]})
    report = load_beside.measure(2, 1)
    assert [row["of_fair_share"] for row in report.rows[1:6:2]] == pytest.approx([1.2, of_fair_share, of_fair_share])
    assert [bar.holds for bar in report.bars] == [True, holds[0], holds[0], holds[1]]
