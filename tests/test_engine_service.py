"""The engine as a service: queue and memory, arrivals and cancellations, streams, stop strings, and what goes wrong."""

from __future__ import annotations

import gc
import random
import weakref
from functools import lru_cache

import numpy as np
import pytest
import tiny
import torch
import transformers
from hypothesis import given, settings, strategies as st

from spin_core.engine import Engine
from spin_core.request import FinishReason, SamplingParams
from spin_core.select import make

GREEDY = SamplingParams(max_new_tokens=16, stop_ids=())


@lru_cache(maxsize=None)
def _plain(prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(tiny.logits(tiny.family().target, ids)[-1].argmax()))
    return tuple(ids[len(prompt):])


def plain(prompt: list[int], count: int = 16) -> list[int]:
    """Greedy text of the common target; many tests ask for the same ones."""
    return list(_plain(tuple(prompt), count))


def drain(engine: Engine) -> None:
    while engine.queue or engine.running:
        engine.step()


# ---- queue and memory

@pytest.mark.parametrize("limits, together", [(dict(max_batch=3), 3), (dict(max_batch=5, kv_tokens=40), 2),
                                              (dict(max_batch=5, kv_tokens=96), 5), (dict(max_batch=1), 1)])
def test_requests_that_do_not_fit_wait_in_the_order_of_arrival(limits, together):
    engine = Engine(tiny.family(), "near", 3, **limits)
    requests = [engine.submit([i, 4], GREEDY) for i in range(11)]       # each may come to hold 18 tokens
    most = 0
    while engine.queue or engine.running:
        most = max(most, len({e.request for e in engine.step()}))
    assert most == together
    admitted = [e.request for e in engine.trace.events if e.kind == "admit"]
    assert admitted == [r.id for r in requests]
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests)
    tiny.assert_sound(engine, requests)


def test_a_large_request_at_the_head_is_not_overtaken_for_ever():
    engine = Engine(tiny.family(), "near", 3, max_batch=4, kv_tokens=40)
    requests = [engine.submit([i, 4], p) for i, p in enumerate([GREEDY, GREEDY.with_(max_new_tokens=38), GREEDY])]
    drain(engine)
    assert [e.request for e in engine.trace.events if e.kind == "admit"] == [r.id for r in requests]
    tiny.assert_sound(engine, requests)


def test_what_can_never_fit_fails_at_once_and_says_why():
    engine = Engine(tiny.family(), "near", 3, kv_tokens=40)
    request = engine.submit([1, 2], GREEDY.with_(max_new_tokens=39))
    assert request.finish_reason is FinishReason.ERROR and "41 tokens, more than kv_tokens = 40" in request.error
    tiny.assert_sound(engine, [request])


def test_requests_may_arrive_while_others_run():
    engine, requests = Engine(tiny.family(), "near", 3, max_batch=3, prefill_chunk=4), []
    for i in range(12):
        requests.append(engine.submit([i, 4, i, 5, 6, 7], GREEDY, drafter=tiny.DRAFTERS[i % 7]))
        engine.step()
    drain(engine)
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests)
    tiny.assert_sound(engine, requests)


def test_a_slot_that_still_holds_tokens_takes_in_no_request():
    engine = Engine(tiny.family(), "near", 3, max_batch=1)
    request = engine.submit([5, 3, 9], SamplingParams(max_new_tokens=6))
    engine.target.cache.lengths[0] = 2
    with pytest.raises(AssertionError, match="slot 0 still holds another request's tokens"):
        engine.step()
    assert list(engine.queue) == [request] and not engine.running
    engine.target.cache.truncate(0, 0)
    while not request.finished:
        engine.step()
    assert request.output_ids == engine.generate([[5, 3, 9]], SamplingParams(max_new_tokens=6))[0].output_ids


def test_an_engine_without_work_does_nothing():
    engine = Engine(tiny.family(), "near")
    assert engine.step() == [] and engine.generate([]) == [] and list(engine.stream([])) == []
    assert engine.trace.events == []


# ---- cancelling

