"""Faults from outside: malformed drafts, selectors' nonsense, drafters that hang, calls from several threads.

Whatever comes in through a door of the engine, requests end with the texts that they would have had without it.
"""

from __future__ import annotations

import collections
import functools
import gc
import random
import threading
import time
import warnings

import numpy as np
import pytest
import tiny
import torch

from spin_core.draft import CaughtUp, Draft, Tree
from spin_core.draft.tree import Proposal
from spin_core.engine import Engine
from spin_core.request import FinishReason, SamplingParams
from spin_core.select import Choice, Selector

PIPELINES = ["off", 2, "auto", "async"]
GREEDY = SamplingParams(max_new_tokens=12, stop_ids=())
SAMPLED = GREEDY.with_(temperature=1.0, top_k=9)
VOCAB = tiny.VOCAB


@functools.cache
def plain(prompt: tuple[int, ...], length: int = 12) -> list[int]:
    """Greedy text without drafts."""
    return Engine(tiny.family(), "none", pipeline="off").generate(
        [list(prompt)], GREEDY.with_(max_new_tokens=length))[0].output_ids


def serve(engine: Engine) -> None:
    deadline = time.monotonic() + 120
    while engine.queue or engine.running:
        engine.step()
        assert time.monotonic() < deadline, "no progress"


# ---- malformed drafts

def chain(count: int, **changes) -> Draft:
    """A sound draft of ``count`` tokens for one request, but for ``changes``; they are made behind every check."""
    draft = Draft(torch.arange(count) % VOCAB, torch.tensor([0, count]), torch.full((count, VOCAB), 1 / VOCAB),
                  torch.arange(count))
    return changed(draft, **changes)


def tree(count: int, **changes) -> Draft:
    draft = Tree(torch.arange(count) % VOCAB, torch.tensor([0, count]), parents=torch.arange(count) - 1, way="top_k",
                 drafters=("tree",))
    return changed(draft, **changes)


def changed(draft: Draft, **changes) -> Draft:
    for name, value in changes.items():
        setattr(draft, name, value)
    return draft


def uniform(count: int, width: int = VOCAB, total: float = 1.0) -> torch.Tensor:
    return torch.full((count, width), total / width)


def spoiled(value: float) -> torch.Tensor:
    probs = uniform(3)
    probs[1, 5] = value
    return probs


MALFORMED = {       # of a draft of three tokens for one request
    "None": lambda: None,
    "a list": lambda: [[1, 2, 3]],
    "id outside the vocabulary": lambda: chain(3, tokens=torch.tensor([1, VOCAB, 2])),
    "huge id": lambda: chain(3, tokens=torch.tensor([1, 2**40, 2])),
    "negative id": lambda: chain(3, tokens=torch.tensor([1, -2, 2])),
    "float ids": lambda: chain(3, tokens=torch.tensor([1.0, 2.5, 2.0])),
    "ids in two dimensions": lambda: chain(3, tokens=torch.tensor([[1, 2, 2]])),
    "a token more than asked": lambda: chain(4),
    "201 tokens": lambda: chain(201),
    "no request": lambda: Draft.empty(0),
    "two requests": lambda: chain(3, cu=torch.tensor([0, 1, 3])),
    "cu empty": lambda: chain(3, cu=torch.tensor([], dtype=torch.int64)),
    "cu beyond the tokens": lambda: chain(3, cu=torch.tensor([0, 5])),
    "cu short of the tokens": lambda: chain(3, cu=torch.tensor([0, 1])),
    "cu that does not begin at 0": lambda: chain(3, cu=torch.tensor([1, 3])),
    "cu that falls": lambda: chain(3, cu=torch.tensor([3, 0])),
    "float cu": lambda: chain(3, cu=torch.tensor([0.0, 3.0])),
    "probs too narrow": lambda: chain(3, probs=uniform(3, 7)),
    "probs too wide": lambda: chain(3, probs=uniform(3, VOCAB + 1)),
    "probs in one dimension": lambda: chain(3, probs=torch.full((VOCAB,), 1 / VOCAB)),
    "whole probs": lambda: chain(3, probs=torch.ones(3, VOCAB, dtype=torch.int64)),
    "probs missing": lambda: chain(3, probs=None),
    "prob_row out of range": lambda: chain(3, prob_row=torch.tensor([0, 1, 3])),
    "prob_row below -1": lambda: chain(3, prob_row=torch.tensor([0, -2, 1])),
    "prob_row too short": lambda: chain(3, prob_row=torch.tensor([0, 1])),
    "prob_row float": lambda: chain(3, prob_row=torch.tensor([0.0, 1.0, 2.0])),
    "NaN in probs": lambda: chain(3, probs=spoiled(torch.nan)),
    "inf in probs": lambda: chain(3, probs=spoiled(torch.inf)),
    "negative probs": lambda: chain(3, probs=spoiled(-1e-3)),
    "probs of sum 2": lambda: chain(3, probs=uniform(3, total=2.0)),
    "ids that fall": lambda: chain(3, ids=torch.arange(VOCAB).flip(0)),
    "ids outside the vocabulary": lambda: chain(3, ids=torch.arange(VOCAB) + 1),
    "ids of another width": lambda: chain(3, ids=torch.arange(5)),
    "a tree deeper than asked": lambda: tree(4),
    "a tree of more nodes than fit": lambda: tree(200, parents=torch.full((200,), -1)),
    "float parents": lambda: tree(3, parents=torch.tensor([-1.0, 0.0, 0.5])),
    "a parent behind its child": lambda: tree(3, parents=torch.tensor([-1, 2, 1])),
    "too few parents": lambda: tree(3, parents=torch.tensor([-1, 0])),
    "proposals for no request": lambda: tree(3, proposals=[]),
    "a proposal of no node": lambda: tree(3, proposals=[[Proposal(n, -1) for n in (0, 1, 7)]]),
    "a proposal from no distribution": lambda: tree(3, proposals=[[Proposal(n, 4) for n in range(3)]]),
    "a proposal of no drafter": lambda: tree(3, proposals=[[Proposal(n, -1, 9) for n in range(3)]]),
    "proposals that are no numbers": lambda: tree(3, proposals=[[Proposal(0.5, -1), Proposal("1", -1)]]),
}


