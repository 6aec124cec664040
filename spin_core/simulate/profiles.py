"""What devices can do and how big models are: the constants behind every modelled number.

Peak numbers are the makers' data sheets. Nobody reaches them, so each profile says which share of the peak
it takes for granted: ``compute`` of the arithmetic and ``traffic`` of the memory bandwidth. These shares,
and the seconds and bytes with defaults below, are our assumptions, common values for well-written code, and
not fitted to any published result. For the reader's own machine :func:`fit` finds bandwidth and overhead
from measured passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spin_core.select.recording import Passes

GB = 1e9
KERNELS = 15            # per layer: norms, projections, rotations, cache, attention, gate, residuals; partly fused


@dataclass(frozen=True)
class Hardware:
    """One device. ``flops``: peak FLOP/s by dtype. ``bandwidth`` and ``link`` (to its peers): bytes/s.
    ``memory``: bytes.

    ``compute``, ``traffic``: the shares of the peaks that are reached. Seconds: ``launch``, that a kernel takes to
    launch; ``latency``: of an all-reduce of nothing; ``turn``: of the way to the host and back between two passes.
    ``reserve``: bytes that neither weights nor keys may use. ``source``: where the peaks come from.
    """

    name: str
    flops: dict[str, float]
    bandwidth: float
    memory: float
    link: float
    source: str
    compute: float = 0.6
    traffic: float = 0.8
    launch: float = 6e-6
    latency: float = 10e-6
    turn: float = 50e-6
    reserve: float = 1.5 * GB

    def arithmetic(self, dtype: str) -> float:
        """FLOP/s reached. Raises ValueError for a dtype that the profile does not know."""
        if dtype not in self.flops:
            raise ValueError(f"{self.name} has no {dtype}; it has {', '.join(self.flops)}")
        return self.flops[dtype] * self.compute

    @property
    def stream(self) -> float:
        """Bytes/s reached."""
        return self.bandwidth * self.traffic

    def describe(self) -> str:
        """One line for a figure's source."""
        return (f"{self.name} ({self.source}; assumed: {self.compute:.0%} of peak arithmetic, {self.traffic:.0%} of "
                f"peak bandwidth, {self.launch * 1e6:g} us per kernel, {KERNELS} kernels per layer)")


_V100 = {"fp16": 125e12, "fp32": 15.7e12}
HARDWARE = {h.name: h for h in (
    Hardware("V100-16GB", _V100, 900 * GB, 16 * GB, 150 * GB, "NVIDIA V100 SXM2 data sheet"),
    Hardware("V100-32GB", _V100, 900 * GB, 32 * GB, 150 * GB, "NVIDIA V100 SXM2 data sheet"),
    Hardware("A100-80GB", {"fp16": 312e12, "bf16": 312e12, "fp32": 19.5e12}, 2039 * GB, 80 * GB, 300 * GB,
             "NVIDIA A100 SXM data sheet"),
    Hardware("H100-80GB", {"fp16": 989e12, "bf16": 989e12, "fp8": 1979e12, "fp32": 67e12}, 3350 * GB, 80 * GB, 450 * GB,
             "NVIDIA H100 SXM data sheet, dense"),
)}

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


@dataclass(frozen=True)
class Model:
    """A Llama's dimensions. ``note`` says where they come from."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int = 32_000
    note: str = "published configuration"

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        return 2 * self.width + attention + 3 * self.width * self.ffn

    @property
    def read(self) -> int:
        """Parameters that a pass reads: layers, final norm, head. Of the embedding it reads a few rows
        only."""
        return self.layers * self.layer + self.width + self.vocab * self.width

    @property
    def parameters(self) -> int:
        """All of them; embedding and head are two matrices."""
        return self.read + self.vocab * self.width

    def kv_bytes(self, dtype: str) -> int:
        """Bytes of keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES[dtype]


def _llama(name: str, layers: int, width: int, heads: int, ffn: int, **more) -> Model:
    return Model(name, layers, width, heads, more.pop("kv_heads", heads), width // heads, ffn, **more)


_CHOSEN = "dimensions chosen by us to fit the number of parameters"
TARGETS = {m.name: m for m in (_llama("LLaMA-7B", 32, 4096, 32, 11008), _llama("LLaMA-13B", 40, 5120, 40, 13824),
                               _llama("LLaMA-30B", 60, 6656, 52, 17920))}
DRAFTERS = {m.name: m for m in (
    _llama("68M", 2, 768, 12, 3072, note="JackFram/llama-68m"),
    _llama("265M", 12, 1024, 16, 4096, note=f"JuncaiL/llama-265m; {_CHOSEN}, in the proportions of 68M"),
    _llama("616M", 18, 1536, 12, 4192, note=f"not identified in the paper; {_CHOSEN}"),
    _llama("1.1B", 22, 2048, 32, 5632, kv_heads=4, note="TinyLlama 1.1B"),
    _llama("1.4B", 24, 2048, 16, 5888, note=f"not identified in the paper; {_CHOSEN}"),
)}
TENSOR_PARALLEL = {"LLaMA-7B": 1, "LLaMA-13B": 2, "LLaMA-30B": 4}      # SPIN's evaluation: devices per target


def fit(model: Model, passes: Passes, dtype: str = "fp32", name: str = "this machine") -> Hardware:
    """The profile that explains measured ``passes`` of ``model``: roofline plus overhead, in the
    least-squares sense.

    Arithmetic comes from the slope between the passes of most rows, bandwidth and launches from the fewest: a pass
    of one row reads every weight once. Both shares are then 1, since the numbers are what was reached. Launches are
    not told apart from traffic by a single model, so ``launch`` is 0. Raises ValueError without two numbers of rows.
    """
    rows, seconds = np.array(passes.rows, float), np.array(passes.seconds)
    slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
    if slope <= 0:
        raise ValueError(f"fit: a pass over {rows[-1]:.0f} rows took no longer than one over {rows[-2]:.0f}")
    return Hardware(name, {dtype: 2 * model.read / slope}, model.read * BYTES[dtype] / seconds[0], float("inf"),
                    float("inf"), f"fitted to measured passes of {model.name}", compute=1.0, traffic=1.0,
                    launch=0.0, latency=0.0, turn=0.0, reserve=0.0)
