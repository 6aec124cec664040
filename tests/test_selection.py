"""Selection in the engine: whatever a policy does, texts stay, limits hold, and what it is told is true."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import random
import subprocess
import sys
import threading
import time
import types
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import test_engine_distribution as distribution
import test_engine_service
import tiny
from hypothesis import given, settings, strategies as st

from spin_core import engine as engines
from spin_core.draft import ModelDrafter, catchup
from spin_core.request import FinishReason, SamplingParams
from spin_core.select import Choice, Selector, make, names

Engine = functools.partial(engines.Engine, pipeline="off")      # a step serves everybody
POOL = ["near", "subset", "other", "short", "ngram", "ngram+near"]
POLICIES = [name for name in names() if not name.startswith("fixed:")] + ["fixed:near"]
GREEDY = SamplingParams(max_new_tokens=16, stop_ids=())


class Restless(Selector):
    """Another drafter, another gamma and other wishes in every step; remembers what it was told."""

    def __init__(self, arms, seed: int = 0, probes: float = 0.3, gamma: int = 4) -> None:
        super().__init__(arms, gamma=gamma, seed=seed)
        self.probes = probes
        self.outcomes, self.scores, self.finished = [], [], []

    def weights(self, views):
        return self.rng.random((len(views), len(self.arms)))

    def lengths(self, views, arms):
        return self.rng.integers(0, self.gamma[arms] + 1)

    def probe(self, views):
        return {s.request: [a for a in self.arms if self.rng.random() < self.probes] for s in views}

    def observe(self, outcomes):
        self.outcomes += outcomes

    def scored(self, scores):
        self.scores += scores

    def finish(self, request):
        self.finished.append(request)


def drain(engine: Engine) -> None:
    while engine.queue or engine.running:
        engine.step()


def plain(prompt: list[int], count: int = 16) -> list[int]:
    return test_engine_service.plain(prompt, count)


def steps(engine: Engine):
    return [e for e in engine.trace.events if e.kind == "step"]


def assert_served(engine: Engine, requests, capacities=None) -> None:
    """A sound trace, nothing left of anybody, and no drafter ever with more requests than it may have."""
    tiny.assert_sound(engine, requests)
    assert not engine.selection.catch_ups.jobs and not engine.selection.served and not engine.selection.moves
    pinned = {r.id: r.drafter for r in requests if r.pinned}
    for (step, name), members in groups(engine).items():
        own = sum(pinned.get(e.request) == name for e in members)
        assert name == "none" or len(members) <= max((capacities or {}).get(name, 99), own)


def groups(engine: Engine):
    found = defaultdict(list)
    for event in steps(engine):
        found[event.step, event.drafter].append(event)
    return found


# ---- texts

actions = st.one_of(
    st.tuples(st.just("submit"), st.lists(st.integers(0, tiny.VOCAB - 1), min_size=1, max_size=40), st.integers(1, 25)),
    st.tuples(st.just("pinned"), st.lists(st.integers(0, tiny.VOCAB - 1), min_size=1, max_size=9), st.integers(1, 25)),
    st.tuples(st.just("step"), st.integers(1, 6)), st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("cancel"), st.integers(0, 9)))


@pytest.mark.parametrize("policy", [*POLICIES, "restless"])
@settings(max_examples=3, deadline=None)
@given(script=st.lists(actions, min_size=4, max_size=14), capacities=st.dictionaries(
    st.sampled_from(POOL), st.integers(0, 2)), fast=st.booleans(), seed=st.integers(0, 99),
    chunk=st.sampled_from([4, 512]))
def test_no_policy_changes_a_greedy_text(policy, script, capacities, fast, seed, chunk):
    selector = Restless(POOL, seed) if policy == "restless" else make(policy, POOL, gamma=3, seed=seed)
    engine = Engine(tiny.family(), max_batch=4, selector=selector, capacities=capacities, fast_switching=fast,
                    prefill_chunk=chunk)
    requests = []
    for kind, *what in script:
        if kind == "step":
            for _ in range(what[0]):
                engine.step()
        elif kind == "cancel":
            if requests:
                engine.cancel(requests[what[0] % len(requests)])
        else:
            own = {"drafter": "near", "gamma": 2} if kind == "pinned" else {}
            requests.append(engine.submit(what[0], SamplingParams(max_new_tokens=what[1]), **own))
    drain(engine)
    assert_served(engine, requests, capacities)
    for request in requests:
        if request.finish_reason is FinishReason.CANCELLED:
            request.params = request.params.with_(max_new_tokens=len(request.output_ids))
        tiny.assert_greedy(engine.family.target, request)
        if request.pinned:
            assert {e.drafter for e in steps(engine) if e.request == request.id and e.emitted} <= {"near"}


def test_the_distribution_of_sampled_texts_is_the_targets_under_random_switching():
    selector = Restless(["other", "subset", "near", "ngram", "ngram+other"], gamma=2, probes=0.1)
    engine = Engine(distribution.family(), max_batch=256, max_len=16, selector=selector)
    params = [distribution.PLAIN.with_(seed=s) for s in range(5000)]
    seen = Counter(tuple(r.output_ids) for r in engine.generate([distribution.PROMPT] * len(params), params))
    assert distribution.p_value(seen, distribution.distribution(distribution.PLAIN)) > 1e-3
    drafted = Counter(e.drafter for e in steps(engine) if e.drafted)
    assert min(drafted.values()) > 200 and len(drafted) == 5
    assert 0 < engine.trace.metrics()["acceptance_rate"] < 1


def test_requests_with_a_drafter_of_their_own_keep_it_and_take_their_place_first():
    engine = Engine(tiny.family(), max_batch=4, selector=Restless(["near", "ngram"]), capacities={"near": 2})
    own = [engine.submit([i, 4], GREEDY, drafter="near", gamma=2) for i in range(2)]
    others = [engine.submit([i, 5], GREEDY) for i in range(2)]
    engine.step()
    while any(not r.finished for r in own):
        engine.step()
    both = {e.step for e in steps(engine) if e.request == own[0].id} & {e.step for e in steps(engine)
                                                                       if e.request == own[1].id}
    drain(engine)
    assert all(e.drafter == "near" for e in steps(engine) if e.request in (own[0].id, own[1].id))
    assert not [e for e in steps(engine) if e.step in both and e.request in (others[0].id, others[1].id)
                and e.drafter == "near"]
    assert_served(engine, own + others, {"near": 2})


# ---- what the selector is told

def test_seconds_are_shared_out_completely():
    selector = Restless(POOL, probes=0)
    engine = Engine(tiny.family(), max_batch=6, selector=selector, fast_switching=False)
    requests = engine.generate([[i, 4, i] for i in range(9)], GREEDY)
    told = iter(selector.outcomes)
    for step in range(engine.steps):
        events = [e for e in steps(engine) if e.step == step]
        outcomes = [next(told) for _ in events]
        assert [(o.request, o.drafter, o.drafted, o.accepted, o.emitted) for o in outcomes] == [
            (e.request, e.drafter, len(e.drafted), e.accepted, len(e.emitted)) for e in events]
        for name in {e.drafter for e in events}:
            group = [o for o in outcomes if o.drafter == name]
            seconds = next(e.draft_seconds for e in events if e.drafter == name)
            assert sum(o.draft_seconds for o in group) == pytest.approx(seconds)
            if any(o.drafted for o in group):           # by drafted tokens
                assert all(o.draft_seconds == pytest.approx(seconds * o.drafted / sum(g.drafted for g in group))
                           for o in group)
        whole = events[0].target_seconds + events[0].verify_seconds
        alone = all(e.context != len(r.prompt_ids) for e in events for r in requests if r.id == e.request)
        told_of = sum(o.verify_seconds for o in outcomes)
        assert told_of == pytest.approx(whole) if alone else 0 < told_of <= whole * (1 + 1e-9)
        assert all(o.valid and o.target_seconds == events[0].target_seconds for o in outcomes)
        if alone:
            assert outcomes[0].rows == sum(o.drafted + 1 for o in outcomes)
    assert next(told, None) is None and sorted(selector.finished) == sorted(r.id for r in requests)


@pytest.mark.parametrize("fast", [True, False])
def test_reading_along_says_what_the_drafter_would_have_drafted(fast):
    selector = Restless(POOL, probes=0.5)
    engine = Engine(tiny.family(), max_batch=3, selector=selector, fast_switching=fast)
    requests = {r.id: r for r in engine.generate([[i, 4, i, 4] for i in range(4)], SamplingParams(max_new_tokens=20))}
    hits = {(r.id, name): first_hits(name, r) for r in requests.values() for name in POOL}
    told = Counter()
    for score in selector.scores:
        truth = hits[score.request, score.drafter]
        runs = [truth[i:i + len(score.hits)] for i in range(len(truth) - len(score.hits) + 1)]
        assert [None if h != h else h for h in score.hits] in runs and score.seconds >= 0
        told[score.drafter] += len(score.hits)
    assert set(told) == set(POOL) and min(told.values()) > 10
    read = [e for e in engine.trace.events if e.kind == "catch_up"]
    assert len({e.drafter for e in read}) == len(POOL) and any(e.catch_up_tokens for e in read)
    metrics = engine.trace.metrics()
    assert metrics["catch_up_tokens"] == sum(e.catch_up_tokens for e in read)
    assert metrics["catch_up_seconds"] > 0 and metrics["seconds"]["select"] > 0


def first_hits(name: str, request, family: tiny.TinyFamily | None = None) -> list[float | None]:
    """Asked before every token of the output, would that drafter have said it? None: it says nothing."""
    engine = Engine(family or tiny.family(), name, max_batch=1)
    drafter, grows, out = engine.get_drafter(name), request.snapshot(), []
    grows.output_ids, grows.slot = [], 0
    for token in request.output_ids:
        room = drafter.max_context - grows.length
        engine.target.cache.truncate(0, 0)      # what a fed drafter reads are the target's states
        engine.target.forward([0], [grows.length], grows.ids, [0])
        engine.target.cache.truncate(0, grows.length - 1)
        said = drafter.propose([grows], [1]).tokens.tolist() if room > 0 else []
        drafter.rollback(0, grows.length)
        out.append(float(said == [token]) if said else None)
        grows.output_ids.append(token)
    return out


@pytest.mark.parametrize("fast", [True, False])
def test_a_drafter_that_is_fed_reads_along_on_the_targets_states(fast):
    """Its hits are those of a drafter that was there from the start; texts stay."""
    family = tiny.fed_family()
    family.drafters["near"] = tiny.family().drafters["near"]
    selector = Restless(["fed", "near", "ngram+fed"], probes=0.4)
    engine = Engine(family, max_batch=3, selector=selector, fast_switching=fast)
    params = SamplingParams(max_new_tokens=20)
    requests = {r.id: r for r in engine.generate([[i, 4, i, 4] * (i + 1) for i in range(4)], params)}
    truths = {r.id: first_hits("fed", r, family) for r in requests.values()}
    told = 0
    for score in selector.scores:
        if score.drafter == "fed":
            truth = truths[score.request]
            hits = [None if h != h else h for h in score.hits]
            assert hits in [truth[i:i + len(hits)] for i in range(len(truth) - len(hits) + 1)]
            told += len(hits)
    assert told > 10 and Counter(e.drafter for e in steps(engine) if e.drafted)["fed"] > 3
    for request in requests.values():
        tiny.assert_greedy(family.target, request)
    assert_served(engine, list(requests.values()))


def test_a_step_that_fails_is_reported_as_failed():
    """NaN behind one token: that request fails, its mates' outcomes are valid."""
    bad = plain([1, 4])[6]
    selector = Restless(["near", "ngram"])
    # at once, or how many steps it takes depends on how soon drafters have read beside the others' work
    engine = Engine(test_engine_service.poisoned(bad), max_batch=3, selector=selector, fast_switching=False)
    requests = engine.generate([[1, 4], [2, 9], [3, 9]], GREEDY)
    assert requests[0].finish_reason is FinishReason.ERROR
    failed = [o for o in selector.outcomes if not o.valid]
    assert {o.request for o in failed} == {r.id for r in requests if r.finish_reason is FinishReason.ERROR}
    assert all(o.failed and o.emitted == 0 for o in failed)
    assert len(selector.outcomes) > 3 * len(failed)
    assert_served(engine, requests)


