"""Fast switching (SPIN, arXiv 2503.15921): a drafter reads a text beside the others' work, before it drafts for it.

A job is one catch-up of one drafter for some requests. It works on snapshots of them, and on cache slots that nothing
else touches: no request drafts with a drafter that is still reading its text.
"""

import functools
import threading
import time
from collections.abc import Callable

import torch

from spin_core.draft.base import CaughtUp, Drafter
from spin_core.request import Request
from spin_core.runtime.workers import WorkerThread, set_own_threads

PATIENCE = 30.0     # seconds a job may take; then its drafter counts as hung and is retired


class Job:
    """``drafter``, called ``name``, reads what it is missing of ``requests``. ``found``, ``seconds`` and ``error`` hold
    the result once it is ``done``."""

    def __init__(self, name: str, drafter: Drafter, requests: list[Request]) -> None:
        self.name, self.drafter = name, drafter
        self.requests = [r.snapshot() for r in requests]
        self.found: list[CaughtUp] = []
        self.seconds = 0.0
        self.error: Exception | None = None
        self.began: float | None = None
        self._first = threading.Lock()      # held by the thread that came first: to run the job or to call it off
        self._stop, self._done = threading.Event(), threading.Event()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def hung(self) -> bool:
        return not self.done and self.began is not None and time.perf_counter() - self.began > PATIENCE

    def run(self, finish: Callable[[], None] = lambda: None) -> None:
        """Do it, unless it was called off; ``finish`` waits for the device."""
        if not self._first.acquire(blocking=False):
            return
        self.began = time.perf_counter()
        try:
            self.found = check_found(self.drafter.catch_up(self.requests, self._stop.is_set), len(self.requests))
            finish()
        except Exception as error:          # belongs to the engine, which will retire the drafter
            self.error = error
        finally:
            self.seconds = time.perf_counter() - self.began
            self._done.set()

    def end(self) -> None:
        """Wait until no thread works on it: not at all if it has not begun, else to the end of its pass."""
        self._stop.set()
        if self._first.acquire(blocking=False):
            self._done.set()
        elif not self._done.wait(PATIENCE):
            self.give_up()

    def give_up(self) -> None:
        self.error = TimeoutError(f"it has been reading for more than {PATIENCE:g} s")


class Worker:
    """Runs jobs in a thread, in order; on a CUDA device in a stream of its own."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._thread = self._begin_thread()

    def submit(self, job: Job) -> None:
        if self._stream is None:
            self._thread.submit(job.run)
        else:   # the stream waits for what has been launched so far: the target's states that a fed drafter reads
            ready = torch.cuda.current_stream(self.device).record_event()
            self._thread.submit(_run_in_stream, job, self._stream, ready)

    def restart(self, jobs: list[Job]) -> None:
        """A new thread, beside one that hangs: it gets what the other has not begun of ``jobs``."""
        self._thread.abandon()
        self._thread = self._begin_thread()
        for job in jobs:
            self.submit(job)

    def _begin_thread(self) -> WorkerThread:
        # one core: the target's pass needs the others more
        return WorkerThread("spin-catch-up", (lambda: None) if self._stream else functools.partial(set_own_threads, 1))

    def close(self) -> None:
        self._thread.close()


def _run_in_stream(job: Job, stream: torch.cuda.Stream, ready: torch.cuda.Event) -> None:
    with torch.cuda.stream(stream):
        stream.wait_event(ready)
        job.run(stream.synchronize)


def check_found(found: list[CaughtUp], count: int) -> list[CaughtUp]:
    """What a drafter says it has read for ``count`` requests. Raises ValueError for anything else."""
    if not isinstance(found, list) or len(found) != count or any(
            not isinstance(f, CaughtUp) or not isinstance(f.tokens, int) or f.tokens < 0 or
            any(hit is not None and not 0 <= hit <= 1 for hit in f.hits) for f in found):
        raise ValueError(f"its catch_up must return a CaughtUp for each of {count} requests, got {found!r:.200}")
    return found


class CatchUps:
    """The jobs under way. A ``worker`` runs them; without one, and for lookups, they run at once."""

    def __init__(self, worker: Worker | None) -> None:
        self.worker = worker
        self.jobs: list[Job] = []

    def start(self, name: str, drafter: Drafter, requests: list[Request]) -> None:
        job = Job(name, drafter, requests)
        self.jobs.append(job)
        if drafter.is_lookup or self.worker is None:
            job.run()
        else:
            self.worker.submit(job)

    def reading(self, name: str, slot: int) -> bool:
        """Is that drafter still at work on the request in ``slot``?"""
        return any(j.name == name and any(r.slot == slot for r in j.requests) for j in self.jobs)

    def collect(self) -> list[Job]:
        """The jobs that have ended since the last call, those that hang among them."""
        hung = [j for j in self.jobs if j.hung]
        for job in hung:
            job.give_up()
        return self._take([j for j in self.jobs if j.done or j in hung])

    def release(self, slot: int) -> list[Job]:
        """End every job on the request in ``slot``, whose memory others will get; the jobs, none of them under way."""
        jobs = [j for j in self.jobs if any(r.slot == slot for r in j.requests)]
        for job in jobs:
            job.end()
        return self._take(jobs)

    def _take(self, jobs: list[Job]) -> list[Job]:
        self.jobs = [j for j in self.jobs if j not in jobs]
        if any(isinstance(j.error, TimeoutError) and not j.done for j in jobs):
            self.worker.restart(self.jobs)
        return jobs

    def close(self) -> None:
        """End the thread in which drafters read."""
        if self.worker:
            self.worker.close()
