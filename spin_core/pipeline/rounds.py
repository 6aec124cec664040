"""Rounds of the pipeline: what the heuristic is told. In a round every micro-batch lands once."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from spin_core.pipeline.heuristic import Load
from spin_core.request import Request
from spin_core.step import Verified


@dataclass
class _Round:
    """Landings since every micro-batch had landed the last time; ``began`` is None where that was not in order."""

    began: float | None = None
    landed: int = 0
    requests: int = 0
    prefill: bool = False       # some requests read their prompts
    draft: float = 0.0          # seconds of all drafting, and of all verifying
    verify: float = 0.0


class Rounds:
    """Adds landings up to rounds."""

    def __init__(self) -> None:
        self._round = _Round()
        self._left = 0.0        # when the engine's last step ended

    def restart(self) -> None:
        """The round under way is none: something failed, or the micro-batches are formed anew."""
        self._round = _Round()

    def pause(self) -> None:
        """A step of the engine has ended."""
        self._left = time.perf_counter()

    def resume(self) -> None:
        """A step begins and nothing has been under way since the last one: that time does not count."""
        if self._round.began is not None:
            self._round.began += time.perf_counter() - self._left

    def landed(self, verified: Verified, micro_batches: int, running: Sequence[Request]
               ) -> tuple[Load, int, float, tuple[float, float]] | None:
        """A micro-batch has landed. If that ends a round: its load, the requests that it served, its seconds, and those
        of its stages. None if it does not, and for a round in which prompts were read: that is another load."""
        this, members = self._round, [work for group in verified.groups for work in group.members]
        this.landed += 1
        this.requests += len(members)
        this.prefill |= any(len(work.input_ids) > 1 + work.request.gamma for work in members)
        this.draft += sum(group.seconds for group in verified.groups)
        this.verify += verified.target_seconds + verified.verify_seconds
        if this.landed < micro_batches:
            return None
        now = time.perf_counter()
        self._round = _Round(began=now)
        if this.began is None or not running or this.prefill:
            return None
        context = sum(r.length for r in running) / len(running)
        load = Load(len(running), context, Counter(r.drafter for r in running))
        return load, this.requests, now - this.began, (this.draft, this.verify)
