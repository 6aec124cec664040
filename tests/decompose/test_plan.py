"""The plan: what it covers, what it costs, what it refuses, how it explains itself."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ragged_cases import COSTS

from spin_core.decompose import STRATEGIES, Plan, plan
from spin_core.decompose.calibrate import fit
from spin_core.decompose.costs import FIELDS, Costs, Heads, features
from spin_core.decompose.plan import LARGE, MARGIN, NARROWEST, cut
from spin_core.lab.plans import cheapest_width

BATCHES = st.lists(st.tuples(st.integers(0, 700), st.integers(0, 20)), min_size=1, max_size=12)
SKEWED = [1200] + [90, 100, 110, 95, 105] * 3


def counted(plan: Plan, heads: Heads) -> np.ndarray:
    """How often a plan is charged each constant of its costs, in the order of ``FIELDS``, counted one by one."""
    row = dict.fromkeys(FIELDS, 0.0) | {"step_call": 1.0, "unpooled_step": float(bool(plan.unpooled))}
    for b in plan.unpooled:
        keys, rows = heads.kv * plan.lengths[b], plan.q_lens[b] * heads.group
        row["unpooled_call"] += 1
        row["unpooled_key"] += keys
        row["unpooled_score"] += keys * rows
        row["unpooled_query"] += heads.kv * rows
    for pool in plan.pools:
        rows, keys = pool.queries * heads.group, heads.kv * len(pool.pieces) * pool.width
        merged = sum(n for n in Counter(piece.request for piece in pool.pieces).values() if n > 1)
        row["pool_call"] += 1
        row["pool_width"] += pool.width
        row["pool_key"] += keys
        row["pool_score"] += keys * rows
        row["pool_query"] += heads.kv * len(pool.pieces) * rows
        row["merge_call"] += merged > 0
        row["merge_query"] += heads.kv * merged * rows
    return np.array([row[name] for name in FIELDS])


def seconds(made: Plan, costs: Costs) -> float:
    return float(counted(made, Heads(costs.kv, costs.group)) @ [getattr(costs, name) for name in FIELDS])


@settings(max_examples=150, deadline=None)
@given(BATCHES, st.sampled_from(STRATEGIES), st.sampled_from([None, COSTS]), st.sampled_from([None, 1, 7, 64]))
def test_every_key_of_every_asking_request_is_covered_once(batch, strategy, costs, width):
    q_lens = [q for _, q in batch]
    lengths = [prefix + q for prefix, q in batch]
    made = plan(lengths, q_lens, strategy, costs=costs, width=width)
    covered = [np.zeros(length, dtype=int) for length in lengths]
    for piece in made.pieces:
        assert piece.size > 0
        covered[piece.request][piece.start:piece.stop] += 1
    for q, keys in zip(q_lens, covered):
        assert (keys == (q > 0)).all()
    indicator = made.indicator
    assert indicator.shape == (len(batch), len(made.pieces)) and (indicator.sum(0) == 1).all()
    assert made.kv_true == sum(length for length, q in zip(lengths, q_lens) if q)
    assert made.kv_touched >= made.kv_true and made.q_touched >= sum(q_lens)
    for pool in made.pools:
        owners = [piece.request for piece in pool.pieces]
        sizes = [owners.count(b) for b in pool.requests]
        assert sizes == sorted(sizes, reverse=True), "requests in several pieces come first"
        neighbours = [b for b, n in zip(pool.requests, sizes) for _ in range(n)]
        assert owners == neighbours, "a request's pieces are neighbours"
        assert pool.queries == max(q_lens[b] for b in owners)
        if strategy != "padded":
            assert pool.queries <= LARGE


@given(st.integers(1, 3000), st.integers(1, 600))
def test_pieces_are_as_equal_as_can_be(length, width):
    sizes = [piece.size for piece in cut(0, length, width)]
    assert sum(sizes) == length and max(sizes) <= width and max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-length // width)


def test_the_strategies_are_what_their_names_say():
    lengths, q_lens = [40, 300, 40, 41], [5, 5, 5, 5]
    padded = plan(lengths, q_lens, "padded")
    assert padded.width == 300 and padded.kv_touched == 1200 and not padded.unpooled
    grouped = plan(lengths, q_lens, "grouped")
    assert [pool.requests for pool in grouped.pools] == [(0, 2)] and set(grouped.unpooled) == {1, 3}
    assert grouped.kv_touched == grouped.kv_true
    pieces = plan(lengths, q_lens, "decomposed", width=50)
    assert pieces.width == 50 and not pieces.unpooled and len(pieces.pieces) == 9
    assert plan(lengths, q_lens, "per-request").unpooled == (0, 1, 2, 3)


def test_drafts_of_other_lengths_are_other_groups():
    assert not plan([40, 40], [5, 4], "grouped").pools


@pytest.mark.parametrize("strategy", ["grouped", "decomposed", "auto"])
def test_a_request_that_reads_a_prompt_stays_alone(strategy):
    made = plan([600, 40, 40], [512, 5, 5], strategy, costs=COSTS)
    assert 0 in made.unpooled and all(0 not in pool.requests for pool in made.pools)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(5, 900), min_size=1, max_size=16), st.integers(1, 5))
def test_the_chosen_width_is_the_cheapest_of_all_widths(lengths, q):
    """The search weighs a few widths; against every width there is, it must lose nothing worth speaking of."""
    q_lens = [q] * len(lengths)
    made = plan(lengths, q_lens, "decomposed", costs=COSTS)
    assert made.seconds == pytest.approx(seconds(made, COSTS))
    assert made.seconds == pytest.approx(min(made.considered.values()), rel=1e-6)
    everything = min(seconds(plan(lengths, q_lens, "decomposed", width=w), COSTS)
                     for w in range(min(16, max(lengths)), max(lengths) + 1, 11))
    assert made.seconds <= everything * 1.01


def weighed(lengths: list[int], q_lens: list[int], costs: Costs, may_stay: bool) -> dict[int, float]:
    """Keys in the widest piece -> seconds of a layer, one width and one request after the other: by the textbook what
    the planner does at once."""
    distinct, most = sorted(set(lengths)), max(2, min(32, max(lengths) // NARROWEST))
    if len(distinct) > 16:
        distinct = [distinct[int(i)] for i in np.linspace(0, len(distinct) - 1, 16)]
    alone, out = [costs.unpooled(n, q) for n, q in zip(lengths, q_lens)], {}
    for width in sorted({-(-n // k) for n in distinct for k in range(1, most + 1)}):
        if width < min(NARROWEST, max(lengths)):
            continue
        sizes = [[p.size for p in cut(0, n, width)] for n in lengths]
        wide = max(map(max, sizes))
        pooled = [costs.pool(len(own), wide, max(q_lens)) for own in sizes]
        leaves = [p >= a for p, a in zip(pooled, alone)]
        out[wide] = min(costs.step_call + costs.unpooled_step * any(left) + costs.calls(
            not all(left), any(len(own) > 1 for own, gone in zip(sizes, left) if not gone), wide)
            + sum(a if gone else p for a, p, gone in zip(alone, pooled, left))
            for left in ([False] * len(lengths), leaves)[:1 + may_stay])
    return out


DEVICES = [COSTS] + [Costs(**(vars(COSTS) | {name: factor * getattr(COSTS, name)})) for name, factor in
                     (("merge_call", 30), ("pool_key", 3), ("unpooled_call", 0), ("pool_query", 0), ("merge_query", 9))]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(LARGE, 900) | st.integers(LARGE, 40), st.integers(1, LARGE)), min_size=1,
                max_size=30), st.sampled_from(DEVICES))
@example([(16, 1), (16, 1), (16, 1), (16, 12)], COSTS)         # where a group of equal requests is the cheapest
def test_the_search_finds_what_the_textbook_finds(batch, costs):
    lengths, q_lens = (list(column) for column in zip(*batch))
    for strategy in ("decomposed", "auto"):
        made = plan(lengths, q_lens, strategy, costs=costs)
        expected = weighed(lengths, q_lens, costs, strategy == "auto")
        assert made.considered == pytest.approx(expected, rel=1e-12, abs=0)
        assert made.seconds == pytest.approx(seconds(made, costs), rel=1e-12)
        if strategy == "decomposed":
            assert expected[made.width] <= min(expected.values()) * (1 + 1e-12)
            assert made.seconds == pytest.approx(min(expected.values()), rel=1e-12)
            assert cheapest_width(np.array(lengths), max(q_lens), costs) == made.width


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(9, 900), min_size=1, max_size=16), st.sampled_from([1, 3, 9]))
def test_auto_is_no_dearer_than_any_strategy(lengths, q):
    plans = {name: plan(lengths, [q] * len(lengths), name, costs=COSTS) for name in STRATEGIES}
    for name, made in plans.items():
        assert made.seconds == pytest.approx(seconds(made, COSTS)), name
        assert plans["auto"].seconds <= made.seconds / MARGIN ** 2, name


def test_a_skewed_batch_touches_hardly_more_than_it_needs():
    made = plan(SKEWED, [5] * len(SKEWED), "decomposed", costs=COSTS)
    assert made.kv_touched <= 1.1 * made.kv_true
    assert made.kv_touched < 0.2 * max(SKEWED) * len(SKEWED)
    assert plan(SKEWED, [5] * len(SKEWED), "decomposed").kv_touched <= 1.1 * made.kv_true


def test_costs_move_the_width():
    """Free merging and copying make pieces narrow; dear ones leave requests whole."""
    lengths, q_lens = [900, 880, 100, 60], [5] * 4
    cheap = Costs(**(vars(COSTS) | dict(merge_call=0.0, merge_query=0.0, pool_query=0.0)))
    dear = Costs(**(vars(COSTS) | dict(merge_call=1.0)))
    assert plan(lengths, q_lens, "decomposed", costs=dear).width == 900
    assert plan(lengths, q_lens, "decomposed", costs=cheap).width < 150


@settings(max_examples=40, deadline=None)
@given(BATCHES, st.sampled_from(STRATEGIES), st.sampled_from([None, 7, 64]))
def test_what_a_plan_costs_is_linear_in_the_constants(batch, strategy, width):
    made = plan([prefix + q for prefix, q in batch], [q for _, q in batch], strategy, costs=COSTS, width=width)
    assert features(made, Heads(2, 3)).tolist() == counted(made, Heads(2, 3)).tolist()


def test_a_fit_recovers_the_constants_it_was_made_from():
    plans = [plan([length] * count, [q] * count, strategy, width=width)
             for q in (1, 5, 9) for count, length, strategy, width in
             [(4, 24, "per-request", None), (4, 800, "per-request", None), (1, 24, "per-request", None),
              (2, 24, "padded", None), (9, 300, "padded", None),
              (16, 100, "padded", None), (2, 1000, "decomposed", 100), (8, 300, "decomposed", 150)]]
    plans += [plan([1000] + [100] * 7, [q] * 8, "grouped") for q in (1, 5)]         # somebody alone beside a pool
    found = fit(plans, [seconds(p, COSTS) for p in plans], Heads(3, 3))
    for name in FIELDS:
        assert getattr(found, name) == pytest.approx(getattr(COSTS, name), rel=1e-3, abs=1e-12), name


@pytest.mark.parametrize("requests, longest", [(16, 1500), (200, 100_000)])
def test_planning_weighs_a_bounded_number_of_widths(requests, longest):
    """What it takes is measured by the benchmark (plan_us); here, that it does not grow with the batch."""
    lengths = np.random.default_rng(0).integers(50, longest, requests).tolist()
    assert 100 < len(plan(lengths, [5] * requests, "auto", costs=COSTS).considered) <= 16 * 32


def test_the_words_say_what_the_plan_does():
    words = plan(SKEWED, [5] * len(SKEWED), "decomposed", costs=COSTS).describe()
    assert "16 requests, 2700 keys for 80 queries" in words
    assert "a padded batch would touch 19200" in words and "widths weighed" in words and "predicted" in words
    alone = plan([30, 50], [1, 2], "per-request").describe()
    assert "2 requests read whole, where they are (0, 1)" in alone and "1.00 times" in alone


@pytest.mark.parametrize("lengths, q_lens, options, words", [
    ([], [], {}, "no requests"),
    ([3, 4], [1], {}, "2 lengths but 1 q_lens"),
    ([3, 4], [1, 5], {}, "request 1 has 5 queries among 4 keys"),
    ([3, -1], [1, 0], {}, "request 1"),
    ([3, 900], [1, 1], {"max_len": 512}, "request 1 attends 900 keys, but the cache holds 512"),
    ([3], [1], {"strategy": "fastest"}, "unknown verification strategy 'fastest'; known: auto, padded"),
    ([3], [1], {"width": 0}, "at least 1"),
])
def test_what_cannot_be_is_refused(lengths, q_lens, options, words):
    with pytest.raises(ValueError, match=words):
        plan(lengths, q_lens, **options)


def test_a_plan_without_queries():
    made = plan([5, 0], [0, 0], "decomposed", costs=COSTS)
    assert made.pieces == [] and made.width == 0 and made.kv_touched == 0
    assert "0 queries" in made.describe()
