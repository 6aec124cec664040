"""How far a run is and how long it may still take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """What is done and what is left, as a live display on a terminal and as one line per event elsewhere.

    What is left is estimated from how long each notebook took last time; a notebook never finished before
    counts like the mean of those that have.
    """

    names: list[str]
    last: dict[str, float]              # seconds by name, from earlier runs
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False, soft_wrap=True)
        self.pending = list(self.names)
        self.current: tuple[str, float, int, int] | None = None        # name, started, cells done, cells
        self.live: Any = None

    def __enter__(self) -> Progress:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            from rich.live import Live

            self.live = Live(
                get_renderable=self._picture, console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def start(self, name: str, cells: int) -> None:
        self.pending.remove(name)
        self.current = (name, time.monotonic(), 0, cells)
        if not self.live:
            self.say(f"{self._number(name)} {name}: running, {cells} cells, {self._left_words()}")

    def cell(self, done: int, total: int) -> None:
        name, started, *_ = self.current
        self.current = (name, started, done, total)

    def finish(self, name: str, words: str, seconds: float | None = None) -> None:
        """``seconds``: how long the notebook took, if it was run to its end."""
        self.current = None
        if name in self.pending:                        # skipped, or refused before it started
            self.pending.remove(name)
        if seconds is not None:
            self.last[name] = seconds
        self.say(f"{self._number(name)} {name}: {words}")

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)
        self.console.file.flush()

    def left(self) -> float | None:
        """Seconds until the end, or None while there is nothing to judge by."""
        known = [self.last[name] for name in self.names if name in self.last]
        mean = sum(known) / len(known) if known else None
        seconds = [self.last.get(name, mean) for name in self.pending]
        if self.current:
            name, started, done, total = self.current
            elapsed = time.monotonic() - started
            if name in self.last:
                seconds.append(max(0.0, self.last[name] - elapsed))
            elif done:                                  # a first guess: cells of equal length
                seconds.append(elapsed / done * (total - done))
            else:
                seconds.append(mean)
        return None if None in seconds else sum(seconds)

    def _left_words(self) -> str:
        left = self.left()
        return "time left unknown" if left is None else f"about {clock(left)} left"

    def _number(self, name: str) -> str:
        return f"[{self.names.index(name) + 1}/{len(self.names)}]"

    def _picture(self) -> str:
        """What a terminal shows below the lines so far."""
        number = min(len(self.names) - len(self.pending) + (not self.current), len(self.names))
        words = [f"notebook {number} of {len(self.names)}"]
        if self.current:
            name, started, done, total = self.current
            words += [name, f"cell {min(done + 1, total)} of {total}, {clock(time.monotonic() - started)}"]
        return " · ".join([*words, f"{clock(time.monotonic() - self.started)} elapsed, {self._left_words()}"])


def clock(seconds: float) -> str:
    """``seconds`` as 8 s, 3:05 or 1:02:03."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
