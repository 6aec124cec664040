"""Load models and tokenizers of the Hugging Face library: safetensors only, no remote code, clear errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SAFE = {"trust_remote_code": False}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's progress bars: a model that loads in a tenth of a second needs none."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def is_hub_name(source: str) -> bool:
    """Whether ``source`` reads as OWNER/NAME and is no folder here."""
    return bool(_HUB_NAME.fullmatch(source)) and not Path(source).exists()


def load_model(source: str | Path, role: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A causal LM from a folder or a hub name, in eval mode, without gradients.

    ``role`` ("target", "drafter") is for the error: ValueError names it, the source and the reason.
    """
    from transformers import AutoModelForCausalLM

    with quiet(), _named_errors(source, role):
        model, info = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, use_safetensors=True, local_files_only=_is_local(source),
            output_loading_info=True, **_SAFE)
        if missing := sorted(info["missing_keys"]):
            raise ValueError(f"its safetensors lack {missing[0]}"
                             + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""))
        return model.to(device).eval().requires_grad_(False)


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


@contextmanager
def _named_errors(source: str | Path, role: str) -> Iterator[None]:
    """Turn whatever goes wrong into a ValueError that names role, source and reason."""
    from safetensors import SafetensorError

    if _is_local(source) and not Path(source).is_dir():
        raise ValueError(f"{role} {str(source)!r}: no such folder, and not a hub name (OWNER/NAME)")
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        if _is_local(source):
            hint = " Only safetensors are read, and no code that comes with a model is run."
        else:
            hint = " Without a network, only hub models already in the Hugging Face cache, or local folders, work."
        raise ValueError(f"{role} {str(source)!r} cannot be loaded: {error}{hint}") from error
