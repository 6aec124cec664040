"""What today's kernels make of a ragged batch on a GPU: the limit that decomposition is compared with.

Two ways without padding, both of the torch library: flex attention with a block mask, which skips blocks that nobody
sees, and flash attention over sequences of any length. They have the interface of a step, for the benchmark. The
engine does not offer them: flex attention multiplies what lies behind a request's end by zero, so a NaN left there
would spread, and flash attention wants the keys of all requests packed, which a slot cache does not keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from spin_core.runtime.batch import RaggedBatch
    from spin_core.runtime.cache import SlotCache


class FlexStep:
    """Flex attention over the cache as it lies: one row of queries per slot, as many as the longest draft.

    Chains only. The rows of queries are padded (they are few), keys and values are not.
    """

    def __init__(self, batch: "RaggedBatch", cache: "SlotCache") -> None:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        self.cache = cache
        device = cache.k[0].device
        slots, _, room, _ = cache.k[0].shape
        prefix = torch.full((slots,), -1, device=device)
        prefix[batch.slots] = torch.tensor(batch.prefix, device=device)
        self.tall = max(batch.counts)
        # row t of slot s reads token `index`, and token n reads row `place`
        index = torch.zeros(slots, self.tall, dtype=torch.int64)
        place = torch.empty(len(batch.tokens), dtype=torch.int64)
        for slot, start, count in zip(batch.slots, batch.starts, batch.counts):
            index[slot, :count] = torch.arange(start, start + count)
            place[start:start + count] = slot * self.tall + torch.arange(count)
        self.index, self.place = index.ravel().to(device), place.to(device)

        def visible(b, h, q, k):
            return k <= prefix[b] + q

        self.mask = create_block_mask(visible, slots, None, self.tall, room, device=device)
        self.flex = torch.compile(flex_attention, dynamic=False)

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        heads, _, dim = query.shape
        slots = self.cache.k[layer].shape[0]
        rows = query.index_select(1, self.index).view(heads, slots, self.tall, dim).transpose(0, 1)
        out = self.flex(rows, self.cache.k[layer], self.cache.v[layer], block_mask=self.mask, scale=scale,
                        enable_gqa=heads != self.cache.k[layer].shape[1])
        return out.transpose(1, 2).reshape(slots * self.tall, heads, dim).index_select(0, self.place)


class VarlenStep:
    """Flash attention over packed sequences. Packing is done beforehand, so this is what it would cost in a cache
    that keeps its tokens packed. Chains only, in half precision."""

    def __init__(self, batch: "RaggedBatch", cache: "SlotCache") -> None:
        from torch.nn.attention.varlen import varlen_attn

        device = cache.k[0].device
        lengths = [p + c for p, c in zip(batch.prefix, batch.counts)]
        bounds = lambda sizes: torch.tensor([0, *sizes], device=device).cumsum(0).int()  # noqa: E731
        self.cu_q, self.cu_k = bounds(batch.counts), bounds(lengths)
        self.max_q, self.max_k = max(batch.counts), max(lengths)
        self.packed = [tuple(torch.cat([side[slot, :, :length].transpose(0, 1) for slot, length in
                                        zip(batch.slots, lengths)]) for side in layer) for layer in zip(cache.k, cache.v)]
        self.varlen = varlen_attn

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        key, value = self.packed[layer]
        gqa = dict(enable_gqa=True) if query.shape[0] != key.shape[1] else {}
        return self.varlen(query.transpose(0, 1), key, value, self.cu_q, self.cu_k, self.max_q, self.max_k, scale=scale,
                           window_size=(-1, 0), **gqa)
