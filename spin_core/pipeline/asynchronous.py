"""Asynchronous steps: the next step is launched before the host has read the verdict of the last one.

The device never waits for the host between two steps. The host learns one step late of stops, limits and cancellations:
a request that has ended by then was served once for nothing, and what that step brought is dropped. Its slot is given
back when the step has landed. Texts are those of the synchronous engine, token for token: the device knows every limit
on the lengths of drafts, and every random number belongs to a position.

Only a step that needs nothing from the host can be launched so: decoding with one model drafter or none. With prompts,
lookup, a selector, recorded distributions, several drafters, or models with windows, sinks or capped scores a step runs
as without a pipeline, after everything has landed (the synchronous fallback).
"""

import time
from dataclasses import dataclass

from spin_core.draft import Draft, Drafter, FedDrafter
from spin_core.kv.transfer import Download, Mark
from spin_core.pipeline import device_step
from spin_core.request import Request
from spin_core.runtime import ModelRunner
from spin_core.runtime.graphs import Graphs
from spin_core.step import DraftGroup, InFlight, RequestOutcome, Step, Verified, Work
from spin_core.trace import Event

DEPTH = 2       # steps in flight: one that the host is reading, one that keeps the device busy meanwhile


class Asynchronous:
    """Serves the running requests with up to :data:`DEPTH` steps in flight."""

    def __init__(self, steps: Step) -> None:
        self.steps, self.scheduler = steps, steps.scheduler
        self.in_flight = self.scheduler.in_flight
        self._batch: device_step.DeviceBatch | None = None      # the requests as the last launched step leaves them
        self._graphs: dict[ModelRunner, Graphs] = {}
        self._landed = 0.0

    def step(self) -> list[Event]:
        """Keep the device busy and land the step that was launched first; its events.

        Raises what the target's pass raised. The requests are then as they were before.
        """
        self.scheduler.admit()
        while len(self.in_flight) < DEPTH:
            live = [r for r in self.scheduler.running if not r.finished]
            if not self._can_launch(live) or not self._launch(live):
                break
        if not self.in_flight:
            self._batch = None
            return self.steps.run(self.scheduler.running) if self.scheduler.running else []
        events = self._land()
        if all(r.finished for step in self.in_flight for r in step.requests):       # the rest is of no use
            self.drain()
        return events

    def drain(self) -> None:
        """Land everything."""
        while self.in_flight:
            self._land()

    def close(self) -> None:
        """Nothing runs beside the owner's thread."""

    # ---- launching

    def _can_launch(self, live: list[Request]) -> bool:
        """Is everything known, on the host or on the device, that another step needs?"""
        if not live or not self.steps.target.plain or self.steps.assigner or self.steps.record_probs or \
                len({r.drafter for r in live}) > 1 or \
                any(r.params.adjusts_logits or r.params.logprobs for r in live):
            return False
        drafter = self.steps.drafters.get(live[0].drafter)
        if self.in_flight:
            last = self.in_flight[-1].flight
            # a request that is sure to reach a limit with what is in flight needs no further step
            return self._batch is not None and drafter is last.drafter and all(r in last.requests for r in live) and \
                any(r.remaining > len(self.in_flight) for r in live)
        width = device_step.window(drafter, device_step.longest_draft(live, self._limits(live, drafter)))
        return device_step.can_draft(drafter, self.steps.target.device) and \
            all(self._is_ready(r, drafter, width) for r in live)

    def _is_ready(self, request: Request, drafter: Drafter, width: int) -> bool:
        """Do the caches hold the text up to what a step reads itself: the drafter its window, the target a token?"""
        return bool(request.output_ids) and request.length > width and \
            self.steps.target.cache.lengths[request.slot] == request.length - 1 and \
            (request.gamma == 0 or drafter.missing(request) < width)

    def _launch(self, live: list[Request]) -> bool:
        """Launch another step; False if its drafter raised, which is then retired."""
        target, name = self.steps.target, live[0].drafter
        drafter = self.steps.drafters.get(name)
        if not self.in_flight:
            drafting = self._graphs_of(drafter.runner) if hasattr(drafter, "runner") else None
            self._batch = device_step.DeviceBatch.of(live, self._graphs_of(target), drafter, drafting,
                                                     self._limits(live, drafter))
        elif live != (before := self.in_flight[-1].requests):
            self._batch = self._batch.rows([before.index(r) for r in live])
        batch, self._batch = self._batch, None      # whatever raises below leaves it half changed
        marks = [Mark(target.device)]
        most = max(r.length for r in live) + len(self.in_flight) * (batch.longest + 1)
        try:
            drafted = device_step.draft(batch, most)
        except Exception as error:          # losing a drafter must cost speed, never a request
            self.steps.drafters.retire(name, error)
            return False
        marks.append(Mark(target.device))
        result, verifying = device_step.verify(batch, drafted, most)
        marks += [verifying, Mark(target.device)]
        flight = _Flight(live, name, drafter, batch.longest, Download(result), marks, target)
        self.in_flight.append(InFlight(live, flight, marks[0].host))
        self._batch = batch                 # last: it must not be ahead of the steps that will land
        return True

    def _limits(self, requests: list[Request], drafter: Drafter) -> list[int]:
        """How long each text may be with its draft, so that the target's own token still fits."""
        return [min(r.length + r.remaining - 1, self.scheduler.max_len - 1, drafter.max_context) for r in requests]

    def _graphs_of(self, runner: ModelRunner) -> Graphs:
        if runner not in self._graphs:
            self._graphs[runner] = getattr(runner, "graphs_type", Graphs)(runner)     # of a target over several ranks
        return self._graphs[runner]

    # ---- landing

    def _land(self) -> list[Event]:
        """Land the step that was launched first; its events.

        Raises what that raised, an interrupt for example. The steps behind it continue a text that was not committed
        then: they are given up, and the next steps compute the same tokens.
        """
        try:
            step = self.in_flight.popleft()
            verified = step.flight.result()
            step.began, self._landed = max(step.began, self._landed), time.perf_counter()
            return self.steps.commit(verified, step)
        except BaseException:
            self.in_flight.clear()
            self._batch = None
            self.scheduler.sweep()
            raise


@dataclass
class _Flight:
    """What comes back of a step, and moments on the device: draft, target, verdict, end."""

    requests: list[Request]
    name: str
    drafter: Drafter
    gamma: int
    download: Download
    marks: list[Mark]
    target: ModelRunner
    landed = False

    def result(self) -> Verified:
        """Read it, as if it had ended just now."""
        works, outcomes, counts = [], [], []
        for request, row in zip(self.requests, self.download.read()):
            count, accepted, failed, tokens = *row[:3], row[3:]
            works.append(Work(request, request.ids[-1:], True))
            counts.append(count)
            outcomes.append(RequestOutcome(tokens[:count], accepted, [t for t in tokens[self.gamma:] if t >= 0],
                                           bool(failed)))
            if request.finished:
                continue
            # bring the caches' lengths on the host up to date, before the verdict rolls them back
            self.target.cache.lengths[request.slot] = request.length + count
            if count:
                self.drafter.runner.cache.lengths[request.slot] = \
                    request.length - self.drafter.first + (0 if type(self.drafter) is FedDrafter else count - 1)
        start, target, verifying, end = self.marks
        group = DraftGroup(works, Draft.empty(0), self.name, counts, [], start.host, start.until(target))
        return Verified([group], outcomes, target.host, target.until(verifying), verifying.until(end))
