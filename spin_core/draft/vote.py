"""Several drafters vote (Minions, arXiv 2402.15678): the draft that most of the trusted ones would write.

All members draft. Their drafts form a trie in which a node weighs as much as the members through it together, and the
vote goes from the root to the heaviest child until there is none. Who was right gains weight, who was not loses it.

The voted token is one-hot for the verifier. Testing it with the distribution of the member it came from would be biased, for it
was not drawn from that distribution: it had to win a vote. And where a token counts as one-hot the likeliest is the best to
propose, so members draft greedily even for requests that sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from spin_core.draft.base import CaughtUp, Draft, Drafter, NullDrafter, never
from spin_core.draft.trees import TreeDrafter
from spin_core.request import Request

MEMORY = 0.8        # of a weight, what a step leaves; the rest is the share that was right in it
LEAST = 0.05        # of a weight: whoever was wrong may still break a tie, and come back


@dataclass
class _Ballot:
    """What a request's members have said last, behind ``length`` tokens, and what their word counts."""

    weights: list[float]
    length: int = 0
    drafts: list[list[int]] = field(default_factory=list)


class VoteDrafter(Drafter):
    """Proposes what its ``members`` vote for. Weights belong to a request: its text does not depend on its mates."""

    def __init__(self, members: Sequence[Drafter]) -> None:
        if not members:
            raise ValueError("a vote needs members")
        if wrong := [m.name for m in members if isinstance(m, (TreeDrafter, NullDrafter))]:
            raise ValueError(f"members of a vote draft chains, which {', '.join(wrong)} does not")
        self.members = list(members)
        self.name = f"vote:{','.join(m.name for m in members)}"
        self.max_context = max(m.max_context for m in members)
        self.catch_up_threshold = min(m.catch_up_threshold for m in members)
        self.is_lookup = all(m.is_lookup for m in members)
        self.ballots: dict[int, _Ballot] = {}

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        device, drafts = "cpu", []
        greedy = [replace(r, params=r.params.with_(temperature=0.0)) for r in requests]
        for member in self.members:
            rooms = [max(0, min(c, member.max_context - r.length)) for r, c in zip(requests, counts)]
            draft = member.propose(greedy, rooms)
            device = draft.tokens.device if draft.tokens.device.type != "cpu" else device
            drafts.append([part.tolist() for part in draft.tokens.cpu().split(draft.counts.tolist())])
            for request in requests:        # members go their own ways: what they drafted is not what will be kept
                member.rollback(request.slot, request.length)
        return Draft.one_hot([self._vote(r, list(said), count)
                              for r, said, count in zip(requests, zip(*drafts), counts)], device)

    def _vote(self, request: Request, drafts: list[list[int]], count: int) -> list[int]:
        """The winner among the members' ``drafts``; they are kept to be judged by what comes."""
        ballot = self.ballots.setdefault(request.slot, _Ballot([1.0] * len(self.members)))
        came = request.tail(ballot.length) if ballot.drafts else []
        ballot.weights = [judge(w, draft, came) for w, draft in zip(ballot.weights, ballot.drafts or drafts)]
        ballot.length, ballot.drafts = request.length, drafts
        return walk(drafts, ballot.weights)[:count]

    def rollback(self, slot: int, length: int) -> None:
        if length == 0:
            self.ballots.pop(slot, None)
        for member in self.members:
            member.rollback(slot, length)

    def available(self, request: Request, most: int) -> int:
        return max(m.available(request, most) for m in self.members) if self.is_lookup else 0

    def missing(self, request: Request) -> int:
        return max(m.missing(request) for m in self.members)

    def catch_up(self, requests: list[Request], stopped: Callable[[], bool] = never) -> list[CaughtUp]:
        """All members read. What they would have voted for is not worked out: that took their drafts, not one token."""
        found = [m.catch_up(requests, stopped) for m in self.members]
        return [CaughtUp(max(f.tokens for f in each)) for each in zip(*found)]


def walk(drafts: Sequence[Sequence[int]], weights: Sequence[float]) -> list[int]:
    """From the root of the drafts' trie to its heaviest child, and on; of equally heavy ones to that of the first
    member."""
    path: list[int] = []
    while True:
        scores: dict[int, float] = {}
        for draft, weight in zip(drafts, weights):
            if len(draft) > len(path) and list(draft[:len(path)]) == path:
                scores[draft[len(path)]] = scores.get(draft[len(path)], 0.0) + weight
        if not scores:
            return path
        path.append(max(scores, key=scores.get))


def judge(weight: float, draft: Sequence[int], came: Sequence[int]) -> float:
    """A member's new weight, when ``came`` is what followed where it had said ``draft``."""
    tested = min(len(draft), len(came))
    if tested == 0:
        return weight
    right = next((i for i in range(tested) if draft[i] != came[i]), tested)
    return max(LEAST, MEMORY * weight + (1 - MEMORY) * right / tested)
