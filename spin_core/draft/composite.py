"""Two drafters in one: look it up where that finds something, else ask a model."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spin_core.draft.base import CaughtUp, Draft, Drafter, never
from spin_core.draft.trees import TreeDrafter
from spin_core.request import Request


class CompositeDrafter(Drafter):
    """Proposes what ``lookup`` finds; requests for which it finds nothing are drafted for by ``fallback``.

    ``lookup`` is a drafter whose proposals are one-hot and cost next to nothing, ``fallback`` any drafter. Which of
    them drafts follows from the committed text alone, so a request's text does not depend on its batch mates. Named
    "lookup+fallback". Raises ValueError for a drafter of trees: a composition is of chains.
    """

    max_context = 2**31
    catch_up_threshold = 64        # its model falls behind while lookup serves

    def __init__(self, lookup: Drafter, fallback: Drafter) -> None:
        if tree := next((d for d in (lookup, fallback) if isinstance(d, TreeDrafter)), None):
            raise ValueError(f"a composition is of chains, not of {tree.name}; lookups can be members of the tree")
        self.name = f"{lookup.name}+{fallback.name}"
        self.lookup, self.fallback = lookup, fallback
        self.is_lookup = fallback.is_lookup

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        found = self.lookup.propose(requests, counts)
        rooms = [self.fallback.max_context - r.length for r in requests]
        # the fallback is shown all requests, with nothing to draft for most: then both drafts have one shape
        rest = self.fallback.propose(requests, [0 if n else max(0, min(count, room)) for n, count, room in
                                                zip(found.counts.tolist(), counts, rooms)])
        return _interleave(found, rest)

    def rollback(self, slot: int, length: int) -> None:
        self.lookup.rollback(slot, length)
        self.fallback.rollback(slot, length)

    def available(self, request: Request, most: int) -> int:
        return self.lookup.available(request, most) or self.fallback.available(request, most)

    def missing(self, request: Request) -> int:
        return max(self.lookup.missing(request), self.fallback.missing(request))

    def catch_up(self, requests: list[Request], stopped: Callable[[], bool] = never) -> list[CaughtUp]:
        return [_either(a, b) for a, b in zip(self.lookup.catch_up(requests, stopped),
                                              self.fallback.catch_up(requests, stopped))]


def _interleave(found: Draft, rest: Draft) -> Draft:
    """One draft of two for the same requests, of which each has tokens from one at most."""
    device = rest.tokens.device
    tokens, rows = [], []
    one_hot = torch.full_like(found.tokens, -1)
    for parts, source in ((tokens, (found.tokens, rest.tokens)), (rows, (one_hot, rest.prob_row))):
        halves = [part.split(draft.counts.tolist()) for part, draft in zip(source, (found, rest))]
        parts += [half.to(device) for pair in zip(*halves) for half in pair]
    return Draft(torch.cat(tokens), (found.cu.to(device) + rest.cu), rest.probs, torch.cat(rows), rest.ids)


def _either(lookup: CaughtUp, fallback: CaughtUp) -> CaughtUp:
    """The lookup's hits where it would have proposed something, the fallback's elsewhere, as far as both are known."""
    first = max(lookup.first, fallback.first)
    hits = [b if a is None else a for a, b in zip(lookup.hits[first - lookup.first:],
                                                  fallback.hits[first - fallback.first:])]
    return CaughtUp(max(lookup.tokens, fallback.tokens), first, hits)
