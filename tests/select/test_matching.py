"""Who gets whom: against all assignments there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spin_core.select import AffineCost, PassCost, match, shares

weights = st.integers(1, 5).flatmap(lambda b: st.lists(
    st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=b, max_size=b))


@given(weights, st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_the_matching_is_the_best_of_all_that_keep_to_capacities(rows, room):
    rows, room = np.array(rows), np.array([*room[:2], 0])
    arms = match(rows, room, free=2)

    def worth(choice):
        return sum(rows[b, a] for b, a in enumerate(choice))

    allowed = [c for c in itertools.product(range(3), repeat=len(rows))
               if all(c.count(a) <= room[a] for a in (0, 1))]
    assert tuple(arms) in allowed
    assert worth(arms) == pytest.approx(max(map(worth, allowed)))


def test_weights_that_are_not_numbers_are_refused():
    with pytest.raises(ValueError, match="finite"):
        match(np.array([[np.nan, 0.0]]), np.array([1, 1]), free=1)


@given(st.sampled_from([AffineCost, PassCost]), st.lists(st.integers(0, 8), min_size=1, max_size=9),
       st.floats(1e-4, 10), st.lists(st.floats(1e-3, 2), min_size=4, max_size=4))
def test_shares_are_positive_and_sum_to_the_pass(kind, drafted, seconds, taken):
    cost = kind()
    for rows, took in zip((1, 4, 9, len(drafted)), taken):      # not even rising
        cost.learn(rows, took)
    plain, own = shares(drafted, seconds, cost)
    assert all(o == 0 for o, d in zip(own, drafted) if d == 0)
    parts = plain + own
    assert parts.sum() == pytest.approx(seconds)
    assert plain > 0 and (own >= -1e-12).all()
    assert all(parts[i] <= parts[j] + 1e-12 for i in range(len(drafted)) for j in range(len(drafted))
               if drafted[i] <= drafted[j])


def test_a_line_of_costs_is_learned_and_nonsense_is_not():
    cost = AffineCost()
    assert cost(10) == 0
    for rows in (1, 8, 40, 8, 16):
        cost.learn(rows, 2.0 + 0.5 * rows)
        for nonsense in (np.nan, np.inf, -1.0, 0.0):
            cost.learn(rows, nonsense)
    assert cost.line == pytest.approx((2.0, 0.5))
    np.testing.assert_allclose(cost(np.array([1, 100])), [2.5, 52])


def test_where_passes_are_seen_often_their_mean_counts_and_elsewhere_the_line():
    rng, curve = np.random.default_rng(0), {2: 0.117, 4: 0.153, 6: 0.160, 12: 0.19}     # costly second pair of rows
    line, cost = AffineCost(), PassCost()
    for rows in rng.permutation(list(curve) * 100).tolist():
        took = curve[rows] * rng.uniform(.95, 1.05)
        line.learn(rows, took)
        cost.learn(rows, took)
    assert all(cost(rows) == pytest.approx(took, rel=.02) for rows, took in curve.items())
    assert line(2) > 1.05 * curve[2]        # plain decoding would look dearer than it is, so every draft cheaper
    assert cost(9) == pytest.approx(line(9))
    for _ in range(500):                    # another program begins beside it
        cost.learn(4, 0.3)
    assert cost(4) == pytest.approx(0.3, rel=.02)
