"""A serving system on hardware that is not at hand: requests, batches, two stages, a clock.

What is accepted is read off a recording, what a pass takes off a cost model; who drafts is decided by the
selectors' classes, pieces by the planner, the number of micro-batches by the heuristic: those that serve live.
One turn of the loop (:meth:`_System._flight`) is one group's way through a step:

    admit -> assign -> draft (every drafter on its device) -> verify (on the target's) -> commit -> observe

The running requests are split into groups, the micro-batches. Groups take turns, and a device does one thing
at a time, in the order of these turns. With one group drafters and target take turns; with more, one group
is verified while another is drafted for, if drafters have devices of their own. A request's first step also
reads its prompt: as further rows of the target's pass and of its drafter's first; so does every drafter that
takes over what it has not read.

Left out: the way of tokens between devices, sampling, stop strings, and reading along for policies that
learn from it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy import ndarray

from spin_core.pipeline.heuristic import Heuristic, Load
from spin_core.pipeline.schedule import VERIFY
from spin_core.select.base import NONE, Outcome, RequestView, Selector
from spin_core.select.costs import AffineCost, shares
from spin_core.lab.simulate.recording import Recording
from spin_core.lab.simulate.costs import PassCosts
from spin_core.lab.simulate.outcome import STEP_FIELDS, Run

RENEW = 8               # steps after which the pieces' width is searched anew


def simulate(recording: Recording, costs: PassCosts, policy: Selector | str, *, batch: int = 8,
             micro_batches: int | str = 1, gamma: int = 4, arrivals: Sequence[float] | None = None,
             kv_tokens: int | None = None, capacities: Mapping[str, int] | None = None, events: bool = False) -> Run:
    """Serve all requests of ``recording``, first come first served.

    ``policy``: a selector, or the name of the one drafter that drafts ``gamma`` tokens for everyone ("none": plain
    decoding). ``batch``: requests that run at once. ``micro_batches``: groups, or "auto" for the heuristic.
    ``arrivals``: seconds ``[R]``, rising; None: all at once. ``kv_tokens``: tokens of prompt and answer that the
    running requests may come to hold together. Raises ValueError for what cannot be served.
    """
    return _System(recording, costs, policy, batch, micro_batches, gamma, arrivals, kv_tokens, capacities, events).run()


class _Group:
    """A micro-batch.

    One column per request, ``[5, B]``: its number, its last drafter's index (-1: none yet), the place in the recording
    of the token that comes next, the place of its last one, and by how much its context is longer than the place is
    far. Places are kept, not tokens written, because they are what every step looks up.
    """

    def __init__(self, number: int) -> None:
        self.number, self.ready = number, 0.0       # when its last step was committed
        self.unread = 0                             # rows of prompts that are read in its next step
        self.width, self.age = 0, 0                 # of the pieces, and for how many steps
        self._hold(np.zeros((5, 0), int))

    def _hold(self, columns: ndarray) -> None:
        self.columns = columns
        self.requests, self.drafter, self.at, self.end, self.shift = columns

    def add(self, columns: ndarray) -> None:
        self._hold(np.concatenate([self.columns, columns], 1))

    def keep(self, stays: ndarray) -> None:
        self._hold(self.columns.compress(stays, 1))


class _System:
    """The state of one run."""

    def __init__(self, recording, costs, policy, batch, micro_batches, gamma, arrivals, kv_tokens, capacities,
                 events) -> None:
        count = len(recording)
        self.arrived = np.zeros(count) if arrivals is None else np.asarray(arrivals, float)
        self.lengths = recording.lengths            # computed anew whenever it is asked for
        self.reserved = recording.prompts + self.lengths
        if batch < 1 or gamma < 0 or (micro_batches != "auto" and not 1 <= micro_batches <= batch):
            raise ValueError(f"simulate: batch {batch} and micro_batches {micro_batches} (at most batch) must be at "
                             f"least 1, gamma {gamma} at least 0")
        if len(self.arrived) != count or (np.diff(self.arrived) < 0).any():
            raise ValueError(f"simulate: {len(self.arrived)} arrivals for {count} requests, or times that go back")
        if isinstance(policy, str) and policy not in (*recording.arms, NONE):
            raise ValueError(f"simulate: no drafter {policy!r} in the recording; it has {', '.join(recording.arms)}")
        if kv_tokens is not None and self.reserved.max() > kv_tokens:
            raise ValueError(f"simulate: a request may come to hold {self.reserved.max()} tokens, more than "
                             f"kv_tokens = {kv_tokens}")
        self.recording, self.costs, self.policy = recording, costs, policy
        self.fixed = _clipped(recording, policy, gamma) if isinstance(policy, str) else None
        self.batch, self.capacities = batch, capacities
        self.kv_tokens = np.inf if kv_tokens is None else kv_tokens
        self.heuristic = Heuristic(batch) if micro_batches == "auto" else None
        self.groups = [_Group(i) for i in range(1 if self.heuristic else micro_batches)]
        self.arms = (*recording.arms, NONE)
        self.arm = {name: i for i, name in enumerate(self.arms)}
        self.next = self.running = self.held = 0    # requests that wait begin at `next`; tokens held
        self.leaving: list[tuple[float, int]] = []  # when those who are through give back their tokens
        self.admitted, self.finished = np.full(count, np.nan), np.full(count, np.nan)
        self.free: dict[str, float] = {}            # when each device can take on more
        self.known: dict[tuple[int, int], int] = {}     # (request, drafter) -> tokens it has read, once it was left
        self.clock = 0.0                            # when the last turn began
        self.reading = False                        # somebody read a prompt in this round: it is no measure of others
        self.stages = [0.0, 0.0]                    # seconds of drafting and verifying in this round
        self.cost = AffineCost()
        self.served: dict[str, int] = {}
        self.log: list[tuple] = []
        self.events: list[tuple] | None = [] if events else None

    def run(self) -> Run:
        while self.next < len(self.recording) or any(len(g.requests) for g in self.groups):
            began, served, self.reading, self.stages = max(g.ready for g in self.groups), 0, False, [0.0, 0.0]
            for group in self.groups:
                self._admit(group)
                if len(group.requests):
                    served += len(group.requests)
                    self._flight(group)
            if not served:                          # idle until somebody comes
                self.clock = max(self.clock, float(self.arrived[self.next]))
            elif self.heuristic:
                self._regroup(served, began)
        steps = dict(zip(STEP_FIELDS, np.array(self.log, float).T))
        return Run(steps, self.lengths, self.arrived, self.admitted, self.finished, self.served,
                   self.heuristic.decisions if self.heuristic else [], self.events or [])

    # ---- a group's way through a step

    def _flight(self, group: _Group) -> None:
        # batches are so short that Python sums a list up faster than numpy an array
        requests, context, left = group.requests, group.at + group.shift, group.end - group.at
        by_arm, drafted, accepted = self._assign(group, context, left)
        start = max(group.ready, self.clock)
        ready, busy, shared = start, [], None if self.fixed else np.zeros(len(left))
        for name, members in by_arm.items():
            arm, proposed, keys = self.arm[name], drafted[members], context[members]
            self.served[name] = self.served.get(name, 0) + len(keys)
            if name == NONE:
                self._switch(group, arm, members, context)
                continue
            depths = _depths(proposed)
            seconds = self.costs.draft(name, len(keys), depths, float(sum(keys.tolist())))
            if not self.fixed:
                shared[members] = seconds * proposed / max(1, sum(depths))
            if unread := self._switch(group, arm, members, context, proposed > 0):
                seconds += self.costs.reading(name, unread, depths[0])
            busy.append(seconds)
            device = VERIFY if self.costs.shared else name
            self.free[device] = max(start, self.free.get(device, 0.0)) + busy[-1]
            ready = max(ready, self.free[device])

        prompt_rows, group.unread = group.unread, 0
        self.reading |= prompt_rows > 0
        verified = self.costs.verify(context, drafted, prompt_rows, group.width if group.age % RENEW else 0)
        group.age, group.width = group.age + 1 if group.width else 1, verified.width
        begin = max(ready, self.free.get(VERIFY, 0.0))
        group.ready = self.free[VERIFY] = begin + verified.seconds
        self.clock = start
        if self.events is not None:
            self.events += [(len(self.log), request, name, d, a) for name, members in by_arm.items() for request, d, a
                            in zip(*(column[members].tolist() for column in (requests, drafted, accepted)))]
        tokens, emitted = sum(drafted.tolist()), sum(accepted.tolist()) + len(left)
        rows, needed = len(left) + tokens, sum(context.tolist()) + tokens
        alone = sum(busy) if self.costs.shared else max(busy, default=0.0)
        self.stages = [self.stages[0] + alone, self.stages[1] + verified.seconds]
        self.log.append((start, ready, begin, group.ready, len(left), rows + prompt_rows, needed, verified.touched,
                         emitted, alone, self.held, group.number))
        if not self.fixed:
            self._observe(requests, by_arm, drafted, accepted, shared, rows + prompt_rows, verified.seconds)
        group.at += accepted + 1
        stays = accepted < left
        if np.count_nonzero(stays) < len(left):
            self._leave(group, stays)

    def _admit(self, group: _Group) -> None:
        """Take in who has come, while there is room in the batch, in this group's part of it, and in
        memory."""
        now = max(group.ready, self.clock)
        while self.leaving and self.leaving[0][0] <= now:
            self.running, self.held = self.running - 1, self.held - heapq.heappop(self.leaving)[1]
        if self.next == len(self.arrived) or self.running >= self.batch:
            return
        came = int(self.arrived.searchsorted(now, "right"))
        fair = -(-(min(self.batch, self.running + came - self.next) - group.number) // len(self.groups))
        new = []
        while self.next < came and len(group.requests) + len(new) < fair and self.running < self.batch \
                and self.held + self.reserved[self.next] <= self.kv_tokens:
            new.append(self.next)
            self.held += int(self.reserved[self.next])
            self.running, self.next = self.running + 1, self.next + 1
        if new:
            group.ready = max(group.ready, float(self.arrived[new[-1]]))
            self.admitted[new] = now
            begin, prompts = self.recording.starts[new], self.recording.prompts[new]
            group.add(np.array([new, [-1] * len(new), begin, begin + self.lengths[new] - 1, prompts - begin]))
            group.unread += int((prompts - 1).sum())

    def _assign(self, group: _Group, context: ndarray,
                left: ndarray) -> tuple[dict[str, ndarray | slice], ndarray, ndarray]:
        """Places in the group by drafter, and by place the tokens drafted and those accepted, ``[B]`` each."""
        if self.fixed:
            drafts, accepts = self.fixed
            return {self.policy: slice(None)}, drafts[group.at], accepts[group.at]
        current = [None if d < 0 else self.arms[d] for d in group.drafter.tolist()]
        done = group.at - self.recording.starts[group.requests]
        seats = list(map(RequestView, group.requests.tolist(), done.tolist(), context.tolist(), left.tolist(), current))
        choices = self.policy.assign(seats, self.capacities)
        places: dict[str, list[int]] = {}
        for b, seat in enumerate(seats):
            places.setdefault(choices[seat.request].drafter, []).append(b)
        if unknown := set(places) - set(self.arms):
            raise ValueError(f"simulate: no drafter {unknown.pop()!r} in the recording; it has {', '.join(self.arms)}")
        by_arm = {name: np.array(members) for name, members in places.items()}
        wanted = np.minimum([choices[seat.request].gamma for seat in seats], left)
        drafted, accepted = np.zeros_like(left), np.zeros_like(left)
        for name, members in by_arm.items():
            if name != NONE:
                arm, at = self.arm[name], group.at[members]
                drafted[members] = np.minimum(wanted[members], self.recording.proposed[arm, at])
                accepted[members] = np.minimum(drafted[members], self.recording.accepted[arm, at])
        return by_arm, drafted, accepted

    def _switch(self, group: _Group, arm: int, members: ndarray | slice, context: ndarray,
                drafting: ndarray | bool = True) -> int:
        """Give those members who are ``drafting`` to a drafter; how many tokens it has not read yet, but for one
        each."""
        late = (group.drafter[members] != arm) & drafting
        if not np.count_nonzero(late):
            return 0
        unread, late = 0, np.arange(len(context))[members][late]
        for b in late.tolist():
            request = int(group.requests[b])
            self.known[request, int(group.drafter[b])] = int(context[b])
            unread += int(context[b]) - self.known.get((request, arm), 0) - 1
        group.drafter[late] = arm
        return unread

    def _observe(self, requests, by_arm, drafted, accepted, draft_seconds, rows: int, seconds: float) -> None:
        """Tell the selector, as the engine does: nobody is charged for the reading of prompts."""
        ours = len(drafted) + int(drafted.sum())
        plain, own = shares(drafted.tolist(), self.cost.decoding(ours, rows, seconds), self.cost)
        verify = (plain + own).tolist()
        self.policy.observe([Outcome(int(requests[b]), name, int(drafted[b]), int(accepted[b]), int(accepted[b]) + 1,
                                     float(draft_seconds[b]), verify[b], rows if rows == ours else 0, seconds, plain)
                             for name, members in by_arm.items() for b in members.tolist()])

    def _leave(self, group: _Group, stays: ndarray) -> None:
        for request in group.requests[~stays].tolist():
            self.finished[request] = group.ready
            heapq.heappush(self.leaving, (group.ready, int(self.reserved[request])))
            if not isinstance(self.policy, str):
                self.policy.finish(request)
        group.keep(stays)

    def _regroup(self, served: int, began: float) -> None:
        """Ask the heuristic after a round of all groups; deal the requests out anew if it wants another
        count."""
        now = max(g.ready for g in self.groups)
        columns = np.hstack([g.columns for g in self.groups])
        requests, drafter, at, _, shift = columns
        if self.reading or not len(requests):
            return
        drafters = Counter(self.arms[d] for d in drafter.tolist())
        load = Load(len(requests), float(np.mean(at + shift)), drafters)
        if self.heuristic.observe(load, served, now - began, now, tuple(self.stages)):
            self.groups = [_Group(i) for i in range(self.heuristic.count)]
            for i, group in enumerate(self.groups):
                group.ready = now
                group.add(columns[:, i::len(self.groups)])


def _clipped(recording: Recording, drafter: str, gamma: int) -> tuple[ndarray, ndarray]:
    """By place ``[N]``: what a drafter that always drafts ``gamma`` tokens, fewer before a text's end, drafts there,
    and what of it is accepted."""
    if drafter == NONE:
        return (np.zeros(int(recording.starts[-1]), int),) * 2
    arm, places = recording.arms.index(drafter), np.arange(int(recording.starts[-1]))
    left = np.repeat(recording.starts[1:] - 1, recording.lengths) - places
    drafted = np.minimum(recording.proposed[arm], np.minimum(gamma, left))
    return drafted, np.minimum(drafted, recording.accepted[arm])


def _depths(drafted: ndarray) -> list[int]:
    """How many requests still draft at position 0, 1, ..."""
    end_at = np.bincount(drafted).tolist()
    return list(accumulate(reversed(end_at)))[-2::-1]           # but for the sum over all, who draft 0 tokens or more
