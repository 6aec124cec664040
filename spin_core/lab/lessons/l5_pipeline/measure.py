"""The lesson on the pipeline: what the stages take, what the schedule makes of it, and checks of its exercises."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spin_core.lab.bench.pipeline import full_batch
from spin_core.engine import Engine
from spin_core.lab.lessons.exercises import Answer, attempt, check, close, said
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
    return [turns / _round(draft, verify, m, refill) for m in counts]


def _round(draft: Stage, verify: Stage, count: int, refill: bool) -> float:
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


@check
def check_finish(solution: Callable) -> Answer:
    """Exercise 5.1: ``solution(draft, verify)``, seconds per group, is when one round of the pipeline is over."""
    dice = random.Random(0)
    cases = [([1.0], [2.0]), ([1.0, 1.0], [1.0, 1.0]), ([2.0, 1.0], [1.0, 3.0])]
    cases += [([dice.uniform(0.1, 3) for _ in range(n)], [dice.uniform(0.1, 3) for _ in range(n)]) for n in (3, 4, 6)]
    for draft, verify in cases:
        answer, verdict = attempt(solution, list(draft), list(verify))
        if verdict:
            return verdict
        right = simulate(draft, verify).seconds
        if not close(answer, right, 1e-9):
            hint = ""
            if close(answer, sum(draft) + sum(verify), 1e-9):
                hint = " That is taking turns: a group can be verified while the next is drafted."
            elif close(answer, max(sum(draft), sum(verify)), 1e-9):
                hint = " The ideal forgets that the first group cannot be verified before it is drafted."
            return Answer("wrong", f"For draft = {_short(draft)} and verify = {_short(verify)} it is over after "
                                   f"a number of seconds, {right:.3g}; yours is {said(answer)}.{hint}")
    return Answer("right", "Verifying starts when its draft is there and the last verification is over: "
                           "the later of the two.")


@check
def check_best_count(solution: Callable) -> Answer:
    """Exercise 5.2: ``solution(draft, verify, fixed, most)`` is the count in 1 .. most with the shortest round, of a
    pipeline that runs empty at the end of every round."""
    for draft, verify, fixed in ((1.0, 1.0, 0.0), (1.0, 1.0, 0.05), (1.0, 1.0, 0.2), (1.0, 1.0, 1.0), (0.2, 1.0, 0.1),
                                 (0.5, 1.0, 0.02), (4.0, 1.0, 0.05)):
        called = f"best_count({draft}, {verify}, {fixed}, 9)"
        answer, verdict = attempt(solution, draft, verify, fixed, 9, called=called)
        if verdict:
            return verdict
        if isinstance(answer, bool) or not isinstance(answer, (int, np.integer)) or not 1 <= answer <= 9:
            return Answer("wrong", f"best_count({draft}, {verify}, {fixed}, 9) should be a number in 1 ... 9, "
                                   f"it is {answer!r}.")
        rounds = {m: _round(Stage(draft, fixed), Stage(verify, fixed), m, refill=True) for m in range(1, 10)}
        best = min(rounds, key=rounds.get)
        if rounds[answer] > rounds[best] * (1 + 1e-6):
            return Answer("wrong", f"For draft {draft}, verify {verify} and a fixed share of {fixed}, {answer} "
                                   f"micro-batches take {rounds[answer]:.3f} a round, {best} take {rounds[best]:.3f}.")
    return Answer("right", "More groups shorten what is not overlapped at both ends; each pays the fixed share again.")


def _short(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{v:.2g}" for v in values) + "]"
