"""What the benchmarks of verification verify: drafts near the target, and two loops that say what comes of them."""

import itertools

import torch
from torch import Tensor

from spin_core.draft.base import Draft
from spin_core.lab.bench.timing import interleaved
from spin_core.randomness import ACCEPT, RESIDUAL, exponential_race, uniform
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch, probabilities
from spin_core.verify.chain import Verdict, verify_chain
from spin_core.verify.textbook import accept_reject

GAMMA = 4


def case(batch: int, vocab: int, dtype: torch.dtype, device, seed: int, accept_all: bool = False
         ) -> tuple[Tensor, Draft, SamplingBatch, Tensor]:
    """Sampled drafts of a drafter near the target. ``accept_all``: a q so small that every draft is accepted."""
    generator = torch.Generator(device).manual_seed(seed)

    def noise(rows: int) -> Tensor:
        return torch.randn(rows, vocab, generator=generator, device=device)

    scores = 3 * noise(batch * (GAMMA + 1))
    drafted = (scores + 0.9 * noise(len(scores))).view(batch, GAMMA + 1, vocab)[:, :GAMMA].flatten(0, 1)
    q = drafted.softmax(-1)
    tokens = q.multinomial(1, generator=generator).squeeze(-1)
    q = q * 1e-6 if accept_all else q
    params = [SamplingParams(temperature=1.0, seed=seed * 1000 + b) for b in range(batch)]
    draft = Draft(tokens, torch.arange(batch + 1, device=device) * GAMMA, q,
                  torch.arange(batch * GAMMA, device=device))
    return (scores.to(dtype), draft, SamplingBatch.from_params(params, device),
            torch.arange(batch, device=device) + 100)


def seconds_on_cpu(inputs: tuple, repeats: int) -> dict[str, float]:
    """Median seconds of a verification of :func:`case`, by the reference and by both loops."""
    return interleaved({"reference": lambda: verify_chain(*inputs), "textbook": lambda: textbook_loop(*inputs[:3]),
                        "loop": lambda: position_loop(*inputs)}, repeats)


def needed_bytes(logits: Tensor, draft: Draft, verdict: Verdict) -> int:
    """Rows of logits up to the deciding one, once, and the draft's distribution where a sampled token was rejected."""
    accepted, counts = verdict.num_accepted, draft.counts
    rejected = accepted < counts
    distributions = int((draft.prob_row[(draft.cu[:-1] + accepted)[rejected]] >= 0).sum())
    rows = int((accepted + 1).sum())
    return rows * logits.shape[1] * logits.element_size() \
        + (distributions * draft.probs.shape[1] * draft.probs.element_size() if distributions else 0)


def position_loop(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor) -> list[list[int]]:
    """The reference's verdict by the textbook's loop, with the reference's own random numbers."""
    texts = []
    for b, (start, end) in enumerate(itertools.pairwise(draft.cu.tolist())):
        mine = sampling.rows(slice(b, b + 1))
        texts.append(accept_reject(
            draft.tokens[start:end].tolist(),
            lambda i: probabilities(logits[start + b + i:start + b + i + 1], mine)[0],
            lambda i: draft.probs[draft.prob_row[start + i]],
            lambda i: uniform(mine.seed, position[b:b + 1] + i, ACCEPT)[0],
            lambda weights, i: int(exponential_race(weights[None], mine.seed, position[b:b + 1] + i, RESIDUAL))))
    return texts


def textbook_loop(logits: Tensor, draft: Draft, sampling: SamplingBatch) -> list[list[int]]:
    """The same with torch's own generator: its draws depend on what else the generator was used for."""
    return [accept_reject(
        draft.tokens[start:end].tolist(),
        lambda i: (logits[start + b + i].float() / float(sampling.temperature[b])).softmax(-1),
        lambda i: draft.probs[draft.prob_row[start + i]],
        lambda i: float(torch.rand(())),
        lambda weights, i: int(weights.multinomial(1)))
        for b, (start, end) in enumerate(itertools.pairwise(draft.cu.tolist()))]
