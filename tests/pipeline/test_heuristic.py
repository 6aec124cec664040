"""The heuristic on deterministic clocks: what it chooses, what trying costs, and what it makes of changing loads."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from spin_core.pipeline.heuristic import BUDGET_SHARE, Heuristic, Load
from spin_core.lab.simulate.micro_batches import split_time, steady

EIGHT = Load(8, 100, {"a": 8})
LOSING = [10, 6, 5, 4, 3, 2.5, 2.2, 2]


def serve(heuristic: Heuristic, curve, rounds: int, load: Load = EIGHT, noise: float = 0.0, seed: int = 0,
          stages=None) -> tuple[float, float]:
    """Serve rounds whose throughput, in requests per second, is ``curve[count - 1]``.

    Returns the seconds that it took, and that the best count of the curve would have taken.
    """
    dice, spent = random.Random(seed), 0.0
    best = max(curve[:min(load.batch, heuristic.most)])
    for _ in range(rounds):
        seconds = load.batch / curve[heuristic.count - 1] / max(0.2, dice.gauss(1, noise))
        spent += seconds
        heuristic.observe(load, load.batch, seconds, spent, stages(heuristic.count) if stages else None)
    return spent, rounds * load.batch / best


@st.composite
def unimodal(draw) -> list[float]:
    """Any curve that rises, by whatever steps, to one top and then falls."""
    steps = draw(st.lists(st.floats(0, 0.4), min_size=7, max_size=7))
    top = draw(st.integers(0, 7))
    curve = [100.0]
    for i, step in enumerate(steps):
        curve.append(curve[-1] * (1 + step if i < top else 1 / (1 + step)))
    return curve


# ---- what it chooses

@settings(max_examples=80, deadline=None, derandomize=True)
@given(unimodal(), st.sampled_from([0.0, 0.01, 0.02, 0.03]), st.integers(0, 2**20))
def test_within_three_percent_of_the_best_fixed_count(curve, noise, seed):
    heuristic = Heuristic(8)
    serve(heuristic, curve, 800, noise=noise, seed=seed)
    chosen = heuristic._now.count
    assert curve[chosen - 1] >= 0.97 * max(curve)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.floats(0.2, 5), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**20))
def test_on_the_curves_of_the_two_stage_pipeline(draft, draft_fixed, verify_fixed, seed):
    shares = [[len(range(i, 8, m)) / 8 for i in range(m)] for m in range(1, 9)]
    curve = [8 / steady(split_time(draft, draft_fixed, parts), split_time(1, verify_fixed, parts)) for parts in shares]
    heuristic = Heuristic(8)
    serve(heuristic, curve, 800, noise=0.02, seed=seed)
    rising = next((m for m in range(1, 8) if curve[m] < curve[m - 1] * 0.97), 8)
    assert curve[heuristic._now.count - 1] >= 0.97 * max(curve[:rising]), "the best before the first clear fall"


def test_it_climbs_one_by_one_and_stops_just_before_the_fall():
    heuristic, curve = Heuristic(9), [10, 12, 14, 15, 13, 20, 20, 20, 20]
    serve(heuristic, curve, 200)
    assert heuristic.count == 4
    climb = heuristic.decisions[:6]
    assert [d.count for d in climb] == [1, 2, 3, 4, 5, 4], "six was never tried"
    assert [d.why for d in climb] == ["start with one", *["try one more"] * 4, "more is worse"]
    assert climb[-1].throughput == pytest.approx({1: 10, 2: 12, 3: 14, 4: 15, 5: 13})


def test_where_nothing_is_gained_one_is_enough():
    for curve, noise in (([10] * 8, 0.0), ([10] * 8, 0.01), (LOSING, 0.02)):
        heuristic = Heuristic(8)
        serve(heuristic, curve, 1000, noise=noise)
        assert heuristic._now.count == 1


def test_a_flat_stretch_does_not_end_the_climb():
    heuristic = Heuristic(8)
    serve(heuristic, [10, 10, 10, 14, 14, 9, 9, 9], 300)
    assert heuristic._now.count == 4


def test_it_comes_down_again_when_the_machine_has_changed():
    heuristic = Heuristic(8)
    serve(heuristic, [10, 14, 12, 9, 9, 9, 9, 9], 200)
    assert heuristic._now.count == 2
    serve(heuristic, [10, 9, 8, 7, 6, 5, 4, 3], 400)
    assert heuristic._now.count == 1
    assert "try one fewer" in [d.why for d in heuristic.decisions]


# ---- what trying costs

@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(0.03, 0.6), st.sampled_from([0.0, 0.02, 0.05]), st.integers(20, 3000), st.integers(0, 2**20))
def test_where_pipelining_does_not_pay_it_costs_next_to_nothing(loss, noise, rounds, seed):
    """A bound on the regret: the share of the time that may be tried with, and one trial beyond."""
    heuristic, curve = Heuristic(8), [10 * (1 - loss) ** m for m in range(8)]
    dice, regret, spent = random.Random(seed), 0.0, 0.0
    for _ in range(rounds):
        mean = 8 / curve[heuristic.count - 1]
        regret += mean - 8 / curve[0]
        spent += mean
        heuristic.observe(EIGHT, 8, mean / max(0.2, dice.gauss(1, noise)), spent)
    one_trial = (64 + 1) * 0.8 * 0.03 / 0.97 + 4 * 0.8 * loss / (1 - loss)
    assert regret <= 1.2 * BUDGET_SHARE * spent + one_trial
    if not noise and not heuristic._trial:
        assert heuristic.lost == pytest.approx(regret) and heuristic.served == pytest.approx(spent)
    if rounds < 90:
        assert regret == 0, "so short a service is not tried with"


def test_trials_in_vain_become_rare():
    heuristic, trials = Heuristic(8), []
    for _ in range(4):
        before = len(heuristic.decisions)
        serve(heuristic, LOSING, 2000, noise=0.02, seed=len(trials))
        trials.append(sum(d.why.startswith("try") for d in heuristic.decisions[before:]))
    assert trials[0] <= 8 and trials[-1] <= 2, "at most one in a thousand rounds in the end"


def test_a_hopeless_trial_ends_after_three_rounds():
    heuristic = Heuristic(8)
    serve(heuristic, LOSING, 150)
    began, ended = (next(d.time for d in heuristic.decisions if d.why == why)
                    for why in ("try one more", "more is worse"))
    assert ended - began == pytest.approx(3 * 8 / LOSING[1])


def test_changing_loads_cost_no_more_than_a_steady_one():
    """Short runs, one to sixteen requests at once, short and long contexts, one drafter or two: nowhere it pays."""
    heuristic, dice = Heuristic(16), random.Random(5)
    spent = best = 0.0
    for _ in range(400):
        batch = dice.choice([1, 2, 3, 5, 8, 12, 16])
        load = Load(batch, dice.choice([50, 200, 800, 2000]), dice.choice([{"a": batch}, {"b": batch}]))
        took, could = serve(heuristic, LOSING + [1] * 8, dice.randint(3, 40), load, 0.03, dice.randint(0, 2**20))
        spent, best = spent + took, best + could
    trials = sum(d.why.startswith("try") for d in heuristic.decisions)
    assert trials > 3, "or this would test nothing"
    assert spent <= 1.04 * best


def test_one_hiccup_of_the_machine_changes_nothing():
    heuristic, curve = Heuristic(8), [10, 14, 12, 9, 9, 9, 9, 9]
    for i in range(400):
        slow = 20 if i % 9 == 4 else 1
        heuristic.observe(EIGHT, 8, slow * 8 / curve[heuristic.count - 1])
    assert heuristic._now.count == 2


# ---- the veto

def stage_clock(draft: float, verify: float, fixed: float):
    """A machine whose stages take so long for eight requests: (its curve, the sums of its stages by count)."""
    def times(m):
        return [split_time(s, fixed, [1 / m] * m) for s in (draft, verify)]
    return [8 / steady(*times(m)) for m in range(1, 9)], lambda m: tuple(map(sum, times(m)))


def test_with_nothing_to_hide_nothing_is_tried():
    heuristic = Heuristic(8)
    curve, stages = stage_clock(0.001, 0.1, 0.0)
    spent, best = serve(heuristic, curve, 3000, stages=stages)
    assert {d.count for d in heuristic.decisions} == {1} and spent == pytest.approx(3000 * 8 / curve[0])
    assert [d.why for d in heuristic.decisions] == ["start with one", "one more gains 1% at most"]


def test_passes_over_fewer_requests_tell_that_cutting_does_not_pay():
    """Verifying four takes 90 % of verifying eight: twice that is more than drafting and one pass over eight."""
    curve, stages = stage_clock(0.02, 0.1, 0.8)
    ignorant, informed = Heuristic(8), Heuristic(8)
    four = Load(4, 100, {"a": 4})
    serve(informed, [4 / 0.108] * 8, 40, four, stages=lambda m: (0.018, 0.09))
    for heuristic in (ignorant, informed):
        serve(heuristic, curve, 500, stages=stages)
    assert any(d.why == "try one more" for d in ignorant.decisions)
    assert "one more can only lose" in [d.why for d in informed.decisions]
    assert informed.count == 1 and not any(d.why.startswith("try") for d in informed.decisions)


def test_the_veto_never_keeps_from_a_gain():
    for draft, verify, fixed in ((0.05, 0.1, 0.2), (0.1, 0.1, 0.0), (0.2, 0.1, 0.1), (0.1, 0.1, 0.5)):
        curve, stages = stage_clock(draft, verify, fixed)
        heuristic = Heuristic(8)
        for batch in (1, 2, 3, 4, 6):       # all that can be known
            share = fixed + (1 - fixed) * batch / 8
            seconds = share * (draft + verify)
            serve(heuristic, [batch / seconds] * 8, 30, Load(batch, 100, {"a": batch}),
                  stages=lambda m: (share * draft, share * verify))
        serve(heuristic, curve, 400, stages=stages)
        assert curve[heuristic._now.count - 1] >= 0.97 * max(curve)


def test_where_much_could_be_gained_the_first_trial_comes_early():
    for draft, tried in ((0.1, True), (0.01, False)):
        curve, stages = stage_clock(draft, 0.1, 0.0)
        heuristic = Heuristic(8)
        serve(heuristic, curve, 40, stages=stages)
        assert heuristic.count == (2 if tried else 1)
    heuristic = Heuristic(8)
    serve(heuristic, LOSING, 80, stages=lambda m: (0.4 * m, 0.4))       # it promises much, and does not keep it
    assert [d.why for d in heuristic.decisions] == ["start with one", "try one more", "more is worse"], "on credit once"


def test_a_busy_target_cannot_be_busier():
    heuristic, stages = Heuristic(8), {1: (0.05, 0.1), 2: (0.05, 0.1)}
    serve(heuristic, [8 / 0.15, 8 / 0.1, *[1] * 6], 300, stages=lambda m: stages[m])
    assert heuristic.count == 2 and max(d.count for d in heuristic.decisions) == 2
    assert "one more gains 0% at most" in [d.why for d in heuristic.decisions]


# ---- loads

@pytest.mark.parametrize("changed", [Load(5, 100, {"a": 5}), Load(8, 400, {"a": 8}), Load(8, 100, {"a": 4, "b": 4})])
def test_another_load_is_tried_anew_from_where_the_last_one_stood(changed):
    heuristic, first, then = Heuristic(8), [10, 14, 12, 9, 9, 9, 9, 9], [10, 12, 15, 11, 9, 9, 9, 9]
    serve(heuristic, first, 300)
    assert heuristic.count == 2
    told = len(heuristic.decisions)
    assert not heuristic.observe(Load(8, 130, {"a": 7, "b": 1}), 8, 8 / 14), "nearly the same load"
    heuristic.observe(changed, changed.batch, 1.0)
    assert heuristic.count == 2 and heuristic.decisions[told:] == []
    serve(heuristic, then, 400, changed)
    assert heuristic._now.count == 3
    assert heuristic.observe(EIGHT, 8, 0.5) and heuristic.count == 2, "this one it remembers"
    assert heuristic.decisions[-1].why == "another load"


def test_short_runs_add_up():
    """Twenty rounds of eight requests, then one request is left for a while, and so on: it finds what pays."""
    heuristic, curve = Heuristic(8), [10, 14, 12, 9, 9, 9, 9, 9]
    for _ in range(20):
        serve(heuristic, curve, 20)
        serve(heuristic, [10] * 8, 5, Load(1, 100, {"a": 1}))
    serve(heuristic, curve, 1)
    assert heuristic.count == 2


def test_no_more_micro_batches_than_requests():
    heuristic = Heuristic(8)
    serve(heuristic, [10, 20, 30, 40, 50, 60, 70, 80], 300, Load(3))
    assert heuristic.count == 3 and max(d.count for d in heuristic.decisions) == 3
    heuristic = Heuristic(1)
    serve(heuristic, [10], 300)
    assert heuristic.count == 1


def test_memory_does_not_grow_with_the_loads():
    heuristic = Heuristic(4)
    for i in range(1000):
        heuristic.observe(Load(4, 100, {f"drafter {i}": 4}), 4, 0.1)
    assert len(heuristic._known) <= 64 and len(heuristic.decisions) == 1


def test_impossible_settings_are_refused():
    for wrong in (dict(most=0), dict(most=4, least=1), dict(most=4, least=9, enough=3)):
        with pytest.raises(ValueError):
            Heuristic(**wrong)


def test_where_no_request_drafts_noise_promises_nothing():
    """Rounds that are all verification, on a machine whose speed comes and goes by a tenth and more."""
    rng = np.random.default_rng(0)
    heuristic = Heuristic(8)
    for _ in range(600):
        seconds = 0.1 * rng.normal(1, 0.12)
        heuristic.observe(Load(8, 100.0, {"none": 8}), 8, seconds, stages=(0.0, 0.99 * seconds))
        assert heuristic.count == 1
