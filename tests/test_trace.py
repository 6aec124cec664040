"""Metrics of hand-made events, computed by hand."""

from __future__ import annotations

import pandas as pd
import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.trace import Event, Trace, metrics


def story() -> Trace:
    """Request 0 drafts with "a", request 1 reads its prompt in two steps and drafts with "b", request 3 shares
    step 1 with both, request 2 fails at once. Phases: seconds that all requests of a step report alike."""
    trace = Trace()

    def step(number, time, request, drafter, drafted, accepted, emitted, draft, target, verify, whole):
        trace.events.append(Event("step", time, request, number, drafter, drafted, accepted, emitted,
                                  draft_seconds=draft, target_seconds=target, verify_seconds=verify,
                                  step_seconds=whole))

    for time, request in ((0.0, 0), (0.5, 1), (1.5, 3)):
        trace.events.append(Event("submit", time, request))
    step(0, 2.0, 0, "a", [1, 2, 3], 2, [1, 2, 9], 0.1, 0.4, 0.05, 0.7)
    step(0, 2.0, 1, "none", [], 0, [], 0.0, 0.4, 0.05, 0.7)
    step(1, 3.0, 0, "a", [4, 5], 0, [7], 0.2, 0.3, 0.1, 0.8)
    step(1, 3.0, 3, "a", [], 0, [5], 0.2, 0.3, 0.1, 0.8)
    step(1, 3.0, 1, "b", [6], 1, [6, 8], 0.3, 0.3, 0.1, 0.8)
    step(2, 4.5, 1, "b", [], 0, [2], 0.0, 0.2, 0.02, 0.25)
    trace.events.append(Event("finish", 3.0, 0, reason="stop"))
    trace.events.append(Event("submit", 4.5, 2))
    trace.events.append(Event("finish", 4.5, 2, reason="error"))
    return trace


def test_metrics_are_what_one_computes_by_hand():
    m = story().metrics()
    assert (m["requests"], m["emitted"], m["drafted"], m["accepted"]) == (4, 8, 6, 3)
    assert m["wall_seconds"] == 4.5
    assert m["goodput"] == pytest.approx(8 / 4.5)
    assert m["acceptance_rate"] == 0.5
    assert m["tokens_per_verification"] == 8 / 5                # the step that only read a prompt does not count
    assert m["accepted_length_histogram"] == {0: 3, 1: 1, 2: 1}
    assert m["time_to_first_token"] == pytest.approx((2.0 + 2.5 + 1.5) / 3)
    # request 0: one token in the second after its first three; request 1: one in 1.5; request 3 has no second time
    assert m["time_per_output_token"] == pytest.approx((1.0 + 1.5) / 2)


def test_phases_count_once_per_step_and_drafting_once_per_drafter():
    seconds = story().metrics()["seconds"]
    assert seconds == pytest.approx({"draft": 0.1 + 0.2 + 0.3, "target": 0.9, "verify": 0.17, "select": 0.0,
                                     "other": 1.75 - 0.6 - 0.9 - 0.17})


def test_an_empty_trace_has_metrics_without_averages(tmp_path):
    m = Trace().metrics()
    assert (m["requests"], m["emitted"], m["goodput"], m["wall_seconds"]) == (0, 0, 0.0, 0.0)
    assert m["accepted_length_histogram"] == {} and set(m["seconds"].values()) == {0.0}
    for name in ("acceptance_rate", "tokens_per_verification", "time_to_first_token", "time_per_output_token"):
        assert m[name] is None
    Trace().to_parquet(tmp_path / "empty.parquet")
    assert metrics(pd.read_parquet(tmp_path / "empty.parquet")) == m


def test_a_trace_without_steps_has_metrics_too(tmp_path):
    trace = Trace()
    trace.add("submit", 0)
    trace.add("finish", 0, reason="error")
    assert trace.metrics()["requests"] == 1 and trace.metrics()["emitted"] == 0
    trace.to_parquet(tmp_path / "t.parquet")
    assert metrics(pd.read_parquet(tmp_path / "t.parquet")) == trace.metrics()