def test_cancelling_at_every_stage():
    engine = Engine(tiny.family(), "near", 3, max_batch=1)
    finished, = engine.generate([[9, 9]], GREEDY)
    running, queued, last = (engine.submit([i, 4], GREEDY) for i in range(3))
    engine.step()
    engine.step()
    engine.cancel(queued)
    assert queued.finish_reason is FinishReason.CANCELLED and queued.output_ids == [] and queued.text == ""
    so_far = list(running.output_ids)
    engine.cancel(running)
    assert running.finish_reason is FinishReason.CANCELLED and running.output_ids == so_far
    assert 0 < len(so_far) < 16 and so_far == plain([0, 4])[:len(so_far)]
    assert running.text == engine.family.decode(so_far)
    engine.cancel(finished)
    engine.cancel(running)
    assert finished.finish_reason is FinishReason.LENGTH and finished.output_ids == plain([9, 9])
    drain(engine)                                   # the slot went to the next one
    assert last.output_ids == plain([2, 4])
    assert not any(e.request == queued.id for e in engine.trace.events if e.kind == "admit")
    tiny.assert_sound(engine, [finished, running, queued, last])


# ---- streams

def test_a_stream_tells_everything_in_order():
    engine = Engine(tiny.family(), "near", 3, max_batch=2)
    texts, ended, events = {}, set(), []
    for event in engine.stream([[i, 4] for i in range(5)], GREEDY):
        events.append(event)
        assert event.request not in ended, "the last tokens of a request come before its end"
        if event.kind == "submit":
            texts[event.request] = []
        if event.kind == "finish":
            ended.add(event.request)
        texts[event.request] += event.emitted
    assert list(texts.values()) == [plain([i, 4]) for i in range(5)] and ended == set(texts)
    assert events == engine.trace.events


def test_events_come_as_they_happen():
    engine = Engine(tiny.family(), "none", max_batch=2)
    first = next(e for e in engine.stream([[1, 4]], GREEDY) if e.emitted)
    assert first.emitted == plain([1, 4])[:1] and engine.steps == 1


@pytest.mark.parametrize("how", ["break", "raise"])
def test_a_consumer_that_stops_listening_ends_its_requests_and_no_others(how):
    engine = Engine(tiny.family(), "near", 3, max_batch=2)
    other = engine.submit([9, 9], GREEDY)
    try:
        for event in engine.stream([[i, 4] for i in range(5)], GREEDY):
            if event.emitted and event.request != other.id:
                if how == "raise":
                    raise RuntimeError("the picture could not be drawn")
                break
    except RuntimeError:
        pass
    gc.collect()                                    # the generator is closed when no reference is left
    assert len(engine.queue) + len(engine.running) == (not other.finished)
    drain(engine)
    assert other.output_ids == plain([9, 9])
    assert engine.generate([[7, 7]], GREEDY)[0].output_ids == plain([7, 7])
    tiny.assert_idle(engine)


def test_two_streams_share_an_engine():
    engine = Engine(tiny.family(), "near", 3, max_batch=3)
    one, two = (engine.stream([[i, 4], [i, 5]], GREEDY) for i in (1, 2))
    seen = [[], []]
    for pair in zip(one, two):
        for events, event in zip(seen, pair):
            events.append(event)
    for events, stream in zip(seen, (one, two)):
        events.extend(stream)
    texts = {}
    for event in seen[0] + [e for e in seen[1] if all(e is not s for s in seen[0])]:
        texts.setdefault(event.request, []).extend(event.emitted)
    assert sorted(texts.values()) == sorted(plain([i, j]) for i in (1, 2) for j in (4, 5))
    tiny.assert_idle(engine)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_generate_leaves_a_usable_engine(error, monkeypatch):
    engine = Engine(tiny.family(), "near", 3, max_batch=2)
    forward, calls = engine.target.forward, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise error
        return forward(*args)

    monkeypatch.setattr(engine.target, "forward", interrupted)
    with pytest.raises(error):
        engine.generate([[i, 4] for i in range(5)], GREEDY)
    tiny.assert_idle(engine)
    assert engine.generate([[7, 7]], GREEDY)[0].output_ids == plain([7, 7])


