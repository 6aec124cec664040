"""A service in which things break: no request may be lost, and every text must be what it is without the fault.

Every :data:`EVERY` steps something goes wrong: a drafter raises or hands over a malformed draft, the selector answers
nonsense, or another thread cancels, submits or generates while a step runs. A drafter that broke is retired for good:
the small family has one drafter under many names.
"""

from __future__ import annotations

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
from spin_core.lab.bench.service import LIMITS, VOCAB, Job, Served, differences, jobs, serve, small
from spin_core.request import FinishReason, Request

EVERY = 50          # steps between two faults
DRAFTERS = 16
PIPELINES = ("off", 2, "auto", "async")


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


class Faults:
    """Breaks something of ``engine`` every :data:`EVERY` steps, all kinds in turn, beginning after ``names``, those of
    an earlier service. Requests of other threads are kept in ``others``."""

    def __init__(self, engine: Engine, extra: list[Job], seed: int, names: Sequence[str] = ()) -> None:
        self.engine, self.extra, self.rng = engine, iter(extra), random.Random(seed)
        self.steps, self.before, self.names, self.threads, self.errors = 0, len(names), [], [], []
        self.others: list[tuple[Request, Job]] = []
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
        while self.engine.running or self.engine.queue:
            self.engine.step()

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
        self._elsewhere(lambda: self.others.append(
            (self.engine.generate([list(job.prompt)], job.params, drafter=job.drafter)[0], job)))


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
        others = Served([request for request, _ in faults.others])
        found = [differences(family, served, todo), differences(family, others, [job for _, job in faults.others])]
        all_requests = served.requests + others.requests
        rows.append({"pipeline": pipeline, "requests": len(all_requests), "steps": faults.steps,
                     "faults": len(faults.names), "kinds": len(set(faults.names)),
                     "drafters_retired": len(engine.retired),
                     "cancelled": sum(r.finish_reason is FinishReason.CANCELLED for r in all_requests),
                     "lost": sum(not r.finished for r in all_requests) + len(engine.queue) + len(engine.running),
                     "errors": len(faults.errors) + sum(r.error is not None for r in all_requests),
                     "wrong_texts": sum(wrong for wrong, _ in found), "compared": sum(count for _, count in found)})
    total = {what: sum(row[what] for row in rows) for what in ("lost", "wrong_texts", "errors", "faults", "steps")}
    return Report("load-faults", rows, [
        Bar("requests lost", total["lost"], "<= 0"),
        Bar("texts that differ from those without faults", total["wrong_texts"], "<= 0"),
        Bar("requests and calls that end in an error", total["errors"], "<= 0"),
        Bar(f"kinds of faults, of {len(faults.kinds)}", len(set(names)), f">= {min(len(names), len(faults.kinds))}"),
        Bar(f"faults for every {EVERY} steps", total["faults"] * EVERY / total["steps"], ">= 0.9")], [
        f"{requests} requests, batch {batch}, random models in float64; faults: of the drafter ({', '.join(DRAFTS)}), "
        "of the selector, and of other threads that cancel, submit and generate while a step runs"])
