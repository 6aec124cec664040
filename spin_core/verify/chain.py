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
from spin_core.sampling import SamplingBatch, probabilities


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
    return torch.where(rest.amax(-1, keepdim=True) > 0, rest, p)


def check_shapes(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor) -> None:
    """Raise ValueError unless the arguments of ``verify_chain`` fit together."""
    batch, drafted = len(sampling), draft.tokens.shape[0]
    if logits.dim() != 2 or logits.shape[0] != drafted + batch:
        raise ValueError(f"verify_chain: {drafted} drafted tokens of {batch} requests need {drafted + batch} "
                         f"rows of logits, got {tuple(logits.shape)}")
    if draft.cu.shape[0] != batch + 1 or position.shape[0] != batch:
        raise ValueError(f"verify_chain: {batch} sampling rows, {draft.cu.shape[0] - 1} drafts, "
                         f"{position.shape[0]} positions: these must be equal")


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
    batch, drafted = len(sampling), draft.tokens.shape[0]
    counts = draft.counts
    request = torch.arange(batch, device=logits.device)
    owner = request.repeat_interleave(counts)                             # [N] request of each drafted token
    step = torch.arange(drafted, device=logits.device) - draft.cu[owner]  # [N] its place in the chain
    row = torch.arange(drafted, device=logits.device) + owner             # [N] its row of logits
    sampled = (~sampling.greedy).nonzero().squeeze(-1)                    # requests that need a whole law
    peak, best = logits.max(-1)
    best = best.where(peak.isfinite(), -1)                                # [N + B] -1 where there is no law

    # 1. Test every drafted token as if all before it had been accepted. A one-hot p tests equality.
    if sampled.numel():
        p = probabilities(logits, sampling.rows(request.repeat_interleave(counts + 1)))
        u = uniform(sampling.seed[owner], position[owner] + step, ACCEPT)
        accepted = accepts(u, p[row, draft.tokens], _drafted_probability(draft))
    else:
        accepted = draft.tokens == best[row]

    # 2. The first rejection ends the chain.
    num_accepted = counts.scatter_reduce(0, owner, torch.where(accepted, counts[owner], step), "amin")

    # 3. One token more: from what is left of p where a token was rejected, from p where none was.
    last = draft.cu[:-1] + request + num_accepted
    token = best[last]
    if sampled.numel():
        end = num_accepted[sampled]
        weights = residual(p[last[sampled]], _rejected_law(draft, sampled, end, p))
        token[sampled] = race(weights, sampling.seed[sampled], position[sampled] + end, RESIDUAL)

    failed = token < 0
    num_accepted = num_accepted.masked_fill(failed, 0)
    tokens = torch.full((batch, int(counts.max()) + 1 if batch else 1), -1, device=logits.device)
    tokens[owner, step] = draft.tokens.where(step < num_accepted[owner], -1)
    tokens[request, num_accepted] = token
    return Verdict(num_accepted, tokens, failed)


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


def _rejected_law(draft: Draft, requests: Tensor, num_accepted: Tensor, p: Tensor) -> Tensor:
    """``[R, V]``: the law q of the token each of R requests rejected, over the vocabulary of ``p [., V]``.

    Zero where nothing was rejected and outside the draft vocabulary.
    """
    dtype = p.dtype if draft.probs is None else torch.promote_types(p.dtype, draft.probs.dtype)
    q = torch.zeros(requests.shape[0], p.shape[-1], dtype=dtype, device=p.device)
    into = (num_accepted < draft.counts[requests]).nonzero().squeeze(-1)  # rows of q with a rejected token
    which = draft.cu[requests[into]] + num_accepted[into]                 # that token's place in the draft
    law = draft.prob_row[which]
    hard, soft = law < 0, law >= 0
    q[into[hard], draft.tokens[which[hard]]] = 1
    if draft.probs is not None:
        probs = draft.probs[law[soft]].to(dtype)
        if draft.ids is None:
            q[into[soft]] = probs
        else:
            q[into[soft].unsqueeze(-1), draft.ids] = probs
    return q
