"""A step ahead: the texts of the engine that waits, and not one number read within a step."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from spin_core import zoo
from spin_core.engine import Engine
from spin_core.lab.bench import families
from spin_core.pipeline import asynchronous, device_step
from spin_core.pipeline.asynchronous import Asynchronous
from spin_core.request import FinishReason, SamplingParams
from spin_core.kv import transfer
from spin_core.sampling import SamplingBatch, probabilities

GREEDY = SamplingParams(max_new_tokens=16, stop_ids=())
SAMPLED = SamplingParams(temperature=1.0, top_k=9, top_p=0.9, max_new_tokens=16, stop_ids=())
BOTH = (GREEDY, SAMPLED)


def engines(drafter: str = "near", gamma: int = 3, **options) -> tuple[Engine, Engine]:
    """One that waits and one that runs ahead."""
    family = tiny.fed_family() if drafter == "fed" else tiny.family()
    return tuple(Engine(family, drafter, gamma, pipeline=how, **options) for how in ("off", "async"))


def serve(engine: Engine, jobs, cancelled: dict[int, int] | None = None) -> list:
    """Serve (prompt, params, drafter) while more arrive; cancel request i before step ``cancelled[i]``."""
    requests = []
    for now in itertools.count():
        for prompt, params, drafter in jobs[3 * now:3 * now + 3]:
            requests.append(engine.submit(prompt, params, drafter=drafter))
        for i, when in (cancelled or {}).items():
            if when == now and i < len(requests):
                engine.cancel(requests[i])
        if not (engine.queue or engine.running) and len(requests) == len(jobs):
            tiny.assert_sound(engine, requests)
            return requests
        engine.step()


@pytest.fixture
def flights(monkeypatch) -> Counter:
    """What a test did: launched and landed flights."""
    seen: Counter = Counter()
    for name in ("_launch", "_land"):
        def counted(self, *live, plain=getattr(Asynchronous, name), name=name):
            out = plain(self, *live)
            seen[name.strip("_")] += out is not False
            return out
        monkeypatch.setattr(Asynchronous, name, counted)
    return seen


PARAMS = st.builds(lambda p, seed, most, stop, text: p.with_(seed=seed, max_new_tokens=most, stop_ids=stop, stop=text),
                   st.sampled_from([*BOTH, SAMPLED.with_(top_k=0, min_p=0.1), SAMPLED.with_(top_k=0, top_p=1.0)]),
                   st.integers(0, 99), st.integers(1, 20), st.sampled_from([(), (3, 5, 8)]),
                   st.sampled_from([(), ("ab", "k")]))
PROMPT = st.lists(st.integers(0, tiny.VOCAB - 1), min_size=1, max_size=12)


@settings(max_examples=4, deadline=None)
@given(st.data(), st.sampled_from(["near", "subset", "short", "same", "none", "fed"]), st.integers(0, 4),
       st.integers(1, 6), st.sampled_from([3, 512]), st.booleans())
def test_the_same_texts(data, drafter, gamma, max_batch, chunk, mixed):
    """Arrivals, stops, limits, cancellations; drafters that can fly, and others beside them."""
    names = [None] if not mixed or drafter == "fed" else [None, None, None, "ngram", "other"]
    jobs = data.draw(st.lists(st.tuples(PROMPT, PARAMS, st.sampled_from(names)), min_size=1, max_size=4))
    cancelled = data.draw(st.dictionaries(st.integers(0, 4), st.integers(0, 9), max_size=2))
    waiting, other = engines(drafter, gamma, max_batch=max_batch, prefill_chunk=chunk)
    expected, got = serve(waiting, jobs), serve(other, jobs, cancelled)
    for want, have in zip(expected, got):
        if have.finish_reason is FinishReason.CANCELLED:
            assert have.output_ids == want.output_ids[:len(have.output_ids)]
        else:
            assert (have.output_ids, have.text, have.finish_reason) == (want.output_ids, want.text, want.finish_reason)


@pytest.mark.parametrize("drafter", ["subset", "fed"])
def test_nearly_every_step_flies(drafter, flights):
    waiting, other = engines(drafter, max_batch=4)
    prompts, params = [[i, 4, i] for i in range(2)], [p.with_(max_new_tokens=30) for p in BOTH]
    expected = [r.output_ids for r in waiting.generate(prompts, params)]
    assert [r.output_ids for r in other.generate(prompts, params)] == expected
    assert flights["launch"] == flights["land"] > 0.7 * waiting.steps
    drafts = [[(e.request, e.context, e.drafted, e.accepted, e.emitted) for e in engine.trace.events
               if e.kind == "step"] for engine in (waiting, other)]
    first = [min(r for r, *_ in events) for events in drafts]
    assert Counter((r - first[0], *map(str, rest)) for r, *rest in drafts[0]) == \
        Counter((r - first[1], *map(str, rest)) for r, *rest in drafts[1])      # step by step, not just in the end


def test_a_stop_is_noticed_one_step_late_and_nothing_behind_it_is_shown(flights):
    text = engines("none")[0].generate([[1, 4]], GREEDY)[0].output_ids
    stop = GREEDY.with_(stop_ids=(text[6],))
    engine = engines("none")[1]
    request, = engine.generate([[1, 4]], stop)
    assert request.output_ids == text[:text.index(text[6]) + 1]
    shown = [e for e in engine.trace.events if e.kind == "step" and e.emitted]
    # the prompt's step waited, and one flew for nothing
    assert flights["launch"] == flights["land"] == len(shown) - 1 + 1
    tiny.assert_idle(engine)


def test_a_limit_that_is_sure_to_be_reached_costs_no_flight(flights):
    engine = engines("none")[1]
    request, = engine.generate([[1, 4]], GREEDY)
    assert len(request.output_ids) == 16 and flights["launch"] == 15        # the prompt's step brought the first token


def test_others_go_on_where_one_has_ended(flights):
    waiting, other = engines("near", max_batch=3)
    params = [GREEDY.with_(max_new_tokens=n) for n in (5, 24, 12)]
    expected = waiting.generate([[1, 4], [2, 4], [3, 4]], params)
    got = other.generate([[1, 4], [2, 4], [3, 4]], params)
    assert [r.output_ids for r in got] == [r.output_ids for r in expected]
    assert flights["launch"] >= waiting.steps - 2           # not all landed because of one


def test_a_stream_tells_the_end_of_everyone():
    engine = engines("near", max_batch=2)[1]
    events = list(engine.stream([[i, 4] for i in range(5)], GREEDY))
    assert events == engine.trace.events and sum(e.kind == "finish" for e in events) == 5


def test_a_request_that_is_cancelled_under_way_gives_its_slot_back_when_it_lands():
    engine = engines("near", max_batch=1)[1]
    first, second = (engine.submit([i, 4], GREEDY.with_(max_new_tokens=20)) for i in (1, 2))
    while len(engine.pipeline.in_flight) < 1:
        engine.step()
    engine.cancel(first)
    assert first.finished and first.slot == 0
    engine.step()
    assert first.slot is None and not engine.pipeline.in_flight
    while not second.finished:
        engine.step()
    assert second.output_ids == engines("near")[0].generate([[2, 4]], GREEDY.with_(max_new_tokens=20))[0].output_ids
    tiny.assert_sound(engine, [first, second])


# ---- what goes wrong

def failing(model, bad: int, error: type[BaseException], monkeypatch) -> None:
    """The model's pass number ``bad`` raises."""
    forward, calls = model.forward, itertools.count(1)

    def fail(*args, **kwargs):
        if next(calls) == bad:
            raise error("out of ideas")
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", fail)


