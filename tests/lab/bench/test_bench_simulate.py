"""The benchmark of the simulator with small settings: its recording of a trace is the trace, its clock
ticks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spin_core.lab.bench import passes, simulate as bench
from spin_core.lab.bench.timing import tables, timings
from spin_core.request import SamplingParams
from spin_core.lab.simulate.recording import Passes
from spin_core.lab.simulate import arrivals, paper
from spin_core.lab.simulate.costs import Tables
from spin_core.lab.simulate.profiles import work
from spin_core.lab.simulate.simulator import simulate
from tests import tiny

PROMPTS = ["abcabcabc", "hello", "xyxyxyxy", "q", "lmno"]
PASSES = {name: Passes((1, 64), (1.0, 1.5)) for name in ("near", "subset", "target")}


@pytest.fixture(scope="module")
def family():
    return tiny.family(torch.float32)


def served(family, *setting):
    (engine, seconds), = bench.serve(family, PROMPTS, SamplingParams(max_new_tokens=24), [setting]).values()
    assert seconds > 0
    return engine


@pytest.mark.parametrize("batch, gamma", [(3, 2), (4, 4)])
@pytest.mark.parametrize("drafter", ["near", "subset"])
def test_the_simulator_takes_the_engine_s_steps(family, drafter, batch, gamma):
    """Same texts, same steps, same order: only the seconds are the model's."""
    engine = served(family, batch, drafter, gamma)
    rec = bench.recording(engine, drafter, PASSES)
    run = simulate(rec, Tables(PASSES), drafter, batch=batch, gamma=gamma, events=True)
    done = bench.steps(engine)
    assert run.tokens == sum(len(e.emitted) for e in done)
    assert run.request_steps == len(done)
    first = min(e.request for e in done)
    theirs = sorted((e.step, e.request - first, len(e.emitted)) for e in done)
    began = theirs[0][0]
    assert [(s - began, r, n) for s, r, n in theirs] == sorted((s, r, a + 1) for s, r, _, _, a in run.events)


def test_efficiency_is_what_passes_took_over_what_they_take_apart(family):
    engine = served(family, 3, "near", 3)
    for event in bench.steps(engine):
        together = [e for e in bench.steps(engine) if e.step == event.step]
        deep = [len(e.drafted) for e in together]
        event.target_seconds = 3 * float(PASSES["target"](len(together) + sum(deep)))
        event.draft_seconds = 2 * sum(float(PASSES["near"](sum(n > k for n in deep))) for k in range(max(deep)))
    first = min(e.step for e in bench.steps(engine))
    for event in bench.steps(engine):
        event.target_seconds += 100.0 * (event.step == first)      # it reads prompts
    assert bench.efficiency({"near": engine}, PASSES) == pytest.approx({"target": 3.0, "near": 2.0})


def test_the_fit_is_made_outside_the_grid():
    assert [bench.between(g) for g in ([2, 4], [2], [2, 3], [1, 2, 3, 4])] == [3, 3, 4, 5]


def test_speed_is_measured(monkeypatch):
    """By a clock that a call moves on by half a second: how fast it is, the benchmark's bar says, alone on a
    machine."""
    clock = itertools.count()
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: next(clock) / 2))
    rows = bench.speed(6, 1)
    assert {(r["policy"], r["batch"]) for r in rows} == {(p, b) for p in ("68M", "spin") for b in (8, 32, 64)}
    assert all(r["request_steps_per_s"] == 2 * r["request_steps"] > 0 for r in rows)


SHAPES = [(rows, slots, context) for context in bench.CONTEXTS for rows, slots in ((1, 1), (4, 4), (8, 8), (64, 8))]
PARTS = {"flop": 1e-9, "weights": 1e-8, "keys": 1e-7, "kernels": 1e-5}     # seconds of each, of a made-up machine


def took(family, models, lookups, repeats, contexts) -> dict:
    """Timings of passes on that machine."""
    known = passes.models(family)
    return {(name, *shape): sum(PARTS[what] * n for what, n in work(known[name], *shape, "fp32").items()) + 1e-4
            for name in ("target", *models) for shape in SHAPES}


def test_the_grid_has_a_row_for_every_setting(family, monkeypatch):
    monkeypatch.setattr(bench, "timings", took)
    monkeypatch.setattr(bench, "peaks", lambda family, repeats: {"flops": 2e9, "bandwidth": 2e8})
    rows, factors, machine = bench.validate(family, PROMPTS[:2], [2], [2], 6, 1)
    assert len(rows) == len(family.drafters) and set(factors) == {*family.drafters, "target"}
    for r in rows:
        assert r["ratio"] == pytest.approx(r["simulated"] / r["measured"]) and np.isfinite(r["ratio"])
        assert r["roofline_ratio"] == pytest.approx(r["roofline"] / r["measured"]) and r["roofline"] != r["simulated"]
    assert machine.name == "this machine" and "measured here" in machine.describe()


def test_passes_say_what_they_do_and_become_a_profile(family):
    names = passes.pool(family)[0]
    rows = passes.work_of(family, took(family, names, {}, 1, ()))
    assert {r["model"] for r in rows if r["fitted"]} == {"target", *names}
    assert all(r["fitted"] == (r["model"] == "target" or r["rows"] == r["slots"]) for r in rows)
    head = family.drafters["subset"].model.get_output_embeddings().weight
    assert passes.models(family)["subset"].vocab == head.shape[0]
    best = {"flops": 2e9, "bandwidth": 2e8}
    machine, slower = (passes.fitted(family, rows, best, factors) for factors in (None, dict.fromkeys(
        ("target", *names), 2.0)))
    assert (machine.compute, machine.traffic, machine.keys) == pytest.approx((0.5, 0.5, 0.05), rel=1e-3)
    assert (machine.launch, machine.turn) == pytest.approx((1e-5, 1e-4), rel=1e-3)
    assert (slower.compute, slower.turn) == pytest.approx((0.25, 2e-4), rel=1e-3)


def test_peaks_are_measured(family):
    best = passes.peaks(family, 1, size=64, values=1 << 12)
    assert best["flops"] > 0 and best["bandwidth"] > 0


def test_passes_are_timed_by_rows_slots_and_context(family):
    times = timings(family, ["near"], {}, 1, (4, 9))
    assert {(name, context) for name, _, _, context in times} == {(n, c) for n in ("target", "near") for c in (4, 9)}
    assert all(seconds > 0 for seconds in times.values())
    expected = [s for (name, _, _, context), s in times.items() if (name, context) == ("target", 9)]
    assert list(tables(times, 9)["target"].seconds) == expected


def test_bursts_make_requests_wait():
    """The same requests at the same rate: those that come together wait for each other, most when all come at once."""
    reports = {kind: bench.under_load(kind, 1.0, 60) for kind in arrivals.KINDS}
    waits = {kind: [row["waiting_p95_s"] for row in report.rows] for kind, report in reports.items()}
    assert all(p < b < c for p, b, c in zip(waits["poisson"], waits["bursty"], waits["closed"]))
    for report in reports.values():
        assert [row["rung"] for row in report.rows] == list(paper.RUNGS)
        assert all(row["latency_p50_s"] > row["waiting_p50_s"] and row["goodput"] > 0 for row in report.rows)
    assert max(r["goodput"] for r in reports["poisson"].rows) < min(r["goodput"] for r in reports["closed"].rows)
