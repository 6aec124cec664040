"""Replays are exact: against closed forms, against the engine's own chains, and against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from spin_core.lab.distill.evaluate import chain
from spin_core.select import NONE, make
from spin_core.lab.simulate.oracle import Planned, chain_counts, oracle_request, oracle_steps
from spin_core.lab.simulate.recording import MAX_GAMMA, Passes, Recording, chains, memory_bound
from spin_core.lab.simulate.replay import replay
from spin_core.lab.simulate.synthetic import synthetic

DISTRIBUTIONS = {"prose": {"a": .8, "b": .4}, "code": {"a": .3, "b": .85}}
COSTS = {"a": .05, "b": .1}


def record(order=("prose", "code") * 3, tokens=40, seed=0) -> Recording:
    return synthetic(DISTRIBUTIONS, COSTS, order, tokens=tokens, seed=seed)


def with_lookup(recording: Recording) -> Recording:
    """Drafter "b" is one that looks up and often finds nothing; "b+a" is composed."""
    rng = np.random.default_rng(1)
    proposed = recording.proposed.copy()
    proposed[1] = np.where(rng.random(proposed.shape[1]) < .6, 0, rng.integers(1, 9, proposed.shape[1]))
    found = Recording(recording.arms, np.minimum(recording.accepted, proposed), proposed, recording.starts,
                      recording.prompts, recording.workloads, recording.ids, recording.passes, ("b",))
    return found.compose("b+a", "b", "a")


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, MAX_GAMMA))
def test_recorded_chains_are_those_of_the_evaluation(hits, gamma):
    accepted, at, out = chains([hits]), 0, []
    while at < len(hits):
        drafted = min(gamma, len(hits) - at - 1)
        out.append((drafted, min(drafted, int(accepted[at]))))
        at += out[-1][1] + 1
    assert out == chain([hits], gamma)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99), st.integers(1, 8), st.integers(1, 5), st.sampled_from(["a", "b", "b+a", NONE]))
def test_a_fixed_policy_is_the_sum_over_its_chains(seed, gamma, batch, arm):
    recording = with_lookup(record(seed=seed))
    run = replay(recording, make(f"fixed:{arm}", recording.arms, gamma=gamma), batch=batch)
    assert np.bincount(run.request, run.emitted).tolist() == recording.lengths.tolist(), "every token is written once"
    if arm == NONE:
        assert not run.drafted.any() and len(run.step) == recording.lengths.sum()
        return
    steps, rows, _ = chain_counts(recording, recording.arms.index(arm), gamma)
    assert np.bincount(run.request).tolist() == steps.tolist()
    assert np.bincount(run.request, run.drafted).tolist() == rows.tolist()


def test_at_batch_one_seconds_are_those_of_the_passes():
    recording = record(order=("prose",), tokens=30)
    run = replay(recording, make("fixed:a", recording.arms, gamma=3), batch=1)
    steps, rows, passes = (x[0] for x in chain_counts(recording, 0, 3))
    target, draft = (recording.passes[n].table(300) for n in ("target", "a"))
    # every drafting pass is over one row, but the first also reads the prompt
    expected = target[1 + run.drafted].sum() + passes * draft[1] + draft[recording.prompts[0]] - draft[1]
    assert run.wall == pytest.approx(expected)
    assert run.seconds.sum() == pytest.approx(run.wall), "nothing is left that no request pays for"


# seconds, drafted tokens and steps of a replay with a loop of its own, before the simulator took its place; of "spin",
# which is told now what reading costs, nothing is held
SEPARATE_LOOP = [
    ('fixed:a', None, 4.284830252, 2890, 169),
    ('fixed:a', {'a': 2}, 5.579828198, 1660, 226),
    ('fixed:b+a', None, 3.394445005, 2261, 135),
    ('fixed:b+a', {'a': 2}, 3.394445005, 2261, 135),
    ('fixed:none', None, 6.273714286, 0, 310),
    ('fixed:none', {'a': 2}, 6.273714286, 0, 310),
    ('spin-full', None, 3.499419608, 2671, 130),
    ('spin-full', {'a': 2}, 4.127350887, 1601, 164),
    ('hedge', None, 4.551406536, 1917, 148),
    ('hedge', {'a': 2}, 4.662498039, 1992, 149),
    ('greedy', None, 4.085289636, 1650, 152),
    ('greedy', {'a': 2}, 4.061918581, 1712, 148),
    ('ucb', None, 3.951557423, 2256, 134),
    ('ucb', {'a': 2}, 4.060886088, 2239, 136),
    ('exp3', None, 4.320483473, 1972, 154),
    ('exp3', {'a': 2}, 4.321489636, 1972, 152),
]


@pytest.mark.parametrize("policy, capacities, wall, drafted, steps", SEPARATE_LOOP)
def test_the_simulator_replays_what_a_loop_of_its_own_did(policy, capacities, wall, drafted, steps):
    recording = with_lookup(record(order=("prose", "code") * 12, tokens=60))
    run = replay(recording, make(policy, recording.arms, seed=1), batch=5, capacities=capacities,
                 order=np.random.default_rng(0).permutation(len(recording)))
    assert (run.wall, run.drafted.sum(), len(run.step_seconds)) == (pytest.approx(wall), drafted, steps)


@pytest.mark.parametrize("policy", ["spin", "spin-full", "hedge", "random", "ucb"])
def test_shares_of_a_step_sum_to_the_step_and_capacities_hold(policy):
    recording = with_lookup(record())
    run = replay(recording, make(policy, recording.arms), batch=4, capacities={"a": 1})
    assert np.bincount(run.step, run.seconds) == pytest.approx(run.step_seconds)
    assert np.bincount(run.request, run.emitted).tolist() == recording.lengths.tolist()
    assert np.bincount(run.step[run.arm == 0]).max() <= 1


def test_a_replay_is_determined_by_its_seed():
    recording = record()
    for policy in ("spin", "random", "exp3"):
        one, same, other = (replay(recording, make(policy, recording.arms, seed=s), batch=3) for s in (1, 1, 2))
        assert one.arm.tolist() == same.arm.tolist() and one.wall == same.wall
        assert one.arm.tolist() != other.arm.tolist()


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99))
def test_the_ceilings_are_in_order(seed):
    recording = record(seed=seed, tokens=30)
    gammas = {"a": 4, "b": 3}
    for batch in (1, 4):
        plan = oracle_request(recording, gammas, batch=batch)
        request = replay(recording, Planned([*recording.arms, NONE], plan, gamma=gammas), batch=batch).goodput
        for arm in ("a", "b", NONE):
            fixed = make(f"fixed:{arm}", recording.arms, gamma=gammas)
            assert request >= replay(recording, fixed, batch=batch).goodput - 1e-9
        if batch == 1:          # where no requests share a pass the plan of single steps is the best there is
            step = oracle_steps(recording, gammas, batch=1).goodput
            assert step >= request - 1e-9
            assert oracle_steps(recording, None, batch=1).goodput >= step - 1e-9


def test_selection_beats_any_drafter_where_requests_differ():
    recording = record(order=("prose", "code") * 30, tokens=100)
    gammas = {"a": 4, "b": 4}
    plan = oracle_request(recording, gammas)
    oracle = replay(recording, Planned([*recording.arms, NONE], plan, gamma=gammas)).goodput
    fixed = max(replay(recording, make(f"fixed:{a}", recording.arms, gamma=4)).goodput for a in recording.arms)
    spin = np.mean([replay(recording, make("spin", recording.arms, seed=s)).goodput for s in range(3)])
    full = replay(recording, make("spin-full", recording.arms)).goodput
    assert fixed < spin < oracle
    assert full > fixed * 1.1 and full > .9 * oracle


def test_full_information_keeps_to_a_shifting_workload():
    recording = record(order=("prose",) * 30 + ("code",) * 30, tokens=80)
    run = replay(recording, make("spin-full", recording.arms, memory=500))
    early, late = (run.request >= 15) & (run.request < 30), run.request >= 48
    assert (run.arm[early] == 0).mean() > .8
    assert (run.arm[late] == 1).mean() > .8


def test_full_information_asks_no_drafter_without_room():
    """With no place for a drafter it plans, and listens, as if that drafter were not there."""
    recording = with_lookup(record(tokens=80))
    closed = replay(recording.only(["a", "b"]), make("spin-full", ["a", "b"]), capacities={"a": 0})
    without = replay(recording.only(["b"]), make("spin-full", ["b"]))
    assert closed.seconds.sum() == pytest.approx(without.seconds.sum(), rel=.01)


def test_recordings_survive_the_disk_and_refuse_nonsense(tmp_path):
    recording = with_lookup(record())
    recording.save(tmp_path / "r.npz")
    again = Recording.load(tmp_path / "r.npz")
    assert again.accepted.tolist() == recording.accepted.tolist()
    assert (again.passes, again.lookups, again.composed, again.about, again.workloads) == (
        recording.passes, recording.lookups, recording.composed, recording.about, recording.workloads)
    twice = recording.take([1, 1])
    assert twice.lengths.tolist() == [recording.lengths[1]] * 2
    assert twice.accepted[:, :recording.lengths[1]].tolist() == twice.accepted[:, recording.lengths[1]:].tolist()
    with pytest.raises(ValueError, match="cannot compose"):
        recording.compose("x", "a", "b")
    with pytest.raises(ValueError, match="no costs of a"):
        Recording(("a",), recording.accepted[:1], recording.proposed[:1], recording.starts, recording.prompts,
                  recording.workloads, recording.ids, {"target": Passes((1, 2), (1, 1))})
    with pytest.raises(ValueError, match="rising"):
        Passes((2, 1), (1, 1))
    with pytest.raises(ValueError, match="batch"):
        replay(recording, make("random", recording.arms), batch=0)
    with pytest.raises(ValueError, match="no drafter 'z'"):
        replay(recording, make("fixed:z", ["z"]))


def test_the_stored_recording_is_small_whole_and_says_where_it_is_from():
    recording = Recording.load()
    assert recording.about["kind"] == "measured" and recording.about["commit"] and recording.about["cpu"]
    assert set(recording.drafters) | {"target"} <= set(recording.passes)
    run = replay(recording, make("spin-full", recording.drafters))
    assert run.tokens == recording.lengths.sum()
    flat = memory_bound(recording)
    assert flat.about["kind"] == "modelled" and flat.passes["target"](1) == pytest.approx(recording.passes["target"](1))


@pytest.mark.parametrize("seed", [1, 5])
def test_unlucky_first_tries_rule_no_drafter_out(seed):
    """With these seeds the first drafts of the best drafter, or of the second best, are rejected."""
    recording = Recording.load()
    recording = recording.take(range(0, len(recording), 6)).only(recording.drafters)
    gamma, order = {a: 4 if a in recording.lookups else 2 for a in recording.arms}, \
        np.random.default_rng(seed).permutation(len(recording))
    spin, ngram = (replay(recording, make(*policy, gamma=gamma, **more), order=order).goodput
                   for *policy, more in (("spin", recording.arms, {"seed": seed, "shorten": True}),
                                         ("fixed:ngram", ["ngram"], {})))
    assert spin > ngram


# ---- what SPIN's exploration may cost

def spin_over(recording: Recording, other, batch: int) -> float:
    """SPIN's goodput over that of ``other(seed)`` on a new server, the mean over a few seeds."""
    def goodput(selector, seed):
        order = np.random.default_rng(seed).permutation(len(recording))
        return replay(recording, selector, batch=batch, order=order).goodput
    return float(np.mean([goodput(make("spin", recording.arms, gamma=2, shorten=True, seed=seed), seed)
                          / goodput(other(seed), seed) for seed in range(3)]))


def test_many_arms_that_cannot_pay_cost_little():
    useful, useless = {"a": .05, "b": .1}, {f"slow-{i}": .9 for i in range(8)}
    likely = {w: {**rates, **dict.fromkeys(useless, .8)} for w, rates in DISTRIBUTIONS.items()}
    recording = synthetic(likely, useful | useless, ("prose", "code") * 20, tokens=60)
    assert spin_over(recording, lambda seed: make("spin", [*useful], gamma=2, shorten=True, seed=seed), 8) > .96


@pytest.mark.parametrize("batch", [16, 32])
def test_where_rows_are_expensive_spin_is_hardly_slower_than_plain_decoding(batch):
    recording = synthetic({"prose": {"a": .4, "b": .3, "c": .4}}, {"a": .1, "b": .2, "c": .3}, ("prose",) * 96,
                          tokens=32, prompt=160)
    passes = {name: Passes((1, 1001), (p(1), 201 * p(1))) for name, p in recording.passes.items()}    # bound by products
    recording = replace(recording, passes=passes)
    assert spin_over(recording, lambda seed: make(f"fixed:{NONE}", []), batch) > .95
