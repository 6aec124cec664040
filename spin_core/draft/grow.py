"""Grow token trees with one drafter: a level at a time, all requests together, in the drafter's own cache.

A level's nodes are read in one pass, each seeing the committed text and its own ancestors. A tree takes as many passes
as a chain of that depth, only wider ones.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spin_core.draft.base import Drafter
from spin_core.draft.model import ModelDrafter, finite_rows
from spin_core.draft.shape import Shape
from spin_core.draft.tree import ancestor_mask
from spin_core.randomness import DRAFT, exponential_race
from spin_core.request import Request
from spin_core.sampling import SamplingBatch, probabilities

DRAWINGS = ("independent", "without_replacement", "top_k", "naive")
PLACES = 1 << 12        # nodes of a level at most, over all drafters of a tree; each place has noise of its own
_PLACE = 20             # in the noise's base, the lower 20 bits are the committed length, the upper ones the place


@dataclass
class Grown:
    """One request's tree from one drafter.

    ``tokens``, ``parents``: its nodes, level by level. ``proposals``: (node, row of q or -1 for one-hot) in the order
    they were drawn; a node that was drawn twice is proposed twice.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    proposals: list[tuple[int, int]] = field(default_factory=list)


def grow(drafter: ModelDrafter, requests: list[Request], shapes: list[Shape], drawing: str, first_place: int = 0
         ) -> tuple[list[Grown], Tensor | None]:
    """Trees of the given ``shapes`` behind each request's committed text, and the q ``[S, Vd]`` of sampled nodes.

    Greedy requests get their likeliest children, one-hot; for sampling ones ``drawing`` says how siblings are drawn:
    "independent", "without_replacement", "top_k", or "naive", which is independent drawing handed over as one-hot.
    ``first_place``: where this drafter's noise begins among the drafters of a tree; a chain from place 0 is drawn as
    :class:`ModelDrafter` draws it. The drafter's cache then holds the nodes that were read; roll it back.
    """
    grown = [Grown() for _ in requests]
    node_of: list[dict[int, int]] = [{-1: -1} for _ in requests]    # node of the shape -> node of the tree
    read: list[list[int]] = [[] for _ in requests]                  # nodes in the cache behind the text, in order
    qs: list[Tensor] = []
    alive = [b for b, shape in enumerate(shapes) if shape.parents]
    if not alive:
        return grown, None
    logits = drafter._read(requests, alive)
    fathers = [(b, -1) for b in alive]              # the nodes of the shape that `logits` has a row of
    level = 0
    while fathers:
        sane, logits = finite_rows(logits)
        fathers = [fathers[row] for row in sane]
        if not fathers:
            break
        children = [[(node, first_place + shapes[b].place(node)) for node in shapes[b].children[father]]
                    for b, father in fathers]
        drawn, rows = _draw(drafter, [requests[b] for b, _ in fathers], logits, level, children, drawing, qs)
        new: list[list[int]] = [[] for _ in requests]
        for (b, father), kids, tokens, row in zip(fathers, children, drawn, rows):
            tree, parent, of_token = grown[b], node_of[b][father], {}
            for (node, _), token in zip(kids, tokens):
                if token in of_token:               # drawn again: another proposal of the same node
                    if row >= 0:
                        tree.proposals.append((of_token[token], row))
                    continue
                of_token[token] = node_of[b][node] = len(tree.tokens)
                tree.proposals.append((len(tree.tokens), row))
                tree.tokens.append(token)
                tree.parents.append(parent)
                if shapes[b].children[node]:
                    new[b].append(node)
        fathers = [(b, node) for b, nodes in enumerate(new) for node in nodes]
        if fathers:
            logits = _read_level(drafter, requests, grown,
                                 [[node_of[b][n] for n in nodes] for b, nodes in enumerate(new)], read)
        level += 1
    return grown, torch.cat(qs) if qs else None