# ---- drafters and selectors that fail

@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fast", [True, False])
def test_a_drafter_that_raises_leaves_the_pool_and_its_requests_go_on(policy, fast, monkeypatch):
    selector = make(policy, ["near", "subset", "ngram"], gamma=3)
    engine = Engine(tiny.family(), max_batch=3, selector=selector, fast_switching=fast)
    calls = []

    def failing(*args, inner=engine.drafters["near"].propose):
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("out of ideas")
        return inner(*args)

    monkeypatch.setattr(engine.drafters["near"], "propose", failing)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        requests = engine.generate([[i, 4, i, 4] for i in range(9)], GREEDY)
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests)
    assert_served(engine, requests)
    if len(calls) >= 3:         # it was asked that often
        assert len(calls) == 3 and len(warned) == 1 and not selector.alive[selector.index["near"]]
        last = max(e.step for e in steps(engine) if e.drafter == "near")
        assert last < engine.steps - 1 or policy == "fixed:near"
    if policy in ("fixed:near", "random"):
        assert len(calls) == 3


def breaks(drafter, monkeypatch, what) -> None:
    """``what(stopped)`` is called before every catch-up of that drafter."""
    inner = drafter.catch_up

    def catch_up(requests, stopped=lambda: False):
        what(stopped)
        return inner(requests, stopped)

    monkeypatch.setattr(drafter, "catch_up", catch_up)


