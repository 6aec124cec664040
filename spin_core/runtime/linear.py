"""Matrix products of few rows on a CPU.

Decoding multiplies 1 to some 40 rows by every weight of the model. Some BLAS libraries treat these shapes badly: five
rows can cost three times one row, although the same bytes are read. oneDNN, which ships inside torch, can store a
weight in a blocked layout of its own; products with such a packed weight run at memory speed and cost nearly the same
for 1 row and for 8. So verifying several drafted tokens is nearly free on a CPU, as it is on a GPU.

Packed in bf16 a weight is half the bytes, and CPUs with instructions for bf16 multiply several times faster: inputs are
rounded, sums are fp32. Drafters may round, since the target verifies against the q that they drew from; a target that
rounds gives another text at near-ties. ``python -m spin_core bench products`` shows all of them.
"""

import torch
from torch import Tensor, nn


class Product:
    """``x @ weight.T + bias`` of fp32 tensors, weights packed by oneDNN. Same products, another order of summation.
    With ``bf16`` set, weights and inputs are rounded to bf16, and so is the result before ``add`` is added.

    Several layers that read the same input are multiplied at once, their outputs side by side: every product has costs
    beside its bytes, which small ones do not repay.
    """

    bf16 = False

    def __init__(self, *linears: nn.Linear) -> None:
        self.weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears]
        if len({bias is None for bias in biases}) > 1:
            raise ValueError("of layers that are multiplied at once either all have a bias or none")
        self.biases = None if biases[0] is None else biases

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """``[..., out]`` for ``x [..., in]``, plus ``add`` of the result's shape."""
        bias = None if self.biases is None else self.biases[0] if len(self.biases) == 1 else torch.cat(self.biases)
        if self.bf16:
            weight, bias = _pack(*self.weights, dtype=torch.bfloat16), None if bias is None else bias.bfloat16()
            out = torch.ops.mkldnn._linear_pointwise.default(x.bfloat16(), weight, bias, "none", [], "").float()
            return out if add is None else out.add_(add)
        if add is None:
            return torch.ops.mkldnn._linear_pointwise.default(x, _pack(*self.weights), bias, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, add, _pack(*self.weights), bias, "add")

    def unpack(self) -> None:
        """Drop the packed weights; the next product packs them anew."""
        vars(self.weights[0]).pop("_spin_packed", None)


class PackedLinear(nn.Module):
    """An ``nn.Linear`` whose product is packed. Its weight may change, but not be replaced by another parameter."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.product = Product(linear)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


def _pack(*weights: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The packed form of ``weights``, stacked, in ``dtype``; kept on the first tensor itself, so that engines which
    share a model share it too.

    Packed anew when a weight has changed, in place (an optimiser's step) or by another tensor in its ``data``.
    """
    state = [(weight._version, weight.data_ptr()) for weight in weights]
    forms = vars(weights[0]).setdefault("_spin_packed", {})
    key = len(weights), dtype               # how many tensors are stacked says which, for one that begins with this
    kept = forms.get(key)
    if kept is None or kept[0] != state:
        whole = weights[0] if len(weights) == 1 else torch.cat(weights)
        kept = forms[key] = state, torch.ops.mkldnn._reorder_linear_weight(whole.detach().to(dtype))
    return kept[1]


def can_pack(weight: Tensor) -> bool:
    """Packing is for fp32 on CPUs whose torch build has oneDNN's packed products."""
    return (weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
            and not weight.is_inference())                      # such tensors do not count their changes


def packable(module: nn.Module) -> bool:
    """Whether this is a plain linear layer that can be packed. One that is sharded has a forward of its own."""
    return type(module) is nn.Linear and can_pack(module.weight) and "forward" not in vars(module)


def pack_linears(model: nn.Module) -> int:
    """Replace every packable ``nn.Linear`` of ``model`` by its packed form; return how many were replaced."""
    found = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()
             if packable(child)]
    for parent, name, child in found:
        setattr(parent, name, PackedLinear(child))
    return len(found)


def can_round() -> bool:
    """Whether oneDNN can multiply bf16 on this CPU at all: with AVX512 or AVX-NE-CONVERT."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def has_bf16() -> bool:
    """Whether this CPU has instructions that multiply bf16: AVX512-bf16 or AMX."""
    return any(getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))


def round_products(model: nn.Module) -> None:
    """Let every packed product of ``model`` multiply in bf16. ValueError on a CPU that cannot."""
    if not can_round():
        raise ValueError("bf16 products need a CPU with AVX512 or AVX-NE-CONVERT, which this one lacks")
    for module in model.modules():
        packed = [module.product] if isinstance(module, PackedLinear) else \
            getattr(vars(module).get("forward"), "products", ())        # of a fused layer
        for product in packed:
            product.unpack()
            product.bf16 = True
