"""Attention over pieces, merged exactly: the equations, in the order of the paper, on any device and dtype.

With M [B, R] the indicator, S_r = Q_i K_r^T / sqrt(d) + mask the scores of piece r of request i, and m_i their
maximum over all pieces of i:

    O_i = sum_r M_ir exp(S_r - m_i) V_r  /  sum_r M_ir rowsum exp(S_r - m_i)

Computed piece by piece, each with its own maximum, and joined by :func:`merge` through log-sum-exps.
"""

import torch
from torch import Tensor

from spin_core.decompose.plan import Piece


def attend_piece(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None,
                 scale: float) -> tuple[Tensor, Tensor]:
    """Attention of ``query [heads, T, d]`` over one piece, ``key`` and ``value [kv_heads, n, d]``.

    ``visible`` is bool ``[T, n]`` or None for everything. Returns the output ``[heads, T, d]`` and the log-sum-exp of
    the scores ``[heads, T]``, which is -inf (and the output 0) where a query sees none of the piece.
    """
    heads, rows, dim = query.shape
    grouped = query.reshape(len(key), heads // len(key), rows, dim)                # GQA: [kv_heads, group, T, d]
    scores = torch.einsum("kgtd,knd->kgtn", grouped, key) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    lse = scores.logsumexp(-1)
    finite = lse.clamp_min(torch.finfo(lse.dtype).min)                             # -inf - finite = -inf: weight 0
    weights = (scores - finite.unsqueeze(-1)).exp()
    out = torch.einsum("kgtn,knd->kgtd", weights, value)
    return out.reshape(heads, rows, dim), lse.reshape(heads, rows)


def merge(outs: Tensor, lses: Tensor) -> Tensor:
    """Join the pieces of one request: ``outs [R, ..., d]`` and ``lses [R, ...]`` -> ``[..., d]``.

    A piece's share is exp(its log-sum-exp - that of all pieces).
    """
    share = (lses - lses.logsumexp(0)).exp()
    return (outs * share.unsqueeze(-1)).sum(0)


def attend_request(query: Tensor, key: Tensor, value: Tensor, pieces: list[Piece], visible: Tensor | None,
                   scale: float) -> Tensor:
    """One request's ``query [heads, T, d]`` over all its keys ``[kv_heads, l, d]``, cut into ``pieces``.

    ``visible`` is bool ``[T, l]``: the prefix, then an ancestor mask among the in-flight tokens. A piece's bounds
    may fall anywhere, among the in-flight tokens too.
    """
    parts = [attend_piece(query, key[:, p.start:p.stop], value[:, p.start:p.stop],
                          None if visible is None else visible[:, p.start:p.stop], scale) for p in pieces]
    return merge(torch.stack([o for o, _ in parts]), torch.stack([lse for _, lse in parts]))
