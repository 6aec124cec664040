"""The sections of ``bench gpu`` that time drafting and the whole system, at a tiny shape on a CPU."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch

from spin_core.lab.bench import Report
from spin_core.lab.bench import gpu, gpu_drafting, gpu_system, names
from spin_core.lab.bench.gpu import TINY
from spin_core.runtime import graphs
from spin_core.select import make
from spin_core.select.spin import Spin
from spin_core.lab.simulate.recording import Recording
from spin_core.lab.simulate.replay import replay
from spin_core.lab.simulate.profiles import DRAFTERS, TARGETS

POOL = [(replace(TINY, name=name), arm) for name, arm in gpu_system.recorded(Recording.load()).items()]


@pytest.fixture(scope="module")
def recording() -> Recording:
    stored = Recording.load()
    return stored.take(np.flatnonzero((stored.prompts < 60) & (stored.lengths < 60))[:8])


def draft(**more) -> Report:
    return gpu_drafting.run([TINY], (1, 3), (8, 20), "cpu", torch.float32, 2, **more)


def system(recording: Recording, **more) -> Report:
    return gpu_system.run(TINY, POOL, recording, (1, 2), "cpu", torch.float32, most=0.05, **more)


def engine(recording: Recording, *drafter, **options) -> gpu_system.Replayed:
    family = gpu_system.random_family(TINY, [shape for shape, _ in POOL], 192, "cpu", torch.float32)
    if not drafter:
        options["arms"] = list(family.drafters)
    recorded = {shape.name: recording.arms.index(arm) for shape, arm in POOL}
    return gpu_system.Replayed(family, recording, recorded, *drafter, **options)


def test_the_help_names_the_sections():
    assert list(gpu.sections()) == ["verify", "verify-attention", "drafting", "system"]


def test_the_large_section_gets_the_larger_share(monkeypatch):
    seen = {}
    sections = {name: lambda settings, name=name: seen.update({name: settings.left()}) or Report(name, [])
                for name in ("verify", "system")}
    monkeypatch.setattr(gpu, "sections", lambda: sections)
    gpu.run(Namespace(only=None, budget_seconds=40, dry_run=True))
    assert 9 < seen["verify"] <= 10 and 30 < seen["system"] <= 40


@pytest.mark.parametrize("shape", [TARGETS["LLaMA-7B"], *DRAFTERS.values()], ids=lambda shape: shape.name)
def test_models_have_the_shapes_they_claim(shape):
    model = gpu_drafting.random_llama(shape, "meta", torch.bfloat16)
    assert sum(weight.numel() for weight in model.parameters()) == shape.parameters
    assert model.dtype == torch.bfloat16


# ---- drafting

def test_drafting_without_graphs_says_so():
    report = draft()
    assert [(row["batch"], row["cached"]) for row in report.rows] == [(1, 8), (1, 20), (3, 8), (3, 20)]
    assert all(row["eager_ms_per_token"] > 0 and "graphs_ms_per_token" not in row for row in report.rows)
    assert "no CUDA graphs on cpu: only the eager way is timed" in report.notes and not report.bars


def test_drafting_in_buckets_brings_the_same_drafts(monkeypatch):
    """As if this were a CUDA device: the graphs' passes, not captured."""
    monkeypatch.setattr(graphs, "attach", lambda runner: setattr(runner, "graphs", graphs.Graphs(runner)))
    for row in draft().rows:
        assert row["same_drafts"] == 1
        assert row["eager_over_graphs"] == pytest.approx(row["eager_ms_per_token"] / row["graphs_ms_per_token"])


@pytest.mark.filterwarnings("ignore:no CUDA graphs")
def test_what_cannot_be_captured_is_timed_without_graphs(monkeypatch):
    def fails(*_):
        raise RuntimeError("not permitted")

    def attach(runner):                     # as if this were a CUDA device
        runner.graphs = graphs.Graphs(runner)
        runner.graphs.pool = 0, 1

    monkeypatch.setattr(graphs, "attach", attach)
    monkeypatch.setattr(graphs._Bucket, "replay", fails)
    report = draft()
    assert len(report.rows) == 4 and not any("graphs_ms_per_token" in row for row in report.rows)
    assert "tiny, batch 3, 20 cached: no graphs: not permitted" in report.notes


def test_drafting_stops_when_time_is_out():
    clock = iter([1, 1, 0])
    report = draft(left=lambda: next(clock))
    assert len(report.rows) == 2 and report.notes[-1] == "out of time: 2 of 4 cases were left out"


# ---- the system

