"""Attention for layers with special needs, one request at a time: windows, chunks, capped scores, sinks, any widths.

Plain layers do not come here: every strategy does those. What a layer needs is :class:`spin_core.runtime.layers
.LayerNeeds`; any object with its fields will do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache


class MaskedStep:
    """The attention of one step of such layers. Masks are made once for all layers of the same sight."""

    def __init__(self, batch: RaggedBatch, cache: SlotCache) -> None:
        self.batch, self.cache = batch, cache
        self.positions = batch.positions_by_request()
        self.masks: dict = {}

    def attend(self, layer: int, query: Tensor, scale: float, needs) -> Tensor:
        """``query [heads, N, key_dim]`` -> ``[N, heads, value_dim]``; the layer's keys and values are written."""
        keys, values = self.cache.k[layer], self.cache.v[layer]
        if needs.sight not in self.masks:
            self.masks[needs.sight] = [self._mask(b, needs.sight) for b in range(len(self.batch.slots))]
        out = query.new_empty(query.shape[1], len(query), values.shape[3])
        for b, (first, mask) in enumerate(self.masks[needs.sight]):
            start, count, slot = self.batch.starts[b], self.batch.counts[b], self.batch.slots[b]
            if count:
                span = slice(first, self.batch.prefix[b] + count)
                out[start:start + count] = attend(query[:, start:start + count], keys[slot, :, span],
                                                  values[slot, :, span], mask, scale, needs.softcap,
                                                  needs.sinks).transpose(0, 1)
        return out

    def _mask(self, b: int, sight) -> tuple[int, Tensor | None]:
        """The first entry that any token of request b sees, and ``[T, entries from there]``; None: all see all."""
        count, prefix, seen, tree = (x[b] for x in (self.batch.counts, self.batch.prefix, self.batch.seen,
                                                    self.batch.ancestors))
        positions = self.positions[b]
        if not count:
            return 0, None
        starts = torch.zeros(count, dtype=torch.int64) if sight is None else sight.start(positions[-count:])
        first = min(int(starts.min()), seen)
        own = torch.ones(count, count, dtype=torch.bool).tril() if tree is None else tree.cpu()
        shown = torch.cat([torch.ones(count, seen - first, dtype=torch.bool), own], 1)
        # a prefix entry's position is its number; a node's is given
        where = torch.cat([torch.arange(first, seen), positions])
        shown &= where >= starts[:, None]
        return first, None if shown.all() else shown.to(self.cache.k[0].device)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None = None,
           sinks: Tensor | None = None) -> Tensor:
    """One request: ``query [heads, T, key_dim]``, ``key [kv_heads, n, key_dim]``, ``value [kv_heads, n, value_dim]``,
    ``mask [T, n]`` True where a query sees a key -> ``[heads, T, value_dim]``."""
    group = len(query) // len(key)
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=mask, scale=scale,
                                              enable_gqa=group > 1)[0]
    grouped = query.reshape(len(key), group * query.shape[1], -1)           # heads that share keys, folded into rows
    scores = (grouped @ key.transpose(1, 2)).mul_(scale).view(*query.shape[:2], -1)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores = scores.masked_fill_(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, query.shape[1], 1)], -1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    weights = weights[..., :key.shape[1]].reshape(len(key), group * query.shape[1], -1)
    return (weights @ value).view(*query.shape[:2], -1)
