"""Boost-tuning (SpecInfer, arXiv 2305.09781): a second drafter learns what the first one does not know.

Drafters of a pool that are tuned on the same text agree on what is easy. Here the tokens that an older drafter would
have drafted right do not count in the loss of the next one, which so spends what it has on the others. Together, merged
in a token tree or chosen between, the two should cover more than two of a kind.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from spin_core.lab.distill.corpus import Shard
from spin_core.lab.distill.evaluate import score
from spin_core.lab.distill.states import States
from spin_core.zoo.family import DraftModel
from spin_core.zoo.pruned import load_pruned, shipped


def older(family, name: str, out: Path) -> DraftModel:
    """The drafter ``name``, made in ``out`` or shipped with the package. ValueError if it is in neither."""
    made = out / name / f"{name}.safetensors"
    known = {path_name: path for path_name, path in shipped().items() if not path_name.startswith("table")}
    if not made.exists() and name not in known:
        raise ValueError(f"unknown drafter {name!r}; there are {', '.join(known)}, and those made in "
                         f"{out}")
    return load_pruned(made if made.exists() else known[name], family.target, family.vocab_size)


def missed(elder: DraftModel, target, shard: Shard, states: States) -> Tensor:
    """``[N]`` bool, row for row with the shard's tokens: is it an answer's token that ``elder`` would not have drafted
    right behind the text before it?"""
    out = torch.zeros(len(shard.tokens), dtype=torch.bool)
    spans = zip(shard.starts.tolist(), shard.lengths.tolist(), shard.prompt_lengths.tolist())
    for scores, (start, length, prompt) in zip(score(elder.model, elder.ids, target, shard, states, depth=1), spans):
        out[start + prompt:start + length] = ~torch.tensor(scores.hits[0], dtype=torch.bool)
    return out
