"""Two drafters in one: look the draft up where that finds something, else ask a model.

In names: FIRST+REST, such as "ngram+fed-4L-8k". FIRST is "ngram" or a table, REST any name of chains, itself a
composition or not; "ngram+TABLE" alone is chosen token by token (:mod:`spin_core.draft.joined`).
"""

import torch

from spin_core.draft.base import CaughtUp, Draft, Drafter, Stopped, never_stopped
from spin_core.draft.build import BuildContext, EnsembleDrafter
from spin_core.draft.ngram import NgramDrafter
from spin_core.draft.trees import PREFIX as TREE, TreeDrafter
from spin_core.request import Request
from spin_core.zoo.table import DraftTable

COMPOSED_NGRAM = (4, 3)     # a composition trusts lookup from so many repeated tokens on: (longest, shortest)


class CompositeDrafter(EnsembleDrafter):
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
        self.lookup, self.fallback = self.members = [lookup, fallback]
        self.is_lookup = fallback.is_lookup

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        found = self.lookup.propose(requests, counts)
        rooms = [self.fallback.max_context - r.length for r in requests]
        # the fallback gets all requests, most of them with nothing to draft: then both drafts have one shape
        rest = self.fallback.propose(requests, [0 if n else max(0, min(count, room)) for n, count, room in
                                                zip(found.counts.tolist(), counts, rooms)])
        return _interleave(found, rest)

    def available(self, request: Request, most: int) -> int:
        return self.lookup.available(request, most) or self.fallback.available(request, most)

    def catch_up(self, requests: list[Request], stopped: Stopped = never_stopped) -> list[CaughtUp]:
        """Here ``hits`` are known: the lookup's where it would have proposed something, else the fallback's."""
        return [_either(*found) for found in zip(*(m.catch_up(requests, stopped) for m in self.members))]


def _interleave(found: Draft, rest: Draft) -> Draft:
    """One draft of two for the same requests; each request has tokens in at most one of them."""
    device = rest.tokens.device
    tokens, rows = [], []
    one_hot = torch.full_like(found.tokens, -1)
    for parts, source in ((tokens, (found.tokens, rest.tokens)), (rows, (one_hot, rest.prob_row))):
        halves = [part.split(draft.counts.tolist()) for part, draft in zip(source, (found, rest))]
        parts += [half.to(device) for pair in zip(*halves) for half in pair]
    return Draft(torch.cat(tokens), (found.cu.to(device) + rest.cu), rest.probs, torch.cat(rows), rest.ids)


def _either(lookup: CaughtUp, fallback: CaughtUp) -> CaughtUp:
    """The hits of both, from the first token on that both know about."""
    first = max(lookup.first, fallback.first)
    hits = [b if a is None else a for a, b in zip(lookup.hits[first - lookup.first:],
                                                  fallback.hits[first - fallback.first:])]
    return CaughtUp(max(lookup.tokens, fallback.tokens), first, hits)


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The composition that a ``name`` FIRST+REST stands for, else None."""
    first, plus, rest = name.partition("+")
    if plus and rest.startswith(TREE):
        raise ValueError(f"{name!r}: a composition is of chains; what {first} finds can be merged into the tree, as "
                         "one of its members")
    if not plus or first != "ngram" and not isinstance(context.family.drafters.get(first), DraftTable):
        return None
    lookup = NgramDrafter(*COMPOSED_NGRAM) if first == "ngram" else context.build(first)
    return CompositeDrafter(lookup, context.build(rest))
