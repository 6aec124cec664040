"""Drafting token trees, and merging the trees of several drafters. In names:

    tree:NAMES:SHAPE[:DRAWING][:BUDGET]         tree:fed-4L-8k:2,2,1    tree:ngram,fed-1L-4k:1,1,3:independent:24

NAMES are other drafters' names, comma-separated. SHAPE is read by :func:`spin_core.draft.shape.parse`; a request's
gamma bounds the depth. DRAWING, for sampling requests, is one of :data:`spin_core.draft.grow.DRAWINGS`;
"without_replacement" if it is left out. BUDGET bounds the nodes of a tree, all drafters together.
"""

import torch
from torch import Tensor

from spin_core.draft.base import Drafter, NullDrafter
from spin_core.draft.build import BuildContext, EnsembleDrafter
from spin_core.draft.grow import DRAWINGS, PLACES, Grown, grow, look_up
from spin_core.draft.model import ModelDrafter
from spin_core.draft.shape import LARGEST, Shape, parse
from spin_core.draft.tree import Proposal, Tree, check_way, depths, flat
from spin_core.request import Request

PREFIX = "tree:"


class TreeDrafter(EnsembleDrafter):
    """Proposes token trees grown by ``members``, model drafters and lookups, each in the given ``shape``; equal paths
    are merged into one (the union of the tries), and every node keeps the names of its proposers.

    ``budget``: nodes of a tree at most. ``max_len``: room of a request in the target's cache; ``most``: nodes that the
    target reads, and takes back, at once. A tree that would not fit is cut. Lookups propose one chain as deep as the
    shape. While trees are verified, their nodes take memory on top of the engine's ``kv_tokens``. Drafts are
    :class:`Tree`. Raises ValueError for impossible members, drawings and budgets.
    """

    max_context = 2**31

    def __init__(self, members: list[Drafter], shape: Shape, drawing: str = "without_replacement",
                 budget: int = LARGEST, *, max_len: int, vocab_size: int, most: int = LARGEST) -> None:
        if drawing not in DRAWINGS:
            check_way(drawing)          # explains known mistakes
        wrong = [m.name for m in members if not (isinstance(m, ModelDrafter) or m.is_lookup) or
                 isinstance(m, NullDrafter) or isinstance(m, ModelDrafter) and m.runner.window]
        if wrong or not members:
            raise ValueError("a tree is grown by model drafters that see all of their text, and lookups; not by "
                             f"{', '.join(wrong) or 'none'}")
        widest = max((shape.levels.count(level) for level in set(shape.levels)), default=0)
        if budget < 1 or widest * len(members) > PLACES:
            raise ValueError(f"a tree has a budget of at least one node and levels of at most {PLACES} nodes; got "
                             f"{budget} and {widest * len(members)}")
        self.members, self.shape, self.drawing, self.budget = members, shape, drawing, budget
        self.name = PREFIX + ":".join([",".join(m.name for m in members), str(shape), drawing,
                                       *([str(budget)] if budget < LARGEST else [])])
        self.max_len, self.vocab_size, self.most, self.widest = max_len, vocab_size, most, widest
        self.gamma = shape.depth
        self.is_lookup = all(m.is_lookup for m in members)
        self.catch_up_threshold = min((m.catch_up_threshold for m in members if not m.is_lookup),
                                      default=self.catch_up_threshold)

    def propose(self, requests: list[Request], counts: list[int]) -> Tree:
        """Trees at most ``counts[b]`` deep behind each request's committed text."""
        room = [min(self.budget, self.most, self.max_len - r.length) for r in requests]
        parts, qs = [], []
        for i, member in enumerate(self.members):
            if isinstance(member, ModelDrafter):
                shapes = [self.shape.cut(count if member.drafts_for(r) else 0,
                                         min(nodes, member.max_context - r.length))
                          for r, count, nodes in zip(requests, counts, room)]
                grown, q = grow(member, requests, shapes, self.drawing, i * self.widest)
                for request in requests:        # it reads accepted nodes again, as committed text
                    member.rollback(request.slot, request.length)
            else:
                grown, q = look_up(member, requests, [min(count, self.shape.depth) for count in counts]), None
            parts.append(grown)
            qs.append(q)
        probs, first, ids = _together(qs, [getattr(m, "ids", None) for m in self.members], self.vocab_size)
        way = "independent" if self.drawing == "naive" else self.drawing
        device = next((m.runner.device for m in self.members if isinstance(m, ModelDrafter)), torch.device("cpu"))
        merged = [merge([part[b] for part in parts], first, room[b]) for b in range(len(requests))]
        return _pack(merged, probs, ids, way, tuple(m.name for m in self.members), device)

    def available(self, request: Request, most: int) -> int:
        return super().available(request, min(most, self.shape.depth))


