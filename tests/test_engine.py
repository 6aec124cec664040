"""The engine's promise: speculation changes when a text comes, never which text.

Greedy texts are compared with plain decoding by the unmodified model, sampled ones with the same request served alone.
All in float64, where the comparison is exact (rule 14).
"""

from __future__ import annotations

import random
from functools import lru_cache

import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.decompose.plan import STRATEGIES
from spin_core.engine import Engine
from spin_core.request import FinishReason, Request, SamplingParams

tokens = st.integers(0, tiny.VOCAB - 1)
prompts = st.lists(tokens, min_size=1, max_size=20)
drafters = st.sampled_from(tiny.DRAFTERS)
gammas = st.sampled_from([0, 1, 2, 4, 9])


@st.composite
def engines(draw) -> Engine:
    """An engine with limits of every size, tight ones included."""
    max_len = draw(st.sampled_from([24, 40, None]))
    room = max_len or tiny.MAX_CONTEXT
    return Engine(tiny.family(), draw(drafters), draw(gammas), max_batch=draw(st.integers(1, 5)), max_len=max_len,
                  kv_tokens=draw(st.sampled_from([None, room, room + 10, 2 * room])),
                  prefill_chunk=draw(st.sampled_from([1, 3, 8, 512])), verification=draw(st.sampled_from(STRATEGIES)))


def drain(engine: Engine) -> None:
    while engine.queue or engine.running:
        engine.step()


def assert_greedy(engine: Engine, request: Request) -> None:
    tiny.assert_greedy(engine.family.target, request, max_len=engine.max_len)


# ---- greedy equality, and independence of everything around a request (rules 12 and 14)

@settings(max_examples=20, deadline=None)
@given(engine=engines(), batch=st.lists(st.tuples(prompts, st.integers(1, 25), drafters, gammas), min_size=1,
                                        max_size=5))
def test_greedy_text_is_that_of_plain_decoding(engine, batch):
    requests = [engine.submit(prompt, SamplingParams(max_new_tokens=n), drafter=drafter, gamma=gamma)
                for prompt, n, drafter, gamma in batch]
    drain(engine)
    for request in requests:
        assert request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), request.error
        assert_greedy(engine, request)
        assert request.text == engine.family.decode(request.output_ids)
    tiny.assert_sound(engine, requests)


@pytest.mark.parametrize("drafter", tiny.DRAFTERS)
def test_greedy_text_is_that_of_the_librarys_generate(drafter):
    family, rng = tiny.family(), random.Random(0)
    batch = [[rng.randrange(tiny.VOCAB) for _ in range(rng.randrange(1, 30))] for _ in range(4)]
    requests = Engine(family, drafter, 3, max_batch=3).generate(batch, SamplingParams(max_new_tokens=20))
    for prompt, request in zip(batch, requests):
        plain = family.target.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)),
                                       max_new_tokens=20, do_sample=False, eos_token_id=tiny.STOP, pad_token_id=0)
        assert request.output_ids == plain[0, len(prompt):].tolist()


@pytest.mark.parametrize("drafter", ["near", "subset", "ngram", "none"])
def test_greedy_text_is_equal_in_single_precision_too(drafter):
    family, rng = tiny.family(torch.float32), random.Random(1)
    batch = [[rng.randrange(tiny.VOCAB) for _ in range(rng.randrange(1, 30))] for _ in range(10)]
    engine = Engine(family, drafter, 3, max_batch=8)
    for request in engine.generate(batch, SamplingParams(max_new_tokens=30)):
        assert_greedy(engine, request)


sampling = st.builds(SamplingParams, temperature=st.sampled_from([0.0, 0.7, 1.0, 1.0]), top_k=st.sampled_from([0, 5]),
                     top_p=st.sampled_from([1.0, 0.8]), min_p=st.sampled_from([0.0, 0.05]),
                     max_new_tokens=st.integers(1, 15), seed=st.integers(0, 2**40))


@lru_cache
def solo_engine(max_len: int) -> Engine:
    return Engine(tiny.family(), "none", max_batch=1, max_len=max_len)


@settings(max_examples=15, deadline=None)
@given(engine=engines(), seed=st.integers(0, 99),
       batch=st.lists(st.tuples(prompts, sampling, drafters, gammas), min_size=2, max_size=5))
