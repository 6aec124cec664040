"""A service in which things break, and engines that several threads call: no request may be lost, and every text must
be what it is without the fault.

:func:`measure` breaks something every :data:`EVERY` steps: a drafter raises or hands over a malformed draft, the
selector answers nonsense, or another thread cancels, submits or generates while a step runs. A drafter that broke is
retired for good: the small family has one drafter under many names.

:func:`measure_threads` serves on many engines. Per engine one thread submits, steps and gives up requests, two
generate, and one submits and cancels, its own requests and those of the others, while a step runs.

Both take the ways to overlap drafting and verifying in turn.
"""

import random
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from spin_core.draft.base import Draft
from spin_core.engine import Engine
from spin_core.lab.bench import Bar, Report
from spin_core.lab.bench.service import LIMITS, VOCAB, Job, Pairs, differences, jobs, serve, small
from spin_core.request import FinishReason, Request

EVERY = 50          # steps between two faults
DRAFTERS = 16
PIPELINES = ("off", 2, "auto", "async")
PATIENCE = 60.0     # seconds until a thread that has not come back counts as an exception


def _raise(draft: Draft) -> Draft:
    raise RuntimeError("a fault of the drafter")


DRAFTS: dict[str, Callable[[Draft], object]] = {
    "raises": _raise,
    "hands over no draft": lambda d: None,
    "ids outside the vocabulary": lambda d: replace(d, tokens=d.tokens + VOCAB),
    "negative ids": lambda d: replace(d, tokens=d.tokens - VOCAB),
    "tokens that are floats": lambda d: replace(d, tokens=d.tokens.double()),
    "far too many tokens": lambda d: Draft(d.tokens.repeat(50), d.cu * 50),
    "fewer requests": lambda d: replace(d, cu=d.cu[:-1]),
    "more requests": lambda d: replace(d, cu=torch.cat([d.cu, d.cu[-1:] + 1])),
    "counts that fall": lambda d: replace(d, cu=d.cu.flip(0)),
    "probabilities of another vocabulary": lambda d: replace(d, probs=torch.full((1, VOCAB + 1), 1 / (VOCAB + 1))),
    "rows of probabilities that are missing": lambda d: replace(d, probs=None, prob_row=torch.full_like(d.prob_row, 7)),
    "NaN for probabilities": lambda d: replace(d, probs=torch.full((1, VOCAB), torch.nan),
                                               prob_row=torch.zeros_like(d.prob_row))}
ANSWERS = (5, None, "spin", {0: "close"}, [float("nan")], {0: ("unknown", 2)}, {0: ("close", float("nan"))})
"""What a broken selector answers."""


def finish(engine: Engine) -> None:
    """Serve whatever the engine still has."""
    while engine.running or engine.queue:
        engine.step()


def generate(engine: Engine, job: Job) -> tuple[Request, Job]:
    return engine.generate([list(job.prompt)], job.params, drafter=job.drafter)[0], job


def tally(pipeline, pairs: Pairs, lost: int, errors: int, retired: int, texts: tuple[int, int]) -> dict:
    """A row of either table. ``lost``: requests and jobs beside ``pairs`` that came to no end; ``errors``: of calls;
    ``texts``: the wrong ones and all that were compared."""
    return {"pipeline": pipeline, "requests": len(pairs),
            "cancelled": sum(r.finish_reason is FinishReason.CANCELLED for r, _ in pairs),
            "drafters_retired": retired, "lost": lost + sum(not r.finished for r, _ in pairs),
            "errors": errors + sum(r.error is not None for r, _ in pairs),
            "wrong_texts": texts[0], "compared": texts[1]}


def totals(rows: Sequence[dict], *columns: str) -> list[int]:
    return [sum(row[column] for row in rows) for column in columns]


# ---- faults

