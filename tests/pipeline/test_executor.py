"""Executors: the same results in the same order, overlap, faults that travel, waits that end."""

from __future__ import annotations

import random
import threading
import time

import pytest
import torch

from spin_core.lab.schedule import DRAFT, STAGES, VERIFY, Span
from spin_core.pipeline.executor import (
    CudaStreams, Sequential, StageTimeout, Threads, core_shares, make_executor,
)

EXECUTORS = [Sequential, lambda: Threads((1, 1), limit=20)]


def serve(executor, texts: list[list[int]], rounds: int, pause=lambda: None) -> list[Span]:
    """A toy engine: every round each group drafts its next number from its text, and verifying appends it. When each
    stage worked, flight by flight."""
    flights, spans = [], []

    def launch(g: int) -> None:
        number = len(texts[g]) - 1

        def timed(stage: str, result):
            start = time.perf_counter()
            pause()
            spans.append(Span(stage, g, number, start, time.perf_counter()))
            return result

        flights.append((g, executor.launch(lambda: timed(DRAFT, sum(texts[g]) % 7 + 1),
                                           lambda drafted: timed(VERIFY, texts[g] + [drafted]), g)))

    for g in range(len(texts)):
        launch(g)
    while flights:
        g, flight = flights.pop(0)
        texts[g] = flight.result()
        if len(texts[g]) <= rounds:
            launch(g)
    return spans


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_the_same_results_under_random_delays(groups):
    results = []
    for make in EXECUTORS:
        dice, texts = random.Random(groups), [[g] for g in range(groups)]
        with make() as executor:
            spans = serve(executor, texts, 12, lambda: time.sleep(dice.random() * 2e-3))
        results.append(texts)
        for stage in (DRAFT, VERIFY):
            line = [s for s in spans if s.stage == stage]
            assert [(s.group, s.round) for s in line] == [(g, r) for r in range(12) for g in range(groups)]
            assert all(a.end <= b.start for a, b in zip(line, line[1:])), "a stage does one thing at a time, in order"
        ends = {(s.stage, s.group, s.round): s for s in spans}
        for (stage, g, r), span in ends.items():
            before = (DRAFT, g, r) if stage == VERIFY else (VERIFY, g, r - 1)
            assert before not in ends or ends[before].end <= span.start
    assert results[0] == results[1]


def test_threads_overlap_and_the_sequential_executor_does_not():
    """While one group is verified the next is drafted for: the verification waits until it sees that happen."""
    def overlaps(executor, seconds: float) -> list[bool]:
        drafting = [threading.Event() for _ in range(5)]
        with executor:
            flights = [executor.launch(drafting[i].set, lambda _, i=i: drafting[i + 1].wait(seconds), i)
                       for i in range(4)]
            flights.append(executor.launch(drafting[4].set, lambda _: True, 4))
            return [flight.result() for flight in flights]

    assert all(overlaps(Threads((1, 1)), 20))
    assert overlaps(Sequential(), 0.01) == [False] * 4 + [True]


@pytest.mark.parametrize("make", EXECUTORS)
@pytest.mark.parametrize("stage", [DRAFT, VERIFY])
def test_an_exception_reaches_the_owner_and_the_next_flight_flies(make, stage):
    def fail(*_):
        raise KeyError("engine on fire")

    with make() as executor:
        calls = (fail, str) if stage == DRAFT else (int, fail)
        flights = [executor.launch(int, str), executor.launch(*calls, 1), executor.launch(int, str, 2)]
        assert flights[0].result() == "0"
        with pytest.raises(KeyError, match="engine on fire"):
            flights[1].result()
        assert flights[2].result() == "0"
        assert executor.launch(int, str, 1).result() == "0"


def test_every_wait_has_a_limit():
    release = threading.Event()
    with Threads((1, 1), limit=0.2) as executor:
        stuck = executor.launch(lambda: release.wait(10), str)
        start = time.monotonic()
        with pytest.raises(StageTimeout, match="within 0.2 s"):
            stuck.result()
        assert time.monotonic() - start < 5
        behind = executor.launch(lambda: 1, str, 1)
        with pytest.raises(StageTimeout):
            behind.result()
        release.set()
        executor.limit = 20
        assert executor.launch(lambda: 2, str, 2).result() == "2", "it recovers"


def test_a_timeout_raised_by_a_stage_is_not_ours():
    def slow_disk():
        raise TimeoutError("the disk")

    with Threads((1, 1)) as executor, pytest.raises(TimeoutError, match="the disk"):
        executor.launch(slow_disk, str).result()


def test_each_stage_has_its_share_of_the_cores_and_the_owner_keeps_his():
    before = torch.get_num_threads()
    with Threads((1, 3)) as executor:
        draft, verify = executor.launch(torch.get_num_threads, lambda d: (d, torch.get_num_threads())).result()
    assert (draft, verify) == (1, 3) and torch.get_num_threads() == before
    fresh = []
    thread = threading.Thread(target=lambda: (torch.set_num_threads(before), fresh.append(torch.get_num_threads())))
    thread.start()
    thread.join()
    assert fresh == [before]


