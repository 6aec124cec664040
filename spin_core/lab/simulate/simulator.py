"""A serving system on hardware that is not at hand: requests, batches, two stages, a clock.

Accepted tokens come from a recording, seconds of passes from a cost model. The selectors, the planner of pieces and
the heuristic of micro-batches are the classes that serve live. One turn of the loop (:meth:`System._step`) takes one
group through a step:

    admit -> assign -> draft (every drafter on its device) -> verify (on the target's) -> commit -> observe

The running requests are split into groups, the micro-batches. Groups take turns, and a device does one thing at a
time, in the order of these turns. With one group, drafting and verification alternate; with more, one group is
verified while another is drafted for, if drafters have devices of their own. A request's first step also reads its
prompt, as further rows of the target's pass and of its drafter's first pass. A drafter that takes over a request
reads what it has not read yet, and so does a drafter that reads along for a policy with full information.

Left out: transfers of tokens between devices, sampling, and stop strings.
"""

import heapq
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from numbers import Integral

import numpy as np
from numpy import ndarray

from spin_core.lab.schedule import VERIFY
from spin_core.pipeline.heuristic import Heuristic, Load
from spin_core.select.base import NONE, Outcome, RequestView, Scored, Selector
from spin_core.select.costs import AffineCost, shares
from spin_core.lab.simulate.recording import Recording
from spin_core.lab.simulate.costs import Roofline, Tables
from spin_core.lab.simulate.outcome import STEP_FIELDS, Run

RENEW = 8               # steps after which the pieces' width is searched anew


def simulate(recording: Recording, costs: Roofline | Tables, policy: Selector | str, *, batch: int = 8,
             micro_batches: int | str = 1, gamma: int = 4, arrivals: Sequence[float] | None = None,
             capacities: Mapping[str, int] | None = None, events: bool = False, by_length: bool = False) -> Run:
    """Serve all requests of ``recording``, first come first served.

    ``policy``: a selector, or the name of the one drafter that drafts ``gamma`` tokens for everyone ("none": plain
    decoding). ``batch``: requests that run at once. ``micro_batches``: groups, or "auto" for the heuristic.
    ``arrivals``: seconds ``[R]``, rising; None: all at once. ``by_length``: whenever requests have come or gone,
    micro-batches are formed anew of requests of similar length; else a request stays in the one it was admitted to.
    Raises ValueError for what cannot be served.
    """
    return System(recording, costs, policy, batch, micro_batches, gamma, arrivals, capacities, events,
                  by_length=by_length).run()