@pytest.mark.parametrize("bad", [6, 11])
def test_a_drafter_that_raises_is_retired_and_costs_no_request(bad, monkeypatch):
    waiting, other = engines("near", max_batch=3)
    failing(other.drafters["near"].runner.model, bad, RuntimeError, monkeypatch)
    jobs = [([i, 4, i], GREEDY, None) for i in range(5)]
    expected = serve(waiting, jobs)
    with pytest.warns(RuntimeWarning, match="drafter 'near' raised RuntimeError: out of ideas"):
        got = serve(other, jobs)
    assert [r.output_ids for r in got] == [r.output_ids for r in expected]


@pytest.mark.parametrize("where, bad", [("pass", 3), ("pass", 7), ("verdict", 4)])
def test_a_target_that_raises_fails_the_step_and_nothing_else(bad, where, monkeypatch):
    waiting, other = engines("near", max_batch=3)
    if where == "pass":
        failing(other.target.model, bad, MemoryError, monkeypatch)
    else:
        verify, calls = device_step.verify_chain, itertools.count(1)

        def fail(*args):
            out = verify(*args)             # positions on the device have moved already
            if next(calls) == bad - 2:
                raise MemoryError
            return out

        monkeypatch.setattr(device_step, "verify_chain", fail)
    jobs = [([i, 4, i], BOTH[i % 2].with_(seed=i), None) for i in range(3)]
    requests = [other.submit(p, q) for p, q, _ in jobs]
    assert sum(tiny.steps(other, MemoryError)) == 1
    assert [r.output_ids for r in requests] == [r.output_ids for r in serve(waiting, jobs)]
    tiny.assert_sound(other, requests)


