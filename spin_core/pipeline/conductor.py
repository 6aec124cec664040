"""The pipeline of an engine: it keeps the running requests' micro-batches under way.

The engine's stages stay what they are; here is decided when they run, and for whom. Everything that changes a request
(admission, selection, committing, leaving, the trace) happens in the thread that calls :meth:`Pipeline.step`. Only
drafting and verifying may run in others, and what they write belongs to their group: its requests' cache slots. A
request sits in one group, and a group is drafted for anew only after its last verdict was committed.

The steady state crosses the borders of rounds: while the last group of a round is verified, the first one's next
draft is made.

A single group is nobody's neighbour: its stages are called here and now, as without a pipeline.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

from spin_core.runtime import graphs
from spin_core.pipeline.executor import Executor, Flight, StageTimeout, make_executor
from spin_core.pipeline.grouping import Item, heaviest, join, split
from spin_core.pipeline.heuristic import Heuristic, Load
from spin_core.request import Request
from spin_core.trace import Event

if TYPE_CHECKING:
    from spin_core.engine import Engine, _Verified

UNBALANCED = 1.25       # regroup when the heaviest group is so many times heavier than it need be


@dataclass
class _Aloft:
    """A group under way, and since when it is."""

    group: int
    requests: list[Request]
    flight: Flight
    began: float


class Pipeline:
    """Serves ``engine`` in ``count`` micro-batches, or in as many as the heuristic finds best ("auto").

    ``policy`` says who sits together (:mod:`spin_core.pipeline.grouping`). Newcomers join the group that they burden
    least. When the groups have become too uneven, or another count is wanted, all of them land first: one bubble.

    Raises ValueError for another ``count`` than "auto" or a whole number from 1 on.
    """

    def __init__(self, engine: "Engine", count: int | str, policy: str = "balanced") -> None:
        if count != "auto" and (not isinstance(count, Integral) or isinstance(count, bool) or count < 1):
            raise ValueError(f"Engine: pipeline is 'off', 'ahead', 'auto' or a number of micro-batches, got {count!r}")
        self.engine, self.policy = engine, policy
        self.fixed = None if count == "auto" else count
        self.heuristic = Heuristic(engine.max_batch) if count == "auto" else None
        if self.heuristic:
            engine.trace.decisions = self.heuristic.decisions
        self.groups: list[list[Request]] = []
        self.aloft: deque[_Aloft] = deque()
        self._beside: Executor | None = None                # made when first needed
        self._pace: dict[str, float] = {}                   # per drafter, seconds per drafted token
        self._round = _Round()
        self._left = 0.0                                    # when the last step ended

    @property
    def count(self) -> int:
        """Micro-batches that are wanted, if there are as many requests."""
        return self.fixed or self.heuristic.count

    def step(self) -> list[Event]:
        """Land the group that is due; its events. Everyone else stays under way, and what has landed goes on.

        Raises what a stage raised. The group's requests are then as they were before, and fly again with the next step.
        """
        if not self.aloft and self._round.began is not None:
            self._round.began += time.perf_counter() - self._left       # nobody was at work meanwhile
        try:
            return self._step()
        finally:
            self._left = time.perf_counter()

    def _step(self) -> list[Event]:
        if not self.aloft:
            self.engine._admit()
            if min(self.count, len(self.engine.running)) <= 1:
                return self._turn()
        self._launch()
        events = self._land() if self.aloft else []
        if len(self.groups) > 1:
            self._launch()
        return events

    def under_way(self, request: Request) -> bool:
        """Is the request's group in the air, so that its slot is in use?"""
        return any(request in a.requests for a in self.aloft)

    def drain(self) -> None:
        """Land everything. What a stage raises is forgotten: the group will meet it again when it flies again."""
        while self.aloft:
            try:
                self._land()
            except StageTimeout:
                return
            except Exception:
                pass
        self._round = _Round()

    # ---- one group

    def _turn(self) -> list[Event]:
        """A step of the whole batch."""
        engine, began = self.engine, time.perf_counter()
        if not engine.running:
            return []
        if self.groups:
            self.groups, self._round = [], _Round()
        work = engine._select(engine._plan(engine.running))
        try:
            verified = engine._verify(engine._draft(work))
        except BaseException:
            self._undo([w.request for w in work])
            raise
        return self._commit(verified, began, 0)

    # ---- several groups: launching

    def _launch(self) -> None:
        """Send off every group that is on the ground."""
        engine = self.engine
        engine._admit()
        self._forget()
        if min(self.count, len(engine.running)) <= 1:
            return                      # who is still under way lands, and then all take turns
        items = [self._item(r) for r in engine.running]
        if self._outdated(items):
            if self.aloft:
                return                  # first they land
            self.groups = [[engine.running[i] for i in group] for group in split(items, self.count, self.policy)]
            self._round = _Round()
            for runner in [engine.target, *(d.runner for d in engine.drafters.values() if hasattr(d, "runner"))]:
                graphs.attach(runner)       # or there are only launches to overlap
        aloft = {a.group for a in self.aloft}
        for number, group in enumerate(self.groups):
            if number in aloft or not group:
                continue
            others = [r for other in self.groups if other is not group for r in other]
            work = engine._select(engine._plan(group), others, [r for a in self.aloft for r in a.requests])
            executor = self._executor()
            flight = executor.launch(lambda work=work: engine._draft(work), engine._verify, number)
            self.aloft.append(_Aloft(number, [w.request for w in work], flight, time.perf_counter()))

    def _outdated(self, items: list[Item]) -> bool:
        """Seat newcomers; must all be seated anew?"""
        running = self.engine.running
        if sum(map(bool, self.groups)) != min(self.count, len(running)):
            return True
        index = {r: i for i, r in enumerate(running)}
        seats = [[index[r] for r in group] for group in self.groups]
        for newcomer in set(index) - {r for group in self.groups for r in group}:
            group = join(index[newcomer], seats, items)
            seats[group].append(index[newcomer])
            self.groups[group].append(newcomer)
        return heaviest(seats, items) > UNBALANCED * heaviest(split(items, len(seats), self.policy), items)

    def _item(self, request: Request) -> Item:
        """The request as the policies see it: what a step will take that only decodes."""
        gamma = max(0, min(request.gamma, request.remaining - 1))
        known = self._pace.values()
        pace = self._pace.get(request.drafter, sum(known) / len(known) if known else 1.0)
        return Item(request.drafter, request.length, gamma * pace, gamma + 1)

    def _executor(self) -> Executor:
        if self._beside is None:
            drafting = (d.runner.device for d in self.engine.drafters.values() if hasattr(d, "runner"))
            self._beside = make_executor(self.engine.target.device, next(drafting, None))
        return self._beside

    # ---- landing

    def _land(self) -> list[Event]:
        """Wait for the group that was launched first, and commit its verdicts; its events."""
        due = self.aloft[0]
        try:
            verified = due.flight.result()
        except BaseException:
            if due.flight.landed:       # a stage raised it; after a limit or an interrupt the group is still aloft
                self.aloft.popleft()
                self._undo(due.requests)
            raise
        self.aloft.popleft()
        return self._commit(verified, due.began, due.group)

    # ---- what follows a verification

    def _commit(self, verified: "_Verified", began: float, number: int) -> list[Event]:
        """Have the engine commit a group's verdicts, and learn from what it took; the events."""
        count = max(1, len(self.groups))
        events = self.engine._record(verified, began, micro_batch=number, micro_batches=count)
        for group in verified.groups:
            if drafted := sum(group.counts):
                before = self._pace.get(group.drafter, group.seconds / drafted)
                self._pace[group.drafter] = 0.8 * before + 0.2 * group.seconds / drafted
        if self.heuristic:
            self._learn(verified, count)
        self._forget()
        return events

    def _forget(self) -> None:
        """Let go of who has left."""
        self.groups = [[r for r in group if r.slot is not None] for group in self.groups]

    def _undo(self, requests: Iterable[Request]) -> None:
        """Take back what a step that failed may have read: caches hold no more than the committed text."""
        for request in requests:
            if request.slot is None:
                continue
            self.engine._roll_back(request, request.length - 1)
            if request.finished:        # cancelled on the way
                self.engine._leave(request)
        self._round = _Round()

    def _learn(self, verified: "_Verified", count: int) -> None:
        """When every group has landed once, tell the heuristic how long that took."""
        this, members = self._round, [work for group in verified.groups for work in group.members]
        this.landed += 1
        this.requests += len(members)
        this.reading |= any(len(work.feed) > 1 + work.request.gamma for work in members)
        this.draft += sum(group.seconds for group in verified.groups)
        this.verify += verified.target_seconds + verified.verify_seconds
        if this.landed < count:
            return
        now, running = time.perf_counter(), self.engine.running
        if this.began is not None and running and not this.reading:       # prompts are another load
            context = sum(r.length for r in running) / len(running)
            load = Load(len(running), context, Counter(r.drafter for r in running))
            self.heuristic.observe(load, this.requests, now - this.began, self.engine.trace.now(),
                                   (this.draft, this.verify))
        self._round = _Round(began=now)


@dataclass
class _Round:
    """Landings since every group had landed the last time; ``began`` is None where that was not in order."""

    began: float | None = None
    landed: int = 0
    requests: int = 0
    reading: bool = False       # some read prompts
    draft: float = 0.0          # seconds of all groups' drafting, and of all verifying
    verify: float = 0.0
