"""Run a policy over recorded text: the same classes that serve, at thousands of requests in seconds.

Continuous batching in its simplest form: a batch of requests, and when one finishes the next in the queue takes its
seat. What is drafted and accepted is read off the recording, exactly; what it takes comes from the recording's
passes. One device runs everything in turn:

    step = sum over drafters of one pass per drafted position + the target's pass over all rows.

A drafter that takes a request over reads what it has missed of prompt and text in the first of its passes, as
any drafter does at the beginning of a request; these rows are extra. The target's reading of prompts, the same
for every policy, is left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from spin_core.select.base import NONE, Outcome, Scored, RequestView, Selector
from spin_core.select.costs import AffineCost, shares
from spin_core.lab.simulate.recording import Recording


@dataclass(frozen=True)
class Replay:
    """What happened: one entry per (step, request), in the order of the steps; and one per step.

    ``step``, ``request`` (index into the order of service), ``arm`` (index into ``arms``), ``position`` (tokens
    written before), ``drafted``, ``accepted``; ``seconds``: the request's share of the step, catching up and
    reading along included. ``step_seconds``: of every step. ``thinking``: what the selector itself took on this
    machine, in seconds; it is not part of the steps.
    """

    arms: tuple[str, ...]
    step: ndarray
    request: ndarray
    arm: ndarray
    position: ndarray
    drafted: ndarray
    accepted: ndarray
    seconds: ndarray
    step_seconds: ndarray
    thinking: float = 0.0

    @property
    def emitted(self) -> ndarray:
        return self.accepted + 1

    @property
    def tokens(self) -> int:
        return int(self.emitted.sum())

    @property
    def wall(self) -> float:
        """Seconds of all steps."""
        return float(self.step_seconds.sum())

    @property
    def goodput(self) -> float:
        """Emitted tokens per second."""
        return self.tokens / self.wall

    def by_request(self, values: ndarray) -> ndarray:
        """Sums of ``values``, one per entry, over each request."""
        return np.bincount(self.request, values)


def replay(recording: Recording, selector: Selector, *, batch: int = 8, capacities: Mapping[str, int] | None = None,
           order: Sequence[int] | None = None, free_switching: bool = False) -> Replay:
    """Serve the recorded requests with ``selector``, in ``order`` (indices; default: as recorded).

    ``free_switching``: catching up and reading along take no time; for ceilings. Raises ValueError for a batch
    below 1, or a selector that picks a drafter which the recording does not have.
    """
    if batch < 1:
        raise ValueError(f"replay: batch must be at least 1, got {batch}")
    return _Run(recording, selector, batch, capacities, order, free_switching).run()


class _Run:
    """The state of one replay."""

    def __init__(self, recording, selector, batch, capacities, order, free_switching) -> None:
        self.recording, self.selector, self.capacities = recording, selector, capacities
        self.free_switching = free_switching
        self.arms = (*recording.arms, NONE)
        self.index = {name: i for i, name in enumerate(self.arms)}
        order = range(len(recording)) if order is None else order
        self.waiting = [(n, int(r)) for n, r in enumerate(order)][::-1]
        self.batch = batch
        longest = int((recording.lengths + recording.prompts).max())
        self.table = {name: passes.table(batch * max(16, longest)).tolist()
                      for name, passes in recording.passes.items()}
        self.accepted, self.proposed = recording.accepted.tolist(), recording.proposed.tolist()
        self.found = {n: self.proposed[self.index[n]] for n in recording.lookups if n in selector.arms}
        self.lookup_finds = {n: recording.lookup_finds(n) for n in recording.composed}
        self.cost = AffineCost()
        self.log: list[tuple] = []
        self.step_seconds: list[float] = []
        self.thinking = 0.0

    def run(self) -> Replay:
        seated: list[_Seated] = []
        step = 0
        while seated or self.waiting:
            while self.waiting and len(seated) < self.batch:
                n, r = self.waiting.pop()
                start = int(self.recording.starts[r])
                seated.append(_Seated(n, start, int(self.recording.lengths[r]), int(self.recording.prompts[r])))
            self._step(step, seated)
            step += 1
            for s in seated:
                if s.done == s.length:
                    self._ask(self.selector.finish, s.request)
            seated = [s for s in seated if s.done < s.length]
        columns = [np.array(c) for c in zip(*self.log)] or [np.zeros(0, int)] * 7
        return Replay(self.arms, *columns, np.array(self.step_seconds), self.thinking)

    def _ask(self, call, *arguments):
        """Call the selector, and take its time."""
        began = time.thread_time()         # of this thread: other work on the machine does not count
        answer = call(*arguments)
        self.thinking += time.thread_time() - began
        return answer

    def _step(self, step: int, seated: list["_Seated"]) -> None:
        choices = self._ask(self.selector.assign, [s.seat(self.found) for s in seated], self.capacities)
        groups: dict[str, list[tuple[int, int]]] = {}
        for b, s in enumerate(seated):
            drafter, gamma = choices[s.request]
            groups.setdefault(drafter, []).append((b, min(gamma, s.length - s.done - 1)))
        drafted, accepted, arms = [0] * len(seated), [0] * len(seated), [0] * len(seated)
        draft_seconds, extra = [0.0] * len(seated), [0.0] * len(seated)
        for name, members in groups.items():
            if name not in self.index:
                raise ValueError(f"replay: no drafter {name!r} in the recording; it has {', '.join(self.arms)}")
            arm = self.index[name]
            for b, gamma in members:
                s = seated[b]
                arms[b] = arm
                if gamma > 0:
                    drafted[b] = min(gamma, self.proposed[arm][s.start + s.done])
                    accepted[b] = min(drafted[b], self.accepted[arm][s.start + s.done])
            if name != NONE:
                self._draft(name, members, seated, drafted, draft_seconds, extra)
        rows = len(seated) + sum(drafted)
        target = self.table["target"][rows]
        self.cost.learn(rows, target)
        plain, own = shares(drafted, target, self.cost)
        verify = (plain + own).tolist()
        outcomes = []
        for b, s in enumerate(seated):
            outcomes.append(Outcome(s.request, self.arms[arms[b]], drafted[b], accepted[b], accepted[b] + 1,
                                    draft_seconds[b], verify[b], rows, target, plain))
        positions = [s.done for s in seated]
        for b, s in enumerate(seated):
            s.before = s.prompt + s.done
            s.done += accepted[b] + 1
            s.current = self.arms[arms[b]]
        self._ask(self.selector.observe, outcomes)
        self._read_along(seated, extra)
        self.log += zip([step] * len(seated), [s.request for s in seated], arms, positions, drafted, accepted,
                        [d + v + x for d, v, x in zip(draft_seconds, verify, extra)])
        self.step_seconds.append(target + sum(draft_seconds) + sum(extra))

    def _draft(self, name, members, seated, drafted, draft_seconds, extra) -> None:
        """One drafter's part of the step: catching up, and a pass per drafted position over those that go on."""
        if name in self.recording.composed:     # the second drafts where the first, a lookup, found nothing
            found, name = self.lookup_finds[name], self.recording.composed[name][1]
            members = [(b, g) for b, g in members if not found[seated[b].start + seated[b].done]]
        if name in self.recording.lookups:
            for b, _ in members:
                draft_seconds[b] = self.table[name][len(members)] / len(members)
            return
        members = [(b, g) for b, g in members if g > 0]
        if not members:
            return
        table = self.table[name]
        seconds = sum(table[sum(g > k for _, g in members)] for k in range(max(g for _, g in members)))
        total = sum(g for _, g in members)
        missed, scores = [], []
        for b, g in members:
            s = seated[b]
            draft_seconds[b] = seconds * g / total
            known, here = s.known.get(name, 0), s.prompt + s.done
            missed.append(0 if known and known == s.before else max(0, here - known - 1))
            if missed[-1] and s.done:           # catching up tells how this drafter would have done on what it reads
                scores.append(self._score(s, name, max(0, known - s.prompt), s.done))
            s.known[name] = here
        if scores:
            self._ask(self.selector.scored, scores)
        if any(missed) and not self.free_switching:
            seconds = table[len(members) + sum(missed)] - table[len(members)]
            for (b, _), rows in zip(members, missed):
                extra[b] += seconds * rows / sum(missed)

    def _read_along(self, seated, extra) -> None:
        """Drafters that the selector wants scored read what they have not read of their requests."""
        wishes = self._ask(self.selector.probe, [s.seat(self.found) for s in seated])
        by_name: dict[str, list[tuple[int, int]]] = {}
        for b, s in enumerate(seated):
            for name in wishes.get(s.request, ()):
                known = s.known.get(name, 0)
                if s.prompt + s.done > known and name != s.current and s.done < s.length:
                    by_name.setdefault(name, []).append((b, known))
                    s.known[name] = s.prompt + s.done
        for name, members in by_name.items():
            rows = [seated[b].prompt + seated[b].done - known for b, known in members]
            seconds = self.table[name][len(members) if name in self.recording.lookups else sum(rows)]
            scores = []
            for (b, known), count in zip(members, rows):
                part = 0.0 if self.free_switching else seconds * count / sum(rows)
                extra[b] += part
                scores.append(self._score(seated[b], name, max(0, known - seated[b].prompt), seated[b].done, part))
            self._ask(self.selector.scored, scores)

    def _score(self, s: "_Seated", name: str, first: int, last: int, seconds: float = 0.0) -> Scored:
        arm = self.index[name]
        hits = [float(self.accepted[arm][t] > 0) if self.proposed[arm][t] else float("nan")
                for t in range(s.start + first, s.start + last)]
        return Scored(s.request, name, hits, seconds)


class _Seated:
    """A request being served: where its text begins, how much of it is written, what each drafter has read."""

    def __init__(self, request: int, start: int, length: int, prompt: int) -> None:
        self.request, self.start, self.length, self.prompt = request, start, length, prompt
        self.done, self.current = 0, None
        self.known: dict[str, int] = {}         # committed tokens that each drafter has read
        self.before = 0                         # committed tokens before the last step

    def seat(self, found: Mapping[str, list[int]]) -> RequestView:
        """What the selector sees; ``found``: what drafters that look up propose, by position in the recording."""
        here = {}
        if self.done < self.length:
            here = {name: lengths[self.start + self.done] for name, lengths in found.items()}
        return RequestView(self.request, self.done, self.prompt + self.done, self.length - self.done - 1, self.current, here)
