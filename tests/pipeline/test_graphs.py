"""Passes in buckets compute what the runner computes; on a GPU, as captured graphs."""

from __future__ import annotations

import math
from unittest.mock import MagicMock

import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from spin_core.draft import FedDrafter, ModelDrafter
from spin_core.engine import Engine
from spin_core.runtime import graphs
from spin_core.request import Request, SamplingParams
from spin_core.runtime import ModelRunner

PASSES = st.lists(st.tuples(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), min_size=1, max_size=4,
                                     unique_by=lambda p: p[0]), st.integers(0, 10)), min_size=1, max_size=5)


def poison(runner: ModelRunner) -> None:
    """Memory that was never written may hold anything."""
    for kept in (*runner.cache.k, *runner.cache.v):
        kept.fill_(math.nan)


def compare(runners, passes, tolerance: float, device: str = "cpu") -> None:
    """Run the same passes, with rollbacks between them, through the runner and through its graphs."""
    plain, other = runners
    made = graphs.Graphs(other)
    generator = torch.Generator().manual_seed(0)
    for work, back in passes:
        slots, counts = [s for s, _ in work], [c for _, c in work]
        tokens = torch.randint(tiny.VOCAB, (sum(counts),), generator=generator).to(device)
        rows = list(range(0, sum(counts), 2))
        if max(plain.cache.lengths[s] for s in slots) + 8 > plain.cache.max_len:
            continue
        expected = plain.forward(slots, counts, tokens, rows)
        got = made.forward(slots, counts, tokens, rows)
        torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)
        assert other.cache.lengths == plain.cache.lengths
        if plain.states is not None:
            for s in slots:
                torch.testing.assert_close(other.states[s, :plain.cache.lengths[s]],
                                           plain.states[s, :plain.cache.lengths[s]],
                                           rtol=0, atol=tolerance)
        for runner in runners:
            runner.cache.truncate(slots[0], max(0, runner.cache.lengths[slots[0]] - back))


@settings(max_examples=12, deadline=None)
@given(PASSES, st.booleans())
def test_a_pass_in_a_bucket_equals_the_pass(passes, keep_states):
    runners = [ModelRunner(tiny.family().target, 4, 64, 37, keep_states) for _ in range(2)]
    poison(runners[1])
    compare(runners, passes, 1e-12)


def test_what_fits_no_bucket_is_left_alone():
    runner = ModelRunner(tiny.family().target, 4, 16)
    made = graphs.Graphs(runner)
    for slots, counts in (([0], [9]), ([], []), ([0], [0]), ([1, 1], [1, 1])):
        assert made.forward(slots, counts, [1] * sum(counts), []) is None
    runner.forward([2], [15], [1] * 15, [14])
    assert made.forward([2], [2], [1, 1], [0]) is None, "no room for the padding"
    assert runner.cache.lengths == [0, 0, 15, 0] and not made.buckets


def test_the_number_of_buckets_is_bounded(monkeypatch):
    monkeypatch.setattr(graphs, "KEPT", 2)
    runner = ModelRunner(tiny.family().target, 4, 64)
    made = graphs.Graphs(runner)
    for count in (1, 2, 4, 1):
        made.forward([0], [count], [1] * count, [0])
    assert [key[1] for key in made.buckets] == [4, 1]


def test_on_a_cpu_nothing_is_attached():
    runner = ModelRunner(tiny.family().target, 1, 16)
    graphs.attach(runner)
    assert (runner.graphs is not None) == (runner.device.type == "cuda")


