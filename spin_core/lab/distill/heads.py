"""Writes EAGLE-3 heads as folders: the checkpoint formats that :mod:`spin_core.zoo.speculators` reads.

>>> heads.save(family.drafters["eagle-1L"], "my/head", family.target)      # vLLM and speculators load this folder
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spin_core.files import save_json
from spin_core.lab.distill.corpus import save_whole
from spin_core.zoo.eagle3 import Eagle3Llama
from spin_core.zoo.family import DraftModel
from spin_core.zoo.speculators import FIRST, OPTIONS, ORIGINAL_FIRST

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LAYOUTS = ("speculators", "original")


def save(drafter: DraftModel, folder: str | Path, target: PreTrainedModel, *, layout: str = "speculators",
         name: str | None = None, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``drafter``, whose model is an EAGLE-3 head for ``target``, into ``folder``.

    ``layout`` "speculators" is what that library and vLLM load, "original" the layout of EAGLE-3's authors, which knows
    one layer only. ``name``: of the target, as the library may fetch it. An embedding that is the target's stays out.
    Raises ValueError for a model that is no head, or has too many layers.
    """
    model, folder = drafter.model, Path(folder)
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}")
    if not isinstance(model, Eagle3Llama):
        raise ValueError(f"drafter {drafter.name!r} is no EAGLE-3 head but a {type(model).__name__}")
    if layout == "original" and model.config.num_hidden_layers > 1:
        raise ValueError(f"drafter {drafter.name!r} has {model.config.num_hidden_layers} layers; the original layout "
                         "knows one")
    tensors = {key.removeprefix("model."): value for key, value in model.state_dict().items()}
    if tensors["embed_tokens.weight"].data_ptr() == target.get_input_embeddings().weight.data_ptr():
        del tensors["embed_tokens.weight"]
    if layout == "original":
        tensors = {key.replace(FIRST, ORIGINAL_FIRST): value for key, value in tensors.items()}
    tensors = {key: value.detach().to("cpu", dtype).contiguous() for key, value in tensors.items()}
    whole = target.config.get_text_config().vocab_size
    if drafter.ids is not None:
        ids = drafter.ids.cpu()
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(whole, dtype=torch.bool).index_fill(0, ids, True)
    save_whole(folder / "model.safetensors", tensors, {"format": "pt"})
    save_json(folder / "config.json", _stated(model, layout, whole, name, target))


def _stated(model, layout: str, whole: int, name: str | None, target: PreTrainedModel) -> dict:
    """The ``config.json`` of a head."""
    ours = model.config.to_dict()
    inner = {key: ours[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                        "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
                                        "rope_parameters", "attention_bias", "mlp_bias", "initializer_range")}
    inner |= {"model_type": "llama", "vocab_size": whole, "tie_word_embeddings": False,
              "max_position_embeddings": target.config.get_text_config().max_position_embeddings}
    facts = {"draft_vocab_size": model.lm_head.out_features,
             "eagle_aux_hidden_state_layer_ids": list(model.layers_read),
             **{option: bool(getattr(model.config, option, False)) for option in OPTIONS}}
    if layout == "original":
        theta = (inner.get("rope_parameters") or {}).get("rope_theta")
        return {"architectures": ["LlamaForCausalLMEagle3"], **inner, "rope_theta": theta, **facts}
    return {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
            "transformer_layer_config": inner, **facts, "tie_word_embeddings": False,
            "speculators_config": {
                "algorithm": "eagle3", "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
                "verifier": {"name_or_path": name, "architectures": [type(target).__name__]}}}
