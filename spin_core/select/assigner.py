"""Assigns requests to drafters as a selector chooses: asks it, moves requests, reports what their steps brought.

This is the engine's side of selection; the policies are the other files of this folder. Whatever a policy does, no
request and no token may be lost: a selector that raises or answers nonsense is ignored for that step, and the requests
stay with their drafters. Everything that comes from a policy passes one guarded door, :meth:`Assigner._ask`.
"""

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from operator import index
from typing import Any

import torch

from spin_core.draft import Drafter
from spin_core.draft.catchup import CatchUps, Job, Worker
from spin_core.draft.pool import DrafterPool
from spin_core.request import Request, check_whole
from spin_core.select.base import NONE, Choice, Outcome, RequestView, Scored, Selector
from spin_core.select.costs import AffineCost, shares
from spin_core.select.policies import find, make
from spin_core.trace import Event, Trace

DEFAULT_GAMMA = 4           # drafted tokens per step, unless a number is given
DEFAULT_GAMMA_MODEL = 2     # the same for drafters that take a pass per token, where a selector tries them on requests
LOOKUP_LENGTH = 8       # tokens that lookups are asked for where the selector's gammas are no numbers


class Assigner:
    """Lets ``selector`` choose drafter and gamma of every request that was not submitted with a drafter of its own.

    ``capacities``: how many of the running requests a drafter may serve at once; pinned ones take their places first,
    and one that comes while other micro-batches hold them all is served beside them until one is free.
    With ``fast_switching`` a drafter reads a text in another thread, while the request goes on with its old drafter
    (SPIN's fast switching); otherwise the engine waits for it. ``max_len``: room of a request's slot, in tokens.
    ``seconds`` is what the selector took since :meth:`take_seconds`.
    """

    def __init__(self, selector: Selector, drafters: DrafterPool, trace: Trace, *, max_len: int,
                 device: torch.device | str = "cpu", capacities: Mapping[str, int] | None = None,
                 fast_switching: bool = True) -> None:
        self.selector, self.drafters, self.trace, self.max_len = selector, drafters, trace, max_len
        self.capacities = dict(capacities or {})
        for name, capacity in self.capacities.items():
            if name not in selector.arms or not isinstance(capacity, Integral) or capacity < 0:
                raise ValueError(f"capacities: {name!r} cannot have {capacity!r} places: give a whole number for one "
                                 f"of {', '.join(selector.arms)}")
        self.catch_ups = CatchUps(Worker(device) if fast_switching else None)
        self.served: set[int] = set()               # requests that the selector has seen
        self.moves: dict[int, Choice] = {}          # where a request goes once that drafter has read its text
        self.cost = AffineCost()                    # of the target's pass, to share it out
        self.seconds = 0.0
        self.read_seconds: Counter[str] = Counter()     # what drafters have spent on texts
        self.read_tokens: Counter[str] = Counter()      # ... and how long these were
        drafters.on_retire = self.retire

    # ---- before a step

    def assign(self, requests: list[Request], others: Sequence[Request] = (),
               in_flight: Sequence[Request] = ()) -> None:
        """Give every request its drafter and gamma for the coming step.

        ``others`` are in other micro-batches; those of them that are ``in_flight`` hold their places. A micro-batch
        gets a drafter's places by its share of all requests (rounded up), or the first one would take them all.
        """
        self._settle(self.catch_ups.collect())
        pinned = Counter(r.drafter for r in requests if r.pinned)
        held = Counter(r.drafter for r in others if r.pinned or r in in_flight)
        fair = {name: -(-capacity * len(requests) // max(1, len(requests) + len(others)))
                for name, capacity in self.capacities.items()}
        room = {name: max(0, min(capacity - held[name], fair[name]) - pinned[name])
                for name, capacity in self.capacities.items()}
        ours = [r for r in requests if not r.pinned]
        views = self._views(ours, self._lookups())
        choices = self._ask("assign", lambda: self.selector.assign(views, room), {})

        late: list[tuple[Request, Choice]] = []
        for request in ours:
            self.served.add(request.id)
            choice = self._checked(choices, request)
            move = self.moves.get(request.id)
            if move and self._ready(move.drafter, request):     # what was begun is carried out
                choice = self.moves.pop(request.id)
            if self._ready(choice.drafter, request):
                self._give(request, choice, room)
            else:
                late.append((request, choice))
        self._begin_moves(late)
        for request, choice in late:
            if self._ready(choice.drafter, request):
                self.moves.pop(request.id, None)
                self._give(request, choice, room)
            elif self._ready(request.drafter, request):
                self._give(request, Choice(request.drafter, request.gamma), room)
            else:
                self._give(request, Choice(NONE, 0), room)

    def _give(self, request: Request, choice: Choice, room: dict[str, int]) -> None:
        """That choice, or no speculation where the drafter has no place left."""
        if choice.drafter != NONE:
            left = room.get(choice.drafter)
            if left == 0:
                choice = Choice(NONE, 0)
            elif left is not None:
                room[choice.drafter] = left - 1
        request.drafter, request.gamma = choice

    def _views(self, requests: list[Request], lookups: Sequence[str]) -> list[RequestView]:
        """What the selector may know: among it how many tokens each of ``lookups`` has for a request."""
        most = self._ask("gamma", lambda: int(max(self.selector.gamma)), LOOKUP_LENGTH) if lookups else 0
        views = []
        for request in requests:
            last = min(request.remaining, self.max_len - request.length)     # tokens that may still come
            found = {name: self._ask_drafter(name, lambda d: index(d.available(request, most)), 0) for name in lookups}
            views.append(RequestView(request.id, len(request.output_ids), request.length, max(0, last - 1),
                                     request.drafter if request.id in self.served else None, found,
                                     self._unread(request)))
        return views

    def _unread(self, request: Request) -> dict[str, float]:
        """Seconds that drafters would spend on the request's text first, where that is known and more than nothing."""
        return {name: self._ask_drafter(name, lambda d: index(d.missing(request)), 0) * seconds / self.read_tokens[name]
                for name, seconds in self.read_seconds.items()
                if name in self.drafters.drafters and not self._ready(name, request)}

    def _lookups(self) -> list[str]:
        """Those drafters of the pool that look up."""
        pool = self.drafters.drafters
        return [name for name in self.selector.arms if name != NONE and name in pool and pool[name].is_lookup]

    def _checked(self, choices: Any, request: Request) -> Choice:
        """The selector's choice, or the last step's where it made none that can be."""
        try:
            name, gamma = choices[request.id]
            if name not in self.selector.arms:
                raise ValueError(f"{name!r} is none of its arms")
            if not isinstance(gamma, Integral) or gamma < 0:
                raise ValueError(f"gamma {gamma!r}")
            return Choice(name, int(gamma))
        except Exception as error:
            if choices:
                _warn(f"chose for request {request.id}: {type(error).__name__}: {error}")
            return Choice(request.drafter, request.gamma)

    # ---- moving

    def _ready(self, name: str, request: Request) -> bool:
        """May that drafter draft for the request now? It is not reading it, and has hardly more to read, or nothing
        because it looks up and has found something."""
        if name in self.drafters.retired or self.catch_ups.reading(name, request.slot):
            return False
        return self._ask_drafter(name, lambda d: d.is_lookup or index(d.missing(request)) <= d.catch_up_threshold or
                                 index(d.available(request, 1)) > 0, False)

    def _begin_moves(self, late: list[tuple[Request, Choice]]) -> None:
        """Have the new drafters read. A request that is on its way already finishes that move first."""
        by_name: dict[str, list[Request]] = {}
        for request, choice in late:
            move = self.moves.get(request.id)
            if move and self.catch_ups.reading(move.drafter, request.slot) or choice.drafter in self.drafters.retired:
                continue
            self.moves[request.id] = choice
            by_name.setdefault(choice.drafter, []).append(request)
        for name, requests in by_name.items():
            self._read(name, requests)
        self._settle(self.catch_ups.collect())      # inline they have been read by now

    def _read(self, name: str, requests: list[Request]) -> None:
        """Have a drafter catch up on those requests that it is not reading already."""
        requests = [r for r in requests if not self.catch_ups.reading(name, r.slot)]
        if requests and name not in self.drafters.retired:
            self.catch_ups.start(name, self.drafters.get(name), requests)

    def _settle(self, jobs: list[Job]) -> None:
        """Add up what catch-ups cost, and report to the selector what they found out."""
        errors = {job.name: job.error for job in jobs if job.error}
        for job in jobs:
            if job.error:
                continue
            total = sum(found.tokens for found in job.found)
            if total:
                self.read_seconds[job.name] += job.seconds
                self.read_tokens[job.name] += total
            scores = []
            for request, found in zip(job.requests, job.found):
                share = found.tokens / total if total else 1 / len(job.requests)
                self.trace.add("catch_up", request.id, step=self.trace.steps, drafter=job.name,
                                      context=request.length, catch_up_tokens=found.tokens,
                                      catch_up_seconds=share * job.seconds)
                if found.hits:
                    hits = [math.nan if hit is None else float(hit) for hit in found.hits]
                    scores.append(Scored(request.id, job.name, hits, share * job.seconds))
            if scores:
                self._ask("scored", lambda: self.selector.scored(scores))
        for name, error in errors.items():      # last: where warnings are errors it raises
            self.drafters.retire(name, error)

    # ---- after a step

    def observe(self, steps: list[tuple[Request, Event, bool]], rows: int) -> None:
        """Tell how a step went: per decoding request its event, and whether it failed. ``rows``: of the target's
        pass."""
        events = [event for _, event, _ in steps]
        if events:
            ours = len(events) + sum(len(e.drafted) for e in events)
            alone = not self.catch_ups.jobs         # no drafter was reading beside the pass
            drafted = Counter(e.drafter for e in events for _ in e.drafted)
            members = Counter(e.drafter for e in events)
            plain, extra = shares([len(e.drafted) for e in events],
                                  self.cost.decoding(ours, rows, events[0].target_seconds, alone), self.cost)
            verifying = events[0].verify_seconds / ours       # a row: accepting takes as long for every drafted token
            clean = rows if rows == ours and alone else 0
            outcomes = []
            for (request, event, failed), own in zip(steps, extra.tolist()):
                share = len(event.drafted) / drafted[event.drafter] if drafted[event.drafter] else \
                    1 / members[event.drafter]
                if not request.pinned:
                    outcomes.append(Outcome(request.id, event.drafter, event.reach, event.accepted,
                                            len(event.emitted), share * event.draft_seconds,
                                            plain + own + verifying * (1 + len(event.drafted)),
                                            clean, event.target_seconds, plain + verifying, failed))
            self._ask("observe", lambda: self.selector.observe(outcomes))
        if getattr(type(self.selector), "probe", None) is not Selector.probe:       # most policies never ask
            self._probe([request for request, _, _ in steps if not request.pinned and not request.finished])
        self._settle(self.catch_ups.collect())

    def _probe(self, requests: list[Request]) -> None:
        """Have drafters read along that the selector wants to know more about."""
        by_id = {r.id: r for r in requests}
        views = self._views(requests, ())       # a drafter that looks up now has nothing left to read along

        def wishes() -> dict[str, list[Request]]:
            by_name: dict[str, list[Request]] = {}
            for number, names in dict(self.selector.probe(views)).items():
                for name in names:
                    if number in by_id and name in self.selector.index:
                        by_name.setdefault(name, []).append(by_id[number])
            return by_name

        for name, wanted in self._ask("probe", wishes, {}).items():
            self._read(name, [r for r in wanted if self._misses(name, r)])

    def _misses(self, name: str, request: Request) -> bool:
        """Is there something to read? What a model drafts itself it need not read beforehand."""
        return self._ask_drafter(
            name, lambda d: (d.is_lookup or name != request.drafter) and index(d.missing(request)) > 0, False)

    # ---- leaving

    def release(self, request: Request) -> None:
        """The request is about to give back its slot: end every catch-up that reads there, and forget the request."""
        self._settle(self.catch_ups.release(request.slot))
        self.moves.pop(request.id, None)
        if request.id in self.served:
            self.served.remove(request.id)
            self._ask("finish", lambda: self.selector.finish(request.id))

    def retire(self, name: str) -> None:
        """A drafter failed: no request moves to it any more."""
        self.moves = {request: move for request, move in self.moves.items() if move.drafter != name}
        self._ask("retire", lambda: self.selector.retire(name))

    def close(self) -> None:
        """End the thread in which drafters read."""
        self.catch_ups.close()

    # ---- asking

    def take_seconds(self) -> float:
        """What the selector took since this was last asked."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _ask(self, what: str, call: Callable[[], Any], otherwise: Any = None) -> Any:
        """What the selector answers; ``otherwise``, with a warning, where it raises or its answer cannot be read.

        ``call`` reads the whole answer, so that nonsense raises in here.
        """
        start = time.perf_counter()
        try:
            return call()
        except Exception as error:
            _warn(f"raised {type(error).__name__} in {what}: {error}")
            return otherwise
        finally:
            self.seconds += time.perf_counter() - start

    def _ask_drafter(self, name: str, call: Callable[[Drafter], Any], otherwise: Any) -> Any:
        """What that drafter answers; ``otherwise`` where it raises or answers no number, which retires it."""
        try:
            return call(self.drafters.get(name))
        except Exception as error:
            self.drafters.retire(name, error)
            return otherwise


def _warn(what: str) -> None:
    warnings.warn(f"the selector {what}; requests stay with their drafters", RuntimeWarning, stacklevel=3)


def _own_devices(arms: Sequence[str], family, drafters: DrafterPool) -> bool:
    """Do all drafters that compute draft at once? They do if no two of them are on the same rank."""
    if getattr(family, "ranks", None) is None:
        return False
    homes = [family.ranks.places.get(name, 0) for name in arms if not drafters.get(name).is_lookup]
    return len(set(homes)) == len(homes)


def make_selector(selector: Selector | str | None, arms: Sequence[str] | None, gamma: int | None, family,
                  drafters: DrafterPool) -> Selector:
    """The selector itself, or the policy of that name ("spin" for None), with every drafter built that it may choose.

    ``arms``: the drafters that a policy by name may choose; by default the family's and "ngram". ``gamma``: what they
    draft; by default a tree all of its depth, a lookup :data:`DEFAULT_GAMMA`, a model :data:`DEFAULT_GAMMA_MODEL`.
    """
    def usual(name: str) -> int:
        drafter = drafters.get(name)
        return drafter.gamma or (DEFAULT_GAMMA if drafter.is_lookup else DEFAULT_GAMMA_MODEL)

    if not isinstance(selector, (str, Selector)) and selector is not None or selector == "":
        raise ValueError(f"Engine: selector is a policy's name or a Selector, not {selector!r}")
    if isinstance(arms, str):
        raise ValueError(f"Engine: arms is a list of drafters' names, not {arms!r}")
    if selector is None or isinstance(selector, str):
        arms = [*family.drafters, "ngram"] if arms is None else list(arms)
        selector, options = selector or "spin", {}
        if gamma is not None:
            check_whole("Engine: with a selector, gamma", gamma, 1)
            options["gamma"] = gamma
        elif not find(selector).own_lengths:
            options["gamma"] = {name: usual(name) for name in arms}
        if selector == "spin":
            options |= {"shorten": gamma is None, "own_devices": _own_devices(arms, family, drafters)}
        selector = make(selector, arms, **options)
    for name in selector.arms:
        drafters.get(name)
    return selector
