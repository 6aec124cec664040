"""What happened, as events; every metric is a function of them."""

import threading
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

import pandas as pd

from spin_core.files import writing

EVENTS = 100_000        # kept by default: about 65 MB


@dataclass
class Event:
    """One thing that happened to one request.

    ``kind`` is "submit", "admit", "step", "catch_up" or "finish"; ``time`` is seconds since the trace began, at its
    end.

    A "step" is one verification: the ``drafter``, the ids that it ``drafted``, how many of them the target accepted
    (behind a stop, too), what was emitted (accepted tokens and one of the target's own, cut at a stop; nothing, where
    only a part of a long prompt was read), and the committed length before it (``context``). ``draft_seconds`` is the
    pass of the request's drafter, ``target_seconds`` the target's, ``verify_seconds`` accept / reject: shared by the
    ``batch`` requests of the step, not split between them. ``draft_began`` and ``target_began`` are on the clock of
    ``time``. ``select_seconds`` is what the selector took since the step before. In a pipelined engine a step serves
    one micro-batch, number ``micro_batch`` of ``micro_batches``; its ``step_seconds`` run from its launch to its end,
    waiting included.

    Where a tree was drafted, ``drafted`` holds its nodes, and ``tree`` their ``parents`` (-1: the committed text), the
    accepted ``path``, per node the ``drafters`` that proposed it, and its depth, ``reach``. ``distributions`` holds p
    and q where the engine records them.

    "catch_up": ``drafter`` has read ``catch_up_tokens`` of a request's text without drafting for it;
    ``catch_up_seconds`` is this request's share of that pass, which may have run beside other work.
    """

    kind: str
    time: float
    request: int
    step: int = -1
    drafter: str | None = None
    drafted: list[int] = field(default_factory=list)
    accepted: int = 0
    emitted: list[int] = field(default_factory=list)
    context: int = 0
    batch: int = 0
    micro_batch: int = 0
    micro_batches: int = 1
    draft_began: float = 0.0
    target_began: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    step_seconds: float = 0.0
    select_seconds: float = 0.0
    catch_up_tokens: int = 0
    catch_up_seconds: float = 0.0
    reason: str | None = None
    tree: dict | None = None
    distributions: dict | None = field(default=None, repr=False)

    @property
    def reach(self) -> int:
        """How many tokens might have been accepted: the drafted ones, or the depth of the tree."""
        return self.tree["reach"] if self.tree else len(self.drafted)