@pytest.mark.parametrize("pipeline", ["off", 1, 3, "async"])
@pytest.mark.parametrize("drafter", ["near", "ngram", "tree:near,ngram:2,1", "vote:near,other", "sparse:near:8"])
def test_a_step_that_fails_behind_the_targets_pass_is_taken_anew(drafter, pipeline, monkeypatch):
    """The target's cache holds drafts by then, and chunks of prompts; the next step's text is the same all the same."""
    def submit(engine):
        return [engine.submit([i, 4, i, 5, 6, 7, i, 4], GREEDY.with_(temperature=i % 2, seed=i)) for i in range(4)]

    undisturbed, engine = (Engine(tiny.family(), drafter, 3, max_batch=3, prefill_chunk=5, pipeline=how)
                           for how in ("off", pipeline))
    expected = submit(undisturbed)
    drain(undisturbed)
    forward, calls = engine.target.forward, []

    def failing(*args):
        out = forward(*args)
        calls.append(args)
        if len(calls) in (1, 3, 4, 6, 9):
            raise MemoryError("no room")
        return out

    monkeypatch.setattr(engine.target, "forward", failing)
    requests = submit(engine)
    raised = sum(tiny.steps(engine, MemoryError))
    assert raised == sum(n <= len(calls) for n in (1, 3, 4, 6, 9)) > 2
    assert [r.output_ids for r in requests] == [r.output_ids for r in expected]
    tiny.assert_idle(engine)


@pytest.mark.parametrize("pipeline", ["off", 1, 3, "async"])
@pytest.mark.filterwarnings("error")
def test_where_warnings_are_errors_a_drafter_that_raises_costs_no_token(pipeline, monkeypatch):
    """The warning raises in the midst of a step: what the step has brought is kept, who has finished has left."""
    engine = Engine(tiny.family(), "near", 3, max_batch=6, pipeline=pipeline)
    for name, bad in (("near", 3), ("subset", 2)):
        drafter, calls = engine.get_drafter(name), []

        def failing(*args, propose=drafter.propose, calls=calls, bad=bad):
            calls.append(args)
            if len(calls) == bad:
                raise RuntimeError("out of ideas")
            return propose(*args)

        monkeypatch.setattr(drafter, "propose", failing)
    requests = [engine.submit([i, 4, i, 4], GREEDY.with_(max_new_tokens=4 * i + 1), drafter=("near", "subset")[i % 2])
                for i in range(6)]
    raised = 0
    for failed in tiny.steps(engine, RuntimeWarning):
        raised += failed
        assert not any(r.finished and r in engine.running for r in requests)
    assert raised == 2 and set(engine.retired) == {"near", "subset"}
    assert all(r.output_ids == plain(r.prompt_ids, r.params.max_new_tokens) for r in requests)
    tiny.assert_sound(engine, requests)


@pytest.mark.parametrize("name", ["near", "ngram", "ngram+near", "vote:near,ngram", "tree:ngram:2", "tree:near:2,1"])
def test_what_a_drafter_keeps_of_a_request_that_left_is_noticed(name, monkeypatch):
    """The check that many tests end with finds what a drafter holds in any of its parts."""
    engine = Engine(tiny.family(), name, 3)
    rollback = engine.drafters[name].rollback
    monkeypatch.setattr(engine.drafters[name], "rollback", lambda slot, length: length and rollback(slot, length))
    engine.generate([[1, 4, 1, 4]], GREEDY)
    assert not engine.retired
    with pytest.raises(AssertionError, match="still holds something"):
        tiny.assert_idle(engine)


# ---- stop strings

@settings(max_examples=20, deadline=None)
@given(prompt=st.lists(st.integers(0, tiny.VOCAB - 1), min_size=1, max_size=6), at=st.integers(0, 15),
       length=st.integers(1, 4), gamma=st.sampled_from([0, 3, 7]), decoy=st.booleans())
def test_the_text_ends_before_the_first_stop_string(prompt, at, length, gamma, decoy):
    """The string may begin in the middle of one token and end in the middle of another."""
    family = tiny.family()
    output = plain(prompt)
    text = family.decode(output)
    stop = text[at:at + length]
    stops = (text[at + 1:at + 3] or stop, stop) if decoy else (stop,)
    engine = Engine(family, "near", gamma)
    request, = engine.generate([prompt], GREEDY.with_(stop=stops))
    assert request.finish_reason is FinishReason.STOP
    needed = next(n for n in range(17) if any(s in family.decode(output[:n]) for s in stops))
    assert request.output_ids == output[:needed], "it ends with the token that completes a stop string"
    heard = family.decode(output[:needed])
    assert request.text == heard[:min(heard.find(s) for s in stops if s in heard)]
    assert not any(s in request.text for s in stops)
    tiny.assert_sound(engine, [request])


