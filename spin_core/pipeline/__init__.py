"""Drafting and verifying side by side: micro-batches, executors, and the choice of how many (SPIN's pipeline)."""

from spin_core.pipeline.executor import (
    CudaStreams, Executor, Flight, Sequential, StageTimeout, Threads, make_executor,
)
from spin_core.pipeline.grouping import POLICIES, Item, split
from spin_core.pipeline.heuristic import Decision, Heuristic, Load
from spin_core.pipeline.schedule import DRAFT, STAGES, VERIFY, Schedule, Span, simulate

__all__ = [
    "DRAFT", "POLICIES", "STAGES", "VERIFY", "CudaStreams", "Decision", "Executor", "Flight",
    "Heuristic", "Item", "Load", "Schedule", "Sequential", "Span", "StageTimeout", "Threads",
    "make_executor", "simulate", "split",
]
