"""Matrix products of few rows on a CPU.

Decoding multiplies 1 to some 40 rows by every weight of the model. BLAS libraries are tuned for tall products
and some treat these shapes badly (five rows can cost three times one row, although the same bytes are read).
oneDNN, which ships inside torch, can store a weight in its own blocked layout; products with such a packed weight
run at memory speed and cost nearly the same for 1 row and for 8. That is what makes verification of several
drafted tokens nearly free on a CPU, as it is on a GPU. ``python -m spin_core bench products`` shows both.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """``x @ weight.T + bias`` in fp32 with a weight packed by oneDNN. Same products, another order of summation."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, _pack(self.weight), self.bias, "none", [], "")


def _pack(weight: Tensor) -> Tensor:
    """The packed form of ``weight``, kept on the tensor itself: engines that share a model share it too.

    Packed anew when the weight has changed, in place (an optimiser's step) or by another tensor in its ``data``.
    """
    state = (weight._version, weight.data_ptr())
    kept = getattr(weight, "_spin_packed", None)
    if kept is None or kept[0] != state:
        kept = (state, torch.ops.mkldnn._reorder_linear_weight(weight.detach()))
        weight._spin_packed = kept
    return kept[1]


def can_pack(weight: Tensor) -> bool:
    """Packing is for fp32 on CPUs whose torch build has oneDNN's packed products."""
    return (weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
            and not weight.is_inference())                      # such tensors do not count their changes


def pack_linears(model: nn.Module) -> int:
    """Replace every packable ``nn.Linear`` of ``model`` by its packed form; return how many were replaced."""
    found = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()
             if type(child) is nn.Linear and can_pack(child.weight) and "forward" not in vars(child)]   # not sharded
    for parent, name, child in found:
        setattr(parent, name, PackedLinear(child))
    return len(found)
