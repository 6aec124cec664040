"""Ragged batches over poisoned caches, and their attention by the textbook."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from spin_core.decompose.costs import Costs, Heads
from spin_core.decompose.needs import LayerNeeds, Sight
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache

MAX_LEN = 70
COSTS = Costs(3, 3, step_call=2e-5, unpooled_call=3e-5, unpooled_key=2e-8, unpooled_score=2.5e-9, pool_call=6e-5,
              pool_width=0, pool_key=3e-8, pool_score=3e-9, pool_query=1e-7, merge_call=2.5e-5, merge_query=8e-8,
              unpooled_query=5e-8, unpooled_step=1.5e-5)


@st.composite
def ragged(draw, longest: int = 48, widest: int = 6, requests: int = 5):
    """(prefix, count, parents) per request: parents is None for a chain, else every node's parent (-1: the prefix).

    A request may ask for nothing, and it may have nothing.
    """
    batch = []
    for _ in range(draw(st.integers(1, requests))):
        prefix = draw(st.sampled_from([0, 1, 2, 17]) | st.integers(0, longest))
        count = draw(st.integers(0, widest))
        parents = draw(st.none() | st.tuples(*(st.integers(-1, i - 1) for i in range(count))))
        batch.append((prefix, count, parents))
    return batch


def ancestors(parents: tuple[int, ...]) -> Tensor:
    """Bool ``[T, T]``: who sees whom in a tree, itself included."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i] |= mask[parent]
    return mask


@dataclass
class Case:
    batch: RaggedBatch
    cache: SlotCache
    query: Tensor           # [heads, N, dim]
    heads: Heads
    expected: Tensor        # [N, heads, dim]
    scale: float
    needs: LayerNeeds


SIGHTS = [Sight(5), Sight(1), Sight(33), Sight(4, True), Sight(20, True)]


@st.composite
def special(draw) -> dict:
    """What a layer may need beside plain attention: arguments of :func:`case`."""
    return dict(sight=draw(st.none() | st.sampled_from(SIGHTS)), softcap=draw(st.none() | st.just(0.7)),
                sinks=draw(st.booleans()), value_dim=draw(st.sampled_from([None, 5])))


def case(requests, *, kv: int = 2, group: int = 3, dim: int = 8, dtype=torch.float64, seed: int = 0, layers: int = 1,
         device="cpu", max_len: int = MAX_LEN, poison: float = float("nan"), value_dim: int | None = None,
         sight: Sight | None = None, softcap: float | None = None, sinks: bool = False,
         ring: int | None = None) -> Case:
    """A cache that holds NaN wherever no request of the batch has a token, in slots of another order."""
    generator = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    slots = torch.randperm(len(requests) + 2, generator=generator)[:len(requests)].tolist()
    counts, prefix = [c for _, c, _ in requests], [p for p, _, _ in requests]
    masks = [None if parents is None else ancestors(parents) for _, _, parents in requests]
    batch = RaggedBatch.build(torch.zeros(sum(counts), dtype=torch.int64, device=device), slots, counts, prefix, masks)
    needs = LayerNeeds(kv * group, kv, dim, value_dim or dim, sight, softcap,
                       random(kv * group).to(device, dtype) if sinks else None)
    cache = SlotCache(layers, len(requests) + 2, kv, max_len, dim, dtype, device, [needs.shape] * layers)
    query = random(kv * group, sum(counts), dim)
    for tensor in cache.k + cache.v:
        tensor.fill_(poison)
        for slot, p, c in zip(slots, prefix, counts):
            tensor[slot, :, :p + c] = random(kv, p + c, tensor.shape[3]).to(tensor)
    query = query.to(device=device, dtype=dtype)
    scale = dim ** -0.5
    expected = textbook(query, batch, cache, layers - 1, scale, needs)
    if ring:            # the same texts, written token by token
        whole = cache
        cache = SlotCache(layers, len(requests) + 2, kv, max_len, dim, dtype, device, [needs.shape] * layers,
                          [sight.size] * layers, ring)
        for mine, theirs in zip(cache.k + cache.v, whole.k + whole.v):
            mine.fill_(poison)
            for slot, p, c in zip(slots, prefix, counts):
                for entry in range(p + c):
                    mine[slot, :, entry % mine.shape[2]] = theirs[slot, :, entry]
    return Case(batch, cache, query, Heads(kv, group), expected, scale, needs)


def textbook(query: Tensor, batch: RaggedBatch, cache: SlotCache, layer: int, scale: float,
             needs: LayerNeeds) -> Tensor:
    """Undecomposed attention, every request, head and query by itself, in float64."""
    heads, total, _ = query.shape
    group = heads // cache.k[layer].shape[1]
    out = torch.empty(total, heads, needs.value_dim, dtype=torch.float64)
    for slot, start, count, prefix, tree in zip(batch.slots, batch.starts, batch.counts, batch.prefix, batch.ancestors):
        among = torch.ones(count, count, dtype=torch.bool).tril() if tree is None else tree
        visible = torch.cat([torch.ones(count, prefix, dtype=torch.bool), among], 1)
        depths = among.sum(1) - 1
        for t in range(count if needs.sight else 0):
            first = needs.sight.start(prefix + int(depths[t]))
            visible[t] &= torch.cat([torch.arange(prefix), prefix + depths]) >= first
        for h in range(heads):
            key, value = (x[layer][slot, h // group, :prefix + count].double().cpu() for x in (cache.k, cache.v))
            scores = query[h, start:start + count].double().cpu() @ key.T * scale
            if needs.softcap is not None:
                scores = needs.softcap * torch.tanh(scores / needs.softcap)
            scores = scores.masked_fill(~visible, -torch.inf)
            if needs.sinks is not None:
                scores = torch.cat([scores, needs.sinks[h].double().cpu().expand(count, 1)], 1)
            out[start:start + count, h] = scores.softmax(-1)[:, :prefix + count] @ value
    return out