class Trace:
    """The latest ``limit`` events (None: all), in order, with a clock; any thread may add, and times never go back.

    ``events`` is cut by a tenth when it is full, oldest first; ``dropped`` counts them. With ``spill``, a folder, they
    are written there first, as files that pandas reads, in the order of their names; where that fails, a warning says
    that they are lost. Streams miss nothing. ``steps``: how many steps were committed. ``decisions``: those of the
    pipeline's heuristic (:class:`spin_core.pipeline.Decision`).
    """

    def __init__(self, limit: int | None = EVENTS) -> None:
        if limit is not None and (not isinstance(limit, Integral) or limit < 1):
            raise ValueError(f"Trace: limit is a positive number of events or None, got {limit!r}")
        self.limit, self.dropped, self.steps = limit, 0, 0
        self.spill: str | Path | None = None
        self.origin = time.perf_counter()
        self.events: list[Event] = []
        self.decisions: list = []
        self._listeners: list[deque[Event]] = []
        self._lock = threading.Lock()

    def now(self) -> float:
        return time.perf_counter() - self.origin

    def add(self, kind: str, request: int, **fields) -> Event:
        with self._lock:
            event = Event(kind, self.now(), request, **fields)
            self.events.append(event)
            for listener in self._listeners:
                listener.append(event)
            if self.limit and len(self.events) > self.limit:
                self._cut(max(1, self.limit // 10))
        return event

    def _cut(self, count: int) -> None:
        cut, number = self.events[:count], self.dropped
        self.dropped += count
        del self.events[:count]
        if self.spill is not None:
            try:
                _write(to_pandas(cut), Path(self.spill) / f"events-{number:012}.parquet")
            except OSError as error:
                warnings.warn(f"{count} events of the trace are lost: {error}", RuntimeWarning, stacklevel=3)

    def listen(self) -> deque[Event]:
        """A queue that gets every event from now on, until :meth:`forget`."""
        with self._lock:
            self._listeners.append(deque())
            return self._listeners[-1]

    def forget(self, listener: deque[Event]) -> None:
        with self._lock:
            self._listeners = [other for other in self._listeners if other is not listener]

    def to_pandas(self) -> pd.DataFrame:
        return to_pandas(self.events)

    def to_parquet(self, path: str | Path) -> None:
        _write(self.to_pandas(), path)

    def metrics(self) -> dict:
        return metrics(self.to_pandas())


def _write(events: pd.DataFrame, path: str | Path) -> None:
    with writing(path) as part:
        events.to_parquet(part, index=False)


def to_pandas(events: list[Event]) -> pd.DataFrame:
    """One row per event, without the distributions."""
    rows = [{k: v for k, v in vars(e).items() if k != "distributions"} for e in events]
    return pd.DataFrame(rows, columns=[n for n in Event.__dataclass_fields__ if n != "distributions"])


def metrics(events: pd.DataFrame) -> dict:
    """Summarise a trace (live, or read back with ``pandas.read_parquet``).

    Everything is counted from what was emitted: drafted tokens behind a stop count neither as drafted nor as accepted.
    ``goodput``: emitted tokens per second of wall time, first submission to last event. ``acceptance_rate``: accepted /
    drafted tokens. ``tokens_per_verification``: emitted tokens per (request, step) that emitted.
    ``accepted_length_histogram``: {accepted tokens: how many verifications}. ``seconds``: wall time by phase.
    ``catch_up_tokens`` and ``catch_up_seconds``: what drafters read ahead, beside those phases or among "other". Mean
    seconds over requests: ``time_to_first_token``, ``time_per_output_token`` after the first; None where there are
    none.
    """
    steps = events[events.kind == "step"]
    lengths, trees = steps.emitted.map(len), steps.tree.map(lambda tree: isinstance(tree, dict))
    cut = (0 < lengths) & (lengths <= steps.accepted) & ~trees.astype(bool)
    steps = steps.assign(accepted=steps.accepted.clip(upper=lengths),
                         drafted=[e if is_cut else d for d, e, is_cut in zip(steps.drafted, steps.emitted, cut)])
    emitting = steps.assign(tokens=lengths)[lengths > 0]
    emitted = int(emitting.tokens.sum())
    drafted, accepted = int(steps.drafted.map(len).sum()), int(steps.accepted.sum())
    wall = float(events.time.max() - events.time.min()) if len(events) else 0.0
    per_step = steps.groupby("step").agg(target=("target_seconds", "first"), verify=("verify_seconds", "first"),
                                         whole=("step_seconds", "first"), select=("select_seconds", "first"))
    draft = float(steps.groupby(["step", "drafter"]).draft_seconds.first().sum())
    target, verify, select = (float(per_step[name].sum()) for name in ("target", "verify", "select"))
    by_request = emitting.groupby("request")
    first, last = by_request.time.min(), by_request.time.max()
    ttft = (first - events[events.kind == "submit"].groupby("request").time.min()).dropna()
    later = (by_request.tokens.sum() - by_request.tokens.first())[lambda n: n > 0]
    tpot = (last - first)[later.index] / later
    return {
        "requests": int(events.request.nunique()),
        "emitted": emitted,
        "drafted": drafted,
        "accepted": accepted,
        "wall_seconds": wall,
        "goodput": emitted / wall if wall else 0.0,
        "acceptance_rate": accepted / drafted if drafted else None,
        "tokens_per_verification": emitted / len(emitting) if len(emitting) else None,
        "accepted_length_histogram": {int(k): int(v) for k, v in emitting.accepted.value_counts().sort_index().items()},
        "seconds": {"draft": draft, "target": target, "verify": verify, "select": select,
                    "other": max(0.0, float(per_step.whole.sum()) - draft - target - verify - select)},
        "catch_up_tokens": int(events.catch_up_tokens.sum()),
        "catch_up_seconds": float(events.catch_up_seconds.sum()),
        "time_to_first_token": float(ttft.mean()) if len(ttft) else None,
        "time_per_output_token": float(tpot.mean()) if len(tpot) else None,
    }
