"""Which code runs the plans of a strategy on a device."""

from spin_core.decompose.attend import TorchStep
from spin_core.decompose.plan import STRATEGIES
from spin_core.kv.cache import SlotCache
from spin_core.names import load_rivals

try:
    from spin_core.decompose.kernels import KernelStep
except ImportError:                 # no Triton on this platform
    KernelStep = TorchStep

STEPS: dict[str, type] = {}         # of strategies that need no plan
NAMES = (*STRATEGIES, "flex")       # the last is a rival: its kernel skips blocks that no query sees


def step_class(strategy: str, cache: SlotCache) -> type[TorchStep]:
    """The Triton kernels for pieces on a CUDA device, torch everywhere else. Raises ValueError for an unknown name."""
    check_name(strategy)
    if strategy not in STRATEGIES:
        load_rivals()
        return STEPS[strategy]
    return KernelStep if strategy in ("auto", "decomposed") and cache.k[0].device.type == "cuda" else TorchStep


def check_name(strategy: str) -> None:
    """Raise ValueError for a strategy that is not known."""
    if strategy not in NAMES:
        raise ValueError(f"unknown verification strategy {strategy!r}; known: {', '.join(NAMES)}")
