"""A table of the target's habits, counted in its own answers (:mod:`spin_core.draft.table` drafts with it)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spin_core.lab.distill.corpus import Shard, fingerprint, save_whole
from spin_core.zoo.table import LONGEST, MASK


@dataclass(frozen=True)
class TableRecipe:
    """``entries`` at most, 12 bytes each. ``bound``: the least share of a follower that is worth drafting. ``longest``:
    tokens of context."""

    entries: int = 490_000
    bound: float = 0.4
    longest: int = LONGEST


# A wrong draft of a lookup costs a few rows of a verification, so a follower of one time in ten is worth one.
TABLES = {"table-4g": TableRecipe(), "table-5g": TableRecipe(1_000_000, 0.1, 5)}
RARE = 2        # a context of more than LONGEST tokens says nothing new if its follower was seen less often


def make_table(shards: list[Shard], vocab_size: int, max_entries: int, bound: float = 0.4, longest: int = LONGEST
               ) -> dict[str, Tensor]:
    """``contexts`` and ``followers`` of :class:`spin_core.zoo.table.DraftTable`, counted in the answers.

    A follower's share is its count over the context's count plus one, so that what was seen once is worth a half; of
    equally frequent followers the one of the lowest id is taken. Contexts whose best share is below ``bound`` are left
    out: a shorter one may know better. So are contexts of more than LONGEST tokens whose follower came only once. Of
    more than ``max_entries`` the most frequent stay.
    """
    import pandas as pd         # half a second, which other commands need not wait for

    ids, place, answer = _flat(shards)
    table = pd.concat([_followers(ids, np.flatnonzero(answer & (place >= length)), length, vocab_size)
                       for length in range(1, longest + 1)], ignore_index=True)
    usual = table[(table["share"] >= bound) & ((table["length"] <= LONGEST) | (table["count"] >= RARE))]
    best = usual.sort_values("count", ascending=False, kind="stable").head(max_entries)
    best = best.sort_values("context", kind="stable").drop_duplicates("context")    # two may share a key by chance
    return {"contexts": torch.from_numpy(best["context"].to_numpy("int64", copy=True)),
            "followers": torch.from_numpy(best["follower"].to_numpy("int32"))}


def _flat(shards: list[Shard]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All tokens ``[N]``, each one's place in its sequence, and whether it is part of an answer."""
    joined = Shard.join(shards)
    lengths = joined.lengths.long()
    place = torch.arange(len(joined.tokens)) - joined.starts.repeat_interleave(lengths)
    answer = place >= joined.prompt_lengths.long().repeat_interleave(lengths)
    return joined.tokens.numpy().astype("int64"), place.numpy(), answer.numpy()


def _followers(ids: np.ndarray, at: np.ndarray, length: int, vocab_size: int):
    """A table of the contexts of ``length`` tokens before the places ``at``: each one's key (``context``), its usual
    ``follower``, and that one's ``count`` and ``share``."""
    import pandas as pd

    keys = np.zeros(len(at), dtype="int64")
    for back in range(length, 0, -1):
        keys = (keys * (vocab_size + 1) + ids[at - back] + 1) & MASK
    pairs = pd.DataFrame({"context": keys, "follower": ids[at]}).value_counts(sort=False).reset_index()
    pairs["share"] = pairs["count"] / (pairs.groupby("context")["count"].transform("sum") + 1)
    # the most frequent follower first, of equals the lowest id
    pairs = pairs.sort_values(["context", "count", "follower"], ascending=[True, False, True])
    return pairs.drop_duplicates("context").assign(length=length)


def training_part(shards: Iterable[Shard]) -> list[Shard]:
    """The shards without what is held out."""
    return [s.take(torch.arange(s.held_out, len(s.lengths))) for s in shards]


def write_table(path: Path, shards: list[Shard], vocab_size: int, recipe: TableRecipe) -> None:
    """The table of ``shards`` as a safetensors file whose metadata says what it is and what it was made from."""
    facts = {"kind": "table", "vocab_size": vocab_size, "bound": recipe.bound, "data": fingerprint(shards),
             "answer_tokens": sum(s.answer_tokens for s in shards),
             "longest": recipe.longest,
             "description": f"the target's habits behind up to {recipe.longest} tokens, counted in its own answers"}
    save_whole(path, make_table(shards, vocab_size, recipe.entries, recipe.bound, recipe.longest),
               {key: str(value) for key, value in facts.items()})
