"""Peaks of devices and dimensions of models: the constants behind every modelled number.

Peak numbers of GPUs are from the makers' data sheets. Programs do not reach them, so each profile says which share of
the peak is reached: ``compute`` of the arithmetic, ``traffic`` of the memory bandwidth when weights are read, and
``keys`` when keys and values are. For GPUs these shares, and the seconds and bytes with defaults below, are our
assumptions, common values for well-written code, and not fitted to any published result. One is measured: the
H100's ``keys`` come from the attention that ran there once.

Profiles of other machines are fitted, shares and overheads, to passes that were measured there: each
``figures/data/MACHINE/passes.json`` (``bench passes``) is one more entry of ``HARDWARE``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spin_core.lab.results import figures
from spin_core.lab.simulate.checks import finite, whole, within

GB = 1e9
DATA = figures.default_directory() / "data"
KERNELS = 15            # per layer: norms, projections, rotations, cache, attention, gate, residuals; partly fused


@dataclass(frozen=True)
class Hardware:
    """One device. ``flops``: peak FLOP/s by dtype. ``bandwidth`` and ``link`` (to its peers): bytes/s.
    ``memory``: bytes.

    ``compute``, ``traffic``, ``keys``: the shares of the peaks that are reached, ``factors``: how we know. Seconds:
    ``launch``, that a kernel takes to launch; ``latency``: of an all-reduce of nothing; ``turn``: of the way to the
    host and back between two passes. ``overlap``: a GPU computes while it reads and while kernels are launched, so the
    slowest counts; a CPU's cores do one thing at a time, so they add up. ``reserve``: bytes that neither weights nor
    keys may use. ``source``: where the peaks come from.
    """

    name: str
    flops: dict[str, float]
    bandwidth: float
    memory: float
    link: float
    source: str
    compute: float = 0.6
    traffic: float = 0.8
    keys: float = 0.8
    launch: float = 6e-6
    latency: float = 10e-6
    turn: float = 50e-6
    reserve: float = 1.5 * GB
    overlap: bool = True
    factors: str = "assumed"

    def __post_init__(self) -> None:
        where, tiny = f"Hardware {self.name}", math.ulp(0.0)
        within(where, tiny, math.inf, **self.flops, bandwidth=self.bandwidth, memory=self.memory, link=self.link,
               compute=self.compute, traffic=self.traffic, keys=self.keys)        # inf: it takes no time
        finite(where, launch=self.launch, latency=self.latency, turn=self.turn, reserve=self.reserve)

    def arithmetic(self, dtype: str) -> float:
        """FLOP/s reached. Raises ValueError for a dtype that the profile does not know."""
        if dtype not in self.flops:
            raise ValueError(f"{self.name} has no {dtype}; it has {', '.join(self.flops)}")
        return self.flops[dtype] * self.compute

    @property
    def stream(self) -> float:
        """Bytes/s reached when weights are read."""
        return self.bandwidth * self.traffic

    @property
    def gather(self) -> float:
        """Bytes/s reached when attention reads keys and values."""
        return self.bandwidth * self.keys

    def describe(self) -> str:
        """One line for a figure's source."""
        keys = "" if self.keys == self.traffic else f" ({self.keys:.0%} for keys and values)"
        return (f"{self.name} ({self.source}; {self.factors}: {self.compute:.0%} of peak arithmetic, "
                f"{self.traffic:.0%} of peak bandwidth{keys}, {self.launch * 1e6:.3g} us per kernel, {KERNELS} kernels "
                "per layer)")


def attention_share(report: dict, bandwidth: float) -> float:
    """The share of ``bandwidth`` at which decomposed attention reads keys and values, by a stored ``bench
    verify-attention``: the slope of its times over the bytes, so that what a call costs beside them does not count."""
    note = " ".join(report["notes"])
    kv_heads, head_dim = map(int, re.search(r"over (\d+) kv heads of (\d+)", note).groups())
    size = 4 if "float32" in note else 2
    read = [2 * kv_heads * head_dim * size * row["touched"] for row in report["rows"]]
    slope = np.polyfit(read, [row["decomposed_us"] * 1e-6 for row in report["rows"]], 1)[0]
    return float(1 / (slope * bandwidth))


def _h100() -> dict:
    """What is measured of the H100's factors, where the file is at hand."""
    path = DATA / "h100" / "verify_attention.json"
    if not path.exists():
        return {}
    share = attention_share(json.loads(path.read_text("utf-8")), 3350 * GB)
    return {"keys": share, "factors": "keys and values fitted to h100/verify_attention.json, the rest assumed"}


