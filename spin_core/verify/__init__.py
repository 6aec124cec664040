"""Lossless accept / reject: the text follows the target's distribution whatever the drafter proposes.

Begin with ``textbook`` (the loop), then ``chain`` (the same for a batch, in torch) and ``tree``. On a CUDA device one
Triton kernel gives the verdict (``kernel``, with its parts in ``kernel_*``). Any of them may be made faster, as long
as the tests that compare them with the textbook, random number by random number, still pass.
"""

import torch
from torch import Tensor

from spin_core.draft.base import Draft
from spin_core.draft.tree import Tree
from spin_core.names import kernels
from spin_core.sampling import SamplingBatch
from spin_core.verify import chain
from spin_core.verify.chain import Verdict
from spin_core.verify.progress import Progress
from spin_core.verify.tree import TreeVerdict, verify_tree

__all__ = ["Progress", "Tree", "TreeVerdict", "Verdict", "verify_chain", "verify_tree"]


def verify_chain(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor,
                 max_draft: int | None = None, progress: Progress | None = None) -> Verdict:
    """:func:`spin_core.verify.chain.verify_chain`, by the fastest code for the device of the logits.

    ``max_draft``: at most so many tokens were drafted for any request; ``tokens`` then has ``max_draft + 1`` columns.
    Without it the kernel asks the device for that number, and waits. ``progress`` is brought up to date, by the kernel
    in the same launch: the next step can be prepared on the device before the host has seen this verdict.
    """
    if logits.is_cuda and logits.dtype != torch.float64 and (kernel := kernels("spin_core.verify.kernel")):
        return kernel.verify_chain(logits, draft, sampling, position, max_draft, progress)
    verdict = chain.verify_chain(logits, draft, sampling, position)
    if max_draft is not None:
        missing = max_draft + 1 - verdict.tokens.shape[1]
        verdict.tokens = torch.nn.functional.pad(verdict.tokens, (0, missing), value=-1)
    if progress is not None:
        progress.advance(verdict, position)
    return verdict
