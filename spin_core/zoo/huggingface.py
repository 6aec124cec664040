"""Load models and tokenizers of the Hugging Face library: safetensors only, no remote code, clear errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SAFE = {"trust_remote_code": False}


@contextmanager
def quiet() -> Iterator[None]:
    """Switch the library's progress bars off: a model that loads in a tenth of a second needs none."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def usable(device: str | torch.device) -> torch.device:
    """The device of that name. ValueError, with torch's reason, unless torch can compute on it."""
    try:
        found = torch.device(device)
        if found.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("this PyTorch sees no CUDA device")
        if found.type == "cuda" and found.index is None:
            from spin_core.runtime.ranks import take_device        # here: `fetch` needs no runtime

            take_device()
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error
    return found


def is_hub_name(source: str) -> bool:
    """Whether ``source`` reads as OWNER/NAME and is no folder here."""
    return bool(_HUB_NAME.fullmatch(source)) and not Path(source).exists()


def load_model(source: str | Path, role: str, device: torch.device, dtype: torch.dtype,
               parts: int = 1) -> PreTrainedModel:
    """A causal LM from a folder or a hub name, in eval mode, without gradients; over the first ``parts`` processes.

    On a process behind these it is a skeleton without weights. ``role`` ("target", "drafter") is for the error:
    ValueError names it, the source and the reason.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from spin_core.runtime.ranks import own_rank, sharding      # here: `fetch` needs no runtime

    if _is_local(source):
        _check_safetensors(Path(source), role)
    with quiet(), _named_errors(source, role):
        if parts > 1 and own_rank() >= parts:       # it holds no part of the target
            with torch.device("meta"):
                return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source, **_SAFE), dtype=dtype)
        model, info = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, use_safetensors=True, local_files_only=_is_local(source),
            output_loading_info=True, **sharding(parts), **_SAFE)
        if missing := sorted(info["missing_keys"]):
            raise ValueError(f"its safetensors lack {missing[0]}"
                             + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""))
    return model.to(device).eval().requires_grad_(False)


def folder_of(source: str | Path, wanted: Callable[[Path], bool]) -> Path | None:
    """The folder of a drafter, if ``wanted`` says so from its config.json; a hub name's is fetched for that. None for
    any other, and where nothing can be fetched: loading it says why."""
    if _is_local(source):
        return Path(source) if Path(source).is_dir() and wanted(Path(source)) else None
    from huggingface_hub import hf_hub_download, snapshot_download

    with suppress(OSError, ValueError):
        folder = Path(hf_hub_download(str(source), "config.json")).parent
        if wanted(folder):
            return Path(snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors"]))
    return None


def load_tokenizer(source: str | Path, role: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a folder or hub name; None for a folder without tokenizer files."""
    from transformers import AutoTokenizer

    if _is_local(source) and not any((Path(source) / name).exists() for name in (
            "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")):
        return None
    with quiet(), _named_errors(source, role + "'s tokenizer"):
        return AutoTokenizer.from_pretrained(source, local_files_only=_is_local(source), **_SAFE)


def _is_local(source: str | Path) -> bool:
    return not is_hub_name(str(source))


def _check_safetensors(folder: Path, role: str) -> None:
    """ValueError naming the file, if one of the folder's safetensors is not complete."""
    if not folder.is_dir():
        raise ValueError(f"{role} {str(folder)!r}: no such folder, and not a hub name (OWNER/NAME)")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{role} {str(folder)!r} holds no .safetensors file; other formats are not read")
    for path in files:
        weights.opened(path)


@contextmanager
def _named_errors(source: str | Path, role: str) -> Iterator[None]:
    """Turn every error into a ValueError that names role, source and reason."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = str(error)
        if "trust_remote_code" in reason:       # the library's advice, which cannot be followed here
            reason = "it brings program code of its own, and such code is never run"
        elif not _is_local(source):
            reason = ("there is no such folder here, so it was taken for a name on the Hugging Face hub. "
                      f"{reason} Without a network, only folders and models in the Hugging Face cache can be loaded.")
        raise ValueError(f"{role} {str(source)!r} cannot be loaded: {reason}") from error
