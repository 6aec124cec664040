"""The one file that knows the model library's attention API.

Transformers lets a caller register an attention function under a name. Ours stores the new keys and values in a
:class:`SlotCache` and attends each request over its own entries. The model's code runs as it is, or layer by layer as
a :class:`spin_core.runtime.block.Block` that computes the same; its own cache objects are not used. The description of
the batch travels as the extra keyword ``ragged``, which the library hands through to every layer, so nothing here is
global and one model can serve several caches. How a batch is attended (request by request, padded, in pieces) is the
business of :mod:`spin_core.decompose`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from spin_core.decompose.attend import TorchStep
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache

NAME = "spin_core_ragged"
# Attention variants that change the result. A model that asks for one is refused: ignoring it would be silent.
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")


@dataclass
class Ragged:
    """What the attention function needs to know about one model pass, and the layers that called it."""

    batch: RaggedBatch
    cache: SlotCache
    step: TorchStep
    layers: set[int] = field(default_factory=set)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store a layer's new ``key`` and ``value [N, kv_heads, head_dim]``; attend to them and what came before.

        ``query [heads, N, head_dim]`` -> ``[N, heads, head_dim]``.
        """
        self.layers.add(layer)
        self.cache.write(layer, self.batch.slot_of, self.batch.entry_of, key, value)
        return self.step.attend(layer, query, scale)


def ragged_attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask=None, *,
                     scaling: float | None = None, ragged: Ragged | None = None, **options) -> tuple[Tensor, None]:
    """Attention of one layer: ``query [1, heads, N, head_dim]``, ``key`` and ``value`` with the kv heads.

    Returns ``[1, N, heads, head_dim]``. Raises NotImplementedError for attention variants it would get wrong.
    """
    if ragged is None:
        raise RuntimeError(f"{type(module).__name__} was not told of the batch: this copy of the model runs only "
                           "through its ModelRunner, and only if the model hands unknown keywords to its attention")
    for name in UNSUPPORTED:
        if options.get(name) is not None:
            raise NotImplementedError(f"{type(module).__name__} asks for {name}={options[name]!r}, "
                                      "which the ragged attention does not implement")
    out = ragged.attend(module.layer_idx, query[0], key[0].transpose(0, 1), value[0].transpose(0, 1),
                        query.shape[3] ** -0.5 if scaling is None else scaling)
    return out.unsqueeze(0), None


def refuse(model: PreTrainedModel) -> None:
    """Raise NotImplementedError for a model for which our attention would be wrong without noticing: the library puts a
    limit into the mask, which nobody asks for here, or turns positions by the longest text of the batch."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
            if isinstance(kind, str) and (kind == "longrope" or "dynamic" in kind):
                raise NotImplementedError(f"the longest text of a batch decides about positions (rope_type={kind!r})")
    config = model.config.get_text_config()
    if kinds := getattr(config, "layer_types", None):
        if other := sorted(set(kinds) - {"full_attention"}):
            raise NotImplementedError(f"it has layers of the kinds {', '.join(other)}")
    elif (window := getattr(config, "sliding_window", None)) is not None:
        raise NotImplementedError(f"it asks for sliding_window={window!r}, which is not implemented here")


# Under a name without a mask function of its own the library builds no mask, and does not ask the device, pass by pass,
# whether the positions are those of one sequence. The ragged attention makes its own masks.
AttentionInterface.register(NAME, ragged_attention)


def attach(model: PreTrainedModel) -> None:
    """Make ``model`` call the ragged attention."""
    model.set_attn_implementation(NAME)
