"""Where models come from: built-in families, Hugging Face folders and hub names, pruned drafters.

>>> from spin_core import zoo
>>> family = zoo.load("smollm2")                                    # fetched once, then loads in a moment
>>> family = zoo.load(target="my/folder", drafters=["smaller/folder"])

Begin with ``family`` (what :func:`load` returns) and ``load`` below. ``install`` fetches the built-in target;
``huggingface`` and ``compat`` load and check any other; ``pruned``, ``fed``, ``eagle3`` (its folders: ``speculators``)
and ``table`` are the forms of drafters; a new one gets a file here and one in :mod:`spin_core.draft`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spin_core.files import cache_dir

from . import compat, huggingface, pruned, speculators, table, weights
from .install import BUILTIN, CachedFile, CorruptFileError, FetchError, builtin, ensure, fetch, verify
from .family import DraftModel, Family
from .table import DraftTable

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["BUILTIN", "CachedFile", "CorruptFileError", "DraftModel", "DraftTable", "Family", "FetchError",
           "cache_dir", "fetch", "load", "verify"]


def load(name: str = "smollm2", *, target: str | Path | None = None,
         drafters: Sequence[str | Path | DraftModel] | None = None,
         device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, parts: int = 1) -> Family:
    """Load a target, its tokenizer and its drafters.

    ``name`` is a built-in family; ``target``, if given, is used instead: a folder with a Hugging Face causal
    LM, or its OWNER/NAME on the hub. Each of ``drafters`` is

    * the name of a drafter shipped for a built-in family (None: all of them),
    * a ``.safetensors`` file of a drafter pruned from this target (:mod:`spin_core.zoo.pruned`), or of a table of its
      habits (:mod:`spin_core.zoo.table`),
    * a folder or hub name of an EAGLE-3 head for this target (:mod:`spin_core.zoo.speculators`),
    * a folder or hub name of a causal LM with the target's tokenizer. A folder without any tokenizer is
      accepted, with a warning, if its head is as wide as the target's: a wrong guess costs speed, never text,
    * a :class:`DraftModel`, whose vocabulary is taken as the caller states it.

    "ngram" and "none" may be listed and add nothing: every engine has them. All models are put on ``device``
    in ``dtype``, except those that come as DraftModel objects. With ``parts`` the target is spread over the first so
    many processes (:mod:`spin_core.distributed`).

    Raises ValueError for unknown names, models that cannot be loaded and drafters that do not fit the target,
    :class:`FetchError` when a download fails, :class:`CorruptFileError` when a cached file is wrong.
    """
    if isinstance(drafters, (str, Path, DraftModel)):
        raise TypeError(f"drafters must be a list, such as [{drafters!r}]")
    device = huggingface.usable(device)
    if target is None or str(target) in BUILTIN:
        name = builtin(name if target is None else str(target)).name
        source, known = ensure(name), pruned.shipped()
    else:
        name, source, known = _last_part(target), target, {}
    model = huggingface.load_model(source, "target", device, dtype, parts)
    tokenizer = huggingface.load_tokenizer(source, "target")
    if tokenizer is None:
        raise ValueError(f"target {str(source)!r} has no tokenizer")
    family = Family(name, model, tokenizer, {}, compat.effective_vocab_size(model, tokenizer),
                    _stop_ids(model, tokenizer), _max_context(model, str(source)),
                    device if model.device.type == "meta" else model.device, dtype)
    for item in known if drafters is None else drafters:
        if item in ("ngram", "none"):
            continue
        drafter = item if isinstance(item, (DraftModel, DraftTable)) else _load_drafter(item, family, known)
        compat.check_drafter(drafter, model, family.vocab_size)
        if drafter.name in family.drafters:
            raise ValueError(f"two drafters are called {drafter.name!r}: pass one as a DraftModel of "
                             "another name")
        family.drafters[drafter.name] = drafter
    return family


def _load_file(path: Path, family: Family) -> DraftModel | DraftTable:
    """The drafter of a safetensors file."""
    if table.is_table(weights.read(path)[1]):
        return table.load_table(path, family.vocab_size)
    return pruned.load_pruned(path, family.target, family.vocab_size)


def _load_drafter(item: str | Path, family: Family, known: dict[str, Path]) -> DraftModel | DraftTable:
    """The drafter that one entry of ``load``'s drafters names."""
    if str(item) in known:
        pruned.check_shipped(known[str(item)])
        return _load_file(known[str(item)], family)
    path = Path(item)
    if path.suffix == ".safetensors":
        return _load_file(path, family)
    if not path.is_dir() and not huggingface.is_hub_name(str(item)):
        names = ", ".join([*known, "ngram", "none"])
        raise ValueError(f"unknown drafter {str(item)!r}; known for {family.name}: {names}; else a folder, a "
                         ".safetensors file or a hub name (OWNER/NAME)")
    name = _last_part(item)
    if folder := huggingface.folder_of(item, speculators.is_head):
        return speculators.load(folder, family.target, family.vocab_size, name)
    model = huggingface.load_model(item, "drafter", family.device, family.dtype)
    tokenizer = huggingface.load_tokenizer(item, "drafter")
    if tokenizer is not None:
        compat.check_tokenizers(name, tokenizer, family.tokenizer, family.vocab_size)
    elif compat.head_width(model) == compat.head_width(family.target):
        warnings.warn(f"drafter {str(item)!r} has no tokenizer; its head is as wide as the target's, so the "
                      "target's tokenizer is assumed", stacklevel=3)
    else:
        raise ValueError(f"drafter {str(item)!r} has no tokenizer, and its head ({compat.head_width(model)}) "
                         f"is not as wide as the target's ({compat.head_width(family.target)})")
    return DraftModel(name, model, None, _max_context(model, str(item)), f"from {item}")


def _last_part(source: str | Path) -> str:
    """The short name of a folder or hub name."""
    return str(source).split("/")[-1] if huggingface.is_hub_name(str(source)) else Path(source).resolve().name


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids ``generate`` stops at, or else the tokenizer's end-of-text id."""
    ids = model.generation_config.eos_token_id
    ids = tokenizer.eos_token_id if ids is None else ids
    if ids is None:
        return ()
    return tuple(sorted({int(i) for i in ([ids] if isinstance(ids, int) else ids)}))


def _max_context(model: PreTrainedModel, source: str) -> int:
    """Longest sequence the model was made for, in tokens."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is None:
        raise ValueError(f"{source!r}: its config states no max_position_embeddings")
    if limit < 1:
        raise ValueError(f"{source!r}: its config states max_position_embeddings={limit}: a model without a "
                         "longest text cannot be served")
    return int(limit)