def test_a_stop_string_at_the_very_beginning_leaves_no_text():
    text = tiny.family().decode(plain([1, 4]))
    request, = Engine(tiny.family(), "near", 3).generate([[1, 4]], GREEDY.with_(stop=text[:2]))
    assert request.text == "" and request.output_ids and request.finish_reason is FinishReason.STOP


def test_a_stop_token_that_completes_a_stop_string_cuts_the_text_too():
    output = plain([1, 4])
    stop, text = output[5], tiny.family().decode(output[:output.index(output[5]) + 1])
    request, = Engine(tiny.family(), "near", 3).generate([[1, 4]], GREEDY.with_(stop_ids=(stop,), stop=text[-2:]))
    assert request.finish_reason is FinishReason.STOP
    assert request.text == text[:text.find(text[-2:])]


def test_a_stop_string_of_one_request_is_text_for_another():
    output = tiny.family().decode(plain([1, 4]))
    stopped, free = Engine(tiny.family(), "near", 3).generate(
        [[1, 4]] * 2, [GREEDY.with_(stop=output[3:5]), GREEDY])
    assert stopped.text == output[:output.find(output[3:5])] and free.text == output


# ---- prompts and arguments that cannot be served (rule 9)

@pytest.mark.parametrize("prompt, reason", [
    ([], "the prompt is empty"), ("", "the prompt is empty"), ([5] * 24, "has 24 tokens; max_len 24"),
    ([5] * 500, "has 500 tokens"), ([5, tiny.VOCAB], f"token id {tiny.VOCAB}"), ([-1], "token id -1"),
    ([1.5], "float"), (["a"], "str"), (None, "NoneType"), ("a~", "not in list"), ([[1]], "list")])
def test_a_bad_prompt_fails_alone(prompt, reason):
    engine = Engine(tiny.family(), "near", 3, max_len=24)
    good, bad, after = engine.generate([[1, 4], prompt, [2, 4]], GREEDY)
    assert bad.finish_reason is FinishReason.ERROR and reason in bad.error and bad.output_ids == []
    assert good.output_ids == plain([1, 4]) and after.output_ids == plain([2, 4]) and good.error is None
    assert [e.kind for e in engine.trace.events if e.request == bad.id] == ["submit", "finish"]
    tiny.assert_sound(engine, [good, bad, after])


def test_text_is_encoded_and_integers_of_any_kind_are_ids():
    engine = Engine(tiny.family(), "near", 3)
    text, numbers = engine.generate(["be", torch.tensor([1, 4]).numpy().tolist()], GREEDY)
    assert text.prompt_ids == numbers.prompt_ids == [1, 4] and text.text == numbers.text


@pytest.mark.parametrize("name, value", [("gamma", -1), ("max_batch", 0), ("max_len", 1), ("max_len", 0),
                                         ("kv_tokens", 0), ("kv_tokens", 1), ("prefill_chunk", 0)])
def test_impossible_limits_are_refused_and_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        Engine(tiny.family(), **{"drafter": "none", name: value})


def test_unknown_drafters_list_the_known_ones():
    with pytest.raises(ValueError,
                       match="unknown drafter 'nera'; known: near, subset, other, same, short, ngram, none"):
        Engine(tiny.family(), "nera")
    engine = Engine(tiny.family(), "near")
    with pytest.raises(ValueError, match="unknown drafter 'x'"):
        engine.submit([1], drafter="x")
    with pytest.raises(ValueError, match="gamma"):
        engine.submit([1], gamma=-1)
    with pytest.raises(ValueError, match="2 prompts but 1 sampling parameters"):
        engine.generate([[1], [2]], [GREEDY])
    tiny.assert_idle(engine)
    assert engine.trace.events == []


