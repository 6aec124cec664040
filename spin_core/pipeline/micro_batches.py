"""Micro-batches: while one part of the batch is verified, another is drafted for (SPIN's pipeline).

The step stays what it is (:mod:`spin_core.step`); here is decided when it runs, and for which requests. Everything that
changes a request (admission, selection, committing, leaving, the trace) happens in the thread that calls
:meth:`MicroBatches.step`. Only drafting and verifying may run in other threads, and what they write belongs to their
micro-batch: its requests' cache slots. A request is in one micro-batch, and a micro-batch is drafted for anew only
after its last verdict was committed.

The steady state crosses the borders of rounds: while the last micro-batch of a round is verified, the first one's next
draft is made. A batch that is not divided is served as without a pipeline.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from numbers import Integral

from spin_core.pipeline.executor import LIMIT, Executor, StageTimeout, make_executor
from spin_core.pipeline.grouping import Item, heaviest, join, split
from spin_core.pipeline.heuristic import Heuristic, Load
from spin_core.request import Request
from spin_core.runtime import graphs
from spin_core.runtime.workers import Abandoned
from spin_core.step import InFlight, Step, Verified
from spin_core.trace import Event

UNBALANCED = 1.25       # regroup when the heaviest group is so many times heavier than it need be


class MicroBatches:
    """Serves the running requests in ``count`` micro-batches, or in as many as the heuristic finds best ("auto").

    ``policy`` says which requests are grouped (:mod:`spin_core.pipeline.grouping`). A new request joins the group that
    it burdens least. When the groups have become too uneven, or another count is wanted, all of them land first: one
    bubble. ``limit``: seconds that a stage may take. A drafter that takes longer is retired, and its requests go on.

    Raises ValueError for another ``count`` than "auto" or a whole number from 1 on.
    """

    def __init__(self, steps: Step, count: int | str, policy: str = "balanced", *, max_batch: int = 8,
                 limit: float = LIMIT) -> None:
        if count != "auto" and (not isinstance(count, Integral) or isinstance(count, bool) or count < 1):
            raise ValueError(f"Engine: pipeline is 'off', 'async', 'auto' or a number of micro-batches, got {count!r}")
        self.steps, self.scheduler, self.policy, self.limit = steps, steps.scheduler, policy, limit
        self.in_flight = self.scheduler.in_flight
        self.fixed = None if count == "auto" else count
        self.heuristic = Heuristic(max_batch) if count == "auto" else None
        if self.heuristic:
            steps.trace.decisions = self.heuristic.decisions
        self.groups: list[list[Request]] = []
        self._executor: Executor | None = None              # made when first needed
        self._pace: dict[str, float] = {}                   # per drafter, seconds per drafted token
        self._round = _Round()
        self._left = 0.0                                    # when the last step ended

    @property
    def count(self) -> int:
        """Micro-batches that are wanted, if there are as many requests."""
        return self.fixed or self.heuristic.count

    def step(self) -> list[Event]:
        """Land the micro-batch that was launched first; its events. The others stay in flight.

        Raises what a stage raised. The requests are then as they were before, and are launched again by the next step.
        """
        if not self.in_flight and self._round.began is not None:
            self._round.began += time.perf_counter() - self._left       # nothing was under way since the last step
        try:
            self.scheduler.admit()
            if not self.in_flight and min(self.count, len(self.scheduler.running)) <= 1:
                return self._undivided()
            self._launch()
            events = self._land() if self.in_flight else []
            if len(self.groups) > 1:
                self.scheduler.admit()
                self._launch()
            return events
        finally:
            self._left = time.perf_counter()

    def drain(self) -> None:
        """Land everything. What a stage raises is forgotten: the next step will meet it again."""
        while self.in_flight:
            try:
                self._land()
            except StageTimeout:
                return
            except Exception:
                pass
        self._round = _Round()

    def close(self) -> None:
        """End the stages' threads."""
        if self._executor:
            self._executor.close()
            self._executor = None

    # ---- one group

    def _undivided(self) -> list[Event]:
        """A step of the whole batch, here and now."""
        if not self.scheduler.running:
            return []
        if self.groups:
            self.groups, self._round = [], _Round()
        self.steps.launch(self.scheduler.running, self.steps.here)
        return self._land()

    # ---- several groups

    def _launch(self) -> None:
        """Launch every group that is not in flight."""
        running = self.scheduler.running
        self._forget()
        if min(self.count, len(running)) <= 1:
            return                      # what is in flight lands, and then the batch is not divided any more
        items = [self._item(r) for r in running]
        if self._outdated(items):
            if self.in_flight:
                return                  # first they land
            self.groups = [[running[i] for i in group] for group in split(items, self.count, self.policy)]
            self._round = _Round()
            for runner in [self.steps.target, *self._draft_runners()]:
                graphs.attach(runner)       # or there are only launches to overlap
        in_flight = {step.group for step in self.in_flight}
        for number, group in enumerate(self.groups):
            if number in in_flight or not group:
                continue
            others = [r for other in self.groups if other is not group for r in other]
            self.steps.launch(group, self._get_executor(), others, number, len(self.groups))

    def _outdated(self, items: list[Item]) -> bool:
        """Give new requests a group; must all groups be formed anew?"""
        running = self.scheduler.running
        if sum(map(bool, self.groups)) != min(self.count, len(running)):
            return True
        index = {r: i for i, r in enumerate(running)}
        members = [[index[r] for r in group] for group in self.groups]
        for newcomer in set(index) - {r for group in self.groups for r in group}:
            group = join(index[newcomer], members, items)
            members[group].append(index[newcomer])
            self.groups[group].append(newcomer)
        return heaviest(members, items) > UNBALANCED * heaviest(split(items, len(members), self.policy), items)

    def _item(self, request: Request) -> Item:
        """The request as the grouping policies see it: what a step will take that only decodes."""
        gamma = max(0, min(request.gamma, request.remaining - 1))
        known = self._pace.values()
        pace = self._pace.get(request.drafter, sum(known) / len(known) if known else 1.0)
        return Item(request.drafter, request.length, gamma * pace, gamma + 1)

    def _draft_runners(self) -> list:
        return [d.runner for d in self.steps.drafters.drafters.values() if hasattr(d, "runner")]

    def _get_executor(self) -> Executor:
        if self._executor is None:
            drafting = (runner.device for runner in self._draft_runners())
            self._executor = make_executor(self.steps.target.device, next(drafting, None), self.limit)
        return self._executor

    # ---- landing

    def _land(self) -> list[Event]:
        """Land the step that was launched first, and learn from what it took; its events."""
        step = self.in_flight[0]
        try:
            verified = self.steps.wait(step)
        except StageTimeout as timeout:
            if not self._give_up(step, timeout):
                raise
            return []
        except Abandoned:               # behind a drafter that came back in the last moment: launched anew
            return []
        except BaseException:
            self._round = _Round()
            raise
        events = self.steps.commit(verified, step)
        for group in verified.groups:
            if drafted := sum(group.counts):
                before = self._pace.get(group.drafter, group.seconds / drafted)
                self._pace[group.drafter] = 0.8 * before + 0.2 * group.seconds / drafted
        if self.heuristic:
            self._learn(verified, max(1, len(self.groups)))
        self._forget()
        return events

    def _give_up(self, step: InFlight, timeout: StageTimeout) -> bool:
        """Retire the drafter that ``step`` waits for in vain, and go on without it; False if no drafter hangs.

        Its thread may come back at any time. It will find its step given up and run nothing more; until then it touches
        nothing but the drafter's own memory. The steps behind it have not begun to draft.
        """
        others = [other for other in self.in_flight if other is not step]
        if step.flight.drafted.done():
            return False
        for other in others:
            other.watch.abandon(anyway=True)
        name = step.watch.abandon()
        if name is None:
            return False
        self._executor.abandon()
        self._executor, self._round = None, _Round()
        try:
            self.steps.drafters.retire(name, timeout)
        finally:                        # where warnings are errors it raises
            for other in list(self.in_flight):
                self.steps.undo(other)
        return True

    def _forget(self) -> None:
        """Leave out requests that have left."""
        self.groups = [[r for r in group if r.slot is not None] for group in self.groups]

    def _learn(self, verified: Verified, count: int) -> None:
        """When every group has landed once, report to the heuristic how long that took."""
        this, members = self._round, [work for group in verified.groups for work in group.members]
        this.landed += 1
        this.requests += len(members)
        this.prefill |= any(len(work.input_ids) > 1 + work.request.gamma for work in members)
        this.draft += sum(group.seconds for group in verified.groups)
        this.verify += verified.target_seconds + verified.verify_seconds
        if this.landed < count:
            return
        now, running = time.perf_counter(), self.scheduler.running
        if this.began is not None and running and not this.prefill:       # prompts are another load
            context = sum(r.length for r in running) / len(running)
            load = Load(len(running), context, Counter(r.drafter for r in running))
            self.heuristic.observe(load, this.requests, now - this.began, self.steps.trace.now(),
                                   (this.draft, this.verify))
        self._round = _Round(began=now)


@dataclass
class _Round:
    """Landings since every group had landed the last time; ``began`` is None where that was not in order."""

    began: float | None = None
    landed: int = 0
    requests: int = 0
    prefill: bool = False       # some requests read their prompts
    draft: float = 0.0          # seconds of all groups' drafting, and of all verifying
    verify: float = 0.0
