"""Chain verification from raw logits to emitted tokens: how fast, and how near to the bytes it has to read.

On a CPU the torch reference against loops that take one position after the other. On a GPU the fused kernel
against the floor that memory sets, the time in which the device copies as many bytes as the needed rows hold,
and against the reference and others' kernels. Those want probabilities or their logarithms, so their softmax
counts as theirs.
"""

from itertools import product

import torch

from spin_core.lab.bench import Bar, Report, positive, verify_gpu
from spin_core.lab.bench.verify_cases import case, position_loop, seconds_on_cpu
from spin_core.verify import chain

DESCRIPTION = "chain verification: the reference against loops on a CPU, the kernel against the memory's floor on a GPU"


def add_arguments(parser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--vocab", type=positive, nargs="+",
                        help="vocabularies (default: 49152; on a GPU 32000 49152 128256)")
    parser.add_argument("--batch", type=positive, nargs="+", help="batch sizes (default: 8; on a GPU 1 8 64)")
    parser.add_argument("--repeats", type=positive, default=25, help="interleaved repeats of every timing (default 25)")


@torch.inference_mode()
def run(args) -> Report:
    if torch.device(args.device).type == "cpu":
        return _on_cpu(args.vocab or [49152], args.batch or [8], args.repeats)
    if not torch.cuda.is_available():
        raise ValueError(f"--device {args.device}, but torch sees no CUDA device")
    return verify_gpu.run(args.device, args.vocab or verify_gpu.VOCABULARIES, args.batch or verify_gpu.BATCHES,
                          args.repeats)


@torch.inference_mode()
def on_gpu(settings) -> Report:
    """The section "verify" of ``bench gpu``."""
    sizes = ((300,), (2,), 1) if settings.dry else (verify_gpu.VOCABULARIES, verify_gpu.BATCHES, 25)
    return verify_gpu.run(settings.device, *sizes, settings.left)


def _on_cpu(vocabularies: list[int], batches: list[int], repeats: int) -> Report:
    report = Report("verify", [], notes=[
        "textbook loop: for each position that is needed a softmax, a comparison, and torch.multinomial from the "
        "residual; position loop: the same with the reference's own draws, hence the same tokens"])
    for vocab, batch in product(vocabularies, batches):
        inputs = case(batch, vocab, torch.float32, "cpu", seed=0)
        verdict = chain.verify_chain(*inputs)
        same = [[t for t in row if t >= 0] for row in verdict.tokens.tolist()] == position_loop(*inputs)
        seconds = seconds_on_cpu(inputs, repeats)
        report.rows.append({
            "vocab": vocab, "batch": batch, "reference_ms": seconds["reference"] * 1e3,
            "textbook_loop_ms": seconds["textbook"] * 1e3, "position_loop_ms": seconds["loop"] * 1e3,
            "textbook_over_reference": seconds["textbook"] / seconds["reference"],
            "position_over_reference": seconds["loop"] / seconds["reference"],
            "accepted_per_request": float(verdict.num_accepted.double().mean()), "same_tokens": same})
        if (vocab, batch) == (49152, 8):
            report.bars.append(Bar("reference over a textbook loop, batch 8, V 49152",
                                   report.rows[-1]["textbook_over_reference"], ">= 2.0"))
    return report