def test_spin_is_the_default_and_a_named_drafter_is_classical_speculation():
    for engine in (Engine(tiny.family()), Engine(tiny.family(), selector="spin", verification="auto", pipeline="auto")):
        assert type(engine.selection.selector) is type(make("spin", [])) and engine.drafter is None
        assert engine.pipeline.heuristic
        assert engine.target.attention.strategy == "auto"
        assert engine.selection.selector.arms == ["near", "subset", "other", "same", "short", "ngram", "none"]
        assert engine.selection.selector.gamma.tolist() == [2, 2, 2, 2, 2, 4, 0], "passes cost, lookups do not"
    assert Engine(tiny.family(), gamma=3).selection.selector.gamma.tolist() == [3] * 6 + [0]
    assert Engine(tiny.TinyFamily(tiny.family().target, {})).selection.selector.arms == ["ngram", "none"]
    vanilla = Engine(tiny.family(), "near", verification="padded")
    assert vanilla.selection is None and vanilla.pipeline is None and vanilla.submit([1, 4]).gamma == 4
    assert Engine(tiny.family(), "near", pipeline="auto").pipeline.heuristic
    assert Engine(tiny.family(), pipeline="off").pipeline is None
    with pytest.raises(ValueError, match="a selector chooses drafters, drafter names one"):
        Engine(tiny.family(), "near", selector="spin")


# ---- NaN (rule 5)

def poisoned(token: int) -> tiny.TinyFamily:
    """The common family with a target in which everything behind ``token`` is NaN."""
    family = tiny.family()
    target = tiny.near(family.target, noise=0.0)
    target.get_input_embeddings().weight.data[token] = torch.nan
    return tiny.TinyFamily(target, family.drafters)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["near", "subset", "ngram", "none"])
def test_nan_fails_its_request_alone(drafter, temperature):
    params = GREEDY.with_(temperature=temperature, seed=4)
    before = Engine(tiny.family(), drafter, 3)
    healthy = before.generate([[i, 4, i] for i in range(1, 7)], params)
    # a token that the others neither hold nor try: even a rejected draft is in flight together with their own tokens
    used = {t for r in healthy for t in r.ids} | {t for e in before.trace.events for t in e.drafted}
    bad = min(set(range(tiny.VOCAB)) - used)
    engine = Engine(poisoned(bad), drafter, 3, max_batch=3, prefill_chunk=5)    # slots are used again after NaN
    batch = [p for r in healthy for p in (r.prompt_ids, [2, bad, 3, 5])]
    requests = engine.generate(batch, params)
    for request, mate in zip(requests[::2], healthy):
        assert request.output_ids == mate.output_ids and request.finish_reason == mate.finish_reason
        assert request.error is None
    for request in requests[1::2]:
        assert request.finish_reason is FinishReason.ERROR and request.output_ids == []
        assert "NaN" in request.error and "token 3" in request.error
    tiny.assert_sound(engine, requests)


@pytest.mark.parametrize("gamma", [0, 3])
def test_nan_in_mid_text_keeps_what_was_emitted_before(gamma):
    output = plain([1, 4])
    bad = output[6]
    engine = Engine(poisoned(bad), "same", gamma)
    request, = engine.generate([[1, 4]], GREEDY)
    assert request.finish_reason is FinishReason.ERROR
    assert request.output_ids == output[:len(request.output_ids)]
    assert output.index(bad) - gamma <= len(request.output_ids) <= output.index(bad) + 1
    assert request.text == engine.family.decode(request.output_ids)
    tiny.assert_sound(engine, [request])


# ---- drafters that fail

@pytest.mark.parametrize("name", ["near", "ngram"])
def test_a_drafter_that_raises_is_retired_and_costs_no_request(name, monkeypatch):
    engine = Engine(tiny.family(), name, 3, max_batch=4)
    drafter = engine.drafters[name]
    propose, calls = drafter.propose, []

    def failing(*args):
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("out of ideas")
        return propose(*args)

    monkeypatch.setattr(drafter, "propose", failing)
    requests = [engine.submit([i, 4, i, 4], GREEDY, drafter=d) for i in range(6) for d in (name, "subset")]
    with pytest.warns(RuntimeWarning, match=f"drafter '{name}' raised RuntimeError: out of ideas") as warned:
        drain(engine)
    assert len(warned) == 1 and len(calls) == 3 and "out of ideas" in str(engine.retired[name])
    requests += engine.generate([[8, 8]], GREEDY)           # asked for by name, it drafts nothing from now on
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests)
    drafted = {e.drafter for e in engine.trace.events if e.drafted}
    assert "subset" in drafted
    tiny.assert_sound(engine, requests)