class _Group:
    """A micro-batch.

    One column per request, ``[5, B]``: its number, its last drafter's index (-1: none yet), the place in the recording
    of its next token, the place of its last token, and its context's length less the former. Places are kept, not
    numbers of written tokens, because every step looks them up.
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


class System:
    """The state of one run; options as in :func:`simulate`.

    ``reads_prompts``: whether the target reads prompts (a replay leaves that out, as it is the same for all policies).
    ``free_reading``: drafters take no time to read what they have missed; for ceilings.
    """

    def __init__(self, recording, costs, policy, batch=8, micro_batches=1, gamma=4, arrivals=None,
                 capacities=None, events=False, *, by_length=False, reads_prompts=True, free_reading=False) -> None:
        count = len(recording)
        self.arrived = np.zeros(count) if arrivals is None else np.asarray(arrivals, float)
        self.lengths = recording.lengths            # a property that is computed on every access
        whole = all(isinstance(n, Integral) for n in (batch, gamma, *[micro_batches] * (micro_batches != "auto")))
        if not whole or batch < 1 or gamma < 0 or (micro_batches != "auto" and not 1 <= micro_batches <= batch):
            raise ValueError(f"simulate: batch {batch} and micro_batches {micro_batches} (at most batch) must be whole "
                             f"numbers >= 1, gamma {gamma} a whole number >= 0")
        if self.arrived.shape != (count,) or not np.isfinite(self.arrived).all() or (np.diff(self.arrived) < 0).any():
            raise ValueError(f"simulate: {self.arrived.size} arrivals for {count} requests; they must be finite times "
                             "in rising order, one per request")
        if not isinstance(policy, str) and not hasattr(policy, "arms"):
            raise ValueError(f"simulate: the policy is a drafter's name or a Selector, not {policy!r}")
        if isinstance(policy, str) and policy not in (*recording.arms, NONE):
            raise ValueError(f"simulate: no drafter {policy!r} in the recording; it has {', '.join(recording.arms)}")
        if isinstance(policy, str) and capacities:
            raise ValueError(f"simulate: capacities need a selector; {policy!r} drafts for every request")
        for name, places in (capacities or {}).items():
            if name not in policy.arms or not isinstance(places, Integral) or places < 0:
                raise ValueError(f"simulate: capacities: {name!r} cannot have {places!r} places: give a whole number "
                                 f"for one of {', '.join(policy.arms)}")
        self.recording, self.costs, self.policy = recording, costs, policy
        self.fixed = _clipped(recording, policy, gamma) if isinstance(policy, str) else None
        self.by_length, self.reads_prompts, self.free_reading = by_length, reads_prompts, free_reading
        arms = () if isinstance(policy, str) else policy.arms
        # which policies learn from text that drafters read: asking the others would only take time
        self.probes, self.scores = (not self.fixed and getattr(type(policy), call) is not getattr(Selector, call)
                                    for call in ("probe", "scored"))
        self.lookups = {name: recording.proposed[recording.arms.index(name)]
                        for name in recording.lookups if name in arms}
        self.found = {name: recording.lookup_finds(name) for name in recording.composed}
        self.batch, self.capacities = batch, capacities
        self.heuristic = Heuristic(batch) if micro_batches == "auto" else None
        self.groups = [_Group(i) for i in range(1 if self.heuristic else micro_batches)]
        self.arms = (*recording.arms, NONE)
        self.arm = {name: i for i, name in enumerate(self.arms)}
        self.next = self.running = 0                # requests that wait begin at `next`
        self.leaving: list[float] = []              # when finished requests make room
        self.admitted, self.finished = np.full(count, np.nan), np.full(count, np.nan)
        self.free: dict[str, float] = {}            # when each device can take on more
        self.known = np.zeros((count, len(self.arms)), int)     # tokens that each drafter has read, when it was left
        self.reads = np.zeros((2, len(self.arms)))      # seconds that drafters have spent on texts, and their tokens
        self.clock = 0.0                            # when the last turn began
        self.changed = False                        # requests have come or gone since the groups were formed
        self.reading = False                        # a prompt was read in this round, so its time says little
        self.stages = [0.0, 0.0]                    # seconds of drafting and verifying in this round
        self.cost = AffineCost()
        self.served: dict[str, int] = {}
        self.log: list[tuple] = []
        self.events: list[tuple] | None = [] if events else None
        self.entries: list[tuple[ndarray, ...]] = []    # per step, for a replay: see ``replay.Replay``
        self.thinking = 0.0                         # seconds of this machine that the selector took

    def run(self) -> Run:
        while self.next < len(self.recording) or any(len(g.requests) for g in self.groups):
            began, served, self.reading, self.stages = max(g.ready for g in self.groups), 0, False, [0.0, 0.0]
            for group in self.groups:
                self._admit(group)
                if len(group.requests):
                    served += len(group.requests)
                    self._step(group)
            if not served:                          # idle until the next request comes
                self.clock = max(self.clock, float(self.arrived[self.next]))
            elif self.heuristic:
                self._ask_heuristic(served, began)
            if self.by_length and len(self.groups) > 1 and self.changed:
                self._regroup(len(self.groups))
        steps = dict(zip(STEP_FIELDS, np.array(self.log, float).T))
        return Run(steps, self.lengths, self.arrived, self.admitted, self.finished, self.served,
                   self.heuristic.decisions if self.heuristic else [], self.events or [])

    # ---- a group's way through a step

    def _step(self, group: _Group) -> None:
        # batches are so small that Python sums a list faster than numpy an array
        requests, context, left = group.requests, group.at + group.shift, group.end - group.at
        by_arm, drafted, accepted = self._assign(group, context, left)
        start = max(group.ready, self.clock)
        ready, busy = start, []
        drafting, reading = np.zeros((2, len(left)))        # each request's seconds of these
        for name, members in by_arm.items():
            self.served[name] = self.served.get(name, 0) + len(context[members])
            name, seconds = self._draft(name, members, group, context, drafted, drafting, reading)
            if name != NONE:
                busy.append(seconds)
                ready = max(ready, self._occupy(name, start, seconds))

        prompt_rows, group.unread = group.unread, 0
        self.reading |= prompt_rows > 0
        verified = self.costs.verify(context, drafted, prompt_rows, group.width if group.age % RENEW else 0)
        if not 0 < verified.seconds < np.inf:
            raise ValueError(f"simulate: a verification of {len(left)} requests takes {verified.seconds} s")
        group.age, group.width = group.age + 1 if group.width else 1, verified.width
        begin = max(ready, self.free.get(VERIFY, 0.0))
        group.ready = self.free[VERIFY] = begin + verified.seconds
        self.clock = start
        if self.events is not None:
            self.events += [(len(self.log), request, name, d, a) for name, members in by_arm.items() for request, d, a
                            in zip(*(column[members].tolist() for column in (requests, drafted, accepted)))]
        tokens, emitted = sum(drafted.tolist()), sum(accepted.tolist()) + len(left)
        rows, needed = len(left) + tokens, sum(context.tolist()) + tokens
        rows_read = rows + prompt_rows
        alone = sum(busy) if self.costs.shared else max(busy, default=0.0)
        self.stages = [self.stages[0] + alone, self.stages[1] + verified.seconds]
        self.log.append((start, ready, begin, group.ready, len(left), rows_read, needed, verified.touched, emitted,
                         alone, group.number))
        if not self.fixed:
            verifying = self._observe(requests, by_arm, drafted, accepted, drafting, rows_read, verified.seconds)
        group.at += accepted + 1
        if not self.fixed:
            if self.probes:
                self._read_along(group, left - accepted - 1, reading)
            if self.events is not None:
                arms = np.empty_like(requests)
                for name, members in by_arm.items():
                    arms[members] = self.arm[name]
                done = context - self.recording.prompts[requests]
                self.entries.append((requests, arms, done, drafted, accepted, drafting + reading + verifying))
        stays = accepted < left
        if np.count_nonzero(stays) < len(left):
            self._leave(group, stays)

    def _occupy(self, name: str, start: float, seconds: float) -> float:
        """Keep a drafter's device busy for ``seconds``, from ``start`` or when it is free; when it is done."""
        device = VERIFY if self.costs.shared else name
        self.free[device] = max(start, self.free.get(device, 0.0)) + seconds
        return self.free[device]

    def _draft(self, name, members, group, context, drafted, drafting, reading) -> tuple[str, float]:
        """One drafter's part of a step: reading what it has missed, then a pass per drafted position. Its name ("none":
        no pass) and its seconds; each request's shares go into ``drafting`` and ``reading``, ``[B]``."""
        if name in self.found:          # a composed drafter: its second part drafts where its lookup finds nothing
            found, (_, name) = self.found[name][group.at[members]], self.recording.composed[name]
            members = np.arange(len(context))[members]
            self._switch(group, self.arm[NONE], members[found], context)
            members = members[~found]
        proposed, arm = drafted[members], self.arm[name]
        if not len(proposed):
            return NONE, 0.0
        if name == NONE or name in self.recording.lookups:
            self._switch(group, arm, members, context)
            seconds = 0.0 if name == NONE else _checked(
                name, self.costs.draft(name, len(proposed), _depths(proposed), 0.0))
            drafting[members] = seconds / len(proposed)
            return name, seconds
        depths = _depths(proposed)
        seconds = _checked(name, self.costs.draft(name, len(proposed), depths, float(sum(context[members].tolist()))))
        if not self.fixed:
            drafting[members] = seconds * proposed / max(1, sum(depths))
        unread, score = self._switch(group, arm, members, context, proposed > 0), []
        if total := sum(unread.values()):
            cost = 0.0 if self.free_reading else self.costs.reading(name, total, depths[0])
            seconds = _checked(name, seconds + cost)    # measured passes may take less over more rows
            self.reads[:, arm] += cost, total
            for b, rows in unread.items() if not self.fixed else ():
                reading[b] = cost * rows / total
                if rows and self.scores and group.at[b] > self.recording.starts[group.requests[b]]:
                    score.append(self._score(group, b, arm, int(context[b]) - rows - 1))
        if score:
            self._ask(self.policy.scored, score)
        return name, seconds

    def _read_along(self, group: _Group, left: ndarray, reading: ndarray) -> None:
        """Drafters that the selector wants scored read what they have not read of their requests."""
        wishes = self._ask(self.policy.probe, self._views(group, left))
        by_arm: dict[str, dict[int, int]] = {}
        for b, request in enumerate(group.requests.tolist() if wishes else ()):
            context = int(group.at[b] + group.shift[b])
            for name in wishes.get(request, ()):
                known = int(self.known[request, self.arm[name]])
                if known < context and self.arm[name] != group.drafter[b] and left[b] >= 0:
                    by_arm.setdefault(name, {})[b] = known
                    self.known[request, self.arm[name]] = context
        for name, members in by_arm.items():
            rows = [int(group.at[b] + group.shift[b]) - known for b, known in members.items()]
            seconds = 0.0 if self.free_reading else _checked(
                name, self.costs.draft(name, len(rows), [], 0.0) if name in self.recording.lookups else
                self.costs.reading(name, sum(rows), 0))
            done = self._occupy(name, group.ready, seconds)
            if self.costs.shared:
                group.ready = done
            scores = []
            for (b, known), count in zip(members.items(), rows):
                part = seconds * count / sum(rows)
                reading[b] += part
                scores.append(self._score(group, b, self.arm[name], known, part))
            self._ask(self.policy.scored, scores)

    def _score(self, group: _Group, b: int, arm: int, known: int, seconds: float = 0.0) -> Scored:
        """How a drafter that had read ``known`` tokens would have done on the text since then, up to the present."""
        first = max(int(self.recording.starts[group.requests[b]]), known - int(group.shift[b]))
        places = slice(first, int(group.at[b]))
        right = self.recording.accepted[arm, places] > 0
        hits = np.where(self.recording.proposed[arm, places] > 0, right, np.nan)
        return Scored(int(group.requests[b]), self.arms[arm], hits.tolist(), seconds)

    def _ask(self, call, *arguments):
        """Call the selector, and time it."""
        began = time.thread_time()          # of this thread: other work on the machine does not count
        answer = call(*arguments)
        self.thinking += time.thread_time() - began
        return answer

    def _admit(self, group: _Group) -> None:
        """Admit requests that have arrived, while there is room in the batch and in this group's part of it."""
        now = max(group.ready, self.clock)
        while self.leaving and self.leaving[0] <= now:
            heapq.heappop(self.leaving)
            self.running -= 1
        if self.next == len(self.arrived) or self.running >= self.batch:
            return
        came = int(self.arrived.searchsorted(now, "right"))
        fair = -(-(min(self.batch, self.running + came - self.next) - group.number) // len(self.groups))
        count = max(0, min(came - self.next, fair - len(group.requests), self.batch - self.running))
        new = list(range(self.next, self.next + count))
        self.running, self.next = self.running + count, self.next + count
        self.changed |= bool(new)
        if new:
            group.ready = max(group.ready, float(self.arrived[new[-1]]))
            self.admitted[new] = now
            begin, prompts = self.recording.starts[new], self.recording.prompts[new]
            group.add(np.array([new, [-1] * len(new), begin, begin + self.lengths[new] - 1, prompts - begin]))
            group.unread += int((prompts - 1).sum()) if self.reads_prompts else 0

    def _assign(self, group: _Group, context: ndarray,
                left: ndarray) -> tuple[dict[str, ndarray | slice], ndarray, ndarray]:
        """Places in the group by drafter, and by place the tokens drafted and those accepted, ``[B]`` each."""
        if self.fixed:
            drafts, accepts = self.fixed
            return {self.policy: slice(None)}, drafts[group.at], accepts[group.at]
        views = self._views(group, left)
        choices = self._ask(self.policy.assign, views, self.capacities)
        places: dict[str, list[int]] = {}
        for b, view in enumerate(views):
            places.setdefault(choices[view.request].drafter, []).append(b)
        if unknown := set(places) - set(self.arms):
            raise ValueError(f"simulate: no drafter {unknown.pop()!r} in the recording; it has {', '.join(self.arms)}")
        by_arm = {name: np.array(members) for name, members in places.items()}
        wanted = np.minimum([choices[view.request].gamma for view in views], left)
        drafted, accepted = np.zeros_like(left), np.zeros_like(left)
        for name, members in by_arm.items():
            if name != NONE:
                arm, at = self.arm[name], group.at[members]
                drafted[members] = np.minimum(wanted[members], self.recording.proposed[arm, at])
                accepted[members] = np.minimum(drafted[members], self.recording.accepted[arm, at])
        return by_arm, drafted, accepted

    def _views(self, group: _Group, left: ndarray) -> list[RequestView]:
        """What the selector may know of each request; ``left [B]``: tokens still to come after the next one."""
        current = [None if d < 0 else self.arms[d] for d in group.drafter.tolist()]
        done, context = group.at - self.recording.starts[group.requests], group.at + group.shift
        columns = (group.requests.tolist(), done.tolist(), context.tolist(), left.tolist(), current)
        unread = [{}] * len(left)
        if len(priced := np.flatnonzero(self.reads[1] > 0)):
            missing = np.maximum(0, context[:, None] - self.known[group.requests[:, None], priced] - 1)
            missing[group.drafter[:, None] == priced] = 0
            seconds = missing * (self.reads[0, priced] / self.reads[1, priced])
            names = [self.arms[a] for a in priced]
            unread = [dict(zip(names, row)) for row in seconds.tolist()]
        if not self.lookups:
            return list(map(RequestView, *columns, [{}] * len(left), unread))
        at = np.minimum(group.at, group.end)            # a finished request has no place; nothing is drafted for it
        found = [dict(zip(self.lookups, lengths)) if rest >= 0 else {} for rest, *lengths in
                 zip(columns[3], *(proposed[at].tolist() for proposed in self.lookups.values()))]
        return list(map(RequestView, *columns, found, unread))

    def _switch(self, group: _Group, arm: int, members: ndarray | slice, context: ndarray,
                drafting: ndarray | bool = True) -> dict[int, int]:
        """Give those members that are ``drafting`` to an arm; {place in the group: tokens it has not read yet, less
        one}."""
        late = (group.drafter[members] != arm) & drafting
        if not np.count_nonzero(late):
            return {}
        unread, late = {}, np.arange(len(context))[members][late]
        for b in late.tolist():
            request = int(group.requests[b])
            if group.drafter[b] >= 0:
                self.known[request, group.drafter[b]] = context[b]
            unread[b] = max(0, int(context[b] - self.known[request, arm]) - 1)
        group.drafter[late] = arm
        return unread

    def _observe(self, requests, by_arm, drafted, accepted, draft_seconds, rows: int, seconds: float) -> ndarray:
        """Report the step to the selector, as the engine does: no request is charged for the reading of prompts. Each
        request's share of the verification ``[B]``."""
        ours = len(drafted) + int(drafted.sum())
        plain, own = shares(drafted.tolist(), self.cost.decoding(ours, rows, seconds), self.cost)
        verify = plain + own
        columns = (c.tolist() for c in (requests, drafted, accepted, draft_seconds, verify))
        name = {b: name for name, members in by_arm.items() for b in members.tolist()}
        self._ask(self.policy.observe, [
            Outcome(request, name[b], d, a, a + 1, own_seconds, share, rows if rows == ours else 0, seconds, plain)
            for b, (request, d, a, own_seconds, share) in enumerate(zip(*columns))])
        return verify

    def _leave(self, group: _Group, stays: ndarray) -> None:
        for request in group.requests[~stays].tolist():
            self.finished[request] = group.ready
            heapq.heappush(self.leaving, group.ready)
            if not self.fixed:
                self._ask(self.policy.finish, request)
        group.keep(stays)
        self.changed = True

    def _regroup(self, count: int) -> None:
        """Form ``count`` groups of the running requests, once all their steps have ended."""
        now, self.changed = max(g.ready for g in self.groups), False
        columns, unread = np.hstack([g.columns for g in self.groups]), sum(g.unread for g in self.groups)
        cuts = [columns[:, i::count] for i in range(count)]
        if self.by_length:
            _, _, at, _, shift = columns
            cuts = np.array_split(columns[:, (at + shift).argsort(kind="stable")], count, 1)
        self.groups = [_Group(i) for i in range(count)]
        for group, cut in zip(self.groups, cuts):
            group.ready = now
            group.add(cut)
        self.groups[0].unread = unread

    def _ask_heuristic(self, served: int, began: float) -> None:
        """Tell the heuristic of a round of all groups; regroup the requests if it wants another count."""
        now = max(g.ready for g in self.groups)
        requests, drafter, at, _, shift = np.hstack([g.columns for g in self.groups])
        if self.reading or not len(requests):
            return
        drafters = Counter(self.arms[d] for d in drafter.tolist())
        load = Load(len(requests), float(np.mean(at + shift)), drafters)
        if self.heuristic.observe(load, served, now - began, now, tuple(self.stages)):
            self._regroup(self.heuristic.count)


def _clipped(recording: Recording, drafter: str, gamma: int) -> tuple[ndarray, ndarray]:
    """By place ``[N]``: what a drafter that always drafts ``gamma`` tokens, fewer before a text's end, drafts there,
    and what of it is accepted."""
    if drafter == NONE:
        return (np.zeros(int(recording.starts[-1]), int),) * 2
    arm, places = recording.arms.index(drafter), np.arange(int(recording.starts[-1]))
    left = np.repeat(recording.starts[1:] - 1, recording.lengths) - places
    drafted = np.minimum(recording.proposed[arm], np.minimum(gamma, left))
    return drafted, np.minimum(drafted, recording.accepted[arm])


def _checked(name: str, seconds: float) -> float:
    """The seconds of a drafter's pass. Raises ValueError where no pass can take so long."""
    if not 0 <= seconds < np.inf:
        raise ValueError(f"simulate: {name} drafts for {seconds} s")
    return seconds


def _depths(drafted: ndarray) -> list[int]:
    """How many requests still draft at position 0, 1, ..."""
    end_at = np.bincount(drafted).tolist()
    return list(accumulate(reversed(end_at)))[-2::-1]           # without the sum over all requests
