"""The heuristic on synthetic throughput curves with noise, and its second thoughts when the load changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st

from spin_core.pipeline.heuristic import Heuristic, Load
from spin_core.pipeline.schedule import throughput

EIGHT = Load(8, 100, {"a": 8})


def settle(heuristic: Heuristic, curve, load: Load = EIGHT, noise: float = 0.0, seed: int = 0, rounds: int = 5000) -> int:
    """Feed the heuristic with a curve (requests per second by count) until it has settled; its choice."""
    dice = random.Random(seed)
    for _ in range(rounds):
        rate = curve[heuristic.count - 1] * max(0.2, dice.gauss(1, noise))
        heuristic.observe(load, load.batch, load.batch / rate)
        if heuristic.settled:
            return heuristic.count
    raise AssertionError("it never settled")


@st.composite
def unimodal(draw) -> list[float]:
    """Any curve that rises, by whatever steps, to one top and then falls."""
    steps = draw(st.lists(st.floats(0, 0.4), min_size=7, max_size=7))
    top = draw(st.integers(0, 7))
    curve = [100.0]
    for i, step in enumerate(steps):
        curve.append(curve[-1] * (1 + step if i < top else 1 / (1 + step)))
    return curve


@settings(max_examples=300, deadline=None, derandomize=True)
@given(unimodal(), st.sampled_from([0.0, 0.01, 0.02, 0.03]), st.integers(0, 2**20))
def test_within_three_percent_of_the_best_fixed_count(curve, noise, seed):
    chosen = settle(Heuristic(8), curve, noise=noise, seed=seed)
    assert curve[chosen - 1] >= 0.97 * max(curve)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(0.2, 5), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**20))
def test_on_the_curves_of_the_two_stage_pipeline(draft, draft_fixed, verify_fixed, seed):
    curve = [8 * throughput(draft, 1, m, draft_fixed=draft_fixed, verify_fixed=verify_fixed, batch=8)
             for m in range(1, 9)]
    chosen = settle(Heuristic(8), curve, noise=0.02, seed=seed)
    rising = next((m for m in range(1, 8) if curve[m] < curve[m - 1] * 0.97), 8)
    assert curve[chosen - 1] >= 0.97 * max(curve[:rising]), "the best before the first clear fall"


def test_it_climbs_one_by_one_and_stops_just_before_the_fall():
    heuristic = Heuristic(9)
    assert settle(heuristic, [10, 12, 14, 15, 13, 20, 20, 20, 20]) == 4
    tried = [d.count for d in heuristic.decisions]
    assert tried == [1, 2, 3, 4, 5, 4], "six was never tried"
    assert heuristic.decisions[0].why == "start with one" and heuristic.decisions[-1].why == "more is worse"
    assert heuristic.decisions[-1].throughput == {1: 10, 2: 12, 3: 14, 4: 15, 5: 13}


def test_where_nothing_is_gained_one_is_enough():
    assert settle(Heuristic(8), [10] * 8) == 1
    assert settle(Heuristic(8), [10, 9, 8, 7, 6, 5, 4, 3]) == 1
    assert settle(Heuristic(8), [10] * 8, noise=0.005, seed=3) == 1


def test_a_flat_stretch_does_not_end_the_climb():
    assert settle(Heuristic(8), [10, 10, 10, 14, 14, 9, 9, 9]) == 4


@pytest.mark.parametrize("changed", [Load(6, 100, {"a": 6}), Load(8, 250, {"a": 8}), Load(8, 100, {"a": 5, "b": 3})])
def test_another_load_is_probed_anew(changed):
    heuristic = Heuristic(8)
    assert settle(heuristic, [10, 14, 12, 9, 9, 9, 9, 9]) == 2
    rate = [10, 14, 12, 9, 9, 9, 9, 9][1]
    assert not heuristic.observe(Load(8, 130, {"a": 7, "b": 1}), 8, 8 / rate), "nearly the same load"
    assert heuristic.settled and heuristic.count == 2
    assert heuristic.observe(changed, changed.batch, 1.0) and heuristic.count == 1 and not heuristic.settled
    assert settle(heuristic, [10, 12, 15, 11, 9, 9, 9, 9], load=changed) == 3
    assert [d.why for d in heuristic.decisions if d.count == 1] == ["start with one", "the load has changed: start again"]
    assert heuristic.observe(EIGHT, 8, 0.5) and heuristic.count == 2 and heuristic.settled, "this one it remembers"
    assert heuristic.decisions[-1].why == "the load is one we know"


def test_a_climb_that_was_cut_short_goes_on_when_the_load_comes_back():
    """Short runs: twenty rounds of eight requests, then one request is left for a while."""
    heuristic, curve, runs = Heuristic(8), [10, 14, 12, 9, 9, 9, 9, 9], 0
    while not (heuristic.settled and heuristic.count == 2):
        for _ in range(20):
            heuristic.observe(EIGHT, 8, 8 / curve[heuristic.count - 1])
        if heuristic.settled:
            break
        for _ in range(5):
            heuristic.observe(Load(1, 100, {"a": 1}), 1, 0.1)
        runs += 1
        assert runs < 10
    assert heuristic.count == 2 and runs > 0


def test_no_more_micro_batches_than_requests():
    heuristic = Heuristic(8)
    assert settle(heuristic, [10, 20, 30, 40, 50, 60, 70, 80], load=Load(3)) == 3
    assert max(d.count for d in heuristic.decisions) == 3
    assert settle(Heuristic(1), [10]) == 1


def test_one_hiccup_of_the_machine_changes_nothing():
    heuristic, curve = Heuristic(8), [10, 14, 12, 9, 9, 9, 9, 9]
    for i in range(200):
        slow = 20 if i % 9 == 4 else 1
        heuristic.observe(EIGHT, 8, slow * 8 / curve[heuristic.count - 1])
    assert heuristic.settled and heuristic.count == 2


def test_impossible_settings_are_refused():
    for wrong in (dict(most=0), dict(most=4, least=1), dict(most=4, least=9, enough=3)):
        with pytest.raises(ValueError):
            Heuristic(**wrong)
