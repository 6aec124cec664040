"""Lesson 5's numbers: how long the stages take, and what the schedule makes of that."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spin_core.engine import Engine
from spin_core.lab.bench.pipeline import full_batch
from spin_core.lab.simulate.micro_batches import split_time
from spin_core.pipeline.reference import simulate, steady
from spin_core.request import SamplingParams


@dataclass(frozen=True)
class Stage:
    """What a stage takes for the whole batch, in seconds, and which share of that does not shrink with the batch."""

    seconds: float
    fixed: float


def stages(family, prompts: Sequence, params: SamplingParams, *, threads: int, gamma: int = 4) -> tuple[Stage, Stage]:
    """Drafting and verifying with ``threads`` threads, measured at the whole batch and at half of it.

    A line through both gives the share that is fixed: t(B) = a + b B, fixed = a / t(B).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, half = (_times(family, prompts[:n], params, gamma) for n in (len(prompts), len(prompts) // 2))
    finally:
        torch.set_num_threads(before)
    return tuple(Stage(w, min(1.0, max(0.0, 2 * h / w - 1))) for w, h in zip(whole, half))


def _times(family, prompts: Sequence, params: SamplingParams, gamma: int) -> tuple[float, float]:
    """Median seconds of a draft and of a verification while all of ``prompts`` decode."""
    engine = Engine(family, next(iter(family.drafters)), gamma, max_batch=len(prompts), max_len=1024)
    engine.generate(prompts, params)
    steps = {e.step: e for e in full_batch(engine.trace.events, len(prompts))}.values()
    return (statistics.median(e.draft_seconds for e in steps),
            statistics.median(e.target_seconds + e.verify_seconds for e in steps))


def modelled(draft: Stage, verify: Stage, counts: Sequence[int], turns: float, *, refill: bool = False) -> list[float]:
    """What the schedule makes of these stages at each count, relative to a round of ``turns`` seconds.

    The pipeline goes on across the borders of rounds, or with ``refill`` runs empty at each.
    """
    return [turns / round_seconds(draft, verify, m, refill) for m in counts]


def round_seconds(draft: Stage, verify: Stage, count: int, refill: bool) -> float:
    """Seconds per round with ``count`` equal groups."""
    times = [split_time(s.seconds, s.fixed, [1 / count] * count) for s in (draft, verify)]
    return simulate(*times).seconds if refill else steady(*times)


def climb(decisions: Sequence) -> list:
    """The decisions about the load under which most counts were measured, up to the one that knew them all."""
    climbs, current = [], []
    for decision in decisions:
        if decision.why in ("start with one", "another load"):
            current = []
        current.append(decision)
        if not decision.why.startswith("try"):
            climbs.append(list(current))
    return max(climbs, key=lambda c: (len(c[-1].throughput), sum(c[-1].throughput.values())), default=[])
