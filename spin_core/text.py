"""The text of an output, decoded as its tokens come."""

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

INCOMPLETE = "\ufffd"       # what a decoder writes for bytes that are no character, or no whole one yet


class OutputText:
    """What prompt and output decode to, less what the prompt does, up to the first of the ``stop`` strings.

    ``decode(ids) -> str``. The prompt counts because some tokenizers drop a space at the beginning of a text. ``text``
    holds whole characters only: bytes of an unfinished one at the end are held back until the rest comes.
    ``stopped``: a stop string was found; ``text`` then ends before it.

    Only the last few tokens are decoded again (a window that begins where a visible piece of text began), so the work
    per token does not grow with the text.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt_ids: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.text, self.stopped = "", False
        self._decode, self._stop = decode, stop
        self._ids = list(prompt_ids)
        self._start = 0                                     # of the window: where the last whole piece of text began
        self._settled = len(self._ids)                      # ... and where it ended
        self._shown: str | None = None                      # what was there of the window's text before the last tokens
        self._count = 0                                     # tokens of the output so far

    def extend(self, tokens: Iterable[int]) -> bool:
        """Add ``tokens``; whether a stop string is complete."""
        if self._shown is None:
            self._shown = self._decode(self._ids)
        tokens = list(tokens)
        window = self._decode(self._ids[self._start:] + tokens)     # first: where it raises, nothing has changed
        self._ids += tokens
        self._count += len(tokens)
        whole = window.rstrip(INCOMPLETE)
        new = whole[len(os.path.commonprefix([whole, self._shown])):]
        if new:
            self._find_stop(new)
            self._shown = whole
            if whole == window:
                self._start, self._settled = self._settled, len(self._ids)
                self._shown = self._decode(self._ids[self._start:])
        return self.stopped

    def catch_up(self, output_ids: Sequence[int]) -> bool:
        """:meth:`extend` by what ``output_ids`` holds beyond the tokens so far."""
        return self.extend(output_ids[self._count:]) if len(output_ids) > self._count else self.stopped

    def _find_stop(self, new: str) -> None:
        """Append ``new``, up to the first stop string, which may have begun before it."""
        longest = max(map(len, self._stop), default=1)
        searched = max(0, len(self.text) - longest + 1)
        self.text += new
        found = [at for at in (self.text.find(s, searched) for s in self._stop) if at >= 0]
        if found:
            self.text, self.stopped = self.text[:min(found)], True


def special_stops(tokenizer, stop: Sequence[str]) -> set[int]:
    """The ids of the special tokens among the stop strings: a decoded text leaves them out, so they end a request as
    tokens. ValueError for a stop string that holds a special token beside other text, which can never be found."""
    if not stop:
        return set()        # of a large tokenizer the list of special tokens takes a while
    special = {token.content: i for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items() if token.special}
    for string in stop:
        if string not in special and (parts := [name for name in special if name in string]):
            raise ValueError(f"the stop string {string!r} holds the special token {parts[0]!r} beside other text, and "
                             "special tokens are no part of a text: give the token as a stop string of its own")
    return {special[string] for string in stop if string in special}


def encode(family, prompt) -> list[int]:
    """The ids of a prompt: text and chat messages by the family's tokenizer. ValueError for what is no prompt."""
    if isinstance(prompt, str) or isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], dict):
        return family.encode(prompt)
    what = "a prompt is a string, a list of chat messages, or a list of token ids"
    if isinstance(prompt, (bytes, Mapping, Set)):       # one could count them out, but that is not meant
        raise ValueError(f"{what}: got {type(prompt).__name__}")
    try:
        return [operator.index(i) for i in prompt]      # integers of any kind, but no fractions
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from error
