"""Runs a plan over a slot cache with torch's own products: exact, on any device, in any dtype.

Unpooled requests are read where they are. The pieces of a pool are gathered into a rectangle (a copy, which
costs a CPU about as much as reading the keys once more), computed in one call and merged by their log-sum-exps.
"""

import threading

import torch
import torch.nn.functional as F
from torch import Tensor

from spin_core.decompose import layout
from spin_core.decompose.costs import Heads
from spin_core.decompose.layout import Packed, Unpooled
from spin_core.decompose.needs import View
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
    """The attention of one step over layers of one shape and sight. Built from a plan; all these layers share it.

    ``view`` says what the batch's tokens see (default: all of their past); ``layer`` is one of the layers.
    """

    def __init__(self, plan: Plan, batch: RaggedBatch, cache: SlotCache, heads: Heads, workspace: Workspace,
                 view: View | None = None, layer: int = 0) -> None:
        self.plan, self.batch, self.cache, self.workspace = plan, batch, cache, workspace
        self.heads, self.view = heads, view or View(batch)
        k = cache.k[layer]
        self.layout = layout.build(plan, self.view, heads, k.shape[2], k.dtype, k.device)
        self.masks = {b: self.view.library_mask(b, k.device) for b in self.layout.whole}

    def attend(self, layer: int, query: Tensor, scale: float, softcap: float | None = None,
               sinks: Tensor | None = None) -> Tensor:
        """``query [heads, N, key_dim]`` over the cache, whose entries of this layer have been written already; scores
        may be capped and sinks ``[heads]`` given (:class:`spin_core.decompose.needs.LayerNeeds`).

        Returns ``[N, heads, value_dim]``.
        """
        heads, total, dim = query.shape
        here, keys, values = self.layout, self.cache.k[layer], self.cache.v[layer]
        width = values.shape[3]
        if here.sole:
            rows = query.new_empty(heads * total, width)
            self._unpooled(here.unpooled[0], query.reshape(-1, dim) * scale, keys, values, rows, softcap, sinks)
            return rows.view(heads, total, width).transpose(0, 1)
        if here.out_rows:
            gathered = query.transpose(0, 1).reshape(-1, dim).index_select(0, here.queries).mul_(scale)
            rows = self.workspace.take("out", query, here.out_rows, width)
            for request in here.unpooled:
                self._unpooled(request, gathered, keys, values, rows, softcap, sinks)
            for pool in here.pools:
                self._pool(pool, gathered[pool.queries], keys, values, rows[pool.out], softcap, sinks)
            out = rows.index_select(0, here.out).view(total, heads, width)
        else:
            out = query.new_empty(total, heads, width)
        for b in here.whole:
            start, count, where = self.batch.starts[b], self.batch.counts[b], (self.batch.slots[b], self.view.first[b],
                                                                               self.plan.lengths[b])
            out[start:start + count] = attend(query[:, start:start + count], entries(keys, *where),
                                              entries(values, *where), self.masks[b], scale, softcap,
                                              sinks).transpose(0, 1)
        return out

    def _unpooled(self, request: Unpooled, gathered: Tensor, keys: Tensor, values: Tensor, rows: Tensor,
                  softcap: float | None, sinks: Tensor | None) -> None:
        """One request, its heads folded into rows: two products on views of the cache."""
        kv, room, dim = keys.shape[1:]
        length, width, at = request.length, values.shape[3], request.slot * kv * room + request.first % room
        query = gathered[request.rows].view(kv, -1, dim)
        if request.first % room + length <= room:
            key = keys.as_strided((kv, dim, length), (room * dim, 1, dim), keys.storage_offset() + at * dim)
            value = values.as_strided((kv, length, width), (room * width, width, 1),
                                      values.storage_offset() + at * width)
        else:
            key = entries(keys, request.slot, request.first, length).transpose(1, 2)
            value = entries(values, request.slot, request.first, length)
        scores = capped(torch.bmm(query, key), softcap)
        if request.tail is not None:
            scores[:, :, length - request.tail.shape[1]:] += request.tail
        out = torch.bmm(scores.softmax(-1), value, out=rows[request.rows].view(kv, -1, width))
        if sinks is not None:       # the rows of a head are neighbours
            out.view(len(sinks), -1, width).mul_(share(scores.logsumexp(-1).view(len(sinks), -1), sinks[:, None]))

    def _pool(self, pool: Packed, gathered: Tensor, keys: Tensor, values: Tensor, rows: Tensor, softcap: float | None,
              sinks: Tensor | None) -> None:
        pieces, width, height = pool.shape
        kv = keys.shape[1]
        query = gathered.view(pieces, kv, height, -1)
        key, value = (torch.index_select(source.view(-1, source.shape[3]), 0, pool.keys,
                                         out=self.workspace.take(name, source, len(pool.keys), source.shape[3]))
                      .view(pieces, kv, width, -1) for name, source in (("k", keys), ("v", values)))
        rows = rows.view(-1, kv, height, values.shape[3])
        if not pool.cut and softcap is None and sinks is None:
            rows.copy_(rectangle(query, key, value, pool.mask))
            return
        out, lse = rectangle_with_lse(query, key, value, pool.mask, softcap)
        rows[pool.cut:].copy_(out[pool.cut_pieces:])
        if pool.cut:
            rows[:pool.cut] = merge_pieces(out[:pool.cut_pieces], lse[:pool.cut_pieces], pool)
        if sinks is not None:       # heads that share keys follow each other, query by query
            parts, whole = lse[:pool.cut_pieces], lse[pool.cut_pieces:]
            if pool.cut:
                whole = torch.cat([(siblings(parts, pool, -torch.inf) + pool.repeated).logsumexp(1), whole])
            rows.mul_(share(whole, sinks.view(kv, -1).repeat(1, height // self.heads.group)))


def entries(store: Tensor, slot: int, first: int, length: int) -> Tensor:
    """``length`` entries of a slot from ``first``, ``[kv_heads, length, dim]``; copied where they go round a ring."""
    room = store.shape[2]
    begin = first % room
    if begin + length <= room:
        return store[slot, :, begin:begin + length]
    return torch.cat([store[slot, :, begin:], store[slot, :, :begin + length - room]], 1)


def rectangle(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention of every row of pieces.

    ``query [R, kv, Q, d]``, scaled already; ``key [R, kv, W, d]``, ``value [R, kv, W, e]``; ``mask [R, 1, Q, W]`` is
    added.
    """
    if query.device.type == "cpu":
        return rectangle_with_lse(query, key, value, mask)[0]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)


def rectangle_with_lse(query: Tensor, key: Tensor, value: Tensor, mask: Tensor,
                       softcap: float | None = None) -> tuple[Tensor, Tensor]:
    """The same, with the log-sum-exp of the scores ``[R, kv, Q]``; of a row that sees nothing both are undefined."""
    if query.device.type == "cpu" and softcap is None and key.shape == value.shape:
        # what scaled_dot_product_attention runs on a CPU, with its second result
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, False,
                                                                          attn_mask=mask, scale=1.0)
    scores = torch.matmul(query, key.transpose(2, 3))
    scores = capped(scores.to(torch.promote_types(scores.dtype, torch.float32)), softcap) + mask
    lse = scores.logsumexp(-1)
    return torch.matmul((scores - lse.unsqueeze(-1)).exp().to(value.dtype), value), lse


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """``scores``, changed in place to ``softcap * tanh(scores / softcap)`` where there is a cap."""
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


def share(lse: Tensor, sinks: Tensor) -> Tensor:
    """What the keys keep of a softmax that a sink has joined, ``[..., 1]``: exp(lse) / (exp(lse) + exp(sink))."""
    return (lse - sinks.to(lse.dtype)).sigmoid().unsqueeze(-1)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None = None,
           sinks: Tensor | None = None) -> Tensor:
    """One request: ``query [heads, T, key_dim]``, ``key [kv_heads, n, key_dim]``, ``value [kv_heads, n, value_dim]``,
    ``mask [T, n]`` True where a query sees a key, None for all, or, with as many queries as keys, for all up to its
    own -> ``[heads, T, value_dim]``."""
    (heads, count, _), (kv, length, _) = query.shape, key.shape
    causal = mask is None and 1 < count == length
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=mask, is_causal=causal,
                                              scale=scale, enable_gqa=heads > kv)[0]
    bias = torch.zeros(count, length, dtype=query.dtype, device=query.device)
    if causal:
        mask = torch.ones_like(bias, dtype=torch.bool).tril()
    if mask is not None:
        bias.masked_fill_(~mask, -torch.inf)
    folded = (query * scale).reshape(1, kv, -1, query.shape[2])         # heads that share keys, folded into rows
    out, lse = rectangle_with_lse(folded, key[None], value[None], bias.repeat(heads // kv, 1), softcap)
    out, lse = out.view(heads, count, -1), lse.reshape(heads, count)
    return out if sinks is None else out * share(lse, sinks[:, None]).to(out.dtype)


def merge_pieces(out: Tensor, lse: Tensor, pool: Packed) -> Tensor:
    """``out [R, kv, Q, d]`` and ``lse [R, kv, Q]`` of the cut requests' pieces -> ``[cut, kv, Q, d]``."""
    shares = (siblings(lse, pool, -torch.inf) + pool.repeated).softmax(1)
    return (siblings(out, pool, 0.0) * shares.unsqueeze(-1)).sum(1)


def siblings(x: Tensor, pool: Packed, unseen: float) -> Tensor:
    """What the pieces ``[R, kv, Q, ...]`` have, by request: ``[cut, most, kv, Q, ...]``, with ``unseen`` for queries
    that see nothing of a piece. Requests of fewer pieces repeat their last one."""
    if pool.fully_masked is not None:
        x = x.masked_fill(pool.fully_masked.view(*pool.fully_masked.shape, *[1] * (x.dim() - 3)), unseen)
    return x.index_select(0, pool.siblings).view(pool.cut, -1, *x.shape[1:])
