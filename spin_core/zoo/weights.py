"""Reads safetensors files: the one place where a drafter's weights come from the disk."""

from pathlib import Path

import torch
from torch import Tensor, nn


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file. A matrix in int8 is multiplied by its row's number in KEY.scale.

    ValueError names the file if it is missing, cut or of another format.
    """
    with opened(path) as file:
        tensors, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}
    for key in [key for key, value in tensors.items() if value.dtype == torch.int8]:
        scale = tensors.pop(f"{key}.scale", None)
        if scale is None or scale.shape != tensors[key].shape[:1]:
            raise ValueError(f"{path}: key '{key}.scale' must hold a number for each of the {len(tensors[key])} rows "
                             f"of {key!r}")
        tensors[key] = tensors[key] * scale[:, None]
    return tensors, metadata


def opened(path: Path):
    """The file as ``safe_open`` opens it, which checks that it is complete; ValueError names it if it is not."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a complete safetensors file ({error})") from error


def build(kind: type[nn.Module], config, own: dict[str, Tensor], borrowed: dict[str, Tensor], path: Path) -> nn.Module:
    """A drafter of ``kind`` with its ``own`` tensors and those ``borrowed`` from the target, in eval mode.

    The keys of ``own`` are those of a file, without "model."; its tensors take the first borrowed one's device and
    dtype. ValueError names the ``path``, and the key that is missing, unknown or of a wrong shape.
    """
    columns = len(borrowed["lm_head.weight"] if "lm_head.weight" in borrowed else own["lm_head.weight"])
    with torch.device("meta"):                      # shapes only: nothing is initialised to be overwritten
        model = kind(config)
        model.lm_head = nn.Linear(config.hidden_size, columns, bias=False)
    like = next(iter(borrowed.values()))
    with torch.device(like.device):                 # the rotary frequencies are computed, not loaded
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    expected = {key.removeprefix("model."): key for key in shapes if key not in borrowed}
    for key in sorted(expected.keys() | own.keys()):
        if key not in own:
            raise ValueError(f"{path}: key {key!r} is missing")
        if key not in expected:
            raise ValueError(f"{path}: key {key!r} is not a part of this drafter")
        if own[key].shape != (shape := shapes[expected[key]]):
            raise ValueError(f"{path}: key {key!r} has shape {list(own[key].shape)}, this target needs {list(shape)}")
    tensors = {expected[key]: value.to(like.device, like.dtype) for key, value in own.items()}
    model.load_state_dict({**tensors, **borrowed}, strict=True, assign=True)
    return model.eval().requires_grad_(False)
