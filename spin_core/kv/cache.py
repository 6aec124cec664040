"""The KV cache: one row of memory per request, written by position, rolled back by changing a length."""

from __future__ import annotations

import torch
from torch import Tensor


class SlotCache:
    """Keys and values of ``slots`` requests, each with room for ``max_len`` tokens.

    ``k[layer]`` and ``v[layer]`` are ``[slots, kv_heads, max_len, head_dim]``; where layers differ, ``shapes`` gives
    each one's kv heads, width of a key and width of a value. ``lengths[slot]`` leading entries hold the request's
    committed tokens; what lies beyond is stale and never read, so rolling back costs nothing.
    """

    def __init__(self, num_layers: int, slots: int, kv_heads: int, max_len: int, head_dim: int,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
                 shapes: list[tuple[int, int, int]] | None = None) -> None:
        shapes = shapes or [(kv_heads, head_dim, head_dim)] * num_layers
        # empty, not zeros: on a CPU the system hands out pages only when they are written
        self.k = [torch.empty(slots, kv, max_len, key, dtype=dtype, device=device) for kv, key, _ in shapes]
        self.v = [torch.empty(slots, kv, max_len, value, dtype=dtype, device=device) for kv, _, value in shapes]
        self.lengths = [0] * slots
        self.max_len = max_len

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one request occupies, keys and values of all layers."""
        return sum(store.shape[1] * store.shape[3] * store.element_size() for store in (*self.k, *self.v))

    def check_room(self, slot: int, new_tokens: int) -> None:
        """Raise ValueError when ``new_tokens`` do not fit behind what ``slot`` holds."""
        need = self.lengths[slot] + new_tokens
        if need > self.max_len:
            raise ValueError(f"slot {slot} holds {self.lengths[slot]} tokens and has room for {self.max_len}; "
                             f"{new_tokens} more do not fit")

    def write(self, layer: int, slots: Tensor, index: Tensor, key: Tensor, value: Tensor) -> None:
        """Store ``key``, ``value`` ``[N, kv_heads, head_dim]`` of one layer at entries (slots[n], index[n])."""
        self.k[layer][slots, :, index] = key
        self.v[layer][slots, :, index] = value

    def truncate(self, slot: int, length: int) -> None:
        """Forget what ``slot`` holds beyond ``length`` tokens; a shorter content stays as it is.

        Raises ValueError for a negative ``length``.
        """
        if length < 0:
            raise ValueError(f"slot {slot}: a length of {length} tokens is negative")
        self.lengths[slot] = min(self.lengths[slot], length)
