"""Runs a plan over a slot cache with torch's own products: exact, on any device, in any dtype.

Unpooled requests are read where they are. The pieces of a pool are gathered into a rectangle (a copy, which
costs a CPU about as much as reading the keys once more), computed in one call and merged by their log-sum-exps.
"""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from torch import Tensor

from spin_core.decompose import layout
from spin_core.decompose.costs import Heads
from spin_core.decompose.layout import Packed, Unpooled
from spin_core.decompose.plan import Plan
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache


class Workspace(threading.local):
    """Buffers that outlive a layer. Fresh ones of this size would be mapped, and faulted in, at every layer.

    Every thread has its own: two may run passes over different slots of one cache at the same time.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """An uninitialised ``shape`` of the dtype and device of ``like``, in memory that is kept under ``name``."""
        size = torch.Size(shape).numel()
        held = self._buffers.get(name)
        if held is None or held.numel() < size or held.dtype != like.dtype:
            held = self._buffers[name] = like.new_empty(size + size // 4)
        return held[:size].view(shape)


class TorchStep:
    """The attention of one step, layer by layer. Built from a plan; all layers share it."""

    def __init__(self, plan: Plan, batch: RaggedBatch, cache: SlotCache, heads: Heads,
                 workspace: Workspace) -> None:
        self.plan, self.batch, self.cache, self.workspace = plan, batch, cache, workspace
        self.heads = heads
        k = cache.k[0]
        self.layout = layout.build(plan, batch, heads, k.shape[2], k.dtype, k.device)
        self.masks = batch.masks() if self.layout.whole else []

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """``query [heads, N, head_dim]`` over the cache, whose entries of this layer have been written already.

        Returns ``[N, heads, head_dim]``.
        """
        heads, total, dim = query.shape
        here, keys, values = self.layout, self.cache.k[layer], self.cache.v[layer]
        if here.sole:
            rows = query.new_empty(heads * total, dim)
            self._unpooled(here.unpooled[0], query.reshape(-1, dim) * scale, keys, values, rows)
            return rows.view(heads, total, dim).transpose(0, 1)
        if here.out_rows:
            gathered = query.transpose(0, 1).reshape(-1, dim).index_select(0, here.queries).mul_(scale)
            rows = self.workspace.take("out", query, here.out_rows, dim)
            for request in here.unpooled:
                self._unpooled(request, gathered, keys, values, rows)
            for pool in here.pools:
                self._pool(pool, gathered[pool.queries], keys, values, rows[pool.out])
            out = rows.index_select(0, here.out).view(total, heads, dim)
        else:
            out = query.new_empty(total, heads, dim)
        for b in here.whole:
            slot, start, count = self.batch.slots[b], self.batch.starts[b], self.batch.counts[b]
            length, mask = self.plan.lengths[b], self.masks[b]
            attended = F.scaled_dot_product_attention(
                query[None, :, start:start + count], keys[slot:slot + 1, :, :length], values[slot:slot + 1, :, :length],
                attn_mask=mask, is_causal=mask is None and count > 1, scale=scale, enable_gqa=self.heads.group > 1)
            out[start:start + count] = attended[0].transpose(0, 1)
        return out

    def _unpooled(self, request: Unpooled, gathered: Tensor, keys: Tensor, values: Tensor, rows: Tensor) -> None:
        """One request, its heads folded into rows: two products on views of the cache."""
        kv, room, dim = keys.shape[1:]
        length, at = request.length, request.slot * kv * room * dim
        query = gathered[request.rows].view(kv, -1, dim)
        key = keys.as_strided((kv, dim, length), (room * dim, 1, dim), keys.storage_offset() + at)
        value = values.as_strided((kv, length, dim), (room * dim, dim, 1), values.storage_offset() + at)
        scores = torch.bmm(query, key)
        if request.tail is not None:
            scores[:, :, length - request.tail.shape[1]:] += request.tail
        torch.bmm(scores.softmax(-1), value, out=rows[request.rows].view(kv, -1, dim))

    def _pool(self, pool: Packed, gathered: Tensor, keys: Tensor, values: Tensor, rows: Tensor) -> None:
        pieces, width, height = pool.shape
        kv, dim = keys.shape[1], keys.shape[3]
        query = gathered.view(pieces, kv, height, dim)
        key, value = (torch.index_select(source.view(-1, dim), 0, pool.keys,
                                         out=self.workspace.take(name, source, len(pool.keys), dim))
                      .view(pieces, kv, width, dim) for name, source in (("k", keys), ("v", values)))
        rows = rows.view(-1, kv, height, dim)
        if not pool.cut:
            rows.copy_(rectangle(query, key, value, pool.mask))
            return
        out, lse = rectangle_with_lse(query, key, value, pool.mask)
        rows[pool.cut:].copy_(out[pool.cut_pieces:])
        rows[:pool.cut] = merge_pieces(out[:pool.cut_pieces], lse[:pool.cut_pieces], pool)


def rectangle(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention of every row of pieces.

    ``query [R, kv, Q, d]``, scaled already; ``key`` and ``value [R, kv, W, d]``; ``mask [R, 1, Q, W]`` is added.
    """
    if query.device.type == "cpu":
        return rectangle_with_lse(query, key, value, mask)[0]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)


def rectangle_with_lse(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The same, with the log-sum-exp of the scores ``[R, kv, Q]``; of a row that sees nothing both are undefined."""
    if query.device.type == "cpu":      # what scaled_dot_product_attention runs on a CPU, with its second result
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, False,
                                                                          attn_mask=mask, scale=1.0)
    scores = torch.matmul(query, key.transpose(2, 3)).float() + mask
    lse = scores.logsumexp(-1)
    return torch.matmul((scores - lse.unsqueeze(-1)).exp().to(value.dtype), value), lse


def merge_pieces(out: Tensor, lse: Tensor, pool: Packed) -> Tensor:
    """``out [R, kv, Q, d]`` and ``lse [R, kv, Q]`` of the cut requests' pieces -> ``[cut, kv, Q, d]``."""
    if pool.fully_masked is not None:
        lse = lse.masked_fill(pool.fully_masked, -torch.inf)
        out = out.masked_fill(pool.fully_masked.unsqueeze(-1), 0)
    lse, out = (x.index_select(0, pool.siblings).view(pool.cut, -1, *x.shape[1:]) for x in (lse, out))
    return (out * (lse + pool.repeated).softmax(1).unsqueeze(-1)).sum(1)