def test_a_drafter_that_fails_within_its_pass_leaves_no_trace_in_the_text(monkeypatch):
    """It has read some tokens and drafted one when it fails; the target's cache knows nothing of it."""
    engine = Engine(tiny.family(), "near", 3, max_batch=2)
    runner = engine.drafters["near"].runner
    forward, calls = runner.forward, []

    def failing(*args):
        calls.append(args)
        if len(calls) == 5:
            raise MemoryError("no room")
        return forward(*args)

    monkeypatch.setattr(runner, "forward", failing)
    with pytest.warns(RuntimeWarning, match="MemoryError: no room"):
        requests = engine.generate([[i, 4] for i in range(4)], GREEDY)
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests)
    tiny.assert_sound(engine, requests)


def test_a_selectors_slip_of_the_pen_costs_speed_only():
    engine = Engine(tiny.family(), "near", 3)
    request = engine.submit([1, 4], GREEDY)
    engine.step()
    request.drafter = "nobody"
    with pytest.warns(RuntimeWarning, match="unknown drafter 'nobody'"):
        drain(engine)
    assert request.output_ids == plain([1, 4])


def test_a_drafter_of_an_unsupported_kind_is_refused_when_it_is_asked_for():
    config = transformers.MambaConfig(vocab_size=tiny.VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4)
    mamba = tiny.TinyDrafter("mamba", transformers.MambaForCausalLM(config).double())
    family = tiny.TinyFamily(tiny.family().target, {"mamba": mamba})
    with pytest.raises(NotImplementedError, match="MambaForCausalLM cannot"):
        Engine(family, "mamba")
    with pytest.raises(NotImplementedError, match="MambaForCausalLM cannot"):
        Engine(tiny.TinyFamily(mamba.model, {}), "none")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_whose_logits_are_nan_drafts_less(temperature, recwarn):
    """Behind three tokens of the vocabulary its model is NaN. The text is what the target says, without a warning."""
    family = tiny.family()
    broken = tiny.near(family.drafters["near"].model, noise=0.0)
    broken.get_input_embeddings().weight.data[[2, 8, 24]] = torch.nan
    family = tiny.TinyFamily(family.target, {"near": family.drafters["near"],
                                             "broken": tiny.TinyDrafter("broken", broken)})
    batch, params = [[i, 4] for i in range(12)], GREEDY.with_(temperature=temperature)
    drafted = []
    for name in ("near", "broken"):
        engine = Engine(family, name, 3, max_batch=5)
        requests = engine.generate(batch, params)
        assert all(r.error is None and len(r.output_ids) == 16 for r in requests)
        if temperature == 0:
            assert all(r.output_ids == plain(r.prompt_ids) for r in requests)
        drafted.append(engine.trace.metrics()["drafted"])
        tiny.assert_sound(engine, requests)
    assert 0 < drafted[1] < 0.8 * drafted[0]
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


# ---- a long life

def test_two_thousand_requests_leave_nothing_behind():
    engine, rng = Engine(tiny.family(), "near", 2, max_batch=64, max_len=16), random.Random(0)

    def serve(count: int) -> list[weakref.ref]:
        requests = [engine.submit([rng.randrange(tiny.VOCAB) for _ in range(rng.randrange(1, 8))],
                                  SamplingParams(max_new_tokens=rng.randrange(4), temperature=i % 2, seed=i),
                                  drafter=["near", "subset", "ngram", "none"][i % 4]) for i in range(count)]
        for request in requests[::50]:
            engine.cancel(request)
        drain(engine)
        assert all(r.finished and r.error is None for r in requests)
        return [weakref.ref(r) for r in requests]

    def size() -> int:
        """Objects reachable from the engine, its models and its events aside."""
        gc.collect()
        seen, todo = set(), [engine.queue, engine.running, engine.free_slots, engine.retired, engine.target.cache,
                             [getattr(d, "index", None) for d in engine.drafters.values()],
                             [d.runner.cache for d in engine.drafters.values() if hasattr(d, "runner")]]
        while todo:
            thing = todo.pop()
            if id(thing) not in seen and not isinstance(thing, (type, torch.dtype)):
                seen.add(id(thing))
                todo.extend(x for x in gc.get_referents(thing) if isinstance(x, (list, dict, tuple, torch.Tensor)))
        return len(seen)

    serve(200)
    before = size(), set(vars(engine)), len(engine.drafters)
    gone = serve(1800)
    tiny.assert_idle(engine)
    assert (size(), set(vars(engine)), len(engine.drafters)) == before
    assert not [ref for ref in gone if ref() is not None], "the engine still holds finished requests"
    assert engine.trace.metrics()["requests"] == 2000


