"""Chain verification in plain torch: the reference that every faster verifier must equal.

Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318): go through the drafted tokens in
order, accept x with probability min(1, p(x) / q(x)); at the first rejection draw from (p - q)+ normalised; if
nothing was rejected draw one bonus token from p. Whatever q is, each emitted token then follows p: x is
emitted with probability min(p, q)(x) by acceptance, and the residual supplies just the missing (p - q)+(x).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spin_core.draft.base import Draft
from spin_core.randomness import ACCEPT, RESIDUAL, race, uniform
from spin_core.sampling import SamplingBatch, largest, probabilities


@dataclass
class Verdict:
    """What became of the drafts of B requests.

    ``num_accepted [B]`` int64, drafted tokens accepted.
    ``tokens [B, gamma_max + 1]`` int64, the accepted tokens and the target's own after them, then -1.
    ``failed [B]`` bool, requests that met logits without a law: nothing accepted, no tokens.
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
    """``p, q [R, V]`` -> the unnormalised law (p - q)+ of the token that replaces a rejected one.

    With q = 0, nothing proposed, that is p: the bonus token needs no rule of its own. A residual without mass
    means p = q, where only rounding can reject: then p itself.
    """
    rest = (p - q).clamp_(min=0)
    empty = ~(rest.amax(-1) > 0)
    if empty.any():
        rest[empty] = p[empty].to(rest.dtype)
    return rest


def check_shapes(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor, who: str = "verify_chain",
                 rows: str = "drafted tokens", drafts: str = "drafts") -> None:
    """Raise ValueError unless the arguments of a verifier fit together; the words are for its message."""
    batch, drafted = len(sampling), draft.tokens.shape[0]
    if logits.dim() != 2 or logits.shape[0] != drafted + batch:
        raise ValueError(f"{who}: {drafted} {rows} of {batch} requests need {drafted + batch} rows of logits, "
                         f"got {tuple(logits.shape)}")
    if draft.cu.shape[0] != batch + 1 or position.shape[0] != batch:
        raise ValueError(f"{who}: {batch} sampling rows, {draft.cu.shape[0] - 1} {drafts}, {position.shape[0]} "
                         "positions: these must be equal")


def verify_chain(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor) -> Verdict:
    """Accept the longest valid prefix of every request's draft and draw one token more.

    ``logits [N + B, V]``, the target's rows of request b from ``draft.cu[b] + b`` on: one for each of its
    drafted tokens, then the bonus row. ``sampling`` has B rows. ``position [B]`` int64, the absolute index
    (prompt + output) of the first token being decided. Greedy and sampling requests, one-hot and sampled
    drafts, and drafts of any length mix.

    A request fails, alone, if a row that its verdict needs has no law (NaN, +inf, nothing finite); rows
    behind its first rejection are not needed. Raises ValueError if the shapes do not fit together.
    """
    check_shapes(logits, draft, sampling, position)
    batch, counts = len(sampling), draft.counts
    accepted = torch.zeros_like(counts)
    token = torch.full_like(counts, -1)
    _go(_Greedy(logits, draft), sampling.greedy.nonzero().squeeze(-1), draft, accepted, token)
    sampled = (~sampling.greedy).nonzero().squeeze(-1)
    if sampled.numel():
        judge = _Sampled(logits, draft, sampling, position)
        _go(judge, sampled, draft, accepted, token)
        judge.draw(accepted, token)

    failed = token < 0
    accepted = accepted.masked_fill(failed, 0)
    place = torch.arange(int(counts.max()) + 1 if batch else 1, device=logits.device)
    tokens = torch.full((batch, len(place)), -1, device=logits.device)
    if draft.tokens.numel():
        drafted = draft.tokens[(draft.cu[:-1, None] + place).clamp(max=len(draft.tokens) - 1)]
        tokens = drafted.where(place < accepted[:, None], -1)
    tokens.scatter_(1, accepted[:, None], token[:, None])
    return Verdict(accepted, tokens, failed)


def _go(judge: "_Greedy | _Sampled", alive: Tensor, draft: Draft, accepted: Tensor, token: Tensor) -> None:
    """Test first drafts of the requests ``alive``, then second ones, ...: a request is out at its first
    rejection.

    So no row behind it is read. Writes to ``accepted`` and ``token`` where the judge knows the token.
    """
    for depth in range(len(draft.tokens) + 1):
        if not alive.numel():
            return
        place = draft.cu[alive] + depth                 # of the drafted token under test, where there is one
        more = place < draft.cu[alive + 1]
        accept, token[alive] = judge(place + alive, place, more, alive)
        accepted[alive] += accept
        alive = alive[accept]


