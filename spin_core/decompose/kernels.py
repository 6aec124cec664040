"""Triton: attention over pieces read in place from the slot cache, and the merge of their results.

No key or value is copied and none beyond a piece's end is loaded. One program of the first kernel attends the query
rows of one request (all heads that share a kv head, folded) over one piece and leaves output and log-sum-exp; one
program of the second joins the pieces of one token. Visibility among in-flight tokens is a bit mask per token, so
trees cost what chains cost.
"""

from __future__ import annotations


import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from spin_core.decompose.attend import TorchStep, Workspace
from spin_core.decompose.costs import Heads
from spin_core.decompose.layout import in_flight_mask
from spin_core.decompose.plan import Plan
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache


# Keys per turn of a program's loop, warps of a program, loads in flight. Fixed, for autotuning needs a driver.
BLOCK, WARPS, STAGES = 64, 4, 3


@triton.jit
def _attend_pieces(Q, K, V, OUT, LSE, PIECES, SEES, scale, q_head, q_token, slot_stride, head_stride,
                   KV: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr,
                   BLOCK: tl.constexpr, ACC: tl.constexpr):
    """Program (r, h): piece r of kv head h. PIECES [R, 6]: slot, start, stop, first token, tokens,
    and how many entries all of them see."""
    r, h = tl.program_id(0), tl.program_id(1)
    slot, start, stop = tl.load(PIECES + r * 6), tl.load(PIECES + r * 6 + 1), tl.load(PIECES + r * 6 + 2)
    token, count, seen = tl.load(PIECES + r * 6 + 3), tl.load(PIECES + r * 6 + 4), tl.load(PIECES + r * 6 + 5)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, D)
    mine = token + rows // GROUP
    real = rows < count * GROUP
    inside = dims < DIM
    q = tl.load(Q + (h * GROUP + rows % GROUP)[:, None] * q_head + mine[:, None] * q_token + dims[None],
                mask=real[:, None] & inside[None], other=0.0)
    sees = tl.load(SEES + mine, mask=real, other=1)         # bit i: sees entry seen + i
    base = slot * slot_stride + h * head_stride
    peak = tl.full([ROWS], float("-inf"), ACC)
    total = tl.zeros([ROWS], ACC)
    acc = tl.zeros([ROWS, D], ACC)
    for first in range(start, stop, BLOCK):
        at = first + tl.arange(0, BLOCK)
        held = at < stop
        k = tl.load(K + base + at[None] * DIM + dims[:, None], mask=held[None] & inside[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee", out_dtype=ACC) * scale
        in_flight = tl.maximum(at - seen, 0).to(tl.int64)
        visible = held[None] & ((at < seen)[None] | (((sees[:, None] >> in_flight[None]) & 1) == 1))
        scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        base_peak = tl.where(new_peak == float("-inf"), 0.0, new_peak)      # nothing seen yet: exp(-inf - 0) = 0
        shrink = tl.exp(peak - base_peak)
        weights = tl.exp(scores - base_peak[:, None])
        v = tl.load(V + base + at[:, None] * DIM + dims[None], mask=held[:, None] & inside[None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee", out_dtype=ACC)
        total = total * shrink + tl.sum(weights, 1)
        peak = new_peak
    seen = total > 0
    row = (r * KV + h) * ROWS + rows
    tl.store(OUT + row[:, None] * DIM + dims[None], acc / tl.where(seen, total, 1.0)[:, None], mask=inside[None])
    tl.store(LSE + row, tl.where(seen, peak + tl.log(tl.where(seen, total, 1.0)), float("-inf")))


@triton.jit
def _merge_pieces(PARTS, LSE, OUT, TOKENS, KV: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
                  DIM: tl.constexpr, D: tl.constexpr, G: tl.constexpr, ACC: tl.constexpr):
    """Program (i, h): one token's heads of kv head h. TOKENS [M, 4]: token, its number in the request, pieces from,
    to."""
    i, h = tl.program_id(0), tl.program_id(1)
    token, number = tl.load(TOKENS + i * 4), tl.load(TOKENS + i * 4 + 1)
    first, last = tl.load(TOKENS + i * 4 + 2), tl.load(TOKENS + i * 4 + 3)
    heads, dims = tl.arange(0, G), tl.arange(0, D)
    real = heads < GROUP
    mask = real[:, None] & (dims < DIM)[None]
    peak = tl.full([G], float("-inf"), ACC)
    total = tl.zeros([G], ACC)
    acc = tl.zeros([G, D], ACC)
    for r in range(first, last):
        row = (r * KV + h) * ROWS + number * GROUP + heads
        lse = tl.load(LSE + row, mask=real, other=0.0)
        new_peak = tl.maximum(peak, lse)
        base_peak = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink, weight = tl.exp(peak - base_peak), tl.exp(lse - base_peak)
        part = tl.load(PARTS + row[:, None] * DIM + dims[None], mask=mask, other=0.0)
        acc = acc * shrink[:, None] + part * weight[:, None]
        total = total * shrink + weight
        peak = new_peak
    at = token * KV * GROUP + h * GROUP + heads
    tl.store(OUT + at[:, None] * DIM + dims[None], (acc / total[:, None]).to(OUT.dtype.element_ty), mask=mask)


class KernelStep(TorchStep):
    """A step whose pools run in the two kernels; unpooled requests run as in :class:`TorchStep`.

    Needs Triton, on a CUDA device or in its interpreter, and at most 63 tokens behind what all see for a request in a pool.
    """

    def __init__(self, plan: Plan, batch: RaggedBatch, cache: SlotCache, heads: Heads,
                 workspace: Workspace) -> None:
        if plan.unpooled:
            rest = Plan(plan.strategy, plan.lengths, plan.q_lens, (), plan.unpooled)
            super().__init__(rest, batch, cache, heads, workspace)
        self.plan, self.batch, self.cache, self.workspace, self.heads = plan, batch, cache, workspace, heads
        pieces, tokens = [], []
        sees = np.zeros(len(batch.tokens), dtype=np.int64)
        for pool in plan.pools:
            for piece in pool.pieces:
                b = piece.request
                if not tokens or tokens[-1][0] != batch.starts[b] + batch.counts[b] - 1:    # its first piece
                    visible = in_flight_mask(batch, b)
                    bits = visible.astype(np.int64) << np.arange(visible.shape[1])
                    sees[batch.starts[b]:batch.starts[b] + batch.counts[b]] = bits.sum(1)
                    tokens += [[batch.starts[b] + t, t, len(pieces), 0] for t in range(batch.counts[b])]
                pieces.append((batch.slots[b], piece.start, piece.stop, batch.starts[b], batch.counts[b],
                               batch.seen[b]))
                for entry in tokens[-batch.counts[b]:]:
                    entry[3] = len(pieces)
        # in 64 bits: a cache of many gigabytes has more numbers than 32 bits count. In one transfer to the device.
        numbers = np.concatenate([np.array(pieces, dtype=np.int64).ravel(), np.array(tokens, dtype=np.int64).ravel(),
                                  sees])
        everything = torch.from_numpy(numbers).to(cache.k[0].device)
        pieces, tokens, self.sees = everything.split([6 * len(pieces), 4 * len(tokens), len(sees)])
        self.pieces, self.tokens = pieces.view(-1, 6), tokens.view(-1, 4)
        self.rows = max(16, triton.next_power_of_2(max((pool.queries for pool in plan.pools), default=1) * heads.group))

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        heads, total, dim = query.shape
        out = super().attend(layer, query, scale) if self.plan.unpooled else query.new_empty(total, heads, dim)
        if not self.plan.pools:
            return out
        kv, group = self.heads.kv, self.heads.group
        keys, values = self.cache.k[layer], self.cache.v[layer]
        query = query if query.stride(2) == 1 else query.contiguous()
        count, double = len(self.pieces), query.dtype == torch.float64
        like = query.new_empty(0, dtype=torch.float64 if double else torch.float32)
        parts = self.workspace.take("parts", like, count, kv, self.rows, dim)
        lse = self.workspace.take("lse", like, count, kv, self.rows)
        width = max(16, triton.next_power_of_2(dim))
        common = dict(KV=kv, GROUP=group, ROWS=self.rows, DIM=dim, D=width, ACC=tl.float64 if double else tl.float32)
        _attend_pieces[count, kv](query, keys, values, parts, lse, self.pieces, self.sees, scale, query.stride(0),
                                  query.stride(1), keys.stride(0), keys.stride(1), **common,
                                  BLOCK=BLOCK if width <= 128 else BLOCK // 2, num_warps=WARPS, num_stages=STAGES)
        _merge_pieces[len(self.tokens), kv](parts, lse, out, self.tokens, **common, G=triton.next_power_of_2(group))
        return out