@pytest.mark.parametrize("fast", [True, False])
def test_a_drafter_that_raises_while_it_reads_is_retired(fast, monkeypatch):
    def fail(stopped):
        raise MemoryError("no room")

    selector = Restless(["near", "subset"], probes=1)
    engine = Engine(tiny.family(), max_batch=3, selector=selector, fast_switching=fast)
    breaks(engine.drafters["near"], monkeypatch, fail)
    with pytest.warns(RuntimeWarning, match="drafter 'near' raised MemoryError: no room"):
        requests = engine.generate([[i, 4, i, 4] * 6 for i in range(9)], GREEDY)
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests) and "near" in engine.retired
    assert not selector.alive[0] and any(e.drafter == "subset" and e.drafted for e in steps(engine))
    assert_served(engine, requests)


class Curious(Restless):
    """Remembers its views."""

    def assign(self, views, capacities=None):
        self.views = [*getattr(self, "views", []), *views]
        return super().assign(views, capacities)


def test_a_seat_says_what_lookup_has_found_and_where_its_request_is():
    selector = Curious(["near", "ngram"])
    engine = Engine(tiny.family(), max_batch=3, selector=selector)
    requests = {r.id: r for r in engine.generate([[i, 4, i, 4] for i in range(4)], GREEDY)}
    drafters: dict[int, str] = {}
    told = {(s.request, s.context): s for s in selector.views}
    found = Counter()
    for event in steps(engine):
        view, request = told[event.request, event.context], requests[event.request]
        emitted = event.context - len(request.prompt_ids)
        assert view.emitted == emitted
        assert view.max_gamma == 16 - emitted - 1 and view.current == drafters.get(request.id)
        said = brute_force(request.ids[:event.context], 4)
        assert view.found == {"ngram": len(said)}
        assert event.drafter != "ngram" or event.drafted == said[:len(event.drafted)]
        drafters[request.id], found[bool(said)] = event.drafter, found[bool(said)] + 1
    assert min(found.values()) > 5


