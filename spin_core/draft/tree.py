"""Token trees: several proposals for every position, and what the verifier has to know about how they were drawn.

The way siblings are drawn decides the q they may be tested with (:mod:`spin_core.verify.tree`):

``independent``          each child from its own q, whatever its siblings are. They may come from different drafters.
``without_replacement``  one after the other from one q, each time without the tokens already drawn: the i-th child
                         follows q without its elder siblings, normalised (Sequoia, arXiv 2402.12374). Several drafters
                         may each draw so; only elder siblings from the same q are left out of it.
``top_k``                the likeliest tokens, or any other function of the past: one-hot, whatever scores led to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spin_core.draft.base import Draft

WAYS = ("independent", "without_replacement", "top_k")
_DEDUPLICATED = ("merging equal siblings that were drawn independently changes the distribution of those that are "
                 "left. Keep them as separate proposals (independent), or draw without_replacement")


class Proposal(NamedTuple):
    """One drafter's proposal of one node: the ``node`` (its index in its request), the ``row`` of ``Tree.probs`` that
    it was drawn from, which is q at its parent (-1: one-hot), and which of ``Tree.drafters`` proposed it."""

    node: int
    row: int
    drafter: int = 0


def check_way(way: str) -> None:
    """Raise ValueError for a way of drawing children that no accept / reject rule makes lossless."""
    if way not in WAYS:
        reason = _DEDUPLICATED if way == "deduplicated" else f"known ways are {', '.join(WAYS)}"
        raise ValueError(f"children drawn {way!r} cannot be verified: {reason}")


@dataclass
class Tree(Draft):
    """Token trees for B requests: a :class:`Draft` in which request b's nodes ``cu[b]:cu[b+1]`` form a tree.

    ``parents [N]`` int64, the parent's place among the nodes of its request, or -1 for a child of the committed text;
    parents come before their children. ``way``, one of :data:`WAYS`, says how siblings were drawn.
    ``prob_row [N]`` names the q at the *parent* that the node was drawn from; -1 is one-hot, allowed in every way:
    treating a drawn token as one-hot lowers acceptance but leaves the output distribution exact.

    ``proposals``: per request, in the order in which they are tested. A node may be proposed more than once, by
    several drafters or by one that drew it again: the target reads it once, and every proposal is tested. None: every
    node once, in the order of the nodes. ``drafters``: the drafters' names, for the trace.

    Raises ValueError for a way of drawing that no accept / reject rule makes lossless, and for trees that contradict
    their way.
    """

    parents: Tensor | None = None
    way: str = "independent"
    proposals: list[list[Proposal]] | None = None
    drafters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_way(self.way)
        if self.parents is None:        # chains
            self.parents = torch.cat([torch.arange(n) - 1 for n in [0, *self.counts.tolist()]]).to(self.tokens)
        if self.proposals is None:
            rows = self.prob_row.split(self.counts.tolist())
            self.proposals = [[Proposal(*drawn) for drawn in enumerate(part.tolist())] for part in rows]
        self.check()

    def check(self) -> None:
        """Raise ValueError for trees that contradict themselves, or the way in which their siblings were drawn."""
        if len(self.proposals) != len(self.counts) or len(self.parents) != len(self.tokens):
            raise ValueError(f"proposals of {len(self.proposals)} requests for {len(self.counts)} trees, and "
                             f"{len(self.parents)} parents for {len(self.tokens)} nodes")
        rows = 0 if self.probs is None else len(self.probs)
        for b, (parents, tokens, proposals) in enumerate(self.requests()):
            if any(type(number) is not int for p in proposals for number in p) or \
                    any(not (-1 <= p.row < rows and 0 <= p.drafter < max(1, len(self.drafters))) for p in proposals):
                raise ValueError(f"request {b}: a proposal is of a node, by one of the tree's drafters, and its row is "
                                 f"-1 or one of the {rows} distributions in probs")
            if any(not -1 <= parent < node for node, parent in enumerate(parents)):
                raise ValueError(f"request {b}: a parent is -1 or a node before its child, got parents {parents}")
            if {p.node for p in proposals} != set(range(len(parents))):
                raise ValueError(f"request {b}: every node has a proposal, and every proposal has a node")
            if self.way == "top_k" and any(p.row >= 0 for p in proposals):
                raise ValueError(f"request {b}: top_k children are no draw from their scores, so testing them with "
                                 "these is biased; their q is one-hot (prob_row -1)")
            if self.way == "without_replacement":
                drawn = [(parents[p.node], tokens[p.node], p.row) for p in proposals if p.row >= 0]
                if len(set(drawn)) < len(drawn):
                    raise ValueError(f"request {b}: equal siblings cannot have been drawn without_replacement")

    def requests(self) -> Iterator[tuple[list[int], list[int], list[Proposal]]]:
        """Parents, tokens and proposals of each request."""
        parents, tokens = self.parents.tolist(), self.tokens.tolist()
        for (start, end), proposals in zip(pairwise(self.cu.tolist()), self.proposals):
            yield parents[start:end], tokens[start:end], proposals

    def ancestors(self, read: list[int]) -> list[Tensor]:
        """The attention mask of each request's new tokens: ``read[b]`` tokens of its text that the target has not read
        yet, a chain, and behind them its nodes, each of which sees that chain, its ancestors and itself."""
        return [ancestor_mask(parents, count) for (parents, _, _), count in zip(self.requests(), read)]

    def to_trace(self, paths: list[list[int]]) -> list[dict]:
        """A trace's entry for each tree: ``parents``, the accepted ``path`` (of ``paths [B]``, -1 is padding), per node
        the names of the ``drafters`` that proposed it, and ``reach``, its depth."""
        entries = []
        for (parents, _, proposals), path in zip(self.requests(), paths):
            names: list[list[str]] = [[] for _ in parents]
            for node, _, drafter in proposals if self.drafters else ():
                if self.drafters[drafter] not in names[node]:
                    names[node].append(self.drafters[drafter])
            entries.append({"parents": parents, "path": [node for node in path if node >= 0], "drafters": names,
                            "reach": 1 + max(depths(parents), default=-1)})
        return entries


def flat(rows: list[list[int]], device: torch.device | str) -> Tensor:
    """The rows concatenated, ``[N]`` int64."""
    return torch.tensor([x for row in rows for x in row], dtype=torch.int64, device=device)


def ancestor_mask(parents: list[int], read: int = 0) -> Tensor:
    """bool ``[read + n, read + n]``: a chain of ``read`` tokens, and n nodes behind it."""
    mask = np.tri(read + len(parents), dtype=bool)
    mask[read:, read:] = False
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[read + node] = mask[read + parent]
        mask[read + node, read + node] = True
    return torch.from_numpy(mask)


def depths(parents: list[int]) -> list[int]:
    """The number of ancestors of each node."""
    out: list[int] = []
    for parent in parents:
        out.append(1 + out[parent] if parent >= 0 else 0)
    return out