@pytest.mark.parametrize("limit", ["gamma", "max_batch", "max_len", "kv_tokens", "prefill_chunk"])
def test_a_limit_that_is_no_integer_is_refused(limit):
    with pytest.raises(ValueError, match=f"Engine: {limit} must be an integer, got 2.5"):
        Engine(tiny.family(), "near", **{limit: 2.5})


def test_a_gamma_that_is_no_integer_is_refused_before_a_drafter_meets_it():
    engine = Engine(tiny.family(), "near")
    with pytest.raises(ValueError, match="gamma must be an integer"):
        engine.submit([1, 2], gamma=2.5)
    assert not engine.retired and not engine.trace.events


@pytest.mark.parametrize("prompt", [None, 3, {"role": "user", "content": "a"}, ["a"], [1.0]])
def test_what_is_no_prompt_fails_alone_and_is_told_what_a_prompt_is(prompt):
    bad, good = Engine(tiny.family(), "near", 3).generate([prompt, [1, 2]], GREEDY)
    assert bad.finish_reason is FinishReason.ERROR and "a prompt is a string, a list of chat messages" in bad.error
    assert good.output_ids == plain([1, 2])


@pytest.mark.parametrize("how", ["generate", "stream"])
@pytest.mark.parametrize("wrong", [{"temperature": 1.0}, {}, 0.5, False])
def test_parameters_of_another_type_are_refused_and_no_request_stays_queued(how, wrong):
    engine = Engine(tiny.family(), "near")
    with pytest.raises(TypeError, match="Engine.submit: params must be a SamplingParams or None, got"):
        engine.submit([1, 2], wrong)
    assert not engine.trace.events
    with pytest.raises(TypeError, match="params must be a SamplingParams"):
        list(getattr(engine, how)([[1, 4], [2, 4]], [GREEDY, wrong]))
    assert [(e.kind, e.reason) for e in engine.trace.events] == [("submit", None), ("finish", "cancelled")]
    tiny.assert_idle(engine)


def test_integers_of_numpy_are_integers():
    engine = Engine(tiny.family(), gamma=np.int64(3), pipeline=np.int64(2), max_batch=np.int64(2))
    requests = engine.generate([[1, 4], [2, 4]], GREEDY)
    assert all(r.output_ids == plain(r.prompt_ids) for r in requests)


def test_a_selector_needs_something_to_draft():
    with pytest.raises(ValueError, match="Engine: with a selector, gamma must be at least 1, got 0"):
        Engine(tiny.family(), gamma=0)


def test_one_string_is_not_taken_for_many_prompts():
    engine = Engine(tiny.family(), "near")
    with pytest.raises(TypeError, match=r"prompts must be a list, such as \['abc'\]"):
        engine.generate("abc")
    assert not engine.trace.events


def test_old_names_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match='pipeline="ahead" is called "async" now'):
        engine = Engine(tiny.family(), "near", 3, pipeline="ahead")
    assert engine.generate([[1, 4]], GREEDY)[0].output_ids == plain([1, 4])
    with pytest.warns(DeprecationWarning, match="record_laws is called record_probs now"):
        engine = Engine(tiny.family(), "near", 3, record_laws=True)
    engine.generate([[1, 4]], GREEDY)
    assert any(e.distributions for e in engine.trace.events)


def test_impossible_limits_of_time_and_trace_are_refused():
    for wrong in (0, -1.0, float("nan"), float("inf"), 1e30):
        with pytest.raises(ValueError, match="stage_timeout must be a positive number of seconds"):
            Engine(tiny.family(), "near", stage_timeout=wrong)
    with pytest.raises(ValueError, match="limit is a positive number of events or None"):
        Engine(tiny.family(), "near", trace_limit=0)
