"""Other ways to attend a ragged batch on one cache, to compare with: in the benchmark and its lesson.

:class:`PaddedView` is a padded batch at its best: nothing is gathered, the cache itself is the rectangle.
:class:`VarlenStep` is today's flash attention over sequences of any length.

They have the interface of a step, but the engine does not offer them. The first multiplies what lies behind a
request's end by zero, so a NaN left there would spread; the second wants the keys of all requests packed, which a slot
cache does not keep. Chains only, no trees. The engine's own kernel without padding is :mod:`spin_core.lab.rivals.flex`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from spin_core.lab.rivals.flex import SlotRows
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache


class PaddedView:
    """The first keys of every slot as one rectangle, as wide as the longest request: a view, and a mask.

    One row of queries per slot, as many as the longest draft; heads that share keys are folded into the rows.
    """

    def __init__(self, batch: RaggedBatch, cache: SlotCache) -> None:
        self.cache = cache
        device = cache.k[0].device
        slots = cache.k[0].shape[0]
        self.prefix = torch.full((slots,), -1, device=device)
        self.prefix[batch.slots] = torch.tensor(batch.prefix, device=device)
        self.width = max(p + c for p, c in zip(batch.prefix, batch.counts))
        height = max(batch.counts)
        self.rows = SlotRows(batch, slots, height, device)
        row = torch.arange(height, device=device)[:, None]
        # [slots, height, width]
        visible = torch.arange(self.width, device=device) <= self.prefix[:, None, None] + row
        self.bias = torch.zeros_like(visible, dtype=cache.k[0].dtype).masked_fill_(~visible, -torch.inf)[:, None]

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        return self.rows.collect(self.rectangle(self.rows.spread(query), self.cache.k[layer], self.cache.v[layer],
                                                scale))

    def rectangle(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        slots, heads, height, dim = query.shape
        group = heads // keys.shape[1]
        bias = self.bias if group == 1 else self.bias.repeat(1, 1, group, 1)
        return F.scaled_dot_product_attention(query.reshape(slots, -1, group * height, dim), keys[:, :, :self.width],
                                              values[:, :, :self.width], attn_mask=bias, scale=scale
                                              ).view(slots, heads, height, dim)


class VarlenStep:
    """Flash attention over packed sequences. Packing is done beforehand, so this is what it would cost in a cache
    that keeps its tokens packed. Half precision only."""

    def __init__(self, batch: RaggedBatch, cache: SlotCache) -> None:
        from torch.nn.attention.varlen import varlen_attn

        device = cache.k[0].device
        lengths = [p + c for p, c in zip(batch.prefix, batch.counts)]
        bounds = lambda sizes: torch.tensor([0, *sizes], device=device).cumsum(0).int()  # noqa: E731
        self.cu_q, self.cu_k = bounds(batch.counts), bounds(lengths)
        self.max_q, self.max_k = max(batch.counts), max(lengths)
        pack = lambda side: torch.cat([side[slot, :, :length].transpose(0, 1)  # noqa: E731
                                       for slot, length in zip(batch.slots, lengths)])
        self.packed = [(pack(key), pack(value)) for key, value in zip(cache.k, cache.v)]
        self.varlen = varlen_attn

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        key, value = self.packed[layer]
        gqa = dict(enable_gqa=True) if query.shape[0] != key.shape[1] else {}
        return self.varlen(query.transpose(0, 1), key, value, self.cu_q, self.cu_k, self.max_q, self.max_k, scale=scale,
                           window_size=(-1, 0), **gqa)