_V100 = {"fp16": 125e12, "fp32": 15.7e12}
HARDWARE = {h.name: h for h in (
    Hardware("V100-16GB", _V100, 900 * GB, 16 * GB, 150 * GB, "NVIDIA V100 SXM2 data sheet"),
    Hardware("V100-32GB", _V100, 900 * GB, 32 * GB, 150 * GB, "NVIDIA V100 SXM2 data sheet"),
    Hardware("A100-80GB", {"fp16": 312e12, "bf16": 312e12, "fp32": 19.5e12}, 2039 * GB, 80 * GB, 300 * GB,
             "NVIDIA A100 SXM data sheet"),
    Hardware("H100-80GB", {"fp16": 989e12, "bf16": 989e12, "fp8": 1979e12, "fp32": 67e12}, 3350 * GB, 80 * GB, 450 * GB,
             "NVIDIA H100 SXM data sheet, dense", **_h100()),
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

    def __post_init__(self) -> None:
        whole(f"Model {self.name}", 1, layers=self.layers, width=self.width, heads=self.heads, kv_heads=self.kv_heads,
              head_dim=self.head_dim, ffn=self.ffn, vocab=self.vocab)

    @classmethod
    def of(cls, name: str, model) -> Model:
        """The dimensions of a Llama of the transformers library; its head may be smaller than its vocabulary."""
        c = model.config
        return cls(name, c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.num_key_value_heads,
                   c.head_dim, c.intermediate_size, model.get_output_embeddings().weight.shape[0], "a loaded model")

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        return 2 * self.width + attention + 3 * self.width * self.ffn

    @property
    def stack(self) -> int:
        """Parameters of all layers: without embedding, final norm and head."""
        return self.layers * self.layer

    @property
    def read(self) -> int:
        """Parameters that a pass reads: layers, final norm, head. Of the embedding it reads a few rows only."""
        return self.stack + self.width + self.vocab * self.width

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


WORK = ("flop", "weights", "keys", "kernels")


def work(model: Model, rows: int, slots: int, context: int, dtype: str) -> dict[str, float]:
    """What a pass over ``rows`` tokens has to do, of ``slots`` requests with ``context`` cached tokens each: FLOP,
    bytes of weights, bytes of keys and values, kernels. These are the terms of the roofline."""
    each = rows // slots
    keys = slots * (context + each)
    scores = 4 * model.layers * model.heads * model.head_dim * keys * each
    return dict(zip(WORK, (2 * model.read * rows + scores, model.read * BYTES[dtype], model.kv_bytes(dtype) * keys,
                           KERNELS * model.layers)))


def fit(passes: Sequence[Mapping], peaks: Mapping[str, float], memory: float, *, name: str = "this machine",
        source: str = "measured passes", dtype: str = "fp32") -> Hardware:
    """The profile of a CPU that explains measured passes best, in relative terms.

    ``passes``: each with its :func:`work` and ``seconds``. ``peaks``: what the machine does at best, "flops" in FLOP/s
    and "bandwidth" in bytes/s. ``memory`` in bytes. As its parts add up, a pass is linear in what is sought:

        seconds = flop / arithmetic + weights / stream + keys / gather + kernels * launch + turn

    No part is negative, and nothing is read faster than at the peak: launches and weights both grow with the layers,
    and can hardly be separated otherwise. A ``compute`` above 1 says that arithmetic hides behind reading after all.
    """
    from scipy.optimize import lsq_linear

    system = np.array([[p[what] for what in WORK] + [1.0] for p in passes])
    system /= np.array([p["seconds"] for p in passes])[:, None]
    scale = system.max(0)                       # the columns differ by ten orders of magnitude
    least = np.array([0.0, 1.0, 1.0, 0.0, 0.0]) / peaks["bandwidth"]
    found = lsq_linear(system / scale, np.ones(len(system)), (least * scale, np.inf)).x / scale
    with np.errstate(divide="ignore"):
        compute, traffic, keys = (1 / (found[:3] * [peaks["flops"], peaks["bandwidth"], peaks["bandwidth"]])).tolist()
    misfit = float(np.sqrt(np.mean((system @ found - 1) ** 2)))
    return Hardware(name, {dtype: peaks["flops"]}, peaks["bandwidth"], memory, float("inf"),
                    "peaks measured", compute=compute, traffic=traffic, keys=keys, launch=float(found[3]), latency=0.0,
                    turn=float(found[4]), overlap=False,
                    factors=f"fitted to {source}, missed by {misfit:.0%} in the root mean square")


def fitted(path: str | Path) -> Hardware:
    """The profile of the machine on which ``bench passes`` wrote ``path``; named after its folder. ValueError for
    a file that is something else."""
    path = Path(path)
    try:
        report = json.loads(path.read_text("utf-8"))
        peaks = {row["peak"]: row["per_s"] for row in report["rows"] if "peak" in row}
        return fit([row for row in report["rows"] if row.get("fitted")], peaks, report["memory_gib"] * 2 ** 30,
                   name=path.parent.name, source=f"{path.parent.name}/{path.name}, {report['cpu']}, commit "
                   f"{(report['commit'] or 'unknown')[:7]}, {report['date'][:10]}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of bench passes ({type(error).__name__}: {error})") from error


HARDWARE |= {machine.name: machine for machine in map(fitted, sorted(DATA.glob("*/passes.json")))}
