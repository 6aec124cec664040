"""Drafting with a part of the cache: a model that sees a window of its text, or the target that drafts for itself.

MagicDec (arXiv 2408.11049): with long texts and large batches a pass of the target is spent reading keys and values, so
the target with a sparse cache is a cheap drafter whose q is close to p: only the few drafted tokens are read sparsely.

In names: "sparse:NAME" or "sparse:NAME:WINDOW", where NAME is a model of the family or "target" and WINDOW a number of
tokens or a share of the text such as 1/8 (:mod:`spin_core.kv.ring`).
"""

from dataclasses import replace

from torch import Tensor

from spin_core.draft.base import Draft, Drafter
from spin_core.draft.build import BuildContext
from spin_core.draft.fed import FedDrafter
from spin_core.draft.model import ModelDrafter
from spin_core.kv.ring import Window
from spin_core.request import Request
from spin_core.runtime import ModelRunner
from spin_core.runtime.ranks import parts_of
from spin_core.zoo.family import DraftModel
from spin_core.zoo.fed import is_fed
from spin_core.zoo.table import DraftTable


class SelfDrafter(ModelDrafter):
    """Drafts with ``source``, the target itself, on a ring of the entries that ``target``, the engine's runner, keeps:
    these are copied, so there is nothing to catch up on. Like a fed drafter it proposes nothing before a request's
    first token.
    """

    def __init__(self, source, slots: int, max_len: int, vocab_size: int | None, target: ModelRunner,
                 window: Window, bf16: bool = False) -> None:
        super().__init__(source, slots, max_len, vocab_size, window=window, bf16=bf16)
        self.target = target

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        draft = super().propose(requests, counts)
        for request in requests:        # accepted tokens are copied anew, from the target's full pass
            self.runner.cache.truncate(request.slot, request.length - 1)
        return draft

    def drafts_for(self, request: Request) -> bool:
        return bool(request.output_ids)

    def missing(self, request: Request) -> int:
        return 0

    def _read(self, requests: list[Request], alive: list[int]) -> Tensor:
        slots, lengths = [requests[b].slot for b in alive], [requests[b].length - 1 for b in alive]
        self.runner.cache.adopt(self.target.cache, slots, lengths)
        return super()._read(requests, alive)


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The drafter that a ``name`` sparse:NAME[:WINDOW] stands for, else None."""
    if not name.startswith("sparse:"):
        return None
    _, inner, *window = name.split(":", 2)
    window = Window.parse(window[0]) if window else Window()
    family = context.family
    if inner == "target":
        if parts_of(family.target) > 1:
            raise ValueError(f"{name!r} drafts with the target, which is spread over {parts_of(family.target)} "
                             "processes")
        source = DraftModel(name, family.target, None, family.max_context)
        return SelfDrafter(source, *context.size, context.target, window, context.bf16)
    models = {n: d for n, d in family.drafters.items() if not isinstance(d, DraftTable)}
    if inner not in models:
        raise ValueError(f"{name!r}: no model {inner!r} to draft with a sparse cache; there are {', '.join(models)}, "
                         "and the target")
    source = replace(models[inner], name=name)
    return FedDrafter(source, *context.size, context.target, window, context.bf16) if is_fed(source) else \
        ModelDrafter(source, *context.size, window=window, bf16=context.bf16)
