"""Measuring fairly: the same prompts with every setting, in turns, and what the clock says about them."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from spin_core.engine import Engine, Prompt
from spin_core.lab.bench.drafters import ratio_error
from spin_core.lab.simulate.recording import Recording, verifications
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


def goodput(runs: Iterable[Run]) -> float:
    """Tokens per second while decoding, all runs together; the first step of each, which reads the prompt, left out.
    NaN if no step is left."""
    later = [event for run in runs for event in run[1:]]
    return sum(len(e.emitted) for e in later) / sum(e.step_seconds for e in later) if later else float("nan")


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
    """How often place 1, 2, ... of a draft is tested, and accepted, by workload and drafter, were a draft begun at
    every position of the recorded answers."""
    depth = np.arange(1, places + 1)[:, None]
    out: dict[str, dict] = {}
    for workload in dict.fromkeys(recording.workloads):
        some = recording.take([r for r, name in enumerate(recording.workloads) if name == workload])
        rows = {name: some.arms.index(name) for name in some.drafters}
        out[workload] = {name: (((some.proposed[row] >= depth) & (some.accepted[row] >= depth - 1)).sum(1),
                                (some.accepted[row] >= depth).sum(1)) for name, row in rows.items()}
    return out


def recorded_steps(recording: Recording, drafter: str, gamma: int) -> list[np.ndarray]:
    """(drafted, accepted) of every step ``[steps, 2]`` of each recorded answer, ``gamma`` tokens drafted all along."""
    row = recording.arms.index(drafter)
    proposed, accepted = recording.proposed[row].tolist(), recording.accepted[row].tolist()
    return [np.array(verifications(proposed[start:end], accepted[start:end], gamma))[:, 1:]
            for start, end in itertools.pairwise(recording.starts.tolist())]


def recorded_speed(recording: Recording, drafter: str, gamma: int) -> tuple[float, float]:
    """The speed-up over plain decoding at batch 1 by the recorded times of passes, and half of its 95 % interval."""
    draft, target = (recording.passes[name] for name in (drafter, "target"))
    lookup = drafter in recording.lookups           # one pass, however long the draft
    seconds = [((min(gamma, 1) if lookup else drafted) * draft(1) + target(1 + drafted)).sum()
               for drafted, _ in (steps.T for steps in recorded_steps(recording, drafter, gamma))]
    plain = recording.lengths * target(1)
    return float(plain.sum() / sum(seconds)), ratio_error(plain, seconds)
