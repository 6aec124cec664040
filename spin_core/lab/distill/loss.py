"""The loss between two distributions of the next token, with its gradient in closed form.

With p the target's distribution on the draft vocabulary (its true part: it sums to less than one) and q the drafter's,

    loss = (1 - overlap) CE(p, q) - overlap sum min(p, q),

distillation and acceptance, with overlap = .5 in equal parts (SPIRe, arXiv 2504.06419). Both terms have a gradient with
respect to the drafter's logits z in closed form. With [q < p] the tokens whose overlap can still grow and S = sum of q
over them:

    d CE / dz = q sum(p) - p        d sum min(p, q) / dz = q [q < p] - q S

So nothing of the size of a vocabulary has to be kept for a backward pass: positions go through in blocks that stay in
the processor's cache, and what is left of each is the gradient of its state. That is half of the training time.
"""

import torch
from torch import Tensor


def log_normaliser(logits: Tensor) -> Tensor:
    return logits.float().logsumexp(-1)


def probabilities(logits: Tensor, log_z: Tensor) -> Tensor:
    """p on the columns of ``logits [N, Vd]``, given the log of the normaliser over the whole vocabulary ``[N]``."""
    return (logits.float() - log_z[:, None]).exp().to(logits.dtype)


def loss_and_gradient(logits: Tensor, p: Tensor, weight: Tensor, overlap: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """Of the drafter's ``logits [N, Vd]``, ``p [N, Vd]`` and each position's ``weight [N]``: the gradient with respect
    to the logits, the weighted loss, and the weighted sum min(p, q). Computed in float32."""
    z, p = logits.float(), p.float()
    peak = z.amax(-1, keepdim=True)
    q = (z - peak).exp()
    total = q.sum(-1, keepdim=True)
    q = q / total
    cross_entropy = (peak + total.log())[:, 0] * p.sum(-1) - (p * z).sum(-1)
    shared = torch.minimum(p, q).sum(-1)
    short = torch.where(q < p, q, 0.0)
    gradient = (1 - overlap) * (q * p.sum(-1, keepdim=True) - p) + overlap * (q * short.sum(-1, keepdim=True) - short)
    value = (1 - overlap) * cross_entropy - overlap * shared
    return (weight[:, None] * gradient).to(logits.dtype), (weight * value).sum(), (weight * shared).sum()