def test_sampled_text_depends_on_prompt_and_seed_alone(engine, seed, batch):
    """Not on batch mates, slots, the order of arrival, chunks, or limits."""
    def submit(engine, prompt, params, drafter, gamma):
        return engine.submit(prompt, params, drafter=drafter, gamma=gamma)

    alone = []
    solo = solo_engine(engine.max_len)
    for item in batch:
        alone.append(submit(solo, *item))
        drain(solo)
    order = random.Random(seed).sample(range(len(batch)), len(batch))
    together = {}
    for number in order:
        together[number] = submit(engine, *batch[number])
        if seed % 2:                                # arrive while the others run
            engine.step()
    drain(engine)
    for number, request in enumerate(alone):
        assert together[number].output_ids == request.output_ids
        assert together[number].text == request.text
        assert together[number].finish_reason == request.finish_reason
    tiny.assert_sound(engine, list(together.values()))


def test_equal_requests_in_one_batch_are_equal_and_seeds_matter():
    engine = Engine(tiny.family(), "near", 3, max_batch=6)
    same = engine.generate([[5, 6, 7]] * 6, SamplingParams(temperature=1.0, seed=9, max_new_tokens=15))
    assert len({r.text for r in same}) == 1
    others = engine.generate([[5, 6, 7]] * 20, [SamplingParams(temperature=1.0, seed=s, max_new_tokens=15, stop_ids=())
                                                for s in range(20)])
    assert len({r.text for r in others}) == 20


# ---- switching drafters in mid-request (rule 13), with arrivals and cancellations in between

actions = st.one_of(
    st.tuples(st.just("submit"), prompts, st.integers(1, 25), drafters, gammas),
    st.tuples(st.just("switch"), st.integers(0, 9), drafters, gammas),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("cancel"), st.integers(0, 9)))


@settings(max_examples=30, deadline=None)
@given(engine=engines(), script=st.lists(actions, min_size=4, max_size=20))
def test_any_course_of_events_leaves_greedy_text_as_it_is(engine, script):
    requests: list[Request] = []
    for kind, *what in script:
        if kind == "submit":
            prompt, n, drafter, gamma = what
            requests.append(engine.submit(prompt, SamplingParams(max_new_tokens=n), drafter=drafter, gamma=gamma))
        elif kind == "step":
            for _ in range(what[0]):
                engine.step()
        elif requests:
            request = requests[what[0] % len(requests)]
            if kind == "cancel":
                engine.cancel(request)
            else:
                request.drafter, request.gamma = what[1:]
    drain(engine)
    tiny.assert_sound(engine, requests)
    for request in requests:
        if request.finish_reason is FinishReason.CANCELLED:         # then a prefix is right
            request.params = request.params.with_(max_new_tokens=len(request.output_ids))
        assert_greedy(engine, request)


@settings(max_examples=10, deadline=None)
@given(batch=st.lists(prompts, min_size=1, max_size=4), seed=st.integers(0, 999))
def test_a_drafter_for_every_step(batch, seed):
    rng, engine = random.Random(seed), Engine(tiny.family(), "near", 3, max_batch=4)
    requests = [engine.submit(p, SamplingParams(max_new_tokens=30)) for p in batch]
    while engine.running or engine.queue:
        for request in requests:
            request.drafter, request.gamma = rng.choice(tiny.DRAFTERS), rng.randrange(6)
        engine.step()
    for request in requests:
        assert_greedy(engine, request)


# ---- the caches: rules 10 and 11

@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("others", [[], ["ngram", "none", "near"]])
def test_a_drafter_equal_to_the_target_is_never_refused(temperature, others):
    """So it has seen everything that is committed, its own last token after full acceptance included, wherever
    other drafters have had the request in between."""
    rng, engine = random.Random(3), Engine(tiny.family(), "same", 4, max_batch=3)
    requests = [engine.submit([i, 2 * i + 1], SamplingParams(temperature=temperature, seed=i, max_new_tokens=40,
                                                             stop_ids=())) for i in range(6)]
    full = 0
    while engine.running or engine.queue:
        for request in requests:
            request.drafter, request.gamma = rng.choice(["same", *others]), rng.randrange(5)
        for event in engine.step():
            if event.drafter == "same":
                assert event.accepted == len(event.drafted)
                full += event.accepted > 1
    assert full > 10


