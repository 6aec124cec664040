"""Lesson 4's numbers: lengths of the requests of a batch, and what padding costs: passes of the target with a padded
attention and without, in turns."""

import copy
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from spin_core.decompose.strategies import Attention
from spin_core.kv.cache import SlotCache
from spin_core.lab.bench.other_attention import PaddedView
from spin_core.lab.results.stored import Stored, stored
from spin_core.runtime.runner import ModelRunner
from spin_core.workloads import load_workload
from spin_core.zoo import Family

WAYS = ("padded", "padded_view", "auto")


class Lengths:
    """Draws the lengths of requests that are served together, as continuous batching mixes them.

    Each is a prompt of the workload's test split, and as much of an answer of at most ``answer`` tokens as
    has been written so far, which may be any part of it.
    """

    def __init__(self, family: Family, workload: str = "mix", answer: int = 256) -> None:
        prompts = load_workload(workload, split="test")
        self.prompts = [len(family.encode(prompt.messages)) for prompt in prompts]
        self.answer = answer

    def draw(self, count: int, *, seed: int = 0, new: int = 0) -> list[int]:
        """Tokens of ``count`` requests, ``new`` in-flight ones included. Longer lists of a seed begin with
        the shorter."""
        rng = np.random.default_rng(seed)
        return [int(rng.choice(self.prompts) + rng.integers(0, self.answer + 1)) + new for _ in range(count)]

    @property
    def longest(self) -> int:
        """Tokens of the longest request that may be drawn."""
        return max(self.prompts) + self.answer


def skewed_lengths(count: int, longest: int, skew: float, shortest: int = 8) -> list[int]:
    """``count`` lengths from ``longest`` down to (1 - skew) times it, each shorter by the same factor than
    the one before, and none below ``shortest``. A skew of 0 makes them equal."""
    ends = np.log([longest, max((1 - skew) * longest, shortest)])
    return [int(n) for n in np.exp(np.linspace(*ends, count)).round()]


class PassTimer:
    """Times passes of a family's target over requests whose caches are as long as one likes.

    The caches hold random keys and values, and batches write over each other's: how long a pass takes depends on their
    number alone.
    """

    def __init__(self, family: Family, requests: int, max_len: int) -> None:
        self.runner = ModelRunner(family.target, requests, max_len, family.vocab_size)
        self.whole = self.runner.cache
        self.heads = self.runner.attention.heads
        for tensor in self.whole.k + self.whole.v:
            tensor.normal_()

    def seconds(self, batches: Sequence[Sequence[int]], gamma: int, repeats: int = 3) -> list[dict[str, list[float]]]:
        """Of each of ``batches`` the seconds of ``repeats`` passes that verify ``gamma`` drafted tokens of every
        request, in three ways.

        "padded" gathers the keys into a rectangle as wide as the longest request, "padded_view" has them there already,
        "auto" is the engine's own choice. A batch is given by the tokens in its requests' caches. All batches take
        turns, and within a turn all ways, there and back again: the n-th passes of a batch were timed side by side, so
        that a slow minute of the machine slows them all. Passes over the largest batches warm up.
        """
        total, ways = self.heads.kv * self.heads.group, {}
        largest: dict[int, Sequence[int]] = {}
        for lengths in sorted(batches, key=sum):
            largest[len(lengths)] = lengths
        for count in largest:
            cache = first_slots(self.whole, count)
            view = SimpleNamespace(step=lambda batch, cache=cache: PaddedView(batch, cache))
            ways[count] = cache, {"padded": Attention("padded", total, cache), "padded_view": view,
                                  "auto": Attention("auto", total, cache)}
        out = [{way: [] for way in WAYS} for _ in batches]
        for count, (cache, attentions) in ways.items():
            for way in WAYS:
                self._pass(cache, attentions[way], largest[count], gamma + 1)
        for turn in range(repeats):
            for lengths, taken in zip(batches, out):
                cache, attentions = ways[len(lengths)]
                for way in WAYS[::-1] if turn % 2 else WAYS:
                    taken[way].append(self._pass(cache, attentions[way], lengths, gamma + 1))
        return out

    def _pass(self, cache: SlotCache, attention, lengths: Sequence[int], queries: int) -> float:
        runner, count = self.runner, len(lengths)
        runner.cache, runner.attention, cache.lengths = cache, attention, list(lengths)
        tokens = torch.ones(count * queries, dtype=torch.int64)
        self._wait()
        start = time.perf_counter()
        runner.forward(list(range(count)), [queries] * count, tokens, list(range(count * queries)))
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.runner.device.type == "cuda":
            torch.cuda.synchronize(self.runner.device)


def first_slots(cache: SlotCache, count: int) -> SlotCache:
    """The first ``count`` slots as a cache of their own, in the same memory."""
    part = copy.copy(cache)
    part.k, part.v = [k[:count] for k in cache.k], [v[:count] for v in cache.v]
    part.lengths = cache.lengths[:count]
    return part


def share_lost(seconds: Sequence[Mapping[str, Sequence[float]]], way: str) -> tuple[float, float, float]:
    """Share of the speed-up lost with ``way`` instead of "auto": mean, least and most over several batches; of each
    batch the median over its rounds, for passes of one round were timed side by side.

    A speed-up is the time of plain decoding over that of speculation. Where drafts cost nothing, or are
    hidden behind the verification as in SPIN, the time of speculation is that of the verifying pass, and
    1 - auto / way is lost. Negative where ``way`` is faster.
    """
    shares = [float(np.median([1 - auto / other for auto, other in zip(one["auto"], one[way])])) for one in seconds]
    return float(np.mean(shares)), min(shares), max(shares)


def attention_times(row: Mapping) -> dict[str, float]:
    """Microseconds per layer by way of attending, of a row of ``bench verify-attention``."""
    return {name.removesuffix("_us"): us for name, us in row.items() if name.endswith("_us") and name != "plan_us"}


def attention_elsewhere(queries: int, directory: str | Path | None = None) \
        -> dict[str, tuple[dict[str, dict[str, float]], Stored]]:
    """What ``bench verify-attention``, alone or within ``bench gpu``, left in ``figures/data``: by machine, at the
    largest batch there, the times by skew and way, for requests with ``queries`` in-flight tokens."""
    out = {}
    for found in stored("verify-attention", lambda row: row["q"] == queries, directory):
        largest = max(row["batch"] for row in found.rows)
        out[f"{found.machine}, batch {largest}"] = {
            row["skew"]: attention_times(row) for row in found.rows if row["batch"] == largest}, found
    return out
