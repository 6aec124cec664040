"""Keeping what a model computes at every token, for drafters that read it (:mod:`spin_core.zoo.fed`)."""

import torch
from torch import Tensor
from transformers import PreTrainedModel


def record_states(model: PreTrainedModel, slots: int, max_len: int, layers: tuple[int, ...]) -> Tensor:
    """Have every pass of ``model`` write its states into the tensor ``[slots, max_len, width]`` that is returned.

    They are written like the cache: entries of committed tokens are right, the others stale. The first ``hidden``
    columns are what the head read at every token, or what the model carries on itself (``carried``); behind them stand
    the inputs of ``layers``, of which number ``num_hidden_layers`` is the last norm.
    """
    hidden, body = model.config.get_text_config().hidden_size, model.base_model
    states = torch.zeros(slots, max_len, hidden * (1 + len(layers)), dtype=model.dtype, device=model.device)
    inputs: dict[int, Tensor] = {}

    def write(body, args, kwargs, output) -> None:
        batch = kwargs["ragged"].batch
        own = model.carried(output) if hasattr(model, "carried") else output.last_hidden_state
        kept = torch.cat([own, *(inputs.pop(layer) for layer in layers)], -1) if layers else own
        states[batch.slot_of, batch.entry_of] = kept[0]

    for layer in layers:
        part = body.layers[layer] if layer < len(body.layers) else body.norm
        part.register_forward_pre_hook(lambda module, args, layer=layer: inputs.update({layer: args[0]}))
    body.register_forward_hook(write, with_kwargs=True)
    return states
