"""Where requests stand after a verdict, kept on the device: the next step need not wait for the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spin_core.verify.chain import Verdict


@dataclass
class Progress:
    """State of B requests that a step changes, int64 tensors that are written in place.

    ``position [B]``, tokens of the text so far: the index of the first token being decided.
    ``last [B]``, the text's last token, which the target reads next.
    ``slot [B]``, the request's row of each cache.
    ``lengths [C, slots]``, how many tokens each of C caches holds of each slot: all tokens but the last at
    most, for what lies beyond was rejected. A cache that holds less, a drafter's, keeps what it has.
    """

    position: Tensor
    last: Tensor
    slot: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        batch = len(self.position)
        for name, shape in (("position", (batch,)), ("last", (batch,)), ("slot", (batch,)),
                            ("lengths", (None, self.lengths.shape[-1]))):
            x = getattr(self, name)
            if x.dtype != torch.int64 or x.dim() != len(shape) or shape[0] not in (None, len(x)) or \
                    not x.is_contiguous():
                raise ValueError(f"Progress: {name} must be contiguous int64 of {len(shape)} dimensions for {batch} "
                                 f"requests, got {x.dtype} {tuple(x.shape)}")

    def advance(self, verdict: Verdict, position: Tensor) -> None:
        """Take over what was decided from ``position [B]`` on. A failed request stays where it is.

        Plain torch, without a wait for the device; the Triton kernel does the same within its one launch.
        """
        moved = ~verdict.failed
        accepted = verdict.num_accepted
        self.position.copy_(position + (accepted + 1) * moved)
        self.last.copy_(verdict.tokens.gather(1, accepted.unsqueeze(-1)).squeeze(-1).where(moved, self.last))
        held = self.lengths[:, self.slot]
        self.lengths[:, self.slot] = torch.minimum(held, self.position - 1).where(moved, held)