def test_a_trace_survives_parquet(tmp_path):
    trace = story()
    trace.to_parquet(tmp_path / "trace.parquet")
    back = pd.read_parquet(tmp_path / "trace.parquet")
    assert metrics(back) == trace.metrics()
    ours = trace.to_pandas()
    assert list(back.columns) == list(ours.columns)
    for name in ("drafted", "emitted"):
        assert [list(x) for x in back[name]] == list(ours[name])
    assert [None if pd.isna(x) else x for x in back.reason] == [e.reason for e in trace.events]


def test_the_engines_trace_survives_parquet_distributions_aside(tmp_path):
    engine = Engine(tiny.family(), "near", 3, record_probs=True)
    engine.generate([[1, 2, 4], [5]], SamplingParams(max_new_tokens=6))
    engine.trace.to_parquet(tmp_path / "trace.parquet")
    back = pd.read_parquet(tmp_path / "trace.parquet")
    assert "distributions" not in back.columns and metrics(back) == engine.trace.metrics()


def test_events_are_in_the_order_of_their_times():
    engine = Engine(tiny.family(), "near", 3, max_batch=2)
    engine.generate([[1, 2, 4], [5], [6, 7]], SamplingParams(max_new_tokens=6))
    times = [e.time for e in engine.trace.events]
    assert times == sorted(times) and times[0] >= 0


def test_the_phases_fit_into_the_step_and_the_steps_into_the_wall():
    engine = Engine(tiny.family(), "near", 3, max_batch=2)
    engine.generate([[1, 2, 4], [5], [6, 7]], SamplingParams(max_new_tokens=6))
    steps = [e for e in engine.trace.events if e.kind == "step"]
    for event in steps:
        assert event.step_seconds >= event.draft_seconds + event.target_seconds + event.verify_seconds > 0
    m = engine.trace.metrics()
    whole = {e.step: e.step_seconds for e in steps}
    assert all(e.step_seconds == whole[e.step] for e in steps), "the requests of a step share its time"
    assert sum(m["seconds"].values()) == pytest.approx(sum(whole.values()))
    assert sum(whole.values()) <= m["wall_seconds"] + whole[0]      # the wall begins at the first submission
    assert 0 < m["time_per_output_token"] and 0 < m["time_to_first_token"] < m["wall_seconds"]


def test_recorded_distributions_are_p_and_q_of_every_position():
    """For the widgets: over the target's ids, greedy and sampled, with a subset vocabulary."""
    family = tiny.family()
    source = family.drafters["subset"]
    engine = Engine(family, "subset", 3, record_probs=True)
    params = [SamplingParams(max_new_tokens=8, temperature=t, seed=2) for t in (0.0, 0.8)]
    engine.generate([[1, 2, 4], [5, 6]], params)
    prompts = {e.request: p for e, p in zip(engine.trace.events, [[1, 2, 4], [5, 6]])}
    texts = dict(prompts)
    checked = 0
    for event in (e for e in engine.trace.events if e.kind == "step"):
        p, q = event.distributions["p"], event.distributions["q"]
        assert p.shape == (len(event.drafted) + 1, tiny.VOCAB) and q.shape == (len(event.drafted), tiny.VOCAB)
        assert torch.allclose(p.sum(-1), torch.ones(()).double())
        greedy = event.request == min(prompts)
        for i, token in enumerate(event.drafted):
            ids = texts[event.request] + event.drafted[:i]
            behind, drafts = tiny.logits(family.target, ids)[-1], tiny.logits(source.model, ids)[-1]
            if greedy:
                assert p[i].argmax() == behind.argmax() and p[i].max() == 1
                assert q[i, token] == 1 and q[i].sum() == 1
            else:
                assert torch.allclose(p[i], (behind / 0.8).softmax(-1), atol=1e-12)
                expected = torch.zeros(tiny.VOCAB, dtype=torch.float64)
                expected[source.ids] = (drafts / 0.8).softmax(-1)
                assert torch.allclose(q[i], expected, atol=1e-12)
            checked += 1
        texts[event.request] = texts[event.request] + event.emitted
    assert checked > 6


