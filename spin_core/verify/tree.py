"""Tree verification in plain torch: several proposals for a position, and the text still follows the target.

SpecInfer (arXiv 2305.09781), multi-step speculative sampling: at a node test its children one after the other. Child x,
drawn from q, is accepted with probability min(1, p(x) / q(x)); a rejection leaves p <- (p - q)+ normalised for the next
child, and when none is left the token is drawn from what remains of p. Each step is exact *if q is the distribution
that child was drawn from, given the children rejected before it*: see :mod:`spin_core.draft.tree`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from spin_core.draft.tree import Proposal, Tree, depths, flat
from spin_core.randomness import ACCEPT, RESIDUAL, exponential_race, uniform
from spin_core.sampling import SamplingBatch, largest, probabilities
from spin_core.verify.chain import Verdict, accepts, check_shapes, residual


@dataclass
class TreeVerdict(Verdict):
    """A :class:`Verdict` with ``path [B, depth_max]`` int64: the accepted nodes, places in their request, then -1."""

    path: Tensor


def trials(p: Tensor, way: str, tokens: list[int], distributions: Iterable[Tensor], rows: list[int] | None = None
           ) -> Iterator[tuple[Tensor, Tensor]]:
    """``[V]`` each: the p and q that child 0, 1, ... is tested with, given that those before it were rejected.

    ``distributions`` holds what each child was drawn from, its siblings not considered; ``rows`` says which of these
    are one and the same (None: all of them). One pair more than there are children: last comes what is left of p when
    all are rejected, and a q of zero.
    """
    for i, q in enumerate(distributions):
        if way == "without_replacement":
            elder = [tokens[j] for j in range(i) if rows is None or rows[j] == rows[i] >= 0]
            q = q.index_fill(0, torch.tensor(elder, dtype=torch.int64, device=q.device), 0)
            q = q / q.sum().clamp(min=torch.finfo(q.dtype).tiny)    # no mass: never drawn, and q = 0
        yield p, q
        rest = residual(p, q)
        p = rest / rest.sum()
    yield p, torch.zeros_like(p)


def verify_tree(logits: Tensor, draft: Tree, sampling: SamplingBatch, position: Tensor) -> TreeVerdict:
    """Walk down every request's tree as far as children are accepted and draw one token more.

    ``logits [N + B, V]``: request b's rows start at ``draft.cu[b] + b`` with the logits behind the committed text, then
    those behind each of its nodes. ``sampling`` has B rows. ``position [B]`` int64, the absolute index of the first
    token being decided. For a tree that is a chain the verdict is that of ``verify_chain``, draw by draw.

    A request fails, alone, if a row on its way has no distribution. Raises ValueError if the shapes do not fit.
    """
    check_shapes(logits, draft, sampling, position, tree=True)
    batch, device = len(sampling), logits.device
    trees = list(draft.requests())
    depth = [depths(parents) for parents, _, _ in trees]
    start = (draft.cu[:-1] + torch.arange(batch, device=device)).tolist()      # each request's first row of logits
    greedy = sampling.greedy.tolist()
    paths: list[list[int]] = [[] for _ in trees]
    last = torch.full((batch,), -1, dtype=torch.int64, device=device)
    if any(greedy):
        argmax = [b for b in range(batch) if greedy[b]]
        rows = torch.tensor([start[b] + i for b in argmax for i in range(len(trees[b][0]) + 1)], device=device)
        peak, best = largest(logits[rows])
        best = iter(torch.where(peak.isfinite(), best, -1).tolist())
        for b in argmax:
            parents, tokens, _ = trees[b]
            paths[b], last[b] = _follow(parents, tokens, [next(best) for _ in range(len(tokens) + 1)])
    if not all(greedy):
        others = [b for b in range(batch) if not greedy[b]]
        _sample(logits, draft, sampling, position, trees, depth, start, others, paths, last)
    accepted = torch.tensor([len(path) for path in paths], dtype=torch.int64, device=device)
    failed = last < 0
    emitted = [[*(tokens[node] for node in path), token] for (_, tokens, _), path, token in
               zip(trees, paths, last.tolist())]
    width = max((d + 1 for levels in depth for d in levels), default=0)
    ok = [not x for x in failed.tolist()]
    return TreeVerdict(accepted.masked_fill(failed, 0), _padded(emitted, ok, width + 1, device), failed,
                       _padded(paths, ok, width, device))


def _follow(parents: list[int], tokens: list[int], best: list[int]) -> tuple[list[int], int]:
    """A greedy request: the path along the target's ``best`` tokens (behind the text, then behind each
    node; -1: no distribution) and the token behind it. What multi-step sampling comes to where p is one-hot."""
    child = {(parent, token): node for node, (parent, token) in reversed([*enumerate(zip(parents, tokens))])}
    node, path = -1, []
    while (node := child.get((node, best[node + 1]))) is not None:
        path.append(node)
    return path, best[path[-1] + 1 if path else 0]


def _sample(logits: Tensor, draft: Tree, sampling: SamplingBatch, position: Tensor, trees: list, depth: list[list[int]],
            start: list[int], requests: list[int], paths: list[list[int]], last: Tensor) -> None:
    """Write path and last token of the sampling ``requests``."""
    device = logits.device
    owner = torch.tensor(requests, device=device)
    counts = torch.tensor([len(trees[b][0]) + 1 for b in requests], device=device)
    rows = torch.tensor([start[b] + i for b in requests for i in range(len(trees[b][0]) + 1)], device=device)
    probs = probabilities(logits, sampling.rows(owner.repeat_interleave(counts)), rows).split(counts.tolist())
    # `base` counts the tests at one node, so that siblings meet independent noise
    tests = torch.tensor([len(trees[b][2]) for b in requests], dtype=torch.int64, device=device)
    level = flat([[depth[b][x.node] for x in trees[b][2]] for b in requests], device)
    rank = flat([_ranks(trees[b][0], trees[b][2]) for b in requests], device)
    of = owner.repeat_interleave(tests)
    chance = uniform(sampling.seed[of], position[of] + level, ACCEPT, rank).split(tests.tolist())
    left = []
    for b, p, u in zip(requests, probs, chance):
        paths[b], rest = _walk(p, draft, *trees[b], u)
        left.append(rest)
    accepted = torch.tensor([len(paths[b]) for b in requests], dtype=torch.int64, device=device)
    last[owner] = exponential_race(torch.stack(left), sampling.seed[owner], position[owner] + accepted, RESIDUAL)


def _walk(p: Tensor, draft: Tree, parents: list[int], tokens: list[int], proposals: list[Proposal], chance: Tensor
          ) -> tuple[list[int], Tensor]:
    """One request: the accepted nodes, and the distribution that the token behind them is drawn from."""
    node, path = -1, []
    while True:
        tests = [i for i, proposal in enumerate(proposals) if parents[proposal.node] == node]
        drawn = [tokens[proposals[i].node] for i in tests]
        rows = [proposals[i].row for i in tests]
        distributions = (draft.distribution(token, row, p.shape[1]) for token, row in zip(drawn, rows))
        tried = trials(p[node + 1], draft.way, drawn, distributions, rows)
        for test, token, (left, q) in zip_longest(tests, drawn, tried):
            if test is None:
                return path, left
            if accepts(chance[test], left[token], q[token]):
                break
        node = proposals[test].node
        path.append(node)


def _ranks(parents: list[int], proposals: list[Proposal]) -> list[int]:
    """Of each proposal: how many come before it at the same parent."""
    seen: Counter[int] = Counter()
    ranks = []
    for proposal in proposals:
        ranks.append(seen[parents[proposal.node]])
        seen[parents[proposal.node]] += 1
    return ranks


def _padded(rows: list[list[int]], ok: list[bool], width: int, device: torch.device) -> Tensor:
    """``[B, width]`` int64, -1 behind each row's end and throughout where not ok."""
    rows = [row + [-1] * (width - len(row)) if good else [-1] * width for row, good in zip(rows, ok)]
    return torch.tensor(rows, dtype=torch.int64, device=device).view(len(rows), width)
