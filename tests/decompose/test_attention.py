"""Every way to attend gives the attention of the textbook, whatever lies in memory that was never written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_cases import COSTS, MAX_LEN, Case, ancestors, case, ragged, special

from spin_core.decompose import STRATEGIES, plan
from spin_core.decompose.attend import Workspace
from spin_core.decompose.needs import Sight, View
from spin_core.decompose.plan import LARGE, Piece
from spin_core.decompose.reference import attend_piece, attend_request, merge
from spin_core.decompose.steps import NAMES as WAYS, step_class
from spin_core.decompose.strategies import Attention

TIGHT = dict(rtol=1e-12, atol=1e-12)


def attend(c: Case, strategy: str, *, width: int | None = None, layer: int = 0, workspace: Workspace | None = None):
    view = View(c.batch, c.needs.sight)
    made = plan(view.lengths, c.batch.counts, "per-request" if strategy == "flex" else strategy, costs=COSTS,
                width=width)
    step = step_class(strategy, c.cache)(made, c.batch, c.cache, c.heads, workspace or Workspace(), view)
    return step.attend(layer, c.query, c.scale, c.needs.softcap, c.needs.sinks)


@settings(max_examples=60, deadline=None)
@given(ragged(), st.data())
def test_the_reference_merges_pieces_cut_anywhere(requests, data):
    """Bounds fall between any two keys, in-flight tokens too: a query may see nothing of a piece."""
    c = case(requests)
    for slot, start, count, prefix, tree in zip(c.batch.slots, c.batch.starts, c.batch.counts, c.batch.prefix,
                                                c.batch.ancestors):
        length = prefix + count
        if not length:
            continue
        bounds = sorted({0, length} | set(data.draw(st.lists(st.integers(0, length), max_size=6))))
        pieces = [Piece(0, a, b) for a, b in zip(bounds, bounds[1:])]
        among = torch.ones(count, count, dtype=torch.bool).tril() if tree is None else tree
        visible = torch.cat([torch.ones(count, prefix, dtype=torch.bool), among], 1)
        out = attend_request(c.query[:, start:start + count], c.cache.k[0][slot, :, :length],
                             c.cache.v[0][slot, :, :length],
                             pieces, visible, c.scale)
        torch.testing.assert_close(out.transpose(0, 1), c.expected[start:start + count], **TIGHT)


def test_a_piece_that_is_not_seen_has_no_share():
    query, key = torch.randn(2, 1, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    seen = attend_piece(query, key, key, None, 0.5)
    unseen = attend_piece(query, key, key, torch.zeros(1, 3, dtype=torch.bool), 0.5)
    assert torch.isneginf(unseen[1]).all() and (unseen[0] == 0).all()
    torch.testing.assert_close(merge(torch.stack([seen[0], unseen[0]]), torch.stack([seen[1], unseen[1]])), seen[0])


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=30, deadline=None)
@given(ragged(), st.sampled_from([(1, 1), (2, 3), (3, 1), (1, 4)]), st.integers(0, 2 ** 31))
def test_strategies_equal_the_textbook(strategy, requests, heads, seed):
    c = case(requests, kv=heads[0], group=heads[1], seed=seed)
    torch.testing.assert_close(attend(c, strategy), c.expected, **TIGHT)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40, deadline=None)
@given(ragged(), special(), st.sampled_from([1, 4, 16]), st.integers(0, 2 ** 31))
def test_special_layers_equal_the_textbook(strategy, requests, needs, width, seed):
    """Windows and chunks shorter and longer than the texts, capped scores, sinks, values narrower than keys."""
    c = case(requests, seed=seed, **needs)
    torch.testing.assert_close(attend(c, strategy, width=width), c.expected, **TIGHT)


@pytest.mark.parametrize("strategy", WAYS)
@pytest.mark.parametrize("needs", [dict(sight=Sight(7)), dict(sight=Sight(16, True), softcap=0.7),
                                   dict(sinks=True, value_dim=5), dict(softcap=0.7, sinks=True)])
def test_special_layers_read_prompts_and_drafts(strategy, needs):
    c = case([(0, LARGE + 3, None), (20, LARGE + 1, None), (40, 5, None), (33, 4, (-1, 0, 0, 1)), (50, 1, None)],
             **needs)
    torch.testing.assert_close(attend(c, strategy), c.expected, **TIGHT)


def test_a_windowed_layer_reads_only_the_keys_in_sight():
    """A plan covers min(length, window) keys, and the drafts' own: what lies before may be anything."""
    c = case([(60, 1, None), (3, 2, None), (50, 4, None)], sight=Sight(8))
    view = View(c.batch, c.needs.sight)
    assert view.lengths == [8, 5, 11] and view.first == [53, 0, 43]
    for slot, first in zip(c.batch.slots, view.first):
        c.cache.k[0][slot, :, :first] = c.cache.v[0][slot, :, :first] = torch.nan
    for strategy in STRATEGIES:
        torch.testing.assert_close(attend(c, strategy), c.expected, **TIGHT)
    assert Attention("padded", 6, c.cache).step(c.batch, c.needs.sight).plan.kv_touched == 3 * 11


@pytest.mark.parametrize("strategy", WAYS)
@pytest.mark.parametrize("sight", [Sight(9), Sight(9, True)])
def test_a_layer_that_is_a_ring(strategy, sight):
    """Entries that the ring has overwritten are out of sight; what it has not written yet is not read."""
    requests = [(60, 1, None), (7, 3, None), (50, 4, (-1, 0, 0, 1)), (16, 2, None), (0, 2, None), (21, LARGE, None)]
    for requests in (requests, [*requests, (30, LARGE + 4, None)]):
        c = case(requests, sight=sight, ring=LARGE + 4)
        assert c.cache.k[0].shape[2] == 9 + LARGE + 4
        torch.testing.assert_close(attend(c, strategy), c.expected, **TIGHT)