def test_a_seat_says_how_long_a_drafter_would_read_first():
    selector = Curious(["near", "ngram"], probes=0)
    engine = Engine(tiny.family(), max_batch=1, selector=selector, fast_switching=False)
    engine.generate([[1, 2, 3, 4] * 8], GREEDY)
    assert not selector.views[0].unread                     # it is not known yet how fast it reads
    pace, known = engine.selection.read_seconds["near"] / engine.selection.read_tokens["near"], len(selector.views)
    request, = engine.generate([[4, 3, 2, 1] * 8], GREEDY)
    first, *views = selector.views[known:]
    assert first.unread == {"near": pytest.approx(31 * pace)} and first.request == request.id
    ready = {e.context + len(e.emitted) for e in steps(engine) if e.drafter == "near" and e.drafted}
    assert any(view.context in ready for view in views)
    assert not any(view.unread for view in views if view.context in ready)


def brute_force(ids: list[int], count: int) -> list[int]:
    """What prompt lookup proposes."""
    for n in (3, 2):
        for start in range(len(ids) - n - 1, -1, -1):
            if ids[start:start + n] == ids[len(ids) - n:]:
                return ids[start + n:start + n + count]
    return []


class Broken(Restless):
    """Raises now and then, in whatever it is asked."""

    def __getattribute__(self, name):
        if name in ("assign", "observe", "probe", "scored", "finish") and \
                object.__getattribute__(self, "rng").random() < .3:
            raise ArithmeticError(f"{name} went wrong")
        return object.__getattribute__(self, name)


