"""A pass over more tokens of a request than its rings take at once, as several passes."""

from __future__ import annotations

import torch
from torch import Tensor


def in_parts(runner, slots: list[int], counts: list[int], tokens: Tensor, rows: list[int]) -> Tensor:
    """What ``runner.forward`` gives for chains, ``[R, V]``: a pass reads at most ``cache.most`` of a request."""
    texts, found, most = tokens.split(counts), {}, runner.cache.most
    starts = torch.tensor([0, *counts]).cumsum(0).tolist()
    for begin in range(0, max(counts), most):
        parts = [(b, text[begin:begin + most]) for b, text in enumerate(texts) if len(text) > begin]
        numbers = [starts[b] + begin + i for b, part in parts for i in range(len(part))]
        wanted = [i for i, number in enumerate(numbers) if number in rows]
        logits = runner.forward([slots[b] for b, _ in parts], [len(part) for _, part in parts],
                                torch.cat([part for _, part in parts]), wanted)
        found |= {numbers[i]: row for i, row in zip(wanted, logits)}
    return torch.stack([found[row] for row in rows]) if rows else logits[:0]
