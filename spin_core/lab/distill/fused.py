"""Llama's layers as plain functions, for training on a CPU: products in bf16, everything between them compiled.

On a core with bf16 matrix instructions a product is so quick that norms, rotations and softmaxes, each a pass over
memory, would take most of the time. Written like this, ``torch.compile`` turns what stands between two products into
one pass. Weights are float32 and are rounded where they are used; sums, softmaxes and norms are float32.

A layer's weights come as a dict with the short names of :data:`PARTS`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from spin_core.lab.distill.states import fast_bf16

# the dtype of products: bf16 where there are instructions for it
HALF = torch.bfloat16 if fast_bf16(torch.device("cuda" if torch.cuda.is_available() else "cpu")) else torch.float32
SINK = 1            # with a window the first token stays in sight (SPIRe's way)
PARTS = {"norm": "input_layernorm", "hidden_norm": "hidden_norm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
         "v": "self_attn.v_proj", "o": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
         "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
Keys = tuple[Tensor, Tensor]        # keys and values


def tree(parameters: dict[str, Tensor]) -> dict:
    """Parameters by the names of a drafter's file -> ``{"norm", "layers": [{short name: weight}]}``, and of a fed one
    "fc", "fuse" and "mix"."""
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


def attend_draft(query: Tensor, text: Keys, last: Tensor, drafted: list[Keys], window: int | None = None) -> Tensor:
    """Attention of ``query [B, Q, heads, dim]`` -> ``[B, Q, heads * dim]``.

    ``text``: keys and values ``[B, groups, T, dim]``, of which query q of row b sees those up to ``last[b, q]``
    (``[B, Q]``). ``drafted``: keys and values ``[B, Q, groups, dim]`` that each query sees besides, one of each. With a
    ``window`` it sees as many of the latest, itself included, and the first.
    """
    (batch, count, number, dim), groups = query.shape, text[0].shape[1]
    shared = number // groups
    query = query.view(batch, count, groups, shared, dim)
    rows = query.permute(0, 2, 1, 3, 4).reshape(batch * groups, count * shared, dim)
    keys, values = (x.reshape(batch * groups, -1, dim) for x in text)
    scores = torch.bmm(rows, keys.transpose(1, 2)).view(batch, groups, count, shared, -1).float() * dim ** -.5
    place, last = torch.arange(scores.shape[-1], device=query.device), last[:, None, :, None, None]
    seen = place <= last
    if window is not None:
        seen = seen & ((place > last + len(drafted) - window) | (place < SINK))
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


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention within texts: ``query [B, T, heads, dim]``, ``key``, ``value [B, T, groups, dim]`` -> ``[B, T, heads *
    dim]``."""
    shared = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(shared, 2), value.repeat_interleave(shared, 2)
    out = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (query, key, value)), is_causal=True)
    return out.transpose(1, 2).flatten(2)


def target_layer(x: Tensor, layer: dict, cos: Tensor, sin: Tensor, eps: float, attend=causal) -> Tensor:
    """A layer of the target over texts ``x [B, T, hidden]``; ``attend`` as :func:`causal`."""
    read, dim = norm(x, layer["norm"], eps), 2 * cos.shape[-1]
    query, key, value = (heads(read, layer[part], dim) for part in "qkv")
    query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    return mlp(x + linear(attend(query, key, value), layer["o"]), layer, eps)


def _enter(x: Tensor, embedded: Tensor, weights: dict) -> Tensor:
    """What the first layer's residual stream begins with: of a head the state, else the state fused with the token."""
    return linear(torch.cat([x, embedded], -1), weights["fuse"]) if "fuse" in weights else x


def _read(x: Tensor, embedded: Tensor, layer: dict, eps: float) -> Tensor:
    """What a layer's attention reads; the first layer of a head also reads the token's embedding."""
    if "hidden_norm" not in layer:
        return norm(x, layer["norm"], eps)
    return torch.cat([norm(embedded, layer["norm"], eps), norm(x, layer["hidden_norm"], eps)], -1)


def head_first(weights: dict, states: Tensor, embedded: Tensor, place: Tensor, cos: Tensor, sin: Tensor, eps: float,
               window: int | None = None) -> tuple[Tensor, list[Keys], list[Tensor]]:
    """A drafter over verified text: ``states [B, T, width]`` of the target, ``embedded [B, T, hidden]`` of the tokens
    behind them, ``cos``, ``sin [1, T, dim / 2]``. A plain drafter, which has no "fc", reads the tokens alone.

    Returns its states, before the last norm, at the places ``place [B, A]`` alone, ``[B, A, hidden]``, every layer's
    keys and values of the whole text, and, for a feedback memory, what each layer read at the places.
    """
    dim, layers, read_by = 2 * cos.shape[-1], weights["layers"], []
    x = _enter(linear(states, weights["fc"]), embedded, weights) if "fc" in weights else embedded
    everywhere = torch.arange(x.shape[1], device=x.device)[None].expand(x.shape[0], -1)
    text = []
    for number, layer in enumerate(layers):
        if "mix" in weights:
            read_by.append(x.gather(1, place[..., None].expand(-1, -1, x.shape[-1])))
        read = _read(x, embedded, layer, eps)
        key, value = rotate(heads(read, layer["k"], dim), cos, sin), heads(read, layer["v"], dim)
        text.append((key.transpose(1, 2), value.transpose(1, 2)))
        last, at = everywhere, (cos, sin)
        if number == len(layers) - 1:       # from here on only the places count
            index = place[..., None]
            read, x = (part.gather(1, index.expand(-1, -1, part.shape[-1])) for part in (read, x))
            last, at = place, (cos[0][place], sin[0][place])
        query = rotate(heads(read, layer["q"], dim), *at)
        x = mlp(x + linear(attend_draft(query, text[-1], last, [], window), layer["o"]), layer, eps)
    return x, text, read_by


def head_next(weights: dict, x: Tensor, embedded: Tensor, last: Tensor, text: list[Keys], drafted: list[list[Keys]],
              cos: Tensor, sin: Tensor, eps: float, window: int | None = None
              ) -> tuple[Tensor, list[Keys], list[Tensor]]:
    """The same one token further into a draft, behind every place at once (training-time test, EAGLE-3).

    ``x``, ``embedded [B, A, hidden]``: the drafter's own states before the tokens, and their embeddings. ``last [B,
    A]``: how far the verified text goes. ``drafted``: of every layer, keys and values of the draft's earlier tokens,
    aligned. Returns its states, every layer's keys and values ``[B, A, groups, dim]``, and what each layer read.
    """
    dim, kept, read_by = 2 * cos.shape[-1], [], []
    x = _enter(x, embedded, weights)
    for number, layer in enumerate(weights["layers"]):
        read_by.append(x)
        read = _read(x, embedded, layer, eps)
        query, key = (rotate(heads(read, layer[part], dim), cos, sin) for part in "qk")
        kept.append((key, heads(read, layer["v"], dim)))
        seen = attend_draft(query, text[number], last, [*drafted[number], kept[-1]], window)
        x = mlp(x + linear(seen, layer["o"]), layer, eps)
    return x, kept, read_by


def later(x: Tensor) -> Tensor:
    """``x [B, A, ...]`` moved to the next place, zeros in front."""
    return F.pad(x, (0, 0) * (x.dim() - 2) + (1, 0))[:, :-1]
