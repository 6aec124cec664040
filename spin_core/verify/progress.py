"""Where requests stand after a verdict, kept on the device: the next step need not wait for the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spin_core.verify.chain import Verdict


@dataclass
class Progress:
    """State of B requests that a step changes: contiguous int64 tensors that are written in place.

    ``position [B]``, tokens of the text so far: the index of the first token being decided. ``last [B]``, the text's
    last token, which the target reads next. ``slot [B]``, the request's row of each cache. ``lengths [C, slots]``, how
    many tokens each of C caches holds of each slot, at most all but the last.
    """

    position: Tensor
    last: Tensor
    slot: Tensor
    lengths: Tensor

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
