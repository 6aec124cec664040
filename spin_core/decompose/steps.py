"""Which code runs the plans of a strategy on a device."""

from __future__ import annotations

from spin_core.decompose.attend import TorchStep
from spin_core.decompose.flex import FlexStep
from spin_core.kv.cache import SlotCache

try:
    from spin_core.decompose.kernels import KernelStep
except ImportError:                 # no Triton on this platform
    KernelStep = TorchStep


def step_class(strategy: str, cache: SlotCache) -> type[TorchStep]:
    """The Triton kernels for pieces on a CUDA device, torch everywhere else."""
    if strategy == "flex":
        return FlexStep
    return KernelStep if strategy in ("auto", "decomposed") and cache.k[0].device.type == "cuda" else TorchStep
