"""Self-speculation: the target drafts for itself, looking at a small part of its own cache.

MagicDec (arXiv 2408.11049): with long texts and large batches a pass of the target is spent reading keys and values,
so the target with a sparse cache is a cheap drafter, and its distribution is close to its own. The keys and values of verified
text are those the target made while it saw everything; only the few drafted tokens are read sparsely.
"""

from __future__ import annotations

from torch import Tensor

from spin_core.draft.base import Draft
from spin_core.draft.model import ModelDrafter
from spin_core.request import Request
from spin_core.runtime import ModelRunner
from spin_core.kv.ring import Window


class SelfDrafter(ModelDrafter):
    """Drafts with ``source``, the target itself, on a ring of what ``target``, the engine's runner, keeps.

    There is nothing to catch up on: what is missing is copied, not computed. Like a fed drafter it proposes nothing
    before a request's first token, when how much of the prompt the target has read depends on batch mates.
    """

    def __init__(self, source, slots: int, max_len: int, vocab_size: int | None, target: ModelRunner,
                 window: Window) -> None:
        super().__init__(source, slots, max_len, vocab_size, window=window)
        self.target = target

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        draft = super().propose(requests, [count if r.output_ids else 0 for r, count in zip(requests, counts)])
        for request in requests:        # what is accepted comes anew, from the target's full pass
            self.runner.cache.truncate(request.slot, request.length - 1)
        return draft

    def missing(self, request: Request) -> int:
        return 0

    def _read(self, requests: list[Request], alive: list[int]) -> Tensor:
        slots, lengths = [requests[b].slot for b in alive], [requests[b].length - 1 for b in alive]
        self.runner.cache.adopt(self.target.cache, slots, lengths)
        return super()._read(requests, alive)