def merge(parts: list[Grown], first: list[int], budget: int) -> tuple[list[int], list[int], list[Proposal]]:
    """The union of one request's trees: tokens, parents and proposals. ``first``: the row at which each part's q begin.

    Level by level, and in each level part by part, until there are ``budget`` nodes. Whether a proposal is taken is
    decided before its token is looked at: leaving out tokens that are already there, or that look poor, would change
    the distribution of the rest.
    """
    tokens: list[int] = []
    parents: list[int] = []
    proposals: list[Proposal] = []
    known: dict[tuple[int, int], int] = {}                          # (parent, token) -> node
    node_of: list[dict[int, int]] = [{-1: -1} for _ in parts]       # node of a part -> node of the union
    levels = [depths(part.parents) for part in parts]
    for level in range(max((1 + max(ds) for ds in levels if ds), default=0)):
        for member, part in enumerate(parts):
            for node, row in part.proposals:
                parent = node_of[member].get(part.parents[node])
                if levels[member][node] != level or parent is None:
                    continue
                if len(tokens) >= budget:
                    return tokens, parents, proposals
                key = parent, part.tokens[node]
                if key not in known:
                    known[key] = len(tokens)
                    tokens.append(key[1])
                    parents.append(parent)
                merged = node_of[member][node] = known[key]
                proposals.append(Proposal(merged, row + first[member] if row >= 0 else -1, member))
    return tokens, parents, proposals


def _together(qs: list[Tensor | None], ids: list[Tensor | None], vocab_size: int
              ) -> tuple[Tensor | None, list[int], Tensor | None]:
    """All members' q in one table, the row at which each member's begin, and the ids of its columns."""
    there = [i for i, q in enumerate(qs) if q is not None]
    first = [sum(len(qs[j]) for j in there if j < i) for i in range(len(qs))]
    if not there:
        return None, first, None
    one = ids[there[0]]
    if all(ids[i] is one or ids[i] is not None and one is not None and torch.equal(ids[i], one) for i in there):
        return torch.cat([qs[i] for i in there]), first, one
    whole = [qs[i] if ids[i] is None else qs[i].new_zeros(len(qs[i]), vocab_size).index_copy_(1, ids[i], qs[i])
             for i in there]
    return torch.cat([q[:, :vocab_size] for q in whole]), first, None


def _pack(merged: list[tuple[list[int], list[int], list[Proposal]]], probs: Tensor | None, ids: Tensor | None, way: str,
          names: tuple[str, ...], device: torch.device) -> Tree:
    """One flattened draft, request by request."""
    first_rows = []
    for tokens, _, proposals in merged:
        rows = dict(reversed([(p.node, p.row) for p in proposals]))
        first_rows.append([rows[node] for node in range(len(tokens))])
    cu = torch.tensor([0] + [len(tokens) for tokens, _, _ in merged], device=device).cumsum(0)
    return Tree(flat([tokens for tokens, _, _ in merged], device), cu, probs, flat(first_rows, device), ids,
                flat([parents for _, parents, _ in merged], device), way, [proposals for _, _, proposals in merged],
                names)


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The drafter that a ``name`` tree:NAMES:SHAPE[:DRAWING][:BUDGET] stands for, else None."""
    if not name.startswith(PREFIX):
        return None
    fields = name.removeprefix(PREFIX).split(":")
    if len(fields) < 2 or not all(fields):
        raise ValueError(f"{name!r} is no tree: write tree:NAMES:SHAPE[:DRAWING][:BUDGET], such as tree:ngram:2,1")
    names, shape, *rest = fields
    budget = int(rest.pop()) if rest and rest[-1].isdecimal() else LARGEST
    drawing = rest.pop(0) if rest else "without_replacement"
    if rest:
        raise ValueError(f"{name!r} has too many fields: {':'.join(rest)}")
    return TreeDrafter([context.build(member) for member in names.split(",")], parse(shape), drawing, budget,
                       max_len=context.max_len, vocab_size=context.family.vocab_size,
                       most=getattr(context.target, "longest_draft", LARGEST))
