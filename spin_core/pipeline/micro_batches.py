"""Micro-batches: while one part of the batch is verified, another is drafted for (SPIN's pipeline).

Here is decided when a step (:mod:`spin_core.step`) runs, and for which requests. Everything that changes a request
(admission, selection, committing, leaving, the trace) happens in the thread that calls :meth:`MicroBatches.step`.
Drafting and verifying may run in other threads, and write only to the cache slots of their micro-batch. A request is in
one micro-batch, which is drafted for anew only after its last verdict was committed: while the last micro-batch of a
round is verified, the first one's next draft is made.
"""

from numbers import Integral

from spin_core.pipeline.executor import LIMIT, Executor, StageTimeout, make_executor
from spin_core.pipeline.grouping import Item, heaviest, join, split
from spin_core.pipeline.heuristic import Heuristic
from spin_core.pipeline.rounds import Rounds
from spin_core.request import Request
from spin_core.runtime import graphs
from spin_core.runtime.workers import Abandoned
from spin_core.step import InFlight, Step
from spin_core.trace import Event

UNBALANCED = 1.25       # regroup when the heaviest group is so many times heavier than it need be


class MicroBatches:
    """Serves the running requests in ``count`` micro-batches, or in as many as the heuristic finds best ("auto").

    ``policy`` says which requests are grouped (:mod:`spin_core.pipeline.grouping`). A new request joins the group that
    it burdens least. When the groups have become too uneven, or another count is wanted, all of them land first: one
    bubble. ``limit``: seconds that a stage may take. A drafter that takes longer is retired, and its requests go on.

    Raises ValueError for another ``count`` than "auto" or a whole number from 1 on.
    """

    def __init__(self, stages: Step, count: int | str, policy: str = "balanced", *, max_batch: int = 8,
                 limit: float = LIMIT) -> None:
        if count != "auto" and (not isinstance(count, Integral) or isinstance(count, bool) or count < 1):
            raise ValueError(f"Engine: pipeline is 'off', 'async', 'auto' or a number of micro-batches, got {count!r}")
        self.stages, self.scheduler, self.policy, self.limit = stages, stages.scheduler, policy, limit
        self.in_flight = self.scheduler.in_flight
        self.fixed = None if count == "auto" else count
        self.heuristic = Heuristic(max_batch) if count == "auto" else None
        if self.heuristic:
            stages.trace.decisions = self.heuristic.decisions
        self.groups: list[list[Request]] = []
        self._executor: Executor | None = None              # made when first needed
        self._pace: dict[str, float] = {}                   # per drafter, seconds per drafted token
        self.rounds = Rounds()

    @property
    def count(self) -> int:
        """Micro-batches that are wanted, if there are as many requests."""
        return self.fixed or self.heuristic.count

    def step(self) -> list[Event]:
        """Land the micro-batch that was launched first; its events. The others stay in flight.

        Raises what a stage raised. The requests are then as they were before, and are launched again by the next step.
        """
        if not self.in_flight:
            self.rounds.resume()
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
            self.rounds.pause()

    def drain(self) -> None:
        """Land everything. What a stage raises is forgotten: the next step will meet it again."""
        while self.in_flight:
            try:
                self._land()
            except StageTimeout:
                return
            except Exception:
                pass
        self.rounds.restart()

    def is_within_stage(self) -> bool:
        """Is the calling thread in the midst of drafting or verifying?"""
        executor = self._executor       # any thread may ask
        return executor is not None and executor.is_within_stage()

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
            self.groups = []
            self.rounds.restart()
        self.stages.launch(self.scheduler.running, self.stages.inline)
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
            self.rounds.restart()
            for runner in [self.stages.target, *self._draft_runners()]:
                graphs.attach(runner)       # or there are only launches to overlap
        in_flight = {flying.micro_batch for flying in self.in_flight}
        for number, group in enumerate(self.groups):
            if number in in_flight or not group:
                continue
            others = [r for other in self.groups if other is not group for r in other]
            self.stages.launch(group, self._get_executor(), others, number, len(self.groups))

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
        return [d.runner for d in self.stages.drafters.drafters.values() if hasattr(d, "runner")]

    def _get_executor(self) -> Executor:
        if self._executor is None:
            drafting = (runner.device for runner in self._draft_runners())
            self._executor = make_executor(self.stages.target.device, next(drafting, None), self.limit)
        return self._executor

    # ---- landing

    def _land(self) -> list[Event]:
        """Land the step that was launched first, and learn from what it took; its events."""
        flying = self.in_flight[0]
        try:
            verified = self.stages.wait(flying)
        except StageTimeout as timeout:
            if not self._give_up(flying, timeout):
                raise
            return []
        except Abandoned:               # behind a drafter that came back in the last moment: launched anew
            return []
        except BaseException:
            self.rounds.restart()
            raise
        events = self.stages.commit(verified, flying)
        for group in verified.groups:
            if drafted := sum(group.counts):
                before = self._pace.get(group.drafter, group.seconds / drafted)
                self._pace[group.drafter] = 0.8 * before + 0.2 * group.seconds / drafted
        measured = self.rounds.landed(verified, max(1, len(self.groups)), self.scheduler.running)
        if self.heuristic and measured:
            load, requests, seconds, stages = measured
            self.heuristic.observe(load, requests, seconds, self.stages.trace.now(), stages)
        self._forget()
        return events

    def _give_up(self, flying: InFlight, timeout: StageTimeout) -> bool:
        """Retire the drafter that ``flying`` waits for in vain, and go on without it; False if no drafter hangs.

        Its thread may come back at any time. It will find its step given up and run nothing more; until then it touches
        nothing but the drafter's own memory. The steps behind it have not begun to draft.
        """
        others = [other for other in self.in_flight if other is not flying]
        if flying.flight.drafted.done():
            return False
        for other in others:
            other.watch.abandon(anyway=True)
        name = flying.watch.abandon()
        if name is None:
            return False
        self._executor.abandon()
        self._executor = None
        self.rounds.restart()
        try:
            self.stages.drafters.retire(name, timeout)
        finally:                        # where warnings are errors it raises
            for other in list(self.in_flight):
                self.stages.undo(other)
        return True

    def _forget(self) -> None:
        """Leave out requests that have left."""
        self.groups = [[r for r in group if r.slot is not None] for group in self.groups]
