"""Measuring what attention costs on this device: once, in seconds, kept in the cache folder.

The constants are fitted to batches like those that are served, and err by a few percent there.
"""

import functools
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

import numpy as np
import torch

from spin_core.decompose.attend import Workspace
from spin_core.decompose.costs import FIELDS, Costs, Heads, typical, features
from spin_core.decompose.plan import Plan, plan
from spin_core.decompose.steps import step_class
from spin_core.files import cache_dir, save_json
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache
from spin_core.threads import cpu_name

VERSION = 7         # of the measurement: kept constants of another version are measured anew
ROUNDS = 9
TRIES, GOOD = 3, 0.15   # a fit is believed when its relative errors are this small (root of the mean square)
PATIENCE = 10.0         # seconds: a busy machine is not measured for longer, but by three rounds at least
WEIGHTS = 48 << 20  # bytes: more than the caches that the cores of a small machine share


def fit(plans: list[Plan], seconds: list[float], heads: Heads) -> Costs:
    """The constants that explain the measured seconds per layer best, in relative terms, none of them negative."""
    from scipy.optimize import nnls

    system = np.array([features(p, heads) for p in plans]) / np.array(seconds)[:, None]
    scale = np.maximum(system.max(0), 1e-30)            # the columns differ by ten orders of magnitude
    constants = nnls(system / scale, np.ones(len(plans)))[0] / scale
    return Costs(heads.kv, heads.group, **dict(zip(FIELDS, constants.tolist())))


@functools.cache
def measured(device: torch.device, dtype: torch.dtype, kv: int, group: int, dim: int, threads: int) -> Costs:
    """The constants of ``device`` for this shape of attention: kept ones, else measured now (seconds) and kept."""
    key = [VERSION, torch.__version__, _name(device), str(dtype), kv, group, dim, threads]
    path = cache_dir() / "attention" / (hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16] + ".json")
    with suppress(OSError, ValueError, KeyError, TypeError):        # absent or damaged: measure
        kept = json.loads(path.read_text())
        if kept["key"] == key:
            return Costs(**kept["costs"])
    began = time.monotonic()
    for _ in range(TRIES):
        costs, misfit = measure(device, dtype, Heads(kv, group), dim)
        if misfit < GOOD or time.monotonic() - began > PATIENCE:
            break
    if misfit >= GOOD:                                  # too busy to be measured; the next process may try
        return typical(dtype, Heads(kv, group), dim) if device.type == "cpu" else costs
    with suppress(OSError):                             # then the next process measures again
        save_json(path, {"key": key, "costs": asdict(costs)})
    return costs


@torch.inference_mode()
def measure(device: torch.device, dtype: torch.dtype, heads: Heads, dim: int, *,
            rounds: int = ROUNDS) -> tuple[Costs, float]:
    """Time plans that differ in what they charge, and fit the constants to the median round of each (not the fastest:
    calls that wake other threads vary).

    Returns the constants and how badly they explain the medians of the even and of the odd rounds, which differ on a
    busy machine: the root of the mean squared relative error.
    """
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


def timed(work: list[list[Callable[[], object]]], device: torch.device, rounds: int,
          patience: float = float("inf")) -> np.ndarray:
    """Seconds per call ``[len(work), rounds]`` of each list of calls in every round; fewer rounds, at least three,
    where they take more than ``patience`` seconds.

    The lists take turns, so that all meet the same noise. A CPU makes one call of a list in a round, with its keys and
    values in memory, not in a cache: between two layers a model reads its weights. On a GPU the list is recorded and
    replayed as a whole: the device's time, not Python's.
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
# that are served, each in the ways that come close to each other for it: constants are fitted where they are compared.
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
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{cpu_name()} {device.type}"