def test_a_row_for_every_rung_and_batch(recording):
    report = system(recording)
    assert [(row["batch"], row["rung"]) for row in report.rows] == [
        (batch, rung) for batch in (1, 2) for rung in (names.PLAIN, *names.RUNGS, names.WHOLE)]
    for row in report.rows:
        assert row["how"] == "random weights, acceptance replayed" and row["tokens_per_s"] > 0
        assert sum(value for key, value in row.items() if key.endswith("_share")) == pytest.approx(1)
        plain = next(other for other in report.rows if other["batch"] == row["batch"])
        assert row["vs_plain"] == pytest.approx(row["tokens_per_s"] / plain["tokens_per_s"])
        assert row["tokens_per_verification"] == 1 or row["rung"] != names.PLAIN
    whole = [row["vs_plain"] for row in report.rows if row["rung"] == names.WHOLE]
    assert [bar.value for bar in report.bars] == whole


def test_a_fixed_drafter_takes_the_steps_of_the_recording(recording):
    """Draft by draft those of the replay without models, an implementation of its own."""
    one = engine(recording, "1.1B", 2, max_batch=1)
    requests = [one.answering(i) for i in range(len(recording))]
    one.serve(iter(()), lambda: all(r.finished for r in requests))
    # a fed drafter drafts nothing before it has read a state; the model with random weights in its place does
    steps = [(at, len(e.drafted) * (at > 0), e.accepted) for r in requests for e in one.trace.events
             if e.kind == "step" and e.request == r.id for at in [e.context - len(r.prompt_ids)]]
    run = replay(recording, make(f"fixed:{POOL[-1][1]}", recording.drafters, gamma=2), batch=1)
    drafted = run.drafted * (run.position > 0)
    assert steps == list(zip(run.position.tolist(), drafted.tolist(), run.accepted.tolist()))
    assert 0 < run.accepted.sum() < run.drafted.sum()


@pytest.mark.parametrize("options", [{}, {"verification": "padded", "pipeline": "off"}, {"pipeline": 2}], ids=str)
def test_what_is_emitted_is_what_the_recording_accepts(recording, options, monkeypatch):
    # what a model so small is worth on this machine's clock is not asked here: all drafters draft
    monkeypatch.setattr(Spin, "_may_pay", lambda self, views, rates, price: np.ones_like(rates, bool))
    one = engine(recording, max_batch=3, **options)
    requests = [one.answering(i) for i in range(len(recording))]
    while not all(r.finished for r in requests):
        one.step()
    of = {r.id: r for r in requests}
    steps = [e for e in one.trace.events if e.kind == "step" and e.emitted]
    for event in steps:
        held = one.held(of[event.request], event.drafter, event.context - len(of[event.request].prompt_ids)) \
            if event.drafted else 0
        assert len(event.emitted) == event.accepted + 1 == min(held, len(event.drafted)) + 1
        assert event.emitted[:-1] == event.drafted[:event.accepted]
    assert sum(e.accepted for e in steps) > 0 and {e.drafter for e in steps} & set(one.recorded)
    assert [len(r.output_ids) for r in requests] == recording.lengths.tolist() and not one.retired


def test_reading_along_finds_what_was_recorded(recording):
    one = engine(recording, max_batch=1, pipeline="off")
    request = one.answering(0)
    one.serve(iter(()), lambda: request.finished or len(request.output_ids) >= 8)
    one.drafters["265M"].rollback(request.slot, 0)
    found, = one.drafters["265M"].catch_up([request])
    arm = recording.arms.index(POOL[1][1])
    first = found.first - len(request.prompt_ids)
    assert len(found.hits) >= 7
    assert found.hits == (recording.accepted[arm, first:first + len(found.hits)] > 0).tolist()


def test_the_system_stops_when_time_is_out(recording):
    clock = iter([9, 9, 9, 9, 9, 9, 0])         # asked twice for each case
    report = system(recording, left=lambda: next(clock))
    assert len(report.rows) == 3 and report.notes[-1] == "out of time: 7 of 10 cases were left out"


@pytest.mark.parametrize("error, note, fails", [(torch.OutOfMemoryError("16 GiB"), "does not fit into memory", 0),
                                                (RuntimeError("no kernel"), "FAILED: RuntimeError: no kernel", 1)])
def test_a_case_that_fails_leaves_the_others_rows(recording, monkeypatch, error, note, fails):
    def broken(requests, counts):
        raise error

    class Odd(gpu_system.Replayed):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            if options.get("verification") == "padded" and options["max_batch"] == 2 and not self.selection:
                self.drafters["68M"].propose = broken

    monkeypatch.setattr(gpu_system, "Replayed", Odd)
    with pytest.warns(RuntimeWarning, match="its requests go on without drafts"):
        report = system(recording)
    assert len(report.rows) == 9
    assert any(n.startswith("batch 2, ours, vanilla: ") and note in n for n in report.notes)
    assert sum(bar.name.endswith(gpu.FAILS) for bar in report.bars) == fails
