"""Drafting and verifying side by side: micro-batches, executors, and the choice of how many (SPIN's pipeline).

Begin with ``reference.py``, the schedule of two stages in a few lines, then ``micro_batches.py``, which launches and
lands steps. ``heuristic.py`` finds the number of micro-batches from what ``rounds.py`` measures, ``grouping.py`` says
which requests share one, ``executor.py`` runs the stages in threads; ``asynchronous.py`` and ``device_step.py`` are the
mode for launch-bound devices. To change when steps run, touch ``micro_batches.py``; what a step does is in
:mod:`spin_core.step`.
"""

from spin_core.names import moved
from spin_core.pipeline.executor import (
    CudaStreams, Executor, Flight, Sequential, StageTimeout, Threads, make_executor,
)
from spin_core.pipeline.grouping import Item, split
from spin_core.pipeline.heuristic import Decision, Heuristic, Load
from spin_core.pipeline.reference import DRAFT, STAGES, VERIFY, Span

__all__ = [
    "DRAFT", "STAGES", "VERIFY", "CudaStreams", "Decision", "Executor", "Flight", "Heuristic", "Item", "Load",
    "Sequential", "Span", "StageTimeout", "Threads", "make_executor", "split",
]


__getattr__ = moved(__name__, "spin_core.lab.schedule", "Schedule", "simulate")
