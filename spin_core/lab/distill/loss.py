"""The loss between two distributions of the next token, fused with the head that makes them.

With p the target's distribution on the draft vocabulary (its true part: it sums to less than one) and q the drafter's,

    loss = (1 - overlap) CE(p, q) - overlap sum min(p, q),

distillation and acceptance, with overlap = .5 in equal parts (SPIRe, arXiv 2504.06419). Both terms have a gradient with
respect to the drafter's logits z in closed form. With [q < p] the tokens whose overlap can still grow and S = sum of q
over them:

    d CE / dz = q sum(p) - p        d sum min(p, q) / dz = q [q < p] - q S

So nothing of the size of a vocabulary has to be kept for a backward pass: positions go through in chunks that stay in
the processor's cache, and what is left of each is the gradient of its state. That is half of the training time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 256         # positions at once; 8 MB of fp32 distribution at a draft vocabulary of 8,192


class _DistributionLoss(torch.autograd.Function):

    @staticmethod
    def forward(ctx, body: Tensor, head: Tensor, hidden: Tensor, log_z: Tensor, weight: Tensor, overlap: float,
                said: Tensor | None) -> Tensor:
        total = torch.zeros((), device=body.device)
        gradient = torch.empty_like(body)
        for rows in (slice(i, i + CHUNK) for i in range(0, len(body), CHUNK)):
            if said is None:
                p = (hidden[rows] @ head.T).float().sub_(log_z[rows, None]).exp_()
            else:
                p = torch.zeros(len(said[rows]), len(head), device=body.device).scatter_(
                    1, said[rows, None].clamp(min=0), (said[rows, None] >= 0).float())
            log_q = F.log_softmax((body[rows] @ head.T).float(), -1)
            cross_entropy = -torch.linalg.vecdot(p, log_q)
            q = log_q.exp_()
            short = q * (q < p)
            shared = torch.minimum(p, q).sum(-1)
            total += (weight[rows] * ((1 - overlap) * cross_entropy - overlap * shared)).sum()
            share = (1 - overlap) * p.sum(-1, keepdim=True) + overlap * short.sum(-1, keepdim=True)
            of_logits = q.mul_(share).sub_(p.mul_(1 - overlap)).sub_(short, alpha=overlap).mul_(weight[rows, None])
            gradient[rows] = (of_logits.to(head.dtype) @ head).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx, outer: Tensor):
        gradient, = ctx.saved_tensors
        return gradient * outer.to(gradient.dtype), None, None, None, None, None, None


def distribution_loss(body: Tensor, head: Tensor, hidden: Tensor, log_z: Tensor, weight: Tensor, *, overlap: float = 0.5,
             said: Tensor | None = None) -> Tensor:
    """The sum over N positions of ``weight [N]`` times their loss, differentiable in ``body`` alone.

    ``body [N, d]`` are the drafter's states and ``hidden [N, d]`` the target's, ``head [Vd, d]`` the rows of the head
    they share, ``log_z [N]`` the log of the target's normaliser over its whole vocabulary. ``overlap``: the share of
    the second term. With ``said [N]``, the token that came as a column of the draft vocabulary or -1 for another, p is
    one-hot there: a hard target. Computed in the dtype of ``head``, sums over the vocabulary in float32.
    """
    return _DistributionLoss.apply(body.to(head.dtype), head, hidden.to(head.dtype), log_z, weight, overlap, said)
