"""A sparse KV cache: the first tokens and the latest ones, in a ring that never grows.

While drafting, attention can do with a few first tokens, its *sink* (Xiao et al., StreamingLLM, arXiv 2309.17453), and
a window of the latest (MagicDec, arXiv 2408.11049; SPIRe, arXiv 2504.06419). The ring has ``ahead`` entries more: so
many tokens may be drafted and taken back before an entry that is still needed has been overwritten. Keys keep the
positions at which they were made.
"""

from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache

SINK, LATEST = 1, 64        # SPIRe's
AHEAD = 16                  # drafted tokens at once, at most


@dataclass(frozen=True)
class Window:
    """What a token sees: the first ``sink`` tokens, and of the n up to itself the last ``latest``, or where a ``share``
    is given that share of n. Raises ValueError for latest < 1, sink < 0, or a share outside (0, 1]."""

    latest: int = LATEST
    sink: int = SINK
    share: Fraction | None = None

    def __post_init__(self) -> None:
        if self.sink < 0 or self.latest < 1 or self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"a window needs latest >= 1, sink >= 0 and a share in (0, 1], got {self}")

    @staticmethod
    def parse(text: str) -> "Window":
        """"64", the number of latest tokens, or "1/8", a share of the text. ValueError for anything else."""
        part, slash, whole = text.partition("/")
        numbers = [int(n) if n.isdecimal() else 0 for n in ([part, whole] if slash else [part])]
        if min(numbers) < 1 or slash and numbers[0] > numbers[1]:
            raise ValueError(f"a window is a number of tokens such as {LATEST}, or a share such as 1/8, not {text!r}")
        return Window(share=Fraction(*numbers)) if slash else Window(*numbers)

    def size(self, length: int) -> int:
        """How many of the latest tokens the last of ``length`` sees, itself included."""
        return self.latest if self.share is None else max(1, int(length * self.share))

    def start(self, position: int) -> int:
        """The first of the latest tokens that the token at ``position`` sees. Never falls from one to the next."""
        return max(0, position + 1 - self.size(position + 1))


class RingCache(SlotCache):
    """Keys and values of ``slots`` requests of up to ``max_len`` tokens, of which each keeps what ``window`` will see.

    ``held [slots, entries]``: the position in each entry, -1 for none. What lies at or beyond ``lengths`` is stale.
    ``sights``: by layer, the window of a layer that has one of its own (:class:`spin_core.decompose.needs.Sight`), of
    which it sees what the ring holds.
    """

    def __init__(self, window: Window, num_layers: int, slots: int, kv_heads: int, max_len: int, head_dim: int,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", ahead: int = AHEAD,
                 sights: dict | None = None) -> None:
        entries = min(max_len, window.sink + window.size(max_len) + ahead)
        super().__init__(num_layers, slots, kv_heads, entries, head_dim, dtype, device)
        self.window, self.ahead, self.entries, self.max_len, self.sights = window, ahead, entries, max_len, sights or {}
        self.held = torch.full((slots, entries), -1, dtype=torch.int64)

    def truncate(self, slot: int, length: int) -> None:
        """Forget what lies beyond ``length`` tokens; everything, if more than ``ahead`` have been written behind it."""
        super().truncate(slot, length)
        if not self.lengths[slot]:
            self.held[slot] = -1

    def step(self, batch: RaggedBatch) -> "RingStep":
        """The attention of a pass over ``batch``."""
        return RingStep(batch, self)

    def claim(self, slot: int, count: int) -> tuple[Tensor, Tensor]:
        """Entries for the next ``count`` tokens of a slot: which of these tokens will be kept ``[K]``, and where."""
        start = self.lengths[slot]
        position = torch.arange(start, start + count)
        round_ = self.entries - self.window.sink
        kept = torch.nonzero((position < self.window.sink) | (position >= start + count - round_))[:, 0]
        position = position[kept]
        entry = position if round_ == 0 else torch.where(
            position < self.window.sink, position, self.window.sink + (position - self.window.sink) % round_)
        self.held[slot, entry] = position
        self.reach[slot] = max(self.reach[slot], start + count)
        return kept, entry

    def adopt(self, source: SlotCache, slots: list[int], lengths: list[int]) -> None:
        """Copy from ``source``, a cache of the same model and slots, what these slots miss of ``lengths`` tokens."""
        where, entries, positions = [], [], []
        for slot, length in zip(slots, lengths):
            start = self.lengths[slot]
            kept, entry = self.claim(slot, max(0, length - start))
            where.append(torch.full_like(kept, slot))
            positions.append(kept + start)
            entries.append(entry)
            self.lengths[slot] = max(start, length)
        where, entries, positions = (torch.cat(parts).to(self.k[0].device) for parts in (where, entries, positions))
        if len(where):
            for mine, theirs in ((self.k, source.k), (self.v, source.v)):
                for layer, stored in enumerate(mine):
                    # of a layer with a window of its own the source is a ring, too
                    stored[where, :, entries] = theirs[layer][where, :, positions % theirs[layer].shape[2]]