@pytest.mark.filterwarnings("ignore:the selector")
def test_a_selector_that_raises_costs_no_request():
    engine = Engine(tiny.family(), max_batch=3, selector=Broken(POOL, probes=0.5), capacities={"near": 1})
    with pytest.warns(RuntimeWarning, match="the selector raised ArithmeticError in assign: assign went wrong"):
        requests = engine.generate([[i, 4, i, 4] * 6 for i in range(9)], GREEDY)
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests)
    assert len({e.drafter for e in steps(engine)}) > 3
    assert_served(engine, requests, {"near": 1})


class Nonsense(Restless):
    """Answers what cannot be done, now and then."""

    def assign(self, views, capacities=None):
        choices = super().assign(views, capacities)
        for request in choices:
            choices[request] = [choices[request], Choice("nobody", 3), Choice("near", -1), Choice("near", 2.5), None,
                                Choice("near", 3)][self.rng.integers(6)]
        return choices if self.rng.random() < 0.7 else {}


@pytest.mark.filterwarnings("ignore:the selector")
def test_a_selector_that_answers_nonsense_costs_no_request():
    engine = Engine(tiny.family(), max_batch=3, selector=Nonsense(POOL), capacities={"near": 1})
    with pytest.warns(RuntimeWarning, match="'nobody' is none of its arms"):
        requests = engine.generate([[i, 4, i, 4] * 6 for i in range(9)], GREEDY)
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests)
    assert_served(engine, requests, {"near": 1})


@pytest.mark.parametrize("asked", ["available", "missing"])
def test_a_drafter_that_raises_when_it_is_asked_is_retired_and_the_selector_is_heard(asked, monkeypatch):
    """"ngram" is asked what it would find before every choice, "subset" what it misses before it reads along."""
    class Curious(Selector):
        def weights(self, views):
            return np.array([[float(a == "near") for a in self.arms] for _ in views])

        def probe(self, views):
            return {s.request: ["subset"] for s in views}

    def fail(*_):
        raise LookupError("no idea")

    name = {"available": "ngram", "missing": "subset"}[asked]
    engine = Engine(tiny.family(), max_batch=3, selector=Curious(["near", "subset", "ngram"]))
    monkeypatch.setattr(engine.drafters[name], asked, fail)
    with pytest.warns(RuntimeWarning, match=f"drafter '{name}' raised LookupError: no idea") as warned:
        requests = engine.generate([[i, 4, i, 4] for i in range(5)], GREEDY)
    assert len(warned) == 1 and set(engine.retired) == {name}
    assert not engine.selection.selector.alive[engine.selection.selector.index[name]]
    assert {e.drafter for e in steps(engine) if e.drafted} == {"near"}
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests)
    assert_served(engine, requests)


@pytest.mark.filterwarnings("error:the selector raised")
def test_a_finished_request_leaves_even_if_the_selector_raises():
    class Deaf(Restless):
        def observe(self, outcomes):
            raise ArithmeticError("too loud")

    engine = Engine(tiny.family(), max_batch=2, selector=Deaf(["near"]))
    requests = [engine.submit([i, 4], GREEDY.with_(max_new_tokens=1)) for i in (1, 2)]
    with pytest.raises(RuntimeWarning, match="ArithmeticError in observe: too loud"):
        engine.step()
    assert all(r.output_ids == plain(r.prompt_ids, 1) for r in requests)
    assert_served(engine, requests)


# ---- reading beside the others' work

class Mover(Selector):
    """The first arm for a while, then the second; gamma 3."""

    def __init__(self, arms, after: int = 4) -> None:
        super().__init__(arms, gamma=3)
        self.after = after

    def weights(self, views):
        return np.array([[float(a == self.arms[s.emitted >= self.after]) for a in self.arms] for s in views])

    def only_found(self, weights, views):
        return weights


