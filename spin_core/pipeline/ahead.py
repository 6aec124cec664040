"""A step ahead: the next step is launched before the host has read what became of the last one.

The device then never waits for the host between two steps. What the host decides, it decides one step late: stop
tokens and strings, limits, cancellations. A request that has ended by then has flown once for nothing; what it brought
is dropped, never shown, and its slot is given back when that flight has landed. Texts are those of the engine that
waits, token for token: a draft is as long as it would be (the device knows every limit on lengths), and every random
number belongs to a position.

Only what needs nothing from the host can fly: decoding with one model drafter, or without any. Prompts, lookup in the
text, a selector that wants to hear before it chooses, recorded laws, several drafters at once: such a step is taken as
ever, after everything has landed.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spin_core.draft import Drafter, FedDrafter
from spin_core.pipeline import resident
from spin_core.pipeline.graphs import Graphs
from spin_core.request import Request
from spin_core.runtime import ModelRunner
from spin_core.runtime.transfer import Download, Mark
from spin_core.trace import Event

if TYPE_CHECKING:
    from spin_core.engine import Engine

DEPTH = 2       # flights at once: one that the host is reading, one that keeps the device busy meanwhile


@dataclass
class _Flight:
    """A step under way: who takes part, what comes back, and moments on the device: drafting, target, verdict, end."""

    requests: list[Request]
    name: str
    drafter: Drafter
    gamma: int
    result: Download
    moments: list[Mark]


class Ahead:
    """Serves ``engine`` with up to :data:`DEPTH` steps under way."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.aloft: deque[_Flight] = deque()
        self._seats: resident.Seats | None = None
        self._graphs: dict[ModelRunner, Graphs] = {}
        self._landed = 0.0

    def step(self) -> list[Event]:
        """Keep the device busy and land the flight that was launched first; its events. What cannot fly goes on foot.

        Raises what the target's pass raised. The requests are then as they were before.
        """
        self.engine._admit()
        while len(self.aloft) < DEPTH and self._may_fly():
            if not self._launch():
                break
        if not self.aloft:
            self._seats = None
            return self.engine._step()
        events = self._land()
        if all(r.finished for flight in self.aloft for r in flight.requests):       # nobody waits for the rest
            self.drain()
        return events

    def under_way(self, request: Request) -> bool:
        """Is its slot in use by a flight?"""
        return any(request in flight.requests for flight in self.aloft)

    def drain(self) -> None:
        """Land everything."""
        while self.aloft:
            self._land()

    # ---- launching

    def _may_fly(self) -> bool:
        """Is everything known, here or on the device, that another step needs?"""
        engine, live = self.engine, self._live()
        if not live or engine.selection or engine.record_laws or len({r.drafter for r in live}) > 1:
            return False
        drafter = engine.drafter_called(live[0].drafter)
        if self.aloft:
            last = self.aloft[-1]
            # who is sure to reach a limit with what is aloft need not fly again
            return self._seats is not None and drafter is last.drafter and all(r in last.requests for r in live) and \
                any(r.remaining > len(self.aloft) for r in live)
        width = resident.window(drafter, resident.longest_draft(live, self._limits(live, drafter)))
        return resident.can_draft(drafter, engine.target.device) and all(self._ready(r, drafter, width) for r in live)

    def _live(self) -> list[Request]:
        return [r for r in self.engine.running if not r.finished]

    def _ready(self, request: Request, drafter: Drafter, width: int) -> bool:
        """Has everybody read the text up to what a flight reads itself: the drafter its window, the target a token?"""
        return bool(request.output_ids) and request.length > width and \
            self.engine.target.cache.lengths[request.slot] == request.length - 1 and \
            (request.gamma == 0 or drafter.missing(request) < width)

    def _launch(self) -> bool:
        """Send off another step; False if its drafter raised, which is then retired."""
        requests = self._live()
        drafter = self.engine.drafter_called(requests[0].drafter)
        if not self.aloft:
            self._seats = self._seat(requests, drafter)
        elif requests != (seated := self.aloft[-1].requests):
            self._seats = self._seats.rows([seated.index(r) for r in requests])
        seats, self._seats = self._seats, None      # whatever raises below leaves them half changed
        moments = [Mark(self.engine.target.device)]
        most = max(r.length for r in requests) + len(self.aloft) * (seats.longest + 1)
        try:
            drafted = resident.draft(seats, most)
        except Exception as error:          # losing a drafter must cost speed, never a request
            self.engine.retire(requests[0].drafter, error)
            return False
        moments.append(Mark(self.engine.target.device))
        result, judging = resident.verify(seats, drafted, most)
        moments += [judging, Mark(self.engine.target.device)]
        self.aloft.append(_Flight(requests, requests[0].drafter, drafter, seats.longest, Download(result), moments))
        self._seats = seats                 # last: they must not be ahead of the flights that will land
        return True

    def _seat(self, requests: list[Request], drafter: Drafter) -> resident.Seats:
        drafts = hasattr(drafter, "runner")
        return resident.Seats.of(requests, self._graphs_of(self.engine.target), drafter,
                                 self._graphs_of(drafter.runner) if drafts else None, self._limits(requests, drafter))

    def _limits(self, requests: list[Request], drafter: Drafter) -> list[int]:
        """How long each text may be with its draft, so that the target's own token still fits."""
        return [min(r.length + r.remaining - 1, self.engine.max_len - 1, drafter.max_context) for r in requests]

    def _graphs_of(self, runner: ModelRunner) -> Graphs:
        if runner not in self._graphs:
            self._graphs[runner] = Graphs(runner)
        return self._graphs[runner]

    # ---- landing

    def _land(self) -> list[Event]:
        """Land the flight that was launched first; its events.

        Raises what that raised, an interrupt for example. The flights behind it continue a text that was not committed
        then: they are given up, and the next steps compute the same tokens on foot.
        """
        try:
            return self._commit(self.aloft.popleft())
        except BaseException:
            self.aloft.clear()
            self._seats = None
            for request in [r for r in self.engine.running if r.finished]:
                self.engine._leave(request)
            raise

    def _commit(self, flight: _Flight) -> list[Event]:
        """Read a flight and commit it, as if it had ended just now; its events."""
        from spin_core import engine as stages      # which knows us

        rows = flight.result.read()
        works, outcomes, counts = [], [], []
        for request, row in zip(flight.requests, rows):
            count, accepted, failed, tokens = *row[:3], row[3:]
            works.append(stages._Work(request, request.ids[-1:], True))
            counts.append(count)
            outcomes.append(stages._Outcome(tokens[:count], accepted, [t for t in tokens[flight.gamma:] if t >= 0],
                                            bool(failed)))
            if not request.finished:
                self._note(request, flight.drafter, count)
        start, target, judging, end = flight.moments
        group = stages._Group(works, stages.Draft.empty(0), flight.name, start.host,
                              start.until(target))
        group.counts = counts
        done = stages._Verified([group], outcomes, target.host, target.until(judging), judging.until(end))
        began, self._landed = max(start.host, self._landed), time.perf_counter()
        return self.engine._record(done, began)

    def _note(self, request: Request, drafter: Drafter, count: int) -> None:
        """What a flight left in the caches, before the verdict rolls them back."""
        self.engine.target.cache.lengths[request.slot] = request.length + count
        if count:
            drafter.runner.cache.lengths[request.slot] = \
                request.length - drafter.first + (0 if type(drafter) is FedDrafter else count - 1)
