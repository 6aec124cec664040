"""The simulator: nothing is lost, no limit is broken, and time adds up. Whatever the policy, text is the
recording's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spin_core.lab.schedule import DRAFT, VERIFY
from spin_core.select import make
from spin_core.lab.simulate.replay import replay
from spin_core.lab.simulate.acceptance import recording
from spin_core.lab.simulate.arrivals import bursty, poisson, times
from spin_core.lab.simulate.costs import Roofline, Tables, Verified
from spin_core.lab.simulate.profiles import DRAFTERS, HARDWARE, TARGETS
from spin_core.lab.simulate.simulator import simulate

V100, TARGET = HARDWARE["V100-32GB"], TARGETS["LLaMA-7B"]
COSTS = {(strategy, shared): Roofline(TARGET, DRAFTERS, V100, strategy=strategy, shared=shared)
         for strategy in ("padded", "decomposed") for shared in (False, True)}
PASSES = COSTS["padded", False].passes()
MIX = recording("Mix", 60, PASSES, seed=3)
SHORT = np.flatnonzero(MIX.lengths < 120)
POLICIES = ("none", "68M", "1.1B", "spin", "random")


def policy_of(name: str, seed: int = 0):
    return name if name in (*DRAFTERS, "none") else make(name, list(DRAFTERS), seed=seed)


def assert_sound(run, rec, batch: int) -> None:
    """Everybody was served whole, in order of arrival, within every limit; no device did two things at
    once."""
    assert run.tokens == rec.lengths.sum()
    assert np.isfinite(run.finished).all() and (run.admitted >= run.arrived).all()
    assert (run.finished > run.admitted).all()
    s = run.steps
    edges = np.concatenate([run.admitted, run.finished])
    order = np.lexsort((np.repeat([1, -1], len(rec)), edges))       # who leaves at a moment makes room at once
    assert np.repeat([1, -1], len(rec))[order].cumsum().max() <= batch
    assert (s["touched"] >= s["needed"]).all()
    assert (s["start"] <= s["drafted"]).all() and (s["drafted"] <= s["begin"] + 1e-12).all()
    assert (s["begin"] < s["end"]).all()
    assert (s["begin"][1:] >= s["end"][:-1] - 1e-12).all()          # one verification at a time
    for group in np.unique(s["group"]):                             # a draft continues what was committed
        mine = s["group"] == group
        assert (s["start"][mine][1:] >= s["end"][mine][:-1] - 1e-12).all()


def sequential_seconds(run) -> float:
    """What the same steps take one after another, drafters and target never side by side."""
    return float((run.steps["draft"] + run.steps["end"] - run.steps["begin"]).sum())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), policy=st.sampled_from(POLICIES), batch=st.integers(1, 9),
       strategy=st.sampled_from(("padded", "decomposed")), shared=st.booleans(), seed=st.integers(0, 99))
def test_conservation(data, policy, batch, strategy, shared, seed):
    rng = np.random.default_rng(seed)
    rec = MIX.take(rng.choice(SHORT, 12))
    arrivals = data.draw(st.sampled_from([None, poisson(12, 2.0, rng), bursty(12, 3.0, 4.0, rng)]))
    count = data.draw(st.one_of(st.integers(1, batch), st.just("auto")))
    run = simulate(rec, COSTS[strategy, shared], policy_of(policy, seed), batch=batch, micro_batches=count,
                   arrivals=arrivals, events=True)
    if count != "auto":
        assert_sound(run, rec, batch)
    emitted = np.bincount([e[1] for e in run.events], [e[4] + 1 for e in run.events])
    assert emitted.tolist() == rec.lengths.tolist()
    assert all(accepted <= drafted for *_, drafted, accepted in run.events)


@settings(max_examples=20, deadline=None)
@given(policy=st.sampled_from(("68M", "1.4B", "none")), groups=st.integers(1, 6), shared=st.booleans(),
       seed=st.integers(0, 99))
def test_pipelining_only_ever_hides_work(policy, groups, shared, seed):
    """The same steps, one after the other, take at least as long; on one shared device exactly as long."""
    rec = MIX.take(np.random.default_rng(seed).choice(len(MIX), 10))
    run = simulate(rec, COSTS["decomposed", shared], policy, batch=6, micro_batches=groups)
    assert run.seconds <= sequential_seconds(run) * (1 + 1e-9)
    if shared or groups == 1:
        assert run.seconds == pytest.approx(sequential_seconds(run))


def test_drafting_hides_behind_verification():
    rec = MIX.take(range(40))
    run = simulate(rec, COSTS["decomposed", False], "1.4B", batch=8, micro_batches=2)
    assert run.seconds < 0.8 * sequential_seconds(run)
    schedule = run.schedule()
    assert schedule.busy(VERIFY) == pytest.approx((run.steps["end"] - run.steps["begin"]).sum())
    assert schedule.busy_share(DRAFT) <= 1


@pytest.mark.parametrize("policy", ["none", "68M", "random"])      # SPIN chooses by time
def test_the_same_acceptance_whatever_the_hardware(policy):
    """Without selection by time, hardware changes the clock and nothing else."""
    slow = replace(V100, bandwidth=V100.bandwidth / 3)
    runs = [simulate(MIX, Roofline(TARGET, DRAFTERS, h), policy_of(policy), events=True) for h in (V100, slow)]
    assert runs[0].events == runs[1].events and runs[1].seconds > 1.5 * runs[0].seconds


def test_it_agrees_with_the_replay():
    """On one device, with measured passes and prompts of one token, which the replay's target does not
    read."""
    rec = replace(MIX, prompts=np.ones(len(MIX), int))
    for arm in ("68M", "1.1B", "none"):
        other = replay(rec, make(f"fixed:{arm}", list(DRAFTERS)), batch=5)
        run = simulate(rec, Tables(rec.passes), arm, batch=5)
        assert run.tokens == other.tokens
        assert run.seconds == pytest.approx(other.wall)


def test_a_fixed_selector_and_a_name_are_the_same():
    by_name = simulate(MIX, COSTS["padded", False], "616M", micro_batches=3)
    selected = simulate(MIX, COSTS["padded", False], make("fixed:616M", list(DRAFTERS)), micro_batches=3)
    assert by_name.seconds == pytest.approx(selected.seconds)
    assert by_name.request_steps == selected.request_steps


def test_selection_does_not_lose_to_the_worst_drafter_and_prefers_what_is_fast():
    fixed = {arm: simulate(MIX, COSTS["decomposed", False], arm).goodput for arm in DRAFTERS}
    spin = simulate(MIX, COSTS["decomposed", False], policy_of("spin"))
    assert spin.goodput > min(fixed.values())
    assert spin.served.get("1.4B", 0) < max(spin.served.values())


def test_switching_costs_a_reading():
    """Policies that draw anew at every step make every drafter read what it has missed."""
    steady, restless = (simulate(MIX, COSTS["decomposed", True], p) for p in ("1.1B", make("random", ["1.1B", "1.4B"])))
    per_step = [r.steps["draft"].sum() / r.steps["size"].sum() for r in (steady, restless)]
    assert per_step[1] > 1.2 * per_step[0]


def test_decomposition_saves_keys_and_time():
    padded, pieces = (simulate(MIX, COSTS[s, False], "68M") for s in ("padded", "decomposed"))
    assert pieces.padding < 0.5 * padded.padding
    assert pieces.seconds < padded.seconds


def test_load_500_requests_over_time_none_lost():
    rng = np.random.default_rng(0)
    short = np.flatnonzero(MIX.lengths < 80)
    rec = MIX.take(rng.choice(short, 500))
    for arrivals in (poisson(500, 20.0, rng), bursty(500, 20.0, 25.0, rng)):
        run = simulate(rec, COSTS["decomposed", False], policy_of("spin"), batch=8, micro_batches=2, arrivals=arrivals)
        assert_sound(run, rec, 8)
        assert (np.diff(run.admitted) >= -1e-12).all()      # first come, first served
        assert run.seconds >= arrivals[-1] - arrivals[0]


def test_arrivals_have_the_rate_they_promise():
    rng = np.random.default_rng(1)
    for arrived in (poisson(4000, 5.0, rng), bursty(4000, 5.0, 8.0, rng)):
        assert 4000 / arrived[-1] == pytest.approx(5.0, rel=0.15)
        assert (np.diff(arrived) >= 0).all()
    assert (np.diff(bursty(4000, 5.0, 8.0, rng)) == 0).mean() == pytest.approx(7 / 8, abs=0.03)


@pytest.mark.parametrize("wrong, message", [
    (dict(batch=0), "batch 0"), (dict(batch=2, micro_batches=3), "micro_batches 3"), (dict(gamma=-1), "gamma -1"),
    (dict(arrivals=[0.0]), "1 arrivals"), (dict(batch=1.5), "batch 1.5"),
    (dict(micro_batches=1.5), "micro_batches 1.5"), (dict(gamma=1.5), "gamma 1.5"),
    (dict(arrivals=[float("nan")] * len(MIX)), "finite times"), (dict(arrivals=[float("inf")] * len(MIX)), "finite"),
    (dict(arrivals=3.0), "1 arrivals"), (dict(capacities={"68M": 3}), "capacities need a selector"),
    (dict(policy=3), "the policy is"), (dict(policy=policy_of("spin"), capacities={"nope": 1}), "'nope' cannot have 1"),
    (dict(policy=policy_of("spin"), capacities={"68M": float("nan")}), "'68M' cannot have nan")])
def test_what_cannot_be_served_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        simulate(**{"recording": MIX, "costs": COSTS["padded", False], "policy": "68M"} | wrong)


@pytest.mark.parametrize("count, rate", [(2, 1e-320), (1.5, 1), (2, "x"), (2, float("nan")), (-1, 1)])
def test_arrivals_that_cannot_be_are_refused(count, rate):
    with pytest.raises(ValueError, match="arrivals: 'poisson'"):
        times("poisson", count, rate)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_seconds_of_a_verification_that_cannot_be_are_refused(seconds):
    costs = SimpleNamespace(shared=False, draft=lambda *_: 0.01, reading=lambda *_: 0.0,
                            verify=lambda *_: Verified(seconds, 1, 0))
    with pytest.raises(ValueError, match="a verification of 8 requests takes"):
        simulate(MIX, costs, "68M")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -0.01])
def test_seconds_of_a_draft_that_cannot_be_are_refused(seconds):
    costs = SimpleNamespace(shared=False, draft=lambda *_: seconds, reading=lambda *_: 0.0,
                            verify=lambda *_: Verified(0.01, 1, 0))
    with pytest.raises(ValueError, match="68M drafts for"):
        simulate(MIX, costs, "68M")


def test_no_arrivals_of_either_kind():
    assert len(times("bursty", 0, 1.0)) == len(times("poisson", 0, 1.0)) == 0
    with pytest.raises(ValueError, match="count"):
        times("poisson", -1, 1.0)


def test_unknown_drafters_are_refused():
    with pytest.raises(ValueError, match="'7B'"):
        simulate(MIX, COSTS["padded", False], "7B")
    with pytest.raises(ValueError, match="'else'"):
        simulate(MIX, COSTS["padded", False], make("fixed:else", ["else"]))
