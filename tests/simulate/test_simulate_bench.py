"""The benchmark of the simulator with small settings: its recording of a trace is the trace, its clock
ticks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spin_core.bench import simulate as bench
from spin_core.request import SamplingParams
from spin_core.select.recording import Passes
from spin_core.simulate.costs import Tables
from spin_core.simulate.simulator import simulate
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
    """By a clock that a call moves on by half a second: how fast it is, the benchmark's bar says, alone on a machine."""
    clock = itertools.count()
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: next(clock) / 2))
    rows = bench.speed(6, 1)
    assert {(r["policy"], r["batch"]) for r in rows} == {(p, b) for p in ("68M", "spin") for b in (8, 32, 64)}
    assert all(r["request_steps_per_s"] == 2 * r["request_steps"] > 0 for r in rows)


def test_the_grid_has_a_row_for_every_setting(family, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda family, models, lookups, repeats: {
        name: Passes((1, 64), (1e-3, 2e-3)) for name in (*models, "target")})
    rows, factors = bench.validate(family, PROMPTS[:2], [2], [2], 6, 1)
    assert len(rows) == len(family.drafters) and set(factors) == {*family.drafters, "target"}
    assert all(r["ratio"] == pytest.approx(r["simulated"] / r["measured"]) and np.isfinite(r["ratio"]) for r in rows)