@pytest.mark.parametrize("drafter", ["near", "none", "fed"])
@pytest.mark.parametrize("where, bad", [("read", 1), ("read", 2), ("read", 5), ("sent", 1), ("sent", 4), ("told", 11)])
def test_an_interrupt_under_way_loses_no_token(where, bad, drafter, monkeypatch):
    """While a verdict is read, while it is sent off, or between the requests that it is about."""
    waiting, other = engines(drafter, max_batch=3)
    owner, name = {"read": (transfer.Download, "read"), "sent": (asynchronous, "Download"),
                   "told": (other.stages, "commit_request")}[where]
    plain, calls = getattr(owner, name), itertools.count(1)

    def interrupted(*args):
        if next(calls) == bad:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(owner, name, interrupted)
    jobs = [([i, 4, i], BOTH[i % 2].with_(seed=i), None) for i in range(5)]
    requests, raised = [other.submit(p, q) for p, q, _ in jobs], 0
    for failed in tiny.steps(other, KeyboardInterrupt):
        raised += failed
        assert not failed or where == "sent" or not other.pipeline.in_flight
    assert raised == 1 and [r.output_ids for r in requests] == [r.output_ids for r in serve(waiting, jobs)]
    tiny.assert_sound(other, requests)


def test_an_interrupt_frees_who_was_cancelled_under_way(monkeypatch):
    engine = engines("near", max_batch=2)[1]
    first, second = (engine.submit([i, 4], GREEDY) for i in (1, 2))
    while not engine.pipeline.in_flight:
        engine.step()
    engine.cancel(first)
    assert first.slot is not None
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(transfer.Download, "read", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        engine.step()
    assert first.slot is None and engine.running == [second] and not engine.pipeline.in_flight
    while not second.finished:
        engine.step()
    assert second.output_ids == engines("near")[0].generate([[2, 4]], GREEDY)[0].output_ids
    tiny.assert_sound(engine, [first, second])


@pytest.mark.parametrize("drafter", ["near", "none"])
def test_nan_fails_its_request_alone(drafter):
    text = engines("none")[0].generate([[1, 4]], GREEDY)[0].output_ids
    bad = text[6]
    target = tiny.near(tiny.family().target, noise=0.0)
    target.get_input_embeddings().weight.data[bad] = torch.nan
    family = tiny.TinyFamily(target, tiny.family().drafters)
    made = [Engine(family, drafter, 3, pipeline=how) for how in ("off", "async")]
    jobs = [([i, 4], GREEDY, None) for i in range(6)]
    expected, got = (serve(engine, jobs) for engine in made)
    failed = [r.finish_reason is FinishReason.ERROR for r in expected]
    assert any(failed) and not all(failed)
    assert [(r.output_ids, r.error) for r in got] == [(r.output_ids, r.error) for r in expected]


def test_a_drafter_whose_logits_are_nan_drafts_less():
    broken = tiny.near(tiny.family().target, noise=0.05)
    broken.get_input_embeddings().weight.data[[2, 8, 24]] = torch.nan
    family = tiny.TinyFamily(tiny.family().target, {"broken": tiny.TinyDrafter("broken", broken)})
    made = [Engine(family, "broken", 3, pipeline=how) for how in ("off", "async")]
    jobs = [([i, 4], p.with_(seed=i, max_new_tokens=30), None) for i, p in enumerate(BOTH)]
    expected, got = (serve(engine, jobs) for engine in made)
    assert [r.output_ids for r in got] == [r.output_ids for r in expected]
    assert {len(e.drafted) for e in made[1].trace.events if e.kind == "step"} >= {0, 3}


# ---- what is read

class Questions(TorchFunctionMode):
    """Whatever makes a host wait for a device: numbers that leave it, shapes that depend on them, copies to and fro."""

    ASKS = {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__contains__",
            "nonzero", "equal", "allclose", "unique", "masked_select", "tensor", "as_tensor"}

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_function__(self, call, types, args=(), kwargs=None):
        name = getattr(call, "__name__", str(call))
        if name in self.ASKS and (name not in ("tensor", "as_tensor") or (kwargs or {}).get("device") is not None):
            self.asked.append(name)
        return call(*args, **kwargs or {})


class Shapes(TorchDispatchMode):
    """The same below torch's Python: what an operator asks on its own, such as indexing with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op.overloadpacket.__name__
        masks = name in ("index", "index_put_", "_index_put_impl_") and \
            any(x is not None and x.dtype == torch.bool for x in args[1])
        if masks or name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "repeat_interleave"):
            self.asked.append(name)
        return op(*args, **kwargs or {})


def unseen(*args):
    """The verdict without the questions of the CPU's reference; the kernel has none (tests/verify/test_progress.py)."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        return plain_verify(*args)


plain_verify = device_step.verify_chain


@pytest.mark.parametrize("drafter", ["near", "fed"])
def test_the_host_reads_once_a_step_and_one_step_late(drafter, monkeypatch):
    """Of a step in the air: no question while it is launched; then one copy is read, that of the step before."""
    engine = engines(drafter, max_batch=4)[1]
    order, launch, read = [], Asynchronous._launch, transfer.Download.read

    def launched(self, live):
        steady = bool(self.in_flight)           # seating the requests uploads what the host knows of them
        with Questions() as outside, Shapes() as inside:
            out = launch(self, live)
        if steady:
            assert not outside.asked and not inside.asked
        order.append(("launch", steady))
        return out

    def reading(self):
        order.append(("read", None))
        return read(self)

    monkeypatch.setattr(Asynchronous, "_launch", launched)
    monkeypatch.setattr(transfer.Download, "read", reading)
    monkeypatch.setattr(device_step, "verify_chain", unseen)
    requests = [engine.submit([i, 4, i], BOTH[i % 2].with_(max_new_tokens=24)) for i in range(2)]
    while engine.queue or engine.running:
        del order[:]
        engine.step()
        if [what for what, _ in order] == ["launch", "read"]:
            assert order[0][1], "the flight that is read was launched before this one"
        done = [r.finished for r in requests]
        assert len(order) <= 3 or any(done)
    assert engine.steps > 5


def test_the_count_notices_questions():
    x = torch.arange(4)
    with Questions() as outside, Shapes() as inside:
        x.tolist(), x.sum().item(), bool(x.sum()), x[x > 1], torch.tensor([1], device="cpu")
    assert outside.asked == ["tolist", "item", "__bool__", "tensor"] and "index" in inside.asked
    engine = engines("near")[0]
    engine.submit([1, 4], SAMPLED)
    engine.step()
    with Questions() as outside, Shapes() as inside:
        engine.step()
    assert len(outside.asked) > 10          # the step that waits asks all the time


@pytest.mark.gpu
def test_cuda_waits_for_nothing_while_a_step_is_launched(monkeypatch):
    target, launch, steady = tiny.llama(dtype=torch.float32).to("cuda"), Asynchronous._launch, []
    family = tiny.TinyFamily(target, {"near": tiny.TinyDrafter("near", target)})
    engine = Engine(family, "near", 3, pipeline="async")
    params = SAMPLED.with_(max_new_tokens=60)
    engine.generate([[1, 4, 1], [2, 4, 2]], params)     # compiles, and captures the graphs

    def watched(self, live):
        steady.append(bool(self.in_flight))
        torch.cuda.set_sync_debug_mode("error" if self.in_flight else "default")
        try:
            return launch(self, live)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Asynchronous, "_launch", watched)
    engine.generate([[1, 4, 1], [2, 4, 2]], params)
    assert sum(steady) > 5


