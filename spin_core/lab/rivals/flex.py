"""Today's kernel without padding, as a strategy of the engine: flex attention over the slot cache, where it lies.

A block mask says which blocks of 128 keys a request's queries see at all; the others are skipped, so a short request
costs little beside a long one and nothing has to be cut. Rows of queries are padded to a common number (they are few),
keys are not. What SPIN's decomposition saves over a padded batch such a kernel never spends: it is the measure that
decomposition has to stand up to.

Compiled on a CUDA device. Elsewhere the library computes every score and masks: right, and slow.
"""

import functools
import warnings

import torch
from torch import Tensor

from spin_core.decompose.attend import TorchStep, Workspace, share
from spin_core.decompose.costs import Heads
from spin_core.decompose.needs import View
from spin_core.decompose.plan import LARGE, Plan
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache


BLOCK = 128         # keys per block of the mask


class FlexStep:
    """The attention of one step. A batch in which a request reads a prompt is attended as in "per-request".

    Masked keys are multiplied by a weight of zero where a block is seen in part, and zero times NaN is NaN; so values
    behind a request's end are blanked up to the end of its block. (They are written anew before they are read.)
    """

    def __new__(cls, plan: Plan, batch: RaggedBatch, cache: SlotCache, heads: Heads, workspace: Workspace,
                view: View | None = None, layer: int = 0):
        if max(batch.counts) > LARGE:
            return TorchStep(plan, batch, cache, heads, workspace, view, layer)
        return super().__new__(cls)

    def __init__(self, plan: Plan, batch: RaggedBatch, cache: SlotCache, heads: Heads, workspace: Workspace,
                 view: View | None = None, layer: int = 0) -> None:
        from torch.nn.attention.flex_attention import create_block_mask

        view = view or View(batch)
        self.plan, self.cache, self.gqa = plan, cache, heads.group > 1
        k = cache.k[layer]
        slots, _, room, _ = k.shape
        # few shapes, as each is compiled
        height, behind = (1 << (max(1, *sizes) - 1).bit_length() for sizes in (
            batch.counts, [p + c - s for p, c, s in zip(batch.prefix, batch.counts, batch.seen)]))
        self.rows = SlotRows(batch, slots, height, k.device)
        seen, newest = torch.zeros(2, slots, dtype=torch.int64)
        first = torch.zeros(slots, height, dtype=torch.int64)   # of the entries before, row t sees those from here
        sees = torch.zeros(slots, height, behind, dtype=torch.bool)     # and of those behind, these
        stale: list[tuple[int, int]] = []
        for b, (slot, count) in enumerate(zip(batch.slots, batch.counts)):
            own, start = view.in_flight(b)
            seen[slot] = batch.seen[b]
            sees[slot, :count, :own.shape[1]] = torch.from_numpy(own)
            first[slot, :count] = torch.as_tensor(start)
            end = batch.prefix[b] + count
            newest[slot] = end - 1
            last = min(room, -(-end // BLOCK) * BLOCK) if k.is_cuda else room
            stale += [(slot, entry) for entry in range(end, last)]
        self.stale = torch.tensor(stale, dtype=torch.int64).view(-1, 2).to(k.device).unbind(1)
        seen, newest, first, sees = (t.to(k.device) for t in (seen, newest, first, sees))

        def visible(b, h, q, key):
            entry = newest[b] - (newest[b] - key) % room        # in a ring the latest kept there; negative: none
            ahead = entry - seen[b]
            return (ahead < 0) & (entry >= first[b, q]) | (ahead >= 0) & (ahead < behind) & \
                sees[b, q, ahead.clamp(0, behind - 1)]

        self.mask = create_block_mask(visible, slots, None, height, room, device=k.device)
        self.flex = _compiled() if k.is_cuda else _eager

    def attend(self, layer: int, query: Tensor, scale: float, softcap: float | None = None,
               sinks: Tensor | None = None) -> Tensor:
        """As :meth:`TorchStep.attend`."""
        heads, total, _ = query.shape
        keys, values = self.cache.k[layer], self.cache.v[layer]
        if not total:
            return query.new_empty(0, heads, values.shape[3])
        values[self.stale[0], :, self.stale[1]] = 0
        out = self.flex(self.rows.spread(query), keys, values, block_mask=self.mask, scale=scale, enable_gqa=self.gqa,
                        score_mod=_cap(softcap), return_lse=sinks is not None)
        if sinks is not None:
            out = out[0] * share(out[1], sinks[:, None]).to(query.dtype)
        return self.rows.collect(out)


class SlotRows:
    """The queries of a batch as a rectangle of ``rows`` per slot of the cache, and back.

    Row t of a slot is in-flight token t of its request; rows without a token repeat the batch's first one.
    """

    def __init__(self, batch: RaggedBatch, slots: int, rows: int, device: torch.device) -> None:
        self.slots, self.rows = slots, rows
        index = torch.zeros(slots, rows, dtype=torch.int64)             # the token that a row reads
        place = torch.empty(len(batch.tokens), dtype=torch.int64)       # the row of a token
        for slot, start, count in zip(batch.slots, batch.starts, batch.counts):
            index[slot, :count] = torch.arange(start, start + count)
            place[start:start + count] = slot * rows + torch.arange(count)
        self.index, self.place = index.ravel().to(device), place.to(device)

    def spread(self, query: Tensor) -> Tensor:
        """``[heads, N, head_dim]`` -> ``[slots, heads, rows, head_dim]``."""
        return query.index_select(1, self.index).unflatten(1, (self.slots, self.rows)).transpose(0, 1)

    def collect(self, out: Tensor) -> Tensor:
        """``[slots, heads, rows, head_dim]`` -> ``[N, heads, head_dim]``."""
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self.place)


@functools.cache
def _cap(softcap: float | None):
    """The same function for the same cap: for another one the kernel would be compiled again."""
    return None if softcap is None else lambda score, b, h, q, key: softcap * torch.tanh(score / softcap)


@functools.cache
def _compiled():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _eager(*args, **more) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return flex_attention(*args, **more)
