"""The Triton kernels against the textbook: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_cases import COSTS, case, ragged, special

from spin_core.decompose import plan
from spin_core.decompose.attend import Workspace
from spin_core.decompose.needs import Sight, View
from spin_core.decompose.plan import LARGE

triton = pytest.importorskip("triton")
KernelStep = pytest.importorskip("spin_core.decompose.kernels").KernelStep


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], scope="module")
def device(request) -> str:
    if request.param == "cpu" and not triton.knobs.runtime.interpret:
        pytest.skip("the kernels are compiled in this process")
    return request.param


def check(c, *, strategy: str = "decomposed", width: int | None = None, tolerance: float, layer: int = 0) -> None:
    view = View(c.batch, c.needs.sight)
    made = plan(view.lengths, c.batch.counts, strategy, costs=COSTS, width=width)
    step = KernelStep(made, c.batch, c.cache, c.heads, Workspace(), view)
    out = step.attend(layer, c.query, c.scale, c.needs.softcap, c.needs.sinks)
    torch.testing.assert_close(out.double().cpu(), c.expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=12, deadline=None)
@given(ragged(requests=3), st.sampled_from([3, 16, 40]), st.sampled_from([(1, 1), (2, 3), (1, 4)]))
def test_ragged_batches_of_chains_and_trees(device, requests, width, heads):
    """Unused memory holds NaN throughout."""
    c = case(requests, kv=heads[0], group=heads[1], dim=16, dtype=torch.float32, device=device)
    check(c, width=width, tolerance=1e-5)


@settings(max_examples=12, deadline=None)
@given(ragged(requests=3), special(), st.sampled_from([3, 16, 40]))
def test_special_layers(device, requests, needs, width):
    """Windows, chunks, capped scores, sinks, values narrower than keys."""
    check(case(requests, dim=16, dtype=torch.float32, device=device, **needs), width=width, tolerance=1e-5)


def test_layers_that_are_rings(device):
    requests = [(60, 1, None), (7, 3, None), (50, 4, (-1, 0, 0, 1)), (0, 2, None)]
    c = case(requests, sight=Sight(9), ring=6, dtype=torch.float32, device=device)
    assert c.cache.k[0].shape[2] == 15
    for width in (4, 40):
        check(c, width=width, tolerance=1e-5)


@pytest.mark.parametrize("dim", [8, 20, 64])
def test_head_dims_that_are_no_block_size(device, dim):
    check(case([(40, 5, None), (7, 3, (-1, 0, 0))], dim=dim, dtype=torch.float32, device=device), width=20,
          tolerance=1e-5)


def test_more_keys_than_a_block(device):
    """A piece of several blocks, and one that ends at the end of its slot."""
    c = case([(195, 5, None), (100, 2, None)], dtype=torch.float32, device=device, max_len=200)
    check(c, width=150, tolerance=1e-5)


def test_seven_and_ninety_nine_requests(device):
    for count in (7, 99):
        requests = [((13 * i) % 40, 1 + i % 3, None) for i in range(count)]
        check(case(requests, kv=1, group=2, dtype=torch.float32, device=device), width=16, tolerance=1e-5)


def test_prompts_run_beside_drafts(device):
    c = case([(0, LARGE + 3, None), (40, 5, None), (20, LARGE + 1, None)], dtype=torch.float32, device=device)
    check(c, tolerance=1e-5)


def test_a_layer_of_several_and_a_query_in_another_layout(device):
    c = case([(30, 4, None), (50, 4, None)], dtype=torch.float32, device=device, layers=2)
    c.query = c.query.transpose(1, 2).contiguous().transpose(1, 2)
    check(c, width=25, tolerance=1e-5, layer=1)


def test_bfloat16(device):
    if device == "cpu":
        pytest.skip("the interpreter multiplies bfloat16 as if its bits were integers")
    check(case([(40, 5, None), (66, 4, None)], dtype=torch.bfloat16, device=device), width=33, tolerance=3e-2)


def test_float64_is_exact(device):
    if device == "cuda":
        pytest.skip("for the interpreter: compiled products of doubles are not what the kernel is for")
    check(case([(40, 5, None), (66, 4, (-1, 0, 0, 2))], device=device), width=33, tolerance=1e-12)