def test_every_cache_holds_what_is_committed_row_by_row():
    engine = Engine(tiny.family(), "near", 4, max_batch=4)
    for i in range(8):
        engine.submit([i, 7, i], SamplingParams(max_new_tokens=30), drafter=["near", "subset"][i % 2])
    differing = 0
    while engine.running or engine.queue:
        events = {e.request: e for e in engine.step()}
        differing += len({e.accepted for e in events.values()}) > 1
        for request in engine.running:
            event = events[request.id]
            # the target's newest token is in no cache yet; a fully accepted draft's last one not in the drafter's
            assert engine.target.cache.lengths[request.slot] == request.length - 1
            drafter = engine.drafters[request.drafter].runner.cache.lengths[request.slot]
            unread = event.drafted and event.accepted == len(event.drafted)
            assert not event.drafted or drafter == request.length - 1 - bool(unread)
    assert differing > 10, "the rows never accepted different counts, so this showed nothing"


def test_stale_entries_are_never_read():
    """NaN behind every cache's end before every step changes nothing."""
    engine = Engine(tiny.family(), "near", 4, max_batch=3)
    requests = [engine.submit([i, 7, i], SamplingParams(max_new_tokens=30)) for i in range(6)]
    while engine.running or engine.queue:
        engine.step()
        for cache in (engine.target.cache, engine.drafters["near"].runner.cache):
            for slot, length in enumerate(cache.lengths):
                for store in cache.k + cache.v:
                    store[slot, :, length:] = torch.nan
    for request in requests:
        assert_greedy(engine, request)


# ---- lengths and stops: rules 8 and 9

@settings(max_examples=15, deadline=None)
@given(prompt=prompts, at=st.integers(0, 14), gamma=st.integers(1, 9), temperature=st.sampled_from([0.0, 1.0]))
def test_the_first_stop_token_in_an_accepted_run_is_the_end(prompt, at, gamma, temperature):
    params = SamplingParams(max_new_tokens=20, stop_ids=(), temperature=temperature, seed=at)
    free, = Engine(tiny.family(), "same", gamma).generate([prompt], params)
    stop = free.output_ids[at]
    first = free.output_ids.index(stop)
    engine = Engine(tiny.family(), "same", gamma)
    request, = engine.generate([prompt], params.with_(stop_ids=(stop,)))
    assert request.output_ids == free.output_ids[:first + 1] and request.finish_reason is FinishReason.STOP
    metrics = engine.trace.metrics()
    assert metrics["emitted"] == first + 1
    steps = [e for e in engine.trace.events if e.kind == "step"]
    # every step emits gamma accepted tokens and one more
    used = sum(min(e.accepted, len(e.emitted)) for e in steps)
    assert used == first + 1 - sum(len(e.emitted) == gamma + 1 for e in steps)
    assert metrics["accepted"] == metrics["drafted"], "what lies behind the stop is not used, and was not rejected"
    tiny.assert_sound(engine, [request])


def test_stop_ids_override_the_models_own():
    family = tiny.family()
    prompt = next(p for p in range(tiny.VOCAB) if tiny.STOP in
                  Engine(family, "none").generate([[p]], SamplingParams(max_new_tokens=30))[0].output_ids[1:])
    params = SamplingParams(max_new_tokens=30)
    own, never, first = (Engine(family, "near").generate([[prompt]], p)[0] for p in (
        params, params.with_(stop_ids=()), params.with_(stop_ids=[*range(tiny.VOCAB)])))
    assert own.output_ids[-1] == tiny.STOP and own.finish_reason is FinishReason.STOP
    assert len(never.output_ids) == 30 and never.finish_reason is FinishReason.LENGTH
    assert never.output_ids[:len(own.output_ids)] == own.output_ids
    assert first.output_ids == own.output_ids[:1] and first.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("drafter", tiny.DRAFTERS)
@pytest.mark.parametrize("gamma", [0, 1, 5])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_new_tokens(drafter, gamma, count):
    engine = Engine(tiny.family(), drafter, gamma)
    requests = engine.generate([[1, 2, 1, 2], [9]], SamplingParams(max_new_tokens=count, stop_ids=()))
    for request in requests:
        assert len(request.output_ids) == count and request.finish_reason is FinishReason.LENGTH
        tiny.assert_greedy(engine.family.target, request, stop_ids=())
    tiny.assert_sound(engine, requests)
    if count == 0:
        assert engine.step() == [] and all(r.text == "" for r in requests)


