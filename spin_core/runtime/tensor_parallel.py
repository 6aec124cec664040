"""A model cut into shares by the model library's own plan: attention by heads, feed-forward layers by neurons.

Every process holds a share, and the processes add their partial results up within a layer. Drafters are small and stay
whole; those pruned from the target share its tables and do not go with a sharded one.
"""

from __future__ import annotations

from transformers import PreTrainedModel

from spin_core.runtime.ranks import own_rank, processes, share_target


def sharding(parts: int) -> dict:
    """What ``from_pretrained`` needs to be told to load this rank's share of a model over the first ``parts`` ranks.

    Raises ValueError for too few processes.
    """
    if parts > processes():
        raise ValueError(f"a target over {parts} devices needs as many processes, and there are {processes()}: start "
                         f"with torchrun --nproc-per-node {parts}")
    if parts == 1:
        return {}
    from transformers.distributed import DistributedConfig

    share_target(parts)
    return {"distributed_config": DistributedConfig(tp_size=parts)}


def only_drafts(parts: int) -> bool:
    """Whether this rank holds no part of a target over ``parts`` ranks."""
    return own_rank() >= parts


def parts_of(model: PreTrainedModel) -> int:
    """Over how many processes the model is sharded."""
    return getattr(model, "_tp_size", None) or 1


def local_heads(model: PreTrainedModel, heads: int) -> int:
    """How many of ``heads`` attention heads this process has. Raises ValueError where they cannot be shared out."""
    parts = parts_of(model)
    if heads % parts:
        raise ValueError(f"{heads} attention heads cannot be shared out to {parts} processes")
    return heads // parts
