"""EAGLE-3 heads: one layer that drafts from three of the target's states (Li et al., arXiv 2503.01840).

``fc`` fuses the states that enter a low, a middle and a high layer of the target. The head's first layer reads, side by
side, the embedding of a token and the fused state of the token before it, each with a norm of its own, so its query,
key and value projections are twice as wide as usual; its residual stream is the state alone. Behind the verified text
the head reads its own states, taken before its last norm. It proposes tokens of a reduced vocabulary, and reads a text
from its second token on, the first that has a state before it: entry i of its cache is token i + 1.
"""

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel, LlamaRMSNorm

from spin_core.runtime.block import Block, norm
from spin_core.runtime.linear import packable
from spin_core.zoo.fed import FedModel


def default_layers(total: int) -> tuple[int, int, int]:
    """The layers of a target of ``total`` whose inputs are read where a head does not say which, EAGLE-3's choice."""
    return 2, total // 2, total - 3


class Eagle3Layer(LlamaDecoderLayer):
    """The first layer: its attention reads ``[norm(embedding); norm(state)]``."""

    def __init__(self, config) -> None:
        super().__init__(config, 0)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            single = getattr(self.self_attn, name)
            setattr(self.self_attn, name, nn.Linear(2 * config.hidden_size, single.out_features,
                                                    bias=single.bias is not None))
        self.norm_before_residual = getattr(config, "norm_before_residual", False)

    def forward(self, hidden_states: Tensor, embedded: Tensor | None = None, **kwargs) -> Tensor:
        """``hidden_states``, ``embedded [B, T, hidden]`` -> the same shape."""
        normed = self.hidden_norm(hidden_states)
        residual = normed if self.norm_before_residual else hidden_states
        attended, _ = self.self_attn(hidden_states=torch.cat([self.input_layernorm(embedded), normed], -1), **kwargs)
        hidden_states = residual + attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))

    def block(self) -> "Eagle3Block | None":
        """The layer in fewer operations, where its products can be packed."""
        linear = [part for part in self.modules() if isinstance(part, nn.Linear)]
        return Eagle3Block(self) if all(map(packable, linear)) else None


class Eagle3Block(Block):
    """Computes what the first layer does (:mod:`spin_core.runtime.block`)."""

    def __init__(self, layer: Eagle3Layer) -> None:
        super().__init__(layer)
        self.hidden_norm = layer.hidden_norm.weight, torch.full((1, 1, 1), layer.hidden_norm.variance_epsilon)
        self.norm_before_residual = layer.norm_before_residual

    def __call__(self, x: Tensor, embedded: Tensor, *, position_embeddings, **options) -> Tensor:
        normed = norm(x, *self.hidden_norm)
        return self.finish(normed if self.norm_before_residual else x,
                           torch.cat([norm(embedded, *self.norms[0]), normed], -1), position_embeddings)


class Eagle3Body(LlamaModel):
    """The layers of a head. Its output's ``last_hidden_state`` is what the head's logits are computed from,
    ``hidden_states[0]`` the same before the norm."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.layers[0] = Eagle3Layer(config)

    def forward(self, input_ids: Tensor, states: Tensor, position_ids: Tensor | None = None,
                **kwargs) -> BaseModelOutputWithPast:
        """``input_ids [B, T]``; ``states [B, T, hidden]``, fused or the head's own, of the token before each."""
        embedded = self.embed_tokens(input_ids).to(states.dtype)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        kwargs.update(position_ids=position_ids, position_embeddings=self.rotary_emb(embedded, position_ids),
                      attention_mask=create_causal_mask(self.config, embedded, None, None, position_ids))
        states = self.layers[0](states, embedded, **kwargs)
        for layer in self.layers[1:]:
            states = layer(states, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(states), hidden_states=(states,))


class Eagle3Llama(FedModel):
    """An EAGLE-3 head with layers of Llama's kind.

    ``config`` is a LlamaConfig; besides, ``layers_read``: the layers of the target whose inputs ``fc`` reads,
    ``target_hidden_size``: their width (None: the head's own). Four options of the ``speculators`` library:
    ``norm_before_residual``, the first layer's residual stream is the normed state; ``norm_before_fc``, a norm of the
    three states together before ``fc``, or ``fc_norm``, one of each; ``norm_output``, it carries on normed states.
    """

    first = 1

    def __init__(self, config) -> None:
        super().__init__(config)
        self.model = Eagle3Body(config)
        self.layers_read = tuple(config.layers_read)
        width = getattr(config, "target_hidden_size", None) or config.hidden_size
        self.fc = nn.Linear(len(self.layers_read) * width, config.hidden_size, bias=False)
        if getattr(config, "norm_before_fc", False):
            self.input_norm = LlamaRMSNorm(self.fc.in_features, eps=config.rms_norm_eps)
        if getattr(config, "fc_norm", False):
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(width, eps=config.rms_norm_eps) for _ in self.layers_read)

    def fed(self, states: Tensor) -> Tensor:
        states = states.to(self.fc.weight.dtype)
        if hasattr(self, "input_norm"):
            states = self.input_norm(states)
        if hasattr(self, "fc_norm"):
            parts = states.chunk(len(self.fc_norm), -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts)], -1)
        return self.fc(states)

    def body(self, input_ids: Tensor, states: Tensor | None = None, **kwargs) -> BaseModelOutputWithPast:
        if states is None:
            states = self.fc.weight.new_zeros(*input_ids.shape, self.config.hidden_size)
        return self.model(input_ids, states.to(self.fc.weight.dtype), **kwargs)

    def carried(self, output: BaseModelOutputWithPast) -> Tensor:
        return output.last_hidden_state if getattr(self.config, "norm_output", False) else output.hidden_states[0]
