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

JOINED = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
"""Layers that read the same input, by the names and in the order of the models we know."""


class PackedLinear(nn.Module):
    """``x @ weight.T + bias`` in fp32 with a weight packed by oneDNN. Same products, another order of summation."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, _pack(self.weight), self.bias, "none", [], "")


class Joint:
    """Layers that read the same input, multiplied at once: every product has costs beside its bytes, which small ones
    do not repay.

    The first layer that is called with an input multiplies for all of them; the others find their shares there.
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        self.weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears]
        self.biases = None if biases[0] is None else biases
        self.last: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def product(self, part: int, x: Tensor) -> Tensor:
        """Layer ``part``'s ``[..., out]`` for ``x [..., in]``."""
        last = self.last                        # read once: another thread may change it
        if last is None or last[0] is not x:
            bias = None if self.biases is None else torch.cat(self.biases)
            both = torch.ops.mkldnn._linear_pointwise(x, _pack(*self.weights), bias, "none", [], "")
            last = self.last = x, both.split([w.shape[0] for w in self.weights], -1)
        if part == len(self.weights) - 1:       # models call them in order: nobody will ask again
            self.last = None
        return last[1][part]


class JointLinear(nn.Module):
    """One of the layers of a :class:`Joint`."""

    def __init__(self, linear: nn.Linear, joint: Joint, part: int) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.joint, self.part = joint, part

    def forward(self, x: Tensor) -> Tensor:
        return self.joint.product(self.part, x)


def _pack(*weights: Tensor) -> Tensor:
    """The packed form of ``weights``, stacked; kept on the first tensor itself, so that engines which share a model
    share it too.

    Packed anew when a weight has changed, in place (an optimiser's step) or by another tensor in its ``data``.
    """
    state = [(weight._version, weight.data_ptr()) for weight in weights]
    forms = vars(weights[0]).setdefault("_spin_packed", {})        # by how many tensors are stacked
    kept = forms.get(len(weights))
    if kept is None or kept[0] != state:
        whole = weights[0] if len(weights) == 1 else torch.cat(weights)
        kept = forms[len(weights)] = state, torch.ops.mkldnn._reorder_linear_weight(whole.detach())
    return kept[1]


def can_pack(weight: Tensor) -> bool:
    """Packing is for fp32 on CPUs whose torch build has oneDNN's packed products."""
    return (weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
            and not weight.is_inference())                      # such tensors do not count their changes


def pack_linears(model: nn.Module) -> int:
    """Replace every packable ``nn.Linear`` of ``model`` by its packed form; return how many were replaced."""
    found = [(parent, {name: child for name, child in parent.named_children()
                       if type(child) is nn.Linear and can_pack(child.weight)
                       and "forward" not in vars(child)}) for parent in model.modules()]      # not sharded
    for parent, layers in found:
        for name, layer in layers.items():
            setattr(parent, name, PackedLinear(layer))
        for names in JOINED:
            together = [layers[name] for name in names if name in layers]
            if len(together) == len(names) and len({layer.bias is None for layer in together}) == 1:
                joint = Joint(together)
                for part, name in enumerate(names):
                    setattr(parent, name, JointLinear(layers[name], joint, part))
    return sum(len(layers) for _, layers in found)
