"""Drafters pruned from their target: a few layers and a norm of their own, embedding and head borrowed.

File format: safetensors with ``layers.<i>.*`` and ``norm.weight`` of a LlamaModel with that many layers, and
``draft_ids`` (int32 or int64, ascending target ids). The head is the target's rows at ``draft_ids``: most of
a small drafter's time goes into the head, and a few thousand frequent tokens are nearly all it would draft. A file
with ``fuse.weight`` holds a drafter fed with the target's states (:mod:`spin_core.zoo.fed`), with ``mix`` a feedback
memory too, with ``fc.weight`` it reads several states; ``fc.weight`` without ``fuse.weight`` is an EAGLE-3 head's
(:mod:`spin_core.zoo.eagle3`). The metadata may say ``window``, how far its attention looks back, ``carry``, and in
``layers_read`` which of the target's layers' inputs ``fc`` fuses, such as "2,15,last".
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .install import CorruptFileError, sha256
from .family import DraftModel
from .weights import build, read

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedModel

SHIPPED = Path(__file__).parent / "drafters"
CHECKSUMS = "SHA256SUMS"


def shipped(folder: Path = SHIPPED) -> dict[str, Path]:
    """The drafters in the package, by name: models, smallest first, then tables."""
    paths = sorted(folder.glob("*.safetensors"), key=lambda path: (path.stem.startswith("table"), path.stat().st_size,
                                                                  path.name))
    return {path.stem: path for path in paths}


def check_shipped(path: Path) -> None:
    """CorruptFileError unless the file's SHA-256 stands beside its name in SHA256SUMS."""
    lines = (path.parent / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    if sums.get(path.name) != sha256(path):
        raise CorruptFileError(f"{path} is corrupt: its SHA-256 is not the one in {CHECKSUMS}. "
                               "Install the package again, or restore the file from the repository.")


def load_pruned(path: Path, target: PreTrainedModel, vocab_size: int) -> DraftModel:
    """The drafter of a file, built around ``target``'s embedding (the same tensor), in its dtype.

    Raises ValueError naming the file, and the key where there is one, if anything does not fit.
    """
    from transformers import LlamaForCausalLM

    from spin_core.zoo.eagle3 import Eagle3Llama
    from spin_core.zoo.fed import FedLlama

    if not isinstance(target, LlamaForCausalLM):
        raise ValueError(f"{path}: a pruned drafter needs a Llama target, not {type(target).__name__}")
    tensors, metadata = read(path)
    if "draft_ids" not in tensors:
        raise ValueError(f"{path}: key 'draft_ids' is missing")
    ids = _draft_ids(path, tensors.pop("draft_ids"), vocab_size)
    depth = len({key.split(".")[1] for key in tensors if key.startswith("layers.")})
    if depth == 0:
        raise ValueError(f"{path}: no key 'layers.0.*'")

    config = _shallow(target.config, depth)
    config.window, config.carry = _window(path, metadata.get("window")), metadata.get("carry", "last")
    fed = "fuse.weight" in tensors                  # only a drafter that is fed with the target's states has it
    if ("mix" in tensors) != (fed and config.carry == "mix"):
        raise ValueError(f"{path}: key 'mix' and carry {config.carry!r} do not go together")
    if "fc.weight" in tensors:
        config.layers_read = _layers(path, metadata.get("layers_read"), target.config.num_hidden_layers)
    kind = FedLlama if fed else Eagle3Llama if "fc.weight" in tensors else LlamaForCausalLM
    weight, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    borrowed = {"model.embed_tokens.weight": weight, "lm_head.weight": head[ids.to(head.device)]}
    model = build(kind, config, tensors, borrowed, path)
    return DraftModel(path.stem, model, ids.to(weight.device), target.config.max_position_embeddings,
                      metadata.get("description", ""))


def _window(path: Path, text: str | None) -> int | None:
    """The window of the metadata, None where there is none."""
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{path}: window {text!r} is no whole number from 1 on")
    return int(text)


def _layers(path: Path, text: str | None, total: int) -> tuple[int, ...]:
    """The ``layers_read`` of the metadata: "last" and numbers from 0 to ``total``, separated by commas."""
    from spin_core.zoo.fed import LAST

    parts = (text or "").split(",")
    if len({*parts}) < len(parts) or not all(
            part == "last" or part.isdecimal() and int(part) <= total for part in parts):
        raise ValueError(f"{path}: layers_read {text!r} are not different layers of a target of {total}")
    return tuple(LAST if part == "last" else int(part) for part in parts)


def _shallow(config: LlamaConfig, depth: int) -> LlamaConfig:
    """The target's configuration with ``depth`` layers and a head of its own."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = depth
    config.tie_word_embeddings = False
    return config


def _draft_ids(path: Path, ids: Tensor, vocab_size: int) -> Tensor:
    """``draft_ids`` as int64 ``[Vd]``, checked to be ascending ids of the target."""
    if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1 or ids.numel() == 0:
        raise ValueError(f"{path}: key 'draft_ids' must be a list of integers, "
                         f"got {ids.dtype} of shape {list(ids.shape)}")
    ids = ids.long()
    if not bool((ids.diff() > 0).all()):
        raise ValueError(f"{path}: key 'draft_ids' is not ascending")
    if ids[0] < 0 or ids[-1] >= vocab_size:
        raise ValueError(f"{path}: key 'draft_ids' has ids from {int(ids[0])} to {int(ids[-1])}, "
                         f"outside the target's vocabulary of {vocab_size}")
    return ids