@settings(max_examples=70, deadline=None)
@given(ragged(), st.sampled_from([1, 2, 3, 5, 8, 16, 40]))
def test_pieces_of_any_width_equal_the_textbook(requests, width):
    """Narrow pieces hold nothing but in-flight tokens of which some queries see none."""
    c = case(requests)
    torch.testing.assert_close(attend(c, "decomposed", width=width), c.expected, **TIGHT)


@pytest.mark.parametrize("strategy", WAYS)
def test_prompts_and_drafts_in_one_batch(strategy):
    """A first chunk, a later chunk, a chain, a tree and a single token."""
    tree = (-1, 0, 0, 1)
    c = case([(0, LARGE + 3, None), (20, LARGE + 1, None), (40, 5, None), (33, 4, tree), (50, 1, None)])
    torch.testing.assert_close(attend(c, strategy), c.expected, **TIGHT)


@pytest.mark.parametrize("strategy", WAYS)
def test_what_lies_in_unused_memory_does_not_matter(strategy):
    """Bit for bit: not NaN, not infinity, nothing that a request before has left."""
    requests = [(3, 2, None), (44, 5, (-1, -1, 0, 1, 1)), (17, 5, None), (44, 5, None)]
    outputs = [attend(case(requests, poison=poison), strategy) for poison in (float("nan"), float("inf"), 0.0, 1e300)]
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])
    assert outputs[0].isfinite().all()


@pytest.mark.parametrize("strategy", WAYS)
def test_a_request_of_nans_harms_no_other(strategy):
    c = case([(30, 4, None), (30, 4, None), (9, 4, None)])
    c.cache.v[0][c.batch.slots[1], :, 5] = torch.nan
    c.cache.k[0][c.batch.slots[1], :, 7] = torch.nan
    out = attend(c, strategy)
    assert out[4:8].isnan().all()
    torch.testing.assert_close(out[:4], c.expected[:4], **TIGHT)
    torch.testing.assert_close(out[8:], c.expected[8:], **TIGHT)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_other_dtypes(strategy, dtype, tolerance):
    c = case([(40, 5, None), (40, 5, (-1, 0, 0, 0, 1)), (11, 3, None), (0, 1, None)], dtype=dtype)
    out = attend(c, strategy)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), c.expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("requests", [[(0, 1, None)], [(5, 0, None), (0, 3, (-1, -1, 0))], [(0, 0, None)],
                                      [(31, 5, (-1, 0, 0, 1, 2)), (2, 1, None), (48, 3, None)]])
def test_a_kernel_without_padding_equals_the_textbook(requests):
    """Fixed cases: the library sets up something for every new shape."""
    c = case(requests)
    torch.testing.assert_close(attend(c, "flex"), c.expected, **TIGHT)


@pytest.mark.gpu
def test_a_compiled_kernel_without_padding():
    c = case([(100, 5, None), (70, 5, (-1, 0, 0, 1, 1)), (9, 3, None), (0, 1, None)], kv=4, group=2, dim=64,
             dtype=torch.bfloat16, device="cuda", max_len=256)
    torch.testing.assert_close(attend(c, "flex").double().cpu(), c.expected, rtol=3e-2, atol=3e-2)


def test_layers_and_steps_share_a_workspace():
    """Buffers are used again, for smaller and for larger steps."""
    workspace = Workspace()
    for requests in ([(40, 5, None)] * 4, [(3, 1, None)] * 2, [(60, 6, None)] * 5):
        c = case(requests, layers=3)
        for _ in range(2):
            torch.testing.assert_close(attend(c, "decomposed", width=16, layer=2, workspace=workspace), c.expected,
                                       **TIGHT)


def test_scores_that_overflow_an_exponential_merge():
    """The shares of pieces are differences of log-sum-exps, so their size does not matter."""
    c = case([(40, 3, None), (41, 3, None)])
    for scale in (1e4, -1e4):
        c.scale = scale
        expected = attend(c, "per-request")
        assert expected.isfinite().all()
        torch.testing.assert_close(attend(c, "decomposed", width=8), expected, rtol=1e-9, atol=1e-9)


def test_a_name_that_is_not_known():
    c = case([(3, 1, None)])
    with pytest.raises(ValueError, match="'fast'; known: auto, padded"):
        Attention("fast", 6, c.cache)


def test_more_keys_than_the_cache_holds():
    c = case([(3, 1, None)])
    with pytest.raises(ValueError, match=f"request 0 attends {MAX_LEN + 1} keys, but the cache holds {MAX_LEN}"):
        Attention("padded", 6, c.cache).plan([MAX_LEN + 1], [1])


def test_a_single_request_needs_no_measurement(monkeypatch):
    c = case([(3, 1, None)])
    monkeypatch.setattr("spin_core.decompose.strategies.measured", lambda *_: pytest.fail("measured"))
    attention = Attention("auto", 6, c.cache)
    torch.testing.assert_close(attention.step(c.batch).attend(0, c.query, c.scale), c.expected, **TIGHT)
    assert attention.plan([50, 60], [1, LARGE + 1]).unpooled == (0, 1)


def test_ancestors_of_a_tree():
    assert ancestors((-1, 0, 0, 2, -1)).int().tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 0, 1, 1, 0], [0, 0, 0, 0, 1]]
