"""Keeping the accepted path of a verified tree: its entries move up until the committed text is contiguous again.

A tree's nodes lie in the cache in the order of the tree. Node ``path[i]`` was accepted as token i, so entry ``base +
path[i]`` moves to ``base + i``. ``path`` ascends (parents come before children), so nothing moves backwards, but a
destination may be another's source: so all of a request's entries are read before any is written.
"""

import torch
from torch import Tensor

from spin_core.kv.cache import SlotCache
from spin_core.names import kernels


def compact(store: SlotCache, slots: list[int], bases: list[int], paths: list[list[int]],
            states: Tensor | None = None) -> None:
    """Move the accepted nodes of each request to where its text goes on, in every layer, and in ``states [slots,
    max_len, hidden]`` if given.

    Request b of ``slots[b]`` has ``bases[b]`` entries before its tree. ``store.lengths`` stay as they are. Raises
    ValueError for a path that does not ascend or leaves the cache; nothing has moved then.
    """
    for slot, base, path in zip(slots, bases, paths):
        if any(not a < b for a, b in zip([-1, *path], path)) or path and base + path[-1] >= store.max_len:
            raise ValueError(f"slot {slot}: accepted nodes {path} behind {base} tokens do not ascend within "
                             f"{store.max_len} entries")
    moving = [(s, b, p) for s, b, p in zip(slots, bases, paths) if p != list(range(len(p)))]
    if not moving:
        return
    device = store.k[0].device
    alike = len({layer.shape for layer in (*store.k, *store.v)}) == 1
    if device.type == "cuda" and alike and store.most is None and (kernel := kernels("spin_core.kv.compact_kernel")):
        kernel.compact(store, *zip(*moving))
    else:
        slot, source, target = _moves(moving, device)
        for layer in (*store.k, *store.v):
            room = layer.shape[2]                   # of a ring; the right side is a copy before it is written
            layer[slot, :, target % room] = layer[slot, :, source % room]
    if states is not None:
        slot, source, target = _moves(moving, states.device)
        states[slot, target] = states[slot, source]


def _moves(moving: list[tuple[int, int, list[int]]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Slots, sources and destinations of all entries that move, ``[M]`` each."""
    rows = [(slot, base + node, base + i) for slot, base, path in moving for i, node in enumerate(path)]
    return tuple(torch.tensor(rows, dtype=torch.int64, device=device).unbind(1))