def test_shares():
    assert [core_shares(n) for n in (1, 2, 4, 16)] == [(1, 1), (1, 1), (1, 3), (4, 12)]
    with pytest.raises(ValueError, match="every stage needs a core"):
        Threads((0, 2))


def test_without_cuda_there_are_threads():
    executor = make_executor("cpu")
    assert type(executor) is Threads
    executor.close()
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="no CUDA device"):
            CudaStreams()


def test_many_flights_need_two_threads_and_leave_none_behind():
    before = set(threading.enumerate())

    def ours() -> set[threading.Thread]:
        return set(threading.enumerate()) - before

    with Threads((1, 1)) as executor:
        for i in range(2000):
            assert executor.launch(lambda i=i: i, lambda n: n + 1, i % 3).result() == i + 1
        assert len(ours()) == 2
    deadline = time.monotonic() + 5
    while ours() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not ours()


class FakeStream:
    """Remembers which events it was told to wait for; an event is (its stream, how many were recorded before)."""

    current = threading.local()

    def __init__(self, device) -> None:
        self.device, self.recorded, self.waited, self.synchronized = device, 0, [], 0

    def record_event(self):
        self.recorded += 1
        return self, self.recorded

    def wait_event(self, event) -> None:
        self.waited.append(event)

    def synchronize(self) -> None:
        self.synchronized += 1


@pytest.fixture
def streams(monkeypatch):
    """CUDA as far as an executor of streams sees it; the streams by the name of their thread."""
    made = {}

    def current(device):
        held = vars(FakeStream.current).setdefault("streams", {})
        return held.setdefault(str(device), FakeStream(str(device)))

    def use(stream) -> None:
        vars(FakeStream.current).setdefault("streams", {})[stream.device] = stream
        made[threading.current_thread().name.split("_")[0]] = stream

    for name, fake in dict(is_available=lambda: True, current_stream=current, set_stream=use, set_device=lambda _: None,
                           Stream=lambda device: FakeStream(str(device))).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    FakeStream.current = threading.local()
    return made


@pytest.mark.parametrize("drafters", [None, "cuda:1"])
def test_every_consumer_waits_for_its_producer(streams, drafters):
    with CudaStreams("cuda:0", drafters, limit=30) as executor:
        owner = torch.cuda.current_stream("cuda:0")
        flights = [executor.launch(lambda g=g: g, lambda d: d + 1, g) for g in range(3)]
        assert [f.result() for f in flights] == [1, 2, 3]
    drafting, verifying = streams["spin-draft"], streams["spin-verify"]
    assert drafting is not verifying and drafting.device == (drafters or "cuda:0") and verifying.device == "cuda:0"
    for number in (1, 2, 3):
        assert (owner, number) in drafting.waited, "drafting waits for what the owner had committed at launch"
        assert (drafting, number) in verifying.waited, "verifying waits for its draft"
        assert (verifying, number) in owner.waited, "and the owner for the verdict"
    assert verifying.waited.index((drafting, 1)) < verifying.waited.index((drafting, 2))


@pytest.mark.parametrize("stage", STAGES)
def test_memory_is_not_let_go_of_while_a_stream_writes_to_it(streams, stage):
    def fail(*_):
        raise MemoryError(stage)

    with CudaStreams("cuda:0", limit=30) as executor:
        with pytest.raises(MemoryError, match=stage):
            executor.launch(fail if stage == DRAFT else lambda: 1, fail if stage == VERIFY else lambda d: d).result()
        assert executor.launch(lambda: 1, lambda d: d + 1).result() == 2
    assert streams[f"spin-{stage}"].synchronized == 1


@pytest.mark.gpu
def test_streams_give_what_one_stream_gives():
    x = torch.randn(256, 256, device="cuda", dtype=torch.float64)

    def run(executor) -> list:
        state = [x.clone(), x.clone()]
        with executor:
            for _ in range(20):
                flights = [executor.launch(lambda g=g: state[g] @ x / 16, lambda d: torch.tanh(d @ x / 16), g)
                           for g in range(2)]
                for g, flight in enumerate(flights):
                    state[g] = flight.result()
        return [s.cpu() for s in state]

    for a, b in zip(run(Sequential()), run(CudaStreams())):
        assert torch.equal(a, b)


def test_drafts_move_to_the_verifiers_device():
    from spin_core.draft import Draft

    draft = Draft(torch.tensor([3, 4]), torch.tensor([0, 2]), torch.rand(1, 5), torch.tensor([-1, 0]), torch.arange(5),
                  seconds=2.0)
    moved = vars(draft.to("meta"))
    assert moved.pop("seconds") == 2 and all(part.device.type == "meta" for part in moved.values())
    assert vars(Draft.one_hot([[1]]).to("cpu"))["probs"] is None
