"""Which code runs the plans of a strategy on a device."""

from spin_core.decompose.attend import TorchStep
from spin_core.decompose.plan import STRATEGIES
from spin_core.kv.cache import SlotCache
from spin_core.names import kernels, load_rivals

STEPS: dict[str, type] = {}         # of strategies that need no plan
NAMES = (*STRATEGIES, "flex")       # the last is a rival: its kernel skips blocks that no query sees


def step_class(strategy: str, cache: SlotCache) -> type[TorchStep]:
    """The Triton kernels for pieces on a CUDA device, torch everywhere else. Raises ValueError for an unknown name."""
    check_name(strategy)
    if strategy not in STRATEGIES:
        load_rivals()
        return STEPS[strategy]
    on_gpu = kernels("spin_core.decompose.kernels") if cache.k[0].device.type == "cuda" else None
    return on_gpu.KernelStep if on_gpu and strategy in ("auto", "decomposed") else TorchStep


def check_name(strategy: str) -> None:
    """Raise ValueError for a strategy that is not known."""
    if strategy not in NAMES:
        raise ValueError(f"unknown verification strategy {strategy!r}; known: {', '.join(NAMES)}")
