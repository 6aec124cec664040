"""Prompt lookup: copy what followed the last few tokens when they last occurred. In names: "ngram"."""

from spin_core.draft.base import CaughtUp, Draft, Drafter, Stopped, never_stopped
from spin_core.draft.build import BuildContext
from spin_core.request import Request


class NgramDrafter(Drafter):
    """Copies the continuation of the latest earlier occurrence of the current suffix, in prompt and output.

    The longest suffix of at most ``longest`` tokens that has occurred before wins. It costs no model pass, and
    its proposals are one-hot: the text so far determines them. Strong where the answer repeats its context.
    :func:`spin_core.draft.reference.prompt_lookup` is the same without an index.
    """

    name = "ngram"
    max_context, is_lookup = 2**31, True

    def __init__(self, longest: int = 3, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"NgramDrafter: 1 <= shortest <= longest, got {shortest} and {longest}")
        self.sizes = range(longest, shortest - 1, -1)
        # per slot: the tokens read so far, and for every n-gram among them the index of the token behind it
        self.index: dict[int, tuple[list[int], dict[tuple[int, ...], int]]] = {}

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        return Draft.one_hot([self._lookup(r, count) if count else [] for r, count in zip(requests, counts)])

    def missing(self, request: Request) -> int:
        return max(0, request.length - len(self.index.get(request.slot, ([],))[0]))

    def catch_up(self, requests: list[Request], stopped: Stopped = never_stopped) -> list[CaughtUp]:
        return [self._read(r) for r in requests]

    def available(self, request: Request, most: int) -> int:
        return len(self._lookup(request, most))

    def _lookup(self, request: Request, count: int) -> list[int]:
        self._read(request)
        return self._continuation(request.slot, count)

    def _text(self, slot: int) -> tuple[list[int], dict[tuple[int, ...], int]]:
        return self.index.setdefault(slot, ([], {}))

    def _read(self, request: Request) -> CaughtUp:
        """Index what is new of the committed sequence."""
        seen, following = self._text(request.slot)
        prompt = len(request.prompt_ids)
        found = CaughtUp(0, max(prompt, len(seen)))
        for token in request.tail(len(seen)):
            if len(seen) >= prompt:
                guess = self._continuation(request.slot, 1)
                found.hits.append(guess == [token] if guess else None)
            for n in self.sizes:
                if len(seen) >= n:
                    following[tuple(seen[-n:])] = len(seen)
            seen.append(token)
            found.tokens += 1
        return found

    def _continuation(self, slot: int, count: int) -> list[int]:
        """At most ``count`` tokens that followed the latest occurrence of the text's longest known suffix."""
        seen, following = self._text(slot)
        for n in self.sizes:
            start = following.get(tuple(seen[-n:]))
            if start is not None:
                return seen[start:start + count]
        return []

    def rollback(self, slot: int, length: int) -> None:
        if length == 0:                 # only committed tokens are ever read, so nothing else needs forgetting
            self.index.pop(slot, None)


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The prompt lookup if ``name`` is "ngram", else None."""
    return NgramDrafter() if name == "ngram" else None
