"""Train a fed drafter the way it will run: several tokens ahead, on its own states.

At depth 1 every position reads the target's state of its predecessor. At depth d it reads what the drafter itself
carried on from the predecessor at depth d - 1; of the keys it sees those of depth 1 (the verified text) up to
d - 1 tokens back, and beyond them one key of each depth, exactly as in serving ("training-time test", EAGLE-3,
arXiv 2503.01840). All positions are unrolled at once. A drafter with a window sees the first token and the last few.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from spin_core.zoo.fed import FedModel

SINK = 1            # SPIRe's: the first token is always seen
NAME = "spin_core_unrolled"
Past = dict[int, list[tuple[Tensor, Tensor]]]       # layer -> keys and values [B, heads, T, head_dim] of each depth


def unrolled_attention(module, query: Tensor, key: Tensor, value: Tensor, attention_mask=None, *, scaling=None,
                       past: Past | None = None, window: int | None = None, first: int = 0,
                       **options) -> tuple[Tensor, None]:
    """Attention of one layer at the next depth; ``query [B, heads, T, head_dim]`` -> ``[B, T, heads, head_dim]``.

    ``window``: how many of the latest tokens are seen, itself included, beside the first; None is all. ``first``: how
    many tokens at the start are seen by none, except that each sees itself."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    earlier = past.setdefault(module.layer_idx, [])
    depth, length = len(earlier), query.shape[2]
    visible = torch.ones(length, length, dtype=torch.bool, device=query.device).tril(-depth)
    if window is not None:
        visible &= visible.triu(1 - window) | (torch.arange(length, device=query.device) < SINK + first)
    if first:
        visible[:, :first] = torch.eye(length, first, dtype=torch.bool, device=query.device)
    if not earlier:
        plain = window is None and first == 0
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=None if plain else visible,
                                             is_causal=plain, scale=scaling)
    else:
        text = query @ earlier[0][0].transpose(2, 3) * scaling
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

    ``tokens [B, T]``, ``states [B, T, width]`` of the target at the same positions; padding at the right end. Raises
    ValueError for a window that a draft of that depth would not fit into.
    """
    window = getattr(model.config, "window", None)
    if window is not None and window < depth:
        raise ValueError(f"unroll: a draft of {depth} tokens does not fit into a window of {window}")
    options = dict(past={}, window=window, use_cache=False)
    out: list[Tensor] = []
    with attending(model):
        if not isinstance(model, FedModel):
            return [model.model(input_ids=tokens, **options).last_hidden_state]
        states, options["first"] = model.fed(states), model.first
        for _ in range(depth):
            output = model.body(tokens, shift(states, 1), **options)
            out.append(output.last_hidden_state)
            states = model.carried(output)
    return out


@contextmanager
def attending(model) -> Iterator[None]:
    """``model`` attends as above meanwhile."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
