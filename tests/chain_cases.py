"""Random batches of drafts for the tests of the verifiers, in every room that has some."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from spin_core.draft.base import Draft
from spin_core.randomness import ACCEPT, RESIDUAL, exponential_race, uniform
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch, probabilities
from spin_core.verify import Verdict
from spin_core.verify.textbook import accept_reject

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


def plain_verdict(logits: Tensor, tokens: list[int], distributions: list[Tensor | None], ids: Tensor | None,
                  params: SamplingParams, position: int) -> list[int] | None:
    """One request by the textbook: the emitted tokens, None for a failure. ``distributions`` holds q or None."""
    sampling, vocab = SamplingBatch.from_params([params]), logits.shape[-1]

    def p(i: int) -> Tensor:
        found = probabilities(logits[i:i + 1], sampling)[0]
        if found.isnan().any():
            raise ArithmeticError
        return found

    def q(i: int) -> Tensor:
        out = torch.zeros(vocab)
        if distributions[i] is None:
            out[tokens[i]] = 1
        else:
            out[torch.arange(vocab) if ids is None else ids] = distributions[i]
        return out

    def draw(weights: Tensor, i: int) -> int:
        if params.greedy:
            return int(logits[i].argmax())
        return int(exponential_race(weights[None], sampling.seed, torch.tensor([position + i]), RESIDUAL))

    try:
        return accept_reject(tokens, p, q, lambda i: uniform(sampling.seed, torch.tensor([position + i]), ACCEPT)[0],
                             draw)
    except ArithmeticError:
        return None


def one_by_one(logits: Tensor, draft: Draft, params: list[SamplingParams], position: list[int]):
    """:func:`plain_verdict` of every request of a batch."""
    verdicts = []
    for b, (start, end) in enumerate(zip(draft.cu.tolist(), draft.cu[1:].tolist())):
        distributions = [None if r < 0 else draft.probs[r] for r in draft.prob_row[start:end].tolist()]
        verdicts.append(plain_verdict(logits[start + b:end + b + 1], draft.tokens[start:end].tolist(), distributions,
                                      draft.ids, params[b], position[b]))
    return verdicts
