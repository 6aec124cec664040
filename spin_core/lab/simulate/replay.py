"""Run a policy over recorded text: the same classes that serve, at thousands of requests in seconds.

A replay is the simulator (:mod:`spin_core.lab.simulate.simulator`) on one device with the recording's own costs:

    step = sum over drafters of one pass per drafted position + the target's pass over all rows,

with continuous batching: when a request finishes, the next in the queue takes its place. The target's reading of
prompts, the same for every policy, is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from spin_core.lab.simulate.costs import Tables
from spin_core.lab.simulate.checks import whole
from spin_core.lab.simulate.recording import Recording
from spin_core.lab.simulate.simulator import System
from spin_core.select.base import Selector


@dataclass(frozen=True)
class Replay:
    """What happened: one entry per (step, request), in the order of the steps; and one per step.

    ``step``, ``request`` (index into the order of service), ``arm`` (index into ``arms``), ``position`` (tokens
    written before), ``drafted``, ``accepted``; ``seconds``: the request's share of the step, catching up and
    reading along included. ``step_seconds``: of every step. ``thinking``: seconds that the selector itself took on
    this machine; they are not part of the steps.
    """

    arms: tuple[str, ...]
    step: ndarray
    request: ndarray
    arm: ndarray
    position: ndarray
    drafted: ndarray
    accepted: ndarray
    seconds: ndarray
    step_seconds: ndarray
    thinking: float = 0.0

    @property
    def emitted(self) -> ndarray:
        return self.accepted + 1

    @property
    def tokens(self) -> int:
        return int(self.emitted.sum())

    @property
    def wall(self) -> float:
        """Seconds of all steps."""
        return float(self.step_seconds.sum())

    @property
    def goodput(self) -> float:
        """Emitted tokens per second."""
        return self.tokens / self.wall


def replay(recording: Recording, selector: Selector, *, batch: int = 8, capacities: Mapping[str, int] | None = None,
           order: Sequence[int] | None = None, free_switching: bool = False) -> Replay:
    """Serve the recorded requests with ``selector``, in ``order`` (indices; default: as recorded).

    ``free_switching``: catching up and reading along take no time; for ceilings. Raises ValueError for a batch
    below 1, for what is no selector, or one that picks a drafter which the recording does not have.
    """
    whole("replay", 1, batch=batch)
    if not hasattr(selector, "arms"):
        raise ValueError(f"replay: {selector!r} is no Selector; spin_core.select.make has them by name")
    served = recording if order is None else recording.take(order)
    most = batch * max(16, int((served.lengths + served.prompts).max(initial=0)))
    system = System(served, Tables(served.passes, lookups=served.lookups, most=most), selector, batch,
                    capacities=capacities, events=True, reads_prompts=False, free_reading=free_switching)
    system.run()
    entries = system.entries or [(np.zeros(0, int),) * 6]
    columns = [np.concatenate(column) for column in zip(*entries)]
    step = np.repeat(np.arange(len(system.entries)), [len(entry[0]) for entry in system.entries])
    seconds = np.bincount(step, columns[-1], len(system.entries))
    return Replay(system.arms, step, *columns, seconds, system.thinking)
