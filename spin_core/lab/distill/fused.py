"""Llama's layers as plain functions, for training on a CPU: products in bf16, everything between them compiled.

On a core with bf16 matrix instructions a product is so quick that norms, rotations and softmaxes, each a pass over
memory, would take most of the time. Written out like this, ``torch.compile`` turns what stands between two products into
one pass. Weights are float32 and are rounded where they are used; sums, softmaxes and norms are float32.

A layer's weights come as a dict with the short names of :data:`PARTS`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = torch.bfloat16
PARTS = {"norm": "input_layernorm", "hidden_norm": "hidden_norm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
         "v": "self_attn.v_proj", "o": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
         "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
Keys = tuple[Tensor, Tensor]        # keys and values


def tree(parameters: dict[str, Tensor]) -> dict:
    """Parameters by the names of a drafter's file -> ``{"fc", "norm", "layers": [{short name: weight}]}``, and "fuse"."""
    out: dict = {"layers": []}
    short = {long: name for name, long in PARTS.items()}
    for name, value in parameters.items():
        name = name.removesuffix(".weight")
        if not name.startswith("layers."):
            out[name] = value
            continue
        _, layer, part = name.split(".", 2)
        while len(out["layers"]) <= int(layer):
            out["layers"].append({})
        out["layers"][int(layer)][short[part]] = value
    return out


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(HALF))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return (x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(HALF)


def heads(x: Tensor, weight: Tensor, dim: int) -> Tensor:
    """``[B, T, width]`` -> ``[B, T, heads, dim]``."""
    return linear(x, weight).view(*x.shape[:2], -1, dim)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``x [B, T, heads, dim]``; ``cos``, ``sin [B or 1, T, dim / 2]``."""
    first, second = x.float().chunk(2, -1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(HALF)


def attend(query: Tensor, text: Keys, last: Tensor, drafted: list[Keys]) -> Tensor:
    """Attention of ``query [B, Q, heads, dim]`` -> ``[B, Q, heads * dim]``.

    ``text``: keys and values ``[B, groups, T, dim]``, of which query q of row b sees those up to ``last[b, q]``
    (``[B, Q]``). ``drafted``: keys and values ``[B, Q, groups, dim]`` that each query sees besides, one of each.
    """
    (batch, count, number, dim), groups = query.shape, text[0].shape[1]
    shared = number // groups
    query = query.view(batch, count, groups, shared, dim)
    rows = query.permute(0, 2, 1, 3, 4).reshape(batch * groups, count * shared, dim)
    keys, values = (x.reshape(batch * groups, -1, dim) for x in text)
    scores = torch.bmm(rows, keys.transpose(1, 2)).view(batch, groups, count, shared, -1).float() * dim ** -.5
    seen = torch.arange(scores.shape[-1], device=query.device) <= last[:, None, :, None, None]
    scores = torch.where(seen, scores, -1e30)
    others = [(query.float() * key[:, :, :, None].float()).sum(-1).permute(0, 2, 1, 3) * dim ** -.5
              for key, _ in drafted]
    peak = scores.amax(-1)
    for other in others:
        peak = torch.maximum(peak, other)
    peak = peak.detach()
    weights, shares = (scores - peak[..., None]).exp(), [(other - peak).exp() for other in others]
    total = weights.sum(-1)
    for share in shares:
        total = total + share
    weights = (weights / total[..., None]).to(HALF).view(batch * groups, count * shared, -1)
    out = torch.bmm(weights, values).view(batch, groups, count, shared, dim)
    for share, (_, value) in zip(shares, drafted):
        out = out + ((share / total)[..., None] * value.permute(0, 2, 1, 3)[:, :, :, None].float()).to(HALF)
    return out.permute(0, 2, 1, 3, 4).reshape(batch, count, number * dim)


def mlp(x: Tensor, layer: dict, eps: float) -> Tensor:
    read = norm(x, layer["mlp_norm"], eps)
    return x + linear(F.silu(linear(read, layer["gate"])) * linear(read, layer["up"]), layer["down"])


def target_layer(x: Tensor, layer: dict, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """A layer of the target over whole texts ``x [B, T, hidden]``."""
    read, dim = norm(x, layer["norm"], eps), 2 * cos.shape[-1]
    query, key, value = (heads(read, layer[part], dim) for part in "qkv")
    query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    shared = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(shared, 2), value.repeat_interleave(shared, 2)
    out = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (query, key, value)), is_causal=True)
    return mlp(x + linear(out.transpose(1, 2).reshape(x.shape), layer["o"]), layer, eps)


def _enter(x: Tensor, embedded: Tensor, weights: dict) -> Tensor:
    """What the first layer's residual stream begins with: of a head the state, else the state fused with the token."""
    return linear(torch.cat([x, embedded], -1), weights["fuse"]) if "fuse" in weights else x


def _read(x: Tensor, embedded: Tensor, layer: dict, eps: float) -> Tensor:
    """What a layer's attention reads; the first layer of a head also reads the token's embedding."""
    if "hidden_norm" not in layer:
        return norm(x, layer["norm"], eps)
    return torch.cat([norm(embedded, layer["norm"], eps), norm(x, layer["hidden_norm"], eps)], -1)


def head_first(weights: dict, states: Tensor, embedded: Tensor, place: Tensor, cos: Tensor, sin: Tensor, eps: float
               ) -> tuple[Tensor, list[Keys]]:
    """A drafter over verified text: ``states [B, T, width]`` of the target, ``embedded [B, T, hidden]`` of the tokens
    behind them, ``cos``, ``sin [1, T, dim / 2]``.

    Returns its states, before the last norm, at the places ``place [B, A]`` alone, ``[B, A, hidden]``, and every layer's
    keys and values of the whole text.
    """
    dim, layers = 2 * cos.shape[-1], weights["layers"]
    x = _enter(linear(states, weights["fc"]), embedded, weights)
    everywhere = torch.arange(x.shape[1], device=x.device)[None].expand(x.shape[0], -1)
    text = []
    for number, layer in enumerate(layers):
        read = _read(x, embedded, layer, eps)
        key, value = rotate(heads(read, layer["k"], dim), cos, sin), heads(read, layer["v"], dim)
        text.append((key.transpose(1, 2), value.transpose(1, 2)))
        last, at = everywhere, (cos, sin)
        if number == len(layers) - 1:       # from here on only the places count
            index = place[..., None]
            read, x = (part.gather(1, index.expand(-1, -1, part.shape[-1])) for part in (read, x))
            last, at = place, (cos[0][place], sin[0][place])
        query = rotate(heads(read, layer["q"], dim), *at)
        x = mlp(x + linear(attend(query, text[-1], last, []), layer["o"]), layer, eps)
    return x, text


def head_next(weights: dict, x: Tensor, embedded: Tensor, last: Tensor, text: list[Keys], drafted: list[list[Keys]],
              cos: Tensor, sin: Tensor, eps: float) -> tuple[Tensor, list[Keys]]:
    """The same one token further into a draft, behind every place at once (training-time test, EAGLE-3).

    ``x``, ``embedded [B, A, hidden]``: the drafter's own states before the tokens, and their embeddings. ``last [B, A]``:
    how far the verified text goes. ``drafted``: of every layer, keys and values of the draft's earlier tokens, aligned.
    Returns its states, and every layer's keys and values ``[B, A, groups, dim]``.
    """
    dim, kept = 2 * cos.shape[-1], []
    x = _enter(x, embedded, weights)
    for number, layer in enumerate(weights["layers"]):
        read = _read(x, embedded, layer, eps)
        query, key = (rotate(heads(read, layer[part], dim), cos, sin) for part in "qk")
        kept.append((key, heads(read, layer["v"], dim)))
        x = mlp(x + linear(attend(query, text[number], last, [*drafted[number], kept[-1]]), layer["o"]), layer, eps)
    return x, kept


def later(x: Tensor) -> Tensor:
    """``x [B, A, ...]`` moved to the next place, zeros in front."""
    return F.pad(x, (0, 0) * (x.dim() - 2) + (1, 0))[:, :-1]


def log_normaliser(logits: Tensor) -> Tensor:
    return logits.float().logsumexp(-1)


def probabilities(logits: Tensor, log_z: Tensor) -> Tensor:
    """p on the columns of ``logits [N, Vd]``, given the log of the normaliser over the whole vocabulary ``[N]``."""
    return (logits.float() - log_z[:, None]).exp().to(HALF)


def loss_and_gradient(logits: Tensor, p: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """:mod:`spin_core.lab.distill.loss` with equal parts, for ``logits``, ``p [N, Vd]`` and ``weight [N]``.

    Returns the gradient with respect to the logits, the weighted loss, and the weighted overlap.
    """
    logits, p = logits.float(), p.float()
    peak = logits.amax(-1, keepdim=True)
    q = (logits - peak).exp()
    total = q.sum(-1, keepdim=True)
    q = q / total
    cross_entropy = (peak + total.log())[:, 0] * p.sum(-1) - (p * logits).sum(-1)
    overlap = torch.minimum(p, q).sum(-1)
    short = torch.where(q < p, q, 0.0)
    gradient = q * (p.sum(-1, keepdim=True) + short.sum(-1, keepdim=True)) - p - short
    return (.5 * weight[:, None] * gradient).to(HALF), .5 * (weight * (cross_entropy - overlap)).sum(), \
        (weight * overlap).sum()