@pytest.fixture
def no_capture(monkeypatch):
    """As if this were a CUDA device on which no pass can be captured."""
    plain = graphs.Graphs.__init__

    def made(self, runner):
        plain(self, runner)
        self.pool = 0, 1

    def fails(*_, **__):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs.Graphs, "__init__", made)
    for name in ("current_stream", "Stream", "stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "graph", fails)


@pytest.mark.parametrize("pipeline", ["off", "async"])
def test_what_cannot_be_captured_runs_without_a_graph(pipeline, no_capture):
    """A step ahead has no other pass to fall back on, so the bucket itself must."""
    engine = Engine(tiny.family(), "near", 3, max_batch=3, pipeline=pipeline)
    if pipeline == "off":
        for runner in (engine.target, engine.drafters["near"].runner):
            runner.graphs = graphs.Graphs(runner)
    with pytest.warns(RuntimeWarning, match="no CUDA graphs: RuntimeError: operation not permitted") as warned:
        requests = engine.generate([[1, 4], [2, 5, 6], [7]], SamplingParams(max_new_tokens=14))
    assert len(warned) == 2, "one for each model"
    for request in requests:
        tiny.assert_greedy(engine.family.target, request)
    assert not engine.retired


def test_a_capture_that_failed_leaves_no_graph(no_capture):
    made = graphs.Graphs(ModelRunner(tiny.family().target, 1, 64))
    bucket = made._bucket(1, 1, 64, 1, None)
    for _ in range(2):          # the second time it is not replayed either
        with pytest.raises(RuntimeError, match="not permitted"):
            bucket.replay(made.pool)
    assert bucket.graph is None


def test_who_catches_up_beside_a_draft_replays_no_graph():
    """A graph's inputs are there once: two passes at a time would read each other's."""
    drafter = ModelDrafter(tiny.family().drafters["near"], 2, 64, tiny.VOCAB)
    drafter.runner.graphs = MagicMock(**{"forward.return_value": None})     # a pass that fits no bucket
    request = Request([1, 4, 1, 5], SamplingParams(), output_ids=[6, 7], slot=0)
    assert drafter.catch_up([request])[0].tokens == 5
    assert not drafter.runner.graphs.forward.called
    drafter.propose([request], [2])
    assert drafter.runner.graphs.forward.call_count == 2


def test_a_bucket_gathers_no_more_entries_than_it_attends_to():
    gathered = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            out = op(*args, **kwargs or {})
            if op.overloadpacket is torch.ops.aten.index_select and out.dim() == 4:
                gathered.append(out.shape[2])
            return out

    runner = ModelRunner(tiny.family().target, 2, tiny.MAX_CONTEXT)
    with Watch():
        graphs.Graphs(runner).forward([0], [1], [1], [0])
    assert gathered == [graphs.SHORTEST] * 2 * len(runner.cache.k) and graphs.SHORTEST < tiny.MAX_CONTEXT


def test_several_micro_batches_replay_graphs(monkeypatch):
    def attach(runner):                     # as if this were a CUDA device
        runner.graphs = runner.graphs or graphs.Graphs(runner)

    monkeypatch.setattr(graphs, "attach", attach)
    engine = Engine(tiny.family(), "near", 3, max_batch=4, pipeline=2)
    for request in engine.generate([[1, 4], [2, 5, 6], [7], [8, 9]], SamplingParams(max_new_tokens=14)):
        tiny.assert_greedy(engine.family.target, request)
    assert engine.target.graphs.buckets and engine.drafters["near"].runner.graphs.buckets


@pytest.mark.parametrize("name", ["near", "subset", "fed"])
def test_an_engine_on_buckets_writes_the_same_texts(name):
    family = tiny.fed_family() if name == "fed" else tiny.family()
    params = [SamplingParams(temperature=t, seed=i, max_new_tokens=14, stop_ids=())
              for i, t in enumerate((0.0, 1.0, 0.0))]
    texts, used = [], 0
    for bucketed in (False, True):
        engine = Engine(family, name, 3, max_batch=3)
        if bucketed:
            for runner in (engine.target, engine.drafters[name].runner):
                runner.graphs = graphs.Graphs(runner)
        texts.append([r.output_ids for r in engine.generate([[1, 4], [2, 5, 6], [7]], params)])
        used += sum(len(r.graphs.buckets) for r in (engine.target, engine.drafters[name].runner) if r.graphs)
    assert texts[0] == texts[1] and used > 2
    assert name != "fed" or isinstance(engine.drafters[name], FedDrafter)


@pytest.mark.gpu
def test_captured_passes_equal_the_pass():
    target = tiny.llama().to("cuda")
    runners = [ModelRunner(target, 4, 64, 37, True) for _ in range(2)]
    poison(runners[1])
    compare(runners, [([(0, 3), (2, 5)], 2), ([(0, 1), (2, 1)], 0), ([(0, 1), (2, 1)], 1), ([(1, 8)], 3),
                      ([(0, 3), (2, 5)], 0)],
            1e-10, "cuda")
