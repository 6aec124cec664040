"""Two lookups in one: the request's own text and a table of the target's habits. In names: "ngram+TABLE".

A composition with a model chooses once per draft, because starting a model costs a pass. Looking up costs next to
nothing, so here every drafted token comes from whichever source is more often right.
"""

from spin_core.draft.build import BuildContext
from spin_core.draft.ngram import NgramDrafter
from spin_core.draft.table import TableDrafter
from spin_core.zoo.table import DraftTable

# Whose guess is taken: the first line whose source knows so many tokens of context. Shares of right guesses, counted on
# 106,000 tokens of answers that the table was not made from, stand beside the lines.
ORDER = (("text", 4),       # .86
         ("table", 5),      # .64; where both know, five tokens of the table beat three of the text by .64 to .53
         ("text", 2),       # .58 with three tokens, .46 with two
         ("table", 2),      # .41 with four tokens, .35 with three, .24 with two
         ("text", 1),       # .17
         ("table", 1))      # .15


class JoinedLookup(NgramDrafter):
    """Proposes, token by token, what followed the latest occurrence of the last few tokens in the request's text, or
    what the target usually says behind them, as ``ORDER`` ranks the two. One-hot, like both."""

    def __init__(self, table: TableDrafter) -> None:
        super().__init__(longest=4, shortest=1)
        self.name, self.table = f"{NgramDrafter.name}+{table.name}", table

    def _continuation(self, slot: int, count: int) -> list[int]:
        """At most ``count`` tokens behind the text in ``slot``."""
        text, _ = self._text(slot)
        reach, drafted = max(self.sizes[0], self.table.longest), []
        while len(drafted) < count:
            token = self._guess(slot, [*text[-reach:], *drafted][-reach:])
            if token is None:
                break
            drafted.append(token)
        return drafted

    def _guess(self, slot: int, recent: list[int]) -> int | None:
        """The token behind ``recent``, the end of the text and of what was drafted; None if no source knows one."""
        text, following = self._text(slot)
        known = {"table": self.table.follower(recent), "text": (0, None)}
        for n in self.sizes:
            if len(recent) >= n and (place := following.get(tuple(recent[-n:]))) is not None:
                known["text"] = n, text[place]
                break
        return next((known[source][1] for source, least in ORDER if known[source][0] >= least), None)


def from_name(name: str, context: BuildContext) -> JoinedLookup | None:
    """Text and table joined, if that is what ``name`` asks for, else None."""
    table = context.family.drafters.get(name.removeprefix(f"{NgramDrafter.name}+"))
    if not name.startswith(f"{NgramDrafter.name}+") or not isinstance(table, DraftTable):
        return None
    return JoinedLookup(TableDrafter(table))
