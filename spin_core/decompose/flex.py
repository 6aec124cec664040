"""Today's kernel without padding, as a strategy of the engine: flex attention over the slot cache, where it lies.

A block mask says which blocks of 128 keys a request's queries see at all; the others are skipped, so a short request
costs little beside a long one and nothing has to be cut. Rows of queries are padded to a common number (they are few),
keys are not. What SPIN's decomposition saves over a padded batch such a kernel never spends: it is the measure that
decomposition has to stand up to.

Compiled on a CUDA device. Elsewhere the library computes every score and masks: right, and slow.
"""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from spin_core.decompose.attend import TorchStep, Workspace
from spin_core.decompose.costs import Heads
from spin_core.decompose.layout import SlotRows, in_flight_mask
from spin_core.decompose.plan import LARGE, Plan
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache


BLOCK = 128         # keys per block of the mask


class FlexStep:
    """The attention of one step; a request that reads a prompt is attended as in "per-request", and the whole batch with it.

    Masked keys are multiplied by a weight of zero where a block is seen in part, and zero times NaN is NaN; so values
    behind a request's end are blanked up to the end of its block. (They are written anew before they are read.)
    """

    def __new__(cls, plan: Plan, batch: RaggedBatch, cache: SlotCache, heads: Heads, workspace: Workspace):
        if max(batch.counts) > LARGE:
            return TorchStep(plan, batch, cache, heads, workspace)
        return super().__new__(cls)

    def __init__(self, plan: Plan, batch: RaggedBatch, cache: SlotCache, heads: Heads,
                 workspace: Workspace) -> None:
        from torch.nn.attention.flex_attention import create_block_mask

        self.plan, self.cache, self.gqa = plan, cache, heads.group > 1
        k = cache.k[0]
        slots, _, room, _ = k.shape
        height = 1 << (max(1, *batch.counts) - 1).bit_length()      # few shapes, as each is compiled
        self.rows = SlotRows(batch, slots, height, k.device)
        prefix = torch.full((slots,), -1, dtype=torch.int64)
        sees = torch.zeros(slots, height, height, dtype=torch.bool)      # row t of a slot sees in-flight key j
        stale: list[tuple[int, int]] = []
        for b, (slot, count) in enumerate(zip(batch.slots, batch.counts)):
            prefix[slot] = batch.prefix[b]
            sees[slot, :count, :count] = torch.from_numpy(in_flight_mask(batch, b))
            end = batch.prefix[b] + count
            last = min(room, -(-end // BLOCK) * BLOCK) if k.is_cuda else room
            stale += [(slot, entry) for entry in range(end, last)]
        behind = torch.tensor(stale, dtype=torch.int64).view(-1, 2)
        prefix, sees, behind = (t.to(k.device) for t in (prefix, sees, behind))
        self.stale = behind.unbind(1)

        def visible(b, h, q, key):
            ahead = key - prefix[b]
            return (ahead < 0) | (ahead < height) & sees[b, q, ahead.clamp(0, height - 1)]

        self.mask = create_block_mask(visible, slots, None, height, room, device=k.device)
        self.flex = _compiled() if k.is_cuda else _eager

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """``query [heads, N, head_dim]`` -> ``[N, heads, head_dim]``; keys and values of the layer are written."""
        heads, total, dim = query.shape
        if not total:
            return query.new_empty(0, heads, dim)
        keys, values = self.cache.k[layer], self.cache.v[layer]
        values[self.stale[0], :, self.stale[1]] = 0
        return self.rows.collect(self.flex(self.rows.spread(query), keys, values, block_mask=self.mask, scale=scale,
                                           enable_gqa=self.gqa))


@functools.cache
def _compiled():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _eager(*args, **more) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return flex_attention(*args, **more)