def serve_broken(pipeline, params: SamplingParams, broken) -> tuple[Engine, list]:
    """Each kind of fault has a drafter and a request of its own; it drafts well twice, and then ``broken(kind)``."""
    near = tiny.family().drafters["near"].model
    kinds = dict(enumerate(MALFORMED))
    family = tiny.TinyFamily(tiny.family().target, {f"d{i}": tiny.TinyDrafter(f"d{i}", near) for i in kinds})
    engine = Engine(family, "none", 3, pipeline=pipeline, max_batch=8)
    for i, kind in kinds.items():
        drafter, calls = engine.get_drafter(f"d{i}"), []

        def propose(requests, counts, sound=drafter.propose, calls=calls, kind=kind):
            if counts == [3]:
                calls.append(kind)
            return broken(kind) if len(calls) == 3 else sound(requests, counts)

        drafter.propose = propose
    requests = [engine.submit([i % VOCAB, 4, i % 7], params.with_(seed=i, max_new_tokens=24), drafter=f"d{i}")
                for i in kinds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        serve(engine)
    return engine, requests


def raising(kind: str):
    raise RuntimeError("out of ideas")


@functools.cache
def undisturbed(params: SamplingParams) -> list[list[int]]:
    """Texts where each drafter raises instead, which costs it its place and nothing else."""
    return [r.output_ids for r in serve_broken("off", params, raising)[1]]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_drafter_that_answers_nonsense_is_retired_and_costs_no_request(pipeline, params):
    engine, requests = serve_broken(pipeline, params, lambda kind: MALFORMED[kind]())
    broke = {f"d{i}" for i, r in enumerate(requests) if f"d{i}" in engine.retired}
    assert broke == {f"d{i}" for i in range(len(MALFORMED))}, \
        [kind for i, kind in enumerate(MALFORMED) if f"d{i}" not in broke]
    assert [r.output_ids for r in requests] == undisturbed(params)
    assert all(r.finish_reason is FinishReason.LENGTH for r in requests)
    tiny.assert_idle(engine)


def test_sound_drafts_pass_the_check():
    for draft in (chain(3), tree(3), chain(0), Draft.one_hot([[1, 2, 3]]),
                  chain(3, probs=uniform(3, 5), ids=torch.arange(5) * 3),
                  chain(3, probs=uniform(3).to(torch.bfloat16))):
        engine = Engine(tiny.family(), "near", 3, pipeline="off")
        engine.get_drafter("near").propose = lambda requests, counts, draft=draft: \
            draft if counts == [3] else Draft.empty(1)
        request, = engine.generate([[1, 4]], SAMPLED)
        assert not engine.retired and len(request.output_ids) == 12


def test_a_drafter_that_exits_ends_the_step_and_loses_nothing():
    """SystemExit passes through: a signal's handler may have raised it. The next step goes on."""
    engine = Engine(tiny.family(), "near", 3, pipeline="off")
    sound, calls = engine.get_drafter("near").propose, []

    def propose(*args):
        calls.append(args)
        if len(calls) == 2:
            raise SystemExit
        return sound(*args)

    engine.get_drafter("near").propose = propose
    request = engine.submit([1, 4], GREEDY)
    assert sum(tiny.steps(engine, SystemExit)) == 1
    assert request.output_ids == plain((1, 4)) and not engine.retired
    tiny.assert_idle(engine)


NUMBERS = [None, "many", float("nan"), 2.5, [3], object()]


@pytest.mark.parametrize("door", ["available", "missing", "catch_up", "rollback"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_else_a_drafter_answers_is_checked_too(pipeline, door):
    wrong = {"catch_up": [None, [], [3], [CaughtUp("x")], [CaughtUp(1, 0, [7.0])]]}.get(door, NUMBERS)
    for value in wrong[pipeline == "off":3 if pipeline == "off" else 1] if door != "rollback" else [None]:
        engine = Engine(tiny.family(), selector=Cycling(["near", "ngram"]), pipeline=pipeline)
        name = "ngram" if door == "available" else "near"

        def answer(*_):
            if door == "rollback":
                raise RuntimeError("stuck")
            return value

        setattr(engine.get_drafter(name), door, answer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            requests = engine.generate([[i, 4, i, 4, i] for i in range(4)], GREEDY)
        assert [r.output_ids for r in requests] == [plain((i, 4, i, 4, i)) for i in range(4)]
        assert name in engine.retired
        engine.close()


# ---- selectors

class Cycling(Selector):
    """Each drafter in turn, and everybody reads along."""

    turn = 0

    def weights(self, views):
        self.turn += 1
        weights = np.zeros((len(views), len(self.arms)))
        weights[:, self.turn % len(self.arms)] = 1
        return weights

    def probe(self, views):
        return {view.request: list(self.arms) for view in views}


class Foolish(Cycling):
    """Another nonsense at every question."""

    NONSENSE = [None, 7, "near", [1, 2], {1: 2}, {None: None}, {"near": 3}, object(), float("nan")]
    CHOICES = [None, 3, ("near",), ("near", "two"), ("near", float("nan")), ("near", -1), (["near"], 2), ({}, {}),
               ("nobody", 2), Choice("near", 1.5), Choice("near", 10**12)]
    asked = 0

    def ask(self, answers):
        self.asked += 1
        return answers[self.asked % len(answers)]

    def assign(self, views, capacities=None):
        self.gamma = self.ask([np.array([np.nan] * 3), None, np.array([]), "four", np.array([2, 2, 0])])
        if self.asked % 2:
            return self.ask(self.NONSENSE)
        return {view.request: self.ask(self.CHOICES) for view in views}

    def probe(self, views):
        return self.ask([*self.NONSENSE, {view.request: self.ask([5, None, [[]], [{}], ["near"], "near"])
                                          for view in views}])

    def observe(self, outcomes):
        raise KeyError(self.ask(["observe"]))

    def finish(self, request):
        raise ValueError("finish")

    def scored(self, scores):
        raise ZeroDivisionError

    def retire(self, drafter):
        raise RuntimeError("retire")


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_selectors_nonsense_costs_speed_only(pipeline):
    engine = Engine(tiny.family(), selector=Foolish(["near", "ngram"], seed=1), pipeline=pipeline, max_batch=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        requests = engine.generate([[i, 4, i, 4] for i in range(9)], GREEDY)
    assert [r.output_ids for r in requests] == [plain((i, 4, i, 4)) for i in range(9)]
    assert engine.selection.selector.asked > 30 and not engine.retired
    tiny.assert_idle(engine)


# ---- drafters that hang

@pytest.mark.parametrize("pipeline", [2, 3])
def test_a_drafter_that_hangs_is_retired_and_its_requests_go_on(pipeline):
    engine = Engine(tiny.family(), "near", 3, pipeline=pipeline, max_batch=4, stage_timeout=120.0)
    for name in ("near", "subset"):         # the first passes measure what attention costs, which may take longer
        engine.generate([[i, 4] for i in range(4)], GREEDY, drafter=name)
    engine.pipeline.close()
    engine.pipeline.limit = 5.0
    awake, sound, calls = threading.Event(), engine.get_drafter("near").propose, []

    def hanging(*args):
        calls.append(args)
        if len(calls) == 4:
            awake.wait(60)
        return sound(*args)

    engine.get_drafter("near").propose = hanging
    requests = [engine.submit([i, 4], GREEDY, drafter=("near", "subset")[i % 2]) for i in range(8)]
    with pytest.warns(RuntimeWarning, match="drafter 'near' raised StageTimeout"):
        while not engine.retired:
            engine.step()
    engine.step()
    awake.set()                 # it comes back in the midst of others' work
    serve(engine)
    assert [r.output_ids for r in requests] == [plain((i, 4)) for i in range(8)]
    assert engine.generate([[9, 9]], GREEDY)[0].output_ids == plain((9, 9))
    tiny.assert_idle(engine)


# ---- several threads

@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_request_cancelled_within_a_pass_leaves_nothing_to_the_next_in_its_slot(pipeline):
    engine = Engine(tiny.family(), "near", 3, pipeline=pipeline, max_batch=1)
    first, forward, calls = engine.submit([1, 4, 2, 8, 5], GREEDY), engine.target.forward, []

    def cancelling(*args):
        calls.append(args)
        if len(calls) == 2:
            thread = threading.Thread(target=engine.cancel, args=(first,))
            thread.start()
            thread.join(20)
            assert not thread.is_alive() and first.finished
        return forward(*args)

    engine.target.forward = cancelling
    if pipeline == "async":     # whose passes call the model itself
        model = engine.target.model.forward
        engine.target.model.forward = lambda *args, **kwargs: (engine.cancel(first) if len(calls) > 1 else None,
                                                               model(*args, **kwargs))[1]
        calls += [None]
    second = engine.submit([2, 4], GREEDY)
    serve(engine)
    assert first.finish_reason is FinishReason.CANCELLED and second.output_ids == plain((2, 4))
    assert first.output_ids == plain((1, 4, 2, 8, 5))[:len(first.output_ids)]
    tiny.assert_sound(engine, [first, second])


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("seed", range(2))
def test_calls_from_several_threads_give_the_texts_of_one(pipeline, seed):
    """Two threads generate, one streams, one submits and cancels, at random times."""
    prompts = [[i, 4] for i in range(6)]
    texts = [plain((i, 4)) for i in range(6)]
    engine = Engine(tiny.family(), "near", 3, pipeline=pipeline, max_batch=3)
    errors, cancelled, stop = [], [], threading.Event()

    def guarded(call):
        def run():
            try:
                call()
            except BaseException as error:
                errors.append(error)
        return threading.Thread(target=run)

    def generate():
        for _ in range(2):
            assert [r.output_ids for r in engine.generate(prompts, GREEDY)] == texts

    def stream():
        told: dict[int, list[int]] = {}
        for event in engine.stream(prompts, GREEDY):
            told.setdefault(event.request, []).extend(event.emitted)
        assert all(text in list(told.values()) for text in texts)

    def disturb():
        dice = random.Random(seed)
        while not stop.is_set():
            i = dice.randrange(6)
            request = engine.submit(prompts[i], GREEDY)
            cancelled.append((i, request))
            time.sleep(dice.random() * 0.02)
            engine.cancel(request)

    threads = [guarded(call) for call in (generate, generate, stream)]
    disturber = guarded(disturb)
    for thread in [*threads, disturber]:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    stop.set()
    disturber.join(20)
    assert not errors, errors
    serve(engine)
    assert len(cancelled) > 2
    assert all(r.finished and r.output_ids == texts[i][:len(r.output_ids)] for i, r in cancelled)
    tiny.assert_idle(engine)


def test_a_step_within_a_step_is_refused_by_name():
    engine = Engine(tiny.family(), "near", 3, pipeline="off")
    engine.get_drafter("near").propose = lambda *_: engine.step()
    with pytest.warns(RuntimeWarning, match="Engine.step was called from within a step"):
        request, = engine.generate([[1, 4]], GREEDY)
    assert request.output_ids == plain((1, 4))


def within(seconds: float, call):
    """What ``call`` returns; it may not take longer."""
    found: list = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs or has raised"
    return found[0]


CALLS = {"step": lambda e: e.step(), "generate": lambda e: e.generate([[3, 4]], GREEDY),
         "stream": lambda e: next(e.stream([[3, 4]], GREEDY)), "cancel": lambda e: e.cancel(e.running[0]),
         "cancel_all": lambda e: e.cancel_all(), "close": lambda e: e.close(), "submit": lambda e: e.submit([3], GREEDY)}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("pipeline", ["off", 2, "auto"])
def test_a_drafter_may_call_its_engine_and_none_waits_for_the_other(pipeline, call):
    """The call may come from a thread of the pipeline. So may the end of a stream that is read no more, when the stream
    is garbage-collected."""
    engine = Engine(tiny.family(), "near", 3, pipeline=pipeline, max_batch=4)
    sound, calls = engine.get_drafter("near").propose, []

    def propose(*args):
        calls.append(args)
        if len(calls) == 3:
            CALLS[call](engine)
        return sound(*args)

    engine.get_drafter("near").propose = propose
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        requests = within(60, lambda: engine.generate([[i, 4] for i in range(4)], GREEDY))
    cancelled = [r.finish_reason is FinishReason.CANCELLED for r in requests]
    assert sum(cancelled) == {"cancel": 1, "cancel_all": 4, "close": 4}.get(call, 0)
    assert all(r.output_ids == plain((i, 4))[:len(r.output_ids)] for i, r in enumerate(requests))
    refused = call in ("step", "generate")
    assert refused == ("called from within a step" in str(engine.retired.get("near")))
    engine.cancel_all()
    tiny.assert_idle(engine)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_closing_in_the_midst_of_others_work_ends_every_request_and_thread(pipeline):
    before = set(threading.enumerate())
    for delay in range(4):
        engine, requests, errors = Engine(tiny.family(), selector="spin", pipeline=pipeline), [], []

        def work(engine=engine, requests=requests, errors=errors):
            try:
                while True:
                    requests.append(engine.submit([len(requests) % VOCAB, 4], GREEDY))
                    engine.step()
            except RuntimeError as error:
                errors.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.05 * delay)
        engine.close()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert len(errors) == 2 and all("the engine is closed" in error for error in errors), errors
        assert all(r.finished and r.output_ids == plain((r.prompt_ids[0], 4))[:len(r.output_ids)] for r in requests)
        tiny.assert_idle(engine)
        deadline = time.monotonic() + 20        # a thread that was closed may still be on its way out
        while set(threading.enumerate()) - before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not set(threading.enumerate()) - before


def test_no_request_is_queued_behind_the_end():
    engine = Engine(tiny.family(), "near", 3)
    family = tiny.ReadingFamily(engine.family.target, {})
    engine.family = family
    family.encode = lambda prompt: (engine.close(), [1, 4])[1]
    with pytest.raises(RuntimeError, match="Engine.submit: the engine is closed"):
        engine.submit("text")
    tiny.assert_idle(engine)


def test_all_are_cancelled_even_one_on_its_way_into_the_batch():
    engine, threads = Engine(tiny.family(), "near", 3), []

    class Queue(collections.deque):
        def popleft(self):
            found = super().popleft()
            threads.append(threading.Thread(target=engine.cancel_all))
            threads[-1].start()
            threads[-1].join(0.2)
            return found

    engine.scheduler.queue = Queue()
    request = engine.submit([1, 4], GREEDY)
    engine.step()
    threads[0].join(20)
    assert request.finish_reason is FinishReason.CANCELLED
    tiny.assert_idle(engine)


def test_cancelling_all_while_a_step_lands_needs_no_pipeline():
    engine, found = Engine(tiny.family(), "near", 3, pipeline="off"), []
    land = engine.stages.land

    def cancelling(step):
        thread = threading.Thread(target=lambda: found.append(engine.cancel_all()))
        thread.start()
        thread.join(0.2)
        return land(step)

    engine.stages.land = cancelling
    request = engine.submit([1, 4], GREEDY)
    engine.step()
    within(20, lambda: [time.sleep(0.01) for _ in iter(lambda: bool(found), True)] or True)
    assert found == [None] and request.finish_reason is FinishReason.CANCELLED
    tiny.assert_idle(engine)


# ---- what an engine leaves behind

def threads_of_a_new_thread() -> int:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


@pytest.mark.parametrize("options", [{}, {"drafter": "near", "pipeline": 2}], ids=["spin", "two micro-batches"])
def test_an_engine_changes_no_setting_of_the_process_and_leaves_no_thread(options):
    before, own = set(threading.enumerate()), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Engine(tiny.family(), **options) as engine:
            engine.generate([[1, 4], [2, 4]], GREEDY)
            assert threads_of_a_new_thread() == 3 and torch.get_num_threads() == 3
            assert set(threading.enumerate()) - before
            request = engine.submit([3, 4], GREEDY)
            engine.step()
        assert request.finish_reason is FinishReason.CANCELLED
        gc.collect()
        assert not set(threading.enumerate()) - before and threads_of_a_new_thread() == 3
    finally:
        torch.set_num_threads(own)
    engine.close()
    for call in (engine.step, lambda: engine.submit([1])):
        with pytest.raises(RuntimeError, match="the engine is closed"):
            call()
