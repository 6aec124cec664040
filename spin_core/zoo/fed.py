"""A drafter's network that reads the target's own activations.

What the target computed at the last verified token is the best summary of the text there is, and it is free. A *fed*
drafter reads at position i the token there together with the state that the target's head read at position i - 1 (Li et
al., EAGLE, arXiv 2401.15077; the target activations of SPIRe, arXiv 2504.06419). Behind the verified text it reads
states of its own, which live in the same space because both models share the head: its last layer's, or those of a
*feedback memory*, a learned mix of all its layers' (Fan et al., arXiv 2002.09402; SPIRe), strictly of the past.
"""

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

CARRIES = ("last", "mix", "nothing")
LAST = -1       # among the layers of the target: the state that its head reads, behind the last norm


class FedModel(LlamaForCausalLM):
    """What all fed drafters have in common.

    ``layers_read``: the layers of the target whose inputs the drafter reads, side by side, and LAST. ``first``: how
    many tokens at the start of a text it leaves out.
    """

    layers_read: tuple[int, ...] = (LAST,)
    first = 0

    def forward(self, input_ids: Tensor, states: Tensor | None = None, logits_to_keep: int | Tensor = 0,
                **kwargs) -> CausalLMOutputWithPast:
        body = self.body(input_ids, states, **kwargs).last_hidden_state
        rows = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(logits=self.lm_head(body[:, rows]))

    def fed(self, states: Tensor) -> Tensor:
        """The ``states [..., hidden]`` that ``body`` reads, from the target's ``[..., width]``."""
        return states

    def body(self, input_ids: Tensor, states: Tensor | None = None, **kwargs) -> BaseModelOutputWithPast:
        """The drafter's own states: its head reads ``last_hidden_state [B, T, hidden]``.

        ``states [B, T, hidden]``: the state before each token, the target's (:meth:`fed`) or the drafter's own; None is
        all zeros, as before a first token.
        """
        raise NotImplementedError

    def carried(self, output: BaseModelOutputWithPast) -> Tensor:
        """The drafter's own states ``[B, T, hidden]`` that the next tokens read, from the output of ``body``."""
        raise NotImplementedError


class FedLlama(FedModel):
    """A Llama whose input is ``fuse [state at i - 1; embedding(token at i)]``.

    With ``config.layers_read`` the state is ``fc`` of them all, as in EAGLE-3 (arXiv 2503.01840), and a text is read
    from its second token on, the first that has a state before it. What it carries on from token to token while it
    drafts (``config.carry``): its "last" state, a "mix" of all layers' with the softmax of ``mix [layers + 1]`` as
    shares (the first is what the first layer reads), or "nothing".
    """

    def __init__(self, config) -> None:
        super().__init__(config)
        self.fuse = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        if hasattr(config, "layers_read"):
            self.layers_read, self.first = tuple(config.layers_read), 1
            self.fc = nn.Linear(len(self.layers_read) * config.hidden_size, config.hidden_size, bias=False)
        self.carry = getattr(config, "carry", "last")
        if self.carry not in CARRIES:
            raise ValueError(f"a fed drafter carries one of {', '.join(CARRIES)}, not {self.carry!r}")
        if self.carry == "mix":
            self.mix = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))

    def fed(self, states: Tensor) -> Tensor:
        return self.fc(states.to(self.fc.weight.dtype)) if hasattr(self, "fc") else states

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


def is_fed(source) -> bool:
    """Whether a drafter of a family (:class:`spin_core.zoo.DraftModel` or a table) reads the target's states."""
    return isinstance(getattr(source, "model", None), FedModel)


def layers_read(sources) -> tuple[int, ...]:
    """The layers of the target whose inputs any of these drafters of a family reads, ascending: LAST comes first."""
    return tuple(sorted({layer for source in filter(is_fed, sources) for layer in source.model.layers_read}))