def test_a_request_drafts_with_its_old_drafter_while_the_new_one_reads(monkeypatch):
    go = threading.Event()
    engine = Engine(tiny.family(), max_batch=2, selector=Mover(["ngram", "same"]))
    breaks(engine.drafters["same"], monkeypatch, lambda stopped: go.wait(20))
    request = engine.submit([5, 6, 7] * 8, SamplingParams(max_new_tokens=50, stop_ids=()))
    while len(request.output_ids) < 12:
        engine.step()
    assert {e.drafter for e in steps(engine)} == {"ngram"} and engine.selection.catch_ups.jobs
    go.set()
    while engine.selection.catch_ups.jobs and not engine.selection.catch_ups.jobs[0].done:
        time.sleep(0.001)
    drain(engine)
    drafters = [e.drafter for e in steps(engine)]
    assert drafters == sorted(drafters) and drafters.count("same") > 3      # it moved once, and stayed
    read, = [e for e in engine.trace.events if e.kind == "catch_up"]
    assert (read.drafter, read.request) == ("same", request.id) and 24 < read.catch_up_tokens < 36
    moved = [e for e in steps(engine) if e.drafter == "same"]
    assert all(e.accepted == len(e.drafted) for e in moved)                 # what it has read is right
    tiny.assert_greedy(engine.family.target, request, stop_ids=())


def test_nothing_is_learned_of_costs_from_passes_beside_a_reader(monkeypatch):
    go, told = threading.Event(), []
    selector = Mover(["ngram", "same"])
    selector.observe = told.extend
    engine = Engine(tiny.family(), max_batch=2, selector=selector)
    breaks(engine.drafters["same"], monkeypatch, lambda stopped: go.wait(20))
    engine.submit([5, 6, 7] * 8, SamplingParams(max_new_tokens=40, stop_ids=()))
    while not engine.selection.catch_ups.jobs:
        engine.step()
    assert any(o.rows for o in told[:-1]) and told[-1].rows == 0 and told[-1].valid
    line = engine.selection.cost.line
    engine.step()
    assert told[-1].rows == 0 and engine.selection.cost.line == line
    go.set()
    while not engine.selection.catch_ups.jobs[0].done:
        time.sleep(0.001)
    drain(engine)
    assert told[-1].rows > 0 and engine.selection.cost.line != line


def test_without_fast_switching_everybody_waits_and_the_move_is_at_once():
    engine = Engine(tiny.family(), max_batch=2, selector=Mover(["ngram", "same"]), fast_switching=False)
    request, = engine.generate([[5, 6, 7] * 8], SamplingParams(max_new_tokens=30, stop_ids=()))
    assert all(e.drafter == ("same" if e.context - 24 >= 4 else "ngram") for e in steps(engine) if e.context < 24 + 29)
    assert [e.drafter for e in engine.trace.events if e.kind == "catch_up"] == ["same"]
    tiny.assert_greedy(engine.family.target, request, stop_ids=())


def test_a_composition_whose_lookup_serves_need_not_wait_for_its_model():
    """Lookup drafts from the first step on, though the model behind it has read nothing of a long prompt yet."""
    engine = Engine(tiny.family(), max_batch=2, selector=make("fixed:ngram+near", ["ngram+near"], gamma=3))
    request, = engine.generate([[5, 6, 7] * 26], SamplingParams(max_new_tokens=8, stop_ids=()))
    first = steps(engine)[0]
    assert first.drafter == "ngram+near" and first.drafted == [5, 6, 7]
    tiny.assert_greedy(engine.family.target, request, stop_ids=())


@pytest.mark.parametrize("seed", range(2))
def test_random_delays_change_no_text(seed, monkeypatch):
    rng = random.Random(seed)
    engine = Engine(tiny.family(), max_batch=4, selector=Restless(POOL, seed, probes=0.6))
    for name in POOL:
        breaks(engine.drafters[name], monkeypatch, lambda stopped: time.sleep(rng.choice([0, 0, 0.002, 0.01])))
    requests = [engine.submit([i, 4, i, 5] * rng.randrange(1, 9), GREEDY) for i in range(12)]
    for request in requests[::4]:
        engine.step()
        engine.cancel(request)
    drain(engine)
    assert all(r.output_ids == plain(r.prompt_ids, len(r.output_ids)) for r in requests)
    assert all(len(r.output_ids) == 16 for r in requests if r.finish_reason is FinishReason.LENGTH)
    assert_served(engine, requests)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(3))
