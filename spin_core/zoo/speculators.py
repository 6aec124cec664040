"""EAGLE-3 heads as folders: the checkpoint format of the ``speculators`` library, and the original EAGLE-3 layout.

Both hold a ``config.json`` and safetensors with ``fc.weight``, a first layer with double-width projections (called
``layers.0`` or ``midlayer``), perhaps more layers, ``norm.weight``, ``lm_head.weight``, perhaps ``embed_tokens.weight``
(else it is the target's) and the reduced vocabulary: ``d2t [Vd]`` is, for each of its ids, the distance to the target
id it stands for, ``t2d [V]`` marks those target ids.

>>> family = zoo.load(target="my/target", drafters=["my/head"])

:mod:`spin_core.lab.distill.heads` writes such folders.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .family import DraftModel
from .weights import build, read

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Options of a head, in either layout's config
OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
ORIGINAL_FIRST, FIRST = "midlayer.", "layers.0."


def is_head(folder: Path) -> bool:
    """Whether the folder's ``config.json`` describes an EAGLE-3 head."""
    path = folder / "config.json"
    if not path.is_file():
        return False
    config = _config(path)
    return config.get("speculators_model_type") == "eagle3" or any("Eagle3" in name
                                                                   for name in config.get("architectures") or ())


def load(folder: Path, target: PreTrainedModel, vocab_size: int, name: str | None = None) -> DraftModel:
    """The head in ``folder``, to draft for ``target``; on its device, in its dtype. ``name``: instead of the folder's.

    Raises ValueError naming the file, and the key where there is one, if it is incomplete, of an unknown kind, or does
    not fit the target.
    """
    from transformers import LlamaConfig

    from spin_core.zoo.eagle3 import Eagle3Llama, default_layers

    path = folder / "config.json"
    stated = _config(path)
    inner = stated.get("transformer_layer_config", stated)
    if (kind := inner.get("model_type", "llama")) != "llama":
        raise ValueError(f"{path}: layers of the kind {kind!r}; only Llama's are known")
    wide = target.config.get_text_config()
    tensors = _tensors(folder)
    ids = _ids(folder, tensors, vocab_size)
    config = LlamaConfig(**{key: value for key, value in inner.items() if key not in ("architectures", "model_type")})
    config.tie_word_embeddings = False
    config.layers_read = _layers(path, stated, default_layers(wide.num_hidden_layers), wide.num_hidden_layers)
    config.target_hidden_size = wide.hidden_size
    for option in OPTIONS:
        setattr(config, option, bool(stated.get(option, False)))
    embedding = tensors.pop("embed_tokens.weight", None)
    if embedding is None:
        if config.hidden_size != wide.hidden_size:
            raise ValueError(f"{folder}: no key 'embed_tokens.weight', and the target's is {wide.hidden_size} wide, "
                             f"not {config.hidden_size}")
        embedding = target.get_input_embeddings().weight
    config.vocab_size = len(embedding)
    weight = target.get_input_embeddings().weight
    borrowed = {"model.embed_tokens.weight": embedding.to(weight.device, weight.dtype)}
    model = build(Eagle3Llama, config, tensors, borrowed, folder)
    return DraftModel(name or folder.resolve().name, model, None if ids is None else ids.to(weight.device),
                      wide.max_position_embeddings, f"EAGLE-3 head, from {folder}")


def _config(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder's safetensors, under the names of the ``speculators`` format."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: holds no .safetensors file; other formats are not read")
    tensors = {key: value for path in files for key, value in read(path)[0].items()}
    tensors = {(FIRST + key.removeprefix(ORIGINAL_FIRST) if key.startswith(ORIGINAL_FIRST) else key): value
               for key, value in tensors.items()}
    for key in ("fc.weight", "lm_head.weight"):
        if key not in tensors:
            raise ValueError(f"{folder}: key {key!r} is missing")
    # what training needed of the target, and a table that is computed
    return {key: value for key, value in tensors.items() if not key.startswith(("verifier_", "rotary_emb."))}


def _ids(folder: Path, tensors: dict[str, Tensor], vocab_size: int) -> Tensor | None:
    """The target ids of the head's columns, ascending; the columns of ``lm_head.weight`` are put in that order."""
    distance, marks = tensors.pop("d2t", None), tensors.pop("t2d", None)
    width = len(tensors["lm_head.weight"])
    if distance is None:
        if width < vocab_size:
            raise ValueError(f"{folder}: key 'd2t' is missing, and the head has {width} columns for {vocab_size} ids")
        return None
    if distance.dim() != 1 or len(distance) != width or distance.is_floating_point():
        raise ValueError(f"{folder}: key 'd2t' must hold {width} integers, got {distance.dtype} of shape "
                         f"{list(distance.shape)}")
    ids, order = (distance.long() + torch.arange(width)).sort()
    if ids[0] < 0 or ids[-1] >= vocab_size or not bool((ids.diff() > 0).all()):
        raise ValueError(f"{folder}: key 'd2t' must name different ids of the target's {vocab_size}")
    if marks is not None and (marks.dim() != 1 or marks.nonzero()[:, 0].tolist() != ids.tolist()):
        raise ValueError(f"{folder}: keys 'd2t' and 't2d' name different ids")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][order]
    return ids


def _layers(path: Path, stated: dict, usual: tuple[int, ...], total: int) -> tuple[int, ...]:
    """The layers of the target whose inputs the head reads."""
    layers = (stated.get("eagle_aux_hidden_state_layer_ids")
              or (stated.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or usual)
    if len({*layers}) < len(layers) or min(layers) < 0 or max(layers) > total:
        raise ValueError(f"{path}: eagle_aux_hidden_state_layer_ids {list(layers)} are not different layers of a "
                         f"target of {total}")
    return tuple(layers)
