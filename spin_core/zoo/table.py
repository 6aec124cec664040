"""Tables of the target's habits: the token that it usually puts behind a few tokens.

File format: safetensors with ``contexts`` int64 and ``followers`` int32 of a :class:`DraftTable`; the metadata says
``kind`` "table", the ``vocab_size`` that the keys are built with, and how many tokens the ``longest`` context has (3 if
it does not say). :mod:`spin_core.lab.distill.table` writes such files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .weights import read

LONGEST = 3     # tokens of context, unless a table says otherwise
MASK = 2**63 - 1


@dataclass
class DraftTable:
    """A table before it is attached to an engine, E entries.

    ``contexts [E]`` int64, ascending keys (:func:`key`) of one to ``longest`` tokens; ``followers [E]`` int32, the id
    that most often came next. Contexts without a usual follower have no entry.
    """

    name: str
    contexts: Tensor
    followers: Tensor
    vocab_size: int
    description: str = ""
    max_context: int = 2**31    # it looks at the last few tokens only
    longest: int = LONGEST


def key(context: Sequence[int], vocab_size: int) -> int:
    """A number of 63 bits for a context: digits ``id + 1`` in base ``vocab_size + 1``, modulo 2^63.

    As long as they fit (three ids of a vocabulary of 49,152 take 47 bits) no two contexts share a number. Of longer
    ones some may, by chance: then a draft is wrong, which costs speed alone.
    """
    number = 0
    for token in context:
        number = (number * (vocab_size + 1) + token + 1) & MASK
    return number


def is_table(metadata: dict[str, str]) -> bool:
    return metadata.get("kind") == "table"


def load_table(path: Path, vocab_size: int) -> DraftTable:
    """The table of a file, for a target of ``vocab_size`` ids. ValueError naming the file if anything does not fit."""
    tensors, metadata = read(path)

    def check(ok: bool, reason: str) -> None:
        if not ok:
            raise ValueError(f"{path}: {reason}")

    check(tensors.keys() == {"contexts", "followers"}, f"a table has the keys 'contexts' and 'followers', this file "
                                                       f"has {', '.join(map(repr, sorted(tensors)))}")
    contexts, followers = tensors["contexts"], tensors["followers"]
    check(contexts.dtype == torch.int64 and followers.dtype == torch.int32 and contexts.dim() == 1
          and contexts.shape == followers.shape, "'contexts' must be int64 and 'followers' int32, of one length")
    check(metadata.get("vocab_size") == str(vocab_size),
          f"it was made for {metadata.get('vocab_size')} ids, the target has {vocab_size}")
    longest = metadata.get("longest", str(LONGEST))
    check(longest.isdecimal() and int(longest) > 0, f"longest {longest!r} is no number of tokens")
    if len(contexts):
        check(bool((contexts.diff() > 0).all()), "'contexts' do not ascend")
        check(0 < int(contexts[0]) and int(contexts[-1]) < (vocab_size + 1) ** int(longest),
              f"'contexts' hold keys that stand for no {longest} ids")
        check(0 <= int(followers.min()) and int(followers.max()) < vocab_size,
              f"'followers' hold ids outside the target's vocabulary of {vocab_size}")
    return DraftTable(path.stem, contexts, followers, vocab_size, metadata.get("description", ""),
                      longest=int(longest))
