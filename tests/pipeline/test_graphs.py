"""Passes in buckets compute what the runner computes; on a GPU, as captured graphs."""

from __future__ import annotations

import math

import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.draft import FedDrafter
from spin_core.engine import Engine
from spin_core.pipeline import graphs
from spin_core.request import SamplingParams
from spin_core.runtime import ModelRunner

PASSES = st.lists(st.tuples(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), min_size=1, max_size=4,
                                     unique_by=lambda p: p[0]), st.integers(0, 10)), min_size=1, max_size=5)


def poison(runner: ModelRunner) -> None:
    """Memory that nobody wrote may hold anything."""
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
                torch.testing.assert_close(other.states[s, :plain.cache.lengths[s]], plain.states[s, :plain.cache.lengths[s]],
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


def test_what_cannot_be_captured_runs_without_a_graph(monkeypatch):
    def fails(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    engine = Engine(tiny.family(), "near", 3, max_batch=3)
    for runner in (engine.target, engine.drafters["near"].runner):
        runner.graphs = graphs.Graphs(runner)
    monkeypatch.setattr(graphs._Bucket, "run", fails)
    with pytest.warns(RuntimeWarning, match="no CUDA graphs: RuntimeError: operation not permitted") as warned:
        requests = engine.generate([[1, 4], [2, 5, 6], [7]], SamplingParams(max_new_tokens=14))
    assert len(warned) == 2, "one for each model"
    for request in requests:
        tiny.assert_greedy(engine.family.target, request)


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
    params = [SamplingParams(temperature=t, seed=i, max_new_tokens=14, stop_ids=()) for i, t in enumerate((0.0, 1.0, 0.0))]
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
    compare(runners, [([(0, 3), (2, 5)], 2), ([(0, 1), (2, 1)], 0), ([(0, 1), (2, 1)], 1), ([(1, 8)], 3), ([(0, 3), (2, 5)], 0)],
            1e-10, "cuda")