# ---- long services, and what statistics count

@pytest.mark.parametrize("wrong", ["full disk", "file for a folder"])
def test_events_that_cannot_be_spilled_are_lost_with_a_warning_and_no_request_is(tmp_path, wrong):
    engine = Engine(tiny.family(), "near", trace_limit=20)
    engine.trace.spill = tmp_path / "spilled"
    if wrong != "full disk":
        engine.trace.spill.write_text("")
    with tiny.little_room(4096 if wrong != "full disk" else 16), \
            pytest.warns(RuntimeWarning, match="2 events of the trace are lost: .*spilled"):
        requests = engine.generate([[i, 4] for i in range(9)], SamplingParams(max_new_tokens=8))
    assert all(r.error is None and r.finished for r in requests) and engine.trace.dropped > 0
    assert not [p for p in tmp_path.rglob("*") if p.suffix == ".parquet"]
    with tiny.little_room(16), pytest.raises(OSError, match="cannot write .*all.parquet"):
        engine.trace.to_parquet(tmp_path / "all.parquet")


def test_a_trace_keeps_the_latest_events_and_spills_the_others(tmp_path):
    trace = Trace(limit=50)
    trace.spill = tmp_path / "spilled"
    heard = trace.listen()
    for i in range(203):
        trace.add("step", i, step=i)
    assert len(trace.events) <= 50 and trace.events[-1].request == 202 and trace.dropped + len(trace.events) == 203
    assert [e.request for e in heard] == list(range(203)), "a stream misses nothing"
    written = pd.concat(pd.read_parquet(path) for path in sorted((tmp_path / "spilled").iterdir()))
    assert list(written.request) + [e.request for e in trace.events] == list(range(203))
    trace.forget(heard)
    trace.add("step", 7)
    assert len(heard) == 203
    for wrong in (0, -1, 2.5, "all"):
        with pytest.raises(ValueError, match="limit is a positive number of events or None"):
            Trace(wrong)


def test_an_engine_keeps_a_bounded_trace_and_its_streams_do_not_depend_on_it():
    assert Engine(tiny.family(), "near").trace.limit == 100_000
    engine, emitted = Engine(tiny.family(), "near", 3, trace_limit=5), []
    for event in engine.stream([[1, 4], [2, 4]], SamplingParams(max_new_tokens=30, stop_ids=())):
        emitted += event.emitted
        engine.trace.events.clear()
    assert len(emitted) == 60 and len(engine.trace.events) <= 5


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99), st.integers(1, 7), st.sampled_from([0.0, 1.0]), st.sampled_from(["off", 2, "async"]),
       st.lists(st.integers(0, tiny.VOCAB - 1), max_size=6))
def test_metrics_count_what_was_emitted(seed, gamma, temperature, pipeline, stops):
    """Recounted from the requests: tokens accepted behind a stop are not there, in no number."""
    engine = Engine(tiny.family(), "same", gamma, pipeline=pipeline, max_batch=3)
    params = SamplingParams(temperature=temperature, seed=seed, max_new_tokens=20, stop_ids=tuple(stops))
    requests = engine.generate([[seed % 40, i] for i in range(5)], params)
    m, steps = engine.trace.metrics(), [e for e in engine.trace.events if e.kind == "step" and e.emitted]
    assert m["emitted"] == sum(len(r.output_ids) for r in requests)
    accepted = 0
    for event in steps:
        agreed = 0
        while agreed < min(len(event.drafted), len(event.emitted)) and event.drafted[agreed] == event.emitted[agreed]:
            agreed += 1
        accepted += agreed
    assert m["accepted"] == accepted
    assert sum(length * count for length, count in m["accepted_length_histogram"].items()) == accepted
    assert sum(m["accepted_length_histogram"].values()) == len(steps)
    assert accepted <= m["emitted"] <= accepted + len(steps)
