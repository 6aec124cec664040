"""The memory of a verification: what has to be held, and what the attention allocates beside it."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from spin_core.decompose.attend import Workspace
from spin_core.decompose.costs import Costs, Heads
from spin_core.decompose.plan import plan
from spin_core.decompose.steps import step_class
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache
from spin_core.lab.bench.other_attention import PaddedView


@dataclass
class Memory:
    """Bytes: ``held``, the keys and values of all layers in the form that a way of attending needs;
    ``extra``, the most that it allocates beside them at any moment."""

    held: int
    extra: int

    @property
    def total(self) -> int:
        return self.held + self.extra


@torch.inference_mode()
def verification_memory(lengths: Sequence[int], queries: int, costs: Costs, *, layers: int, dim: int,
                        dtype: torch.dtype = torch.float32,
                        device: torch.device | str = "cpu") -> dict[str, Memory]:
    """The memory of verifying a batch, by way of attending (``WAYS`` of its plots).

    ``lengths`` are keys per request, ``queries`` in-flight tokens of each. "padded_view" holds a rectangle,
    as wide as the longest request; all others hold each request's own keys and no more, as a cache that hands
    out pages does, and allocate what they copy. ``held`` is counted, ``extra`` is measured on one layer:
    layers share their buffers.
    """
    heads, device = Heads(costs.kv, costs.group), torch.device(device)
    count, widest = len(lengths), max(lengths)
    cache = SlotCache(1, count, heads.kv, widest, dim, dtype, device)
    for tensor in cache.k + cache.v:
        tensor.zero_()
    tokens = torch.zeros(count * queries, dtype=torch.int64, device=device)
    batch = RaggedBatch.build(tokens, list(range(count)), [queries] * count, [n - queries for n in lengths])
    query = torch.zeros(heads.kv * heads.group, count * queries, dim, dtype=dtype, device=device)

    def attend(way: str) -> None:
        if way == "padded_view":
            step = PaddedView(batch, cache)
        else:
            strategy = way.replace("_", "-")
            made = plan(lengths, batch.counts, strategy, costs=costs)
            step = step_class(strategy, cache)(made, batch, cache, heads, Workspace())
        step.attend(0, query, dim ** -0.5)

    token = layers * 2 * heads.kv * dim * dtype.itemsize
    held = {"padded_view": count * widest * token}
    return {way: Memory(held.get(way, sum(lengths) * token), peak_bytes(lambda way=way: attend(way), device))
            for way in ("padded", "padded_view", "decomposed", "per_request")}


def peak_bytes(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The most bytes that torch held at any moment of ``call()`` and had not held before it.

    On a CPU the profiler reports every allocation and every release; on a GPU the allocator keeps count.
    """
    device = torch.device(device)
    call()                                          # whatever is made once and kept is not the call's
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with _hushed(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """The profiler writes to the process's standard error, past Python; keep it out of notebooks."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
