"""Drafting from the target's own activations.

What the target computed at the last verified token is the best summary of the text there is, and it costs nothing:
verification has just made it. A *fed* drafter reads at position i the token there together with the state that the
target's head read at position i - 1 (Li et al., EAGLE, arXiv 2401.15077; the target activations of SPIRe,
arXiv 2504.06419). Behind the verified text it feeds on states of its own, which live in the same space because both
models share the head: on its last layer's, or on a *feedback memory*, a learned mix of all its layers' (Fan et al.,
arXiv 2002.09402; SPIRe). The memory is strictly past: token i reads that of token i - 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from spin_core.draft.base import CaughtUp, Draft, never
from spin_core.draft.model import ModelDrafter
from spin_core.request import Request
from spin_core.runtime import ModelRunner
from spin_core.runtime.ring import Window
from spin_core.runtime.runner import LAST


CARRIES = ("last", "mix", "nothing")


class FedModel(LlamaForCausalLM):
    """What reads the target's states has in common.

    ``layers_read``: the layers of the target whose inputs it reads, side by side; LAST is the state that the target's
    head reads. ``first``: how many tokens at the start of a text it leaves out.
    """

    layers_read: tuple[int, ...] = (LAST,)
    first = 0

    def forward(self, input_ids: Tensor, states: Tensor | None = None, logits_to_keep: int | Tensor = 0,
                **kwargs) -> CausalLMOutputWithPast:
        body = self.body(input_ids, states, **kwargs).last_hidden_state
        rows = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(logits=self.lm_head(body[:, rows]))

    def fed(self, states: Tensor) -> Tensor:
        """What ``body`` reads of the target's ``states [..., width]``, ``[..., hidden]``."""
        return states

    def body(self, input_ids: Tensor, states: Tensor | None = None, **kwargs) -> BaseModelOutputWithPast:
        """The drafter's own states: its head reads ``last_hidden_state [B, T, hidden]``.

        ``states [B, T, hidden]``: the state before each token, the target's (:meth:`fed`) or the drafter's own; None
        is all zeros, as before a first token.
        """
        raise NotImplementedError

    def carried(self, output: BaseModelOutputWithPast) -> Tensor:
        """The drafter's own states ``[B, T, hidden]`` that the next tokens read, from the output of ``body``."""
        raise NotImplementedError


class FedLlama(FedModel):
    """A Llama whose input is ``fuse [state at i - 1; embedding(token at i)]``.

    With more than one of ``config.layers_read`` the state is ``fc`` of them all, as in EAGLE-3 (arXiv 2503.01840), and a
    text is read from its second token on, the first that has a state before it.
    What it carries on from token to token while it drafts (``config.carry``): its "last" state, a "mix" of all layers'
    with the softmax of ``mix [layers + 1]`` as shares (the first is what the first layer reads), or "nothing".
    """

    def __init__(self, config) -> None:
        super().__init__(config)
        self.fuse = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers_read = tuple(getattr(config, "layers_read", self.layers_read))
        if len(self.layers_read) > 1:
            self.first = 1
            self.fc = nn.Linear(len(self.layers_read) * config.hidden_size, config.hidden_size, bias=False)
        self.carry = getattr(config, "carry", "last")
        if self.carry not in CARRIES:
            raise ValueError(f"a fed drafter carries one of {', '.join(CARRIES)}, not {self.carry!r}")
        if self.carry == "mix":
            self.mix = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))

    def fed(self, states: Tensor) -> Tensor:
        return self.fc(states.to(self.fc.weight.dtype)) if len(self.layers_read) > 1 else states

    def body(self, input_ids: Tensor, states: Tensor | None = None, **kwargs) -> BaseModelOutputWithPast:
        embedded = self.model.embed_tokens(input_ids)
        states = torch.zeros_like(embedded) if states is None else states.to(embedded.dtype)
        return self.model(inputs_embeds=self.fuse(torch.cat([states, embedded], -1)),
                          output_hidden_states=self.carry == "mix", **kwargs)

    def carried(self, output: BaseModelOutputWithPast) -> Tensor:
        last = output.last_hidden_state
        if self.carry == "mix":         # through the norm, so that all are of the last state's kind
            states = [*map(self.model.norm, output.hidden_states[:-1]), last]
            return sum(share * state for share, state in zip(self.mix.softmax(0), states))
        return last if self.carry == "last" else torch.zeros_like(last)


class FedDrafter(ModelDrafter):
    """Drafts with a :class:`FedModel` on the states that ``target``, the engine's runner, keeps.

    What it reads behind the verified text it reads on states of its own, so those entries of its cache are only
    good for one draft; the tokens among them that get accepted are read again, on the target's states, together with
    the next ones. It drafts nothing before a request's first token: how much of the prompt the target has
    read by then depends on its batch mates, and whether something was drafted decides which random numbers are used.
    """

    def __init__(self, source, slots: int, max_len: int, vocab_size: int | None, target: ModelRunner,
                 window: Window | None = None) -> None:
        super().__init__(source, slots, max_len, vocab_size, keep_states=True, window=window)
        self.target = target
        self.first = source.model.first
        self.columns = target.columns(source.model.layers_read)

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        draft = super().propose(requests, [count if self.drafts_for(r) else 0 for r, count in zip(requests, counts)])
        for request in requests:
            self.rollback(request.slot, request.length)
        return draft

    def drafts_for(self, request: Request) -> bool:
        return bool(request.output_ids)

    def missing(self, request: Request) -> int:
        # before the first token the target may not have read the prompt yet: there is nothing to feed on
        return super().missing(request) if request.output_ids else 0

    def catch_up(self, requests: list[Request], stopped: Callable[[], bool] = never) -> list[CaughtUp]:
        out = super().catch_up(requests, stopped)
        for request, found in zip(requests, out):
            if found.hits and found.first == len(request.prompt_ids):
                found.hits[0] = None        # it would not have drafted the first token
        return out

    def _feed(self, slots: list[int], counts: list[int]) -> dict[str, Tensor]:
        """The states before each of ``counts[b]`` tokens: the target's, or behind its text the drafter's own."""
        before = []
        for slot, count in zip(slots, counts):
            start, known = self.begin(slot), self.target.cache.lengths[slot]
            if start > known:           # drafting: what precedes is a drafted token
                entry = start - 1 - self.first
                before.append(self.runner.states[slot, entry:entry + count])
                continue
            states = self.target.states[slot, max(start - 1, 0):start - 1 + count, self.columns]
            states = self.runner.model.fed(states.to(self.runner.device))
            before += [states] if start else [states.new_zeros(1, states.shape[1]), states]
        return {"states": torch.cat(before)[None]}

    def _feed_nodes(self, slots: list[int], parents: list[list[int]]) -> dict[str, Tensor]:
        """The drafter's own states at the parents: all of a tree is drafted."""
        return {"states": torch.cat([self.runner.states[slot, [place - self.first for place in places]]
                                     for slot, places in zip(slots, parents)])[None]}
