"""Compile the project's Triton kernels for a GPU that need not be there. A program: `compile_kernels.py ROOM ...`.

Kernels are called the way the product calls them, on tensors of the CPU; a driver that claims to be an sm_90
device makes Triton specialise and compile them, down to machine code, and nothing is launched. Prints a JSON
line per kernel.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.pop("TRITON_INTERPRET", None)

import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402


class Driver:
    """As much of a CUDA driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(self: JITFunction, *args, grid, warmup, **options) -> None:
    compiled = launch(self, *args, grid=grid, warmup=True, **options)
    constants = {name: value for name, value in options.items() if name.isupper()}
    print(json.dumps({"room": room, "kernel": self.fn.__name__, "machine_code": len(compiled.asm["cubin"]),
                      "shared": compiled.metadata.shared, **{k: str(v) for k, v in constants.items()}}))


launch = JITFunction.run
triton.runtime.driver.set_active(Driver())
JITFunction.run = compile_only


def verify() -> None:
    """Every combination of drafts, with and without progress, in the types logits come in."""
    from spin_core.draft.base import Draft
    from spin_core.request import SamplingParams
    from spin_core.sampling import SamplingBatch
    from spin_core.verify import kernel
    from spin_core.verify.progress import Progress

    vocab, two = 49152, torch.tensor([0, 0])
    sampling = SamplingBatch.from_params([SamplingParams(temperature=1.0)] * 2)
    distributions = torch.full((2, 30000), 1 / 30000)
    soft = Draft(two, torch.arange(3), distributions, torch.arange(2))
    subset = Draft(two, torch.arange(3), distributions.bfloat16(), torch.arange(2), torch.arange(30000))
    for dtype, draft, progress in ((torch.bfloat16, soft, True), (torch.float32, soft, False),
                                   (torch.float16, Draft(two, torch.arange(3)), True),
                                   (torch.bfloat16, subset, True)):
        after = Progress(two.clone(), two.clone(), two.clone(), torch.zeros(2, 2, dtype=torch.int64))
        kernel.verify_chain(torch.zeros(4, vocab, dtype=dtype), draft, sampling, two, 4,
                            after if progress else None, programs=264)
    # nothing drafted, a small odd vocabulary, one chunk, one request, one program
    kernel.verify_chain(torch.zeros(1, 111), Draft.empty(1), sampling.rows(slice(1)), two[:1], 0, programs=1)


def lessons() -> None:
    """The ladder of the verify lesson."""
    from spin_core.lab.lessons.l6_verify_kernel import checks as kernel_checks, ladder as kernel_ladder

    x = kernel_checks.inputs([2, 0, 3], 300)
    logits, batch = x["logits"][:5], list(x.values())
    five = torch.arange(5)
    kernel_ladder.logsumexp(logits)
    kernel_ladder.accept(logits, x["tokens"], x["q"], five, five)
    kernel_ladder.replace(logits, x["q"], five, five)
    kernel_ladder.ragged(*batch)
    kernel_ladder.in_place(*batch, torch.zeros(3, 50, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), 3)


def decompose() -> None:
    """bf16 as on a GPU, with grouped heads of the usual sizes."""
    from ragged_cases import COSTS, case

    from spin_core.decompose import plan
    from spin_core.decompose.attend import Workspace
    from spin_core.decompose.kernels import KernelStep

    for kv, group, dim in ((2, 4, 128), (3, 3, 64), (1, 2, 20)):
        c = case([(195, 5, None), (100, 2, None)], kv=kv, group=group, dim=dim, dtype=torch.bfloat16, max_len=200)
        lengths = [p + n for p, n in zip(c.batch.prefix, c.batch.counts)]
        made = plan(lengths, c.batch.counts, "decomposed", costs=COSTS, width=150)
        KernelStep(made, c.batch, c.cache, c.heads, Workspace()).attend(0, c.query, c.scale)


def kv() -> None:
    """Accepted paths of two requests, in bf16."""
    from spin_core.kv.cache import SlotCache
    from spin_core.kv.compact_kernel import compact

    compact(SlotCache(2, 4, 3, 64, 64, torch.bfloat16), [1, 3], [5, 9], [[1, 2, 5], [3]])


if __name__ == "__main__":
    for room in sys.argv[1:]:
        {"verify": verify, "decompose": decompose, "kv": kv, "lessons": lessons}[room]()