class Faults:
    """Breaks something of ``engine`` every :data:`EVERY` steps, all kinds in turn, beginning after ``names``, those of
    an earlier service. Requests of other threads are kept in ``others``."""

    def __init__(self, engine: Engine, extra: list[Job], seed: int, names: Sequence[str] = ()) -> None:
        self.engine, self.extra, self.rng = engine, iter(extra), random.Random(seed)
        self.steps, self.before, self.names, self.threads, self.errors = 0, len(names), [], [], []
        self.others: Pairs = []
        self.kinds: list[tuple[str, Callable]] = [
            *((f"drafter: {name}", partial(self._break_drafter, change)) for name, change in DRAFTS.items()),
            ("selector answers nonsense", self._break_selector), ("another thread cancels", self._cancel),
            ("another thread submits", self._submit), ("another thread generates", self._generate)]

    def between(self, submitted: int) -> None:
        """Called before every step."""
        self.steps += 1
        if self.steps % EVERY == 0 and self.engine.running:
            # five apart: a broken drafter now, another thread soon
            name, fault = self.kinds[5 * (self.before + len(self.names)) % len(self.kinds)]
            self.names.append(name)
            fault()

    def finish(self) -> None:
        """Serve what other threads have submitted."""
        for thread in self.threads:
            thread.join()
        finish(self.engine)

    def _break_drafter(self, change: Callable[[Draft], object]) -> None:
        """Of the drafters that serve now, one answers so from now on."""
        serving = {r.drafter for r in self.engine.running} & {*self.engine.drafters} - {"none", *self.engine.retired}
        if serving:
            drafter = self.engine.get_drafter(self.rng.choice(sorted(serving)))
            propose = drafter.propose
            drafter.propose = lambda *args, **options: change(propose(*args, **options))

    def _break_selector(self) -> None:
        """Its next answer is nonsense."""
        selector, method = self.engine.selection.selector, self.rng.choice(["assign", "probe", "observe"])

        def broken(*_, **__):
            delattr(selector, method)           # the class's own again
            if method == "observe":
                raise RuntimeError("a fault of the selector")
            return self.rng.choice(ANSWERS)

        setattr(selector, method, broken)

    def _elsewhere(self, work: Callable[[], object]) -> None:
        """Do ``work`` in another thread, at some moment of the next steps."""
        def run() -> None:
            time.sleep(delay)
            try:
                work()
            except Exception as error:
                self.errors.append(error)

        delay = self.rng.random() * 0.01
        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def _cancel(self) -> None:
        self._elsewhere(lambda request=self.rng.choice(self.engine.running): self.engine.cancel(request))

    def _submit(self) -> None:
        job = next(self.extra)
        self._elsewhere(lambda: self.others.append(
            (self.engine.submit(list(job.prompt), job.params, drafter=job.drafter), job)))

    def _generate(self) -> None:
        job = next(self.extra)
        self._elsewhere(lambda: self.others.append(generate(self.engine, job)))


def measure(requests: int, batch: int, seed: int, pipelines=PIPELINES) -> Report:
    """Serve ``requests`` with faults, in each way to overlap drafting and verifying."""
    family, rows, names = small(DRAFTERS), [], []
    # sampled text depends on its drafter, which may be retired: sampled requests are decoded plainly
    drafters = [*family.drafters, "ngram"]
    todo = jobs(requests, seed, drafters, sampled=["none"])
    extra = [replace(job, patience=None) for job in jobs(requests, seed + 1, drafters, sampled=["none"])]
    for pipeline in pipelines:
        with Engine(family, max_batch=batch, kv_tokens=10 * batch, pipeline=pipeline, **LIMITS) as engine, \
                warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)         # of every drafter that is retired
            faults = Faults(engine, extra, seed, names)
            served = serve(engine, todo, seed, between=faults.between)
            faults.finish()
        names += faults.names
        pairs = [*zip(served.requests, todo), *faults.others]
        rows.append(tally(pipeline, pairs, len(engine.queue) + len(engine.running), len(faults.errors),
                          len(engine.retired), differences(family, pairs))
                    | {"steps": faults.steps, "faults": len(faults.names), "kinds": len(set(faults.names))})
    lost, wrong, errors, broken, steps = totals(rows, "lost", "wrong_texts", "errors", "faults", "steps")
    return Report("load-faults", rows, [
        Bar("requests lost", lost, "<= 0"), Bar("texts that differ from those without faults", wrong, "<= 0"),
        Bar("requests and calls that end in an error", errors, "<= 0"),
        Bar(f"kinds of faults, of {len(faults.kinds)}", len(set(names)), f">= {min(len(names), len(faults.kinds))}"),
        Bar(f"faults for every {EVERY} steps", broken * EVERY / steps, ">= 0.9")], [
        f"{requests} requests, batch {batch}, random models in float64; faults: of the drafter ({', '.join(DRAFTS)}), "
        "of the selector, and of other threads that cancel, submit and generate while a step runs"])


