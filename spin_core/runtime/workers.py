"""Worker threads that end with their owner, a watch over calls that may hang, and thread counts of one thread."""

import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import torch

_counting = threading.Lock()


class WorkerThread:
    """Runs what is submitted, in order, in a thread of its own. ``begin()`` is what the thread does first.

    It is a daemon: a call that hangs must not keep the program from ending. It ends when it is closed, with its owner,
    and with the program: torch takes the program down if the interpreter stops a thread in the midst of an operator.
    """

    def __init__(self, name: str, begin: Callable[[], None] = lambda: None) -> None:
        self._queue: SimpleQueue = SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._queue, begin), daemon=True, name=name)
        thread.start()
        self._thread, self._end = thread, weakref.finalize(self, _end, self._queue, thread)

    def is_current(self) -> bool:
        """Is it the calling thread?"""
        return self._thread is threading.current_thread()

    def submit(self, call: Callable, *args: Any) -> None:
        """Run ``call(*args)`` behind all that was submitted before. It must not raise."""
        self._queue.put((call, args))

    def close(self) -> None:
        """Let the thread end behind all that was submitted, and wait for that a few seconds at most."""
        self._end()

    def abandon(self) -> None:
        """Let the thread end behind the call that it is in, which may hang; what waits behind it is dropped."""
        self._end.detach()          # nothing waits for it any more
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            self._queue.put(None)


class Abandoned(RuntimeError):
    """The step was given up while it waited for a drafter that hangs."""


class Watch:
    """Which drafter a step is waiting for, so that one that hangs can be named, and its step given up.

    A drafter that comes back after all finds the step given up: nothing behind its own pass is run any more.
    """

    def __init__(self) -> None:
        self._drafter: str | None = None
        self._abandoned = False
        self._lock = threading.Lock()

    def enter(self, drafter: str | None) -> None:
        """The step goes on to this drafter, or from one to the next stage. Raises Abandoned if it was given up."""
        with self._lock:
            if self._abandoned:
                raise Abandoned("the step was given up, for a drafter did not come back in time")
            self._drafter = drafter

    def abandon(self, anyway: bool = False) -> str | None:
        """Give the step up if it waits for a drafter, or ``anyway``; the drafter's name."""
        with self._lock:
            self._abandoned |= anyway or self._drafter is not None
            return self._drafter


def set_own_threads(count: int) -> None:
    """Let torch's operators use ``count`` cores in the calling thread, and in no other.

    ``torch.set_num_threads`` holds for the calling thread (in builds with OpenMP, as the published ones are) and for
    threads that start later: the second effect is undone by setting the old number in a passing thread.
    """
    with _counting:
        before = torch.get_num_threads()        # asking also makes torch initialise the count of a new thread
        torch.set_num_threads(count)
        passing = threading.Thread(target=torch.set_num_threads, args=(before,))
        passing.start()
        passing.join()


def _work(queue: SimpleQueue, begin: Callable[[], None]) -> None:
    begin()
    while (item := queue.get()) is not None:
        call, args = item
        call(*args)
        del item, call, args        # or the thread would keep them alive while it waits


def _end(queue: SimpleQueue, thread: threading.Thread) -> None:
    queue.put(None)
    if thread is not threading.current_thread():
        thread.join(timeout=5)
