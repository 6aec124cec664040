"""Packed products: the same numbers as F.linear, and never those of a weight that has changed since."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn

from spin_core.runtime.linear import JointLinear, PackedLinear, can_pack, pack_linears
from spin_core.runtime.runner import share_weights

pytestmark = pytest.mark.skipif(not can_pack(torch.empty(1)), reason="this torch has no packed products")
sizes = st.sampled_from([1, 3, 8, 17, 64, 111])


def linear(inputs: int = 24, outputs: int = 16, bias: bool = True) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias)


@torch.inference_mode()
def assert_same(packed: nn.Module, plain: nn.Linear, x: torch.Tensor) -> None:
    """Both are within fp32 rounding of the exact product: n additions err by at most n eps sum |x w|."""
    bias = None if plain.bias is None else plain.bias.double()
    exact = F.linear(x.double(), plain.weight.double(), bias)
    bound = F.linear(x.abs().double(), plain.weight.abs().double(), None if bias is None else bias.abs())
    assert ((packed(x) - exact).abs() <= (x.shape[-1] + 2) * torch.finfo(torch.float32).eps * bound + 1e-30).all()


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), inputs=sizes, outputs=sizes, bias=st.booleans(), seed=st.integers(0, 99))
def test_products_are_those_of_f_linear(rows, inputs, outputs, bias, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain = linear(inputs, outputs, bias)
        assert_same(PackedLinear(plain), plain, torch.randn(1, rows, inputs))


def test_a_changed_weight_is_packed_anew():
    plain, x = linear(), torch.randn(5, 24)
    packed = PackedLinear(plain)
    assert_same(packed, plain, x)
    with torch.no_grad():
        plain.weight.mul_(3)
    assert_same(packed, plain, x)
    plain(x).sum().backward()
    torch.optim.SGD(plain.parameters(), lr=10.0).step()
    assert_same(packed, plain, x)
    plain.weight.data = torch.randn(16, 24)
    assert_same(packed, plain, x)
    plain.load_state_dict(linear().state_dict())
    assert_same(packed, plain, x)


def test_packing_happens_once_per_weight():
    plain = linear()
    first, second = PackedLinear(plain), PackedLinear(plain)
    first(torch.randn(2, 24))
    kept = plain.weight._spin_packed[1]
    second(torch.randn(3, 24))
    assert plain.weight._spin_packed[1] is kept


def test_only_linears_that_can_be_packed_are_replaced():
    class Special(nn.Linear):
        """A subclass may compute something else, so it stays."""

    model = nn.Sequential(linear(), nn.Sequential(linear(bias=False), nn.LayerNorm(16)), linear().double(),
                          Special(4, 4))
    assert pack_linears(model) == 2
    assert [type(m) for m in model] == [PackedLinear, nn.Sequential, nn.Linear, Special]
    assert type(model[1][0]) is PackedLinear
    with torch.inference_mode():
        unversioned = linear()
    assert not can_pack(unversioned.weight)


class Attention(nn.Module):
    """Three layers that read one input, and one that doesn't."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (linear(24, n, bias) for n in (16, 8, 8))
        self.o_proj = linear(16, 24, False)


@pytest.mark.parametrize("bias", [True, False])
def test_layers_that_read_one_input_are_multiplied_at_once(bias):
    plain = Attention(bias)
    packed = share_weights(plain)
    assert pack_linears(packed) == 4
    assert type(packed.q_proj) is type(packed.k_proj) is type(packed.v_proj) is JointLinear
    assert type(packed.o_proj) is PackedLinear
    for model in packed, share_weights(packed):         # a copy has a joint of its own
        x, y = torch.randn(1, 5, 24), torch.randn(1, 3, 24)
        names = "q_proj", "k_proj", "v_proj"
        for name in names:
            assert_same(getattr(model, name), getattr(plain, name), x)
        assert model.v_proj.joint.last is None          # nothing stays behind
        for name in ("v_proj", "q_proj", "k_proj"):     # any order, inputs in turns
            for given in (x, y):
                assert_same(getattr(model, name), getattr(plain, name), given)


def test_a_change_of_any_joined_weight_is_seen():
    plain = Attention()
    packed = share_weights(plain)
    pack_linears(packed)
    for layer in (plain.q_proj, plain.k_proj, plain.v_proj):
        with torch.no_grad():
            layer.weight.mul_(3)
        for name in ("q_proj", "k_proj", "v_proj"):
            assert_same(getattr(packed, name), getattr(plain, name), torch.randn(1, 5, 24))


def test_layers_of_which_only_some_have_a_bias_are_not_joined():
    model = Attention()
    model.k_proj = linear(24, 8, True)
    pack_linears(model)
    assert type(model.q_proj) is PackedLinear
