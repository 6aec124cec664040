"""Drafting with a sparse cache: a model's, a fed one's, and the target's own."""

from __future__ import annotations

import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.draft import pool
from spin_core.engine import Engine
from spin_core.request import Request, SamplingParams
from spin_core.kv.ring import AHEAD

PROMPTS = ["abc", "bdfhjlnprt", "e", "aabbccddeeffgghh"]
NAMES = ["sparse:near:5", "sparse:near:2/5", "sparse:target:4", "sparse:target:1/2", "ngram+sparse:target:6",
         "sparse:short:7", "sparse:subset:9"]


def generate(drafter: str, params: SamplingParams, gamma: int = 3, family=None, **options):
    engine = Engine(family or tiny.family(), drafter, gamma, max_batch=3, **options)
    requests = engine.generate(PROMPTS, params)
    assert not engine.retired
    tiny.assert_sound(engine, requests)
    return engine, requests


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_plain_decoding(name):
    engine, requests = generate(name, SamplingParams(max_new_tokens=26, stop_ids=()))
    for request in requests:
        tiny.assert_greedy(engine.family.target, request, stop_ids=())
    assert 0 < engine.trace.metrics()["accepted"] < engine.trace.metrics()["drafted"]


@settings(max_examples=3, deadline=None)
@given(gamma=st.integers(1, AHEAD), temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 99),
       name=st.sampled_from(["near", "subset"]))
def test_a_window_over_everything_drafts_what_full_attention_drafts(gamma, temperature, seed, name):
    """Through catch-ups, rollbacks and mixed lengths, text and drafts are the same, in float64."""
    params = SamplingParams(temperature=temperature, seed=seed, max_new_tokens=14, stop_ids=())
    (full, texts), (sparse, same) = (generate(n, params, gamma) for n in (name, f"sparse:{name}:96"))
    assert [r.output_ids for r in texts] == [r.output_ids for r in same]
    drafted, again = ([(e.context, e.drafted) for e in engine.trace.events if e.kind == "step"]
                      for engine in (full, sparse))
    assert drafted == again


@settings(max_examples=3, deadline=None)
@given(gamma=st.integers(1, AHEAD), temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 99),
       chunk=st.sampled_from([3, 512]))
def test_the_target_that_sees_everything_accepts_all_it_drafts(gamma, temperature, seed, chunk):
    params = SamplingParams(temperature=temperature, seed=seed, max_new_tokens=30, stop_ids=())
    engine, _ = generate("sparse:target:1/1", params, gamma, prefill_chunk=chunk)
    metrics = engine.trace.metrics()
    assert metrics["accepted"] == metrics["drafted"] > 0


def test_a_fed_drafter_may_be_sparse_too():
    family = tiny.fed_family()
    params = SamplingParams(max_new_tokens=20, stop_ids=())
    _, texts = generate("fed", params, family=family)
    for window in ("96", "5"):
        engine, same = generate(f"sparse:fed:{window}", params, family=family)
        assert [r.output_ids for r in same] == [r.output_ids for r in texts]
        assert engine.trace.metrics()["drafted"]


@pytest.mark.parametrize("name", ["sparse:near:4", "sparse:target:4"])
def test_a_sampled_text_does_not_depend_on_its_mates(name):
    params = [SamplingParams(temperature=1.0, max_new_tokens=16, seed=i, stop_ids=()) for i in range(4)]
    together = Engine(tiny.family(), name, 3, max_batch=4, prefill_chunk=8).generate(PROMPTS, params)
    for prompt, param, request in list(zip(PROMPTS, params, together))[1::2]:
        alone, = Engine(tiny.family(), name, 3, max_batch=1, prefill_chunk=8).generate([prompt], param)
        assert alone.output_ids == request.output_ids


def test_reading_ahead_and_reading_late_are_the_same():
    """A catch-up in chunks leaves what one read of everything leaves."""
    ids = [(5 * i + 1) % tiny.VOCAB for i in range(60)]
    runner = Engine(tiny.family(), "none", max_batch=2).target
    early, late = (pool.build("sparse:near:6", tiny.family(), 2, 96, runner) for _ in range(2))
    for end in (7, 30, 59):
        request = Request(ids[:5], SamplingParams(), output_ids=ids[5:end], slot=1)
        found, = early.catch_up([request])
        assert early.missing(request) == 0 and len(found.hits) > 0
    request = Request(ids[:5], SamplingParams(), output_ids=ids[5:], slot=1)
    assert torch.equal(early.propose([request], [4]).tokens, late.propose([request], [4]).tokens)


def test_pinned_requests_a_selector_and_micro_batches_serve_it():
    engine = Engine(tiny.family(), selector="random", gamma=3, max_batch=4, pipeline=2,
                    arms=["near", "sparse:target:4", "sparse:near:5", "ngram"])
    requests = engine.generate(PROMPTS * 2, SamplingParams(max_new_tokens=18, stop_ids=()))
    for request in requests:
        tiny.assert_greedy(engine.family.target, request, stop_ids=())
    used = {e.drafter for e in engine.trace.events if e.kind == "step" and e.drafted}
    assert {"sparse:target:4", "sparse:near:5"} <= used and not engine.retired


@pytest.mark.parametrize("name, says", [("sparse:nobody", "no model 'nobody'"), ("sparse:near:0", "a window is"),
                                        ("sparse:near:4/3", "a window is"), ("sparse:", "no model ''")])
def test_names_that_mean_nothing_are_refused(name, says):
    with pytest.raises(ValueError, match=says):
        Engine(tiny.family(), name)


def test_no_draft_is_longer_than_the_ring_can_take_back():
    engine, _ = generate("sparse:target:4", SamplingParams(max_new_tokens=40, stop_ids=()), gamma=30)
    drafted = [len(e.drafted) for e in engine.trace.events if e.kind == "step"]
    assert max(drafted) == AHEAD
