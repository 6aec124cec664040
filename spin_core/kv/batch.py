"""One model pass over several requests: their new tokens concatenated, none padded to its neighbour."""

from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor


@dataclass
class RaggedBatch:
    """The new ("in-flight") tokens of B requests, flattened to N.

    ``tokens [N]``; ``positions [N]``, what the rotary embedding sees; ``slots [B]``; ``counts [B]``, tokens per
    request; ``prefix [B]``, how many tokens of each request the cache already holds. In-flight token i of a
    request is stored in cache entry ``prefix + i``.

    ``ancestors[b]`` is None for a chain (token i sees the prefix and tokens 0..i) or a bool ``[T, S + T]`` whose
    row i marks which of the last S tokens of the prefix and of the in-flight ones i sees, itself included: a token
    tree, of which S nodes are in the cache already. The first ``seen[b]`` = prefix - S entries are seen by all. A
    node's position is seen + depth, which differs from its cache entry.
    """

    tokens: Tensor
    positions: Tensor
    slots: list[int]
    counts: list[int]
    prefix: list[int]
    ancestors: list[Tensor | None]
    starts: list[int] = field(init=False)
    seen: list[int] = field(init=False)
    slot_of: Tensor = field(init=False)    # [N] slot of every token
    entry_of: Tensor = field(init=False)   # [N] cache entry of every token

    def __post_init__(self) -> None:
        *self.starts, total = accumulate(self.counts, initial=0)
        if total != len(self.tokens):
            raise ValueError(f"the requests' counts add up to {total}, but there are {len(self.tokens)} tokens")
        self.seen = [p if tree is None else p + count - tree.shape[1]
                     for p, count, tree in zip(self.prefix, self.counts, self.ancestors)]
        device = self.tokens.device
        self.slot_of = torch.tensor([s for s, c in zip(self.slots, self.counts) for _ in range(c)], device=device)
        self.entry_of = torch.tensor([p + i for p, c in zip(self.prefix, self.counts) for i in range(c)],
                                     device=device)

    @staticmethod
    def build(tokens: Tensor, slots: list[int], counts: list[int], prefix: list[int],
              ancestors: list[Tensor | None] | None = None) -> "RaggedBatch":
        """Derive the positions: a chain counts on from its prefix, a tree node sits behind its ancestors."""
        ancestors = ancestors or [None] * len(slots)
        positions = []
        for start, count, mask in zip(prefix, counts, ancestors):
            if mask is None:
                positions.extend(range(start, start + count))
            else:
                positions.extend((start + count - mask.shape[1] + mask.sum(1) - 1).tolist())
        return RaggedBatch(tokens, torch.tensor(positions, device=tokens.device), slots, counts, prefix, ancestors)
