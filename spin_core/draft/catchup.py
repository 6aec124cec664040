"""Fast switching (SPIN, arXiv 2503.15921): a drafter reads a text beside the others' work, before it drafts for it.

A job is one catch-up of one drafter for some requests. It works on snapshots of them, and on cache slots that nobody
else touches meanwhile: the engine lets no request draft with a drafter that is still reading its text.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue

import torch

from spin_core.draft.base import CaughtUp, Drafter
from spin_core.request import Request

PATIENCE = 30.0     # seconds a job may take; then its drafter counts as hung, and nobody waits for it any more


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
        self._first = threading.Lock()      # held by whoever came first: the one that runs the job, or calls it off
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
            self.found = self.drafter.catch_up(self.requests, self._stop.is_set)
            finish()
        except Exception as error:          # belongs to the engine, which will retire the drafter
            self.error = error
        finally:
            self.seconds = time.perf_counter() - self.began
            self._done.set()

    def end(self) -> None:
        """Wait until nobody works on it: not at all if it has not begun, else to the end of its pass."""
        self._stop.set()
        if self._first.acquire(blocking=False):
            self._done.set()
        elif not self._done.wait(PATIENCE):
            self.give_up()

    def give_up(self) -> None:
        self.error = TimeoutError(f"it has been reading for more than {PATIENCE:g} s")


class Inline:
    """Runs a job at once, while the engine waits."""

    def submit(self, job: Job) -> None:
        job.run()

    def restart(self, jobs: list[Job]) -> None:
        """Nothing to restart: whoever submits waits."""


class Worker:
    """Runs jobs in a thread, one after the other; on a CUDA device in a stream of its own."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.restart([])

    def submit(self, job: Job) -> None:
        # the stream waits for what has been launched so far: the target's states that a fed drafter reads
        ready = torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
        self._queue.put((job, ready))

    def restart(self, jobs: list[Job]) -> None:
        """A new thread, beside one that hangs: it gets what the other has not begun of ``jobs``."""
        self._queue: SimpleQueue = SimpleQueue()
        # a daemon, for one that hangs must not keep the program from ending
        thread = threading.Thread(target=_work, args=(self._queue, self.device), daemon=True, name="spin-catch-up")
        thread.start()
        weakref.finalize(self, _end, self._queue, thread)
        for job in jobs:
            self.submit(job)


def _end(queue: SimpleQueue, thread: threading.Thread) -> None:
    """With its owner, or with the program, the thread ends too: a thread that the interpreter stops at its exit in
    the midst of an operator of torch takes the program down."""
    queue.put(None)
    if thread is not threading.current_thread():
        thread.join(timeout=5)


def _work(queue: SimpleQueue, device: torch.device) -> None:
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    if stream is None:
        torch.set_num_threads(1)        # this thread alone: the target's pass needs the cores more
    while (item := queue.get()) is not None:
        job, ready = item
        if stream is None:
            job.run()
        else:
            with torch.cuda.stream(stream):
                stream.wait_event(ready)
                job.run(stream.synchronize)


class CatchUps:
    """The jobs under way. ``executor`` runs them: :class:`Inline` or a :class:`Worker`; quick ones run at once."""

    def __init__(self, executor: Inline | Worker) -> None:
        self.executor = executor
        self.jobs: list[Job] = []

    def start(self, name: str, drafter: Drafter, requests: list[Request]) -> None:
        job = Job(name, drafter, requests)
        self.jobs.append(job)
        if drafter.is_lookup:
            job.run()
        else:
            self.executor.submit(job)

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
            self.executor.restart(self.jobs)
        return jobs
