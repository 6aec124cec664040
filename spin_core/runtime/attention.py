"""The one file that makes the model library call our attention.

Transformers lets a caller register an attention function under a name. Ours stores the new keys and values in a
:class:`SlotCache` and attends each request over its own entries. The model's code runs as it is, or layer by layer as
a :class:`spin_core.runtime.block.Block` that computes the same; its own cache objects are not used. :func:`serving`
keeps the description of the batch, per thread, while a pass runs: so one model can serve several caches. How a batch is
attended (request by request, padded, in pieces) is the business of :mod:`spin_core.decompose`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from spin_core.decompose.attend import TorchStep
from spin_core.decompose.needs import LayerNeeds
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache

NAME = "spin_core_ragged"
_current = threading.local()


@dataclass
class Ragged:
    """What the attention function needs to know about one model pass, and the layers that called it.

    ``step`` attends the plain layers; ``special`` has the others' steps, with what these layers need.
    """

    batch: RaggedBatch
    cache: SlotCache
    step: TorchStep | None
    special: dict[int, tuple[TorchStep, LayerNeeds]] = field(default_factory=dict)
    layers: set[int] = field(default_factory=set)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store a layer's new ``key`` and ``value [N, kv_heads, head_dim]``; attend to them and what came before.

        ``query [heads, N, head_dim]`` -> ``[N, heads, head_dim]``.
        """
        self.layers.add(layer)
        self.cache.write(layer, self.batch.slot_of, self.batch.entry_of, key, value)
        if layer not in self.special:
            return self.step.attend(layer, query, scale)
        step, needs = self.special[layer]
        return step.attend(layer, query, scale, needs.softcap, needs.sinks)


def ragged_attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask=None, *,
                     scaling: float | None = None, **options) -> tuple[Tensor, None]:
    """Attention of one layer: ``query [1, heads, N, head_dim]``, ``key`` and ``value`` with the kv heads.

    Returns ``[1, N, heads, head_dim]``, contiguous as the library's own functions do. What ``options`` ask for is known
    since the model was loaded (:mod:`spin_core.runtime.layers`).
    """
    out = current().attend(module.layer_idx, query[0], key[0].transpose(0, 1), value[0].transpose(0, 1),
                           query.shape[3] ** -0.5 if scaling is None else scaling)
    return out.contiguous().unsqueeze(0), None


def current() -> Ragged:
    """What the pass that runs in this thread serves. Raises RuntimeError where none does."""
    ragged = getattr(_current, "ragged", None)
    if ragged is None:
        raise RuntimeError("this copy of the model runs only through its ModelRunner")
    return ragged


@contextmanager
def serving(ragged: Ragged) -> Iterator[None]:
    """Let the layers of a pass that runs in this thread find what it serves."""
    _current.ragged = ragged
    try:
        yield
    finally:
        _current.ragged = None


# Under a name without a mask function of its own the library builds no mask, and does not ask the device, pass by pass,
# whether the positions are those of one sequence. The ragged attention makes its own masks.
AttentionInterface.register(NAME, ragged_attention)


def attach(model: PreTrainedModel) -> None:
    """Make ``model`` call the ragged attention."""
    model.set_attn_implementation(NAME)