def look_up(drafter: Drafter, requests: list[Request], counts: list[int]) -> list[Grown]:
    """A lookup's chains as trees: one-hot."""
    draft = drafter.propose(requests, counts)
    return [Grown(tokens.tolist(), list(range(-1, len(tokens) - 1)), [(i, -1) for i in range(len(tokens))])
            for tokens in draft.tokens.split(draft.counts.tolist())]


def _read_level(drafter: ModelDrafter, requests: list[Request], grown: list[Grown], nodes: list[list[int]],
                read: list[list[int]]) -> Tensor:
    """Read ``nodes`` of each tree behind those in ``read``; the logits behind them, request by request."""
    slots, counts, tokens, masks, fathers = [], [], [], [], []
    for request, tree, new, held in zip(requests, grown, nodes, read):
        if not new:
            continue
        at = {-1: -1} | {node: i for i, node in enumerate(held + new)}
        parents = [at[tree.parents[node]] for node in held + new]
        slots.append(request.slot)
        counts.append(len(new))
        tokens += [tree.tokens[node] for node in new]
        masks.append(ancestor_mask(parents)[len(held):])
        fathers.append([request.length + parent for parent in parents[len(held):]])
        held += new
    return drafter.runner.forward(slots, counts, tokens, list(range(len(tokens))), masks,
                                  **drafter._extra_node_inputs(slots, fathers))


def _draw(drafter: ModelDrafter, requests: list[Request], logits: Tensor, level: int,
          children: list[list[tuple[int, int]]], drawing: str, qs: list[Tensor]) -> tuple[list[list[int]], list[int]]:
    """Per row of ``logits`` the tokens of its children, by rank, and the row of all of ``qs`` that they were drawn from
    (-1: one-hot). The q of this level is appended to ``qs``. ``children``: (node, place of its noise) per row."""
    wanted = [len(kids) for kids in children]
    sampled = [r for r, request in enumerate(requests) if not request.params.greedy and drawing != "top_k"]
    tokens: list[list[int]] = [[] for _ in requests]
    rows = [-1] * len(requests)
    if len(sampled) < len(requests):
        best = logits.topk(min(max(wanted), logits.shape[1])).indices
        best = (best if drafter.ids is None else drafter.ids[best]).tolist()
        tokens = [row[:count] for row, count in zip(best, wanted)]
    if not sampled:
        return tokens, rows
    index = torch.tensor(sampled, device=logits.device)
    sampling = SamplingBatch.from_params([requests[r].params for r in sampled], logits.device)
    q = probabilities(logits[index], sampling)
    if drawing != "naive":
        before = sum(map(len, qs))
        qs.append(q)
        for i, r in enumerate(sampled):
            rows[r] = before + i
    places = [[place for _, place in children[r]] for r in sampled]
    committed = torch.tensor([requests[r].length for r in sampled], device=logits.device)
    columns = _columns(q, sampling.seed, committed, level, places, drawing == "without_replacement")
    for r, row in zip(sampled, columns):
        tokens[r] = [column if drafter.ids is None else int(drafter.ids[column]) for column in row]
    return tokens, rows


def _columns(q: Tensor, seed: Tensor, committed: Tensor, level: int, places: list[list[int]], without: bool
             ) -> list[list[int]]:
    """Draws from each row of ``q [R, V]``: one per place, in their order; fewer where q runs out of tokens."""
    out: list[list[int]] = [[] for _ in places]
    left = q
    for rank in range(max(map(len, places))):
        rows = [r for r, row in enumerate(places) if len(row) > rank]
        index = torch.tensor(rows, device=q.device)
        place = torch.tensor([places[r][rank] for r in rows], device=q.device)
        # the committed length in the base: a position drafted again after a rejection gets fresh noise
        base = committed[index] + (place << _PLACE)
        drawn = exponential_race(left[index], seed[index], committed[index] + level, DRAFT, base)
        for r, column in zip(rows, drawn.tolist()):
            if column >= 0:
                out[r].append(column)
        if without:
            left = left.clone()
            left[index, drawn.clamp(min=0)] = 0
    return out
