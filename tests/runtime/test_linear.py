"""Packed products: the same numbers as F.linear, and never those of a weight that has changed since."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn

from spin_core.runtime import linear as products
from spin_core.runtime.linear import PackedLinear, Product, can_pack, can_round, pack_linears, round_products

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


def test_a_cpu_without_products_in_bf16_says_so(monkeypatch):
    monkeypatch.setattr(products, "can_round", lambda: False)
    with pytest.raises(ValueError, match="bf16 products need a CPU with AVX512"):
        round_products(nn.Sequential(PackedLinear(linear())))


@pytest.mark.skipif(not can_round(), reason="this CPU cannot multiply in bf16")
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), inputs=sizes, outputs=sizes, bias=st.booleans(), seed=st.integers(0, 99))
@torch.no_grad()
def test_rounded_products_err_by_the_rounding_of_their_inputs_and_outputs(rows, inputs, outputs, bias, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain, x, add = linear(inputs, outputs, bias), torch.randn(1, rows, inputs), torch.randn(1, rows, outputs)
    exact = F.linear(x.double(), plain.weight.double(), plain.bias.double() if bias else None)
    bound = F.linear(x.abs(), plain.weight.abs(), plain.bias.abs() if bias else None)
    model = nn.Sequential(PackedLinear(plain))
    round_products(model)
    for out, added in ((model(x), 0), (model[0].product(x, add=add), add)):
        # weight, input, bias and result are rounded, each by at most half a unit in the last of eight places
        assert ((out - exact - added).abs() <= 4 * 2**-8 * bound + 1e-6).all()
        assert out.dtype == torch.float32


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
    kept = plain.weight._spin_packed[1, torch.float32]
    second(torch.randn(3, 24))
    assert plain.weight._spin_packed[1, torch.float32] is kept


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


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), inputs=sizes, outputs=st.lists(sizes, min_size=1, max_size=3), bias=st.booleans(),
       seed=st.integers(0, 99))
@torch.no_grad()
def test_layers_that_read_one_input_are_multiplied_at_once(rows, inputs, outputs, bias, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain = [linear(inputs, width, bias) for width in outputs]
        x, add = torch.randn(1, rows, inputs), torch.randn(1, rows, sum(outputs))
    product = Product(*plain)
    for layer, part in zip(plain, product(x).split(outputs, -1)):
        assert_same(lambda _: part, layer, x)
    assert torch.allclose(product(x, add=add), product(x) + add, atol=1e-5)


def test_a_change_of_any_joined_weight_is_seen():
    plain, x = [linear(24, n, False) for n in (16, 8, 8)], torch.randn(1, 5, 24)
    product = Product(*plain)
    for layer in plain:
        with torch.no_grad():
            layer.weight.mul_(3)
        for joined, part in zip(plain, product(x).split([16, 8, 8], -1)):
            assert_same(lambda _: part, joined, x)


def test_layers_of_which_only_some_have_a_bias_are_not_joined():
    with pytest.raises(ValueError, match="a bias or none"):
        Product(linear(bias=True), linear(bias=False))
