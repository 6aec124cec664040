"""Train a fed drafter the way it will run: several tokens ahead, on its own states.

At depth 1 every position reads the target's state of its predecessor. At depth d it reads the state that the drafter
itself made of the predecessor at depth d - 1; of the keys it sees those of depth 1 (the verified text) up to
d - 1 tokens back, and beyond them one key of each depth, exactly as in serving ("training-time test", EAGLE-3,
arXiv 2503.01840). All positions are unrolled at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from spin_core.draft.fed import FedLlama

NAME = "spin_core_unrolled"
Past = dict[int, list[tuple[Tensor, Tensor]]]       # layer -> keys and values [B, heads, T, head_dim] of each depth


def unrolled_attention(module, query: Tensor, key: Tensor, value: Tensor, attention_mask=None, *, scaling=None,
                       past: Past | None = None, **options) -> tuple[Tensor, None]:
    """Attention of one layer at the next depth; ``query [B, heads, T, head_dim]`` -> ``[B, T, heads, head_dim]``."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    earlier = past.setdefault(module.layer_idx, [])
    if not earlier:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    else:
        depth, length = len(earlier), query.shape[2]
        text = query @ earlier[0][0].transpose(2, 3) * scaling
        visible = torch.ones(length, length, dtype=torch.bool, device=query.device).tril(-depth)
        text = text.masked_fill(~visible, -torch.inf)
        drafted = [(shift(k, depth - d), shift(v, depth - d))
                   for d, (k, v) in enumerate([*earlier[1:], (key, value)], 1)]
        scores = [(query * k).sum(-1, keepdim=True) * scaling for k, _ in drafted]
        weights = torch.cat([text, *scores], -1).float().softmax(-1).to(query.dtype)
        out = weights[..., :length] @ earlier[0][1]
        for d, (_, v) in enumerate(drafted):
            out = out + weights[..., length + d, None] * v
    earlier.append((key, value))
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, unrolled_attention)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


def shift(x: Tensor, by: int) -> Tensor:
    """``x [..., T, dim]`` moved ``by`` places to later positions, zeros in front."""
    return F.pad(x, (0, 0, by, 0))[..., :x.shape[-2], :]


def unroll(model, tokens: Tensor, states: Tensor, depth: int) -> list[Tensor]:
    """The drafter's states ``[B, T, hidden]`` at each depth. A drafter that is not fed has only one.

    ``tokens [B, T]``, ``states [B, T, hidden]`` of the target at the same positions; padding at the right end.
    """
    if not isinstance(model, FedLlama):
        return [model.model(input_ids=tokens, use_cache=False).last_hidden_state]
    past: Past = {}
    out: list[Tensor] = []
    for _ in range(depth):
        states = model.body(tokens, shift(states, 1), past=past, use_cache=False)
        out.append(states)
    return out
