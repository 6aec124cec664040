"""Reads safetensors files: the one place where a drafter's weights come from the disk."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; ValueError names it if it is missing, cut or of another format."""
    with opened(path) as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}


def opened(path: Path):
    """The file as ``safe_open`` opens it, which checks that it is complete; ValueError names it if it is not."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a complete safetensors file ({error})") from error
