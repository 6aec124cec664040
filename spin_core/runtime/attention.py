"""The one file that makes the model library call our attention.

Transformers lets a caller register an attention function under a name. Ours stores the new keys and values in a
:class:`SlotCache` and attends each request over its own entries. The model's code runs as it is, or layer by layer as
a :class:`spin_core.runtime.block.Block` that computes the same; its own cache objects are not used. The description of
the batch travels as the extra keyword ``ragged``, which most models hand through to every layer; for those that do not,
:func:`serving` keeps it, per thread, while the pass runs. So one model can serve several caches. How a batch is
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
                     scaling: float | None = None, ragged: Ragged | None = None, **options) -> tuple[Tensor, None]:
    """Attention of one layer: ``query [1, heads, N, head_dim]``, ``key`` and ``value`` with the kv heads.

    Returns ``[1, N, heads, head_dim]``, contiguous as the library's own functions do. What ``options`` ask for is known
    since the model was loaded (:mod:`spin_core.runtime.layers`).
    """
    ragged = at_hand(ragged)
    if ragged is None:
        raise RuntimeError(f"{type(module).__name__} was not told of the batch: this copy of the model runs only "
                           "through its ModelRunner")
    out = ragged.attend(module.layer_idx, query[0], key[0].transpose(0, 1), value[0].transpose(0, 1),
                        query.shape[3] ** -0.5 if scaling is None else scaling)
    return out.contiguous().unsqueeze(0), None


def at_hand(ragged: Ragged | None) -> Ragged | None:
    """The batch that a layer was handed, or the one that is served in this thread."""
    return ragged or getattr(_current, "ragged", None)


@contextmanager
def serving(ragged: Ragged) -> Iterator[None]:
    """Layers that are not handed the batch find it here, in this thread, while a pass runs."""
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
