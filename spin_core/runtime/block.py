"""A decoder layer of Llama's kind in half of the operations that the model library spends on it.

A pass over a few rows is a thousand small operations between the products, which together took as long as the products.
Here layers that read the same input are multiplied at once, queries and keys are rotated at once, a norm takes four
operations instead of six, and a residual is added by the product before it. The numbers are the library's up to
rounding.
"""

import torch
from torch import Tensor, nn

from spin_core.runtime.attention import current, serving
from spin_core.runtime.linear import Product, packable

PARTS = {"": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
         "self_attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
         "mlp": {"gate_proj", "up_proj", "down_proj", "act_fn"}}
CAPTURE = "transformers.utils.output_capturing"     # its hooks do nothing until hidden states are asked for


class Block:
    """Computes what ``layer`` does, on the tokens of a :class:`RaggedBatch`."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.norms = [(each.weight, torch.full((1, 1, 1), each.variance_epsilon))
                      for each in (layer.input_layernorm, layer.post_attention_layernorm)]
        self.qkv = Product(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = Product(attention.o_proj)
        self.gate_up = Product(mlp.gate_proj, mlp.up_proj)
        self.down = Product(mlp.down_proj)
        self.act = mlp.act_fn
        self.index, self.dim, self.scale = attention.layer_idx, attention.head_dim, attention.scaling
        self.products = self.qkv, self.out, self.gate_up, self.down
        self.heads = attention.q_proj.out_features // self.dim
        self.turned = self.heads + attention.k_proj.out_features // self.dim      # heads with a rotary embedding

    def __call__(self, x: Tensor, *, position_embeddings: tuple[Tensor, Tensor], **options) -> Tensor:
        """``x [1, N, hidden]`` -> the same shape; ``position_embeddings``, cosines and sines ``[1, N, head_dim]``."""
        return self.finish(x, norm(x, *self.norms[0]), position_embeddings)

    def finish(self, x: Tensor, read: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        """The layer's output from its residual stream ``x`` and what its attention reads ``[1, N, width]``."""
        tokens = x.shape[1]
        mixed = self.qkv(read).view(tokens, -1, self.dim)
        turned = _rotate(mixed[:, :self.turned], *position_embeddings)
        seen = current().attend(self.index, turned[:, :self.heads].transpose(0, 1), turned[:, self.heads:],
                                mixed[:, self.turned:], self.scale)
        x = self.out(seen.reshape(1, tokens, -1), add=x)
        gate, up = self.gate_up(norm(x, *self.norms[1])).chunk(2, -1)
        return self.down(self.act(gate).mul_(up), add=x)


def norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` of every row: a row's square sum is its product with itself."""
    rows = x.transpose(0, 1)
    inverse = torch.baddbmm(eps, rows, rows.transpose(1, 2), alpha=1 / x.shape[2]).rsqrt_()
    return (rows * inverse).mul_(weight).transpose(0, 1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``x [N, heads, head_dim]``: entries i and i + head_dim/2 are the coordinates of a plane."""
    cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
    out = x * cos
    (first, second), (above, below), (left, right) = (part.chunk(2, -1) for part in (x, sin, out))
    left.addcmul_(second, above, value=-1)
    right.addcmul_(first, below)
    return out


def fuse_layers(model: nn.Module) -> int:
    """Let every layer of ``model`` that is of this kind run as a :class:`Block`; return how many do.

    Whether it is, is tried: families also differ in what their modules' names do not show, in norms that add one to
    their weight, or in layers that rotate nothing. A layer may have a ``block()`` that makes one of its own kind, or
    None.
    """
    count = 0
    for layer in list(model.modules()):
        block = layer.block() if hasattr(layer, "block") else _tried(layer) if _looks_alike(layer) else None
        if block:
            layer.forward = block       # not a module in its place: hooks on the layer, and its class, stay
            count += 1
    return count


def _looks_alike(layer: nn.Module) -> bool:
    """Whether the layer has a block's parts, plain linear layers among them, and no hooks inside."""
    for part, names in PARTS.items():
        holder = layer.get_submodule(part)
        if {name for name, _ in holder.named_children()} != names:
            return False
        if part and not all(packable(child) for name, child in holder.named_children() if name != "act_fn"):
            return False
    inside = [module for module in layer.modules() if module is not layer]
    hooks = [hook for module in inside for hook in (*module._forward_hooks.values(),
                                                    *module._forward_pre_hooks.values())]
    return (all(hook.__module__ == CAPTURE for hook in hooks)
            and not any("forward" in vars(module) for module in (layer, *inside)))


class _Echo:
    """Stands in for a pass: attention that lets everything through which a layer hands to it."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        shared = query.shape[0] // key.shape[1]
        return query.transpose(0, 1) * (layer + scale) + (key + 2 * value).repeat_interleave(shared, 1)


@torch.inference_mode()
def _tried(layer: nn.Module) -> Block | None:
    """The layer's block, if it gives what the layer gives, and if the layer rotates whole heads as a block does."""
    try:
        block = Block(layer)
        width, dim = layer.self_attn.q_proj.in_features, block.dim
        generator = torch.Generator().manual_seed(0)
        x, cos, sin = (torch.randn(1, 3, size, generator=generator) for size in (width, dim, dim))
        with serving(_Echo()):
            expected = layer(x, attention_mask=None, position_embeddings=(cos, sin))
            ours = block(x, position_embeddings=(cos, sin))
        alike = bool((ours - expected).abs().max() <= 1e-5 * expected.abs().max())
    except Exception:       # it lacks what a block reads, attends in another way, or needs to know more
        return None
    if alike and not _rotates_parts(layer, x, cos, sin):
        return block
    for product in block.products:
        product.unpack()
    return None


def _rotates_parts(layer: nn.Module, x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Does the layer take a narrower rotary embedding, for a part of each head?"""
    half = cos.shape[2] // 2
    try:
        with serving(_Echo()):
            layer(x, attention_mask=None, position_embeddings=(cos[..., :half], sin[..., :half]))
    except Exception:
        return False
    return True
