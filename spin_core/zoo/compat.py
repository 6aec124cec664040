"""Whether a drafter can draft for a target: vocabularies, heads and embeddings, checked before anything runs.

A drafter never sees text: it reads and writes the target's ids. So what must agree is which token each id
names; how the drafter's tokenizer would split text (merges, normalisation) plays no part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .family import DraftModel
from .table import DraftTable

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def effective_vocab_size(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Ids from this number on mean nothing: the head's padding, or tokens the model has no row for.

    The highest id of the tokenizer counts, not its number of entries: added tokens may leave gaps below them.
    """
    named = max(tokenizer.get_vocab().values(), default=-1) + 1
    return min(named, head_width(target), target.get_input_embeddings().weight.shape[0])


def head_width(model: PreTrainedModel) -> int:
    """Columns of the model's logits."""
    return model.get_output_embeddings().weight.shape[0]


def check_tokenizers(name: str, drafter: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase,
                     vocab_size: int) -> None:
    """ValueError unless every id below ``vocab_size`` names the same token in both, special ones included."""
    ours, theirs = _by_id(target), _by_id(drafter)
    for index in range(vocab_size):
        if ours.get(index) != theirs.get(index):
            raise ValueError(f"drafter {name!r} has another tokenizer than the target: id {index} is "
                             f"{_show(ours, index)} in the target and {_show(theirs, index)} in the drafter")


def check_drafter(drafter: DraftModel | DraftTable, target: PreTrainedModel, vocab_size: int) -> None:
    """The last gate, for drafters from anywhere: ValueError unless the drafter can work beside the target.

    Heads of different widths are fine: padding is cut on both sides.
    """
    def refuse(reason: str) -> None:
        raise ValueError(f"drafter {drafter.name!r}: {reason}")

    if drafter.name in ("ngram", "none"):
        refuse("that name belongs to a drafter every engine has; choose another")
    if isinstance(drafter, DraftTable):
        if drafter.vocab_size != vocab_size:
            refuse(f"it was made for {drafter.vocab_size} ids, the target has {vocab_size}")
        return
    if drafter.model.device != target.device and target.device.type != "meta":      # a skeleton's
        refuse(f"it is on {drafter.model.device}, the target on {target.device}")
    if (rows := drafter.model.get_input_embeddings().weight.shape[0]) < vocab_size:
        refuse(f"it can read only ids below {rows}, the target emits ids up to {vocab_size - 1}")
    width = head_width(drafter.model)
    if drafter.ids is None:
        if width < vocab_size:
            refuse(f"its logits have {width} columns, the target has {vocab_size} ids: `ids` must say which")
        return
    ids = drafter.ids
    if ids.dtype != torch.int64 or ids.shape != (width,):
        refuse(f"`ids` must be int64 of shape [{width}], one per column of its logits, "
               f"got {ids.dtype} of shape {list(ids.shape)}")
    if not bool((ids.diff() > 0).all()) or ids[0] < 0 or ids[-1] >= vocab_size:
        refuse(f"`ids` must ascend within the target's {vocab_size} ids")


def _by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}


def _show(tokens: dict[int, str], index: int) -> str:
    return repr(tokens[index]) if index in tokens else "no token"
