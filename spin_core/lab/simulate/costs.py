"""Seconds of passes: a roofline from a profile and dimensions, or a table that was measured.

A pass over n rows (tokens, of all requests together) of a model with N parameters and w bytes per value:

    products  = max(2 N n / arithmetic, N w / stream)           every weight is read once
    attention = layers * what the plan of :mod:`spin_core.decompose` charges with this device's constants
    pass      = max(products + attention, launches) + all-reduces + turn

A GPU computes while kernels are launched, so the slower of the two counts: small deep models wait for launches, large
ones do not. On a CPU these do not overlap: there every max is a sum. Over D devices (tensor parallel) weights, heads
and arithmetic are split, and two all-reduces per layer added.

Verification attends in one of two ways. "padded": every request has as many rows and keys as the longest. A batch
whose requests accept different numbers of tokens has to be padded anew at every step, so ``gathered`` keys and values
are copied first; a padded batch that stays in place does not pay this. "decomposed": SPIN's pieces, read in place.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from spin_core.decompose.costs import Costs
from spin_core.lab.plans import cheapest_width
from spin_core.lab.simulate.checks import finite, whole
from spin_core.lab.simulate.recording import Passes
from spin_core.lab.simulate.profiles import BYTES, KERNELS, Hardware, Model

STRATEGIES = ("padded", "decomposed")


class Verified(NamedTuple):
    """Seconds of a verification, the keys it computes on (padding included), and the width of its pieces."""

    seconds: float
    touched: int
    width: int


class Roofline:
    """Costs of a target and its drafters on profiles. ``shared``: drafters compute on the target's devices, one at a
    time; else each has a device of its own.

    ``devices``: over how many the target is spread. ``overhead``: seconds of a step beside the passes. Raises
    ValueError for an unknown strategy, for heads that do not divide among the devices, or weights that do not fit.
    """

    def __init__(self, target: Model, drafters: Mapping[str, Model], hardware: Hardware, *, devices: int = 1,
                 strategy: str = "decomposed", gathered: bool = True, shared: bool = False,
                 dtype: str = "fp16", overhead: float = 0.0) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"Roofline: unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
        if dtype not in BYTES:
            raise ValueError(f"Roofline: unknown dtype {dtype!r}; known: {', '.join(BYTES)}")
        whole("Roofline", 1, devices=devices)
        finite("Roofline", overhead=overhead)
        if target.kv_heads % devices:
            raise ValueError(f"Roofline: the {target.kv_heads} kv heads of {target.name} cannot be "
                             f"split over {devices} devices")
        self.target, self.drafters, self.hardware, self.devices = target, dict(drafters), hardware, devices
        self.strategy, self.gathered, self.shared, self.dtype = strategy, gathered, shared, dtype
        self.overhead = overhead
        self.attention = attention_costs(target, hardware, devices, dtype)
        if self.kv_room < 1:
            raise ValueError(f"Roofline: {target.name} does not fit on {devices} x {hardware.name}")
        self._per_key = {a: m.kv_bytes(dtype) / hardware.gather for a, m in self.drafters.items()}
        self._products = {a: _Products(m, hardware, 1, dtype) for a, m in self.drafters.items()}
        self._verify = _Products(target, hardware, devices, dtype)

    # ---- time

    def draft(self, arm: str, members: int, counts: Sequence[int], keys: float) -> float:
        """Seconds to draft for ``members`` requests, of which ``counts[k]`` get a token k. ``keys``: they attend
        together."""
        products, per_key = self._products[arm], keys * self._per_key[arm] / members
        return sum(products.seconds(n, per_key * n) for n in counts)

    def reading(self, arm: str, rows: int, beside: int) -> float:
        """Seconds that ``rows`` tokens a drafter has missed add to its first pass, over ``beside`` rows; with none
        beside, a pass of its own."""
        products = self._products[arm]
        return products.seconds(rows + beside, 0.0) - (products.seconds(beside, 0.0) if beside else 0.0)

    def verify(self, lengths: ndarray, drafted: ndarray, extra: int = 0, width: int = 0) -> Verified:
        """A target pass: committed tokens and drafted ones per request ``[B]``, and ``extra`` rows of prompts.
        ``width``: of the pieces last time; 0 searches anew."""
        drafts, size, charge = drafted.tolist(), len(lengths), self.attention   # short lists sum up faster than arrays
        queries = max(drafts) + 1
        if self.strategy == "padded":       # rows are padded as well
            rows, pieces, wide = size * queries, size, int(lengths.max()) + queries - 1
            layer = charge.whole_pool(pieces, 0, wide, queries) + self.gathering(int(lengths.sum()), pieces * wide)
        else:
            keys, rows = lengths + drafted, size + sum(drafts)
            width = width or cheapest_width(keys, queries, charge)
            counts = np.ceil(keys / width)
            cut = counts.tolist()
            pieces, wide = int(sum(cut)), math.ceil(max((keys / counts).tolist()))
            layer = charge.whole_pool(pieces, pieces - cut.count(1), wide, queries)
        seconds = self._verify.seconds(rows + extra, self.target.layers * layer) + self.overhead
        return Verified(seconds, pieces * wide, width)

    def gathering(self, true: int, touched: int) -> float:
        """Seconds per layer to copy keys and values into a padded batch: read the true ones, write the padded."""
        if not self.gathered:
            return 0.0
        per_key = self.target.kv_bytes(self.dtype) / self.target.layers / self.devices
        return (true + touched) * per_key / self.hardware.stream

    def passes(self) -> dict[str, Passes]:
        """The same without attention, as a recording keeps it: by rows, for every drafter and "target"."""
        rows = (1, 8, 64, 256, 1024, 4096)
        return {name: Passes(rows, tuple(products.seconds(n, 0.0) for n in rows))
                for name, products in {**self._products, "target": self._verify}.items()}

    # ---- memory

    @property
    def kv_room(self) -> int:
        """Tokens whose keys and values fit beside the target's weights, on all devices together."""
        room = self.devices * (self.hardware.memory - self.hardware.reserve)
        free = room - self.target.parameters * BYTES[self.dtype]
        return int(free // self.target.kv_bytes(self.dtype))

    def memory(self, lengths: Sequence[int]) -> float:
        """Bytes for weights and for a batch of these lengths; more than the devices have: out of memory.

        A padded batch holds every request at the length of the longest, and a copy of one layer if gathered.
        """
        padded = self.strategy == "padded"
        tokens = len(lengths) * max(lengths) if padded else sum(lengths)
        held = tokens * self.target.kv_bytes(self.dtype)
        copy = held / self.target.layers if padded and self.gathered else 0
        return self.target.parameters * BYTES[self.dtype] + held + copy + self.devices * self.hardware.reserve


class Tables:
    """The same that was measured: a table per drafter and for "target", on one device that all share.

    ``overhead``: seconds of a step beside the passes. ``lookups``: drafters that need one pass for a whole draft, and
    read nothing (as in a recording). Attention is in the tables, at the context they were measured with.
    """

    shared = True

    def __init__(self, passes: Mapping[str, Passes], overhead: float = 0.0, lookups: Sequence[str] = (),
                 most: int = 16_384) -> None:
        finite("Tables", overhead=overhead)
        whole("Tables", 1, most=most)
        self.tables = {name: p.table(most).tolist() for name, p in passes.items()}
        self.overhead, self.lookups = overhead, lookups

    def draft(self, arm: str, members: int, counts: Sequence[int], keys: float) -> float:
        table = self.tables[arm]
        return table[members] if arm in self.lookups else sum(table[n] for n in counts)

    def reading(self, arm: str, rows: int, beside: int) -> float:
        return 0.0 if arm in self.lookups else self.tables[arm][rows + beside] - self.tables[arm][beside]

    def verify(self, lengths: ndarray, drafted: ndarray, extra: int = 0, width: int = 0) -> Verified:
        rows = len(lengths) + int(drafted.sum()) + extra
        return Verified(self.tables["target"][rows] + self.overhead, int(lengths.sum() + drafted.sum()), 0)


class _Products:
    """Everything of a pass but attention."""

    def __init__(self, model: Model, hardware: Hardware, devices: int, dtype: str) -> None:
        self.per_row = 2 * model.read / hardware.arithmetic(dtype) / devices
        self.weights = model.read * BYTES[dtype] / hardware.stream / devices
        self.launches = KERNELS * model.layers * hardware.launch
        self.fixed, self.reduce, self.overlap = hardware.turn, 0.0, hardware.overlap
        if devices > 1:
            self.fixed += 2 * model.layers * hardware.latency
            exchanged = 2 * (devices - 1) / devices * model.width * BYTES[dtype]
            self.reduce = 2 * model.layers * exchanged / hardware.link

    def seconds(self, rows: int, attention: float) -> float:
        products, rest = self.per_row * rows, self.fixed + self.reduce * rows
        if not self.overlap:
            return products + self.weights + attention + self.launches + rest
        busy = (products if products > self.weights else self.weights) + attention      # quicker here than max()
        return (busy if busy > self.launches else self.launches) + rest


def attention_costs(model: Model, hardware: Hardware, devices: int = 1, dtype: str = "fp16") -> Costs:
    """The planner's constants on a profile, for one layer's share of one device.

    A key with its value is read once per piece; a query row of a piece is read, its partial result written in fp32,
    and read again to be merged. One kernel attends all pieces, one merges.
    """
    size, stream = BYTES[dtype], hardware.stream
    key, score = 2 * model.head_dim * size / hardware.gather, 4 * model.head_dim / hardware.arithmetic(dtype)
    return Costs(model.kv_heads // devices, model.heads // model.kv_heads, step_call=0.0,
                 unpooled_call=hardware.launch, unpooled_key=key, unpooled_score=score,
                 pool_call=hardware.launch, pool_width=0.0, pool_key=key, pool_score=score,
                 pool_query=model.head_dim * (size + 4) / stream,
                 merge_call=hardware.launch, merge_query=model.head_dim * 4 / stream)
