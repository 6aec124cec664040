"""Chain verification from raw logits to emitted tokens: how fast, and how near to the bytes it has to read.

On a CPU the torch reference against loops that take one position after the other. On a GPU the fused kernel
against the floor that memory sets, the time in which the device copies as many bytes as the needed rows hold,
and against the reference and others' kernels. Those want probabilities or their logarithms, so their softmax
counts as theirs.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from spin_core.lab.bench import Bar, Report, positive
from spin_core.lab.bench.timing import interleaved
from spin_core.draft.base import Draft
from spin_core.randomness import ACCEPT, RESIDUAL, exponential_race, uniform
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch, probabilities
from spin_core.verify import Verdict, chain
from spin_core.verify.textbook import accept_reject

DESCRIPTION = "chain verification: the reference against loops on a CPU, the kernel against the memory's floor on a GPU"
GAMMA = 4


def add_arguments(parser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--vocab", type=positive, nargs="+",
                        help="vocabularies (default: 49152; on a GPU 32000 49152 128256)")
    parser.add_argument("--batch", type=positive, nargs="+", help="batch sizes (default: 8; on a GPU 1 8 64)")
    parser.add_argument("--repeats", type=positive, default=25, help="interleaved repeats of every timing (default 25)")
    parser.add_argument("--tune", action="store_true", help="on a GPU: the kernel's block sizes instead")


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


def needed_bytes(logits: Tensor, draft: Draft, verdict: Verdict) -> int:
    """Rows of logits up to the deciding one, once, and the draft's distribution where a sampled token was rejected."""
    accepted, counts = verdict.num_accepted, draft.counts
    rejected = accepted < counts
    distributions = int((draft.prob_row[(draft.cu[:-1] + accepted)[rejected]] >= 0).sum())
    rows = int((accepted + 1).sum())
    return rows * logits.shape[1] * logits.element_size() \
        + (distributions * draft.probs.shape[1] * draft.probs.element_size() if distributions else 0)


@torch.inference_mode()
def run(args) -> Report:
    if torch.device(args.device).type == "cpu":
        return _on_cpu(args)
    from spin_core.lab.bench import verify_gpu

    if not torch.cuda.is_available():
        raise ValueError(f"--device {args.device}, but torch sees no CUDA device")
    return verify_gpu.tuned(args) if args.tune else verify_gpu.run(
        args.device, args.vocab or verify_gpu.VOCABULARIES, args.batch or verify_gpu.BATCHES, args.repeats)


def on_gpu(settings) -> Report:
    """The section "verify" of ``bench gpu``."""
    from spin_core.lab.bench import verify_gpu

    sizes = ((300,), (2,), 1) if settings.dry else (verify_gpu.VOCABULARIES, verify_gpu.BATCHES, 25)
    with torch.inference_mode():
        return verify_gpu.run(settings.device, *sizes, settings.left)


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


def _on_cpu(args) -> Report:
    rows, bars, notes = [], [], []
    for vocab in args.vocab or [49152]:
        for batch in args.batch or [8]:
            inputs = case(batch, vocab, torch.float32, "cpu", seed=0)
            verdict = chain.verify_chain(*inputs)
            same = [[t for t in row if t >= 0] for row in verdict.tokens.tolist()] == position_loop(*inputs)
            seconds = interleaved({"reference": lambda: chain.verify_chain(*inputs),
                                   "loop": lambda: position_loop(*inputs),
                                   "textbook": lambda: textbook_loop(*inputs[:3])}, args.repeats)
            rows.append({"vocab": vocab, "batch": batch, "reference_ms": seconds["reference"] * 1e3,
                         "textbook_loop_ms": seconds["textbook"] * 1e3, "position_loop_ms": seconds["loop"] * 1e3,
                         "textbook_over_reference": seconds["textbook"] / seconds["reference"],
                         "position_over_reference": seconds["loop"] / seconds["reference"],
                         "accepted_per_request": float(verdict.num_accepted.double().mean()), "same_tokens": same})
            if (vocab, batch) == (49152, 8):
                bars.append(Bar("reference over a textbook loop, batch 8, V 49152",
                                rows[-1]["textbook_over_reference"], ">= 2.0"))
    notes.append("textbook loop: for each position that is needed a softmax, a comparison, and torch.multinomial from "
                 "the residual; position loop: the same with the reference's own draws, hence the same tokens")
    return Report("verify", rows, bars, notes)
