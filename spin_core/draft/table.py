"""Drafting from a table of the target's habits: the token that it usually puts behind the last few.

Prompt lookup knows this request's text; a table knows what the target says whatever the request: "Here are some",
"It is important to". It is counted once in the target's own answers (:mod:`spin_core.lab.distill.table`), as REST keeps
a datastore of text (He et al., arXiv 2311.08252) and token recycling the followers of each token (Luo et al., arXiv
2408.08696). A draft is a few bisections: the cheapest there is.
"""

from array import array
from bisect import bisect_left
from spin_core.draft.base import CaughtUp, Draft, Drafter, Stopped, never_stopped
from spin_core.draft.build import BuildContext
from spin_core.request import Request
from spin_core.zoo.table import DraftTable, key


class TableDrafter(Drafter):
    """Proposes the usual follower of the longest known context, again and again while there is one.

    One-hot; the last few tokens determine it, so all it keeps of a request is how far the request was scored.
    """

    max_context, is_lookup = 2**31, True

    def __init__(self, table: DraftTable) -> None:
        self.name, self.vocab_size, self.longest = table.name, table.vocab_size, table.longest
        # arrays, not tensors: bisecting takes a microsecond, asking a tensor for one element as long
        self.contexts = array("q", table.contexts.numpy().astype("int64").tobytes())
        self.followers = array("i", table.followers.numpy().astype("int32").tobytes())
        self.scored: dict[int, int] = {}        # per slot, how many tokens of its text were scored

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        return Draft.one_hot([self.continuation(r.tail(max(0, r.length - self.longest)), count) if count else []
                              for r, count in zip(requests, counts)])

    def continuation(self, ids: list[int], count: int) -> list[int]:
        """At most ``count`` tokens behind ``ids``."""
        drafted: list[int] = []
        recent = list(ids[-self.longest:])
        while len(drafted) < count and (token := self.follower(recent)[1]) is not None:
            drafted.append(token)
            recent = [*recent, token][-self.longest:]
        return drafted

    def follower(self, recent: list[int]) -> tuple[int, int | None]:
        """The length of the longest known context at the end of ``recent``, and its follower; (0, None) if none is."""
        for length in range(min(len(recent), self.longest), 0, -1):
            wanted = key(recent[-length:], self.vocab_size)
            at = bisect_left(self.contexts, wanted)
            if at < len(self.contexts) and self.contexts[at] == wanted:
                return length, self.followers[at]
        return 0, None

    def available(self, request: Request, most: int) -> int:
        return len(self.continuation(request.tail(max(0, request.length - self.longest)), most))

    def missing(self, request: Request) -> int:
        return max(0, request.length - max(self.scored.get(request.slot, 0), len(request.prompt_ids)))

    def catch_up(self, requests: list[Request], stopped: Stopped = never_stopped) -> list[CaughtUp]:
        """Nothing needs to be read, but ``hits`` are known."""
        return [self._score(r) for r in requests]

    def _score(self, request: Request) -> CaughtUp:
        missing = self.missing(request)
        ids, prompt = request.ids, request.length - missing
        guesses = [self.continuation(ids[max(0, t - self.longest):t], 1) for t in range(prompt, request.length)]
        self.scored[request.slot] = request.length
        return CaughtUp(0, prompt, [g == [ids[prompt + i]] if g else None for i, g in enumerate(guesses)])

    def rollback(self, slot: int, length: int) -> None:
        if length == 0:
            self.scored.pop(slot, None)


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The drafter of the table ``name`` of the family, else None."""
    source = context.family.drafters.get(name)
    return TableDrafter(source) if isinstance(source, DraftTable) else None
