"""Chain verification of a batch in plain torch: the reference for the kernel, itself tested against :mod:`.textbook`.

Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318): go through the drafted tokens in
order, accept x with probability min(1, p(x) / q(x)); at the first rejection draw from (p - q)+ normalised; if
nothing was rejected draw one bonus token from p. Whatever q is, each emitted token then follows p: x is
emitted with probability min(p, q)(x) by acceptance, and the residual supplies just the missing (p - q)+(x).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spin_core.draft.base import Draft
from spin_core.draft.tree import Tree
from spin_core.randomness import ACCEPT, RESIDUAL, exponential_race, uniform
from spin_core.sampling import SamplingBatch, largest, probabilities


@dataclass
class Verdict:
    """What became of the drafts of B requests.

    ``num_accepted [B]`` int64, drafted tokens accepted.
    ``tokens [B, gamma_max + 1]`` int64, the accepted tokens and the target's own after them, then -1.
    ``failed [B]`` bool, requests that met logits without a distribution: nothing accepted, no tokens.
    """

    num_accepted: Tensor
    tokens: Tensor
    failed: Tensor


def accepts(u: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """The accept test for tokens of target probability p and draft probability q, u uniform in [0, 1).

    True with probability min(1, p / q). Written without the quotient: p = 0 is never accepted, q = 0 divides
    nothing, and a NaN is a rejection.
    """
    return u * q < p


def residual(p: Tensor, q: Tensor) -> Tensor:
    """``p, q [R, V]`` -> the unnormalised distribution (p - q)+ of the token that replaces a rejected one.

    With q = 0, nothing proposed, that is p: the bonus token needs no rule of its own. A residual without mass
    means p = q, where only rounding can reject: then p itself.
    """
    rest = (p - q).clamp_(min=0)
    empty = ~(rest.amax(-1) > 0)
    if empty.any():
        rest[empty] = p[empty].to(rest.dtype)
    return rest


def check_shapes(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor, tree: bool = False) -> None:
    """Raise ValueError unless the arguments of a verifier, of chains or of a ``tree``, fit together."""
    caller, rows, drafts = ("verify_tree", "nodes", "trees") if tree else ("verify_chain", "drafted tokens", "drafts")
    if isinstance(draft, Tree) != tree:             # siblings are no chain: their q is another one
        raise ValueError(f"{caller}: got a {type(draft).__name__}; verify_chain takes a Draft, verify_tree a Tree")
    batch, drafted = len(sampling), draft.tokens.shape[0]
    if logits.dim() != 2 or logits.shape[0] != drafted + batch:
        raise ValueError(f"{caller}: {drafted} {rows} of {batch} requests need {drafted + batch} rows of logits, "
                         f"got {tuple(logits.shape)}")
    if draft.cu.shape[0] != batch + 1 or position.shape[0] != batch:
        raise ValueError(f"{caller}: {batch} sampling rows, {draft.cu.shape[0] - 1} {drafts}, {position.shape[0]} "
                         "positions: these must be equal")


def verify_chain(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor) -> Verdict:
    """Accept the longest valid prefix of every request's draft and draw one token more.

    ``logits [N + B, V]``, the target's rows of request b from ``draft.cu[b] + b`` on: one for each of its drafted
    tokens, then the bonus row. ``sampling`` has B rows. ``position [B]`` int64, the absolute index (prompt + output) of
    the first token being decided. Greedy and sampling requests, one-hot and sampled drafts, and drafts of any length
    mix.

    A request fails, alone, if a row up to its first rejection has no distribution (NaN, +inf, nothing finite). Raises
    ValueError if the shapes do not fit together.
    """
    check_shapes(logits, draft, sampling, position)
    # Lists, not tensors: for so few numbers Python is several times as fast.
    batch, cu, tokens, greedy = len(sampling), draft.cu.tolist(), draft.tokens.tolist(), sampling.greedy.tolist()
    accepted, last = [0] * batch, [-1] * batch

    def is_largest(alive: list[int], place: list[int], more: list[bool]) -> list[bool]:
        """Of greedy requests: a drafted token must be the largest logit; where it is not, that is the last token."""
        peak, best = largest(logits[_rows(place, alive, logits.device)])
        mine = best.where(peak.isfinite(), -1).tolist()     # -1 where there is no distribution
        for b, token in zip(alive, mine):
            last[b] = token
        return [here and tokens[at] == token for at, here, token in zip(place, more, mine)]

    _test_depth_by_depth(is_largest, [b for b in range(batch) if greedy[b]], cu, accepted)
    if not all(greedy):
        sampled = _Sampled(logits, draft, sampling, position)
        _test_depth_by_depth(sampled.test, [b for b in range(batch) if not greedy[b]], cu, accepted)
        sampled.draw(accepted, last)

    failed = [t < 0 for t in last]
    accepted = [0 if fail else n for n, fail in zip(accepted, failed)]
    width = 1 + max((end - start for start, end in zip(cu, cu[1:])), default=0)
    text = [tokens[start:start + n] + [t] + [-1] * (width - 1 - n) for start, n, t in zip(cu, accepted, last)]
    return Verdict(*(torch.tensor(x, dtype=dtype, device=logits.device).reshape(shape) for x, dtype, shape in (
        (accepted, torch.int64, (batch,)), (text, torch.int64, (batch, width)), (failed, torch.bool, (batch,)))))


def _test_depth_by_depth(test: Callable[..., list[bool]], alive: list[int], cu: list[int], accepted: list[int]) -> None:
    """Test the first drafted token of every request ``alive``, then the second, ...: a request leaves at its first
    rejection or behind its draft, so no row behind that is read. Counts into ``accepted``.

    ``test(alive, place, more)``: for each request the drafted token under test, if it has one ``more``; is it accepted?
    """
    depth = 0
    while alive:
        place = [cu[b] + depth for b in alive]          # of the drafted token under test, where there is one
        more = [at < cu[b + 1] for at, b in zip(place, alive)]
        alive = [b for b, accept in zip(alive, test(alive, place, more)) if accept]
        depth += 1
        for b in alive:
            accepted[b] = depth


def _rows(place: list[int], alive: list[int], device: torch.device) -> Tensor:
    """Rows of the logits: every request has one more than drafted tokens."""
    return torch.tensor([at + b for at, b in zip(place, alive)], device=device)


class _Sampled:
    """The accept test of requests of positive temperature; :meth:`draw` then draws all their last tokens at once."""

    def __init__(self, logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor) -> None:
        self.logits, self.draft, self.sampling, self.position = logits, draft, sampling, position
        owner = torch.arange(len(sampling), device=logits.device).repeat_interleave(draft.counts)
        self.tokens, self.rows = draft.tokens.tolist(), draft.prob_row.tolist()
        self.q = _drafted_probability(draft)            # [N]
        self.u = self.q
        if len(owner):
            at = position[owner] + torch.arange(len(owner), device=logits.device) - draft.cu[owner]
            self.u = uniform(sampling.seed[owner], at, ACCEPT)
        # Memory is asked for once: on a CPU fresh pages cost more than the arithmetic done on them.
        requests, dtype = int((~sampling.greedy).sum()), torch.promote_types(logits.dtype, torch.float32)
        self.p, self.weights = torch.empty(2, requests, logits.shape[1], dtype=dtype, device=logits.device)
        self.ended: list[int] = []          # requests whose last token has these weights, row by row

    def test(self, alive: list[int], place: list[int], more: list[bool]) -> list[bool]:
        device = self.logits.device
        mine = self.sampling if len(alive) == len(self.sampling) else \
            self.sampling.rows(torch.tensor(alive, device=device))
        p = probabilities(self.logits, mine, _rows(place, alive, device), out=self.p[:len(alive)])
        accept = list(more)
        if tested := [i for i, here in enumerate(more) if here]:
            at = torch.tensor([place[i] for i in tested], device=device)
            p_token = p[torch.tensor(tested, device=device), self.draft.tokens[at]]
            for i, passed in zip(tested, accepts(self.u[at], p_token, self.q[at]).tolist()):
                accept[i] = passed
        rejected = [i for i in tested if not accept[i]]
        for i in range(len(alive)):
            if not more[i]:
                self._end(alive[i:i + 1], p[i])
        if rejected:
            at = [place[i] for i in rejected]
            q = torch.stack([self.draft.distribution(self.tokens[i], self.rows[i], p.shape[1]) for i in at])
            self._end([alive[i] for i in rejected], residual(p[rejected], q))
        return accept

    def _end(self, requests: list[int], weights: Tensor) -> None:
        begin = len(self.ended)
        self.ended += requests
        self.weights[begin:len(self.ended)] = weights

    def draw(self, accepted: list[int], token: list[int]) -> None:
        """Give every request its last token."""
        ended, count = torch.tensor([self.ended, [accepted[b] for b in self.ended]], device=self.logits.device)
        drawn = exponential_race(self.weights, self.sampling.seed[ended], self.position[ended] + count, RESIDUAL)
        for b, t in zip(self.ended, drawn.tolist()):
            token[b] = t


def _drafted_probability(draft: Draft) -> Tensor:
    """``[N]``: q of each drafted token under the distribution it was drawn from."""
    if draft.probs is None:
        return torch.ones(draft.tokens.shape, device=draft.tokens.device)
    q = torch.ones(draft.tokens.shape, dtype=draft.probs.dtype, device=draft.tokens.device)
    soft = draft.prob_row >= 0
    row, token = draft.prob_row[soft], draft.tokens[soft]
    if draft.ids is None:
        q[soft] = draft.probs[row, token]
    else:
        column = torch.searchsorted(draft.ids, token).clamp(max=draft.ids.shape[0] - 1)
        q[soft] = draft.probs[row, column].where(draft.ids[column] == token, 0)
    return q
