"""Who gets whom: against all assignments there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spin_core.select import AffineCost, match, shares

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


@given(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.floats(1e-4, 10), st.floats(0, 1), st.floats(0, 1))
def test_shares_are_positive_and_sum_to_the_pass(drafted, seconds, fixed, slope):
    cost = AffineCost()
    for rows in (1, 4, 9):
        cost.learn(rows, fixed + slope * rows)
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
