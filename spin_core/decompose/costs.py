"""What attention costs on this device: a few constants, measured once and kept in the cache folder.

The model is linear, as SPIN's is: calls, keys and values read, scores computed, copies of queries, merging. A key
(with its value) of one kv head costs something whoever looks at it, and something more for every query row that does.
It is fitted to batches like those that are served, and errs by a few percent there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from spin_core.decompose.layout import Heads

if TYPE_CHECKING:
    from spin_core.decompose.plan import Plan

VERSION = 7         # of the measurement: kept constants of another version are measured anew
ROUNDS = 9
TRIES, GOOD = 3, 0.15   # a fit is believed when its relative errors are this small (root of the mean square)
PATIENCE = 10.0         # seconds: a busy machine is not measured for longer, but by three rounds at least
WEIGHTS = 48 << 20  # bytes: more than the caches that the cores of a small machine share


@dataclass(frozen=True)
class Costs:
    """Seconds. ``*_key`` is per key and kv head, ``*_score`` per key, kv head and query row, ``*_query`` per query
    row and kv head of a request or a piece, ``*_call`` per call: of a request, of a pool, of a merge, and of a step
    whatever it does. ``alone_step`` is once per step that leaves anybody alone, as ``pool_call`` is for a pool: the
    first run of either code after other work is the slowest. ``pool_width`` is per key of a row: on a GPU all rows
    run at once, and a long one runs on when the others have finished."""

    kv: int
    group: int
    step_call: float
    alone_call: float
    alone_key: float
    alone_score: float
    pool_call: float
    pool_width: float
    pool_key: float
    pool_score: float
    pool_query: float
    merge_call: float
    merge_query: float
    alone_query: float = 0.0
    alone_step: float = 0.0

    def alone(self, lengths: np.ndarray, q_lens: np.ndarray) -> np.ndarray:
        """Seconds of every request when it stays alone."""
        rows = q_lens * self.group
        return self.alone_call + self.kv * (lengths * (self.alone_key + rows * self.alone_score)
                                            + rows * self.alone_query)

    def pool(self, counts: np.ndarray, width: np.ndarray | int, queries: int) -> np.ndarray:
        """Seconds of every request when it is in a pool of this width with ``counts`` pieces."""
        rows = queries * self.group
        return counts * self.kv * (width * (self.pool_key + rows * self.pool_score)
                                   + rows * (self.pool_query + self.merge_query * (counts > 1)))

    def calls(self, pooled: np.ndarray | bool, merged: np.ndarray | bool,
              width: np.ndarray | int) -> np.ndarray | float:
        """Seconds of a pool whatever is in it, if there is one, and of merging, if there is any."""
        return pooled * (self.pool_call + self.pool_width * width) + self.merge_call * merged

    def whole_pool(self, pieces: np.ndarray | int, merged: np.ndarray | int, width: np.ndarray | int,
                   queries: int) -> np.ndarray | float:
        """Seconds of a pool of so many ``pieces``, ``merged`` of them of requests cut into several: :meth:`calls` and
        the sum of :meth:`pool`, without a look at every request."""
        rows = queries * self.group
        piece = width * (self.pool_key + rows * self.pool_score) + rows * self.pool_query
        return self.kv * (pieces * piece + merged * (rows * self.merge_query)) + self.calls(True, merged > 0, width)


FIELDS = [name for name in Costs.__dataclass_fields__ if name not in ("kv", "group")]


def features(made: "Plan", heads: Heads) -> np.ndarray:
    """How often each constant is charged by a plan, in the order of ``FIELDS``: the cost model's equation once more,
    as a row of a linear system."""
    row = dict.fromkeys(FIELDS, 0.0) | {"step_call": 1.0}
    row["alone_step"] = float(bool(made.alone))
    for b in made.alone:
        keys, queries = heads.kv * made.lengths[b], made.q_lens[b] * heads.group
        row["alone_call"] += 1
        row["alone_key"] += keys
        row["alone_score"] += keys * queries
        row["alone_query"] += heads.kv * queries
    for pool in made.pools:
        queries, pieces = pool.queries * heads.group, len(pool.pieces)
        owners = [p.request for p in pool.pieces]
        merged = sum(owners.count(b) > 1 for b in owners)
        row["pool_call"] += 1
        row["pool_width"] += pool.width
        row["pool_key"] += heads.kv * pieces * pool.width
        row["pool_score"] += heads.kv * pieces * pool.width * queries
        row["pool_query"] += heads.kv * pieces * queries
        row["merge_call"] += merged > 0
        row["merge_query"] += heads.kv * merged * queries
    return np.array([row[name] for name in FIELDS])


def fit(plans: list["Plan"], seconds: list[float], heads: Heads) -> Costs:
    """The constants that explain the measured seconds per layer best, in relative terms, none of them negative."""
    from scipy.optimize import nnls

    system = np.array([features(p, heads) for p in plans]) / np.array(seconds)[:, None]
    scale = np.maximum(system.max(0), 1e-30)            # the columns differ by ten orders of magnitude
    constants = nnls(system / scale, np.ones(len(plans)))[0] / scale
    return Costs(heads.kv, heads.group, **dict(zip(FIELDS, constants.tolist())))


@functools.cache
def measured(device: torch.device, dtype: torch.dtype, kv: int, group: int, dim: int, threads: int) -> Costs:
    """The constants of ``device`` for this shape of attention: kept ones, else measured now (seconds) and kept."""
    from spin_core.files import cache_dir

    key = [VERSION, torch.__version__, _name(device), str(dtype), kv, group, dim, threads]
    path = cache_dir() / "attention" / (hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16] + ".json")
    try:
        kept = json.loads(path.read_text())
        if kept["key"] == key:
            return Costs(**kept["costs"])
    except (OSError, ValueError, KeyError, TypeError):
        pass                                            # absent or spoilt: measure
    began = time.monotonic()
    for _ in range(TRIES):
        costs, misfit = measure(device, dtype, Heads(kv, group), dim)
        if misfit < GOOD or time.monotonic() - began > PATIENCE:
            break
    if misfit >= GOOD:                                  # too busy to be measured; the next process may try
        return typical(dtype, Heads(kv, group), dim) if device.type == "cpu" else costs
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"key": key, "costs": asdict(costs)}, indent=1))
        os.replace(temporary, path)
    except OSError:
        pass                                            # then the next process measures again
    return costs


@torch.inference_mode()
def measure(device: torch.device, dtype: torch.dtype, heads: Heads, dim: int, *,
            rounds: int = ROUNDS) -> tuple[Costs, float]:
    """Time plans that differ in what they charge, and fit the constants to the median round of each.

    Not to the fastest: a call that wakes other threads has a good day now and then, and who makes many such calls is
    hardly ever so lucky with all of them. Returns the constants and how badly they explain the medians of the even and
    of the odd rounds: the root of the mean squared relative error. Where others are busy these differ, however well a
    line goes through them.
    """
    from spin_core.decompose.plan import plan
    from spin_core.decompose.strategies import step_class
    from spin_core.decompose.attend import Workspace
    from spin_core.kv.batch import RaggedBatch
    from spin_core.kv.cache import SlotCache

    room, layers, most = 1024, 2, 16
    cache = SlotCache(layers, most, heads.kv, room, dim, dtype, device)
    for tensor in cache.k + cache.v:
        tensor.normal_()
    workspace, work, plans = Workspace(), [], []
    for q_len in (1, 6):
        for lengths, strategy, width in _SAMPLES:
            count = len(lengths)
            batch = RaggedBatch.build(torch.zeros(count * q_len, dtype=torch.int64, device=device), list(range(count)),
                                      [q_len] * count, [length - q_len for length in lengths])
            plans.append(plan(lengths, batch.counts, strategy, width=width))
            step = step_class(strategy, cache)(plans[-1], batch, cache, heads, workspace)
            query = torch.randn(count * q_len, heads.kv * heads.group, dim, dtype=dtype, device=device).transpose(0, 1)
            work.append([lambda step=step, query=query, layer=layer: step.attend(layer, query, dim ** -0.5)
                         for layer in range(layers)])
    seconds = timed(work, device, rounds, PATIENCE)
    costs = fit(plans, np.median(seconds, 1).tolist(), heads)
    predicted = np.array([features(p, heads) for p in plans]) @ [getattr(costs, name) for name in FIELDS]
    halves = np.stack([np.median(seconds[:, ::2], 1), np.median(seconds[:, 1::2], 1)])
    return costs, float(np.sqrt(np.mean(np.square(1 - predicted / halves))))


def typical(dtype: torch.dtype, heads: Heads, dim: int) -> Costs:
    """What a core of a common CPU charges, by the bytes and the products of a key."""
    size = dtype.itemsize * dim
    return Costs(heads.kv, heads.group, step_call=3e-5, alone_step=3e-5, alone_call=1.5e-5, alone_key=1e-10 * size,
                 alone_score=5e-11 * dim, alone_query=3e-10 * size, pool_call=1e-4, pool_width=0.0, pool_key=2.4e-10 * size,
                 pool_score=4e-11 * dim, pool_query=7e-10 * size, merge_call=6e-5, merge_query=1e-10 * size)


def timed(work: list[list[Callable[[], object]]], device: torch.device, rounds: int,
          patience: float = float("inf")) -> np.ndarray:
    """Seconds per call ``[len(work), rounds]`` of each list of calls in every round; fewer rounds, at least three,
    where they take more than ``patience`` seconds.

    The lists take turns, so that all meet the same noise. A CPU makes one call of a list in a round, and finds its
    keys and values in memory, not in a cache: between two layers a model reads its weights. On a GPU the list is
    recorded and replayed as a whole: the device's time, not Python's.
    """
    at_once, weights = 1, None
    if device.type == "cuda":
        at_once, work = len(work[0]), [[_recorded(calls)] for calls in work]
    else:
        weights = torch.zeros(WEIGHTS // 4)
    seconds = np.zeros((len(work), rounds))
    began = time.monotonic()
    for round_ in range(rounds + 1):                    # the first round warms up
        if round_ > 3 and time.monotonic() - began > patience:
            return seconds[:, :round_ - 1]
        for i, calls in enumerate(work):
            if weights is not None:
                weights.add_(1)
            _wait(device)
            start = time.perf_counter()
            calls[round_ % len(calls)]()
            _wait(device)
            if round_:
                seconds[i, round_ - 1] = (time.perf_counter() - start) / at_once
    return seconds


def _recorded(calls: list[Callable[[], object]]) -> Callable[[], None]:
    """The calls as a CUDA graph, ready to be replayed."""
    for _ in range(2):
        for call in calls:                              # compiles kernels and takes buffers, outside of the recording
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


# Keys of every request, strategy, width. A few small batches, which tell a call from its work, and batches like those
# that are served, each in the ways that come close to each other for it: whoever is fitted there is compared there.
_LONG, _SPREAD = [1000] + [100] * 15, [60, 90, 120, 180, 250, 350, 500, 700]
_SAMPLES = [([24], "per-request", None), ([24] * 8, "per-request", None), ([192] * 4, "per-request", None),
            ([24] * 2, "decomposed", 24), ([24] * 16, "decomposed", 24), ([1000] * 2, "decomposed", 128),
            ([100] * 16, "per-request", None), ([100] * 16, "grouped", None),
            ([300] * 8, "per-request", None), ([300] * 8, "grouped", None),
            ([300] * 16, "per-request", None), ([300] * 16, "grouped", None),
            ([1000] * 4, "per-request", None), ([1000] * 4, "grouped", None), ([1000] * 4, "decomposed", 250),
            (_LONG, "per-request", None), (_LONG, "grouped", None), (_LONG, "decomposed", 100),
            (_LONG[:8], "per-request", None), (_LONG[:8], "grouped", None), (_LONG[:8], "decomposed", 100),
            (_SPREAD, "per-request", None), (_SPREAD, "decomposed", 128), (_SPREAD * 2, "per-request", None),
            (_SPREAD * 2, "decomposed", 128), ([300] * 2 + [30] * 12, "grouped", None)]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    from spin_core import provenance

    return f"{provenance.here()['cpu']} {device.type}"
