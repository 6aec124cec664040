"""Asking a model what each of its attention layers needs (:class:`spin_core.decompose.needs.LayerNeeds`).

The model runs once over a short prompt with an attention function that only takes notes: the shapes of keys and values,
a cap on scores, sinks. The masks that the library would build are caught before they are built, as
rules over positions, so a window of 4096 tokens is found with a prompt of six.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from spin_core.decompose.needs import LayerNeeds, Sight
from spin_core.runtime.attention import current, serving

NAME = "spin_core_survey"
# options of an attention call that change its result, beside sliding_window, softcap and s_aux
UNKNOWN = ("position_bias", "attention_bias", "block_table", "indices")


class _Notes:
    """Takes the place of a batch while a model is asked."""

    def __init__(self, max_len: int) -> None:
        self.max_len, self.layers = max_len, {}

    def note(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask, options: dict) -> None:
        index = module.layer_idx
        where = f"{type(module).__name__} of layer {index}"
        for name in UNKNOWN:
            if options.get(name) is not None:
                raise NotImplementedError(f"{where} asks for {name}, which the ragged attention does not have")
        if key.shape[2] != query.shape[2] or value.shape[2] != query.shape[2]:
            raise NotImplementedError(f"{where} attends {key.shape[2]} keys with {query.shape[2]} queries")
        window = options.get("sliding_window") or 0
        if isinstance(mask, _Rule):
            sight = mask.sight(self.max_len, where)
        elif mask is None:
            sight = Sight(window) if 0 < window < self.max_len else None
        else:
            raise NotImplementedError(f"{where} makes a mask of its own")
        if index in self.layers:
            raise NotImplementedError(f"{where} attends twice in a pass")
        self.layers[index] = LayerNeeds(query.shape[1], key.shape[1], key.shape[3], value.shape[3], sight,
                                        options.get("softcap"), options.get("s_aux"))


class _Rule:
    """Stands where a mask would: the library's own rule of which token sees which (``mask_function``)."""

    def __init__(self, *args, mask_function: Callable, local_size: int | None = None, **more) -> None:
        self.visible, self.size = mask_function, local_size

    def __getattr__(self, name: str):
        raise NotImplementedError("it works on the library's masks itself")

    def sight(self, max_len: int, where: str) -> Sight | None:
        size = min(self.size or max_len, max_len)
        around = (0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, max_len - 1)
        rows = torch.tensor(sorted({row for row in around if 0 <= row < max_len}))[:, None]
        keys, zero = torch.arange(int(rows.max()) + 1)[None], torch.tensor(0)
        sees = self.visible(zero, zero, rows, keys)
        for sight in (None, Sight(size), Sight(size, True)):
            first = 0 if sight is None else sight.start(rows)
            if torch.equal(sees.expand(len(rows), keys.shape[1]), (keys <= rows) & (keys >= first)):
                return sight
        raise NotImplementedError(f"{where} sees its past by a rule that is neither causal, a window nor chunks")


def _take_notes(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask=None,
                **options) -> tuple[Tensor, None]:
    current().note(module, query, key, value, attention_mask, options)
    group = query.shape[1] // value.shape[1]
    return value.repeat_interleave(group, 1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _take_notes)
AttentionMaskInterface.register(NAME, _Rule)


@torch.inference_mode()
def survey(model: PreTrainedModel, max_len: int) -> dict[int, LayerNeeds]:
    """Each attention layer's needs, by its number in the cache. ``model`` is left with the attention of the survey.

    Raises NotImplementedError, naming layer and feature, for a model whose layers cannot attend ragged batches.
    """
    refuse_positions(model)
    model.set_attn_implementation(NAME)
    notes = _Notes(max_len)
    tokens = torch.arange(6, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    with serving(notes):
        model(input_ids=tokens[:, :max_len], position_ids=torch.arange(6, device=model.device)[None, :max_len],
              use_cache=False)
    if not notes.layers:
        raise NotImplementedError("no layer attends through the library's registry")
    return notes.layers


def refuse_positions(model: PreTrainedModel) -> None:
    """Raise NotImplementedError for a model that turns positions by the longest text of the batch."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
            if isinstance(kind, str) and (kind == "longrope" or "dynamic" in kind):
                raise NotImplementedError(f"the longest text of a batch decides about positions (rope_type={kind!r})")
