"""A target over several devices: every process holds a share of each layer's heads and neurons (tensor parallelism).

The sharding is the model library's own plan: attention and feed-forward layers are cut by heads and neurons, and the
processes add their partial results up after each. Started under ``torchrun`` (one process per device),

    torchrun --nproc-per-node 2 -m spin_core generate --target FOLDER --draft-model FOLDER --device cuda --prompt "..."

every process runs the same engine over the same requests. Nothing else needs to be exchanged: the summed logits are the
same everywhere, and every random number is a function of seed and position, so all processes make the same decisions.
What decides by the clock (a selector, ``pipeline="auto"``) would not, and is refused. Drafters are small: each process
has all of them. Drafters pruned from the target share its tables and do not go with a sharded one.
"""

from __future__ import annotations

import os

from transformers import PreTrainedModel


def processes() -> int:
    """How many processes ``torchrun`` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1))


def speaks() -> bool:
    """Is this the process that prints?"""
    return int(os.environ.get("RANK", 0)) == 0


def sharding(parts: int) -> dict:
    """What ``from_pretrained`` needs to be told to load a share of a model. Raises ValueError for too few processes."""
    if parts == 1:
        return {}
    if parts != processes():
        raise ValueError(f"a target over {parts} devices needs as many processes, and there are {processes()}: start "
                         f"with torchrun --nproc-per-node {parts}")
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=parts)}


def parts_of(model: PreTrainedModel) -> int:
    """Over how many processes the model is sharded."""
    return getattr(model, "_tp_size", None) or 1


def local_heads(model: PreTrainedModel, heads: int) -> int:
    """How many of ``heads`` attention heads this process has. Raises ValueError where they cannot be shared out."""
    parts = parts_of(model)
    if heads % parts:
        raise ValueError(f"{heads} attention heads cannot be shared out to {parts} processes")
    return heads // parts
