"""Drafting from the target's own activations; :mod:`spin_core.zoo.fed` says why and with which network."""

import torch
from torch import Tensor

from spin_core.draft.base import CaughtUp, Draft, Drafter, Stopped, never_stopped
from spin_core.draft.build import BuildContext
from spin_core.draft.model import ModelDrafter
from spin_core.kv.ring import Window
from spin_core.request import Request
from spin_core.runtime import ModelRunner
from spin_core.zoo.fed import LAST, is_fed


class FedDrafter(ModelDrafter):
    """Drafts with a :class:`spin_core.zoo.fed.FedModel` on the states that ``target``, the engine's runner, keeps.

    Behind the verified text it reads states of its own, so those entries of its cache are good for one draft only;
    accepted tokens are read again, on the target's states. It drafts nothing before a request's first token: how much
    of the prompt the target has read by then depends on batch mates, and whether something was drafted decides which
    random numbers are used.
    """

    def __init__(self, source, slots: int, max_len: int, vocab_size: int | None, target: ModelRunner,
                 window: Window | None = None, bf16: bool = False) -> None:
        super().__init__(source, slots, max_len, vocab_size, keep_states=True, window=window, bf16=bf16)
        self.target = target
        self.first = source.model.first
        # the last state stands first in the target's states, then the inputs of layers
        width = source.model.config.hidden_size
        places = [0 if layer == LAST else 1 + target.keep_layers.index(layer) for layer in source.model.layers_read]
        columns = [column for place in places for column in range(place * width, (place + 1) * width)]
        whole = slice(columns[0], columns[-1] + 1)
        # no list: torch would make a tensor of it, on the device, at every draft
        self.columns = whole if columns == list(range(whole.start, whole.stop)) else \
            torch.tensor(columns, device=target.device)

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        draft = super().propose(requests, counts)
        for request in requests:
            self.rollback(request.slot, request.length)
        return draft

    def drafts_for(self, request: Request) -> bool:
        return bool(request.output_ids)

    def missing(self, request: Request) -> int:
        # before the first token the target may not have read the prompt yet: its states are not there
        return super().missing(request) if request.output_ids else 0

    def catch_up(self, requests: list[Request], stopped: Stopped = never_stopped) -> list[CaughtUp]:
        out = super().catch_up(requests, stopped)
        for request, found in zip(requests, out):
            if found.hits and found.first == len(request.prompt_ids):
                found.hits[0] = None        # it would not have drafted the first token
        return out

    def _extra_inputs(self, slots: list[int], counts: list[int]) -> dict[str, Tensor]:
        """The states before each of ``counts[b]`` tokens: the target's, or behind its text the drafter's own."""
        before = []
        for slot, count in zip(slots, counts):
            start, known = self.held(slot), self.target.cache.lengths[slot]
            if start > known:           # drafting: what precedes is a drafted token
                entry = start - 1 - self.first
                before.append(self.runner.states[slot, entry:entry + count])
                continue
            states = self.target.states[slot, max(start - 1, 0):start - 1 + count, self.columns]
            states = self.runner.model.fed(states.to(self.runner.device))
            before += [states] if start else [states.new_zeros(1, states.shape[1]), states]
        return {"states": torch.cat(before)[None]}

    def _extra_node_inputs(self, slots: list[int], parents: list[list[int]]) -> dict[str, Tensor]:
        """The drafter's own states at the parents: all of a tree is drafted."""
        return {"states": torch.cat([self.runner.states[slot, [entry - self.first for entry in entries]]
                                      for slot, entries in zip(slots, parents)])[None]}


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The drafter of a fed model of the family, if ``name`` is one's, else None."""
    source = context.family.drafters.get(name)
    return FedDrafter(source, *context.size, context.target, bf16=context.bf16) if is_fed(source) else None