def test_reading_in_a_stream_of_its_own_changes_no_text(seed):
    """On a GPU: texts of the CPU's plain decoding, in float64; and a drafter that is the target is always right."""
    on_cpu = tiny.fed_family()
    target = copy.deepcopy(on_cpu.target).to("cuda")
    drafters = {"fed": copy.deepcopy(on_cpu.drafters["fed"].model), "near": tiny.family().drafters["near"].model,
                "same": on_cpu.target}
    family = tiny.TinyFamily(target, {name: tiny.TinyDrafter(name, copy.deepcopy(model).to("cuda"))
                                      for name, model in drafters.items()})
    engine = Engine(family, max_batch=4, selector=Restless([*drafters, "ngram", "ngram+near"], seed, probes=0.5))
    requests = engine.generate([[i, 4, i, 5] * (i % 5 + 1) for i in range(12)], GREEDY)
    for request in requests:
        tiny.assert_greedy(on_cpu.target, request, stop_ids=())
    assert all(e.accepted == len(e.drafted) for e in steps(engine) if e.drafter == "same")
    assert engine.trace.metrics()["catch_up_tokens"] > 50
    assert_served(engine, requests)


def test_chunks_read_what_one_pass_reads(monkeypatch):
    found = []
    for chunk in (3, 256):
        monkeypatch.setattr("spin_core.draft.model.CHUNK", chunk)
        drafter = ModelDrafter(tiny.family().drafters["near"], 2, tiny.MAX_CONTEXT, tiny.VOCAB)
        requests = [test_engine_service.Engine(tiny.family(), "none").generate([p], GREEDY)[0]
                    for p in ([1, 4], [7] * 11)]
        for slot, request in enumerate(requests):
            request.slot = slot
        found.append([(f.tokens, f.first, f.hits) for f in drafter.catch_up(requests)])
        assert drafter.runner.cache.lengths == [r.length - 1 for r in requests]
    assert found[0] == found[1] and sum(h for _, _, hits in found[0] for h in hits) > 3


def test_cancelling_ends_the_reading_before_the_slot_is_given_away(monkeypatch):
    reading = threading.Event()

    def read_for_ever(stopped):
        reading.set()
        while not stopped():
            time.sleep(0.001)

    engine = Engine(tiny.family(), max_batch=1, selector=Mover(["ngram", "near"], after=0))
    breaks(engine.drafters["near"], monkeypatch, read_for_ever)
    first = engine.submit([5, 6, 7] * 8, GREEDY)
    second = engine.submit([8, 4] * 8, GREEDY.with_(max_new_tokens=3))
    engine.step()
    assert reading.wait(20) and engine.selection.catch_ups.jobs
    engine.cancel(first)
    assert not engine.selection.catch_ups.jobs and not any(engine.drafters["near"].runner.cache.lengths)
    drain(engine)
    assert second.output_ids == plain(second.prompt_ids, 3)
    assert_served(engine, [first, second])


@pytest.mark.parametrize("cancel", [True, False])
def test_a_drafter_that_hangs_is_given_up_after_a_while(cancel, monkeypatch):
    """Nobody waits for ever: neither who leaves nor who would like to move, and other drafters still get to read."""
    monkeypatch.setattr(catchup, "PATIENCE", 0.5)
    go = threading.Event()
    selector = Restless(["near", "subset"], probes=1)
    engine = Engine(tiny.family(), max_batch=2, selector=selector)
    breaks(engine.drafters["near"], monkeypatch, lambda stopped: go.wait(60))
    requests = [engine.submit([i, 4] * 12, SamplingParams(max_new_tokens=40, stop_ids=())) for i in range(2)]
    for _ in range(3):
        engine.step()
    with pytest.warns(RuntimeWarning, match="drafter 'near' raised TimeoutError"):
        if cancel:
            engine.cancel(requests[0])
        else:
            time.sleep(0.6)
        drain(engine)
    assert "near" in engine.retired
    until = time.monotonic() + 20
    while not any(s.drafter == "subset" for s in selector.scores) and time.monotonic() < until:
        requests += engine.generate([[7, 4] * 12], SamplingParams(max_new_tokens=40, stop_ids=()))
    go.set()
    assert time.monotonic() < until, "the other drafter never got to read"
    assert all(r.output_ids == plain(r.prompt_ids, len(r.output_ids)) for r in requests)
    assert_served(engine, requests)


