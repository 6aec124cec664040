"""Executors: how the two stages of a flight are run. Each gives the same results; only the times differ.

A *flight* is one micro-batch's way through both stages: ``draft()``, then ``verify(draft)``. Each stage serves flights
one at a time, in the order of their launch. :class:`Sequential` runs a flight at once; :class:`Threads` gives each
stage a thread, so that one flight is verified while the next is drafted; :class:`CudaStreams` also gives each thread a
CUDA stream. An executor has one owner: the thread that launches.

Torch releases Python's interpreter lock inside its operators, so two threads compute side by side; between operators
they take turns, so nothing is gained from operators that last microseconds (``python -m spin_core bench pipeline``).
"""

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import torch

from spin_core.pipeline.reference import DRAFT, STAGES, VERIFY
from spin_core.runtime.workers import WorkerThread, set_own_threads

LIMIT = 600.0           # seconds that a wait may take
MOST = threading.TIMEOUT_MAX        # that it can


class StageTimeout(RuntimeError):
    """A stage did not finish within the limit."""


class Flight:
    """A micro-batch, number ``group``, on its way through both stages."""

    def __init__(self, executor: "Executor", group: int) -> None:
        self.executor, self.group = executor, group
        self.drafted: Future = Future()
        self.verified: Future = Future()
        self.ends: dict[str, torch.cuda.Event] = {}     # on CUDA, the end of each stage

    @property
    def landed(self) -> bool:
        """Is the result there?"""
        return self.verified.done()

    def result(self) -> Any:
        """What ``verify`` returned; waits for it. Raises what a stage raised, or StageTimeout after the limit."""
        value = self._wait(self.verified, "verified")
        self.executor._landed(self)
        return value

    def draft(self, call: Callable[[], Any]) -> None:
        """Run the first stage, here and now."""
        self._run(call, self.drafted)

    def verify(self, call: Callable[[Any], Any]) -> None:
        """Wait for the first stage and run the second."""
        self._run(lambda: call(self._wait(self.drafted, "drafted")), self.verified)

    def _run(self, call: Callable[[], Any], outcome: Future) -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:      # it is raised where the result is asked for; the worker lives on
            outcome.set_exception(error)

    def _wait(self, outcome: Future, what: str) -> Any:
        try:
            return outcome.result(self.executor.limit)
        except FutureTimeout:
            if outcome.done():              # a timeout of the stage's own
                raise
            raise StageTimeout(f"group {self.group} was not {what} within {self.executor.limit:g} s") from None


class Executor(ABC):
    """Runs flights. ``limit`` bounds every wait, in seconds. Close it, or use it as a context."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit

    def launch(self, draft: Callable[[], Any], verify: Callable[[Any], Any], group: int = 0) -> Flight:
        """Start a flight. The group's last one must have landed: a draft continues what was committed then."""
        flight = Flight(self, group)
        self._start(flight, draft, verify)
        return flight

    @abstractmethod
    def _start(self, flight: Flight, draft: Callable[[], Any], verify: Callable[[Any], Any]) -> None:
        """Run both stages of the flight, or see to it that they are run."""

    def _landed(self, flight: Flight) -> None:
        """The owner has the flight's result in hand."""

    def is_within_stage(self) -> bool:
        """Is the calling thread one of its own?"""
        return False

    def close(self) -> None:
        """End the threads, behind what is under way."""

    def abandon(self) -> None:
        """Let go of the threads, of which one may hang; what waits behind it is dropped."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *error) -> None:
        self.close()


class Sequential(Executor):
    """Both stages in the owner's thread, the second behind the first."""

    def _start(self, flight: Flight, draft: Callable[[], Any], verify: Callable[[Any], Any]) -> None:
        flight.draft(draft)
        flight.verify(verify)


class Threads(Executor):
    """A thread per stage, with ``shares`` (draft, verify) of the cores; by default :func:`core_shares`."""

    def __init__(self, shares: tuple[int, int] | None = None, limit: float = LIMIT) -> None:
        super().__init__(limit)
        self.shares = dict(zip(STAGES, shares or core_shares()))
        if min(self.shares.values()) < 1:
            raise ValueError(f"Threads: every stage needs a core, got {shares}")
        self._lanes = {stage: WorkerThread(f"spin-{stage}", self._beginning(stage)) for stage in STAGES}

    def _beginning(self, stage: str) -> Callable[[], None]:
        """What a stage's thread does first: without a reference to ``self``, or the thread would keep it alive."""
        return functools.partial(set_own_threads, self.shares[stage])

    def _start(self, flight: Flight, draft: Callable[[], Any], verify: Callable[[Any], Any]) -> None:
        self._lanes[DRAFT].submit(flight.draft, draft)
        self._lanes[VERIFY].submit(flight.verify, verify)

    def is_within_stage(self) -> bool:
        return any(lane.is_current() for lane in self._lanes.values())

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def abandon(self) -> None:
        for lane in self._lanes.values():
            lane.abandon()


class CudaStreams(Threads):
    """:class:`Threads` whose stages compute on CUDA streams of their own.

    A thread per stage, too: a drafter asks the device after every token whether its logits are finite, and a thread
    that waits for an answer launches nothing. ``draft_device``: the drafters', if it is not the target's ``device``.
    Events keep the order between streams: verifying waits for its draft, the owner's stream for the verdict
    (:meth:`Flight.result`), and drafting for what the owner's stream held at launch, the group's last verdict among it.

    Raises RuntimeError without CUDA.
    """

    def __init__(self, device: torch.device | str = "cuda", draft_device: torch.device | str | None = None,
                 limit: float = LIMIT) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("CudaStreams: this torch sees no CUDA device")
        self.devices = {DRAFT: torch.device(draft_device or device), VERIFY: torch.device(device)}
        super().__init__(None, limit)

    def _beginning(self, stage: str) -> Callable[[], None]:
        return functools.partial(_begin_stream, self.shares[stage], self.devices[stage])

    def _start(self, flight: Flight, draft: Callable[[], Any], verify: Callable[[Any], Any]) -> None:
        ready = [torch.cuda.current_stream(device).record_event() for device in set(self.devices.values())]

        def run(stage: str, call: Callable, *args: Any) -> Any:
            stream = torch.cuda.current_stream(self.devices[stage])
            for event in [*ready, *flight.ends.values()]:
                stream.wait_event(event)
            try:
                return call(*args)
            except BaseException:
                stream.synchronize()        # memory that is let go of now must not be written to any more
                raise
            finally:
                flight.ends[stage] = stream.record_event()

        super()._start(flight, lambda: run(DRAFT, draft), lambda drafted: run(VERIFY, verify, drafted))

    def _landed(self, flight: Flight) -> None:
        for device in set(self.devices.values()):
            torch.cuda.current_stream(device).wait_event(flight.ends[VERIFY])


def _begin_stream(cores: int, device: torch.device) -> None:
    set_own_threads(cores)
    torch.cuda.set_device(device)
    torch.cuda.set_stream(torch.cuda.Stream(device))


def core_shares(cores: int | None = None) -> tuple[int, int]:
    """Cores for (draft, verify): a quarter for the small models, but at least one each. Default: torch's threads."""
    cores = torch.get_num_threads() if cores is None else cores
    draft = max(1, cores // 4)
    return draft, max(1, cores - draft)


def make_executor(device: torch.device | str, draft_device: torch.device | str | None = None,
                  limit: float = LIMIT) -> Executor:
    """Streams where the target is on a CUDA device, threads elsewhere."""
    if torch.device(device).type == "cuda":
        return CudaStreams(device, draft_device, limit)
    return Threads(limit=limit)
