"""Several drafters vote (Minions, arXiv 2402.15678): the draft that most of the trusted ones would write.

All members draft. Their drafts form a trie in which a node weighs as much as the members through it together, and the
vote goes from the root to the heaviest child until there is none. Members that were right gain weight, others lose it.

The voted token is one-hot for the verifier. Testing it with the q of the member that it came from would be biased: it
was not drawn from that q, it had to win a vote. And where a token counts as one-hot the likeliest one is the best
proposal, so members draft greedily even for requests that sample.

In names: "vote:A,B,..."; "vote" alone is a vote of all the family's drafters and "ngram".
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spin_core.draft.base import Draft, Drafter, NullDrafter
from spin_core.draft.build import BuildContext, EnsembleDrafter
from spin_core.draft.trees import PREFIX as TREE, TreeDrafter
from spin_core.request import Request

MEMORY = 0.8        # the share of its weight that a member keeps in a step; the rest is how much of its draft was right
LEAST = 0.05        # the least weight: a member that was wrong can still break a tie, and come back


@dataclass
class _Ballot:
    """The members' last ``drafts`` for a request, behind ``length`` tokens of it, and their ``weights``."""

    weights: list[float]
    length: int = 0
    drafts: list[list[int]] = field(default_factory=list)


class VoteDrafter(EnsembleDrafter):
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
            for request in requests:        # the committed text will be the winner's, not the member's own draft
                member.rollback(request.slot, request.length)
        return Draft.one_hot([self._vote(r, list(of_request), count)
                              for r, of_request, count in zip(requests, zip(*drafts), counts)], device)

    def _vote(self, request: Request, drafts: list[list[int]], count: int) -> list[int]:
        """The winner among the members' ``drafts``; they are kept, to be compared with the text that comes."""
        ballot = self.ballots.setdefault(request.slot, _Ballot([1.0] * len(self.members)))
        came = request.tail(ballot.length) if ballot.drafts else []
        ballot.weights = [reweigh(w, draft, came) for w, draft in zip(ballot.weights, ballot.drafts or drafts)]
        ballot.length, ballot.drafts = request.length, drafts
        return walk(drafts, ballot.weights)[:count]

    def rollback(self, slot: int, length: int) -> None:
        if length == 0:
            self.ballots.pop(slot, None)
        super().rollback(slot, length)

    def available(self, request: Request, most: int) -> int:
        return super().available(request, most) if self.is_lookup else 0


def walk(drafts: Sequence[Sequence[int]], weights: Sequence[float]) -> list[int]:
    """The path from the root of the drafts' trie to its heaviest child, and on; among equals the first member's."""
    path: list[int] = []
    while True:
        scores: dict[int, float] = {}
        for draft, weight in zip(drafts, weights):
            if len(draft) > len(path) and list(draft[:len(path)]) == path:
                scores[draft[len(path)]] = scores.get(draft[len(path)], 0.0) + weight
        if not scores:
            return path
        path.append(max(scores, key=scores.get))


def reweigh(weight: float, draft: Sequence[int], came: Sequence[int]) -> float:
    """A member's new weight, given that the text went on with ``came`` where the member had proposed ``draft``."""
    tested = min(len(draft), len(came))
    if tested == 0:
        return weight
    right = next((i for i in range(tested) if draft[i] != came[i]), tested)
    return max(LEAST, MEMORY * weight + (1 - MEMORY) * right / tested)


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The drafters that vote, if ``name`` is vote or vote:A,B,..., else None."""
    if name != "vote" and not name.startswith("vote:"):
        return None
    members = name.removeprefix("vote:").split(",") if ":" in name else [*context.family.drafters, "ngram"]
    if len(set(members)) < len(members) or any(m == "" or m.startswith(("vote", TREE)) for m in members):
        raise ValueError(f"{name!r}: give drafters by name, each once, separated by commas")
    return VoteDrafter([context.build(member) for member in members])