def test_a_step_does_not_wait_for_a_thread_that_was_given_up(monkeypatch):
    monkeypatch.setattr(catchup, "PATIENCE", 0.05)
    go = threading.Event()
    catch_ups = catchup.CatchUps(catchup.Worker())
    slow = types.SimpleNamespace(is_lookup=False, catch_up=lambda requests, stopped: go.wait(60))
    catch_ups.start("slow", slow, [])
    while not catch_ups.jobs[0].hung:
        time.sleep(0.01)
    began = time.monotonic()
    job, = catch_ups.collect()
    assert isinstance(job.error, TimeoutError) and time.monotonic() - began < 3
    go.set()
    catch_ups.close()


def test_the_worker_ends_with_its_engine():
    def workers() -> int:
        return sum(t.name == "spin-catch-up" for t in threading.enumerate())

    import gc
    gc.collect()
    before = workers()
    engine = Engine(tiny.family(), selector="random")
    engine.generate([[1, 2]], GREEDY)
    assert workers() == before + 1
    del engine
    gc.collect()
    until = time.monotonic() + 20
    while workers() > before and time.monotonic() < until:
        time.sleep(0.005)
    assert workers() == before


def test_a_program_may_end_while_a_drafter_reads():
    """Else the interpreter stops the thread in the midst of an operator, and torch takes the program down."""
    program = """
import sys, time, torch, tiny
from spin_core.engine import Engine
engine = Engine(tiny.family(), selector="fixed:near")
def catch_up(requests, stopped):
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        torch.randn(64, 64) @ torch.randn(64, 64)
    return []
engine.drafters["near"].catch_up = catch_up
engine.submit([1, 2] * 20)
engine.step()
assert engine.selection.catch_ups.jobs
"""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


# ---- what cannot be asked for

@pytest.mark.parametrize("options, reason", [
    (dict(drafter="near", capacities={"near": 2}), "capacities need a selector"),
    (dict(selector="spin", capacities={"nobody": 2}), "'nobody' cannot have 2 places"),
    (dict(selector="spin", capacities={"near": -1}), "'near' cannot have -1 places"),
    (dict(selector="spin", capacities={"near": 1.5}), "'near' cannot have 1.5 places"),
    (dict(selector="best"), "unknown selection policy 'best'"),
    (dict(selector=Restless(["near", "nobody"])), "unknown drafter 'nobody'"),
    (dict(selector=Restless(["near", "near+ngram"])), r"unknown drafter 'near\+ngram'")])
def test_impossible_selections_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        Engine(tiny.family(), **options)


def test_gamma_without_a_drafter_is_refused_where_a_selector_decides():
    engine = Engine(tiny.family(), selector="spin")
    with pytest.raises(ValueError, match="gamma is for requests that name their drafter"):
        engine.submit([1, 2], gamma=2)
    assert not engine.trace.events


@pytest.mark.parametrize("pipeline", ["off", 2])
def test_what_the_selector_took_is_told_once(pipeline, monkeypatch):
    """On a clock that ticks whenever it is read, every question takes one second."""
    engine = Engine(tiny.family(), selector="spin", arms=["near", "ngram"], max_batch=4, pipeline=pipeline)
    asked, ask = [], engine.selection._ask
    monkeypatch.setattr(engine.selection, "_ask", lambda *args: asked.append(args[0]) or ask(*args))
    monkeypatch.setattr("spin_core.select.assigner.time",
                        types.SimpleNamespace(perf_counter=itertools.count().__next__))
    engine.generate([[1, 2, i] for i in range(6)], GREEDY)
    told = {e.step: e.select_seconds for e in engine.trace.events if e.kind == "step"}
    assert sum(told.values()) + engine.selection.seconds == len(asked) > 2 * len(told)