class _Greedy:
    """A draft must be the largest logit; where it is not, that is the token."""

    def __init__(self, logits: Tensor, draft: Draft) -> None:
        self.logits, self.draft = logits, draft

    def __call__(self, row: Tensor, place: Tensor, more: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
        peak, best = largest(self.logits[row])
        best = best.where(peak.isfinite(), -1)          # -1 where there is no law
        accept = more.clone()
        accept[more] = self.draft.tokens[place[more]] == best[more]
        return accept, best


class _Sampled:
    """The accept test of requests of positive temperature; :meth:`draw` then draws all their last tokens at once."""

    def __init__(self, logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor) -> None:
        self.logits, self.draft, self.sampling, self.position = logits, draft, sampling, position
        owner = torch.arange(len(sampling), device=logits.device).repeat_interleave(draft.counts)
        self.q = _drafted_probability(draft)            # [N]
        self.u = self.q
        if len(owner):
            at = position[owner] + torch.arange(len(owner), device=logits.device) - draft.cu[owner]
            self.u = uniform(sampling.seed[owner], at, ACCEPT)
        # Memory is asked for once: on a CPU fresh pages cost more than the arithmetic done on them.
        requests, dtype = int((~sampling.greedy).sum()), torch.promote_types(logits.dtype, torch.float32)
        self.p, self.weights = torch.empty(2, requests, logits.shape[1], dtype=dtype, device=logits.device)
        self.ended: list[Tensor] = []       # requests whose last token has these weights, row by row

    def __call__(self, row: Tensor, place: Tensor, more: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
        p = probabilities(self.logits, self.sampling.rows(alive), row, out=self.p[:len(row)])
        accept = more.clone()
        at = place[more]
        accept[more] = accepts(self.u[at], p[more.nonzero().squeeze(-1), self.draft.tokens[at]], self.q[at])
        rejected = more & ~accept
        self._end(alive[~more], p[~more])
        self._end(alive[rejected], residual(p[rejected], _law(self.draft, place[rejected], p)))
        return accept, torch.full_like(alive, -1)

    def _end(self, requests: Tensor, weights: Tensor) -> None:
        begin = sum(len(x) for x in self.ended)
        self.weights[begin:begin + len(weights)] = weights
        self.ended.append(requests)

    def draw(self, accepted: Tensor, token: Tensor) -> None:
        """Give every request its last token."""
        ended = torch.cat(self.ended)
        token[ended] = race(self.weights, self.sampling.seed[ended], self.position[ended] + accepted[ended], RESIDUAL)


def _drafted_probability(draft: Draft) -> Tensor:
    """``[N]``: q of each drafted token under the law it was drawn from."""
    if draft.probs is None:
        return torch.ones(draft.tokens.shape, device=draft.tokens.device)
    q = torch.ones(draft.tokens.shape, dtype=draft.probs.dtype, device=draft.tokens.device)
    soft = draft.prob_row >= 0
    law, token = draft.prob_row[soft], draft.tokens[soft]
    if draft.ids is None:
        q[soft] = draft.probs[law, token]
    else:
        column = torch.searchsorted(draft.ids, token).clamp(max=draft.ids.shape[0] - 1)
        q[soft] = draft.probs[law, column].where(draft.ids[column] == token, 0)
    return q


def _law(draft: Draft, place: Tensor, p: Tensor) -> Tensor:
    """``[R, V]``: the law q that each of R drafted tokens was drawn from, over the vocabulary of ``p [., V]``."""
    law = draft.prob_row[place]
    hard = law < 0
    if draft.probs is not None and draft.ids is None and not hard.any():
        return draft.probs[law]
    dtype = p.dtype if draft.probs is None else torch.promote_types(p.dtype, draft.probs.dtype)
    q = torch.zeros(len(place), p.shape[-1], dtype=dtype, device=p.device)
    q[hard.nonzero().squeeze(-1), draft.tokens[place[hard]]] = 1
    if draft.probs is not None:
        probs = draft.probs[law[~hard]].to(dtype)
        if draft.ids is None:
            q[~hard] = probs
        else:
            q[(~hard).nonzero(), draft.ids] = probs
    return q
