"""From logits to the distribution a token is drawn from: one path for the target and for every drafter.

Speculative decoding is lossless only if q is exactly the distribution the draft was drawn from, and p exactly the
one plain decoding would use. Both come from :func:`probabilities`.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from spin_core.request import SamplingParams


@dataclass
class SamplingBatch:
    """:class:`SamplingParams` of B rows as tensors ``[B]``: float64, but ``top_k`` and ``seed`` int64."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor

    @staticmethod
    def from_params(params: list[SamplingParams], device: torch.device | str = "cpu") -> "SamplingBatch":
        """One row per entry of ``params``."""
        def column(name: str, dtype: torch.dtype) -> Tensor:
            return torch.tensor([getattr(p, name) or 0 for p in params], dtype=dtype, device=device)   # seed None is 0

        # beyond these the distribution no longer changes, but in single precision they would be 0 (greedy) or infinite
        temperature = [p.temperature and min(max(p.temperature, 1e-30), 1e30) for p in params]
        return SamplingBatch(torch.tensor(temperature, dtype=torch.float64, device=device),
                             column("top_k", torch.int64), column("top_p", torch.float64),
                             column("min_p", torch.float64), column("seed", torch.int64))

    def rows(self, index: Tensor) -> "SamplingBatch":
        """The rows named by ``index`` (int64, or a bool mask), in that order and as often as named."""
        return SamplingBatch(*(getattr(self, f.name)[index] for f in fields(self)))

    @property
    def greedy(self) -> Tensor:
        """``[B]`` bool: rows whose distribution is one-hot at the largest logit."""
        return self.temperature == 0

    def __len__(self) -> int:
        return self.temperature.shape[0]


@torch.no_grad()
def probabilities(logits: Tensor, sampling: SamplingBatch, index: Tensor | None = None, out: Tensor | None = None
                  ) -> Tensor:
    """The distribution of the next token, row by row.

    ``logits [N, V]`` of any float type, with one row of ``sampling`` each -> ``[N, V]`` float32 (float64 for float64
    logits). ``index [N]`` names the rows of larger ``logits``; ``out [N, V]`` is memory for the result. Temperature,
    then top-k, top-p and min-p as in transformers' warpers, each on what the ones before it have left, normalised at
    the end; a greedy row is one-hot at its first largest logit. Tokens of equal probability share one fate in every
    filter, so the distribution does not depend on a sort. A row whose largest logit is not finite (NaN anywhere, +inf,
    or -inf throughout) has no distribution: it is NaN. Raises ValueError if the numbers of rows differ.
    """
    rows = logits.shape[0] if index is None else index.shape[0]
    if logits.dim() != 2 or rows != len(sampling):
        shape = tuple(logits.shape) if index is None else f"{rows} rows of {tuple(logits.shape)}"
        raise ValueError(f"probabilities: {len(sampling)} sampling rows for logits {shape}")
    dtype = torch.promote_types(logits.dtype, torch.float32)
    probs = torch.empty(rows, logits.shape[1], dtype=dtype, device=logits.device) if out is None else out
    if index is None:
        probs.copy_(logits)
    elif logits.dtype == dtype:
        torch.index_select(logits, 0, index, out=probs)
    else:
        probs.copy_(logits[index])
    greedy = sampling.greedy        # the rule is warp_; what follows are mixed batches and overflow
    if not greedy.any():
        warp_(probs, sampling)
    elif not greedy.all():
        probs[~greedy] = warp_(probs[~greedy], sampling.rows(~greedy))
    overflown = probs[:, 0].isnan() & ~greedy & (sampling.temperature < 1)      # such a row is NaN throughout
    if overflown.any():         # of finite logits, divided: only the differences to the largest one count
        scores = (logits if index is None else logits[index])[overflown].to(dtype)
        probs[overflown] = warp_(scores - scores.amax(-1, keepdim=True), sampling.rows(overflown))
    if greedy.any():
        peak, best = largest(probs[greedy])
        hot = torch.zeros_like(probs[greedy]).scatter_(-1, best.unsqueeze(-1), 1.0)
        probs[greedy] = hot.masked_fill_(~peak.isfinite().unsqueeze(-1), torch.nan)
    return probs


def largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """``[N, V]`` -> the largest logit of each row and its first column, ``[N]`` each. With a NaN: NaN and any
    column.

    As ``logits.max(-1)``, but the maximum over groups of columns first, which needs no index and so is
    several times as fast on a CPU.
    """
    group = 64
    whole = logits.shape[-1] // group * group
    if not whole or logits.is_cuda:
        return tuple(logits.max(-1))
    peaks = logits[:, :whole].unflatten(-1, (-1, group)).amax(-1)
    peak, at = peaks.max(-1)
    column = at.unsqueeze(-1) * group + torch.arange(group, device=logits.device)
    best = at * group + logits.gather(1, column).argmax(-1)
    if whole < logits.shape[-1]:
        last, column = logits[:, whole:].max(-1)
        peak, best = torch.maximum(peak, last), torch.where(last > peak, whole + column, best)
    return peak, best


def warp_(scores: Tensor, sampling: SamplingBatch, known: Collection[str] | None = None) -> Tensor:
    """Logits -> :func:`probabilities`, in place, of positive temperature. A filter is a floor under the scores.

    ``known``: the filters in use, so that the device need not be asked; every row is then sorted whole.
    """
    if known is not None or (sampling.temperature != 1).any():
        scores.div_(sampling.temperature.to(scores.dtype).unsqueeze(-1))
    for name, active, floor in (("top_k", sampling.top_k > 0, _top_k_floor),
                                ("top_p", sampling.top_p < 1, _top_p_floor),
                                ("min_p", sampling.min_p > 0, _min_p_floor)):
        if known is not None:
            if name in known:
                floors = floor(scores, sampling, scores.shape[-1]).where(active.unsqueeze(-1), -torch.inf)
                scores.masked_fill_(scores < floors, -torch.inf)
        elif active.any():
            kept, rows = (scores, sampling) if active.all() else (scores[active], sampling.rows(active))
            kept.masked_fill_(kept < floor(kept, rows), -torch.inf)
            if kept is not scores:
                scores[active] = kept
    return torch.softmax(scores, -1, out=scores)


def _top_k_floor(scores: Tensor, sampling: SamplingBatch, most: int | None = None) -> Tensor:
    """``[N, 1]``: the k-th largest score. ``most``: how many are sorted; by default as many as needed."""
    k = sampling.top_k.clamp(max=scores.shape[-1])
    return scores.topk(most or int(k.max())).values.gather(-1, k.clamp(min=1).unsqueeze(-1) - 1)


def _top_p_floor(scores: Tensor, sampling: SamplingBatch, most: int | None = None) -> Tensor:
    """``[N, 1]``: the lowest score of the smallest set of largest scores whose mass reaches top_p."""
    top_p = sampling.top_p.unsqueeze(-1)
    mass = scores.softmax(-1)
    # All tokens below (1 - top_p) / V together have less than 1 - top_p, so none is kept: sort only the
    # others, a small share of a large vocabulary.
    candidates = most or int((mass >= (1 - top_p).to(mass.dtype) / mass.shape[-1]).sum(-1).max().clamp(min=1))
    order = scores.topk(candidates)
    mass = mass.gather(-1, order.indices).to(torch.float64)
    before = mass.cumsum(-1) - mass
    return order.values.gather(-1, (before < top_p).sum(-1, keepdim=True).clamp(min=1) - 1)


def _min_p_floor(scores: Tensor, sampling: SamplingBatch, most: int | None = None) -> Tensor:
    """``[N, 1]``: the score of a token min_p times as likely as the most likely one."""
    return scores.amax(-1, keepdim=True) + sampling.min_p.log().to(scores.dtype).unsqueeze(-1)
