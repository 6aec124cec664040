"""Many engines, each called from several threads at random times: no request lost, no text wrong, no exception.

Per engine one thread submits, steps and gives up requests, two generate, and one submits and cancels, its own requests
and those of the others, while a step runs. The engines take the ways to overlap drafting and verifying in turn.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from spin_core.engine import Engine
from spin_core.lab.bench import Bar, Report
from spin_core.lab.bench.service import LIMITS, Job, Served, differences, jobs, serve, small
from spin_core.request import FinishReason, Request

PIPELINES = ("off", 2, "auto", "async")
PATIENCE = 60.0         # seconds until a thread that has not come back counts as an exception


class Callers:
    """The threads that call ``engine``.

    ``requests``: what they submitted, each with its job; ``errors``: what they raised.
    """

    def __init__(self, engine: Engine, todo: Sequence[Job], seed: int) -> None:
        self.engine, self.todo, self.rng = engine, list(todo), random.Random(seed)
        self.requests: list[tuple[Request, Job]] = []
        self.errors: list[BaseException] = []

    def run(self) -> None:
        """Serve all jobs, and return when the engine has nothing left to do."""
        own, first, second, disturbing = (self.todo[part::4] for part in range(4))
        calls = [lambda: self._generate(first), lambda: self._generate(second), lambda: self._disturb(disturbing)]
        threads = [threading.Thread(target=self._guarded, args=(call,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        self._guarded(lambda: self._serve(own))
        for thread in threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self.errors.append(TimeoutError("a thread did not come back"))
        self._guarded(self._finish)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self.errors.append(error)

    def _serve(self, todo: list[Job]) -> None:
        self.requests += zip(serve(self.engine, todo, self.rng.randrange(2**32)).requests, todo)

    def _generate(self, todo: list[Job]) -> None:
        for job in todo:
            self.requests += [(self.engine.generate([list(job.prompt)], job.params, drafter=job.drafter)[0], job)]

    def _disturb(self, todo: list[Job]) -> None:
        for job in todo:
            request = self.engine.submit(list(job.prompt), job.params, drafter=job.drafter)
            self.requests.append((request, job))
            time.sleep(self.rng.random() * 0.01)
            self.engine.cancel(self.rng.choice([request, *self.engine.running]))

    def _finish(self) -> None:
        while self.engine.running or self.engine.queue:
            self.engine.step()


def measure(engines: int, seed: int, pipelines: Sequence = PIPELINES, requests: int = 16,
            seconds: float = float("inf")) -> Report:
    """So many engines serve ``requests`` each; after ``seconds`` no further engine begins."""
    family, report, ends = small(), Report("load-threads", []), time.monotonic() + seconds
    todo = jobs(engines * requests, seed, [*family.drafters, "ngram", "none"])
    pairs: dict[object, list[tuple[Request, Job]]] = {pipeline: [] for pipeline in pipelines}
    counts = {pipeline: {"engines": 0, "lost": 0, "exceptions": 0, "drafters_retired": 0} for pipeline in pipelines}
    for number in report.within(lambda: ends - time.monotonic(), range(engines)):
        pipeline = pipelines[number % len(pipelines)]
        with Engine(family, max_batch=4, kv_tokens=40, pipeline=pipeline, **LIMITS) as engine:
            callers = Callers(engine, todo[number * requests:(number + 1) * requests], seed + number)
            callers.run()
        pairs[pipeline] += callers.requests
        counts[pipeline]["engines"] += 1
        counts[pipeline]["lost"] += (len(engine.queue) + len(engine.running) + requests - len(callers.requests)
                                     + sum(not request.finished for request, _ in callers.requests))
        counts[pipeline]["exceptions"] += len(callers.errors) + sum(r.error is not None for r, _ in callers.requests)
        counts[pipeline]["drafters_retired"] += len(engine.retired)
        report.notes += [f"pipeline {pipeline}: {type(error).__name__}: {error}" for error in callers.errors]
    for pipeline, done in pairs.items():
        wrong, compared = differences(family, Served([request for request, _ in done]), [job for _, job in done])
        cancelled = sum(request.finish_reason is FinishReason.CANCELLED for request, _ in done)
        report.rows.append({"pipeline": pipeline, **counts[pipeline], "requests": len(done), "cancelled": cancelled,
                            "wrong_texts": wrong, "compared": compared})
    total = {what: sum(row[what] for row in report.rows) for what in ("engines", "lost", "exceptions", "wrong_texts")}
    report.bars += [Bar("texts that differ from those of requests alone", total["wrong_texts"], "<= 0"),
                    Bar("requests lost", total["lost"], "<= 0"), Bar("exceptions", total["exceptions"], "<= 0"),
                    Bar("engines", total["engines"], f">= {engines}")]
    return report
