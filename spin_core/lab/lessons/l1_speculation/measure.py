"""Measuring fairly: the same prompts with every setting, in turns, and what the clock says about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spin_core.engine import Engine, Prompt
from spin_core.lab.simulate.oracle import chain_counts
from spin_core.lab.simulate.recording import Recording
from spin_core.request import SamplingParams
from spin_core.trace import Event

Setting = tuple[str, int]
"""Drafter and gamma."""

Run = list[Event]
"""The verifications of one request, in order."""


def sweep(engine: Engine, prompts: Iterable[Prompt], params: SamplingParams,
          settings: Sequence[Setting]) -> dict[Setting, list[Run]]:
    """Run every prompt alone with every setting: one run per prompt, for each setting.

    The settings take turns on each prompt, so that a slow moment of the machine hits all alike. The first
    prompt runs once before the measurement, to warm the machine up.
    """
    prompts = list(prompts)
    engine.generate(prompts[:1], params)
    runs: dict[Setting, list[Run]] = {setting: [] for setting in settings}
    for prompt in prompts:
        for drafter, gamma in settings:
            start = len(engine.trace.events)
            engine.generate([prompt], params, drafter=drafter, gamma=gamma)
            runs[drafter, gamma].append([e for e in engine.trace.events[start:] if e.emitted])
    return runs


def full_steps(runs: Iterable[Run], gamma: int) -> list[Event]:
    """The steps a formula in gamma speaks of: all ``gamma`` tokens drafted, not cut off by a stop token.

    Near the end of an answer fewer tokens are worth drafting.
    """
    return [e for run in runs for e in run if len(e.drafted) == gamma and len(e.emitted) > e.accepted]


def goodput(runs: Iterable[Run]) -> tuple[float, float, float]:
    """Tokens per second while decoding: all runs together, the slowest run, the fastest.

    The first step of a run also reads the prompt, so it is left out; a run of one step says nothing. NaN if
    none is left.
    """
    later = [run[1:] for run in runs if len(run) > 1]
    tokens = np.array([sum(len(e.emitted) for e in run) for run in later])
    seconds = np.array([sum(e.step_seconds for e in run) for run in later])
    if not later:
        return float("nan"), float("nan"), float("nan")
    speeds = tokens / seconds
    return float(tokens.sum() / seconds.sum()), float(speeds.min()), float(speeds.max())


def phase_milliseconds(runs: Iterable[Run]) -> dict[str, float]:
    """The median time of a step, phase by phase; together about the median step. First steps do not count."""
    steps = [e for run in runs for e in run[1:]]
    if not steps:
        raise ValueError("phase_milliseconds: every run ended with its first step")
    phases = {"drafting": [e.draft_seconds for e in steps], "target pass": [e.target_seconds for e in steps],
              "accept / reject": [e.verify_seconds for e in steps],
              "the rest": [e.step_seconds - e.draft_seconds - e.target_seconds - e.verify_seconds
                           for e in steps]}
    return {name: 1000 * max(0.0, float(np.median(seconds))) for name, seconds in phases.items()}


def recorded_counts(recording: Recording, places: int) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """How often place 1, 2, ... of a draft is tested, and accepted, by workload and drafter, were a draft begun at every
    position of the recorded answers: thousands of drafts where a lesson's own run has a handful."""
    depth = np.arange(1, places + 1)[:, None]
    out: dict[str, dict] = {}
    for workload in dict.fromkeys(recording.workloads):
        some = recording.take([r for r, name in enumerate(recording.workloads) if name == workload])
        out[workload] = {}
        for name in some.drafters:
            accepted, proposed = (column[some.arms.index(name)] for column in (some.accepted, some.proposed))
            out[workload][name] = (((proposed >= depth) & (accepted >= depth - 1)).sum(1), (accepted >= depth).sum(1))
    return out


def recorded_tokens(recording: Recording, gamma: int) -> dict[str, np.ndarray]:
    """Tokens per target pass of every recorded request ``[R]`` with each drafter at ``gamma``."""
    return {name: recording.lengths / chain_counts(recording, recording.arms.index(name), gamma)[0]
            for name in recording.drafters}
