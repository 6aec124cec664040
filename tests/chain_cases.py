"""Random batches of drafts for the tests of the verifiers, in every room that has some."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from spin_core.draft.base import Draft
from spin_core.request import SamplingParams
from spin_core.verify import Verdict

SAMPLED = SamplingParams(temperature=1.0)
params_list = st.lists(st.builds(
    SamplingParams, temperature=st.sampled_from([0.0, 0.0, 0.5, 1.0, 1.5]),
    top_k=st.sampled_from([0, 0, 0, 4]), top_p=st.sampled_from([1.0, 1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]), seed=st.integers(0, 2**63 - 1)), max_size=7)


def make_batch(counts: list[int], vocab: int, seed: int, subset: bool = False, dtype=torch.float32):
    """Random logits near a random drafter's, half of the drafts one-hot: ``(logits, draft)``."""
    generator = torch.Generator().manual_seed(seed)
    drafted, batch = sum(counts), len(counts)
    columns = max(1, vocab // 2) if subset else vocab
    ids = torch.randperm(vocab, generator=generator)[:columns].sort().values if subset else None
    scores = 2 * torch.randn(drafted + batch, vocab, generator=generator)
    logits = scores + 0.7 * torch.randn(drafted + batch, vocab, generator=generator)
    logits[torch.rand(logits.shape, generator=generator) < 0.1] = -torch.inf
    cu = torch.tensor([0] + counts).cumsum(0)
    rows = torch.arange(drafted) + torch.arange(batch).repeat_interleave(cu.diff())
    q = (scores[rows] if ids is None else scores[rows][:, ids]).softmax(-1)
    soft = torch.rand(drafted, generator=generator) < 0.5
    column = q.argmax(-1)
    if drafted:
        column = torch.where(soft, q.multinomial(1, generator=generator).squeeze(-1), column)
    tokens = column if ids is None else ids[column]
    return logits.to(dtype), Draft(tokens, cu, q[soft], torch.where(soft, soft.cumsum(0) - 1, -1), ids)


def as_lists(verdict: Verdict) -> list[list[int] | None]:
    """Emitted tokens per request, None for a failure; checks the padding and the count on the way."""
    emitted = []
    columns = (x.tolist() for x in (verdict.tokens, verdict.num_accepted, verdict.failed))
    for row, accepted, failed in zip(*columns):
        tokens = [t for t in row if t >= 0]
        assert row == tokens + [-1] * (len(row) - len(tokens))
        assert (len(tokens), accepted) == (0, 0) if failed else len(tokens) == accepted + 1
        emitted.append(None if failed else tokens)
    return emitted
