"""The KV cache: one row of memory per request, written by position, rolled back by changing a length."""

import torch
from torch import Tensor


class SlotCache:
    """Keys and values of ``slots`` requests, each with room for ``max_len`` tokens.

    ``k[layer]`` and ``v[layer]`` are ``[slots, kv_heads, max_len, head_dim]``; where layers differ, ``shapes`` gives
    each one's kv heads, width of a key and width of a value. ``lengths[slot]`` leading entries hold the request's
    committed tokens; what lies beyond is stale and never read, so rolling back costs nothing.

    ``windows[layer]``: how many of the latest tokens a layer's token sees at most, None for all. Such a layer is a ring
    of window + ``ahead`` entries, if these are fewer than ``max_len``: token i is in entry i modulo their number. So at
    most ``ahead`` tokens may be read at once (``most``, None without a ring), and as many be taken back.
    """

    def __init__(self, num_layers: int, slots: int, kv_heads: int, max_len: int, head_dim: int,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
                 shapes: list[tuple[int, int, int]] | None = None, windows: list[int | None] | None = None,
                 ahead: int = 0) -> None:
        shapes = shapes or [(kv_heads, head_dim, head_dim)] * num_layers
        rooms = [min(max_len, window + ahead) if window else max_len for window in windows or [None] * num_layers]
        # empty, not zeros: on a CPU the system hands out pages only when they are written
        self.k = [torch.empty(slots, kv, n, key, dtype=dtype, device=device) for (kv, key, _), n in zip(shapes, rooms)]
        self.v = [torch.empty(slots, kv, n, val, dtype=dtype, device=device) for (kv, _, val), n in zip(shapes, rooms)]
        self.lengths = [0] * slots
        self.most = ahead if min(rooms, default=max_len) < max_len else None
        self.ahead = float("inf") if self.most is None else ahead       # tokens that may be taken back
        self.reach = [0] * slots        # of rings: how far each slot was ever written since it was empty
        self.max_len = max_len

    def check_room(self, slot: int, new_tokens: int) -> None:
        """Raise ValueError when ``new_tokens`` do not fit behind what ``slot`` holds."""
        need = self.lengths[slot] + new_tokens
        if need > self.max_len:
            raise ValueError(f"slot {slot} holds {self.lengths[slot]} tokens and has room for {self.max_len}; "
                             f"{new_tokens} more do not fit")

    def write(self, layer: int, slots: Tensor, index: Tensor, key: Tensor, value: Tensor) -> None:
        """Store ``key``, ``value`` ``[N, kv_heads, head_dim]`` of one layer at entries (slots[n], index[n])."""
        room = self.k[layer].shape[2]
        if room < self.max_len:
            index = index % room
        self.k[layer][slots, :, index] = key
        self.v[layer][slots, :, index] = value

    def truncate(self, slot: int, length: int) -> None:
        """Forget what ``slot`` holds beyond ``length`` tokens; a shorter content stays as it is. Everything, if rings
        have overwritten what the next tokens would see.

        Raises ValueError for a negative ``length``.
        """
        if length < 0:
            raise ValueError(f"slot {slot}: a length of {length} tokens is negative")
        self.lengths[slot] = min(self.lengths[slot], length)
        if self.reach[slot] - self.lengths[slot] > self.ahead:
            self.lengths[slot] = 0
        if not self.lengths[slot]:
            self.reach[slot] = 0

    def begin(self, slots: list[int], firsts: list[int], ends: list[int]) -> None:
        """A pass will write entries ``firsts[b]`` to ``ends[b]`` (not included) of each slot. Raises ValueError where
        these are more than rings take."""
        for slot, first, end in zip(slots, firsts, ends if self.most is not None else ()):
            if end - first > self.most:
                raise ValueError(f"slot {slot}: its rings take {self.most} tokens at once, not {end - first}")
            self.reach[slot] = max(self.reach[slot], end)