class RingStep:
    """The attention of one pass over a :class:`RingCache`; it stands in for the cache, too, while the pass runs.

    New tokens attend to what the ring held before and to each other; only then are they written, for in a long chunk
    the last ones overwrite what the first ones see. Raises ValueError for a token tree.
    """

    def __init__(self, batch: RaggedBatch, cache: RingCache) -> None:
        if any(tree is not None for tree in batch.ancestors):
            raise ValueError("a sparse cache serves chains, not token trees")
        self.batch, self.cache, self.device = batch, cache, cache.k[0].device
        requests = list(zip(batch.slots, batch.prefix, batch.counts))
        self.views = {sight: [self._visible(*request, sight) for request in requests]
                      for sight in {None, *cache.sights.values()}}
        claims = [cache.claim(slot, count) for slot, count in zip(batch.slots, batch.counts)]
        self.rows = torch.cat([kept + start for (kept, _), start in zip(claims, batch.starts)]).to(self.device)
        self.entries = torch.cat([entry for _, entry in claims]).to(self.device)
        self.fresh: tuple[Tensor, Tensor] | None = None

    def _visible(self, slot: int, prefix: int, count: int, sight) -> tuple[Tensor, Tensor | None]:
        """The ring's entries that new tokens see, and ``[count, entries + count]``, which of them
        each new token sees; None: all."""
        window, held = self.cache.window, self.cache.held[slot]
        own = torch.arange(prefix, prefix + count)[:, None]
        starts = torch.tensor([window.start(prefix + i) for i in range(count)])[:, None]
        oldest = torch.zeros_like(own) if sight is None else sight.start(own)

        def sees(keys: Tensor, i: slice) -> Tensor:
            return ((keys < window.sink) | (keys >= starts[i])) & (keys >= oldest[i])

        seen = torch.nonzero((held >= 0) & (held < prefix) & sees(held, slice(1))[0])[:, 0]
        if count == 1:
            return seen.to(self.device), None
        keys = torch.cat([held[seen], torch.arange(prefix, prefix + count)])
        return seen.to(self.device), ((keys <= own) & sees(keys, slice(count))).to(self.device)

    def write(self, layer: int, slots: Tensor, index: Tensor, key: Tensor, value: Tensor) -> None:
        """``key``, ``value`` ``[N, kv_heads, head_dim]`` of one layer's new tokens."""
        self.fresh = key, value

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """``query [heads, N, head_dim]`` -> ``[N, heads, head_dim]``."""
        key, value = self.fresh
        keys, values = self.cache.k[layer], self.cache.v[layer]
        out = []
        for slot, start, count, (seen, mask) in zip(self.batch.slots, self.batch.starts, self.batch.counts,
                                                    self.views[self.cache.sights.get(layer)]):
            new = slice(start, start + count)
            k, v = (torch.cat([store[slot].index_select(1, seen), part[new].transpose(0, 1)], 1)
                    for store, part in ((keys, key), (values, value)))
            attended = F.scaled_dot_product_attention(query[None, :, new], k[None], v[None], attn_mask=mask,
                                                      scale=scale, enable_gqa=query.shape[0] > k.shape[0])
            out.append(attended[0].transpose(0, 1))
        slots = self.batch.slot_of[self.rows]
        keys[slots, :, self.entries], values[slots, :, self.entries] = key[self.rows], value[self.rows]
        return torch.cat(out)
