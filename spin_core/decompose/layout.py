"""Where every number of a planned step comes from and goes to: index tensors, built once and used by all layers.

Query rows are gathered into blocks, one per unpooled request and one per piece of a pool. A block is ``[kv_heads,
queries * group]`` rows: heads that share keys are folded into the rows (GQA), so that keys are read once for all of
them. An unpooled request has them head by head, as they come from the model: a step of one request gathers nothing.
Padding rows repeat the request's first query and padding keys its first key, which are always there.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spin_core.decompose.costs import Heads
from spin_core.decompose.needs import View
from spin_core.decompose.plan import LARGE, Plan, Pool


@dataclass
class Unpooled:
    """A request read where it is: ``length`` entries from ``first``. ``rows`` are its query rows in the gathered block,
    ``tail [rows, W]`` is added to the scores of the last W keys (None: all visible)."""

    slot: int
    first: int
    length: int
    rows: slice
    tail: Tensor | None


@dataclass
class Packed:
    """A pool: R pieces of W keys and Q = queries * group rows, of P requests, of which the first ``cut`` (with the
    first ``cut_pieces`` pieces) are in several pieces and have to be merged."""

    shape: tuple[int, int, int]         # R, W, Q
    queries: slice                      # its rows in the gathered queries
    out: slice                          # its rows in the gathered outputs
    keys: Tensor                        # [R * kv * W] rows of the cache, seen as [slots * kv * max_len, head_dim]
    mask: Tensor                        # [R, 1, Q, W], 0 or -inf
    fully_masked: Tensor | None         # bool [cut_pieces, 1, Q]: rows that see nothing of a piece
    cut: int
    cut_pieces: int
    siblings: Tensor                    # [cut * most] pieces of every request, the last one repeated
    repeated: Tensor                    # [cut, most, 1, 1] -inf for a repetition, else 0


@dataclass
class Layout:
    queries: Tensor                     # rows to gather from [N * heads, head_dim]
    out: Tensor                         # [N * heads] rows to gather from the outputs
    out_rows: int
    unpooled: list[Unpooled]
    whole: list[int]                    # requests for the library's own attention: prompts, and whatever is not folded
    pools: list[Packed]

    @property
    def sole(self) -> bool:
        """Whether there is one request, read where it is: its block is all of the query as it stands."""
        return len(self.unpooled) == 1 and not self.whole and not self.pools


def build(plan: Plan, view: View, heads: Heads, max_len: int, dtype: torch.dtype, device: torch.device) -> Layout:
    """The layout of ``plan`` for the batch of ``view``, over a cache of ``[slots, kv_heads, max_len, head_dim]``."""
    batch, group, num_heads = view.batch, heads.group, heads.kv * heads.group
    out = np.zeros((len(batch.tokens), heads.kv, group), dtype=np.int64)
    queries: list[np.ndarray] = []
    unpooled, whole, pools = [], [], []
    fold = device.type == "cpu" and dtype in (torch.float32, torch.float64)         # elsewhere there are better kernels
    taken = gathered = 0
    inner = np.arange(heads.kv)[:, None, None] * group + np.arange(group)           # [kv, 1, group]

    for b in plan.unpooled:
        count, start = batch.counts[b], batch.starts[b]
        if count > LARGE or not fold:
            whole.append(b)
            continue
        shape = (heads.kv, group, count)                                           # a block, and its rows in order
        size = count * num_heads
        out[start:start + count] = np.arange(taken, taken + size).reshape(shape).transpose(2, 0, 1)
        queries.append((np.arange(num_heads)[:, None] + np.arange(start, start + count) * num_heads).ravel())
        unpooled.append(Unpooled(batch.slots[b], view.first[b], plan.lengths[b], slice(gathered, gathered + size),
                                 _tail(view, b, group, dtype, device)))
        taken, gathered = taken + size, gathered + size

    for pool in plan.pools:
        requests, rows = pool.requests, pool.queries
        starts = np.array([batch.starts[b] for b in requests])
        counts = np.array([batch.counts[b] for b in requests])
        rank = {b: i for i, b in enumerate(requests)}
        owner = np.array([rank[piece.request] for piece in pool.pieces])
        step = np.arange(rows)
        token = starts[:, None] + np.where(step < counts[:, None], step, 0)        # [P, rows]
        block = token[:, None, :, None] * num_heads + inner                        # [P, kv, rows, group]
        place = taken + np.arange(block.size).reshape(block.shape)
        for i, (start, count) in enumerate(zip(starts, counts)):
            out[start:start + count] = place[i, :, :count].transpose(1, 0, 2)
        pieces = block[owner]
        queries.append(pieces.ravel())
        pools.append(_pack(pool, view, heads, max_len, dtype, device, owner,
                           slice(gathered, gathered + pieces.size), slice(taken, taken + block.size)))
        taken, gathered = taken + block.size, gathered + pieces.size

    flat = np.concatenate(queries) if queries else np.zeros(0, dtype=np.int64)
    return Layout(_to(flat, device), _to(out.ravel(), device), taken, unpooled, whole, pools)


def _pack(pool: Pool, view: View, heads: Heads, max_len: int, dtype, device, owner: np.ndarray, queries: slice,
          out: slice) -> Packed:
    batch, width, rows = view.batch, pool.width, pool.queries
    start = np.array([p.start for p in pool.pieces])[:, None]
    stop = np.array([p.stop for p in pool.pieces])[:, None]
    slot = np.array([batch.slots[p.request] for p in pool.pieces])[:, None, None]
    token = start + np.arange(width)                                               # [R, W]
    real = token < stop
    row = (slot * heads.kv + np.arange(heads.kv)[:, None]) * max_len               # [R, kv, 1]
    first = np.array([view.first[p.request] for p in pool.pieces])[:, None]
    keys = row + ((first + np.where(real, token, 0)) % max_len)[:, None]           # a ring, if it is no longer
    visible = np.repeat(real[:, None], rows, 1)                                    # [R, rows, W]
    for r, piece in enumerate(pool.pieces):
        mask = view.mask(piece.request)
        seen = view.lengths[piece.request] - mask.shape[1]
        begin = max(piece.start, seen)
        if piece.stop > begin:
            part = slice(begin - piece.start, piece.stop - piece.start)
            visible[r, :len(mask), part] = mask[:, begin - seen:piece.stop - seen]
    mask = np.where(visible, 0.0, -np.inf).astype(np.float64 if dtype == torch.float64 else np.float32)
    mask = _to(np.repeat(mask, heads.group, 1)[:, None], device).to(dtype)
    pieces_of = np.bincount(owner)
    cut = int((pieces_of > 1).sum())
    cut_pieces = int(pieces_of[:cut].sum())
    if (pieces_of[:cut] <= 1).any():
        raise ValueError("a pool's requests must come in the order of their number of pieces, most first")
    fully_masked = ~visible[:cut_pieces].any(2)
    most = int(pieces_of.max())
    first_piece = np.concatenate([[0], pieces_of.cumsum()])[:cut, None]
    siblings = first_piece + np.minimum(np.arange(most), pieces_of[:cut, None] - 1)
    repeated = np.where(np.arange(most) < pieces_of[:cut, None], 0.0, -np.inf)[..., None, None]
    return Packed((len(pool.pieces), width, rows * heads.group), queries, out, _to(keys.ravel(), device), mask,
                  _to(np.repeat(fully_masked, heads.group, 1)[:, None], device) if fully_masked.any() else None,
                  cut, cut_pieces, _to(siblings.ravel(), device), _to(repeated, device).to(mask.dtype))


def _tail(view: View, b: int, group: int, dtype, device) -> Tensor | None:
    if view.sight is None and view.batch.ancestors[b] is None:
        return _chain_tail(view.batch.counts[b], group, dtype, device)
    return _bias(view.mask(b), group, dtype, device)


@functools.lru_cache(maxsize=256)
def _chain_tail(count: int, group: int, dtype, device) -> Tensor | None:
    return _bias(np.tri(count, dtype=bool), group, dtype, device)


def _bias(visible: np.ndarray, group: int, dtype, device) -> Tensor | None:
    if visible.all():
        return None
    return _to(np.where(np.tile(visible, (group, 1)), 0.0, -np.inf), device).to(dtype)


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
