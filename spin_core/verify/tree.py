"""Tree verification in plain torch: several proposals for a position, and the law of the text still the target's.

SpecInfer (arXiv 2305.09781), multi-step speculative sampling: at a node test its children one after the other. Child
x, drawn from q, is accepted with probability min(1, p(x) / q(x)); a rejection leaves p <- (p - q)+ normalised for the
next child, and when none is left the token is drawn from what remains of p. Each step is exact *if q is the law that
child was drawn from, given the children rejected before it*. So the way children are drawn decides the q they are
tested with, and a way of drawing without such a q is refused:

``independent``          each child from its own q, whatever its siblings are; equal siblings stay separate nodes. They
                         may come from different drafters.
``without_replacement``  one after the other from one q, each time without the ones already drawn: the i-th child has
                         the law q without its elder siblings, normalised (Sequoia, arXiv 2402.12374).
``top_k``                the likeliest ones, or anything else that is a function of the past: one-hot, whatever scores
                         led to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from spin_core.draft.base import Draft
from spin_core.randomness import ACCEPT, RESIDUAL, race, uniform
from spin_core.sampling import SamplingBatch, probabilities
from spin_core.verify.chain import Verdict, accepts, check_shapes, residual

WAYS = ("independent", "without_replacement", "top_k")
_BIASED = {
    "deduplicated": "merging equal siblings that were drawn independently changes the law of the ones that are left. "
                    "Keep them as separate nodes (independent), or draw without_replacement",
}


@dataclass
class Tree(Draft):
    """Token trees for B requests: a :class:`Draft` in which request b's nodes ``cu[b]:cu[b+1]`` form a tree.

    ``parents [N]`` int64, the parent's place among the nodes of its request, or -1 for a child of the committed text;
    parents come before their children, and children are tested in the order of the nodes.
    ``way``, one of :data:`WAYS`, says how siblings were drawn.
    ``prob_row [N]`` names the law at the *parent* that the node was drawn from; -1 is one-hot, allowed in every way:
    a drawn token treated as one-hot costs acceptance but not the law.

    Raises ValueError for a way of drawing that no test makes lossless, and for trees that contradict their way.
    """

    parents: Tensor | None = None
    way: str = "independent"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.way not in WAYS:
            reason = _BIASED.get(self.way, f"known ways are {', '.join(WAYS)}")
            raise ValueError(f"children drawn {self.way!r} cannot be verified: {reason}")
        if self.parents is None:        # chains
            self.parents = torch.cat([torch.arange(n) - 1 for n in [0, *self.counts.tolist()]]).to(self.tokens)
        for b, (parents, tokens, laws) in enumerate(self._requests()):
            if any(not -1 <= parent < node for node, parent in enumerate(parents)):
                raise ValueError(f"request {b}: a parent is -1 or a node before its child, got parents {parents}")
            if self.way == "top_k" and any(law >= 0 for law in laws):
                raise ValueError(f"request {b}: top_k children are no draw from their scores, so testing them with "
                                 "these is biased; their q is one-hot (prob_row -1)")
            if self.way == "without_replacement":
                drawn = [(parent, token) for parent, token, law in zip(parents, tokens, laws) if law >= 0]
                if len(set(drawn)) < len(drawn):
                    raise ValueError(f"request {b}: equal siblings cannot have been drawn without_replacement")
                if len(set(zip(parents, laws))) > len(set(parents)):
                    raise ValueError(f"request {b}: siblings drawn without_replacement share one law")

    def _requests(self) -> Iterator[tuple[list[int], list[int], list[int]]]:
        """Parents, tokens and law rows of each request."""
        columns = self.parents.tolist(), self.tokens.tolist(), self.prob_row.tolist()
        for start, end in zip(self.cu.tolist(), self.cu[1:].tolist()):
            yield tuple(column[start:end] for column in columns)

    def law(self, node: int, vocab: int) -> Tensor:
        """``[V]``: the law that node (of all N) was drawn from, before its siblings are considered."""
        row = int(self.prob_row[node])
        if row < 0:
            return torch.nn.functional.one_hot(self.tokens[node], vocab).float()
        if self.ids is None:
            return self.probs[row]
        return self.probs.new_zeros(vocab).index_copy_(0, self.ids, self.probs[row])


@dataclass
class TreeVerdict(Verdict):
    """A :class:`Verdict` with ``path [B, depth_max]`` int64: the accepted nodes, places in their request, then -1."""

    path: Tensor


def trials(p: Tensor, way: str, tokens: list[int], laws: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """``[V]`` each: the p and q that child 0, 1, ... is tested with, given that those before it were rejected.

    ``laws`` holds the law each child was drawn from, its siblings not considered. One pair more than there are
    children: last comes what is left of p when all are rejected, and a q of zero.
    """
    for i, q in enumerate(laws):
        if way == "without_replacement":
            q = q.index_fill(0, torch.tensor(tokens[:i], dtype=torch.int64, device=q.device), 0)
            q = q / q.sum().clamp(min=torch.finfo(q.dtype).tiny)    # no mass: never drawn, and q = 0
        yield p, q
        rest = residual(p, q)
        p = rest / rest.sum()
    yield p, torch.zeros_like(p)


def verify_tree(logits: Tensor, draft: Tree, sampling: SamplingBatch, position: Tensor) -> TreeVerdict:
    """Walk down every request's tree as far as children are accepted and draw one token more.

    ``logits [N + B, V]``: request b's rows start at ``draft.cu[b] + b`` with the law behind the committed text, then
    the law behind each of its nodes. ``sampling`` has B rows. ``position [B]`` int64, the absolute index of the first
    token being decided. For a tree that is a chain the verdict is that of ``verify_chain``, draw by draw.

    A request fails, alone, if a row on its way has no law. Raises ValueError if the shapes do not fit together.
    """
    check_shapes(logits, draft, sampling, position, "verify_tree", "nodes", "trees")
    batch = len(sampling)
    counts = draft.counts
    request = torch.arange(batch, device=logits.device)
    p = probabilities(logits, sampling.rows(request.repeat_interleave(counts + 1))) if batch else logits
    trees = list(draft._requests())
    depth = [_depths(parents) for parents, _, _ in trees]
    # `base` counts the tests at one node, so that siblings meet independent noise
    owner = request.repeat_interleave(counts)
    level, rank = (_flat(x, logits.device) for x in (depth, [_ranks(parents) for parents, _, _ in trees]))
    chance = uniform(sampling.seed[owner], position[owner] + level, ACCEPT, rank)

    paths, left = [], []
    for b, (parents, tokens, _) in enumerate(trees):
        start, end = int(draft.cu[b]), int(draft.cu[b + 1])
        path, law = _walk(p[start + b:end + b + 1], draft, start, parents, tokens, chance[start:end])
        paths.append(path)
        left.append(law)
    accepted = torch.tensor([len(path) for path in paths], dtype=torch.int64, device=logits.device)
    last = race(torch.stack(left) if left else p, sampling.seed, position + accepted, RESIDUAL)
    failed = last < 0
    emitted = [[*(tokens[node] for node in path), token] for (_, tokens, _), path, token in
               zip(trees, paths, last.tolist())]
    width = max((d + 1 for depths in depth for d in depths), default=0)
    ok = [not x for x in failed.tolist()]
    return TreeVerdict(accepted.masked_fill(failed, 0), _padded(emitted, ok, width + 1, logits.device), failed,
                       _padded(paths, ok, width, logits.device))


def _walk(p: Tensor, draft: Tree, start: int, parents: list[int], tokens: list[int], chance: Tensor
          ) -> tuple[list[int], Tensor]:
    """One request: the accepted nodes, and the law that the token behind them is drawn from."""
    node, path = -1, []
    while True:
        children = [i for i, parent in enumerate(parents) if parent == node]
        tested = trials(p[node + 1], draft.way, [tokens[i] for i in children],
                        [draft.law(start + i, p.shape[1]) for i in children])
        for child, (left, q) in zip_longest(children, tested):
            if child is None:
                return path, left
            if accepts(chance[child], left[tokens[child]], q[tokens[child]]):
                break
        node = child
        path.append(child)


def _depths(parents: list[int]) -> list[int]:
    """Of each node: accepted nodes above it."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + depths[parent] if parent >= 0 else 0)
    return depths


def _ranks(parents: list[int]) -> list[int]:
    """Of each node: elder siblings."""
    return [parents[:i].count(parent) for i, parent in enumerate(parents)]


def _flat(rows: list[list[int]], device: torch.device) -> Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.int64, device=device)


def _padded(rows: list[list[int]], ok: list[bool], width: int, device: torch.device) -> Tensor:
    """``[B, width]`` int64, -1 behind each row's end and throughout where not ok."""
    rows = [row + [-1] * (width - len(row)) if good else [-1] * width for row, good in zip(rows, ok)]
    return torch.tensor(rows, dtype=torch.int64, device=device).view(len(rows), width)
