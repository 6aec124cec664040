"""Triton: attention over pieces read in place from the slot cache, and the merge of their results.

No key or value is copied and none beyond a piece's end is loaded. One program of the first kernel attends the query
rows of one request (all heads that share a kv head, folded) over one piece and leaves output and log-sum-exp; one
program of the second joins the pieces of one token. Visibility among in-flight tokens is a bit mask per token, so
trees cost what chains cost.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from spin_core.decompose.attend import TorchStep, Workspace
from spin_core.decompose.costs import Heads
from spin_core.decompose.needs import View
from spin_core.decompose.plan import Plan
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache


# Keys per turn of a program's loop, warps of a program, loads in flight. Fixed, for autotuning needs a driver.
BLOCK, WARPS, STAGES = 64, 4, 3


@triton.jit
def _attend_pieces(Q, K, V, OUT, LSE, PIECES, SEES, FIRST, scale, cap, q_head, q_token, k_slot, k_head, v_slot, v_head,
                   KV: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr,
                   VDIM: tl.constexpr, VD: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr, WINDOW: tl.constexpr,
                   ROOM: tl.constexpr, CAP: tl.constexpr):
    """Program (r, h): piece r of kv head h. PIECES [R, 6]: slot, start, stop, first token, tokens,
    and the entry from which on SEES says what each token sees; of those before, it sees the ones from FIRST. With a
    WINDOW a slot is a ring of ROOM entries."""
    r, h = tl.program_id(0), tl.program_id(1)
    slot, start, stop = tl.load(PIECES + r * 6), tl.load(PIECES + r * 6 + 1), tl.load(PIECES + r * 6 + 2)
    token, count, seen = tl.load(PIECES + r * 6 + 3), tl.load(PIECES + r * 6 + 4), tl.load(PIECES + r * 6 + 5)
    rows, dims, vdims = tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, VD)
    mine = token + rows // GROUP
    real = rows < count * GROUP
    inside, vinside = dims < DIM, vdims < VDIM
    q = tl.load(Q + (h * GROUP + rows % GROUP)[:, None] * q_head + mine[:, None] * q_token + dims[None],
                mask=real[:, None] & inside[None], other=0.0)
    sees = tl.load(SEES + mine, mask=real, other=1)         # bit i: sees entry seen + i
    if WINDOW:
        oldest = tl.load(FIRST + mine, mask=real, other=0)
    peak = tl.full([ROWS], float("-inf"), ACC)
    total = tl.zeros([ROWS], ACC)
    acc = tl.zeros([ROWS, VD], ACC)
    for first in range(start, stop, BLOCK):
        at = first + tl.arange(0, BLOCK)
        held = at < stop
        place = at
        if WINDOW:
            place = at % ROOM
        k = tl.load(K + slot * k_slot + h * k_head + place[None] * DIM + dims[:, None],
                    mask=held[None] & inside[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee", out_dtype=ACC) * scale
        if CAP:
            scores = cap * (2 / (1 + tl.exp(-2 * scores / cap)) - 1)        # cap * tanh(scores / cap)
        in_flight = tl.maximum(at - seen, 0).to(tl.int64)
        before = (at < seen)[None]
        if WINDOW:
            before = before & (at[None] >= oldest[:, None])
        visible = held[None] & (before | ((at >= seen)[None] & (((sees[:, None] >> in_flight[None]) & 1) == 1)))
        scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        base_peak = tl.where(new_peak == float("-inf"), 0.0, new_peak)      # nothing seen yet: exp(-inf - 0) = 0
        shrink = tl.exp(peak - base_peak)
        weights = tl.exp(scores - base_peak[:, None])
        v = tl.load(V + slot * v_slot + h * v_head + place[:, None] * VDIM + vdims[None],
                    mask=held[:, None] & vinside[None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee", out_dtype=ACC)
        total = total * shrink + tl.sum(weights, 1)
        peak = new_peak
    seen = total > 0
    row = (r * KV + h) * ROWS + rows
    tl.store(OUT + row[:, None] * VDIM + vdims[None], acc / tl.where(seen, total, 1.0)[:, None], mask=vinside[None])
    tl.store(LSE + row, tl.where(seen, peak + tl.log(tl.where(seen, total, 1.0)), float("-inf")))


@triton.jit
def _merge_pieces(PARTS, LSE, OUT, TOKENS, SINKS, KV: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
                  DIM: tl.constexpr, D: tl.constexpr, G: tl.constexpr, ACC: tl.constexpr, SINK: tl.constexpr):
    """Program (i, h): one token's heads of kv head h. TOKENS [M, 4]: token, its number in the request, pieces from,
    to. SINKS [heads]: one more score, without a value."""
    i, h = tl.program_id(0), tl.program_id(1)
    token, number = tl.load(TOKENS + i * 4), tl.load(TOKENS + i * 4 + 1)
    first, last = tl.load(TOKENS + i * 4 + 2), tl.load(TOKENS + i * 4 + 3)
    heads, dims = tl.arange(0, G), tl.arange(0, D)
    real = heads < GROUP
    mask = real[:, None] & (dims < DIM)[None]
    peak = tl.full([G], float("-inf"), ACC)
    total = tl.zeros([G], ACC)
    if SINK:
        peak = tl.load(SINKS + h * GROUP + heads, mask=real, other=0.0).to(ACC)
        total = tl.full([G], 1.0, ACC)
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

    Needs Triton, on a CUDA device or in its interpreter, and of a request in a pool at most 63 in-flight tokens.
    """

    def __init__(self, plan: Plan, batch: RaggedBatch, cache: SlotCache, heads: Heads, workspace: Workspace,
                 view: View | None = None, layer: int = 0) -> None:
        view = view or View(batch)
        if plan.unpooled:
            rest = Plan(plan.strategy, plan.lengths, plan.q_lens, (), plan.unpooled)
            super().__init__(rest, batch, cache, heads, workspace, view, layer)
        self.plan, self.batch, self.cache, self.workspace = plan, batch, cache, workspace
        self.heads, self.view = heads, view
        pieces, tokens = [], []
        sees, oldest = np.zeros((2, len(batch.tokens)), dtype=np.int64)
        for pool in plan.pools:
            for piece in pool.pieces:
                b = piece.request
                start, count, first = batch.starts[b], batch.counts[b], view.first[b]
                if not tokens or tokens[-1][0] != start + count - 1:        # its first piece
                    visible, since = view.in_flight(b)
                    sees[start:start + count] = (visible.astype(np.int64) << np.arange(visible.shape[1])).sum(1)
                    oldest[start:start + count] = since
                    tokens += [[start + t, t, len(pieces), 0] for t in range(count)]
                pieces.append((batch.slots[b], first + piece.start, first + piece.stop, start, count, batch.seen[b]))
                for entry in tokens[-count:]:
                    entry[3] = len(pieces)
        # in 64 bits: a cache of many gigabytes has more numbers than 32 bits count. In one transfer to the device.
        numbers = np.concatenate([np.array(pieces, dtype=np.int64).ravel(), np.array(tokens, dtype=np.int64).ravel(),
                                  sees, oldest])
        everything = torch.from_numpy(numbers).to(cache.k[0].device)
        sizes = 6 * len(pieces), 4 * len(tokens), len(sees), len(oldest)
        pieces, tokens, self.sees, self.oldest = everything.split(sizes)
        self.pieces, self.tokens = pieces.view(-1, 6), tokens.view(-1, 4)
        self.rows = max(16, triton.next_power_of_2(max((pool.queries for pool in plan.pools), default=1) * heads.group))

    def attend(self, layer: int, query: Tensor, scale: float, softcap: float | None = None,
               sinks: Tensor | None = None) -> Tensor:
        heads, total, dim = query.shape
        keys, values = self.cache.k[layer], self.cache.v[layer]
        width = values.shape[3]
        out = super().attend(layer, query, scale, softcap, sinks) if self.plan.unpooled else \
            query.new_empty(total, heads, width)
        if not self.plan.pools:
            return out
        kv, group = self.heads.kv, self.heads.group
        query = query if query.stride(2) == 1 else query.contiguous()
        count, double = len(self.pieces), query.dtype == torch.float64
        like = query.new_empty(0, dtype=torch.float64 if double else torch.float32)
        parts = self.workspace.take("parts", like, count, kv, self.rows, width)
        lse = self.workspace.take("lse", like, count, kv, self.rows)
        d, vd = (max(16, triton.next_power_of_2(size)) for size in (dim, width))
        common = dict(KV=kv, GROUP=group, ROWS=self.rows, ACC=tl.float64 if double else tl.float32)
        _attend_pieces[count, kv](query, keys, values, parts, lse, self.pieces, self.sees, self.oldest, scale,
                                  softcap or 1.0, *query.stride()[:2], *keys.stride()[:2], *values.stride()[:2],
                                  **common, DIM=dim, D=d, VDIM=width, VD=vd, WINDOW=self.view.sight is not None,
                                  ROOM=keys.shape[2], CAP=softcap is not None,
                                  BLOCK=BLOCK if max(d, vd) <= 128 else BLOCK // 2,
                                  num_warps=WARPS, num_stages=STAGES)
        _merge_pieces[len(self.tokens), kv](parts, lse, out, self.tokens, lse if sinks is None else sinks, **common,
                                            DIM=width, D=vd, G=triton.next_power_of_2(group), SINK=sinks is not None)
        return out