@pytest.mark.parametrize("length", [1, 22, 23])
@pytest.mark.parametrize("drafter", ["same", "short"])
def test_the_context_ends_a_text(length, drafter):
    """One token of room gives one token; a drafter with a shorter context of 20 just stops drafting there."""
    engine = Engine(tiny.family(), drafter, 4, max_len=24)
    request, = engine.generate([[5] * length], SamplingParams(max_new_tokens=90, stop_ids=()))
    assert len(request.output_ids) == 24 - length and request.finish_reason is FinishReason.LENGTH
    tiny.assert_greedy(engine.family.target, request, stop_ids=(), max_len=24)
    tiny.assert_sound(engine, [request])
    # drafts reach exactly as far as the room goes: the last token is the target's own
    furthest = max((e.context + len(e.drafted) for e in engine.trace.events if e.drafted), default=None)
    assert furthest == {"same": {1: 23, 22: 23}, "short": {1: 20}}[drafter].get(length)


def test_the_models_own_context_is_the_largest_max_len():
    assert Engine(tiny.family(), max_len=10**6).max_len == tiny.MAX_CONTEXT
    engine = Engine(tiny.family(), "same", 4)
    request, = engine.generate([[5] * 80], SamplingParams(max_new_tokens=90, stop_ids=()))
    assert request.length == tiny.MAX_CONTEXT
    tiny.assert_greedy(engine.family.target, request, stop_ids=())


def test_long_prompts_are_read_in_chunks_beside_the_others_decoding():
    engine = Engine(tiny.family(), "near", 2, max_batch=4, prefill_chunk=8)
    early = engine.submit([4, 5], SamplingParams(max_new_tokens=30, stop_ids=()))
    engine.step()
    long = [engine.submit(p, SamplingParams(max_new_tokens=3)) for p in ([6] * 30, [7] * 5)]
    steps = [engine.step() for _ in range(4)]
    reading = [[e for e in events if e.request == long[0].id] for events in steps]
    assert [bool(e.emitted) for events in reading for e in events] == [False, False, False, True]   # 8 + 8 + 8 + 6
    # 8 tokens a step for all prompts together: the second one gets its turn when the first leaves some
    assert [len([e for e in events if e.request == long[1].id]) for events in steps] == [0, 0, 0, 1]
    assert all(any(e.request == early.id and e.emitted for e in events) for events in steps)
    drain(engine)
    for request in long:
        assert_greedy(engine, request)
    tiny.assert_greedy(engine.family.target, early, stop_ids=())


# ---- vocabulary: rule 7

def test_ids_of_the_heads_padding_are_never_emitted():
    family = tiny.TinyFamily(tiny.llama(3), {}, vocab_size=tiny.VOCAB - 8, stop_ids=())
    family.drafters["close"] = tiny.TinyDrafter("close", tiny.near(family.target))
    with torch.no_grad():       # padding that shouts
        family.target.lm_head.weight[-8:] *= 4
    engine = Engine(family, "close", 3)
    batch = [[i, 3, i] for i in range(10)]
    for request in engine.generate(batch, SamplingParams(max_new_tokens=20)):
        tiny.assert_greedy(family.target, request, vocab_size=family.vocab_size, stop_ids=())
        louder = tiny.logits(family.target, request.ids).argmax(-1) >= family.vocab_size
        assert louder.sum() > 5, "the padding was never the largest, so this showed nothing"
    sampled = engine.generate(batch, SamplingParams(max_new_tokens=20, temperature=2.0))
    assert max(max(r.output_ids) for r in sampled) < family.vocab_size
    request = engine.submit([family.vocab_size], SamplingParams())
    assert request.finish_reason is FinishReason.ERROR and "outside the vocabulary" in request.error


def test_a_subset_drafter_never_drafts_outside_its_ids_and_text_still_goes_there():
    family = tiny.family()
    engine = Engine(family, "subset", 3)
    params = SamplingParams(max_new_tokens=25, temperature=1.0, stop_ids=())
    requests = engine.generate([[i] for i in range(12)], params)
    known = set(family.drafters["subset"].ids.tolist())
    assert all(set(e.drafted) <= known for e in engine.trace.events)
    assert any(set(r.output_ids) - known for r in requests)
    assert engine.trace.metrics()["acceptance_rate"] > 0.2