# ---- the drafter's distribution

@settings(max_examples=15, deadline=None)
@given(st.integers(2, 200), st.integers(0, 10**6), st.booleans(),
       st.lists(st.builds(SamplingParams, temperature=st.sampled_from([0.3, 1.0, 2.0]),
                          top_k=st.sampled_from([0, 1, 5, 500]),
                          top_p=st.sampled_from([1.0, 0.9, 0.05]), min_p=st.sampled_from([0.0, 0.1, 1.0])),
                min_size=1, max_size=5))
def test_the_distribution_is_the_same_where_the_device_is_not_asked(vocab, seed, ties, params):
    logits = 3 * torch.randn(len(params), vocab, generator=torch.Generator().manual_seed(seed))
    logits = logits.round() if ties else logits
    sampling = SamplingBatch.from_params(params)
    assert torch.equal(device_step.probabilities(logits, sampling, device_step.FILTERS),
                       probabilities(logits, sampling))
    plain = SamplingBatch.from_params([SamplingParams(temperature=p.temperature) for p in params])
    assert torch.equal(device_step.probabilities(logits, plain, ()), probabilities(logits, plain))


@pytest.mark.parametrize("kind", ["mistral", "gpt_oss"])
@pytest.mark.parametrize("side", ["target", "drafter"])
def test_layers_with_needs_of_their_own_do_not_fly(kind, side, flights):
    """A graph attends to all of a text, without sinks: a window in it would be another model."""
    models = families.build("llama"), families.build(kind)
    target, other = models[::-1] if side == "target" else models
    family = families._Tiny("tiny", target, None, {"other": zoo.DraftModel("other", other, None, families.CONTEXT)},
                            families.PAD, (), families.CONTEXT, dtype=torch.float64)
    requests = Engine(family, "other", 2, max_batch=2, max_len=64, pipeline="async").generate(
        families.PROMPTS, SamplingParams(max_new_tokens=families.TOKENS))
    assert [r.output_ids for r in requests] == [families.library_text(target, prompt) for prompt in families.PROMPTS]
    assert not flights


def test_only_what_needs_nothing_from_the_host_flies(flights):
    for options in (dict(drafter="ngram"), dict(drafter="near", record_probs=True), dict(drafter="sparse:near"),
                    dict(selector="fixed:near")):
        engine = Engine(tiny.family(), pipeline="async", **options)
        engine.generate([[1, 4, 1]], GREEDY)
        assert not flights
    assert asynchronous.DEPTH == 2
