"""What an attention layer needs beside plain attention, and which keys the tokens of a batch then see.

The one place that says so: the survey of a model writes :class:`LayerNeeds`, and every strategy reads them.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spin_core.kv.batch import RaggedBatch


@dataclass(frozen=True)
class Sight:
    """Which tokens a layer's token sees: the latest ``size`` including itself (a sliding window), or those of its own
    chunk of ``size`` tokens."""

    size: int
    chunked: bool = False

    def start(self, position):
        """The first position that the token at ``position`` (an int, an array or a tensor) sees."""
        first = position // self.size * self.size if self.chunked else position + 1 - self.size
        return max(0, first) if isinstance(first, int) else first.clip(min=0)


@dataclass(frozen=True)
class LayerNeeds:
    """``heads`` query heads over ``kv_heads`` of ``key_dim`` and ``value_dim``; ``sight``, None for all of the past;
    scores capped to ``softcap * tanh(score / softcap)``; ``sinks [heads]``, one more score in every softmax, without a
    value (None: no such thing)."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    sight: Sight | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """What one token occupies in the cache: kv heads, width of a key, width of a value."""
        return self.kv_heads, self.key_dim, self.value_dim

    @property
    def plain(self) -> bool:
        """Whether its keys and values have one width, and its scores are a plain softmax of them."""
        return self.softcap is None and self.sinks is None and self.key_dim == self.value_dim

    def alike(self, other: "LayerNeeds") -> bool:
        """Whether it is plain and has ``other``'s shape; their sights may differ."""
        return self.plain and (self.heads, self.shape) == (other.heads, other.shape)


class View:
    """What the tokens of ``batch`` see in layers of one ``sight``.

    Request b reads ``lengths[b]`` entries, from ``first[b]`` to the end of its in-flight tokens: a plan cuts these, and
    no others are read. :meth:`mask` says which of them each token sees.
    """

    def __init__(self, batch: RaggedBatch, sight: Sight | None = None) -> None:
        self.batch, self.sight = batch, sight
        self.first = [0] * len(batch.slots)
        self._masks: dict[int, np.ndarray] = {}
        self.starts: list[np.ndarray | None] = [None] * len(batch.slots)    # the first position that each token sees
        for b, count in enumerate(batch.counts if sight else ()):
            if count:
                self.starts[b] = sight.start(self._positions(b)[-count:])
                self.first[b] = min(int(self.starts[b].min()), batch.seen[b])
        self.lengths = [p + c - f for p, c, f in zip(batch.prefix, batch.counts, self.first)]

    def mask(self, b: int) -> np.ndarray:
        """Bool ``[T, W]``: what request b's in-flight tokens see of its last W entries. All see those before."""
        if b not in self._masks:
            own = in_flight_mask(self.batch, b)
            if self._differs(b):
                starts = self.starts[b][:, None]
                before = np.arange(self.first[b], self.batch.seen[b]) >= starts
                own = np.concatenate([before, own & (self._positions(b) >= starts)], 1)
            self._masks[b] = own
        return self._masks[b]

    def in_flight(self, b: int) -> tuple[np.ndarray, np.ndarray | int]:
        """The same in two parts, for kernels: bool ``[T, S + T]``, which in-flight entries (and a tree's nodes in the
        cache) each token sees, and ``[T]``, the first entry of those before that it sees (0: all)."""
        own = self.batch.prefix[b] + self.batch.counts[b] - self.batch.seen[b]
        return self.mask(b)[:, -own:] if own else self.mask(b), 0 if self.starts[b] is None else self.starts[b]

    def library_mask(self, b: int, device: torch.device) -> Tensor | None:
        """Bool ``[T, lengths[b]]`` for the library's attention; None where its plain causal or full attention does the
        same without a mask: for a first chunk of a chain, or a single token that sees all."""
        if self.batch.ancestors[b] is None and self.batch.counts[b] in (1, self.lengths[b]) and not self._differs(b):
            return None
        own = self.mask(b)
        whole = np.pad(own, ((0, 0), (self.lengths[b] - own.shape[1], 0)), constant_values=True)
        return torch.from_numpy(whole).to(device)

    def _differs(self, b: int) -> bool:
        """Whether some tokens of request b see entries that have left the sight of others."""
        return self.starts[b] is not None and self.starts[b].max() > self.first[b]

    def _positions(self, b: int) -> np.ndarray:
        """Positions of the last S tokens of the prefix, which may be nodes of a tree, and of the in-flight ones."""
        batch, tree = self.batch, self.batch.ancestors[b]
        if tree is None:
            return np.arange(batch.prefix[b], batch.prefix[b] + batch.counts[b])
        return batch.seen[b] + _depths(tree.cpu().numpy())


def in_flight_mask(batch: RaggedBatch, b: int) -> np.ndarray:
    """What the in-flight tokens see behind the ``seen`` entries that precede any tree, bool ``[T, S + T]``."""
    tree = batch.ancestors[b]
    return _causal(batch.counts[b]) if tree is None else tree.cpu().numpy()


@functools.lru_cache(maxsize=64)
def _causal(count: int) -> np.ndarray:
    return np.tri(count, dtype=bool)


def _depths(tree: np.ndarray) -> np.ndarray:
    """Depth of each of the S + T nodes of ``tree [T, S + T]``. Those of the cache are on the way to some in-flight node
    or seen by none; an ancestor's depth is the number of ancestors that it shares with its descendant."""
    count, size = tree.shape
    held = size - count
    depth = np.zeros(size, dtype=np.int64)
    depth[held:] = tree.sum(1) - 1
    for row in tree:                                    # ancestors come in the order of their depth
        nodes = row[:held].nonzero()[0]
        depth[nodes] = np.arange(len(nodes))
    return depth
