"""Drafters on other ranks, as in the paper, where every small model has a device of its own.

Rank 0 keeps a :class:`RemoteDrafter` in the drafter's place, which sends what is new of a text (roll-backs, committed
tokens) and gets the draft. The drafter itself is built and asked on its rank by :func:`host`.
"""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any

from torch import Tensor

from spin_core.draft.base import CaughtUp, Draft, Drafter, Stopped, never_stopped
from spin_core.draft.build import BuildContext
from spin_core.request import Request
from spin_core.runtime.ranks import Link, Ranks
from spin_core.runtime.workers import set_own_threads

SAME = "as before"      # stands for a draft's ids that rank 0 has already got
_numbers = itertools.count()


class RemoteDrafter(Drafter):
    """Stands for the drafter called ``name`` on ``rank``; ``slots``, ``max_len`` and ``bf16`` are the engine's.

    Raises what building it there raised. A rank that dies makes its drafters raise, and so retires them.
    """

    def __init__(self, name: str, ranks: Ranks, rank: int, slots: int, max_len: int,
                 bf16: bool | None = None) -> None:
        self.name, self.number = name, next(_numbers)
        self._draft, self._read = ranks.links["draft"][rank], ranks.links["read"][rank]
        about, _ = self._draft.answer(self._draft.ask("build", self.number, name, slots, max_len, bf16))
        most, self.catch_up_threshold, self.gamma, self.is_lookup = about
        self.max_context = min(most, max_len)
        self._ids: Tensor | None = None                     # of its last draft
        self._held = [0] * slots                            # tokens of each text that the drafter has read
        self._told = [0] * slots                            # tokens of each text that its rank knows
        self._keep: list[int | None] = [None] * slots       # roll-backs that it has not been told of
        self._begun: int | None = None                      # number of the draft that was asked for beforehand

    def begin(self, requests: list[Request], counts: list[int]) -> None:
        self._begun = None              # of a step that was given up: not to be taken for this one's
        self._begun = self._draft.ask("propose", self.number, [self._news(r) for r in requests], counts)

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        if self._begun is None:
            self.begin(requests, counts)
        begun, self._begun = self._begun, None
        (draft, held), probs = self._draft.answer(begun)
        draft.probs = probs
        self._ids = draft.ids = self._ids if isinstance(draft.ids, str) else draft.ids
        self._note(requests, held)
        return draft

    def rollback(self, slot: int, length: int) -> None:
        self._held[slot] = min(self._held[slot], length)
        self._told[slot] *= length > 0          # a committed text does not shrink, but a slot gets another one
        kept = self._keep[slot]
        self._keep[slot] = length if kept is None else min(kept, length)

    def missing(self, request: Request) -> int:
        return 0 if request.length > self.max_context else max(0, request.length - 1 - self._held[request.slot])

    def catch_up(self, requests: list[Request], stopped: Stopped = never_stopped) -> list[CaughtUp]:
        number, told = self._read.ask("catch_up", self.number, [self._news(r) for r in requests]), threading.Event()

        def meanwhile() -> None:
            if stopped() and not told.is_set():
                told.set()
                self._read.ask("stop")          # anything that it is sent ends what it is reading

        (found, held), _ = self._read.answer(number, meanwhile)
        self._note(requests, held)
        return found

    def _news(self, request: Request) -> tuple:
        """What the drafter's rank does not know of a request yet."""
        slot, told, keep = request.slot, self._told[request.slot], self._keep[request.slot]
        self._told[slot], self._keep[slot] = request.length, None
        first = None if told else (request.id, len(request.prompt_ids), request.params)
        return slot, keep, told, request.tail(told), first

    def _note(self, requests: list[Request], held: list[int]) -> None:
        for request, length in zip(requests, held):
            self._held[request.slot] = length


class _Hosted:
    """A drafter on its own rank, and the texts it drafts for, by slot. Answers: a value, and perhaps a tensor."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.texts: dict[int, Request] = {}
        self.ids: Tensor | None = None      # of its last draft

    def propose(self, news: list[tuple], counts: list[int]) -> tuple[Any, Tensor | None]:
        """The draft without its distributions, how much was read of each text, and the distributions."""
        start = time.perf_counter()
        requests = self._requests(news)
        draft = self.drafter.propose(requests, counts)
        small, probs = copy(draft), draft.probs
        small.probs, small.seconds = None, time.perf_counter() - start
        if draft.ids is self.ids:
            small.ids = SAME
        self.ids = draft.ids
        for name, part in vars(small).items():
            if isinstance(part, Tensor):
                setattr(small, name, part.cpu())
        return (small, self._held(requests)), probs

    def catch_up(self, news: list[tuple], stopped: Stopped) -> tuple[Any]:
        """What it found, and how much was read of each text."""
        requests = self._requests(news)
        return (self.drafter.catch_up(requests, stopped), self._held(requests)),

    def _requests(self, news: list[tuple]) -> list[Request]:
        """The requests as they are now, by what is new of them."""
        for slot, keep, start, tail, first in news:
            if keep is not None:
                self.drafter.rollback(slot, keep)
            if first:
                number, prompt, params = first
                self.texts[slot] = Request(tail[:prompt], params, id=number, slot=slot, output_ids=tail[prompt:])
            else:
                request = self.texts[slot]
                request.output_ids[start - len(request.prompt_ids):] = tail
        return [self.texts[slot] for slot, *_ in news]

    def _held(self, requests: list[Request]) -> list[int]:
        """How many tokens of each text the drafter has read."""
        runner = getattr(self.drafter, "runner", None)
        return [runner.cache.lengths[r.slot] if runner else r.length - 1 - self.drafter.missing(r) for r in requests]


def host(build: Callable[[str, int, int, bool | None], Drafter], draft: Link, read: Link) -> None:
    """On a drafter's rank: serve rank 0 until it ends; reading goes on beside drafting. ``build(name, slots, max_len,
    bf16)`` makes a drafter. Raises EOFError where rank 0 has died."""
    hosted: dict[int, _Hosted] = {}

    def make_or_propose(what: str, key: int, *message: Any) -> tuple:
        if what == "propose":
            return hosted[key].propose(*message)
        made = build(*message)
        hosted[key] = _Hosted(made)
        return (made.max_context, made.catch_up_threshold, made.gamma, made.is_lookup),     # what rank 0 needs to know

    def reading() -> None:
        set_own_threads(1)
        with suppress(EOFError):        # rank 0 has ended: the other conversation notices it, too
            _serve(read, lambda what, key, news: hosted[key].catch_up(news, lambda: read.connection.poll(0)))

    threading.Thread(target=reading, daemon=True, name="spin-read").start()
    _serve(draft, make_or_propose)


def _serve(link: Link, call: Callable[..., tuple]) -> None:
    """Answer what rank 0 asks with what ``call`` returns or raises, until it ends."""
    while True:
        number, what, *message = link.receive()
        if what == "end":
            return
        if what == "stop":              # what it should stop has been answered
            continue
        try:
            link.reply(number, *call(what, *message))
        except Exception as error:      # in plain words: the error itself may hold what cannot travel
            link.reply(number, RuntimeError(f"{type(error).__name__}: {error}"))


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The name of a drafter that lives on another rank, or of a tree or a sparse cache of such."""
    ranks = getattr(context.family, "ranks", None)
    if ranks is None:
        return None
    kind, _, rest = name.partition(":")
    members = rest.split(":")[0].split(",") if kind in ("tree", "sparse") else [name]
    homes = [ranks.places[member] for member in members if member in ranks.places]
    return RemoteDrafter(name, ranks, homes[0], context.slots, context.max_len, context.told_bf16) if homes else None