# ---- threads

class Callers:
    """The threads that call ``engine``. ``pairs``: what they submitted, each with its job; ``errors``: what they
    raised."""

    def __init__(self, engine: Engine, todo: Sequence[Job], seed: int) -> None:
        self.engine, self.todo, self.rng = engine, list(todo), random.Random(seed)
        self.pairs: Pairs = []
        self.errors: list[BaseException] = []

    def run(self) -> None:
        """Serve all jobs, and return when the engine has nothing left to do."""
        own, first, second, disturbing = (self.todo[part::4] for part in range(4))
        calls = [lambda: self._generate(first), lambda: self._generate(second), lambda: self._disturb(disturbing)]
        threads = [threading.Thread(target=self._guarded, args=(call,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        self._guarded(lambda: self.pairs.extend(
            zip(serve(self.engine, own, self.rng.randrange(2**32)).requests, own)))
        for thread in threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self.errors.append(TimeoutError("a thread did not come back"))
        self._guarded(lambda: finish(self.engine))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self.errors.append(error)

    def _generate(self, todo: list[Job]) -> None:
        for job in todo:
            self.pairs.append(generate(self.engine, job))

    def _disturb(self, todo: list[Job]) -> None:
        for job in todo:
            request = self.engine.submit(list(job.prompt), job.params, drafter=job.drafter)
            self.pairs.append((request, job))
            time.sleep(self.rng.random() * 0.01)
            self.engine.cancel(self.rng.choice([request, *self.engine.running]))


def measure_threads(engines: int, seed: int, pipelines: Sequence = PIPELINES, requests: int = 16,
                    seconds: float = float("inf")) -> Report:
    """So many engines serve ``requests`` each; after ``seconds`` no further engine begins."""
    family, report, ends = small(), Report("load-threads", []), time.monotonic() + seconds
    todo = jobs(engines * requests, seed, [*family.drafters, "ngram", "none"])
    done: dict[object, Pairs] = {pipeline: [] for pipeline in pipelines}
    counts = {pipeline: [0, 0, 0, 0] for pipeline in pipelines}         # engines, lost, errors, retired drafters
    for number in report.within(lambda: ends - time.monotonic(), range(engines)):
        pipeline = pipelines[number % len(pipelines)]
        with Engine(family, max_batch=4, kv_tokens=40, pipeline=pipeline, **LIMITS) as engine:
            callers = Callers(engine, todo[number * requests:(number + 1) * requests], seed + number)
            callers.run()
        done[pipeline] += callers.pairs
        here = 1, len(engine.queue) + len(engine.running) + requests - len(callers.pairs), len(callers.errors), \
            len(engine.retired)
        counts[pipeline] = [sum(pair) for pair in zip(counts[pipeline], here)]
        report.notes += [f"pipeline {pipeline}: {type(error).__name__}: {error}" for error in callers.errors]
    for pipeline, pairs in done.items():
        row = tally(pipeline, pairs, *counts[pipeline][1:], differences(family, pairs))
        report.rows.append(row | {"engines": counts[pipeline][0], "exceptions": row.pop("errors")})
    served, lost, exceptions, wrong = totals(report.rows, "engines", "lost", "exceptions", "wrong_texts")
    report.bars += [Bar("texts that differ from those of requests alone", wrong, "<= 0"),
                    Bar("requests lost", lost, "<= 0"), Bar("exceptions", exceptions, "<= 0"),
                    Bar("engines", served, f">= {engines}")]
    return report
